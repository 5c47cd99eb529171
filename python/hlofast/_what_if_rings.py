"""Matmuls of weights that pass shards around a ring of devices: what another mesh makes of them.

XLA's partitioner (`xla/service/spmd/dot_handler.cc`) turns a gather of weights and its matmul, or a
matmul and the scattered sum of its gradient, into a loop that multiplies one shard while transfers
pass on the next ones, if it expects to save time. What it compares on TPUs is not public; in the
programs of `what_if_models.py` it depends on how many links of a device a gather uses:

* Two devices form no ring, and neither do the devices of an axis where another one also divides
  the batch. Four devices form one if they lie in a line of chips, and none if they lie in a square,
  where a gather has twice the links. Eight and more form one.
* Only weights of one matmul are passed around, and only if no other axis divides the dimension
  that it sums over.
* Transfers run both ways. Eight devices and more send one shard more than a ring needs. Four send
  their weights as a gather does, since the loop has one iteration and vanishes; sums of gradients
  begin with two transfers of zeros, which those of equal shards share.

A mesh does not say where its devices lie. They are taken as those of the smallest slice with as many
chips (`config/_torus.py`), in the order of `jax.devices()` (the first coordinate changes fastest),
unless the rings of the text contradict that: then nothing is modelled.
"""

from __future__ import annotations

from math import prod

from hlofast._what_if_padding import is_halo, padded_shard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from hlofast._core import Instruction, Mesh
    from hlofast._what_if import WhatIf

_LOOP = 8
"""Devices from which on a ring is a loop. Between four and so many none was compiled."""
_LINE = 4
"""Devices that form a ring in a line only."""
_UNROLLED = 2
"""Iterations of a ring's loop that are written out, so that their number must be even."""
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

    __slots__ = ("assumes", "removed", "sent")

    def __init__(self, result: WhatIf) -> None:
        self.removed: dict[str, int] = {}
        """By collective of the text: its bytes after the change, which the model replaces."""
        self.sent: dict[str | None, int] = {}
        """By mesh axes: the bytes that replace them."""
        self.assumes: list[str] = []
        """Axes along which the places of devices are taken for granted."""
        old, new = result.mesh, result.new_mesh
        if old is None or new in (None, old) or result.policy is not None:
            return
        rows = list(result.module.collectives().tables["collectives"])
        changed = {row["name"]: row for row in result.changed.collectives().tables["collectives"]}
        for axis in old.shape:
            if old.shape[axis] > 1 and new.shape[axis] > 1:
                own = [row for row in rows if row["axes"] == axis and row["name"] in changed]
                self._turn(result, axis, own, changed)

    def _turn(
        self,
        result: WhatIf,
        axis: str,
        rows: list[dict[str, Any]],
        changed: Mapping[str, dict[str, Any]],
    ) -> None:
        """Adds what becomes of the rings of an axis."""
        old, new = result.mesh, result.new_mesh
        assert old is not None and new is not None
        before, after = old.shape[axis], new.shape[axis]
        transfers = [row for row in rows if _is_transfer(row)]
        was, now = (_forms_ring(result, axis, mesh) for mesh in (old, new))
        if was is None or now is None or was != bool(transfers):
            return
        if not (was or now) or (was and now and min(before, after) >= _LOOP):
            return
        found = (
            _compiled(transfers, changed, before, result)
            if was
            else _possible(result, rows, changed, after)
        )
        if found is None:
            return
        rings, replaced = found
        if not rings:
            return
        if now:
            sent = _sent(rings, after)
        else:
            sent = _without(result, rings, axis, after)
        if not was:
            replaced += [row["name"] for row in rows if is_halo(row)]
        for name in replaced:
            self.removed[name] = changed[name]["total_wire_bytes"] or 0
        self.sent[axis] = self.sent.get(axis, 0) + sent
        if _LINE in (before, after):
            self.assumes.append(axis)


def _is_transfer(row: dict[str, Any]) -> bool:
    """Whether a transfer belongs to a matmul."""
    return row["kind"] == "collective-permute" and "dot_general" in (row["op_name"] or "")


