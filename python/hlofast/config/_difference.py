"""The differences between two configs."""

from __future__ import annotations

from hlofast._core import Field
from hlofast.config import _paths, _values
from hlofast.config._tree import Leaf
from hlofast.config._values import PartitionSpec
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias

    from hlofast.config._paths import Key
    from hlofast.config._tree import Children, Config

    Node: TypeAlias = "Children | Leaf | None"
    Difference: TypeAlias = "tuple[tuple[Key, ...], str | None, str | None]"

CHANGED, ADDED, REMOVED = "changed", "added", "removed"
MOST_ITEMS = 16
"""Longest tuple that is compared as one value; longer tuples are compared item by item."""

_DIFFERENCES = (
    Field("path", "path", "The value in the config."),
    Field("word", "change", "The kind of difference: changed, added or removed."),
    Field("text", "before", "The value before, as printed; absent if it was added.", nullable=True),
    Field("text", "after", "The value after, as printed; absent if it was removed.", nullable=True),
)


def differences(before: Config, after: Config) -> Iterator[Difference]:
    """Yields the keys and both texts of each value that differs; None for an absent value.

    A value that only `after` has follows the value that precedes it in `after`. A tuple of up to
    `MOST_ITEMS` values counts as one value.
    """
    return _compared((), before._children, after._children)


def difference_table(before: Config, after: Config) -> Table:
    """The table of `Config.diff`."""
    return of_rows(
        _DIFFERENCES,
        [
            (
                _paths.write(keys),
                ADDED if was is None else REMOVED if now is None else CHANGED,
                was,
                now,
            )
            for keys, was, now in differences(before, after)
        ],
    )


def _compared(keys: tuple[Key, ...], before: Node, after: Node) -> Iterator[Difference]:
    if before is after:
        # An edited config shares all unchanged parts with its original.
        return
    if _is_value(before) and _is_value(after):
        if _meaning(before, after) == _meaning(after, before):
            return
        if _size(before) <= MOST_ITEMS and _size(after) <= MOST_ITEMS:
            yield keys, _text(before), _text(after)
            return
    old = {} if before is None or isinstance(before, Leaf) else before
    new = {} if after is None or isinstance(after, Leaf) else after
    if isinstance(before, Leaf) or isinstance(after, Leaf):
        yield (
            keys,
            before.text if isinstance(before, Leaf) else None,
            after.text if isinstance(after, Leaf) else None,
        )
    for key in _merged(list(old), list(new)):
        yield from _compared((*keys, key), old.get(key), new.get(key))


def _merged(old: list[Key], new: list[Key]) -> list[Key]:
    """The keys of `old`, in order.

    A key that is only in `new` follows the key that precedes it in `new`.
    """
    known = set(old)
    behind: list[tuple[int, Key]] = []
    places = {key: place for place, key in enumerate(old)}
    last = -1
    for key in new:
        if key in known:
            last = places[key]
        else:
            behind.append((last, key))
    merged = [(place, 0, key) for key, place in places.items()]
    merged += [(place, 1, key) for place, key in behind]
    merged.sort(key=lambda entry: entry[:2])
    return [key for _, _, key in merged]


def _is_value(node: Node) -> bool:
    """Whether `node` is absent, a value, or a tuple of values."""
    if node is None or isinstance(node, Leaf):
        return True
    return all(
        type(key) is int and key == index and _is_value(child)
        for index, (key, child) in enumerate(node.items())
    )


def _size(node: Node) -> int:
    if node is None or isinstance(node, Leaf):
        return 1
    return sum(map(_size, node.values()))


def _plain(node: Children | Leaf) -> Any:
    if isinstance(node, Leaf):
        return node.value
    return tuple(map(_plain, node.values()))


def _meaning(node: Node, other: Node) -> object:
    """A key for comparison, equal for nodes that mean the same."""
    if node is None:
        # An absent node does not equal any value.
        return ()
    value = _plain(node)
    is_spec = isinstance(other, Leaf) and isinstance(other.value, PartitionSpec)
    if is_spec and isinstance(value, tuple):
        # Configs print a partition spec as a partition spec, or as a tuple if it was written as a
        # tuple.
        try:
            return _values.meaning(PartitionSpec(*value))
        except TypeError:
            return tuple, value
    return _values.meaning(value)


def _text(node: Node) -> str | None:
    if node is None:
        return None
    return node.text if isinstance(node, Leaf) else repr(_plain(node))
