"""Compares predicted and compiled figures: state, offloaded and gathered bytes, FLOPs, peak."""

from __future__ import annotations

from hlofast._check.comparison import AGREES, ERROR, NOTE, WARNING, Comparison
from hlofast._check.loops import is_in_layers, layer_loops
from hlofast._check.parameters import declared_bytes, undeclared_weights
from hlofast._check.program import Program, percent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._check.declaration import Prediction

NEAR = 0.01
"""Largest relative difference at which predicted and compiled work agree."""


NEAR_STATE = 1e-6
"""Largest relative difference of the state that is only a note; step counters and keys cause it."""
NEAR_PEAK = 0.1
"""Largest relative difference at which the expected peak agrees.

It is large because the compiler decides most of the peak.
"""


def state_bytes(program: Program) -> Iterator[Comparison]:
    """Compares the bytes of parameters and optimizer state on one device."""
    declaration = program.declaration
    predicted = declaration.predictions.get("state_bytes")
    state = [parameter for parameter in program.parameters if parameter.declared is not None]
    state += undeclared_weights(program) if predicted is not None else []
    if not state and predicted is not None:
        aliases = program.module.header.get("input_output_alias") or ()
        donated = {alias.number for alias in aliases}
        state = [
            parameter
            for parameter in program.parameters
            if parameter.number in donated or parameter.row in program.undonated
        ]
    if not state:
        return
    compiled = sum(parameter.bytes for parameter in state)
    if predicted is None:
        if declaration.mesh is None:
            return
        value = sum(declared_bytes(program, parameter) for parameter in state)
        source = "the declared shardings of the program's parameters"
    else:
        value, source = predicted.value, predicted.source
    more = compiled - value
    # The difference may be counters and keys, which a prediction leaves out or counts with a tile
    # each.
    scalars = sum(parameter.bytes for parameter in state if not parameter.dimensions)
    is_small = abs(more) <= max(scalars, NEAR_STATE * value)
    beside = ""
    if program.is_partitioned:
        arguments = program.memory().xla["argument_size_in_bytes"]
        rest = arguments - compiled
        beside = f"; the arguments take {arguments:,} B, of which {rest:,} B are batch and padding"
    if not more:
        severity, message = AGREES, f"as predicted by {source}{beside}"
    else:
        severity = NOTE if is_small else ERROR
        word = "more" if more > 0 else "less"
        message = f"{abs(more):,} B {word} than predicted by {source}{beside}"
    yield Comparison(
        "state-bytes",
        severity,
        "parameters and optimizer state",
        f"{value:,} B",
        f"{compiled:,} B",
        message,
        abs(more),
    )


def offloaded_bytes(program: Program) -> Iterator[Comparison]:
    """Compares the bytes kept in host memory besides parameters."""
    predicted = program.declaration.predictions.get("offloaded_bytes")
    if predicted is None or not program.is_partitioned:
        return
    memory = program.memory("host")
    held = sum(row["bytes"] for row in memory.live if row["class"] == "parameter")
    yield _exactly("offloaded-bytes", "host memory", predicted, memory.live_peak - held)


def gathered_bytes(program: Program) -> Iterator[Comparison]:
    """Compares the weights gathered in a step.

    Only the weights of layers count; without a loop over layers, all weights do.
    """
    predicted = program.declaration.predictions.get("gathered_bytes")
    if predicted is None or not program.is_partitioned:
        return
    has_loops = bool(layer_loops(program))
    compiled = 0
    for row in program.collectives:
        is_weight = row["kind"] == "all-gather" and row["tensor_kind"] == "weight"
        if is_weight and (not has_loops or is_in_layers(program, row)):
            compiled += row["total_payload"] or 0
    times = (program.declaration.layers or 1) * (program.declaration.accumulation_steps or 1)
    more = f"; {compiled // times:,} B per layer, forward and backward" if has_loops else ""
    yield _exactly("gathered-bytes", "weights of layers", predicted, compiled, more)


