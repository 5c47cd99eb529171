"""The simulation of XLA's memory schedulers, by which policies on v5p are modelled."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hlofast
from conftest import CHECKOUT, FIXTURES

sys.path.insert(0, str(CHECKOUT / "benches"))
import scheduler_orders


@pytest.mark.parametrize(
    ("name", "scheduler", "order"),
    [
        ("meeting", "post", "p a c b d e1 e2 r"),
        ("meeting", "dfs", "p d e1 e2 b c a r"),
        ("freeing", "list", "p large.2 small.2 large.1 small.1 r"),
    ],
)
def test_orders_are_those_of_the_core(name: str, scheduler: str, order: str) -> None:
    """`rust/hlofast/tests/memory_listed.rs` expects these orders of these texts too."""
    module = hlofast.loads((FIXTURES / "orders" / f"{name}.txt").read_text())
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
