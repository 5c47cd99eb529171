"""What XLA's partitioner makes of the lookups of a training step: its collectives, as HLO."""

from __future__ import annotations

from math import prod

from hlofast._partition import tiling as tl
from hlofast._partition.lookup import Lookup, Splitter
from hlofast._partition.reshard import (
    COLLECTIVES,
    ZEROS,
    Graph,
    Placed,
    UnsureError,
    Value,
    reached,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Axes = tuple[str, ...]


class Table:
    """A table of weights, and the axes that divide it."""

    __slots__ = ("axes", "bytes", "rows", "width")

    def __init__(self, rows: int, width: int, axes: Sequence[Axes], element: int) -> None:
        self.rows = rows
        self.width = width
        self.axes = axes
        self.bytes = element
        """Bytes of an element that is looked up."""


class Input:
    """Positions of rows, a batch by a sequence, and the axes that divide them and the rows."""

    __slots__ = ("axes", "batch", "bytes", "sequence")

    def __init__(self, batch: int, sequence: int, axes: Sequence[Axes], element: int) -> None:
        self.batch = batch
        self.sequence = sequence
        self.axes = axes
        self.bytes = element


class Made:
    """A collective of lookups."""

    __slots__ = ("is_of_sum", "moves", "part", "value")

    def __init__(
        self, value: Value, moves: int | None, part: tuple[int, ...] | None, is_of_sum: bool
    ) -> None:
        self.value = value
        self.moves = moves
        """The input whose positions it moves; None if it moves something else."""
        self.part = part
        """What each device keeps of a sum, if it keeps a part of its own."""
        self.is_of_sum = is_of_sum
        """Whether gradients are added at the positions that it moves."""

    @property
    def is_cut(self) -> bool:
        """Whether each device keeps its part of a sum: XLA may make a reduce-scatter of it."""
        return self.part is not None


class Split:
    """What the partitioner makes of lookups."""

    __slots__ = ("collectives", "cuts")

    def __init__(self, collectives: list[Made], cuts: set[int]) -> None:
        self.collectives = collectives
        self.cuts = cuts
        """Inputs of whose gradients of rows each device takes a part before all else."""


def split(
    mesh: dict[str, int],
    table: Table,
    inputs: Sequence[Input],
    is_training: bool,
    merges: bool = True,
) -> Split:
    """Returns the collectives of lookups, and of the sums of their gradients.

    With `merges` they are those of compiled TPU programs: one collective runs along several
    dimensions, and gathers that are undone vanish. Raises `UnsureError` where the model does not
    cover what the partitioner does.
    """
    graph = Graph(merges)
    teams = (tuple(range(prod(mesh.values()))),)
    size = table.rows, table.width
    divided = tl.of_axes(mesh, table.axes)

    def placed(name: str, own: tl.Tiling, base: tuple[int, ...], element: int, what: int) -> Placed:
        if not own.is_even(base):
            raise UnsureError("uneven tiles")
        value = graph.add(name, (), own.shape(base), element, what=what)
        return Placed(graph, value, own, base, teams)

    splitter = Splitter(graph, table.width)
    roots, sums = [], []
    gradients: dict[int, Value] = {}
    positions_of: dict[int, int] = {}
    for at, own in enumerate(inputs):
        shape = own.batch, own.sequence, table.width
        tiled = tl.of_axes(mesh, (*own.axes, ()))
        positions = placed("positions", tiled, (*shape[:2], 1), own.bytes, at)
        positions_of[id(positions.value)] = at
        whole = placed("table", divided, size, table.bytes, 0)
        roots.append(splitter.split(Lookup(whole, positions, None, shape, tiled, table.width)))
        if is_training:
            zeros = placed(ZEROS, divided, size, table.bytes, 0)
            gradient = placed("gradient", tiled, shape, table.bytes, at)
            gradients[at] = gradient.value
            lookup = Lookup(zeros, positions, gradient, size, divided, table.width)
            sums.append(splitter.split(lookup))
    values = list(reached([*roots, *_together(graph, sums)]))
    users: dict[int, list[Value]] = {}
    for value in values:
        for operand in value.operands:
            users.setdefault(id(operand), []).append(value)
    found = [
        Made(
            value,
            _input(value, positions_of),
            _part(value, users.get(id(value), ())),
            _is_of_sum(value, users),
        )
        for value in values
        if value.op in COLLECTIVES and not (merges and _is_undone(value, users.get(id(value), ())))
    ]
    cuts = {
        at
        for at, gradient in gradients.items()
        if any(user.op == "slice" for user in users.get(id(gradient), ()))
    }
    return Split(found, cuts)


def _together(graph: Graph, sums: list[Value]) -> list[Value]:
    """Adds gradients before they are summed over devices, where XLA does: of the same devices."""
    kinds: dict[object, list[Value]] = {}
    for root in sums:
        chain = [root]
        while chain[-1].op in (*COLLECTIVES, "slice"):
            chain.append(chain[-1].operands[0])
        kind = tuple((value.op, value.groups, value.shape) for value in chain[:-1])
        kinds.setdefault(kind, []).append(root)
    found = []
    for own in kinds.values():
        first = own[0]
        if len(own) == 1:
            found += own
            continue
        cut = first if first.op == "slice" else None
        summed = first.operands[0] if cut is not None else first
        if summed.op == "scatter":
            found += own
        elif summed.op != "all-reduce" or summed.operands[0].op in COLLECTIVES:
            raise UnsureError("several gradients that move after they are summed")
        else:
            parts = [one.operands[0] if cut is not None else one for one in own]
            operands = tuple(part.operands[0] for part in parts)
            added = graph.add("add", operands, summed.shape, summed.width)
            total = graph.of_one("all-reduce", added, groups=summed.groups)
            if cut is not None:
                total = graph.of_one("slice", total, cut.shape, taken=cut.taken)
            found.append(total)
    return found


def _part(value: Value, users: Sequence[Value]) -> tuple[int, ...] | None:
    """The part of a sum of which each device of a group has another, if only parts are used."""
    if value.op != "all-reduce" or not users or any(own.op != "slice" for own in users):
        return None
    return users[0].shape if all(_are_apart(value, own) for own in users) else None


def _input(value: Value, positions_of: dict[int, int]) -> int | None:
    """The input whose positions a value is made of alone."""
    while id(value) not in positions_of and len(value.operands) == 1:
        (value,) = value.operands
    return positions_of.get(id(value))


def _is_of_sum(value: Value, users: dict[int, list[Value]]) -> bool:
    """Whether a scatter reads a value, or what is made of it without a collective."""
    open_ = [value]
    while open_:
        for own in users.get(id(open_.pop()), ()):
            if own.op == "scatter":
                return True
            if own.op not in COLLECTIVES and own.op != "gather":
                open_.append(own)
    return False


def _are_apart(value: Value, part: Value) -> bool:
    """Whether the devices of each group take all parts along one dimension, each another."""
    cut = [whole // own for whole, own in zip(value.shape, part.shape, strict=True) if whole != own]
    if cut != [len(value.groups[0])] or part.taken is None:
        return False
    where = _places(part)
    return all(len({where[one] for one in group}) == len(group) for group in value.groups)


def _places(part: Value) -> dict[int, int]:
    """By device: which part of an array it takes."""
    if part.taken is None:
        return {}
    own, teams = part.taken
    return {
        team[device]: at // own.copies for team in teams for at, device in enumerate(own.devices)
    }


def _is_undone(value: Value, users: Sequence[Value]) -> bool:
    """Whether devices gather their parts only to take them back.

    XLA then drops the gather (`AllGatherDynamicSliceSimplifier`), although it counted its cost.
    """
    if value.op != "all-gather" or not users or any(own.op != "slice" for own in users):
        return False
    return all(own.shape == value.operands[0].shape and _takes_back(value, own) for own in users)


def _takes_back(value: Value, part: Value) -> bool:
    """Whether each device takes the part that it gave."""
    sizes = list(zip(value.shape, part.shape, strict=True))
    cut = [dim for dim, (whole, own) in enumerate(sizes) if whole != own]
    if len(cut) != 1 or part.taken is None or part.taken[0].is_whole:
        return False
    tiles, dim = part.taken[0], cut[0]
    inner = prod(tiles.dims[dim + 1 : tiles.rank])
    where = {device: at // inner % tiles.dims[dim] for device, at in _places(part).items()}
    count = sizes[dim][0] // sizes[dim][1]
    return tiles.dims[dim] == count and all(
        [where.get(one) for one in group] == list(range(count)) for group in value.groups
    )


_TYPES = {1: "pred", 2: "bf16", 4: "s32", 8: "s64"}
_HEAD = """HloModule lookups

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main () -> f32[] {
"""


def as_text(made: Sequence[Made]) -> str:
    """Returns a module with the collectives, in their order, each with an operand of its own."""
    lines: list[str] = []
    for at, own in enumerate(made):
        value, operand = own.value, own.value.operands[0]
        groups = ",".join("{" + ",".join(map(str, group)) + "}" for group in value.groups)
        more = f"channel_id={at + 1}"
        if value.op == "collective-permute":
            more += f", source_target_pairs={{{groups}}}"
        else:
            more += f", replica_groups={{{groups}}}"
        source, result = operand.shape, value.shape
        if value.op == "all-gather":
            # One dimension stands for all that are gathered.
            source, result = (prod(operand.shape),), (prod(value.shape),)
            more += ", dimensions={0}, use_global_device_ids=true"
        elif value.op == "all-reduce":
            more += ", use_global_device_ids=true, to_apply=%add"
        elif value.op == "all-to-all":
            parts = len(value.groups[0])
            source = result = (parts, prod(value.shape) // parts)
            more += ", dimensions={0}"
        kind = _TYPES[value.width]
        lines += (
            f"  %operand.{at} = {kind}[{_joined(source)}] constant({{...}})",
            f"  %made.{at} = {kind}[{_joined(result)}] {value.op}(%operand.{at}), {more}",
        )
    return _HEAD + "\n".join((*lines, "  ROOT %done = f32[] constant(0)", "}", ""))


def _joined(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))
