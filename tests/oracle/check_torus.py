"""Whether `hlofast.config._torus` lays meshes on slices as JAX does.

    python tests/oracle/check_torus.py

Asks `mesh_utils.create_device_mesh` for every mesh of up to three axes on the devices of libtpu's
topologies (needs jax[tpu], no accelerator); fails where JAX and hlofast differ.
"""

from __future__ import annotations

import sys

from jax.experimental import mesh_utils, topologies

from hlofast.config import _torus
from hlofast.config._plan_space import divisors

TOPOLOGIES = {
    "v5e:2x2": "tpu-v5e", "v5e:4x4": "tpu-v5e", "v5e:4x8": "tpu-v5e", "v5e:8x8": "tpu-v5e",
    "v5e:8x16": "tpu-v5e", "v5e:16x16": "tpu-v5e", "v6e:4x4": "tpu-v6e", "v6e:16x16": "tpu-v6e",
    "v5p:2x2x2": "tpu-v5p", "v5p:2x2x4": "tpu-v5p", "v5p:4x4x4": "tpu-v5p", "v5p:4x4x8": "tpu-v5p",
    "v5p:4x8x8": "tpu-v5p", "v5p:8x8x8": "tpu-v5p",
}  # fmt: skip


def main() -> int:
    """Returns the exit code."""
    wrong = judged = 0
    for name, device in TOPOLOGIES.items():
        devices = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
        count = len(devices)
        torus = _torus.shape(device, count)
        expected = tuple(int(own) for own in name.partition(":")[2].split("x"))
        if torus != expected:
            print(f"{name}: hlofast takes {torus}")
            wrong += 1
            continue
        for first in divisors(count):
            for second in divisors(count // first):
                sizes = (first, second, count // first // second)
                try:
                    mesh_utils.create_device_mesh(sizes, devices=devices)
                    is_laid = True
                except NotImplementedError:
                    is_laid = False
                judged += 1
                if is_laid != _torus.is_laid(torus, sizes):
                    print(f"{name}: {sizes}: JAX {is_laid}")
                    wrong += 1
    print(f"{judged} meshes, {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
