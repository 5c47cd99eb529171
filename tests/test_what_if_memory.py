"""Where arrays are after `Module.what_if()`: in fast memory or in HBM; batches of one sequence."""

import re
import sys
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "benches"))

import what_if_accuracy

ONE = """\
HloModule one, is_scheduled=true, num_partitions=4

ENTRY main {
  tokens = s32[1,16] parameter(0), sharding={devices=[4,1]<=[4]}, metadata={op_name="batch['tokens']"}
  table = f32[100,64] parameter(1), sharding={replicated}, metadata={op_name="parameters['embedding']"}
  x = f32[1,16,64] gather(table, tokens), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,64}
  angle = f32[16,64] iota(), iota_dimension=0
  angles = f32[1,16,64] broadcast(angle), dimensions={1,2}
  turned = f32[1,16,64] multiply(x, angles)
  kernel = f32[16,64] custom-call(turned), custom_call_target="kernel"
  again = f32[16,64] multiply(kernel, angle)
  ROOT out = (f32[16,64], f32[1,16,64]) tuple(again, turned)
}
"""

PASSED = """\
HloModule passed, is_scheduled=true, num_partitions=4

double {
  p = f32[16,64] parameter(0)
  ROOT twice = f32[16,64] add(p, p)
}

body {
  state = (s32[], f32[16,64], f32[16,64], f32[1,16,64]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  old = f32[16,64] get-tuple-element(state), index=1
  fixed = f32[16,64] get-tuple-element(state), index=2
  x = f32[1,16,64] get-tuple-element(state), index=3
  alone = f32[16,64] custom-call(x), custom_call_target="kernel"
  kernel = f32[16,64] multiply(alone, fixed)
  one = s32[] constant(1)
  next = s32[] add(i, one)
  ROOT t = (s32[], f32[16,64], f32[16,64], f32[1,16,64]) tuple(next, kernel, fixed, x)
}

condition {
  state = (s32[], f32[16,64], f32[16,64], f32[1,16,64]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(6)
  ROOT less = pred[] compare(i, n), direction=LT
}

ENTRY main {
  tokens = s32[1,16] parameter(0), sharding={devices=[4,1]<=[4]}, metadata={op_name="batch['tokens']"}
  table = f32[100,64] parameter(1), sharding={replicated}, metadata={op_name="parameters['embedding']"}
  x = f32[1,16,64] gather(table, tokens), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,64}
  zero = s32[] constant(0)
  angle = f32[16,64] iota(), iota_dimension=0
  angles = f32[1,16,64] broadcast(angle), dimensions={1,2}
  turned = f32[1,16,64] multiply(x, angles)
  first = f32[16,64] custom-call(turned), custom_call_target="kernel"
  begin = (s32[], f32[16,64], f32[16,64], f32[1,16,64]) tuple(zero, first, angle, turned)
  loop = (s32[], f32[16,64], f32[16,64], f32[1,16,64]) while(begin), condition=condition, body=body
  moved = f32[16,64] get-tuple-element(loop), index=1
  still = f32[16,64] get-tuple-element(loop), index=2
  called = f32[16,64] call(moved), to_apply=double
  ROOT out = (f32[16,64], f32[16,64]) tuple(called, still)
}
"""

WAITS = """\
HloModule waits, is_scheduled=true

ENTRY main {
  tokens = s32[4,1024] parameter(0), metadata={op_name="batch['tokens']"}
  table = f32[100,1024] parameter(1), metadata={op_name="parameters['embedding']"}
  x = f32[4,1024,1024]{2,1,0} gather(table, tokens), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,1024}
  start = (f32[4,1024,1024]{2,1,0:S(1)}, f32[4,1024,1024]{2,1,0}, u32[]{:S(2)}) copy-start(x)
  done = f32[4,1024,1024]{2,1,0:S(1)} copy-done(start)
  y = f32[4,1024,1024]{2,1,0} negate(done)
  z = f32[4,1024,1024]{2,1,0} negate(x), control-predecessors={start, y, done}
  w = f32[4,1024,1024]{2,1,0} negate(x), control-predecessors={done}
  ROOT out = (f32[4,1024,1024]{2,1,0}, f32[4,1024,1024]{2,1,0}, f32[4,1024,1024]{2,1,0}) tuple(y, z, w)
}
"""


