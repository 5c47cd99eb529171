"""Suggestions for unknown names: the nearest known names."""

from __future__ import annotations

from hlofast.errors import UnknownNameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST = 20_000
"""Limit on the names that are compared: a comparison takes microseconds, and modules have millions
of names.
"""
_LISTED = 40
"""Limit on the names that an error lists."""
_LONGEST = 200
"""Limit on the length of names that are compared, because the time is quadratic in the length."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Returns at most `count` names most similar to `name`, nearest first.

    Names that start with `name` come first, because `fusion` may mean any `fusion.1`. Among very
    many names, only names that start with the first half of `name` are compared.
    """
    from difflib import get_close_matches

    if not name or len(name) > _LONGEST:
        return []
    names = dict.fromkeys(own for own in known if own and len(own) <= _LONGEST)
    folded = name.casefold()
    begin = [own for own in names if own.casefold().startswith(folded)]
    if len(begin) >= count:
        return begin[:count]
    compared = list(names)
    if len(compared) > _MOST:
        stem = folded[: max(len(folded) // 2, 1)]
        compared = [own for own in names if own.casefold().startswith(stem)][:_MOST]
    by_folded: dict[str, str] = {}
    for own in compared:
        by_folded.setdefault(own.casefold(), own)
    close = get_close_matches(folded, by_folded, n=count)
    return list(dict.fromkeys([*begin, *(by_folded[own] for own in close)]))[:count]


def meant(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean …?` with the nearest known names; empty if none is near."""
    close = nearest(name, known)
    return f"; did you mean {', '.join(close)}?" if close else ""


def unknown(what: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """Returns the error for an unknown name: the nearest names, then all known names."""
    names = list(known)
    listed = ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
    hint = meant(str(name), names) or ";"
    return UnknownNameError(f"no {what} {name!r}{hint} known: {listed or 'none'}")
