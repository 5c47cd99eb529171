"""Models XLA's memory peak of a training step."""

from __future__ import annotations

from typing import NamedTuple

from hlofast.config._implied import per_mesh, per_policy
from hlofast.config._parts import item_size
from hlofast.config._policies import OFFLOADED, RECOMPUTED, SAVED
from hlofast.config._traffic import RAGGED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Terms: TypeAlias = "list[tuple[str, int, bool]]"

    from hlofast.config._implied import Implied
    from hlofast.config._parts import Feature, Parameter, Pipeline, Unit, Value

WIDEST_VALUES = 3
"""Number of values as large as a layer's widest value that backward holds at a time."""
FURTHER_MATRICES = 2
"""Number of further unsharded matrices that XLA holds if memory allows: gradients waiting for
reduction.
"""
_FAST = 64 << 20
"""Bytes of a value that XLA keeps in fast memory: half of that of a v5e core."""
_LATE = 88 << 20
"""Elements of the head's input above which XLA computes the gradient of the head's weights after
the layers. Compiled steps with 80 Mi elements do not, those with 96 Mi do.
"""
_LANES = 128
"""Elements for which a kernel holds each sum of a softmax row: the lanes of a register."""
_MOST_WINDOWS = 32
"""Most shards over which XLA loops in a windowed einsum (`max_windowed_einsum_iteration` of its
partitioner). Compiled steps with 16 and 32 shards have such loops, those with 64 and 256 do not.
"""
_WINDOWS = 12
"""Shards of a layer's width that windowed einsums hold where tensor axes shard it: three products
add up their parts in both directions, with an accumulator and a received part each.
"""
_FEW = 4
"""Shards of weights that XLA gathers ahead of time in the iterations of a pipeline: compiled steps
with 8 and 16 shards have loops."""
_STAGE_VALUES = 0.405, 0.65
"""Shares of the recomputed values of a stage that are live at once where its weights are gathered:
beside these, and after the layers that read them. Fitted on compiled steps
(`benches/config_stages.py`)."""
_WIDTHS = 3
"""Values of a layer's width, gathered along all axes, in the backward pass of its dense layer."""


def parameter_size(parameter: Parameter) -> int:
    """Bytes per element of a parameter."""
    return item_size(parameter.dtype, parameter.path)


class Held(NamedTuple):
    """Bytes on one device that a step holds outside of its layers."""

    state: int
    inputs: int
    saved: int
    padding: int
    """What an uneven batch adds to layer inputs and saved values."""
    gradients: int


def expected_peak(implied: Implied, held: Held) -> list[tuple[str, int, bool]]:
    """Terms of one device's memory in backward, and whether XLA needs each when memory is short.

    The terms were derived from programs that libtpu 0.0.42 compiled: the weights of all layers are
    cast before the loop over layers and stay live; one matrix is gathered in full; two values as
    wide as a layer's widest are recomputed while a gradient of that size arrives. Further terms
    depend on the trainer: `_before_layers`, `_phases`.
    """
    terms = [
        ("state", held.state, True),
        ("layer inputs", held.inputs, True),
        ("saved", held.saved, True),
        ("padding", held.padding, True),
        ("sums of gradients", held.gradients if implied.steps > 1 else 0, True),
        ("cast weights", _cast(implied), True),
    ]
    if implied.casts_in_layers:
        terms += _largest(_phases(implied))
    else:
        terms += [
            ("a whole matrix", _largest_matrix(implied), True),
            ("widest values", WIDEST_VALUES * _rows(implied) * _widest(implied), True),
            *_before_layers(implied),
        ]
    # Gradients of embeddings come last; if few other values are live by then, they determine the
    # peak.
    needed = sum(amount for _, amount, is_needed in terms if is_needed)
    terms.append(("other gradients", max(0, sum(held) - needed), True))
    return [(name, amount, is_needed) for name, amount, is_needed in terms if amount]


def _rows(implied: Implied) -> int:
    """Sequences of a shard at a time."""
    return implied.rows(padded=True)[0]


