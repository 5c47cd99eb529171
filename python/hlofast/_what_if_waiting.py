"""Values that wait at the peak of a module for matmuls that could have run before.

The matmul of a weight's gradient may run at any time after its operands are there, and the compiler
runs it late to have work beside collectives. Its operands then live through the peak. How late
depends on costs that change with sizes, so that the peak is not decided where they are many.
"""

from __future__ import annotations

from hlofast import _memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._core import Instruction
    from hlofast._module import Module

_VIEWS = frozenset(("bitcast", "copy", "copy-done", "copy-start", "get-tuple-element"))
"""Opcodes that pass a value on."""
_MATMULS = ("convolution", "dot")
_HELD = frozenset(("gradient", "optimizer_state", "parameter"))
"""Classes of values that wait for no matmul."""
_MOST_CALLS = 64
"""Limit on the computations around a peak."""


def waiting(module: Module) -> int:
    """Returns the bytes that wait at the peak; 0 without a schedule."""
    memory = _memory.quiet(module)
    at = memory.at
    if at is None or "live" not in memory.tables:
        return 0
    places: dict[int, int] = {}
    """By computation around the peak: where it is."""
    started: dict[int, int] = {}
    """By computation: its last matmul or loop before the peak."""
    own: Instruction | None = at
    for _ in range(_MOST_CALLS):
        if own is None:
            break
        computation = own.computation
        places[computation.index] = own.index
        before = computation.instructions[: own.index]
        started[computation.index] = max(
            (one.index for one in before if one.opcode == "while" or _has_matmul(one)), default=-1
        )
        callers = computation.callers
        own = callers[0] if len(callers) else None
    total = 0
    for row in memory._alive(None).table:
        if row["class"] in _HELD or row["memory_space"]:
            continue
        value = module.instructions[row["instruction"]]
        key = value.computation.index
        if key not in places or value.opcode in ("parameter", "tuple", "while"):
            continue
        if value.opcode.startswith("all-gather"):
            continue  # Weights that are gathered ahead of their matmul.
        later = [user for user in _users(value) if user.index > places[key]]
        if later and all(_waits(user, started[key]) for user in later):
            total += row["bytes"]
    return total


def _users(value: Instruction) -> Iterator[Instruction]:
    stack = [value]
    while stack:
        for user in stack.pop().users:
            if user.opcode in _VIEWS:
                stack.append(user)
            else:
                yield user


def _has_matmul(own: Instruction) -> bool:
    inner = (one for computation in own.called_computations for one in computation.instructions)
    if own.opcode != "fusion":
        return own.opcode in _MATMULS
    return any(one.opcode in _MATMULS for one in inner)


def _waits(user: Instruction, started: int) -> bool:
    """Whether a matmul that makes less than it takes could have run before another that did."""
    if not _has_matmul(user) or any(_source(own) >= started for own in user.operands):
        return False
    return _bytes(user) < max((_bytes(operand) for operand in user.operands), default=0)


def _bytes(own: Instruction) -> int:
    """Bytes of the largest array of a value."""
    shapes = (own.shape,) if own.shape.is_array else own.shape.leaves()
    return max((shape.bytes or 0 for shape in shapes), default=0)


def _source(operand: Instruction) -> int:
    """Where an operand is made. What a collective beside the matmul makes does not keep it."""
    while operand.opcode in _VIEWS and operand.operands:
        operand = operand.operands[0]
    is_beside = operand.opcode == "async-start" or "async-collective" in operand.name
    return -1 if is_beside else operand.index
