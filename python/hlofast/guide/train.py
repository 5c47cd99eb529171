"""The train step of this guide: a decoder on 8 TPU chips, compiled on a machine without TPUs.

    python train.py dumps                                layers checkpointed: step.txt
    python train.py dumps --keep mixed,attended          more is kept: kept.txt
    python train.py dumps --keep everything              nothing is checkpointed: too_large.txt
    python train.py dumps --batch unconstrained          left to the partitioner: unconstrained.txt

Needs `pip install 'jax[tpu]'` but no TPU, because its compiler takes the name of a topology.
"""

import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, HIDDEN, HEADS, VOCABULARY = 16, 4096, 16384, 32, 32768
BATCH, SEQUENCE = 32, 1024


def layer(values, weights):
    """One layer: attention, then two matmuls with a GELU between them."""
    weights = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), weights)
    values = constrained(values)
    query, key, content = jnp.einsum("bsw,wthd->tbshd", normalised(values), weights["qkv"])
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
    seen = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
    attention = jax.nn.softmax(jnp.where(seen, scores * query.shape[-1] ** -0.5, -1e30))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", attention.astype(jnp.bfloat16), content)
    mixed = checkpoint_name(mixed, "mixed")
    attended = checkpoint_name(jnp.einsum("bshd,hdw->bsw", mixed, weights["output"]), "attended")
    values = constrained(values + attended)
    hidden = checkpoint_name(normalised(values) @ weights["up"], "hidden")
    return constrained(values + jax.nn.gelu(hidden) @ weights["down"]), None


def normalised(values):
    """Each row divided by its root mean square."""
    wide = values.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(jnp.bfloat16)


def constrained(values):
    """Values whose batch is split over the mesh axis `data`."""
    if given.batch == "unconstrained":
        return values
    return jax.lax.with_sharding_constraint(values, P("data"))


def loss(parameters, tokens):
    """Mean cross entropy of the next token."""
    body = layer
    if given.keep != "everything":
        policy = jax.checkpoint_policies.save_only_these_names(*given.keep.split(","))
        body = jax.checkpoint(layer, policy=policy)
    table = parameters["table"].astype(jnp.bfloat16)
    values, _ = jax.lax.scan(body, table[tokens], parameters["layers"])
    logits = (normalised(values) @ table.T).astype(jnp.float32)[:, :-1]
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def train_step(state, tokens):
    """One step of Adam."""
    value, gradients = jax.value_and_grad(loss)(state["parameters"], tokens)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["square"], gradients)
    parameters = jax.tree.map(
        lambda p, m, v: p - 1e-4 * m / (jnp.sqrt(v) + 1e-8), state["parameters"], mean, square
    )
    return {"parameters": parameters, "mean": mean, "square": square}, value


def arguments(mesh):
    """Shapes and shardings: weights split over both mesh axes, the batch over `data`."""

    def array(shape, *axes, dtype="float32"):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))

    layers = {
        "qkv": array((LAYERS, WIDTH, 3, HEADS, WIDTH // HEADS), None, "data", None, "model"),
        "output": array((LAYERS, HEADS, WIDTH // HEADS, WIDTH), None, "model", None, "data"),
        "up": array((LAYERS, WIDTH, HIDDEN), None, "data", "model"),
        "down": array((LAYERS, HIDDEN, WIDTH), None, "model", "data"),
    }
    parameters = {"layers": layers, "table": array((VOCABULARY, WIDTH), "model", "data")}
    state = dict.fromkeys(("parameters", "mean", "square"), parameters)
    return state, array((BATCH, SEQUENCE), "data", dtype="int32")


def main():
    """Compile the step; the compiler writes the dump."""
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={given.dumps} --xla_dump_hlo_as_text"
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-8"}
    os.environ |= {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    jax.config.update("jax_platforms", "cpu")
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
    mesh = Mesh(np.array(devices).reshape(2, 4), ("data", "model"))
    with jax.set_mesh(mesh):
        compiled = jax.jit(train_step, donate_argnums=0).lower(*arguments(mesh)).compile()
    print(compiled.memory_analysis())


SMALL = {"LAYERS": 2, "WIDTH": 256, "HIDDEN": 1024, "HEADS": 8, "VOCABULARY": 2048}
SMALL |= {"BATCH": 8, "SEQUENCE": 64}


def profile():
    """Run three steps of a small model on 8 CPU devices, and profile them: needs `jax` alone."""
    globals().update(SMALL)
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    jax.config.update("jax_platforms", "cpu")
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    with jax.set_mesh(mesh):
        state, tokens = jax.tree.map(
            lambda own: jax.device_put(jnp.full(own.shape, 0.01, own.dtype), own.sharding),
            arguments(mesh),
        )
        step = jax.jit(train_step, donate_argnums=0)
        state, value = step(state, tokens)
        jax.block_until_ready(value)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = 1
        with jax.profiler.trace(given.dumps, profiler_options=options):
            for number in range(3):
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    state, value = step(state, tokens)
                    jax.block_until_ready(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("dumps", help="the folder that the compiler or the profiler writes to")
    parser.add_argument("--profile", action="store_true", help="run a small model, and profile it")
    parser.add_argument("--keep", default="mixed", help="names kept for the backward pass")
    parser.add_argument("--batch", choices=("constrained", "unconstrained"), default="constrained")
    given = parser.parse_args()
    profile() if given.profile else main()
