"""Generated texts of any size, for the benches of growth and of two threads.

python benches/generate.py NAME SIZE > FILE
"""

import sys
from collections.abc import Callable, Iterator

ARRAY = "f32[128,256]{1,0}"
BODY_LENGTH = 12  # Instructions of a fused computation.
OPCODES = ("add", "multiply", "subtract", "maximum", "exponential", "negate")
UNARY = frozenset({"exponential", "negate"})


class Numbers:
    """A linear congruential sequence: the same text on every machine and Python version."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def below(self, limit: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit


def _metadata(number: int) -> str:
    layer, line = number // 40 % 32, number % 400 + 1
    path = f"jit(train_step)/decoder/layer_{layer}/mlp/linear"
    place = f'source_file="/src/model/layers.py" source_line={line}'
    return f', metadata={{op_name="{path}" {place}}}'


def _bare(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        instruction, separator, _ = line.partition(", metadata=")
        yield f"{instruction}\n" if separator else line


def _operand(numbers: Numbers, names: list[str], count: int) -> str:
    """An operand: mostly a recent instruction; sometimes, as in a backward pass, a result of the
    first half in reverse order. `count` is the number of instructions."""
    recent = names[-1 - numbers.below(min(len(names), 16))]
    if numbers.below(8):
        return recent
    mirrored = count - len(names) + numbers.below(16)
    return names[mirrored] if mirrored < len(names) else recent


def _elementwise(numbers: Numbers, names: list[str], number: int, count: int) -> str:
    opcode = OPCODES[numbers.below(len(OPCODES))]
    arity = 1 if opcode in UNARY else 2
    operands = ", ".join(f"%{_operand(numbers, names, count)}" for _ in range(arity))
    return f"  %op.{number} = {ARRAY} {opcode}({operands}){_metadata(number)}\n"


def _computation(numbers: Numbers, name: str, length: int, first: int) -> Iterator[str]:
    yield f"%{name} (param_0.{first}: f32[128,256]) -> f32[128,256] {{\n"
    names = [f"param_0.{first}"]
    yield f"  %{names[0]} = {ARRAY} parameter(0)\n"
    for number in range(first + 1, first + length):
        line = _elementwise(numbers, names, number, length)
        names.append(f"op.{number}")
        yield line if number + 1 < first + length else line.replace("  %", "  ROOT %", 1)
    yield "}\n\n"


def _module(name: str) -> str:
    layout = f"{{({ARRAY})->{ARRAY}}}"
    return f"HloModule {name}, is_scheduled=true, entry_computation_layout={layout}\n\n"


def _entry(
    numbers: Numbers, first: int, last: int, callees: list[str], every: int
) -> Iterator[str]:
    yield f"ENTRY %main.{first} (p.{first}: f32[128,256]) -> f32[128,256] {{\n"
    names = [f"p.{first}"]
    yield f"  %{names[0]} = {ARRAY} parameter(0)\n"
    callees = callees[::-1]
    for number in range(first + 1, last):
        root = "ROOT " if number + 1 == last else ""
        if callees and number % every == 0:
            name = f"fusion.{number}"
            call = f"kind=kLoop, calls=%{callees.pop()}"
            operand = _operand(numbers, names, last - first)
            line = f"  %{name} = {ARRAY} fusion(%{operand}), {call}{_metadata(number)}\n"
        else:
            name = f"op.{number}"
            line = _elementwise(numbers, names, number, last - first)
        names.append(name)
        yield line.replace("  %", f"  {root}%", 1)
    yield "}\n"


def instructions(count: int) -> Iterator[str]:
    """`count` instructions, half of them in fused computations. Tuples have no metadata."""
    numbers = Numbers(1)
    yield _module("growth")
    callees, done = [], 0
    while done + BODY_LENGTH <= count // 2:
        callees.append(f"fused_computation.{len(callees)}")
        yield from _bare(_computation(numbers, callees[-1], BODY_LENGTH, done))
        done += BODY_LENGTH
    yield from _bare(_entry(numbers, done, count, callees, BODY_LENGTH))


def giant(count: int) -> Iterator[str]:
    """`count` instructions in one computation."""
    yield _module("giant")
    yield from _entry(Numbers(2), 0, count, [], 1)


def similar(count: int) -> Iterator[str]:
    """`count` instructions in twelve computations of the same length."""
    numbers = Numbers(3)
    yield _module("similar")
    length, callees = count // 12, []
    for part in range(11):
        callees.append(f"stage_{part}.{part}")
        yield from _computation(numbers, callees[-1], length, part * length)
    yield from _entry(numbers, 11 * length, count, callees, length // 12)


def untyped_tuple(elements: int) -> Iterator[str]:
    """A tuple with a get-tuple-element for each element, operands without types."""
    yield "HloModule untyped_tuple\n\n"
    yield f"ENTRY %main.0 (state.0: ({', '.join(['f32[64]'] * elements)})) -> f32[64] {{\n"
    yield f"  %state.0 = ({', '.join(['f32[64]{0}'] * elements)}) parameter(0)\n"
    for index in range(elements):
        root = "ROOT " if index + 1 == elements else ""
        yield f"  {root}%get.{index} = f32[64]{{0}} get-tuple-element(%state.0), index={index}\n"
    yield "}\n"


def typed_tuple(elements: int) -> Iterator[str]:
    """The same in the form of old dumps: each get-tuple-element repeats the type of the tuple."""
    whole = f"({', '.join(['f32[8]{0}'] * elements)})"
    yield "HloModule typed_tuple\n\n"
    yield f"ENTRY %main.0 (state.0: ({', '.join(['f32[8]'] * elements)})) -> f32[8] {{\n"
    yield f"  %state.0 = {whole} parameter(0)\n"
    for index in range(elements):
        root = "ROOT " if index + 1 == elements else ""
        name = f"{root}%get.{index}"
        yield f"  {name} = f32[8]{{0}} get-tuple-element({whole} %state.0), index={index}\n"
    yield "}\n"


def header_line(size: int) -> Iterator[str]:
    """A small module whose first line takes `size` bytes."""
    yield "HloModule header_line, frontend_attributes={"
    written = index = 0
    while written < size:
        item = f'{"," if index else ""}option_{index}="{{{index}}}"'
        written, index = written + len(item), index + 1
        yield item
    yield "}\n\nENTRY %main.0 (p.0: f32[8]) -> f32[8] {\n"
    yield "  %p.0 = f32[8]{0} parameter(0)\n  ROOT %negate.1 = f32[8]{0} negate(%p.0)\n}\n"


_LAYERS = 16
_ROWS_OF_VALUE = 100
"""Instructions of both bodies of `scan` for each value that a policy could save."""


def scan(count: int) -> Iterator[str]:
    """A scheduled step of `count` instructions; its scan over layers keeps a matmul per 100."""
    values, chain = max(count // _ROWS_OF_VALUE, 1), (_ROWS_OF_VALUE - 12) // 2
    act, stack = "bf16[1024,1024]{1,0}", f"bf16[{_LAYERS},1024,1024]{{2,1,0}}"
    weight = act
    state = f"(s32[], {act}, {weight}" + f", {stack}" * values + ")"
    count_of = f'backend_config={{"known_trip_count":{{"n":"{_LAYERS}"}}}}'

    def named(phase: str, last: str) -> str:
        return f', metadata={{op_name="jit(step)/{phase}/while/body/closed_call/{last}"}}'

    yield "HloModule scan, is_scheduled=true\n\n"
    for phase, name in (("jvp()", "forward"), ("transpose(jvp())", "backward")):
        yield f"%{name} (state.{name}: {state}) -> {state} {{\n"
        yield f"  %state.{name} = {state} parameter(0)\n"
        for at, shape in enumerate(["s32[]", act, weight]):
            yield f"  %in.{name}.{at} = {shape} get-tuple-element(%state.{name}), index={at}\n"
        yield f"  %one.{name} = s32[] constant(1)\n  %zero.{name} = s32[] constant(0)\n"
        yield f"  %next.{name} = s32[] add(%in.{name}.0, %one.{name})\n"
        now = f"in.{name}.1"
        made = []
        for value in range(values) if name == "forward" else reversed(range(values)):
            at, kept = f"{name}.{value}", f"stack.{name}.{value}"
            index = f"%in.{name}.0, %zero.{name}, %zero.{name}"
            yield f"  %{kept} = {stack} get-tuple-element(%state.{name}), index={value + 3}\n"
            dots = "lhs_contracting_dims={1}, rhs_contracting_dims={0}" + named(
                phase, "dot_general"
            )
            if name == "forward":
                yield f"  %dot.{at} = {act} dot(%{now}, %in.{name}.2), {dots}\n"
                now = f"dot.{at}"
                yield f"  %part.{at} = bf16[1,1024,1024]{{2,1,0}} bitcast(%{now})\n"
                yield f"  %put.{at} = {stack} dynamic-update-slice(%{kept}, %part.{at}, {index})\n"
                made.append(f"%put.{at}")
            else:
                sizes = "dynamic_slice_sizes={1,1024,1024}"
                part = f"bf16[1,1024,1024]{{2,1,0}} dynamic-slice(%{kept}, {index}), {sizes}"
                yield f"  %part.{at} = {part}\n  %read.{at} = {act} bitcast(%part.{at})\n"
                both = f"multiply(%{now}, %read.{at})" + named(phase, "mul")
                yield f"  %both.{at} = {act} {both}\n"
                yield f"  %dot.{at} = {act} dot(%both.{at}, %in.{name}.2), {dots}\n"
                now = f"dot.{at}"
                made.append(f"%{kept}")
            for step in range(chain):
                last = "tanh" if step % 2 else "mul"
                work = f"tanh(%{now})" if step % 2 else f"multiply(%{now}, %{now})"
                yield f"  %op.{at}.{step} = {act} {work}{named(phase, last)}\n"
                now = f"op.{at}.{step}"
        if name == "backward":
            made.reverse()
        results = ", ".join([f"%next.{name}", f"%{now}", f"%in.{name}.2", *made])
        yield f"  ROOT %out.{name} = {state} tuple({results})\n}}\n\n"
        yield f"%until.{name} (own.{name}: {state}) -> pred[] {{\n"
        yield f"  %own.{name} = {state} parameter(0)\n"
        yield f"  %at.{name} = s32[] get-tuple-element(%own.{name}), index=0\n"
        yield f"  %most.{name} = s32[] constant({_LAYERS})\n"
        compare = f"compare(%at.{name}, %most.{name}), direction=LT"
        yield f"  ROOT %less.{name} = pred[] {compare}\n}}\n\n"
    yield f"ENTRY %main (x: {act}, w: {weight}) -> {act} {{\n"
    yield f"  %x = {act} parameter(0)\n  %w = {weight} parameter(1)\n"
    yield "  %zero = s32[] constant(0)\n  %fill = bf16[] constant(0)\n"
    empty = []
    for value in range(values):
        yield f"  %empty.{value} = {stack} broadcast(%fill), dimensions={{}}\n"
        empty.append(f"%empty.{value}")
    yield f"  %begin = {state} tuple(%zero, %x, %w, {', '.join(empty)})\n"
    bodies = "condition=%until.forward, body=%forward"
    yield f"  %up = {state} while(%begin), {bodies}{_while('jvp()')}, {count_of}\n"
    kept = []
    for value in range(values):
        yield f"  %kept.{value} = {stack} get-tuple-element(%up), index={value + 3}\n"
        kept.append(f"%kept.{value}")
    yield f"  %y = {act} get-tuple-element(%up), index=1\n"
    yield f"  %again = {state} tuple(%zero, %y, %w, {', '.join(kept)})\n"
    bodies = "condition=%until.backward, body=%backward"
    yield f"  %down = {state} while(%again), {bodies}{_while('transpose(jvp())')}, {count_of}\n"
    yield f"  ROOT %dx = {act} get-tuple-element(%down), index=1\n}}\n"


def _while(phase: str) -> str:
    return f', metadata={{op_name="jit(step)/{phase}/while"}}'


KINDS: dict[str, Callable[[int], Iterator[str]]] = {
    kind.__name__: kind
    for kind in (
        instructions, giant, similar, untyped_tuple, typed_tuple, header_line, scan,
    )
}  # fmt: skip


def text(kind: str, size: int) -> bytes:
    return "".join(KINDS[kind](size)).encode()


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in KINDS or not sys.argv[2].isdigit():
        print(f"usage: generate.py {{{','.join(KINDS)}}} SIZE", file=sys.stderr)
        return 2
    for piece in KINDS[sys.argv[1]](int(sys.argv[2])):
        sys.stdout.write(piece)
    return 0


if __name__ == "__main__":
    sys.exit(main())