def _bytes(implied: Implied, value: Value) -> int:
    """Bytes of a layer's value on one device, of one sequence."""
    return implied.row_bytes(value.features, value.itemsize)


def _size(implied: Implied, features: tuple[Feature, ...]) -> int:
    """Bytes of a value in the compute type on one device, of one sequence."""
    return implied.row_bytes(features, implied.itemsize)


@per_mesh
def _layers(implied: Implied) -> list[Parameter]:
    """The weights of layers."""
    return [each for each in implied.parts.parameters if each.layers > 1]


@per_mesh
def _cast(implied: Implied) -> int:
    """Bytes of the weights of layers that have a narrower compute type, in it."""
    size = implied.itemsize
    own = (each for each in _layers(implied) if size < parameter_size(each))
    return sum(implied.held_of(each) * size for each in own)


@per_mesh
def _largest_matrix(implied: Implied) -> int:
    """Bytes of the largest matrix of a layer, gathered in full."""
    return max((_whole(implied, each) for each in _layers(implied)), default=0)


@per_mesh
def _widest(implied: Implied) -> int:
    """Bytes of the widest value of a layer, of one sequence."""
    own = (each for each in implied.parts.values if each.is_needed and not each.is_whole)
    return max((_bytes(implied, each) for each in own), default=0)


def _whole(implied: Implied, parameter: Parameter) -> int:
    """Bytes of one layer's weights in the compute type, gathered along the axes of tokens."""
    gathered = implied.gathered_axes(parameter)
    others = [axis for axis in parameter.axes if axis not in gathered]
    elements = parameter.elements // parameter.layers // implied.shards(others)
    return elements * implied.itemsize


@per_mesh
def _heads(implied: Implied) -> list[Parameter]:
    """The weights outside of layers that a matmul reads."""
    multiplied = {each.parameter for each in implied.parts.products if each.layers == 1}
    return [each for each in implied.parts.parameters if each.path in multiplied]


def _before_layers(implied: Implied) -> Terms:
    """Terms where the trainer casts weights before the layers (`tests/fixtures/stand_ins`).

    Gradients of layers are stacked in the compute type, and the head's gradients already exist. If
    memory is not short, gradients wait for reduction, the logits stay until the head's gradient is
    computed, and attention kernels take scratch memory. What is small stays in fast memory.
    """
    parts, logits = implied.parts, 0
    if parts.head is not None:
        logits = implied.activation_bytes((parts.head,), 4, padded=True) // parts.head_tiles
    scratch = [
        implied.activation_bytes(features, itemsize, padded=True)
        for features, itemsize in parts.scratch
    ]
    return [
        ("gradients", _gradients(implied), True),
        ("further matrices", FURTHER_MATRICES * _largest_matrix(implied), False),
        ("kernels", _spilled(max(scratch, default=0)), False),
        ("logits", _spilled(logits), False),
    ]


@per_mesh
def _gradients(implied: Implied) -> int:
    """Bytes of the gradients of layers and the head in the compute type."""
    own = _layers(implied) + _heads(implied)
    return sum(implied.held_of(each) * implied.itemsize for each in own)


def _spilled(size: int) -> int:
    """Bytes of a value in HBM: none if it fits in fast memory."""
    return size if size > _FAST else 0


def _largest(phases: list[Terms]) -> Terms:
    """The terms of the phase that needs most, and what the largest one takes beyond it."""
    own = max(phases, key=lambda phase: (_sum(phase, only_needed=True), _sum(phase)))
    return [*own, ("another phase", max(map(_sum, phases)) - _sum(own), False)]


def _sum(phase: Terms, *, only_needed: bool = False) -> int:
    return sum(amount for _, amount, is_needed in phase if is_needed or not only_needed)


