"""Matmuls that pass shards around a ring of devices: what another mesh makes of them.

XLA's partitioner (`xla/service/spmd/dot_handler.cc`) turns a gather of weights and its matmul, or a
matmul and the scattered sum of its results, into a loop that multiplies one shard while transfers
pass on the next ones, if it expects to save time. What it compares on TPUs is not public. In the
fitted programs of `what_if_models.py`, and in 20 steps compiled to see where it changes:

* Two devices form no ring. Four form none if they fill two whole sides of the slice, of two chips
  each: a collective then has twice the links. Other four form one, and so do eight and more.
* Weights and their gradients are passed along an axis that alone divides the batch: weights only if
  one matmul uses them, and no other axis divides the dimension that it sums over.
* Sums of activations are passed by four devices if the matmul takes as long as the collective.
* Transfers run both ways. Eight devices and more send n + 1 shards, two more than a gather. Four
  send weights as a gather does, since their loop has one iteration and vanishes; sums begin with
  two transfers of zeros, which those of equal shards share.

Where devices lie is an assumption (`_what_if_places.py`): if the text has other rings, nothing is
modelled.
"""

from __future__ import annotations

from math import prod

from hlofast._what_if_padding import is_halo, padded_shard
from hlofast._what_if_places import place_of, sides_filled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from hlofast._core import Instruction, Mesh
    from hlofast._what_if import WhatIf

_LOOP = 8
"""Devices from which on a ring is a loop. Between four and so many none was compiled."""
_FEW = 4
"""Devices whose places decide whether they form a ring."""
_LONG = 0.7
"""Time of a matmul by that of its scattered sum, from which on four devices pass sums: in the 20
steps, the largest that does not is 0.62, the smallest that does 0.80."""
_UNROLLED = 2
"""Iterations of a ring's loop that are written out, so that their number must be even."""
_MOST_MOVES = 16
"""Limit on the moves between a matmul and the sum of its results."""
_MOST_STEPS = 4096
"""Limit on the users that are followed from a gather."""
_SAME = frozenset(
    ("copy", "convert", "copy-start", "copy-done", "optimization-barrier", "reduce-precision")
)
"""Opcodes whose results have the operand's dimensions."""


class Ring:
    """Weights or gradients that are, or may be, passed around."""

    __slots__ = ("computation", "dims", "is_sum", "size", "times")

    def __init__(
        self, computation: str, dims: tuple[int, ...], size: int, times: int, is_sum: bool
    ) -> None:
        self.computation = computation
        """Where it is: transfers of zeros are shared in it."""
        self.dims = dims
        """Dimensions of a shard after the change, without those of one element."""
        self.size = size
        """Bytes of a shard after the change."""
        self.times = times
        """How often it runs in a step."""
        self.is_sum = is_sum
        """Whether gradients are summed, instead of weights gathered."""


class Rings:
    """What becomes of rings on another mesh."""

    __slots__ = ("assumes", "removed", "sent", "vanished")

    def __init__(self, result: WhatIf) -> None:
        self.removed: dict[str, int] = {}
        """By collective of the text: its bytes after the change, which the model replaces."""
        self.sent: dict[str | None, int] = {}
        """By mesh axes: the bytes that replace them."""
        self.assumes: list[str] = []
        """Axes along which the places of devices are taken for granted."""
        self.vanished: set[str] = set()
        """Transfers of the text whose rings are loops, and none after the change."""
        old, new = result.mesh, result.new_mesh
        if old is None or new in (None, old) or result.policy is not None:
            return
        rows = list(result.module.collectives()._ordered())
        changed = {row["name"]: row for row in result.changed.collectives()._ordered()}
        for axis in old.shape:
            if old.shape[axis] > 1 and new.shape[axis] > 1:
                own = [row for row in rows if row["axes"] == axis and row["name"] in changed]
                self._turn(_Axis(result, axis, own, changed))

    def _turn(self, axis: _Axis) -> None:
        """Adds what becomes of the rings of an axis."""
        was, now = bool(axis.transfers), axis.may_form(axis.new)
        if now is None or not axis.explains(was) or (was and now and axis.stays):
            return
        found = axis.compiled() if was else axis.possible() if now else None
        if not found or not found[0]:
            return
        rings, replaced = found
        for name in replaced:
            self.removed[name] = axis.changed[name]["total_wire_bytes"] or 0
        if was and axis.before >= _LOOP and (not now or axis.after <= _FEW):
            self.vanished.update(replaced)
        self.sent[axis.name] = _sent(rings, axis.after) if now else axis.without(rings)
        if _FEW in (axis.before, axis.after):
            self.assumes.append(axis.name)


