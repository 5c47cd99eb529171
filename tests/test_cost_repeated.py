"""Matmuls that the compiler copied into several fusions count in HFU, not in MFU."""

from __future__ import annotations

import functools
import sys

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))
import policy_texts


@functools.cache
def cost(name: str) -> hlofast.Cost:
    return hlofast.loads(policy_texts.unpack("unlike2")[name]).cost()


def matmul_flops(name: str, phase: str | None = None) -> int:
    rows = cost(name).matmuls().to_pylist()
    return sum(row["flops"] for row in rows if phase in (None, row["phase"]))


@pytest.mark.parametrize(
    ("program", "above"), [("manual", 0.2), ("linen", 0.1), ("dit", 0.15), ("mae", 0.08)]
)
def test_without_copies_the_work_is_that_before_optimisation(program: str, above: float) -> None:
    compiled = matmul_flops(f"{program}.none")
    before = hlofast.loads(policy_texts.unpack("unlike2")[f"{program}.none.before"])
    devices = 1 if program == "manual" else before.summary().devices_together  # Inside shard_map.
    written = matmul_flops(f"{program}.none.before") / devices
    assert compiled / written - 1 >= above
    again = matmul_flops(f"{program}.none", "recompute")  # XLA rematerialises.
    copies = cost(f"{program}.none").repeated_matmul_flops
    assert (compiled - again - copies) / written == pytest.approx(1, abs=0.025)


@pytest.mark.parametrize("program", ["muon", "gemma", "t5"])
def test_programs_without_copies_have_none(program: str) -> None:
    found = cost(f"{program}.none")
    assert found.repeated_matmul_flops == 0
    assert all(note.code != "repeated-matmuls" for note in found.notes)


def test_mfu_leaves_copies_out_and_hfu_does_not() -> None:
    found = cost("manual.none")
    used = found.mfu(1.0, 1e15)
    again = found.repeated_matmul_flops + matmul_flops("manual.none", "recompute")
    assert used.matmul_hfu - used.matmul_mfu == pytest.approx(again / 1e15)
    assert used.hfu - used.mfu >= again / 1e15
    on_device = found.mfu(1.0, device=hlofast.devices.get("v5e"))
    share = again / matmul_flops("manual.none")
    assert on_device.matmul_mfu == pytest.approx(on_device.matmul_hfu * (1 - share))
    (note,) = (own for own in found.notes if own.code == "repeated-matmuls")
    assert note.figures["flops"] == found.repeated_matmul_flops
    assert "counted in HFU but not in MFU" in note.text


TWICE = """
HloModule twice, is_scheduled=true

inner.1 (p.1: bf16[64,128], q.1: bf16[128,256]) -> f32[64,256] {
  p.1 = bf16[64,128]{1,0} parameter(0)
  q.1 = bf16[128,256]{1,0} parameter(1)
  dot.1 = bf16[64,256]{1,0} dot(p.1, q.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT c.1 = f32[64,256]{1,0} convert(dot.1)
}

inner.2 (p.2: bf16[64,128], q.2: bf16[128,256]) -> bf16[64,256] {
  q.2 = bf16[128,256]{1,0} parameter(1)
  p.2 = bf16[64,128]{1,0} parameter(0)
  ROOT dot.2 = bf16[64,256]{1,0} dot(p.2, q.2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY main {
  a = bf16[64,128]{1,0} parameter(0)
  b = bf16[128,256]{1,0} parameter(1)
  other = bf16[64,128]{1,0} parameter(2)
  first = f32[64,256]{1,0} fusion(a, b), kind=kOutput, calls=inner.1
  moved = bf16[64,128]{1,0} copy(SECOND)
  again = bf16[64,256]{1,0} fusion(moved, b), kind=kOutput, calls=inner.2
  ROOT out = (f32[64,256]{1,0}, bf16[64,256]{1,0}) tuple(first, again)
}
"""


@pytest.mark.parametrize(("second", "copies"), [("a", 1), ("other", 0)])
def test_copies_have_equal_operands(second: str, copies: int) -> None:
    found = hlofast.loads(TWICE.replace("SECOND", second)).cost()
    assert found.repeated_matmul_flops == copies * 2 * 64 * 128 * 256
