"""How an array is dealt out to devices: XLA's tile assignments, and groups of their devices.

This models `xla/hlo/utils/hlo_sharding_util.cc` and `xla/hlo/ir/hlo_sharding.cc`, for shardings
that tile arrays or replicate them.
"""

from __future__ import annotations

from itertools import permutations, product
from math import prod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Groups = tuple[tuple[int, ...], ...]


def transposed(flat: Sequence[int], dims: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Returns the elements of an array of size `dims` with its dimensions in another order."""
    strides = [1] * len(dims)
    for at in range(len(dims) - 2, -1, -1):
        strides[at] = strides[at + 1] * dims[at + 1]
    offsets = [0]
    for at in order:
        offsets = [own + step * strides[at] for own in offsets for step in range(dims[at])]
    return tuple(flat[own] for own in offsets)


class Tiling:
    """A tile of an array for each device, in the order of the tiles.

    With `is_partial` the last dimension counts devices that hold the same tile. Without dimensions
    all devices hold all of the array.
    """

    __slots__ = ("devices", "dims", "is_partial")

    def __init__(self, dims: Iterable[int], devices: Iterable[int], is_partial: bool) -> None:
        self.dims: tuple[int, ...] = tuple(dims)
        self.devices: tuple[int, ...] = tuple(devices)
        self.is_partial = is_partial

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tiling) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self.dims, self.devices, self.is_partial

    @property
    def is_whole(self) -> bool:
        """Whether all devices hold all of the array."""
        return not self.dims

    @property
    def rank(self) -> int:
        """Dimensions of the array; 0 if it is whole."""
        return len(self.dims) - self.is_partial

    @property
    def tiles(self) -> int:
        """The number of different tiles."""
        return prod(self.dims[: self.rank])

    @property
    def copies(self) -> int:
        """Devices with the same tile; unknown, and 1, if the array is whole."""
        return self.dims[-1] if self.is_partial else 1

    def along(self, dim: int) -> int:
        """Tiles along a dimension."""
        return self.dims[dim] if self.dims else 1

    def shape(self, base: Sequence[int]) -> tuple[int, ...]:
        """Returns the size of a tile."""
        if not self.dims:
            return tuple(base)
        return tuple(-(-size // own) for size, own in zip(base, self.dims, strict=False))

    def is_even(self, base: Sequence[int]) -> bool:
        """Whether all tiles of an array are equally large."""
        return all(size % own == 0 for size, own in zip(base, self.dims, strict=False))

    def reshaped(self, dims: Sequence[int]) -> Tiling:
        """Returns the same devices in other dimensions."""
        return tiling(dims, self.devices, self.is_partial)


WHOLE = Tiling((), (), False)


def tiling(dims: Sequence[int], devices: Sequence[int], is_partial: bool) -> Tiling:
    """Returns a tiling in the form in which equal ones are equal: copies in ascending order."""
    if is_partial:
        copies = dims[-1]
        if copies == len(devices):
            return WHOLE
        if copies == 1:
            return Tiling(dims[:-1], devices, False)
        devices = [
            one
            for at in range(0, len(devices), copies)
            for one in sorted(devices[at : at + copies])
        ]
    return Tiling(dims, devices, is_partial)


def of_axes(mesh: dict[str, int], dims: Sequence[Sequence[str]]) -> Tiling:
    """Returns the tiling that divides each dimension over mesh axes, in their order."""
    names = list(mesh)
    sizes = list(mesh.values())
    used = [axis for own in dims for axis in own]
    rest = [axis for axis in names if axis not in used]
    order = [names.index(axis) for axis in (*used, *rest)]
    tiles = [prod(mesh[axis] for axis in own) for own in dims]
    copies = prod(mesh[axis] for axis in rest)
    if prod(tiles) == 1:
        return WHOLE
    return tiling((*tiles, copies), transposed(range(prod(sizes)), sizes, order), True)


def undivided(own: Tiling, dim: int) -> Tiling:
    """Returns a tiling that no longer divides a dimension: its tiles are copies."""
    others = [at for at in range(own.rank) if at != dim]
    return propagated(own, others, others, own.rank)


def propagated(own: Tiling, source: Sequence[int], target: Sequence[int], rank: int) -> Tiling:
    """Returns the tiling of an array with `rank` dimensions, some of them tiled as in `own`."""
    if own.is_whole:
        return own
    pairs = sorted(zip(target, source, strict=True))
    rest = [at for at in range(own.rank) if at not in source]
    order = [at for _, at in pairs] + rest + ([own.rank] if own.is_partial else [])
    dims = [1] * rank
    for at, old in pairs:
        dims[at] = own.dims[old]
    copies = own.copies * prod(own.dims[at] for at in rest)
    return tiling((*dims, copies), transposed(own.devices, own.dims, order), True)


def is_finer(shape: Sequence[int], fine: Tiling, coarse: Tiling) -> bool:
    """Returns whether each device's tile of `fine` lies in its tile of `coarse`."""
    if coarse.is_whole:
        return True
    if fine.is_whole or fine.rank != coarse.rank:
        return False
    start = _starts(coarse, coarse.shape(shape))
    inner, outer = fine.shape(shape), coarse.shape(shape)
    for device, begins in _starts(fine, inner).items():
        for dim, begin in enumerate(begins):
            if begin < start[device][dim]:
                return False
            is_inside = begin + inner[dim] <= shape[dim]
            if is_inside and begin + inner[dim] > start[device][dim] + outer[dim]:
                return False
    return True


def _starts(own: Tiling, tile: Sequence[int]) -> dict[int, tuple[int, ...]]:
    found = {}
    for place, device in zip(product(*map(range, own.dims)), own.devices, strict=True):
        found[device] = tuple(size * at for size, at in zip(tile, place[: own.rank], strict=True))
    return found


def merged(extra: Tiling, own: Tiling) -> Tiling | None:
    """Returns a tiling that is finer than both, with more tiles than `own`; None without one."""
    if extra.is_whole:
        return None
    if own.is_whole:
        return extra
    if not own.is_partial or own.rank != extra.rank:
        return None
    dims = []
    for more, less in zip(extra.dims[: extra.rank], own.dims[: own.rank], strict=True):
        if more != less and 1 not in (more, less):
            return None
        dims.append(max(more, less))
    count = len(extra.devices)
    if count % prod(dims) or prod(dims) <= own.tiles:
        return None
    copies = count // prod(dims)
    own_ways, extra_ways = (_split(one, dims, copies) for one in (own, extra))
    found = None
    for way in own_ways:
        if way in extra_ways:
            found = way
    if found is None:
        found = _matched(extra, own, dims, copies)
    if found is None:
        return None
    return tiling((*dims, copies), found, True)


def _split(own: Tiling, dims: Sequence[int], copies: int) -> list[tuple[int, ...]]:
    """The orders of devices in which copies of a tiling are dealt out to more tiles."""
    if own.copies == copies:
        return [own.devices]
    new = [at for at in range(own.rank) if own.dims[at] != dims[at]]
    old = [at for at in range(own.rank) if own.dims[at] == dims[at]]
    places: list[tuple[int, int]] = [(dims[at], at) for at in new]
    if copies > 1:
        places.append((copies, own.rank))
    ways = []
    for chosen in permutations(places):
        sizes = [dims[at] for at in old] + [size for size, _ in chosen]
        where = {at: number for number, at in enumerate(old)}
        where |= {at: len(old) + number for number, (_, at) in enumerate(chosen)}
        ways.append(transposed(own.devices, sizes, [where[at] for at in sorted(where)]))
    return ways


def _matched(
    extra: Tiling, own: Tiling, dims: Sequence[int], copies: int
) -> tuple[int, ...] | None:
    """The smallest device of each tile that has both tiles, one after the other."""
    tiles = []
    for one in (extra, own):
        parts = len(one.devices) // one.tiles
        # Dictionaries, since these are sets in ascending order.
        tiles.append([
            dict.fromkeys(sorted(one.devices[at * parts : (at + 1) * parts]))
            for at in range(one.tiles)
        ])  # fmt: skip
    found = []
    for place in product(*map(range, (*dims, copies))):
        members = []
        for one, groups in zip((extra, own), tiles, strict=True):
            at = 0
            for size, own_place in zip(one.dims[: one.rank], place, strict=False):
                at = at * size + (own_place if size > 1 else 0)
            members.append(groups[at])
        both = next((device for device in members[0] if device in members[1]), None)
        if both is None:
            return None
        for group in members:
            del group[both]
        found.append(both)
    return tuple(found)


class Grouped:
    """Groups of devices, and the tiling of an array within each."""

    __slots__ = ("dims", "groups", "rank", "sizes", "tiling")

    def __init__(
        self, groups: Groups, dims: Sequence[int], sizes: Sequence[int], rank: int, own: Tiling
    ) -> None:
        self.groups = groups
        self.dims = tuple(dims)
        self.sizes = tuple(sizes)
        self.rank = rank
        self.tiling = own

    def base(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the part of an array that a group has."""
        sizes = list(shape)
        for dim, parts in zip(self.dims, self.sizes, strict=True):
            if dim < len(sizes):
                sizes[dim] = -(-sizes[dim] // parts)
        return tuple(sizes)

    def aligned(self, other: Grouped) -> Grouped:
        """Returns the groups of `other`, with the devices of each where they were."""
        home = {device: at for at, group in enumerate(other.groups) for device in group}
        inner = self.tiling
        if all({home[one] for one in group} == {at} for at, group in enumerate(self.groups)):
            place = {device: at for at, device in enumerate(other.groups[0])}
            if not inner.is_whole:
                order = [place[one] for one in self.groups[0]]
                devices = [order[one] for one in inner.devices]
                inner = tiling(inner.dims, devices, inner.is_partial)
        return Grouped(other.groups, self.dims, self.sizes, self.rank, inner)

    def ungrouped(self) -> Tiling:
        """Returns the tiling over all devices."""
        inner, size = self.tiling, len(self.groups[0])
        if inner.is_whole:
            dims = [1] * self.rank
            is_partial = size != 1 or self.rank in self.dims
            if is_partial:
                dims.append(size)
            order: Sequence[int] = range(size)
        else:
            dims, is_partial, order = list(inner.dims), inner.is_partial, inner.devices
            if len(dims) in self.dims:
                dims.append(1)
                is_partial = True
        flat = [group[at] for group in self.groups for at in order]
        # Each group dimension stands before the dimension that it divides.
        permuted, number = [], len(self.dims)
        for at in range(len(dims)):
            if at in self.dims:
                permuted.append(self.dims.index(at))
            permuted.append(number + at)
        devices = transposed(flat, (*self.sizes, *dims), permuted)
        for dim, parts in zip(self.dims, self.sizes, strict=True):
            dims[dim] *= parts
        return tiling(dims, devices, is_partial)


def grouped(own: Tiling, dims: Sequence[int], inside: Sequence[int] | None = None) -> Grouped:
    """Groups the devices that differ in some dimensions; each keeps `inside` of their tiles."""
    inside = [1] * len(dims) if inside is None else inside
    sizes = [own.dims[dim] // kept for dim, kept in zip(dims, inside, strict=True)]
    inner = list(own.dims)
    for dim, kept in zip(dims, inside, strict=True):
        inner[dim] = kept
    split: list[int] = []
    place = {}
    rest = []
    for at, size in enumerate(inner):
        if at in dims:
            place[at] = len(split)
            split.append(sizes[list(dims).index(at)])
        rest.append(len(split))
        split.append(size)
    flat = transposed(own.devices, split, [place[dim] for dim in dims] + rest)
    size = len(flat) // prod(sizes)
    groups = tuple(tuple(flat[at : at + size]) for at in range(0, len(flat), size))
    is_partial = own.is_partial
    if is_partial and inner[-1] == 1:
        inner.pop()
        is_partial = False
    within = WHOLE
    if prod(inner) > 1 and not (is_partial and prod(inner) == inner[-1]):
        within = tiling(inner, range(prod(inner)), is_partial)
    return Grouped(groups, dims, sizes, own.rank, within)


def _factors(number: int) -> list[int]:
    """Prime factors as XLA finds them: it drops the last if that is odd and not repeated."""
    found = []
    while number % 2 == 0:
        found.append(2)
        number //= 2
    odd = 3
    while odd * odd <= number:
        while number % odd == 0:
            found.append(odd)
            number //= odd
        odd += 2
    return found


def grouped_by_copies(
    own: Tiling, count: int, devices: int, rank: int, replicable: Sequence[int]
) -> Grouped:
    """Groups devices so that each group has all of an array: some dims are divided no more."""
    if own.is_partial and own.copies % count == 0:
        return grouped(own, [len(own.dims) - 1], [own.copies // count])
    if not own.is_whole:
        most = own.copies * prod(own.dims[dim] for dim in replicable)
        if most % count == 0 and count % own.copies == 0:
            dims = _borrowed(own, count // own.copies, replicable)
            if dims is not None and dims[-1] != len(own.devices):
                partial = tiling(dims, range(len(own.devices)), True)
                return grouped(partial, [len(partial.dims) - 1])
    size = devices // count
    groups = tuple(tuple(range(at * size, (at + 1) * size)) for at in range(count))
    return Grouped(groups, [rank], [count], rank, WHOLE)


def _borrowed(own: Tiling, needed: int, replicable: Sequence[int]) -> list[int] | None:
    dims = [*own.dims] if own.is_partial else [*own.dims, 1]
    for dim in replicable:
        for factor in _factors(own.dims[dim]):
            if needed % factor == 0:
                dims[dim] //= factor
                dims[-1] *= factor
                needed //= factor
                if needed == 1:
                    return dims
    return None


def neighbours(own: Tiling, dims: Sequence[int], sizes: Sequence[int] | None = None) -> Groups:
    """Returns the groups of devices that differ only in their place along some dimensions.

    A group has as many neighbours along each dimension as `sizes`, by default all.
    """
    chunk = dict(
        zip(dims, (own.dims[dim] for dim in dims) if sizes is None else sizes, strict=True)
    )
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, device in zip(product(*map(range, own.dims)), own.devices, strict=True):
        key = tuple(number // chunk.get(at, 1) for at, number in enumerate(place))
        groups.setdefault(key, []).append(device)
    return tuple(map(tuple, groups.values()))
