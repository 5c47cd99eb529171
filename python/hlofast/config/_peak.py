"""Models XLA's memory peak of a training step."""

from __future__ import annotations

from hlofast.config._parts import item_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._implied import Implied
    from hlofast.config._memory import StepMemory
    from hlofast.config._parts import Parameter

WIDEST_VALUES = 3
"""Number of values as large as a layer's widest value that backward holds at a time."""
FURTHER_MATRICES = 2
"""Number of further unsharded matrices that XLA holds if memory allows: gradients waiting for
reduction.
"""


def parameter_size(parameter: Parameter) -> int:
    """Bytes per element of a parameter."""
    return item_size(parameter.dtype, parameter.path)


def expected_peak(implied: Implied, memory: StepMemory) -> list[tuple[str, int, bool]]:
    """Terms of one device's memory in backward, and whether XLA needs each when memory is short.

    The terms were derived from programs that libtpu 0.0.42 compiled (`tests/fixtures/stand_ins`):
    the weights of all layers are cast before the loop over layers and stay live; their gradients
    are stacked in the compute type, and the head's gradients already exist; one matrix is gathered
    in full; two values as wide as a layer's widest are recomputed while a gradient of that size
    arrives. If memory is not short, further terms are live: gradients waiting for reduction, the
    logits until the head's gradient is computed, and the scratch memory of attention kernels.
    """
    parts, size = implied.parts, implied.itemsize
    layers = [each for each in parts.parameters if each.layers > 1]
    multiplied = {each.parameter for each in parts.products if each.layers == 1}
    heads = [each for each in parts.parameters if each.path in multiplied]
    matrices, widest = [0], [0]
    for parameter in layers:
        others = [axis for axis in parameter.axes if axis not in implied.token_axes]
        matrices.append(parameter.elements // parameter.layers // implied.shards(others) * size)
    for value in parts.values:
        if value.is_needed and not value.is_whole:
            value_bytes = implied.activation_bytes(value.features, value.itemsize, padded=True)
            widest.append(value_bytes)
    padding = [
        each.bytes or 0
        for each in memory.terms
        if each.name == "padding" and each.place == "device"
    ]
    logits = 0
    if parts.head is not None:
        logits = implied.activation_bytes((parts.head,), 4, padded=True) // parts.head_tiles
    scratch = [
        implied.activation_bytes(features, itemsize, padded=True)
        for features, itemsize in parts.scratch
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
        ("gradients", sum(implied.held_of(each) * size for each in layers + heads), True),
        ("a whole matrix", max(matrices), True),
        ("widest values", WIDEST_VALUES * max(widest), True),
        ("further matrices", FURTHER_MATRICES * max(matrices), False),
        ("kernels", max(scratch, default=0), False),
        ("logits", logits, False),
    ]
    # Gradients of embeddings come last; if few other values are live by then, they determine the
    # peak.
    needed = sum(amount or 0 for _, amount, is_needed in terms if is_needed)
    terms.append(("other gradients", max(0, (memory.hbm_lower_bound or 0) - needed), True))
    return [(name, amount, is_needed) for name, amount, is_needed in terms if amount]