def _phases(implied: Implied) -> list[Terms]:
    """Terms of the phases where layers cast their weights: the largest phase has the peak.

    Derived from steps of MaxText (`benches/config_peaks.py`). First is the head, then layers run
    backward; their gradients are stacked in the type of the parameters. XLA computes matmuls with
    weights in at most `_MOST_WINDOWS` shards in a loop over the shards (windowed einsums), and
    reduces gradients as they are computed. Of more shards, it gathers weights ahead of time.
    """
    gradients, rows = _stacked(implied), _rows(implied)
    if implied.parts.pipeline is not None:
        head = ("the head", _at_head(implied), True)
        return [[head], *_of_stage(implied, implied.parts.pipeline)]
    layers = [_Layer(own, rows) for own in _sequence(implied)]
    # In the loop over parts of a batch, the copy comes before the head, otherwise after it.
    early = max((layer.copied for layer in layers), default=0) if implied.steps > 1 else 0
    copied = ("a copy of a saved value", early, True)
    phases: list[Terms] = [[copied, ("the head", _at_head(implied), True)]]
    for layer in layers:
        always: Terms = [
            ("gradients", gradients, True),
            ("a whole matrix", layer.matrix, True),
            ("widest values", WIDEST_VALUES * layer.widest, True),
        ]
        own = _windowed if _is_windowed(implied) else _gathered
        phases += [[*always, *phase] for phase in own(implied, layer)]
        copy = ("a copy of a saved value", layer.copied, True)
        phases.append([copy, *_until_head(implied, layer)])
    return phases


