"""Collectives of inner loops that send the same in each iteration of an outer loop, and arrays that are gathered and cut
again: small programs. Train steps are in `test_lint_kinds.py`."""

import pytest

import hlofast
from hlofast import Finding
from lint_programs import ADD, ALL, GATHERED_AND_CUT, PAIRS

STATE = "(s32[], f32[16,32], f32[8,16,32])"


def condition(name: str, trips: int) -> str:
    return f"""
{name} {{
  s = {STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant({trips})
  ROOT less = pred[] compare(i, n), direction=LT
}}
"""


HEAD = f"""s = {STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[16,32] get-tuple-element(s), index=1
  stack = f32[8,16,32] get-tuple-element(s), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)"""
# Two loops over eight layers, forward and back, in each of four microbatches.
LAYERS = f"""
LAYER {{
  {HEAD}
  last = s32[] constant(7)
  back = s32[] subtract(last, i)
  next = s32[] add(i, one)
  d = f32[1,16,32] dynamic-slice(stack, AT, zero, zero), dynamic_slice_sizes={{1,16,32}}
  w = f32[16,32] reshape(d)
  whole = f32[64,32] all-gather(w), {ALL}, dimensions={{0}}
  part = f32[16,32] slice(whole), slice={{[16:32], [0:32]}}
  y = f32[16,32] multiply(x, part)
  ROOT t = {STATE} tuple(next, y, stack)
}}
"""
STEP = f"""
step {{
  {HEAD}
  next = s32[] add(i, one)
  before = {STATE} tuple(zero, x, stack)
  f = {STATE} while(before), condition=layers, body=forward
  y = f32[16,32] get-tuple-element(f), index=1
  kept = f32[8,16,32] get-tuple-element(f), index=2
  between = {STATE} tuple(zero, y, kept)
  b = {STATE} while(between), condition=layers, body=backward
  z = f32[16,32] get-tuple-element(b), index=1
  after = f32[8,16,32] get-tuple-element(b), index=2
  ROOT t = {STATE} tuple(next, z, after)
}}
"""
ENTRY = f"""
  x = f32[16,32] parameter(0)
  stack = f32[8,16,32] parameter(1)
  zero = s32[] constant(0)
  s = {STATE} tuple(zero, x, stack)
  l = {STATE} while(s), condition=steps, body=step
  ROOT r = f32[16,32] get-tuple-element(l), index=1
"""
FORWARD = LAYERS.replace("LAYER", "forward").replace("AT,", "i,")
BACKWARD = LAYERS.replace("LAYER", "backward").replace("AT,", "back,")


def lint(body: str, before: str) -> list[Finding]:
    text = f"HloModule m, num_partitions=4\n\n{before}\n\nENTRY e {{\n{body}\n}}\n"
    return list(hlofast.loads(text, strict=True).lint())


def both(forward: str = FORWARD, backward: str = BACKWARD, step: str = STEP) -> list[Finding]:
    loops = condition("layers", 8) + condition("steps", 4)
    return lint(ENTRY, ADD + loops + forward + backward + step)


def test_gathers_of_layers_in_each_microbatch() -> None:
    (finding,) = both()
    assert finding.code == "loop-invariant-collective"
    # Of two gathers of eight layers in four microbatches, one of eight layers is left.
    once = 8 * 64 * 32 * 4
    assert finding.bytes == 2 * 4 * once - once
    assert finding.figures["held_bytes"] == once
    assert finding.figures["spared_executions"] == 2 * 8 * 4 - 8
    assert "in a loop inside a loop of 4 iterations" in finding.message
    assert "before the loop over microbatches" in finding.remedy