class _Axis:
    """The collectives of matmuls along a mesh axis."""

    def __init__(
        self,
        result: WhatIf,
        name: str,
        rows: list[dict[str, Any]],
        changed: Mapping[str, dict[str, Any]],
    ) -> None:
        assert result.mesh is not None
        assert result.new_mesh is not None
        self.result = result
        self.name = name
        self.rows = rows
        self.changed = changed
        self.old, self.new = result.mesh, result.new_mesh
        self.before, self.after = self.old.shape[name], self.new.shape[name]
        self.batches = [own.axes for own in result.symbols
                        if own.role == "batch" and name in own.axes]  # fmt: skip
        """Axes that divide the batch, by input, if this one does."""
        self.transfers = [
            row
            for row in rows
            if row["kind"] == "collective-permute" and "dot_general" in (row["op_name"] or "")
        ]

    def may_form(self, mesh: Mesh) -> bool | None:
        """Whether devices along the axis may form rings; None if it is not known."""
        size = mesh.shape[self.name]
        others = (other for own in self.batches for other in own if other != self.name)
        if size <= 2 or any(mesh.shape.get(other, 1) > 1 for other in others):
            return False
        if size == _FEW:
            sides = sides_filled(self.result.module, self.name, mesh)
            return None if sides is None else sides < 2
        is_loop = bool(self.batches) and size >= _LOOP and size % (2 * _UNROLLED) == 0
        return True if is_loop else None

    def explains(self, was: bool) -> bool:
        """Whether rings of the text, or that there are none, are as the places of devices say."""
        may = self.may_form(self.old)
        # Activations form none if their matmuls are short.
        return may == was or (may is True and not self.batches)

    @property
    def stays(self) -> bool:
        """Whether rings of the text are as many and as large as the changed text has them."""
        return not self.batches or min(self.before, self.after) >= _LOOP

    def compiled(self) -> tuple[list[Ring], list[str]] | None:
        """The rings of the text, and the names of their transfers."""
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in self.transfers:
            key = row["op_name"], row["payload"], self._shape(row)
            groups.setdefault(key, []).append(row)
        rings: list[Ring] = []
        for group in groups.values():
            least = min(row["multiplicity"] or 1 for row in group)
            first = [row for row in group if (row["multiplicity"] or 1) == least]
            if self.before < _LOOP:
                made = self._unrolled(first) if len(first) == len(group) else None
            else:
                # One transfer of each ring lies outside its loop: the first of weights, the last
                # of sums.
                passed = sum((row["multiplicity"] or 1) // least for row in group)
                is_whole = passed == len(first) * (self.before + 1)
                made = (
                    [(row, row["tensor_kind"] != "weight") for row in first] if is_whole else None
                )
            if made is None:
                return None
            for row, is_sum in made:
                own = self.changed[row["name"]]
                rings.append(
                    Ring(
                        row["computation"],
                        self._shape(row),
                        own["payload"] or 0,
                        own["multiplicity"] or 1,
                        is_sum,
                    )
                )
        return rings, [row["name"] for row in self.transfers]

    def _shape(self, row: dict[str, Any]) -> tuple[int, ...]:
        """Dimensions of the array that a transfer passes on after the change."""
        own = self.result.changed.instructions[row["name"]]
        operand = own.operands[0] if own.operands else own
        return _dims(operand.shape.dimensions if operand.shape.is_array else ())

    def _unrolled(self, rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], bool]] | None:
        """A transfer of each ring of four devices, and whether the ring sums; None if none fits.

        Weights are sent twice and passed on once, sums are passed on three times after the zeros.
        """
        weights = [row for row in rows if row["tensor_kind"] == "weight"]
        instructions = self.result.module.instructions
        others = [
            row
            for row in rows
            if row not in weights and not _passes_zeros(instructions[row["instruction"]])
        ]
        gathers, odd = divmod(len(weights), 2)
        sums, rest = divmod(len(others) - gathers, 3)
        if odd or rest or sums < 0:
            return None
        return [(row, False) for row in weights[::2]] + [(row, True) for row in others[:sums]]

    def possible(self) -> tuple[list[Ring], list[str]] | None:
        """The rings that gathers and sums become, and the names of all that they replace."""
        rings, replaced = [], []
        for row in self.rows:
            if not self._may_pass(row):
                continue
            own = self.result.changed.instructions[row["name"]]
            is_sum = row["kind"] == "reduce-scatter"
            times = self.changed[row["name"]]["multiplicity"] or 1
            for place, operand in enumerate(own.operands):
                whole = operand.operands[0] if operand.opcode == "pad" else operand
                dims = [own or 0 for own in whole.shape.dimensions]
                size = whole.shape.bytes or 0
                if is_sum:
                    along = _along(own, place)
                    if along is None or dims[along] % self.after:
                        return None
                    dims[along] //= self.after
                    size //= self.after
                rings.append(Ring(row["computation"], _dims(dims), size, times, is_sum))
            replaced.append(row["name"])
        if self.batches:
            replaced += [row["name"] for row in self.rows if is_halo(row)]
        return rings, replaced

    def _may_pass(self, row: dict[str, Any]) -> bool:
        """Whether a ring may replace a collective on the new mesh."""
        kind = row["kind"], row["tensor_kind"]
        if not (row["op_name"] or "").endswith("dot_general"):
            return False
        if not self.batches:
            # Backward sums are those of several matmuls, or are cut later.
            is_forward = row["phase"] in ("forward", "recompute")
            return kind == ("reduce-scatter", "activation") and is_forward and self._is_long(row)
        if kind == ("reduce-scatter", "gradient"):
            return True
        gather = self.result.module.instructions[row["instruction"]]
        along = _along(gather) if kind == ("all-gather", "weight") else None
        if along is None:
            return False
        found = list(_matmuls(gather, along))
        return len(found) == 1 and (found[0] or not self._is_divided(row))

    def _is_divided(self, row: dict[str, Any]) -> bool:
        """Whether an axis other than that of a gather divides its weights, as far as is known."""
        for own in self.result.module.entry.parameters:
            if own.metadata is not None and own.metadata.op_name == row["tensor"]:
                spec = None if own.sharding is None else own.sharding.spec(self.old)
                if spec is None or spec.reason is not None:
                    return True
                names = (one for one in spec.dimensions if one is not None)
                axes = {axis for one in names for axis in ((one,) if isinstance(one, str) else one)}
                return any(axis != self.name and self.new.shape.get(axis, 1) > 1 for axis in axes)
        return True

    def _is_long(self, row: dict[str, Any]) -> bool:
        """Whether a matmul takes about as long as the scattered sum of its results, or longer."""
        changed = self.result.changed
        device = changed.context.device
        matmul = _matmul_of(changed.instructions[row["name"]])
        flops = device and device.flops.get("bf16")
        bandwidth = device and device.value("link_bandwidth")
        if matmul is None or not flops or not bandwidth:
            return False
        table = changed.matmuls().tables["matmuls"]
        summed = next((own["k"] or 0 for own in table if own["instruction"] == matmul.row), 0)
        element = (matmul.shape.bytes or 0) / max(prod(_dims(matmul.shape.dimensions)), 1)
        # Of each element of the result; shards go both ways.
        sent = element * (self.after - 1) / self.after / (2 * bandwidth)
        return bool(2 * summed / float(flops.value) >= _LONG * sent)

    def without(self, rings: list[Ring]) -> int:
        """Bytes of the gathers and sums that replace rings, with the padding of sums."""
        where = place_of(self.result.module, self.name, self.new)
        along = _Scattered(self.result, self.name)
        total = 0
        for own in rings:
            size = own.size
            if self.batches and own.is_sum and along.is_along_rows(own.dims):
                rows, columns = own.dims
                row_bytes = size // rows
                padded = padded_shard(rows, columns, row_bytes, self.after, where)
                if padded is not None:
                    # Each device also sends the rows of padding, to put rows back in their places.
                    size = padded * row_bytes + (padded - rows) * row_bytes
            total += size * (self.after - 1) * own.times
        return total


