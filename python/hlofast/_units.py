"""Parses numbers with units: bytes, seconds, FLOP/s."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_POWERS = tuple(enumerate("kmgt", 1))
_BYTES = (
    {"b": 1}
    | {letter + "b": 1000**power for power, letter in _POWERS}
    # XLA writes 15.75G for 15.75 * 2**30 bytes (HumanReadableNumBytes in tsl/platform/numbers.cc).
    | {letter + suffix: 1024**power for power, letter in _POWERS for suffix in ("ib", "")}
)
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0}
_PREFIXES = {"": 1.0} | {letter: 1000.0**power for power, letter in enumerate("kmgtpe", 1)}
_RATES = {
    prefix + unit: factor
    for prefix, factor in _PREFIXES.items()
    for unit in ("", "flop/s", "flops/s", "flops", "flop")
}
_COUNTS = {"": 1} | {letter: 1000**power for power, letter in enumerate("kmbt", 1)}
_MOST_CHARACTERS = 64
"""Limit on the length of a number with its unit.

Longer texts are refused, because parsing their digits takes time.
"""

BYTES_HELP = "a number of bytes such as 16GiB, 16GB or 95G (G is GiB, as XLA writes it)"
SECONDS_HELP = "a time such as 300ms, 1.2s or 0.3"
COUNT_HELP = "a number such as 1e12, 300B or 15T"
RATE_HELP = "a rate such as 197T, 197TFLOP/s or 1.97e14"


def read_bytes(text: int | str) -> int:
    """Reads a number of bytes, given as a number or as text: `16GiB`, `900 MB`, `95G`.

    A single letter is binary, as XLA prints it: `95G` is `95GiB`. Raises `ValueError` for other
    texts, negative numbers and numbers beyond 64 bits.
    """
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise TypeError(f"{text!r} is not {BYTES_HELP}")
    count = int(_quantity(text, _BYTES, BYTES_HELP))
    if not 0 <= count < 2**63:
        raise ValueError(f"{text!r} is not {BYTES_HELP}")
    return count


def read_memory(text: int | str) -> int:
    """Reads the bytes of a memory, as `read_bytes`. Raises `ValueError` for 0 too."""
    count = read_bytes(text)
    if count == 0:
        raise ValueError(f"{text!r} is not a memory: give {BYTES_HELP}")
    return count


def read_seconds(text: float | str, *, least: float | None = None) -> float:
    """Reads a number of seconds, given as a number or as text: `300ms`, `1.5 s`, `2min`.

    Raises `ValueError` for other texts and for times that are not above 0, or that are below
    `least` if it is given.
    """
    seconds = float(_quantity(text, _SECONDS, SECONDS_HELP))
    is_enough = seconds > 0 if least is None else seconds >= least
    if not is_enough or seconds == float("inf"):
        raise ValueError(f"{text!r} is not {SECONDS_HELP}")
    return seconds


def read_rate(text: float | str) -> float:
    """Reads a rate in FLOP/s, given as a number or as text: `197T`, `197 TFLOP/s`, `1.97e14`.

    Raises `ValueError` for other texts and for rates that are not above 0.
    """
    rate = float(_quantity(text, _RATES, RATE_HELP))
    if not 0 < rate < float("inf"):
        raise ValueError(f"{text!r} is not {RATE_HELP}")
    return rate


def read_count(text: str) -> float:
    """Reads a number of things: `15T`, `300B`, `1.5M`, `1e12`; raises `ValueError` for others."""
    return _quantity(text, _COUNTS, COUNT_HELP)


def _quantity(text: float | str, units: Mapping[str, float], what: str) -> float:
    if not isinstance(text, str):
        return text
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"{text[:_MOST_CHARACTERS]!r}… is not {what}")
    written = text.strip().lower()
    number = written.rstrip("abcdefghijklmnopqrstuvwxyzµμ/").rstrip()
    unit = written[len(number) :].strip().replace("μ", "µ")
    try:
        factor = units[unit] if unit or "" in units else 1
        try:
            return int(number) * factor  # The arithmetic is exact for whole numbers of bytes.
        except ValueError:
            if units is _BYTES and not unit and "." in number:
                raise  # A fraction of a byte means that the unit was forgotten.
            size = float(number) * factor
            int(size)  # This raises an error for infinity and NaN.
            return size
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{text!r} is not {what}") from None
