#!/usr/bin/env python
"""Ask XLA how it splits lookups in a table, and compare with the model that ``what-if`` uses.

    python tests/oracle/judge_lookups.py [--count 200] [--seed 1] [--show]

Lookups of random sizes on random meshes, with their gradients, are partitioned for CPU devices, whose
partitioner chooses as that of TPUs does.  Printed is in how many of them the model
(``hlofast/_partition``) makes the collectives of the partitioner: kinds, device groups and bytes.
Needs JAX, no accelerator.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import random
import sys
import tempfile

os.environ.update(
    JAX_PLATFORMS="cpu",
    TF_CPP_MIN_LOG_LEVEL="2",
    XLA_FLAGS="--xla_force_host_platform_device_count=64",
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import hlofast
from hlofast._partition import made
from hlofast._partition.reshard import UnsureError

AXES = ("data", "fsdp", "model")


def chosen(draw):
    """A mesh, sizes, and the axes of a table and of the rows that are looked up in it."""
    mesh = {axis: draw.choice((1, 2, 4)) for axis in AXES}
    mesh["fsdp"] = max(mesh["fsdp"], 2)
    sizes = {
        "rows": draw.choice((8_000, 32_000, 128_000)),
        "width": draw.choice((512, 1024, 2048, 4096)),
        "batch": draw.choice((16, 32, 64, 128)),
        "sequence": draw.choice((256, 1024, 2048, 4096)),
    }
    batch = draw.choice((("data", "fsdp"), ("data",), ("fsdp",)))
    sequence = draw.choice(((), (), ("model",)))
    table = draw.choice((
        (("model",), ("fsdp",)), (("fsdp",), ("model",)), (("model",), ()),
        ((), ("fsdp",)), (("model", "fsdp"), ()), (("fsdp", "model"), ()),
    ))  # fmt: skip
    return mesh, sizes, table, (batch, sequence)


def partitioned(mesh, sizes, table, rows):
    """The text of a lookup and its gradient after XLA's partitioner."""
    count = int(np.prod(list(mesh.values())))
    devices = Mesh(np.array(jax.devices()[:count]).reshape(tuple(mesh.values())), tuple(mesh))

    def struct(shape, kind, axes):
        sharding = NamedSharding(devices, PartitionSpec(*(own or None for own in axes)))
        return jax.ShapeDtypeStruct(shape, kind, sharding=sharding)

    def step(weights, positions, factors):
        def loss(weights):
            found = weights.astype(jnp.bfloat16)[positions]
            found = jax.lax.with_sharding_constraint(found, arguments[2].sharding)
            return jnp.sum(jnp.sin(found) * factors)

        gradient = jax.grad(loss)(weights)
        return weights - jax.lax.with_sharding_constraint(gradient, arguments[0].sharding)

    places = sizes["batch"], sizes["sequence"]
    arguments = (
        struct((sizes["rows"], sizes["width"]), "float32", table),
        struct(places, "int32", rows),
        struct((*places, sizes["width"]), "bfloat16", (*rows, ())),
    )
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        options["xla_dump_hlo_pass_re"] = "spmd-partitioning"
        jax.jit(step).lower(*arguments).compile(options)
        return next(pathlib.Path(folder).glob("*after_spmd-partitioning*")).read_text()


def counted(text, mesh, is_model):
    """How often each kind of collective of lookups runs along which axes, with how many bytes."""
    rows = hlofast.loads(text).with_context(mesh=mesh).collectives().tables["collectives"]
    return collections.Counter(
        (row["kind"], row["axes"], row["wire_bytes"])
        for row in rows
        if is_model or (row["op_name"] or "").rpartition("/")[2] in ("gather", "scatter-add")
    )


def main():
    """Compares random lookups."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print those that differ")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    same = unsure = 0
    for _ in range(given.count):
        mesh, sizes, table, rows = chosen(draw)
        text = partitioned(mesh, sizes, table, rows)
        weights = made.Table(sizes["rows"], sizes["width"], table, 2)
        positions = made.Input(sizes["batch"], sizes["sequence"], rows, 4)
        try:
            model = made.split(mesh, weights, [positions], True, merges=False).collectives
        except UnsureError:
            unsure += 1
            continue
        own, others = counted(made.as_text(model), mesh, True), counted(text, mesh, False)
        same += own == others
        if given.show and own != others:
            print(mesh, sizes, table, rows, "model", own - others, "XLA", others - own)
    print(f"{given.count} lookups: {same} as XLA splits them, {unsure} not modelled")
    return 0 if same + unsure == given.count else 1


if __name__ == "__main__":
    sys.exit(main())
