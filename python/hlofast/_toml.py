"""Reading TOML files of users: a `ValueError` that names the file, whatever stands in them."""

from __future__ import annotations

TYPE_CHECKING = False  # The command line reads them; importing typing would slow its start.
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any


MOST_BYTES = 64 << 20
"""As of configs: larger files are something else, named by mistake."""


def read_file(path: str | PathLike[str]) -> tuple[str, str]:
    """The text of a file and what to call it; an `OSError`, a `ValueError` if it is no UTF-8."""
    from os import fspath

    name = fspath(path)
    with open(name, "rb") as file:  # noqa: PTH123 - pathlib is not loaded, for a quick start.
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{name}: more than {MOST_BYTES:,} bytes, which no TOML file has")
    try:
        return content.decode("utf-8"), name
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: {error}") from None


def read_tables(text: str, source: str) -> dict[str, Any]:
    """The tables of TOML `text`; a `ValueError` that names `source` and says what is wrong."""
    import tomllib

    try:
        return tomllib.loads(text)
    except ValueError as error:  # Of numbers with thousands of digits no `TOMLDecodeError`.
        raise ValueError(f"{source}: {error}") from None
    except RecursionError:
        raise ValueError(f"{source}: nested too deeply") from None


def read_size(value: object, place: str) -> int:
    """A number of bytes, as such or as a text; a `ValueError` that names `place` for others."""
    from hlofast._units import BYTES_HELP, read_bytes

    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{place} is {BYTES_HELP}")
    try:
        return read_bytes(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def read_count(value: object, place: str) -> int:
    """A number from 0 on, rounded down; a `ValueError` that names `place` for others."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**127:
        raise ValueError(f"{place} is a number from 0 on")
    return int(value)
