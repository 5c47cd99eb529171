"""What is different between two configs."""

from __future__ import annotations

from hlofast.config import _values
from hlofast.table import Table, text_column_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._paths import Key
    from hlofast.config._tree import Config, Leaf

CHANGED, ADDED, REMOVED = "changed", "added", "removed"


def changes(
    before: Config, after: Config
) -> list[tuple[tuple[Key, ...], Leaf | None, Leaf | None]]:
    """The keys whose values do not mean the same, with both leaves, in the order of the configs.

    What only `after` has stands behind what precedes it there.
    """
    old, new = dict(before._entries()), dict(after._entries())
    found: list[tuple[tuple[Key, ...], Leaf | None, Leaf | None]] = []
    for keys in _merged(list(old), list(new)):
        was, now = old.get(keys), new.get(keys)
        if was is None or now is None or _values.meaning(was.value) != _values.meaning(now.value):
            found.append((keys, was, now))
    return found


def _merged(old: list[tuple[Key, ...]], new: list[tuple[Key, ...]]) -> list[tuple[Key, ...]]:
    known = set(old)
    behind: dict[tuple[Key, ...] | None, list[tuple[Key, ...]]] = {}
    last: tuple[Key, ...] | None = None
    for keys in new:
        if keys in known:
            last = keys
        else:
            behind.setdefault(last, []).append(keys)
    merged = list(behind.get(None, ()))
    for keys in old:
        merged.append(keys)
        merged.extend(behind.get(keys, ()))
    return merged


def difference(before: Config, after: Config) -> Table:
    """The table of `Config.diff`."""
    from hlofast.config import _paths

    found = changes(before, after)
    kinds: list[str | None] = [
        ADDED if was is None else REMOVED if now is None else CHANGED for _, was, now in found
    ]
    return Table(
        [
            ("path", text_column_of([_paths.write(keys) for keys, _, _ in found])),
            ("change", text_column_of(kinds)),
            ("before", text_column_of([was.text if was else None for _, was, _ in found])),
            ("after", text_column_of([now.text if now else None for _, _, now in found])),
        ]
    )