@pytest.mark.parametrize(("width", "is_found"), [(32, True), (1 << 23, False)])
def test_weights_that_do_not_fit_the_device_are_left_out(width: int, is_found: bool) -> None:
    loops = condition("layers", 8) + condition("steps", 4)
    program = ADD + loops + FORWARD + BACKWARD + STEP + f"\nENTRY e {{\n{ENTRY}\n}}\n"
    program = program.replace("32]", f"{width}]").replace("16,32}", f"16,{width}}}")
    text = f"HloModule m, num_partitions=4, is_scheduled=true\n\n{program}"
    # 17 GB of weights in 16 GB of memory.
    found = hlofast.loads(text, strict=True, device="tpu-v5e").lint()
    assert bool(found.of("loop-invariant-collective")) == is_found
    assert hlofast.loads(text, strict=True).lint().of("loop-invariant-collective")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The weights are updated in each microbatch.
        ("tuple(next, z, after)", "tuple(next, z, changed)"),
        # What is gathered is computed from the activations.
        ("tuple(zero, x, stack)", "tuple(zero, x, changed)"),
    ],
)
def test_weights_that_change_are_gathered_anew(old: str, new: str) -> None:
    changed = "  wide = f32[8,16,32] broadcast(x), dimensions={1,2}\n"
    changed += "  changed = f32[8,16,32] add(stack, wide)\n  before ="
    step = STEP.replace(old, new).replace("  before =", changed)
    found = both(step=step)
    # The second loop reads what the first one hands on.
    assert [own.code for own in found] == []


def test_weights_that_a_loop_inside_updates_are_gathered_anew() -> None:
    forward = FORWARD.replace("tuple(next, y, stack)", "tuple(next, y, more)").replace(
        "  y =",
        "  e = f32[1,16,32] reshape(x)\n"
        "  more = f32[8,16,32] dynamic-update-slice(stack, e, i, zero, zero)\n  y =",
    )
    assert forward != FORWARD
    assert both(forward=forward) == []


def test_parts_that_devices_take_back() -> None:
    taken = GATHERED_AND_CUT.replace("x = f32[64,16]", "x = f32[16,64]").replace(
        "dimensions={1}", "dimensions={0}"
    )
    (finding,) = lint(taken, ADD)
    assert finding.code == "full-rematerialisation"
    assert "takes back the part that it gave" in finding.message
    assert finding.bytes == 64 * 64 * 4
    assert finding.figures["payload_bytes_after"] == 0
    # Devices of the second group take each other's parts.
    pairs = taken.replace(ALL, PAIRS).replace("f32[16,", "f32[32,").replace("={16,", "={32,")
    for starts, is_own in [("0, 32, 0, 32", True), ("0, 32, 32, 0", False)]:
        (finding,) = lint(pairs.replace("0, 16, 32, 48", starts), ADD)
        assert ("takes back the part that it gave" in finding.message) == is_own
    # Another device's part has to be sent.
    shifted = taken.replace("whole =", "moved = s32[] subtract(far, at)\n  whole =").replace(
        "(whole, at,", "(whole, moved,"
    )
    shifted = shifted.replace("moved =", "far = s32[] constant(48)\n  moved =")
    (finding,) = lint(shifted, ADD)
    assert "uses only a slice" in finding.message


def test_gathers_of_other_weights_are_left_too() -> None:
    # Two arrays of weights in one tuple, of which the backward pass reads the second one.
    state = STATE.replace("])", "], f32[8,16,32])")
    step = (
        STEP.replace(f"s = {STATE}", f"s = {state}")
        .replace("  between =", "  own = f32[8,16,32] get-tuple-element(s), index=3\n  between =")
        .replace("tuple(zero, y, kept)", "tuple(zero, y, own)")
        .replace(
            f"ROOT t = {STATE} tuple(next, z, after)",
            f"ROOT t = {state} tuple(next, z, kept, after)",
        )
    )
    weights = """
  p = (f32[8,16,32], f32[8,16,32]) parameter(1)
  stack = f32[8,16,32] get-tuple-element(p), index=0
  own = f32[8,16,32] get-tuple-element(p), index=1
"""
    entry = (
        ENTRY.replace(STATE, state)
        .replace("  stack = f32[8,16,32] parameter(1)", weights)
        .replace("tuple(zero, x, stack)", "tuple(zero, x, stack, own)")
    )
    loops = condition("layers", 8) + condition("steps", 4).replace(STATE, state)
    (finding,) = lint(entry, ADD + loops + FORWARD + BACKWARD + step)
    assert finding.figures["held_bytes"] == 2 * 8 * 64 * 32 * 4


