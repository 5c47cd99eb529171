"""Where arrays are after `Module.what_if()`: in fast memory or in HBM; batches of one sequence."""

import re
import sys
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "benches"))

import what_if_accuracy

pytestmark = pytest.mark.once

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
