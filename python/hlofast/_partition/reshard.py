"""How XLA's partitioner changes the tiling of an array: which collectives it makes.

This models `PartitionedHlo::Reshard` of `xla/service/spmd/spmd_partitioner.cc`, for arrays whose
tiles are all equally large. An array is a `Value`, which says what makes it, and of what: only as
far as collectives depend on it.
"""

from __future__ import annotations

from math import prod

from hlofast._partition import tiling as tl
from hlofast._partition.tiling import WHOLE, Groups, Tiling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute")

ZEROS = "zeros"
"""The instruction that fills an array with zeros, whatever its tiling."""


class UnsureError(Exception):
    """The model does not know what the partitioner makes of an array."""


class Value:
    """An array on each device. Equal ones are one object in a `Graph`."""

    __slots__ = ("groups", "op", "operands", "shape", "taken", "width")

    def __init__(
        self,
        op: str,
        operands: tuple[Value, ...],
        shape: tuple[int, ...],
        width: int,
        groups: Groups,
        taken: tuple[Tiling, Groups] | None,
    ) -> None:
        self.op = op
        self.operands = operands
        self.shape = shape
        self.width = width
        """Bytes of an element."""
        self.groups = groups
        """Groups of a collective, or its pairs of source and target."""
        self.taken = taken
        """Which part of an array each device of some groups takes."""

    @property
    def bytes(self) -> int:
        """Bytes of the array."""
        return prod(self.shape) * self.width

    @property
    def memory(self) -> int:
        """What the partitioner counts as memory of an instruction."""
        own = sum(operand.bytes for operand in self.operands)
        return own if self.op in ("all-reduce", "scatter") else own + self.bytes

    @property
    def traffic(self) -> int:
        """What the partitioner counts as communication of a collective."""
        size = len(self.groups[0]) if self.groups else 1
        if self.op == "all-reduce":
            return self.bytes * 2
        if self.op in ("all-gather", "all-to-all"):
            return self.bytes * (size - 1) // size
        return self.bytes


class Graph:
    """The values of a lookup."""

    __slots__ = ("known", "merges")

    def __init__(self, merges: bool) -> None:
        self.known: dict[tuple[object, ...], Value] = {}
        self.merges = merges
        """Whether one collective runs along several dimensions, as on TPUs."""

    def add(
        self,
        op: str,
        operands: tuple[Value, ...],
        shape: Sequence[int],
        width: int,
        *,
        groups: Groups = (),
        what: object = None,
        taken: tuple[Tiling, Groups] | None = None,
    ) -> Value:
        """Returns the value of an instruction; `what` tells it from others of the same operands."""
        key = (op, tuple(map(id, operands)), tuple(shape), width, groups, what, taken)
        if key not in self.known:
            self.known[key] = Value(op, operands, tuple(shape), width, groups, taken)
        return self.known[key]

    def of_one(
        self,
        op: str,
        operand: Value,
        shape: Sequence[int] | None = None,
        groups: Groups = (),
        what: object = None,
        taken: tuple[Tiling, Groups] | None = None,
    ) -> Value:
        """Returns the value of an instruction with one operand, by default as large as that."""
        shape = operand.shape if shape is None else shape
        return self.add(op, (operand,), shape, operand.width, groups=groups, what=what, taken=taken)


def reached(roots: Sequence[Value]) -> Iterator[Value]:
    """Yields the values that others are made of, and these, operands first."""
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        own, is_done = stack.pop()
        if is_done:
            yield own
        elif id(own) not in seen:
            seen.add(id(own))
            stack.append((own, True))
            stack += [(operand, False) for operand in reversed(own.operands)]