def test_gathers_of_other_parts_are_left_too() -> None:
    # The backward pass reads the second half of what is stored for a layer.
    backward = BACKWARD.replace("back, zero, zero", "back, half, zero")
    backward = backward.replace("  zero =", "  half = s32[] constant(16)\n  zero =")
    loops = condition("layers", 8) + condition("steps", 4)
    program = ADD + loops + FORWARD + backward + STEP
    (finding,) = lint(ENTRY.replace("[8,16,", "[8,32,"), program.replace("[8,16,", "[8,32,"))
    assert finding.figures["held_bytes"] == 2 * 8 * 64 * 32 * 4


def test_sums_are_not_part_of_a_gather() -> None:
    summed = BACKWARD.replace(
        f"whole = f32[64,32] all-gather(w), {ALL}, dimensions={{0}}",
        f"sum = f32[16,32] all-reduce(w), {ALL}, to_apply=add",
    ).replace(
        "part = f32[16,32] slice(whole), slice={[16:32], [0:32]}", "part = f32[16,32] copy(sum)"
    )
    found = both(backward=summed)
    assert {own.code for own in found} == {"loop-invariant-collective"}
    # One gather and one sum of eight layers are left.
    assert sum(own.figures["spared_executions"] for own in found) == 2 * 8 * 3


OUTERMOST = f"""
all {{
  {HEAD}
  next = s32[] add(i, one)
  before = {STATE} tuple(zero, x, stack)
  l = {STATE} while(before), condition=steps, body=step
  y = f32[16,32] get-tuple-element(l), index=1
  STACK
  ROOT t = {STATE} tuple(next, y, kept)
}}
"""


@pytest.mark.parametrize("trips", [1, 5])
@pytest.mark.parametrize("is_updated", [False, True])
def test_microbatches_in_a_loop_over_steps(trips: int, is_updated: bool) -> None:
    stack = "kept = f32[8,16,32] get-tuple-element(l), index=2"
    if is_updated:
        stack = "wide = f32[8,16,32] broadcast(y), dimensions={1,2}\n  kept = f32[8,16,32] add(stack, wide)"
    loops = condition("layers", 8) + condition("steps", 4) + condition("all_steps", trips)
    entry = ENTRY.replace("condition=steps, body=step", "condition=all_steps, body=all")
    found = lint(entry, ADD + loops + FORWARD + BACKWARD + STEP + OUTERMOST.replace("STACK", stack))
    (finding,) = [own for own in found if own.code == "loop-invariant-collective"]
    assert finding.figures["held_bytes"] == 8 * 64 * 32 * 4
    is_outer = trips > 1 and not is_updated
    assert finding.figures["trip_count"] == (trips if is_outer else 4)
    left = 8 if is_outer else 8 * trips
    assert finding.figures["spared_executions"] == 2 * 8 * 4 * trips - left


@pytest.mark.parametrize(("depth", "times"), [(20_000, 1), (40, 7)])
def test_loops_in_loops_without_end(depth: int, times: int) -> None:
    state = "(s32[], f32[16,32])"
    bodies = []
    for at in range(depth):
        inside = "\n".join(
            f"  t{i} = {state} tuple(zero, x{i})\n"
            f"  l{i} = {state} while(t{i}), condition=again, body=b{at - 1}\n"
            f"  x{i + 1} = f32[16,32] get-tuple-element(l{i}), index=1"
            for i in range(times if at else 0)
        )
        if at == depth - 1:
            inside += f"\n  whole = f32[64,32] all-gather(x{times}), {ALL}, dimensions={{0}}"
        bodies.append(f"""
b{at} {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x0 = f32[16,32] get-tuple-element(s), index=1
  zero = s32[] constant(0)
  one = s32[] constant(1)
  next = s32[] add(i, one)
{inside}
  ROOT t = {state} tuple(next, x{times if at else 0})
}}
""")
    entry = f"""
  x = f32[16,32] parameter(0)
  zero = s32[] constant(0)
  s = {state} tuple(zero, x)
  l = {state} while(s), condition=again, body=b{depth - 1}
  ROOT r = f32[16,32] get-tuple-element(l), index=1
"""
    found = lint(entry, condition("again", 2).replace(STATE, state) + "".join(bodies))
    # What is too deep is not followed; without a bound, this does not end.
    assert found == []
