"""Whether a checkpoint inside a checkpoint changes what a compiled step recomputes.

    python tests/oracle/check_nested_policies.py

Compiles the gradient of a scan over two dense layers for TPU v5e ahead of time (needs jax[tpu]).
Prints matmuls and peak without inner checkpoints, and with inner checkpoints that keep nothing or
everything; fails unless those without a barrier (`prevent_cse=False`) leave both unchanged, which
`hlofast.config` assumes of AXLearn's `remat_spec` inside a rematerialised module. Ten compilations of
seconds each.
"""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "fixtures"))

# Without the environment that it sets, libtpu looks for a TPU host's metadata server, and waits for it
# where no answer comes.
import make_dumps  # noqa: F401 - see above

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, WIDTH, HIDDEN, ROWS = 4, 512, 2048, 4096
POLICIES = jax.checkpoint_policies
OUTER = {"nothing": POLICIES.nothing_saveable, "dots": POLICIES.dots_saveable}


def layer(data: Any, weights: Any) -> Any:
    """A dense layer with a residual."""
    first, second = weights
    return data + jax.nn.silu(data @ first) @ second


def compiled(outer: Any, inner: Any, *, prevents: bool, mesh: Mesh) -> tuple[int, int]:
    """Matmuls in the text, and the peak."""
    one = layer if inner is None else jax.checkpoint(layer, policy=inner, prevent_cse=prevents)

    def both(data: Any, weights: Any) -> Any:
        return one(one(data, weights[0]), weights[1])

    whole = jax.checkpoint(both, policy=outer, prevent_cse=False)

    def loss(weights: Any, data: Any) -> Any:
        last, _ = jax.lax.scan(lambda own, each: (whole(own, each), None), data, weights)
        return (last.astype(jnp.float32) ** 2).mean()

    def spec(shape: tuple[int, ...], *axes: str) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

    pair = (spec((LAYERS, WIDTH, HIDDEN)), spec((LAYERS, HIDDEN, WIDTH)))
    step = jax.jit(jax.grad(loss)).lower([pair, pair], spec((ROWS, WIDTH), "data")).compile()
    matmuls = len(re.findall(r"= \S+ (?:convolution|dot)\(", step.as_text()))
    return matmuls, step.memory_analysis().peak_memory_in_bytes


def main() -> int:
    """Returns the exit code."""
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    mesh = Mesh(np.array(topology.devices).reshape(4), ("data",))
    wrong = 0
    for name, outer in OUTER.items():
        plain = compiled(outer, None, prevents=False, mesh=mesh)
        print(f"outer {name}: {plain[0]} matmuls, peak {plain[1]:,} B", flush=True)
        for inner, policy in OUTER.items():
            for prevents in (False, True):
                own = compiled(outer, policy, prevents=prevents, mesh=mesh)
                is_same = own == plain
                wrong += not prevents and not is_same
                barrier = "with" if prevents else "without"
                shown = f"{own[0]} matmuls, {own[1]:,} B"
                print(f"  inner {inner}, {barrier} a barrier: {shown}", flush=True)
    print("unchanged without a barrier" if not wrong else f"{wrong} differ without a barrier")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
