"""Models XLA's memory peak of a training step."""

from __future__ import annotations

from hlofast.config._implied import per_mesh
from hlofast.config._parts import item_size
from hlofast.config._policies import OFFLOADED, RECOMPUTED, SAVED
from hlofast.config._traffic import RAGGED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Terms: TypeAlias = "list[tuple[str, int, bool]]"

    from hlofast.config._implied import Implied
    from hlofast.config._memory import StepMemory
    from hlofast.config._parts import Feature, Parameter, Unit, Value

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
_WIDTHS = 3
"""Values of a layer's width, gathered along all axes, in the backward pass of its dense layer."""


def parameter_size(parameter: Parameter) -> int:
    """Bytes per element of a parameter."""
    return item_size(parameter.dtype, parameter.path)


def expected_peak(implied: Implied, memory: StepMemory) -> list[tuple[str, int, bool]]:
    """Terms of one device's memory in backward, and whether XLA needs each when memory is short.

    The terms were derived from programs that libtpu 0.0.42 compiled: the weights of all layers are
    cast before the loop over layers and stay live; one matrix is gathered in full; two values as
    wide as a layer's widest are recomputed while a gradient of that size arrives. Further terms
    depend on the trainer: `_before_layers`, `_phases`.
    """
    parts, size = implied.parts, implied.itemsize
    layers = [each for each in parts.parameters if each.layers > 1]
    padding = [
        each.bytes or 0
        for each in memory.terms
        if each.name == "padding" and each.place == "device"
    ]
    terms = [
        ("state", memory.state_bytes, True),
        ("layer inputs", memory.layer_input_bytes, True),
        ("saved", memory.saved_bytes, True),
        ("padding", sum(padding), True),
        ("sums of gradients", memory.gradient_bytes if implied.steps > 1 else 0, True),
        (
            "cast weights",
            sum(implied.held_of(each) * size for each in layers if size < parameter_size(each)),
            True,
        ),
    ]
    if implied.casts_in_layers:
        terms += _largest(_phases(implied))
    else:
        matrices = [_whole(implied, each) for each in layers]
        widest = [
            _bytes(implied, value)
            for value in parts.values
            if value.is_needed and not value.is_whole
        ]
        terms += [
            ("a whole matrix", max(matrices, default=0), True),
            ("widest values", WIDEST_VALUES * max(widest, default=0), True),
            *_before_layers(implied),
        ]
    # Gradients of embeddings come last; if few other values are live by then, they determine the
    # peak.
    needed = sum(amount or 0 for _, amount, is_needed in terms if is_needed)
    terms.append(("other gradients", max(0, (memory.hbm_lower_bound or 0) - needed), True))
    return [(name, amount, is_needed) for name, amount, is_needed in terms if amount]


def _bytes(implied: Implied, value: Value) -> int:
    """Bytes of a layer's value on one device."""
    return implied.activation_bytes(value.features, value.itemsize, padded=True)


def _size(implied: Implied, features: tuple[Feature, ...]) -> int:
    """Bytes of a value in the compute type on one device."""
    return implied.activation_bytes(features, implied.itemsize, padded=True)


def _whole(implied: Implied, parameter: Parameter) -> int:
    """Bytes of one layer's weights in the compute type, gathered along the axes of tokens."""
    gathered = implied.gathered_axes(parameter)
    others = [axis for axis in parameter.axes if axis not in gathered]
    elements = parameter.elements // parameter.layers // implied.shards(others)
    return elements * implied.itemsize


def _heads(implied: Implied) -> list[Parameter]:
    """The weights outside of layers that a matmul reads."""
    multiplied = {each.parameter for each in implied.parts.products if each.layers == 1}
    return [each for each in implied.parts.parameters if each.path in multiplied]


