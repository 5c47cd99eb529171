"""Imports of optional packages; the error names the extra that installs them."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # Tables are printed; importing typing would slow their start.
if TYPE_CHECKING:
    from typing import Any


def library(name: str, extra: str) -> Any:
    """Imports the module `name`; a `ModuleNotFoundError` names the extra that installs it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        message = f"this needs {missing}: pip install 'hlofast[{extra}]'"
        raise ModuleNotFoundError(message, name=missing) from None
