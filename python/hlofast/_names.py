"""Names that were meant: the nearest of those there are."""

from __future__ import annotations

from hlofast.errors import UnknownNameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST = 20_000
"""Names that are compared; comparing one takes microseconds, and modules have millions."""
_LISTED = 40
"""Names that an error lists."""
_LONGEST = 200
"""Characters of a name that are compared, which takes the square of them."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The names that are most like `name`, at most so many, the nearest first.

    Names that begin like it come in front, since `fusion` stands for every `fusion.1`; of many
    names those with the same beginning are compared.
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
    """`; did you mean …?` with the nearest of the names there are, empty if none is near."""
    close = nearest(name, known)
    return f"; did you mean {', '.join(close)}?" if close else ""


def unknown(what: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not there: the nearest names, then those there are."""
    names = list(known)
    listed = ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
    hint = meant(str(name), names) or ";"
    return UnknownNameError(f"no {what} {name!r}{hint} there are: {listed or 'none'}")
