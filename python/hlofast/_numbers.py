"""Which arguments are numbers: Python's, numpy's, and those of other libraries, but not bool."""

from __future__ import annotations

from numbers import Integral, Real


def is_whole(value: object) -> bool:
    """Whether a value is an integer of any kind; 2.0 is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a real number of any kind, which may be infinite or NaN."""
    return isinstance(value, Real) and not isinstance(value, bool)