def _is_of_matmul(row: dict[str, Any]) -> bool:
    return (row["op_name"] or "").endswith("dot_general") and (
        (row["kind"], row["tensor_kind"])
        in (("all-gather", "weight"), ("reduce-scatter", "gradient"))
    )


def _forms_ring(result: WhatIf, axis: str, mesh: Mesh) -> bool | None:
    """Whether matmuls of weights pass shards along an axis; None if it is not known."""
    size = mesh.shape[axis]
    batches = [own.axes for own in result.symbols if own.role == "batch" and axis in own.axes]
    if not batches:
        return None  # Activations, whose matmuls are compared with other times.
    if size <= 2 or any(mesh.shape.get(o, 1) > 1 for own in batches for o in own if o != axis):
        return False
    if size == _LINE:
        sides = _sides(result, axis, mesh)
        return None if sides is None else sides == 1
    return True if size >= _LOOP and size % (2 * _UNROLLED) == 0 else None


def _sides(result: WhatIf, axis: str, mesh: Mesh) -> int | None:
    """Along how many coordinates the devices of an axis differ; None if it is not known."""
    from hlofast.config import _torus

    device = result.module.context.device
    torus = device and _torus.shape(device.name, prod(mesh.shape.values()))
    if not torus:
        return None
    names = list(mesh.shape)
    step = prod(mesh.shape[name] for name in names[names.index(axis) + 1 :])
    places = set[tuple[int, ...]]()
    for at in range(mesh.shape[axis]):
        number, place = at * step, []
        for side in torus:
            number, own = divmod(number, side)
            place.append(own)
        places.add(tuple(place))
    return sum(len(set(own)) > 1 for own in zip(*places, strict=True))


