"""Readers of the values of arguments: counts, sizes, times, rates."""

from __future__ import annotations

from hlofast import _units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    _Number = TypeVar("_Number", int, float)

MOST_DIGITS = 12
"""Limit on the digits of a device count: enough for any machine, and few enough for fast
arithmetic.
"""


def count(text: str) -> int:
    """Reads a device count, at least 1."""
    if (number := _from_one(text)) is None:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"not a device count: {text!r}; give a whole number from 1, as 256")
    return number


def part(text: str) -> int:
    """Reads a number of hosts or slices, at least 1."""
    if (number := _from_one(text)) is None:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"not a whole number from 1: {text!r}")
    return number


def _from_one(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    return int(text) or None if is_number else None


def size(text: str) -> int:
    """Reads a number of bytes."""
    return _quantity(_units.read_bytes, text)


def seconds(text: str) -> float:
    """Reads a time above 0, in seconds."""
    return _quantity(_units.read_seconds, text)


def seconds_or_none(text: str) -> float:
    """Reads a time of at least 0, in seconds."""
    return _quantity(lambda own: _units.read_seconds(own, least=0), text)


def rate(text: str) -> float:
    """Reads a rate in FLOP/s."""
    return _quantity(_units.read_rate, text)


def threshold(text: str) -> float:
    """Reads a threshold: a finite number from 0."""
    return _within(text, float("inf"), "a number from 0")


def share(text: str) -> float:
    """Reads a share from 0 to 1."""
    return _within(text, 1, "a number from 0 to 1")


def _within(text: str, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if 0 <= value <= most and value != float("inf"):
        return value
    from argparse import ArgumentTypeError

    raise ArgumentTypeError(f"{text!r} is not {what}")


def _quantity(read: Callable[[str], _Number], text: str) -> _Number:
    try:
        return read(text)
    except ValueError as error:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(str(error)) from None
