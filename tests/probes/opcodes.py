"""Section 5: every opcode, right and wrong in one place at a time."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ACCEPT, REJECT, Probe, module
from .opcode_table import Minimal, minimal_instructions, reference_row

COMMON = {
    "sharding": "{replicated}",
    "frontend_attributes": '{a="b"}',
    "statistics": "{visualizing_index=0,value=1.5}",
    "control-predecessors": "{q}",
    "origin": '{{"v"}}',
    "metadata": '{op_name="n"}',
    "backend_config": '"c"',
}

# Attributes with a value that is right wherever the attribute is allowed at all.
FOREIGN = {
    "index": "0",
    "dimensions": "{0}",
    "direction": "EQ",
    "to_apply": "{ x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }",
    "channel_id": "1",
    "replica_groups": "{}",
    "window": "{size=1}",
    "operand_precision": "{high}",
    "result_accuracy": "{mode=default}",
    "calls": "{ ROOT x = f32[2] parameter(0) }",
    "async_execution_thread": '"main"',
    "is_stable": "true",
    "lower": "true",
    "slice_sizes": "{1}",
    "algorithm": "dot_f32_f32_f32",
    "indices_are_sorted": "true",
    "output_to_operand_aliasing": "{}",
    "custom_call_has_side_effect": "true",
    "type": "FLOAT",
    "feature_group_count": "1",
    "constrain_layout": "true",
    "is_host_transfer": "true",
    "k": "1",
    "literal": "f32[] 1",
}
FOREIGN_PER_OPCODE = 3


def whole(op: Minimal, instruction: str, setup: str = "") -> str:
    """The instruction as the root of an entry computation that declares its operands."""
    setup = "\n".join(part for part in (setup, op.setup) if part)
    body = f"{setup}\n{instruction}" if setup else instruction
    return module(body, computations=op.computations, parameters=op.operands)


def variants(op: Minimal) -> Iterator[tuple[str, str, str]]:
    """(name, text, expected verdict) for one opcode."""
    yield "minimal", whole(op, op.instruction()), ACCEPT
    inferred = op.instruction(shape="", attributes=op.required | op.for_inference)
    yield "no-result-shape", whole(op, inferred), ACCEPT if op.inferable else REJECT
    if op.for_inference:
        yield "no-result-shape-nor-attributes", whole(op, op.instruction(shape="")), ""
    yield "unverified-result-shape", whole(op, op.instruction(shape="f32[9,9]")), ""
    for name in op.required:
        rest = {key: value for key, value in op.required.items() if key != name}
        yield f"without-{name}", whole(op, op.instruction(attributes=rest)), ""
    for name, value in op.optional.items():
        yield f"with-{name}", whole(op, op.instruction(extra=f", {name}={value}")), ACCEPT
    if len(op.optional) > 1 and op.opcode not in ("custom-call", "dot"):
        everything = op.required | op.optional
        yield "all-attributes", whole(op, op.instruction(attributes=everything)), ACCEPT
    if len(op.required) > 1:
        backwards = dict(reversed(op.required.items()))
        yield "attributes-reversed", whole(op, op.instruction(attributes=backwards)), ACCEPT
    yield from foreign_attributes(op)
    tail = "".join(f", {name}={value}" for name, value in COMMON.items())
    yield "common-attributes", whole(op, op.instruction(extra=tail), "q = s32[] constant(1)"), ACCEPT
    for name, value in op.required.items():
        yield f"twice-{name}", whole(op, op.instruction(extra=f", {name}={value}")), REJECT
        break


def foreign_attributes(op: Minimal) -> Iterator[tuple[str, str, str]]:
    """A few attributes of other opcodes; which ones rotates, so that all of them are used."""
    own = set(op.required) | set(op.optional) | {"window", "convolution_kind"}
    start = sum(op.opcode.encode()) % len(FOREIGN)
    rotated = list(FOREIGN.items())[start:] + list(FOREIGN.items())[:start]
    chosen = [(name, value) for name, value in rotated if name not in own][:FOREIGN_PER_OPCODE]
    for name, value in chosen:
        yield f"foreign-{name}", whole(op, op.instruction(extra=f", {name}={value}")), ""


def operand_counts(op: Minimal) -> Iterator[tuple[str, str, str]]:
    """One operand too many, one too few, none at all."""
    if op.payload is not None:
        return
    names = op.operand_names()
    wrong = "" if op.any_count else REJECT
    more = ", ".join([*names, names[-1] if names else "z"])
    setup = "" if names else "z = f32[] constant(0)"
    yield "one-operand-more", whole(op, op.instruction(operands=more), setup), wrong
    if names:
        fewer = ", ".join(names[:-1])
        yield "one-operand-less", whole(op, op.instruction(operands=fewer)), wrong
    if len(names) > 1:
        yield "no-operands", whole(op, op.instruction(operands="")), wrong


def inferred_operand_counts(op: Minimal) -> Iterator[tuple[str, str, str]]:
    """Where the parser counts nothing, shape inference may."""
    if op.any_count and op.inferable and len(op.operands) > 1:
        names = op.operand_names()
        fewer, more = ", ".join(names[:-1]), ", ".join([*names, names[-1]])
        yield "inferred-one-operand-less", whole(op, op.instruction(shape="", operands=fewer)), ""
        yield "inferred-one-operand-more", whole(op, op.instruction(shape="", operands=more)), ""


def probes() -> Iterator[Probe]:
    for op in minimal_instructions():
        row = reference_row(op.opcode)
        for make in (variants, operand_counts, inferred_operand_counts):
            for name, text, expected in make(op):
                yield Probe(f"opcodes/{op.opcode}/{name}", row, text, expected)
    wrong = ("foo", "Add", "ADD", "add_", "all_reduce", "kAdd", "tuple-element", "f32", "constant-start-start", "add.1", "%add", "cross-replica-sum", "equal-to", "trace")
    for name in wrong:
        text = module(f"ROOT r = f32[2] {name}(p0, p0)", parameters=["f32[2]"])
        yield Probe(f"opcodes/unknown/{name}", "8:unknown opcode", text, REJECT)