def _dims(dims: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(own or 0 for own in dims if own != 1)


def _shape_of(row: dict[str, Any], result: WhatIf) -> tuple[int, ...]:
    """Dimensions of the array that a transfer passes on after the change."""
    own = result.changed.instructions[row["name"]]
    operand = own.operands[0] if own.operands else own
    return _dims(operand.shape.dimensions if operand.shape.is_array else ())


def _compiled(
    transfers: list[dict[str, Any]],
    changed: Mapping[str, dict[str, Any]],
    devices: int,
    result: WhatIf,
) -> tuple[list[Ring], list[str]] | None:
    """The rings of the text, and the names of their transfers."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in transfers:
        key = row["op_name"], row["payload"], _shape_of(row, result)
        groups.setdefault(key, []).append(row)
    rings: list[Ring] = []
    for group in groups.values():
        least = min(row["multiplicity"] or 1 for row in group)
        first = [row for row in group if (row["multiplicity"] or 1) == least]
        if devices >= _LOOP:
            # One transfer of each ring lies outside its loop: the first of weights, the last of
            # sums.
            whole = sum((row["multiplicity"] or 1) // least for row in group)
            if whole != len(first) * (devices + 1):
                return None
            made = [(row, row["tensor_kind"] != "weight") for row in first]
        else:
            made_of = _unrolled(first, result)
            if made_of is None or len(first) != len(group):
                return None
            made = made_of
        for row, is_sum in made:
            own = changed[row["name"]]
            times = least * (own["multiplicity"] or 1) // (row["multiplicity"] or 1)
            dims = _shape_of(row, result)
            rings.append(Ring(row["computation"], dims, own["payload"] or 0, times, is_sum))
    return rings, [row["name"] for row in transfers]


def _unrolled(
    rows: list[dict[str, Any]], result: WhatIf
) -> list[tuple[dict[str, Any], bool]] | None:
    """A transfer of each ring of four devices, and whether the ring sums; None if none fits.

    Weights are sent twice and passed on once, sums are passed on three times after the zeros.
    """
    weights = [row for row in rows if row["tensor_kind"] == "weight"]
    others = [
        row
        for row in rows
        if row not in weights
        and not _passes_zeros(result.module.instructions[row["instruction"]])
    ]
    gathers, odd = divmod(len(weights), 2)
    sums, rest = divmod(len(others) - gathers, 3)
    if odd or rest or sums < 0:
        return None
    return [(row, False) for row in weights[::2]] + [(row, True) for row in others[:sums]]


def _passes_zeros(own: Instruction) -> bool:
    """Whether a transfer passes on one repeated number."""
    (operand, *_) = own.operands
    while operand.opcode in _SAME and operand.operands:
        operand = operand.operands[0]
    return operand.opcode == "broadcast" and operand.operands[0].shape.rank == 0


def _possible(
    result: WhatIf, rows: list[dict[str, Any]], changed: Mapping[str, dict[str, Any]], devices: int
) -> tuple[list[Ring], list[str]] | None:
    """The rings that gathers of weights and sums of their gradients become, and their names."""
    rings, replaced = [], []
    for row in rows:
        if not _is_of_matmul(row):
            continue
        own = result.changed.instructions[row["name"]]
        is_sum = row["kind"] == "reduce-scatter"
        if not is_sum and not _may_pass(result, row):
            continue
        times = changed[row["name"]]["multiplicity"] or 1
        for place, operand in enumerate(own.operands):
            whole = operand.operands[0] if operand.opcode == "pad" else operand
            size = whole.shape.bytes or 0
            along = _along(own, place)
            dims = [own or 0 for own in whole.shape.dimensions]
            if is_sum:
                if along is None or dims[along] % devices:
                    return None
                dims[along] //= devices
                size //= devices
            rings.append(Ring(row["computation"], _dims(dims), size, times, is_sum))
        replaced.append(row["name"])
    return rings, replaced


def _along(own: Instruction, place: int = 0) -> int | None:
    """The dimension along which a collective gathers or scatters an operand."""
    if own.opcode == "reduce-scatter" or own.opcode.startswith("all-gather"):
        dimensions = own.attributes.get("dimensions")
        return dimensions[0] if dimensions else None
    # A sum of which a slice is taken.
    whole = own.operands[place].shape.dimensions
    users = own.users
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


def _without(result: WhatIf, rings: list[Ring], axis: str, devices: int) -> int:
    """Bytes of the gathers and sums that replace rings, with the padding of sums."""
    device = result.module.context.device
    chip = "" if device is None else device.name.removeprefix("tpu-")
    along = _Scattered(result, axis)
    total = 0
    for own in rings:
        size = own.size
        if own.is_sum and along.is_along_rows(own.dims):
            rows, columns = own.dims
            row_bytes = size // rows
            padded = padded_shard(rows, columns, row_bytes, devices, chip)
            if padded is not None:
                # Each device also sends the rows of padding, to put rows back in their places.
                size = padded * row_bytes + (padded - rows) * row_bytes
        total += size * (devices - 1) * own.times
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
            axes = [*spec.dimensions, *[None] * own.shape.rank][: own.shape.rank][-2:]
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


def _may_pass(result: WhatIf, row: dict[str, Any]) -> bool:
    """Whether one matmul uses gathered weights, along a dimension that no other axis divides."""
    gather = result.module.instructions[row["instruction"]]
    along = _along(gather)
    if along is None:
        return False
    found = list(_matmuls(gather, along))
    return len(found) == 1 and (found[0] or not _is_divided(result, row))


def _is_divided(result: WhatIf, row: dict[str, Any]) -> bool:
    """Whether an axis other than that of a gather divides its weights, as far as is known."""
    mesh = result.new_mesh
    assert mesh is not None
    for own in result.module.entry.parameters:
        if own.metadata is not None and own.metadata.op_name == row["tensor"]:
            if own.sharding is None or result.mesh is None:
                return True
            spec = own.sharding.spec(result.mesh)
            if spec.reason is not None:
                return True
            names = (one for one in spec.dimensions if one is not None)
            axes = {axis for one in names for axis in ((one,) if isinstance(one, str) else one)}
            return any(axis != row["axes"] and mesh.shape.get(axis, 1) > 1 for axis in axes)
    return True


def _matmuls(gather: Instruction, along: int) -> Iterator[bool]:
    """Yields for each matmul of an array whether it sums over a dimension of it."""
    open_: list[tuple[Instruction, int | None]] = [(gather, along)]
    seen = set()
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
    return bool(
        labels.lhs[dim] == "feature" if place == 0 else labels.rhs[dim] == "input_feature"
    )
