"""Packages that are optional: imported when asked for, with the extra named that brings them."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # Tables are printed; importing typing would slow their start.
if TYPE_CHECKING:
    from typing import Any


def library(name: str, extra: str) -> Any:
    """The module `name`; a `ModuleNotFoundError` says which extra of hlofast brings it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        message = f"this needs {missing}: pip install 'hlofast[{extra}]'"
        raise ModuleNotFoundError(message, name=missing) from None