def _before_layers(implied: Implied) -> list[tuple[str, int | None, bool]]:
    """Terms where the trainer casts weights before the layers (`tests/fixtures/stand_ins`).

    Gradients of layers are stacked in the compute type, and the head's gradients already exist. If
    memory is not short, gradients wait for reduction, the logits stay until the head's gradient is
    computed, and attention kernels take scratch memory. What is small stays in fast memory.
    """
    parts, size = implied.parts, implied.itemsize
    layers = [each for each in parts.parameters if each.layers > 1]
    logits = 0
    if parts.head is not None:
        logits = implied.activation_bytes((parts.head,), 4, padded=True) // parts.head_tiles
    scratch = [
        implied.activation_bytes(features, itemsize, padded=True)
        for features, itemsize in parts.scratch
    ]
    gradients = sum(implied.held_of(each) * size for each in layers + _heads(implied))
    matrix = max([_whole(implied, each) for each in layers], default=0)
    return [
        ("gradients", gradients, True),
        ("further matrices", FURTHER_MATRICES * matrix, False),
        ("kernels", _spilled(max(scratch, default=0)), False),
        ("logits", _spilled(logits), False),
    ]


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
    layers = [each for each in implied.parts.parameters if each.layers > 1]
    gradients = sum(implied.held_of(each) * parameter_size(each) for each in layers)
    units = [(unit, _Layer(implied, unit)) for unit in implied.parts.units.values()]
    copies = {unit.path: _copied(implied, unit, layer.values) for unit, layer in units}
    # In the loop over parts of a batch, the copy comes before the head, otherwise after it.
    early = max(copies.values(), default=0) if implied.steps > 1 else 0
    copied = ("a copy of a saved value", early, True)
    phases: list[Terms] = [[copied, ("the head", _at_head(implied), True)]]
    for unit, layer in units:
        always: Terms = [
            ("gradients", gradients, True),
            ("a whole matrix", layer.matrix, True),
            ("widest values", WIDEST_VALUES * layer.widest, True),
        ]
        own = _windowed if _is_windowed(implied) else _gathered
        phases += [[*always, *phase] for phase in own(implied, layer)]
        copy = ("a copy of a saved value", copies[unit.path], True)
        phases.append([copy, *_until_head(implied, layer)])
    return phases


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


class _Layer:
    """Bytes of one layer's values on a device; a layer is a rematerialised module."""

    def __init__(self, implied: Implied, unit: Unit) -> None:
        parts, width = implied.parts, unit.feature
        self.matrix, self.gathered = _matrices(implied, unit.path)
        """The largest matrix, and all others that are sharded, in full."""
        self.is_routed = any(
            each.remat == unit.path and each.forward == RAGGED and implied.shards(each.axes) > 1
            for each in parts.moves
        )
        """Whether rows travel to the devices of their experts."""
        self.values = [each for each in parts.values if each.remat == unit.path and each.is_needed]
        sizes = [_bytes(implied, each) for each in self.values if not each.is_whole]
        self.widest = max(sizes, default=0)
        again = [
            _bytes(implied, each)
            for each in self.values
            if implied.fates[each.key] == RECOMPUTED and each.features != (width,)
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
            implied.activation_bytes((features[0], (_LANES, ())), itemsize, padded=True)
            for features, itemsize in parts.scratch
        ]
        self.statistics = max(sizes, default=0)
        """The sums of softmax rows, which kernels repeat for all lanes."""


def _copied(implied: Implied, unit: Unit, values: list[Value]) -> int:
    """Bytes of the largest saved value that XLA copies into another layout, with all its layers.

    If values are offloaded, XLA peels the last layer off the loop of backward. Its matmuls read
    values of the dense layer with tokens as the minor dimension, others with features, but the loop
    of forward stores the larger of both as the minor one.
    """
    fates = implied.fates
    if all(fates[each.key] != OFFLOADED for each in values):
        return 0
    length, width = implied.batch.length or 0, unit.feature[0]
    flat = [each for each in values if fates[each.key] == SAVED and len(each.features) == 1]
    copied = [
        each.layers * _bytes(implied, each)
        for each in flat
        if (length >= each.features[0][0]) == (each.features[0][0] == width)
    ]
    return max(copied, default=0)


def _is_late(implied: Implied) -> bool:
    """Whether XLA computes the gradient of the head's weights after the layers."""
    widths = [_size(implied, ((each.feature[0], ()),)) for each in implied.parts.units.values()]
    return _is_windowed(implied) or max(widths, default=0) > _LATE * implied.itemsize


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


@per_mesh
def _is_windowed(implied: Implied) -> bool:
    """Whether XLA loops over the shards of the largest matrix of a layer."""
    layers = [each for each in implied.parts.parameters if each.layers > 1]
    if not layers:
        return False
    largest = max(layers, key=lambda each: _whole(implied, each))
    return 1 < implied.shards(implied.gathered_axes(largest)) <= _MOST_WINDOWS


def _logits(implied: Implied) -> int:
    """Bytes of one copy of the logits."""
    parts = implied.parts
    if parts.head is None:
        return 0
    return _size(implied, (parts.head,)) // parts.head_tiles


def _head_weights(implied: Implied) -> int:
    return sum(_whole(implied, each) for each in _heads(implied))


def _at_head(implied: Implied) -> int:
    """Bytes of the head's matmuls: its input before and after the norm, logits, weights.

    Where einsums are windowed, the gradient of the logits is an array of its own. Otherwise it is
    part of the matmul that computes the gradient of the weights.
    """
    logits, heads = _logits(implied), _head_weights(implied)
    widths = [_size(implied, (unit.feature,)) for unit in implied.parts.units.values()]
    gradient = logits if _is_windowed(implied) else 0 if _is_late(implied) else heads
    return logits + heads + gradient + 2 * max(widths, default=0)
