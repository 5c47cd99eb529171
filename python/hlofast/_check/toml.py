"""Reading TOML files, for what may be declared and what may be expected."""

from __future__ import annotations

from hlofast._context import read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any


def read_file(path: str | PathLike[str]) -> tuple[str, str]:
    """The text of a file and what to call it; an `OSError`, a `ValueError` if it is no UTF-8."""
    from os import fspath
    from pathlib import Path

    name = fspath(path)
    try:
        return Path(path).read_text(encoding="utf-8"), name
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: {error}") from None


def read_tables(text: str, source: str) -> dict[str, Any]:
    """The tables of TOML `text`; a `ValueError` that names `source` and says what is wrong."""
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source}: {error}") from None
    except RecursionError:
        raise ValueError(f"{source}: nested too deeply") from None


def read_size(value: object, place: str) -> int:
    """A number of bytes, as such or as a text; a `ValueError` that names `place` for others."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{place} is a number of bytes, such as 16GiB")
    try:
        return read_bytes(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
