"""The simulation of XLA's memory schedulers, by which policies on v5p are modelled."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hlofast
from conftest import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "benches"))
import scheduler_orders

MEETING = """HloModule m

ENTRY e {
  p = f32[64]{0} parameter(0)
  a = f32[4]{0} slice(p), slice={[0:4]}
  b = f32[8]{0} slice(p), slice={[0:8]}
  c = f32[8]{0} slice(p), slice={[8:16]}
  d = f32[4]{0} slice(p), slice={[4:8]}
  e1 = f32[4]{0} add(d, d)
  e2 = f32[4]{0} multiply(d, e1)
  ROOT r = (f32[4]{0}, f32[8]{0}, f32[8]{0}, f32[4]{0}) tuple(a, c, b, e2)
}
"""
FREEING = """HloModule m

ENTRY e {
  p = f32[4096]{0} parameter(0)
  large.1 = f32[4096]{0} negate(p)
  large.2 = f32[4096]{0} abs(p)
  small.1 = f32[4]{0} slice(large.1), slice={[0:4]}
  small.2 = f32[4]{0} slice(large.2), slice={[0:4]}
  ROOT r = f32[4]{0} add(small.1, small.2)
}
"""


@pytest.mark.parametrize(
    ("text", "scheduler", "order"),
    [
        (MEETING, "post", "p a c b d e1 e2 r"),
        (MEETING, "dfs", "p d e1 e2 b c a r"),
        (FREEING, "list", "p large.2 small.2 large.1 small.1 r"),
    ],
)
def test_orders_are_those_of_the_core(text: str, scheduler: str, order: str) -> None:
    """`rust/hlofast/tests/memory_listed.rs` has the same texts and orders."""
    module = hlofast.loads(text)
    sizes = {own.id: scheduler_orders.padded(own) for own in module.shapes}
    rows = scheduler_orders.Rows(module.entry, sizes)
    found = scheduler_orders.SCHEDULERS[scheduler](rows)
    assert [rows.names[own] for own in found] == order.split()


def test_sizes_are_those_of_whole_tiles() -> None:
    module = hlofast.loads(
        "HloModule m\n\nENTRY e {\n  ROOT p = bf16[3,130]{1,0:T(8,128)(2,1)} parameter(0)\n}\n"
    )
    assert scheduler_orders.padded(module.entry.root.shape) == 8 * 256 * 2


@pytest.mark.oracle
def test_xla_takes_the_order_with_the_lowest_count() -> None:
    orders = {
        "moe_v5p_8.plain_dots": "list",
        "moe_v5p_8.mlp_names": "dfs",
        "long_v5p_8.nothing": "post",
    }
    command = [sys.executable, scheduler_orders.__file__, *orders]
    *lines, last = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    found = {name: (order, float(near)) for name, order, near, *_ in map(str.split, lines)}
    assert {name: order for name, (order, _) in found.items()} == orders
    assert all(near > 0.98 for _, near in found.values())
    assert last == "the order with the lowest peak: 3 of 3"