def shapes_of(module: hlofast.Module) -> dict[str, str]:
    """By name: the shape of an instruction, without layouts."""
    found = re.findall(
        r"^ +(?:ROOT )?%?([\w.-]+) = (\w+\[[\d,]*\])", module.to_text(), re.MULTILINE
    )
    return dict(found)


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[str, int], tuple[dict[str, Any], hlofast.Module]]:
    """The committed variants, by program and number."""
    return {
        (record["program"], record["variant"]): (
            record,
            hlofast.loads(text).with_context(
                mesh=record["mesh"], device=what_if_accuracy.device_of(record["chips"])
            ),
        )
        for record, text in what_if_accuracy.committed()
    }


def moves(module: hlofast.Module) -> list[tuple[str, str]]:
    """The memory spaces between which copies that run beside the program move."""
    text = module.to_text()
    found = re.findall(r" = \((\S+), (\S+), \S+\) copy-start\(", text)
    return [("S(1)" in to, "S(1)" in source) for to, source in found]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch", ["2x", "8x"])
def test_what_leaves_fast_memory_is_not_moved_there(compiled: Any, batch: str) -> None:
    _, module = compiled["tensor_v5e", 5]
    changed = module.what_if(batch=batch).changed
    assert all(to != source for to, source in moves(module))
    assert all(to != source for to, source in moves(changed))
    fast = [own.memory()._account()["fast_peak_in_bytes"] for own in (module, changed)]
    assert fast[1] <= max(fast[0], 1 << 25)


@pytest.mark.parametrize(("batch", "waits"), [
    ("1x", {"z": ["start", "y", "done"], "w": ["done"]}),
    ("8x", {"z": ["y"]}),
])  # fmt: skip
def test_nothing_waits_for_moves_that_vanish(batch: str, waits: dict[str, list[str]]) -> None:
    """With eight times the batch, 128 MiB do not fit fast memory."""
    changed = hlofast.loads(WAITS).what_if(batch=batch).changed
    found = re.findall(r"%?(\w+) = .*control-predecessors={([^}]*)}", changed.to_text())
    assert {name: re.findall(r"\w+", names) for name, names in found} == waits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("other", [0, 1, 3, 4])
def test_prefetches_of_a_small_batch_are_no_copies_of_a_large_one(
    compiled: Any, other: int
) -> None:
    """The compiler prefetches a whole stack of layers in parts if it fits fast memory."""
    record, module = compiled["tensor_v5e", 5]
    wanted, target = compiled["tensor_v5e", other]
    sizes = {role: wanted[role] for role in what_if_accuracy.SIZES if wanted[role] != record[role]}
    result = module.what_if(**sizes, mesh=wanted["mesh"])
    assert result.figures["xla_peak"][1] == pytest.approx(target.memory().xla_peak, rel=0.05)


@pytest.mark.parametrize(("batch", "rows"), [(4, 16), (8, 32), (16, 64)])
def test_arrays_that_lost_the_only_sequence_of_a_device_get_all(batch: int, rows: int) -> None:
    module = hlofast.loads(ONE).with_context(mesh="data=4")
    shapes = shapes_of(module.what_if(batch=batch).changed)
    assert shapes["kernel"] == shapes["again"] == f"f32[{rows},64]"
    # What is computed from nothing has no batch.
    assert shapes["angle"] == "f32[16,64]"
    assert shapes["turned"] == f"f32[{batch // 4},16,64]"


def test_long_chains_of_fusions_pass_the_sequences_on() -> None:
    """The core's own tests count the steps of work."""
    count = 20_000
    called, fused = "", ""
    for number in range(count):
        called += f"c{number} {{\n  p = f32[1,16,64] parameter(0)\n"
        called += "  ROOT n = f32[1,16,64] negate(p)\n}\n\n"
        operand = f"f{number - 1}" if number else "turned"
        fused += f"  f{number} = f32[1,16,64] fusion({operand}), kind=kLoop, calls=c{number}\n"
    text = ONE.replace("ENTRY", called + "ENTRY").replace("  kernel =", fused + "  kernel =")
    text = text.replace("custom-call(turned)", f"custom-call(f{count - 1})")
    module = hlofast.loads(text).with_context(mesh="data=4")
    shapes = shapes_of(module.what_if(batch="2x").changed)
    assert shapes[f"f{count - 1}"] == "f32[2,16,64]"
    assert shapes["kernel"] == shapes["again"] == "f32[32,64]"


def test_arrays_computed_through_tuples_loops_and_calls_get_all_sequences() -> None:
    """Elements of tuples are followed apart."""
    module = hlofast.loads(PASSED).with_context(mesh="data=4")
    shapes = shapes_of(module.what_if(batch=8).changed)
    assert shapes["kernel"] == shapes["called"] == "f32[32,64]"
    assert shapes["still"] == "f32[16,64]"
