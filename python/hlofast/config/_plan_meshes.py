"""The meshes that a plan searches: sizes that divide what they shard, the fewest axes first."""

from __future__ import annotations

import math
from typing import NamedTuple

from hlofast.config._plan_space import spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hlofast.config._implied import Implied

MOST_MESHES = 5_000
"""Limit on the meshes of a plan."""
ONE_DEVICE = "one device"
"""How a mesh is shown that has no axis with more than one device."""


class Indivisible(NamedTuple):
    """Mesh axes that shard an array's dimension, or the batch, which they do not divide."""

    axes: tuple[str, ...]
    size: int
    """The size of the dimension."""
    of: str
    """What has the dimension."""

    def told(self, sizes: Iterable[int]) -> str:
        """The reason for these sizes of the axes together."""
        return _undivided(",".join(self.axes), sizes, f"{self.size:,} {self.of}")


class Undivided(NamedTuple):
    """A reason of a front that differs between sizes of an axis, without the size."""

    axes: str
    """The text up to the size."""
    what: str
    """What the size does not divide, to the end of the text."""

    def told(self, sizes: Iterable[int]) -> str:
        """The reason for these sizes."""
        return _undivided(self.axes, sizes, self.what)


def sized(reason: str, mesh: Mapping[str, int]) -> str | tuple[Undivided, int]:
    """A reason without the size that it tells, and the size; the reason itself if it tells none.

    Fronts tell `AXIS,AXIS = SIZE does not divide WHAT`. Since a reason may quote the config, only
    the size that these axes have on the mesh counts.
    """
    before, does_not, what = reason.partition(" does not divide ")
    axes, equals, shown_size = before.rpartition(" = ")
    named = axes.rpartition(" ")[2].split(",")
    if not does_not or not equals or any(axis not in mesh for axis in named):
        return reason
    size = math.prod(mesh[axis] for axis in named)
    return (Undivided(axes, what), size) if shown_size in (f"{size}", f"{size:,}") else reason


def _undivided(axes: str, sizes: Iterable[int], what: str) -> str:
    many = sorted(sizes)
    return f"{axes} = {shown(many)} {'does' if len(many) == 1 else 'do'} not divide {what}"


def shown(sizes: Sequence[int], most: int = 8) -> str:
    """The first sizes, and the number of further ones."""
    text = ", ".join(str(size) for size in sizes[:most])
    return text if len(sizes) <= most else f"{text} and {len(sizes) - most:,} more"


def shown_mesh(mesh: Mapping[str, int]) -> str:
    """The axes with more than one device."""
    return ",".join(f"{axis}={size}" for axis, size in mesh.items() if size > 1) or ONE_DEVICE


def uneven(implied: Implied) -> tuple[Indivisible, int] | None:
    """The weights that the mesh does not divide evenly, which JAX refuses, and the shards.

    None if it divides all.
    """
    for parameter in implied.parts.parameters:
        for size, axes in zip(parameter.shape, parameter.sharding, strict=True):
            shards = implied.shards(axes)
            if size % shards:
                cut = tuple(axis for axis in axes if implied.mesh.get(axis, 1) > 1)
                return Indivisible(cut, size, f"of {parameter.path}"), shards
    return None


def of_batch(axes: tuple[str, ...], sequences: int) -> Indivisible:
    """Axes that shard the sequences of a step."""
    return Indivisible(axes, sequences, "sequences of a step")


class Sizes:
    """The sizes of each axis that divide all that the axis shards.

    No mesh with another size can run, whatever the sizes of the other axes are.
    """

    __slots__ = ("axes", "dropped")

    def __init__(
        self, implied: Implied, axes: Sequence[str], devices: int, sequences: int | None
    ) -> None:
        self.axes: dict[str, list[int]] = {}
        """By axis, in ascending order."""
        self.dropped: list[tuple[str, list[int], Indivisible]] = []
        """The other divisors of the devices, with what they do not divide."""
        every = divisors(devices)
        for axis in axes:
            self.axes[axis] = left = list(every)
            sharded = list(_sharded(implied, axis, sequences))
            while sharded:
                # The dimension that drops most sizes explains them all at once.
                most = min(sharded, key=lambda own: sum(own.size % size == 0 for size in left))
                dropped = [size for size in left if most.size % size]
                if not dropped:
                    break
                self.dropped.append((axis, dropped, most))
                self.axes[axis] = left = [size for size in left if most.size % size == 0]


def _sharded(implied: Implied, axis: str, sequences: int | None) -> Iterator[Indivisible]:
    """What an axis shards, each size once; the batch if its `sequences` are given."""
    known: set[int] = set()
    if sequences is not None and axis in implied.batch.axes:
        known.add(sequences)
        yield of_batch((axis,), sequences)
    for parameter in implied.parts.parameters:
        for size, along in zip(parameter.shape, parameter.sharding, strict=True):
            if axis in along and size not in known:
                known.add(size)
                yield Indivisible((axis,), size, f"of {parameter.path}")


def meshes(
    sizes: Mapping[str, Sequence[int]], devices: int, slices: int
) -> Iterator[dict[str, int]]:
    """All meshes with these sizes of axes, outermost first: the fewest axes above 1 first.

    Slices lie along their outermost axes.
    """
    axes = list(sizes)
    for used in range(len(axes) + 1):
        for found in _factored(list(sizes.values()), devices, used):
            if spread(found, slices) is not None:
                yield dict(zip(axes, found, strict=True))


def _factored(choices: Sequence[Sequence[int]], total: int, used: int) -> Iterator[tuple[int, ...]]:
    """All products of one factor of each choice that make `total`, `used` of them above 1."""
    possible: dict[tuple[int, int, int], bool] = {}

    def next_of(at: int, left: int, above: int) -> Iterator[tuple[int, int, int]]:
        """The factors at a place, each with what is left for the later ones."""
        for factor in choices[at]:
            if left % factor == 0:
                yield factor, left // factor, above - (factor > 1)

    def is_possible(at: int, left: int, above: int) -> bool:
        if above < 0 or above > len(choices) - at:
            return False
        if at == len(choices) or above == 0 or left == 1:
            return left == 1 and above == 0
        key = at, left, above
        if key not in possible:
            possible[key] = any(
                is_possible(at + 1, rest, count) for _, rest, count in next_of(*key)
            )
        return possible[key]

    def found(at: int, left: int, above: int) -> Iterator[tuple[int, ...]]:
        if at == len(choices):
            yield ()
            return
        for factor, rest, count in next_of(at, left, above):
            if is_possible(at + 1, rest, count):
                for later in found(at + 1, rest, count):
                    yield (factor, *later)

    if is_possible(0, total, used):
        yield from found(0, total, used)


def divisors(number: int) -> list[int]:
    """All divisors, in ascending order."""
    small = [own for own in range(1, int(number**0.5) + 1) if number % own == 0]
    return sorted({*small, *(number // own for own in small)})
