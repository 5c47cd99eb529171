"""Numbers of bytes as messages write them, with their rounding."""

from __future__ import annotations

import re

UNITS = {"": 1, "B": 1} | {
    letter + suffix: 1024**power
    for power, letter in enumerate("KMGTPE", 1)
    for suffix in ("", "iB", "B", "i")
}
"""Factors by unit. XLA's single letters are binary: `HumanReadableNumBytes` in tsl's
`numbers.cc` divides by 1024, with one decimal for K and two for larger units."""
SIZE = r"-?\d{1,20}(?:\.\d{1,4})?\s?(?:[KMGTPE](?:iB|B|i)?|B|bytes)?(?![a-z0-9_])"
"""A size in a message; it never spans more than 40 characters."""
_PARTS = re.compile(r"(-?\d{1,20})(?:\.(\d{1,4}))?\s?([KMGTPE]?(?:iB|B|i)?|bytes)$")
_MOST = 2**63 - 1


class Amount:
    """A number of bytes in a message: the value, its rounding and the text."""

    __slots__ = ("bytes", "plus_minus", "text")

    def __init__(self, value: int, plus_minus: int, text: str) -> None:
        self.bytes = value
        """The bytes, rounded to the nearest whole number."""
        self.plus_minus = plus_minus
        """The true value lies within this many bytes; 0 if the text is exact."""
        self.text = text
        """The text, such as `63.80G`."""

    @property
    def is_exact(self) -> bool:
        """Whether the text gives the exact number of bytes."""
        return self.plus_minus == 0

    def agrees(self, other: Amount) -> bool:
        """Whether both may be the same number of bytes."""
        return abs(self.bytes - other.bytes) <= self.plus_minus + other.plus_minus

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amount) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> tuple[int, int]:
        """Value and rounding."""
        return self.bytes, self.plus_minus

    def __repr__(self) -> str:
        return f"<Amount {self.text}: {self.bytes:,} B ± {self.plus_minus:,}>"


def amount(text: str) -> Amount | None:
    """Reads a size such as `63.80G`, `384.0KiB`, `0B` or `6291456 bytes`; None for other texts.

    A number with a unit above bytes is rounded: `63.80G` stands for 63.795 to 63.805 GiB. XLA
    writes sizes below 1 KiB exactly; whole numbers with a larger unit and no decimals are rounded
    to that unit, except in texts that people wrote (`32M` of a limit), which cannot be told apart.
    """
    found = _PARTS.match(text.strip())
    if found is None:
        return None
    whole, fraction, unit = found.group(1), found.group(2) or "", found.group(3)
    factor = UNITS["" if unit == "bytes" else unit]
    digits = int(whole + fraction) * factor
    scale = 10 ** len(fraction)
    value = (2 * abs(digits) + scale) // (2 * scale)
    if value > _MOST:
        return None
    rounding = 0 if factor == 1 else (factor + 2 * scale - 1) // (2 * scale)
    return Amount(-value if digits < 0 else value, rounding, text.strip())


def exact(count: int, text: str | None = None) -> Amount | None:
    """Returns an exact number of bytes; None beyond 64 bits."""
    return Amount(count, 0, str(count) if text is None else text) if count <= _MOST else None


def written(value: int) -> str:
    """Returns bytes in XLA's short form: `63.80G`, `512B`."""
    size, sign = abs(value), "-" if value < 0 else ""
    if size < 1024:
        return f"{sign}{size}B"
    power = min((size.bit_length() - 1) // 10, 5)
    text = f"{size / 1024**power:.{1 if power == 1 else 2}f}"
    return f"{sign}{text}{'KMGTP'[power - 1]}"
