"""Collectives of inner loops that send the same in each iteration of an outer loop, and arrays that are gathered and cut
again: small programs. Train steps are in `test_lint_kinds.py`."""

import pytest

import hlofast
from hlofast import Finding
from lint_programs import ADD, ALL, GATHERED_AND_CUT

INNER = "(s32[], f32[16,32], f32[8,16,32])"
OUTER = "(s32[], f32[16,32], f32[8,16,32])"


def condition(name: str, trips: int) -> str:
    return f"""
{name} {{
  s = {INNER} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant({trips})
  ROOT less = pred[] compare(i, n), direction=LT
}}
"""


# Two loops over eight layers, forward and back, in each of four microbatches.
LAYERS = f"""
LAYER {{
  s = {INNER} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[16,32] get-tuple-element(s), index=1
  stack = f32[8,16,32] get-tuple-element(s), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  last = s32[] constant(7)
  back = s32[] subtract(last, i)
  next = s32[] add(i, one)
  d = f32[1,16,32] dynamic-slice(stack, AT, zero, zero), dynamic_slice_sizes={{1,16,32}}
  w = f32[16,32] reshape(d)
  whole = f32[64,32] all-gather(w), {ALL}, dimensions={{0}}
  part = f32[16,32] slice(whole), slice={{[16:32], [0:32]}}
  y = f32[16,32] multiply(x, part)
  ROOT t = {INNER} tuple(next, y, stack)
}}
"""
STEP = f"""
step {{
  s = {OUTER} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[16,32] get-tuple-element(s), index=1
  stack = f32[8,16,32] get-tuple-element(s), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  next = s32[] add(i, one)
  before = {INNER} tuple(zero, x, stack)
  f = {INNER} while(before), condition=layers, body=forward
  y = f32[16,32] get-tuple-element(f), index=1
  kept = f32[8,16,32] get-tuple-element(f), index=2
  between = {INNER} tuple(zero, y, kept)
  b = {INNER} while(between), condition=layers, body=backward
  z = f32[16,32] get-tuple-element(b), index=1
  after = f32[8,16,32] get-tuple-element(b), index=2
  ROOT t = {OUTER} tuple(next, z, after)
}}
"""
ENTRY = f"""
  x = f32[16,32] parameter(0)
  stack = f32[8,16,32] parameter(1)
  zero = s32[] constant(0)
  s = {OUTER} tuple(zero, x, stack)
  l = {OUTER} while(s), condition=steps, body=step
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
    # Another device's part has to be sent.
    shifted = taken.replace("whole =", "moved = s32[] subtract(far, at)\n  whole =").replace(
        "(whole, at,", "(whole, moved,"
    )
    shifted = shifted.replace("moved =", "far = s32[] constant(48)\n  moved =")
    (finding,) = lint(shifted, ADD)
    assert "uses only a slice" in finding.message
