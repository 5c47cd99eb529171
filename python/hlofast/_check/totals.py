"""Predicted against compiled figures: state, offloaded and gathered bytes, FLOPs, the peak."""

from __future__ import annotations

from hlofast._check.comparison import AGREES, ERROR, NOTE, WARNING, Comparison
from hlofast._check.loops import is_in_layers, layer_loops
from hlofast._check.parameters import declared_bytes
from hlofast._check.program import Program, percent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._check.declaration import Prediction

NEAR = 0.01
"""Relative difference up to which predicted and compiled work are taken to be the same."""


NEAR_PEAK = 0.1
"""The same of the expected peak, most of which is the compiler's choice."""


def state_bytes(program: Program) -> Iterator[Comparison]:
    """The bytes of parameters and optimizer state on one device."""
    declaration = program.declaration
    predicted = declaration.predictions.get("state_bytes")
    state = [one for one in program.parameters if one.declared is not None]
    if not state and predicted is not None:
        aliases = program.module.header.get("input_output_alias") or ()
        donated = {alias.number for alias in aliases}
        state = [one for one in program.parameters if one.number in donated]
    if not state:
        return
    compiled = sum(one.bytes for one in state)
    if predicted is None:
        if declaration.mesh is None:
            return
        value = sum(declared_bytes(program, one) for one in state)
        source = "the declared splits of what the program takes"
    else:
        value, source = predicted.value, predicted.source
    more = compiled - value
    beside = ""
    if program.is_partitioned:
        arguments = program.memory().xla["argument_size_in_bytes"]
        rest = arguments - compiled
        beside = f"; arguments of {arguments:,} B have {rest:,} B of batch and padding besides"
    if not more:
        severity, message = AGREES, f"as {source} says{beside}"
    elif more > 0:
        severity, message = ERROR, f"{more:,} B more than {source} says{beside}"
    else:
        severity, message = ERROR, f"{-more:,} B less than {source} says{beside}"
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
    """What is kept in host memory besides parameters."""
    predicted = program.declaration.predictions.get("offloaded_bytes")
    if predicted is None or not program.is_partitioned:
        return
    memory = program.memory("host")
    held = sum(row["bytes"] for row in memory.live if row["class"] == "parameter")
    yield _exactly("offloaded-bytes", "host memory", predicted, memory.live_peak - held)


def gathered_bytes(program: Program) -> Iterator[Comparison]:
    """The weights gathered in a step: those of the layers, or all where there is no such loop."""
    predicted = program.declaration.predictions.get("gathered_bytes")
    if predicted is None or not program.is_partitioned:
        return
    has_loops = bool(layer_loops(program))
    compiled = 0
    for row in program.collectives:
        is_weight = row["kind"] == "all-gather" and row["moved"] == "weight"
        if is_weight and (not has_loops or is_in_layers(program, row)):
            compiled += row["total_payload"] or 0
    times = (program.declaration.layers or 1) * (program.declaration.accumulation_steps or 1)
    more = f"; {compiled // times:,} B in a layer, forward and backward" if has_loops else ""
    yield _exactly("gathered-bytes", "weights of layers", predicted, compiled, more)


def _exactly(
    code: str, subject: str, predicted: Prediction, compiled: int, remark: str = ""
) -> Comparison:
    more = compiled - predicted.value
    if not more:
        severity, message = AGREES, f"as {predicted.source} says"
    else:
        word = "more" if more > 0 else "less"
        severity = ERROR
        message = (
            f"{abs(more):,} B {word} than {predicted.source} says "
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
    """FLOPs of matrix products on one device, recomputed ones too."""
    predicted = program.declaration.predictions.get("flops")
    if predicted is None:
        return
    rows = program.module.matmuls().to_pylist()
    # Before it is partitioned a program computes what all devices do.
    mesh = program.declaration.mesh
    devices = 1 if program.is_partitioned or mesh is None else mesh.device_count
    compiled = sum(row["flops"] or 0 for row in rows) // devices
    again = sum(row["flops"] or 0 for row in rows if row["phase"] == "recompute") // devices
    unknown = program.module.cost()._data.unknown_products().tolist()
    is_near = abs(compiled - predicted.value) <= NEAR * predicted.value
    message = f"{percent(compiled, predicted.value)} of what {predicted.source} says"
    if again:
        message += f"; {percent(again, compiled)} is recomputed"
    if unknown:
        message += f"; {len(unknown)} products of unknown size count as nothing"
    is_more = compiled > predicted.value
    severity = AGREES if is_near else ERROR if is_more else NOTE if unknown else WARNING
    yield Comparison(
        "flops",
        severity,
        "matrix products",
        f"{predicted.value:,} FLOP",
        f"{compiled:,} FLOP",
        message,
        provenance="unknown" if unknown else "exact",
    )


def peak(program: Program) -> Iterator[Comparison]:
    """The peak against what there is, and against the predicted bound."""
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
        more = compiled - available
        yield Comparison(
            "peak-bytes",
            ERROR if more > 0 else AGREES,
            "memory of a device",
            f"at most {available:,} B",
            f"{compiled:,} B",
            f"{more:,} B too much, {how}" if more > 0 else f"{-more:,} B are left, {how}",
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
            f"{predicted.source} says {percent(predicted.value, compiled)} of it, {how}",
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
            f"about {expected.value:,} B",
            f"{compiled:,} B",
            f"{expected.source} says {percent(expected.value, compiled)} of it, {how}",
            None if is_near else abs(off),
            row,
            "modelled",
        )