class Placed:
    """A value with its tiling among the devices of each of several groups."""

    __slots__ = ("base", "graph", "teams", "tiling", "value")

    def __init__(
        self, graph: Graph, value: Value, own: Tiling, base: Sequence[int], teams: Groups
    ) -> None:
        self.graph = graph
        self.value = value
        self.tiling = own
        self.teams = teams
        """By group: its devices, which the tiling numbers from 0."""
        self.base = tuple(base)
        """The size of what a group has of the array, before it is tiled."""

    def _with(self, value: Value, own: Tiling) -> Placed:
        return Placed(self.graph, value, own, self.base, self.teams)

    def renamed(self, op: str, what: object = None) -> Placed:
        """Returns an array that is made of this one, with its size."""
        return self._with(self.graph.of_one(op, self.value, what=what), self.tiling)

    def within(self, own: tl.Grouped) -> Placed:
        """Returns the array as each group has it."""
        value, teams = self.to(own.ungrouped()).value, self._of_teams(own.groups)
        return Placed(self.graph, value, own.tiling, own.base(self.base), teams)

    def _of_teams(self, groups: Groups) -> Groups:
        """Returns groups of all devices, from those within each group."""
        return tuple(tuple(team[one] for one in group) for team in self.teams for group in groups)

    def to(self, target: Tiling) -> Placed:
        """Returns the array with another tiling."""
        if self.tiling == target:
            return self
        if self.value.op == ZEROS:
            return self._zeros(target)
        found = self._to(target, True)
        assert found is not None
        return found

    def _part(self, own: Tiling) -> Value:
        """The part of its copy that each device takes."""
        shape, taken = own.shape(self.base), (own, self.teams)
        return self.graph.of_one("slice", self.value, shape, what=self.tiling, taken=taken)

    def _zeros(self, target: Tiling) -> Placed:
        shape = target.shape(self.base)
        return self._with(self.graph.add(ZEROS, (), shape, self.value.width), target)

    def _to(self, target: Tiling, may_replicate: bool) -> Placed | None:
        own = self.tiling
        if own == target:
            return self
        if not (own.is_even(self.base) and target.is_even(self.base)):
            raise UnsureError("uneven tiles")
        if target.is_whole:
            return self._with(self.replicated(range(own.rank)), WHOLE)
        if own.is_whole:
            return self._with(self._part(target), target)
        if _is_permuted(own, target):
            return self._permuted(target)
        if (pairs := _exchanges(own, target)) is not None:
            return self._exchanged(target, pairs)
        if own.is_partial and (found := self._sliced(target)) is not None:
            return found
        if target.is_partial and (found := self._gathered(target)) is not None:
            return found
        if own.devices == target.devices and _are_copies_tiles(own, target):
            raise UnsureError("copies that become tiles, or the reverse")
        if (found := self._in_steps(target)) is not None:
            return found
        if any(own.dims[at] == target.dims[at] != 1 for at in range(own.rank)):
            raise UnsureError("tiles that move within those of another dimension")
        return self.whole().to(target) if may_replicate else None

    def _at_once(self, target: Tiling) -> Placed | None:
        """Returns the array with another tiling; None if all of it would have to be gathered."""
        found = self._to(target, False)
        return found if found is not None and found.tiling == target else None

    def _permuted(self, target: Tiling) -> Placed:
        pairs = tuple(zip(self.tiling.devices, target.devices, strict=True))
        groups = self._of_teams(pairs)
        value = self.graph.of_one("collective-permute", self.value, groups=groups)
        return self._with(value, target)

    def _exchanged(self, target: Tiling, pairs: list[tuple[int, int]]) -> Placed:
        """Moves tiles of some dimensions to others."""
        if not pairs:
            return self if target == self.tiling else self._permuted(target)
        seen: set[int] = set()
        together, rest = [], []
        for source, to in sorted(pairs, key=lambda own: own[1]):
            if source in seen or to in seen:
                rest.append((source, to))
            else:
                together.append((source, to))
                seen |= {source, to}
        if len(together) < 2:
            together, rest = pairs[:1], pairs[1:]
        sizes = [self.tiling.along(one) // self.tiling.along(to) for one, to in together]
        own = _swapped(self.tiling, together)
        groups = self._of_teams(tl.neighbours(own, [to for _, to in together], sizes))
        shape = own.shape(self.base)
        value = self.graph.of_one("all-to-all", self.value, shape, groups, tuple(together))
        return self._with(value, own)._exchanged(target, rest)

    def _sliced(self, target: Tiling) -> Placed | None:
        """Takes parts of copies, which may then be permuted."""
        fine = _compatible(self.tiling, target)
        if fine is None:
            return None
        is_same = fine.shape(self.base) == self.value.shape
        placed = self._with(self.value if is_same else self._part(fine), fine)
        return placed._permuted(target) if _is_permuted(fine, target) else placed

    def _gathered(self, target: Tiling) -> Placed | None:
        """Gathers parts along some dimensions, after they are permuted if need be."""
        fine = _compatible(target, self.tiling)
        if fine is None:
            return None
        placed = self._permuted(fine) if _is_permuted(self.tiling, fine) else self
        dims, factors = [], []
        for dim in range(len(self.base)):
            factor = fine.dims[dim] // target.dims[dim]
            if factor > 1:
                dims.append(dim)
                factors.append(factor)
        mine = tl.grouped(fine, dims, factors)
        teams = self._of_teams(mine.groups)
        inner = Placed(self.graph, placed.value, mine.tiling, target.shape(self.base), teams)
        return self._with(inner.replicated(dims), target)

    def whole(self) -> Placed:
        """Returns the array with all of it on each device of a group."""
        return self.to(WHOLE)

    def replicated(self, dims: Sequence[int]) -> Value:
        """Gathers the array along some dimensions."""
        own, value = self.tiling, self.value
        dims = [dim for dim in dims if own.along(dim) > 1]
        if any(self.base[dim] * 2 <= own.dims[dim] for dim in dims):
            raise UnsureError("fewer elements than half the tiles")
        for chosen in self._rounds(dims):
            shape = list(value.shape)
            for dim in chosen:
                shape[dim] = self.base[dim]
            groups = self._of_teams(tl.neighbours(own, chosen))
            value = self.graph.of_one("all-gather", value, shape, groups, tuple(chosen))
        return value

    def summed(self, own: Tiling, dims: Sequence[int]) -> Value:
        """Sums the array over the devices that differ along some dimensions of a tiling."""
        value = self.value
        dims = [dim for dim in dims if own.along(dim) > 1]
        for chosen in self._rounds(dims):
            groups = self._of_teams(tl.neighbours(own, chosen))
            value = self.graph.of_one("all-reduce", value, groups=groups)
        return value

    def _rounds(self, dims: list[int]) -> list[list[int]]:
        """The dimensions of each collective that runs along some dimensions."""
        if self.graph.merges:
            return [dims] if dims else []
        return [[dim] for dim in reversed(dims)]

    def _in_steps(self, target: Tiling) -> Placed | None:
        """Changes a tiling through others that need less traffic than all of the array."""
        own = self.tiling
        if (split := _split_dim(self.base, own, target)) is not None:
            return self._split(target, *split)
        if (less := _without_a_dim(own, target)) is not None:
            return self.to(less)._at_once(target)
        if own.is_partial and not target.is_partial:
            for dim, size in enumerate(target.dims):
                if size != own.dims[dim] and own.dims[dim] == 1 and size % own.copies == 0:
                    order = list(range(len(own.dims)))
                    order[dim], order[-1] = order[-1], order[dim]
                    dims = [own.dims[at] for at in order]
                    middle = tl.tiling(dims, tl.transposed(own.devices, own.dims, order), True)
                    return self.to(middle)._at_once(target)
        return None

    def _split(self, target: Tiling, dim: int, size: int) -> Placed | None:
        """Changes a tiling of the array with a dimension in two."""
        before, after = (_with_two(one, dim, size) for one in (self.tiling, target))
        local = self.value.shape[dim]
        shape = (*self.value.shape[:dim], 1, local, *self.value.shape[dim + 1 :])
        inner = local * before.dims[dim + 1]
        base = (*self.base[:dim], self.base[dim] // inner, inner, *self.base[dim + 1 :])
        value = self.graph.of_one("reshape", self.value, shape)
        placed = Placed(self.graph, value, before, base, self.teams)._at_once(after)
        if placed is None:
            return None
        dims = [*after.dims]
        dims[dim : dim + 2] = [dims[dim] * dims[dim + 1]]
        shape = placed.value.shape
        shape = (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
        value = self.graph.of_one("reshape", placed.value, shape)
        merged = self._with(value, after.reshaped(dims))
        return merged._at_once(target)


def _is_permuted(own: Tiling, target: Tiling) -> bool:
    """Whether two tilings differ only in which device has which tile."""
    return (
        own.dims == target.dims
        and own.is_partial == target.is_partial
        and own.devices != target.devices
    )


def _are_copies_tiles(own: Tiling, target: Tiling) -> bool:
    """Whether one tiling has as copies what are tiles of the last dimension in the other."""
    return any(
        more.is_partial and not less.is_partial and more.dims == (1, *less.dims)
        for more, less in ((own, target), (target, own))
    )


def _exchanges(own: Tiling, target: Tiling) -> list[tuple[int, int]] | None:
    """The pairs of dimensions whose numbers of tiles change places, one after the other."""
    if len(own.dims) != len(target.dims) or own.tiles != target.tiles:
        return None
    mine: dict[int, list[int]] = {}
    others: dict[int, list[int]] = {}
    for dim, (size, wanted) in enumerate(zip(own.dims, target.dims, strict=True)):
        if size != wanted:
            mine.setdefault(size, []).append(dim)
            others.setdefault(wanted, []).append(dim)
    if not mine or {size: len(dims) for size, dims in mine.items()} != {
        size: len(dims) for size, dims in others.items()
    }:
        return None
    found = []

    def drop(size: int, dim: int, table: dict[int, list[int]]) -> None:
        table[size].remove(dim)
        if not table[size]:
            del table[size]

    while mine:
        size = min(mine)
        dim = mine[size][-1]
        wanted = target.dims[dim]
        if wanted == size:
            drop(size, dim, mine)
            drop(size, dim, others)
            continue
        choices = mine[wanted]
        chosen = choices[0]
        if size == 1:
            chosen = next((one for one in choices if target.dims[one] != 1), choices[-1])
        elif wanted % size == 0:
            chosen = next((one for one in choices if target.dims[one] == size), choices[-1])
        else:
            return None
        found.append((chosen, dim))
        drop(wanted, dim, others)
        mine[size][-1] = chosen
        drop(wanted, chosen, mine)
    return found


def _swapped(own: Tiling, pairs: Sequence[tuple[int, int]]) -> Tiling:
    """The tiling after an exchange of tiles between dimensions."""
    dims, devices = list(own.dims), own.devices
    for source, target in pairs:
        split: list[int] = []
        order: list[int] = []
        places = {}
        for dim, size in enumerate(dims):
            if dim == source:
                split += [dims[target], size // dims[target]]
            elif dim == target:
                split += [size, 1]
            else:
                split.append(size)
                continue
            places[dim] = len(split) - 1
        order = list(range(len(split)))
        one, other = places[source], places[target]
        order[one], order[other] = order[other], order[one]
        devices = tl.transposed(devices, split, order)
        dims[source], dims[target] = dims[target], dims[source]
    return tl.tiling(dims, devices, own.is_partial)


def _compatible(partial: Tiling, target: Tiling) -> Tiling | None:
    """A tiling with the tiles of `target` that lie in those of `partial` on each device."""
    rank = partial.rank
    more = []
    for size, wanted in zip(partial.dims[:rank], target.dims[:rank], strict=True):
        if wanted % size:
            return None
        more.append(wanted // size)
    if tl.is_finer(target.dims[:rank], target, partial):
        return target
    expanded = [at for at in range(rank) if more[at] > 1]
    split = [*partial.dims[:rank], *(more[at] for at in expanded)]
    order = []
    for dim in range(rank):
        order.append(dim)
        if dim in expanded:
            order.append(rank + expanded.index(dim))
    if target.is_partial:
        split.append(target.copies)
        order.append(len(split) - 1)
    return tl.tiling(target.dims, tl.transposed(partial.devices, split, order), target.is_partial)


def _with_two(own: Tiling, dim: int, size: int) -> Tiling:
    """The tiling with a dimension in two, the first with `size` tiles."""
    return own.reshaped((*own.dims[:dim], size, own.dims[dim] // size, *own.dims[dim + 1 :]))


def _split_dim(base: Sequence[int], own: Tiling, target: Tiling) -> tuple[int, int] | None:
    """The dimension of which some tiles move elsewhere, and the number of those that stay."""
    if own.rank != target.rank or own.is_partial != target.is_partial:
        return None
    if own.copies != target.copies:
        return None
    absent, present = [], []
    for dim in range(own.rank):
        least, most = sorted((own.dims[dim], target.dims[dim]))
        if least == most:
            continue
        if least == 1:
            absent.append(dim)
        elif most % least == 0 and -(-base[dim] // least) * least % most == 0:
            present.append(dim)
    for dim in present:
        for other in absent:
            if own.dims[dim] * own.dims[other] == target.dims[dim] * target.dims[other]:
                return dim, min(own.dims[dim], target.dims[dim])
    for dim in present:
        if own.dims[dim] > target.dims[dim]:
            return dim, target.dims[dim]
    return None


def _without_a_dim(own: Tiling, target: Tiling) -> Tiling | None:
    """The tiling without a dimension whose tiles the target has as copies."""
    if not target.is_partial:
        return None
    for dim in range(own.rank):
        if own.dims[dim] != 1 and own.dims[dim] * own.copies == target.copies:
            return tl.undivided(own, dim)
    return None