def _matmul_of(scattered: Instruction) -> Instruction | None:
    """The one matmul whose results are summed."""
    own = scattered.operands[0]
    for _ in range(_MOST_MOVES):
        if own.opcode == "parameter" and own.parameter_number is not None:
            callers = own.computation.callers
            if len(callers) != 1 or own.parameter_number >= len(callers[0].operands):
                return None
            own = callers[0].operands[own.parameter_number]
        elif own.opcode in (*_SAME, "bitcast", "reshape", "transpose") and own.operands:
            own = own.operands[0]
        else:
            break
    inner = own.calls[0][1].instructions if own.opcode == "fusion" else [own]
    found = [one for one in inner if one.opcode in ("convolution", "dot")]
    return found[0] if len(found) == 1 else None


def _dims(dims: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(own or 0 for own in dims if own != 1)


def _passes_zeros(own: Instruction) -> bool:
    """Whether a transfer passes on one repeated number."""
    (operand, *_) = own.operands
    while operand.opcode in _SAME and operand.operands:
        operand = operand.operands[0]
    return operand.opcode == "broadcast" and operand.operands[0].shape.rank == 0


def _along(own: Instruction, place: int = 0) -> int | None:
    """The dimension along which a collective gathers or scatters an operand."""
    if own.opcode == "reduce-scatter" or own.opcode.startswith("all-gather"):
        dimensions = own.attributes.get("dimensions")
        return dimensions[0] if dimensions else None
    # A sum of which a slice is taken.
    whole = own.operands[place].shape.dimensions
    users = list(own.users)
    if not own.shape.is_array:
        parts = (user for user in users if user.opcode == "get-tuple-element")
        users = [one for user in parts if user.attributes["index"] == place for one in user.users]
    for user in users:
        if user.opcode == "dynamic-slice" and user.shape.rank == len(whole):
            pairs = enumerate(zip(user.shape.dimensions, whole, strict=True))
            cut = [at for at, (part, size) in pairs if part != size]
            return cut[0] if len(cut) == 1 else None
    return None


def _sent(rings: list[Ring], devices: int) -> int:
    """Bytes of the transfers of rings."""
    if devices >= _LOOP:
        return sum(own.size * (devices + 1) * own.times for own in rings)
    total, zeros = 0, set()
    for own in rings:
        sends = devices - 1
        key = own.computation, own.dims, own.size
        if own.is_sum and key not in zeros:
            zeros.add(key)
            sends += 2
        total += own.size * sends * own.times
    return total


class _Scattered:
    """Along which dimension the gradients of parameters are scattered."""

    def __init__(self, result: WhatIf, axis: str) -> None:
        self.left: dict[tuple[int, ...], list[bool]] = {}
        mesh = result.new_mesh
        assert mesh is not None
        for own in result.changed.entry.parameters:
            sharding = own.sharding
            if sharding is None or sharding.is_replicated or not own.shape.is_array:
                continue
            spec = sharding.spec(mesh)
            if spec.reason is not None:
                continue
            dims = list(own.shape.dimensions)[-2:]
            rank = len(own.shape.dimensions)
            axes = [*spec.dimensions, *(None for _ in range(rank))][:rank][-2:]
            is_divided = [one == axis or (isinstance(one, tuple) and axis in one) for one in axes]
            if sum(is_divided) == 1 and len(dims) == 2:
                self.left.setdefault(_dims(dims), []).append(is_divided[0])
        self.taken: dict[tuple[int, ...], int] = {}

    def is_along_rows(self, dims: tuple[int, ...]) -> bool:
        """Whether the next gradient with these dimensions is scattered along its rows.

        Parameters with equal dimensions take turns.
        """
        ways = self.left.get(dims)
        if len(dims) != 2 or not ways:
            return False
        at = self.taken.get(dims, 0)
        self.taken[dims] = at + 1
        return ways[at % len(ways)]


def _matmuls(gather: Instruction, along: int) -> Iterator[bool]:
    """Yields for each matmul of an array whether it sums over a dimension of it."""
    open_: list[tuple[Instruction, int | None]] = [(gather, along)]
    seen: set[tuple[int, int]] = set()
    while open_ and len(seen) < _MOST_STEPS:
        own, dim = open_.pop()
        for user in own.users:
            for place, operand in enumerate(user.operands):
                if operand != own or (user.row, place) in seen:
                    continue
                seen.add((user.row, place))
                if user.opcode in ("convolution", "dot"):
                    yield dim is not None and _sums(user, place, dim)
                elif user.opcode == "fusion":
                    open_.append((user.calls[0][1].parameters[place], dim))
                else:
                    open_.append((user, None if dim is None else _moved(user, place, dim)))
        if own.is_root:
            callers = (one for one in own.computation.callers if one.opcode == "fusion")
            open_ += [(caller, dim) for caller in callers]


def _moved(user: Instruction, place: int, dim: int) -> int | None:
    """The dimension of a result that a dimension of an operand becomes; None if it is unknown."""
    if user.opcode in _SAME:
        return dim if place == 0 else None
    if user.opcode == "transpose":
        order = list(user.attributes["dimensions"])
        return order.index(dim) if dim in order else None
    if user.opcode in ("bitcast", "reshape"):
        before, after = user.operands[0].shape.dimensions, user.shape.dimensions
        wanted = before[dim]
        major = prod(own or 1 for own in before[:dim])
        same = [at for at, size in enumerate(after) if size == wanted]
        alike = [at for at in same if prod(own or 1 for own in after[:at]) == major]
        return next(iter(alike or (same if len(same) == 1 else ())), None)
    return None


def _sums(matmul: Instruction, place: int, dim: int) -> bool:
    """Whether a matmul sums over a dimension of an operand."""
    if matmul.opcode == "dot":
        key = ("lhs" if place == 0 else "rhs") + "_contracting_dims"
        return dim in (matmul.attributes.get(key) or ())
    labels = matmul.attributes["dim_labels"]
    return bool(labels.lhs[dim] == "feature" if place == 0 else labels.rhs[dim] == "input_feature")
