"""Models XLA's memory peak of a training step."""

from __future__ import annotations

from hlofast.config._implied import per_mesh
from hlofast.config._parts import item_size
from hlofast.config._policies import RECOMPUTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Terms: TypeAlias = "list[tuple[str, int, bool]]"

    from hlofast.config._implied import Implied
    from hlofast.config._memory import StepMemory
    from hlofast.config._parts import Parameter, Value

WIDEST_VALUES = 3
"""Number of values as large as a layer's widest value that backward holds at a time."""
FURTHER_MATRICES = 2
"""Number of further unsharded matrices that XLA holds if memory allows: gradients waiting for
reduction.
"""
_WAITING = 3
"""Gradients of matrices that wait for their reduction where layers cast their weights: those of the
dense layer. `a whole matrix` counts one of them.
"""
_KEPT = ("state", "layer inputs", "saved", "padding", "sums of gradients", "cast weights")
"""Terms that are live between the forward and the backward pass of the layers."""
_HEADS = 2
"""Arrays of the head's size beside the logits: its weights and its gradient."""
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
    depend on the trainer: `_before_layers`, `_in_layers`.
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
        kept = sum(amount or 0 for _, amount, _ in terms)
        terms += _largest(_phases(implied))
        rest = sum(amount or 0 for _, amount, _ in terms) - kept
        terms.append(("the head", max(0, _at_head(implied) - rest), True))
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


def _whole(implied: Implied, parameter: Parameter) -> int:
    """Bytes of one layer's weights in the compute type, gathered along the axes of tokens."""
    others = [axis for axis in parameter.axes if axis not in implied.token_axes]
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
    computed, and attention kernels take scratch memory.
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
        ("kernels", max(scratch, default=0), False),
        ("logits", logits, False),
    ]




def _largest(phases: list[Terms]) -> Terms:
    """The terms of the phase that needs most, and what another phase takes beyond it."""

    def total(phase: Terms) -> int:
        return sum(amount for _, amount, _ in phase)

    def needed(phase: Terms) -> int:
        return sum(amount for _, amount, is_needed in phase if is_needed)

    own = max(phases, key=lambda phase: (needed(phase), total(phase)))
    most = max(map(total, phases))
    return [*own, ("another phase", most - total(own), False)]


def _phases(implied: Implied) -> list[Terms]:
    parts = implied.parts
    layers = [each for each in parts.parameters if each.layers > 1]
    gradients = sum(implied.held_of(each) * parameter_size(each) for each in layers)
    statistics = [
        implied.activation_bytes((features[0], (_LANES, ())), itemsize, padded=True)
        for features, itemsize in parts.scratch
    ]
    is_windowed = _is_windowed(implied)
    heads = sum(_whole(implied, each) for each in _heads(implied))
    found = []
    for unit in parts.units.values():
        own = [each for each in layers if each.path.startswith(f"{unit.path}/")]
        matrices = sorted((_whole(implied, each) for each in own), reverse=True)
        cut = sorted((
            _whole(implied, each)
            for each in own
            if implied.shards(axis for axis in each.axes if axis in implied.token_axes) > 1
        ), reverse=True)
        values = [each for each in parts.values if each.remat == unit.path and each.is_needed]
        widest = max([_bytes(implied, each) for each in values if not each.is_whole], default=0)
        again = [
            _bytes(implied, each)
            for each in values
            if implied.fates[each.key] == RECOMPUTED and each.features != (unit.feature,)
        ]
        again.sort(reverse=True)
        most = max(again, default=0)
        count = min(again.count(most), WIDEST_VALUES)
        others = sum(again[count:])
        width = implied.activation_bytes(((unit.feature[0], ()),), implied.itemsize, padded=True)
        windows = 0
        if implied.shards(unit.feature[1]) > 1:
            own_width = implied.activation_bytes((unit.feature,), implied.itemsize, padded=True)
            windows = _WINDOWS * own_width
        matrix = max(matrices, default=0)
        if is_windowed:
            found.append([
                ("gradients", gradients, True),
                ("a whole matrix", matrix, True),
                ("widest values", WIDEST_VALUES * widest, True),
                ("logits", _logits(implied), True),
                ("other values", others + _WIDTHS * width, True),
                ("a further value", most, True),
                ("windows", windows, True),
                ("kernels", max(statistics, default=0), True),
                ("further matrices", sum(cut) - max(cut, default=0), False),
            ])
            continue
        attention = max([
            sum(implied.activation_bytes(f, implied.itemsize, padded=True) for f in held)
            for path, held in parts.attentions if path == unit.path
        ], default=0)
        tokens = width // unit.feature[0] // implied.itemsize
        late = tokens * unit.feature[0] > _LATE
        kept_head = _logits(implied) if late else heads
        name = "logits" if late else "a head's gradient"
        n = sum(1 for each in matrices if each == matrix)
        found.append([
            ("gradients", gradients, True),
            (name, kept_head, True),
            ("a whole matrix", matrix, True),
            ("widest values", WIDEST_VALUES * widest, True),
            ("other values", others + _WIDTHS * width, False),
            ("further matrices", sum(cut[1:]) + max(matrix, most) , False),
        ])
        found.append([
            ("gradients", gradients, True),
            (name, kept_head, True),
            ("a whole matrix", matrix, True),
            ("widest values", WIDEST_VALUES * widest, True),
            ("attention", attention + _WIDTHS * width, True),
        ])
    return found


_LATE = 90_000_000


@per_mesh
def _is_windowed(implied: Implied) -> bool:
    """Whether XLA loops over the shards of the largest matrix of a layer."""
    layers = [each for each in implied.parts.parameters if each.layers > 1]
    if not layers:
        return False
    largest = max(layers, key=lambda each: _whole(implied, each))
    shards = [
        implied.shards(axis for axis in axes if axis in implied.token_axes)
        for axes in largest.sharding
    ]
    return 1 < max(shards) <= _MOST_WINDOWS


def _logits(implied: Implied) -> int:
    """Bytes of one copy of the logits, and of the values of which they are the product."""
    parts = implied.parts
    if parts.head is None:
        return 0
    logits = implied.activation_bytes((parts.head,), implied.itemsize, padded=True)
    features = [unit.feature for unit in parts.units.values()]
    width = [implied.activation_bytes((own,), implied.itemsize, padded=True) for own in features]
    return logits // parts.head_tiles + max(width, default=0)


def _at_head(implied: Implied) -> int:
    """Bytes of the head's matmuls: MaxText's loss keeps one copy of the logits."""
    parts = implied.parts
    if parts.head is None:
        return 0
    logits = implied.activation_bytes((parts.head,), implied.itemsize, padded=True)
    heads = sum(_whole(implied, each) for each in _heads(implied))
    if _is_windowed(implied):
        return 2 * logits // parts.head_tiles + heads
    return logits // parts.head_tiles + _HEADS * heads