def _exactly(
    code: str, subject: str, predicted: Prediction, compiled: int, remark: str = ""
) -> Comparison:
    more = compiled - predicted.value
    if not more:
        severity, message = AGREES, f"as predicted by {predicted.source}"
    else:
        word = "more" if more > 0 else "less"
        severity = ERROR
        message = (
            f"{abs(more):,} B {word} than predicted by {predicted.source} "
            f"({percent(compiled, predicted.value)})"
        )
    return Comparison(
        code,
        severity,
        subject,
        f"{predicted.value:,} B",
        f"{compiled:,} B",
        message + remark,
        abs(more),
    )


def flops(program: Program) -> Iterator[Comparison]:
    """Compares the FLOPs of matmuls on one device, including recomputed matmuls."""
    predicted = program.declaration.predictions.get("flops")
    if predicted is None:
        return
    # Declarations and configs leave out attention, which is a kernel here.
    rows = [row for row in program.module.matmuls().to_pylist() if row["kind"] != "fused_attention"]
    # An unpartitioned program contains the work of all devices.
    mesh = program.declaration.mesh
    devices = 1 if program.is_partitioned or mesh is None else mesh.device_count
    compiled = sum(row["flops"] or 0 for row in rows) // devices
    again = sum(row["flops"] or 0 for row in rows if row["phase"] == "recompute") // devices
    unknown = program.module.cost()._data.unknown_products().tolist()
    is_near = abs(compiled - predicted.value) <= NEAR * predicted.value
    message = f"{percent(compiled, predicted.value)} of the prediction of {predicted.source}"
    if again:
        message += f"; {percent(again, compiled)} is recomputed"
    if unknown:
        message += f"; {len(unknown)} matmuls of unknown size are not counted"
    is_more = compiled > predicted.value
    severity = AGREES if is_near else ERROR if is_more else NOTE if unknown else WARNING
    yield Comparison(
        "flops",
        severity,
        "matmuls",
        f"{predicted.value:,} FLOP",
        f"{compiled:,} FLOP",
        message,
        provenance="unknown" if unknown else "exact",
    )


def peak(program: Program) -> Iterator[Comparison]:
    """Compares the peak with the device's memory, the predicted bound and the expected peak."""
    declaration = program.declaration
    predicted = declaration.predictions.get("peak_bytes")
    expected = declaration.predictions.get("expected_peak_bytes")
    available = program.available
    if (predicted, expected, available) == (None, None, None):
        return
    if not program.is_partitioned:
        return
    compiled, row, how = program.peak
    if available is not None:
        needed, counted = program.needed
        more = needed - available
        yield Comparison(
            "peak-bytes",
            ERROR if more > 0 else AGREES,
            "memory of a device",
            f"at most {available:,} B",
            f"{needed:,} B",
            f"{more:,} B too much, {counted}" if more > 0 else f"{-more:,} B left, {counted}",
            max(more, 0),
            row,
            "modelled",
        )
    if predicted is not None:
        over = predicted.value - compiled
        yield Comparison(
            "peak-bytes",
            AGREES if over <= 0 else WARNING,
            "bound of the peak",
            f"at least {predicted.value:,} B",
            f"{compiled:,} B",
            f"{predicted.source} predicts {percent(predicted.value, compiled)} of it, {how}",
            max(over, 0),
            row,
            "modelled",
        )
    if expected is not None:
        off = compiled - expected.value
        is_near = abs(off) <= NEAR_PEAK * compiled
        yield Comparison(
            "peak-bytes",
            AGREES if is_near else NOTE,
            "expected peak",
            f"{expected.value:,} B",
            f"{compiled:,} B",
            f"{expected.source} predicts {percent(expected.value, compiled)} of it, {how}",
            None if is_near else abs(off),
            row,
            "modelled",
        )