def _of_stage(implied: Implied, pipeline: Pipeline) -> list[Terms]:
    """The backward pass of an iteration of a pipeline, whose layers are not in a loop.

    A checkpoint covers all layers of a stage: their values are recomputed together, or loaded. XLA
    loops over the shards of weights; gradients of one repeat lie beside those of all, in the
    compute type, and so do its weights. Of few shards, it gathers the weights of the stage ahead of
    time, and recomputes part of the values when they are needed.
    """
    (own,) = _sequence(implied)
    rows, repeats = _rows(implied) // pipeline.microbatches, pipeline.repeats
    again = pipeline.layers * own.recomputed * rows
    gradients = ("gradients", _stacked(implied), True)
    logits = ("logits", _logits(implied), True)
    if _gathered_shards(implied) <= _FEW:
        gathered = sum(_whole(implied, each) * each.layers for each in _layers(implied)) // repeats
        early, late = (int(share * again) for share in _STAGE_VALUES)
        return [
            [gradients, ("weights of a stage", gathered, True), ("values of a stage", early, True)],
            [gradients, logits, ("values of a stage", late, True)],
        ]
    held = sum(implied.held_of(each) for each in _layers(implied)) * implied.itemsize
    loaded = pipeline.layers * own.saved * rows
    return [[
        gradients,
        logits,
        ("weights of a stage", 2 * held // repeats, True),
        ("values of a stage", again + loaded, True),
    ]]  # fmt: skip


def _windowed(implied: Implied, layer: _Layer) -> list[Terms]:
    """The backward pass of a layer with windowed einsums.

    Steps that XLA refused hold all of this but the matrices that are gathered ahead of time.
    Kernels on rows that travelled to their experts hold no further value.
    """
    further = 0 if layer.is_routed else layer.again
    return [[
        *_until_head(implied, layer),
        ("other values", layer.others + _WIDTHS * layer.width, True),
        ("a further value", further, True),
        ("windows", _WINDOWS * layer.shard if layer.shard < layer.width else 0, True),
        ("kernels", layer.statistics, True),
        ("further matrices", layer.gathered, False),
    ]]  # fmt: skip


def _gathered(implied: Implied, layer: _Layer) -> list[Terms]:
    """The backward passes of the dense layer and of attention, with weights gathered ahead of time.

    Either gradients of the dense layer wait in full for their reduction, or the values from which
    they are computed wait: then these are still live in attention. If memory is short, neither
    gradients nor gathered weights wait, and other recomputed values do not stay.
    """
    head, widths = _until_head(implied, layer), _WIDTHS * layer.width
    dense: Terms = [
        ("other values", layer.others + widths, False),
        ("further matrices", layer.gathered + max(layer.matrix, layer.again), False),
    ]
    return [[*head, *dense], [*head, ("attention", layer.attention + widths, True)]]


class _Sequence:
    """Bytes of one layer on a device, with the values of one sequence of a shard.

    A layer is a rematerialised module.
    """

    __slots__ = (
        "again", "attention", "copied", "gathered", "is_routed", "matrix", "others", "recomputed",
        "saved", "shard", "statistics", "widest", "width",
    )  # fmt: skip

    def __init__(self, implied: Implied, unit: Unit) -> None:
        parts, width = implied.parts, unit.feature
        self.matrix, self.gathered = _matrices(implied, unit.path)
        """The largest matrix, and all others that are sharded, in full."""
        self.is_routed = any(
            each.remat == unit.path and each.forward == RAGGED and implied.shards(each.axes) > 1
            for each in parts.moves
        )
        """Whether rows travel to the devices of their experts."""
        values, self.widest = _values(implied, unit.path)
        fates = implied.fates
        again = [
            size
            for each, size in values
            if fates[each.key] == RECOMPUTED and each.features != (width,)
        ]
        self.again = max(again, default=0)
        """The widest value that is recomputed."""
        self.others = sum(again) - self.again * min(again.count(self.again), WIDEST_VALUES)
        """Recomputed values beside the widest ones and those of the layer's width."""
        self.width = _size(implied, ((width[0], ()),))
        """A value of the layer's width, gathered along all axes for matmuls."""
        self.shard = _size(implied, (width,))
        """The part of it that a device keeps."""
        held = [values for path, values in parts.attentions if path == unit.path]
        sizes = [sum(_size(implied, each) for each in values) for values in held]
        self.attention = max(sizes, default=0)
        """What attention's backward pass holds at once."""
        sizes = [
            implied.row_bytes((features[0], (_LANES, ())), itemsize)
            for features, itemsize in parts.scratch
        ]
        self.statistics = max(sizes, default=0)
        """The sums of softmax rows, which kernels repeat for all lanes."""
        self.recomputed = sum(size for each, size in values if fates[each.key] == RECOMPUTED)
        """All recomputed values."""
        self.saved = sum(size for each, size in values if fates[each.key] == SAVED)
        """All saved values."""
        self.copied = _copied(implied, unit, values)
        """What XLA copies into another layout."""


@per_mesh
def _values(implied: Implied, path: str) -> tuple[list[tuple[Value, int]], int]:
    """The values of a layer that backward needs, with their bytes; those of the widest."""
    own = [each for each in implied.parts.values if each.remat == path and each.is_needed]
    sizes = [_bytes(implied, each) for each in own]
    parts = (size for each, size in zip(own, sizes, strict=True) if not each.is_whole)
    return list(zip(own, sizes, strict=True)), max(parts, default=0)


@per_policy
def _sequence(implied: Implied) -> list[_Sequence]:
    return [_Sequence(implied, unit) for unit in implied.parts.units.values()]


class _Layer:
    """The same with the values of so many sequences of a shard."""

    __slots__ = tuple(name for name in _Sequence.__slots__ if name not in ("recomputed", "saved"))

    def __init__(self, own: _Sequence, rows: int) -> None:
        self.matrix, self.gathered, self.is_routed = own.matrix, own.gathered, own.is_routed
        self.again, self.others, self.widest = (
            own.again * rows,
            own.others * rows,
            own.widest * rows,
        )
        self.width, self.shard = own.width * rows, own.shard * rows
        self.attention, self.statistics = own.attention * rows, own.statistics * rows
        self.copied = own.copied * rows


@per_mesh
def _stacked(implied: Implied) -> int:
    """Bytes of the gradients of layers in the type of the parameters."""
    return sum(implied.held_of(each) * parameter_size(each) for each in _layers(implied))


def _copied(implied: Implied, unit: Unit, values: list[tuple[Value, int]]) -> int:
    """Bytes of the largest saved value that XLA copies into another layout, with all its layers.

    If values are offloaded, XLA peels the last layer off the loop of backward. Its matmuls read
    values of the dense layer with tokens as the minor dimension, others with features, but the loop
    of forward stores the larger of both as the minor one.
    """
    fates = implied.fates
    if all(fates[each.key] != OFFLOADED for each, _ in values):
        return 0
    length, width = implied.batch.length or 0, unit.feature[0]
    copied = [
        each.layers * size
        for each, size in values
        if fates[each.key] == SAVED
        and len(each.features) == 1
        and (length >= each.features[0][0]) == (each.features[0][0] == width)
    ]
    return max(copied, default=0)


def _is_late(implied: Implied) -> bool:
    """Whether XLA computes the gradient of the head's weights after the layers."""
    width = _head_rows(implied) * _widths(implied)[0]
    return _is_windowed(implied) or width > _LATE * implied.itemsize


@per_mesh
def _widths(implied: Implied) -> tuple[int, int]:
    """Bytes of the widest input of a layer, of one sequence: of all axes, and of a device."""
    units = implied.parts.units.values()
    return (
        max((_size(implied, ((each.feature[0], ()),)) for each in units), default=0),
        max((_size(implied, (each.feature,)) for each in units), default=0),
    )


def _until_head(implied: Implied, layer: _Layer) -> Terms:
    """What stays during the layers for the gradient of the head's weights.

    It is that gradient, which waits for its reduction. If it comes after the layers, it is the
    logits and the head's input; if memory is short and einsums are not windowed, XLA computes the
    logits again from the head's gathered weights.
    """
    heads, logits = _head_weights(implied), _logits(implied)
    if not _is_late(implied):
        return [("a head's gradient", heads, True)]
    needed = logits if _is_windowed(implied) else min(logits, heads)
    return [("logits", needed + layer.shard, True), ("further logits", logits - needed, False)]


@per_mesh
def _matrices(implied: Implied, path: str) -> tuple[int, int]:
    """Bytes of a layer's largest matrix in full, and of the other ones that are gathered."""
    own = [each for each in implied.parts.parameters if each.path.startswith(f"{path}/")]
    own = [each for each in own if each.layers > 1]
    cut = [_whole(implied, each) for each in own if implied.gathered_axes(each)]
    largest = max([_whole(implied, each) for each in own], default=0)
    return largest, sum(cut) - max(cut, default=0)


def _is_windowed(implied: Implied) -> bool:
    """Whether XLA loops over the shards of the largest matrix of a layer."""
    return 1 < _gathered_shards(implied) <= _MOST_WINDOWS


@per_mesh
def _gathered_shards(implied: Implied) -> int:
    """The shards of the largest matrix of a layer that are gathered."""
    layers = _layers(implied)
    if not layers:
        return 1
    largest = max(layers, key=lambda each: _whole(implied, each))
    return implied.shards(implied.gathered_axes(largest))


def _logits(implied: Implied) -> int:
    """Bytes of one copy of the logits."""
    parts = implied.parts
    if parts.head is None:
        return 0
    return _head_rows(implied) * _size(implied, (parts.head,)) // parts.head_tiles


def _head_rows(implied: Implied) -> int:
    """Sequences that the head computes on a device: stages have different ones there."""
    pipeline = implied.parts.pipeline
    return _rows(implied) // (1 if pipeline is None else pipeline.stages)


@per_mesh
def _head_weights(implied: Implied) -> int:
    return sum(_whole(implied, each) for each in _heads(implied))


def _at_head(implied: Implied) -> int:
    """Bytes of the head's matmuls: its input before and after the norm, logits, weights.

    Where einsums are windowed, the gradient of the logits is an array of its own. Otherwise it is
    part of the matmul that computes the gradient of the weights.
    """
    logits, heads = _logits(implied), _head_weights(implied)
    gradient = logits if _is_windowed(implied) else 0 if _is_late(implied) else heads
    return logits + heads + gradient + 2 * _head_rows(implied) * _widths(implied)[1]
