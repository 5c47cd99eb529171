"""Reads users' TOML files; every fault is a `ValueError` that names the file."""

from __future__ import annotations

TYPE_CHECKING = False  # The command line reads them; importing typing would slow its start.
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any


MOST_BYTES = 64 << 20
"""Limit on the size of a file, as for configs; a larger file is probably named by mistake."""


def read_file(path: str | PathLike[str]) -> tuple[str, str]:
    """Returns the text and the name of a file; raises `OSError`, or `ValueError` if not UTF-8."""
    from os import fspath

    name = fspath(path)
    with open(name, "rb") as file:  # noqa: PTH123 - pathlib is not loaded, for a quick start.
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{name}: larger than {MOST_BYTES:,} bytes, the limit for a TOML file")
    try:
        return content.decode("utf-8"), name
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text: byte {error.start:,} is invalid") from None


def read_tables(text: str, source: str) -> dict[str, Any]:
    """Parses TOML `text`; raises `ValueError` with `source` and the fault."""
    import tomllib

    try:
        return tomllib.loads(text)
    except ValueError as error:  # Numbers with thousands of digits do not raise `TOMLDecodeError`.
        raise ValueError(f"{source}: not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{source}: nested too deeply") from None


def read_size(value: object, place: str) -> int:
    """Reads a byte size from an integer or a string; raises `ValueError` with `place`."""
    from hlofast._units import BYTES_HELP, read_bytes

    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{place} is {BYTES_HELP}")
    try:
        return read_bytes(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def read_count(value: object, place: str) -> int:
    """Reads a non-negative number and rounds it down; raises `ValueError` with `place`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**127:
        raise ValueError(f"{place} must be a non-negative number")
    return int(value)
