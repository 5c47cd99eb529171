#!/usr/bin/env python
"""Ask XLA whether a program can spare copies that change a layout: compile programs in two forms.

    python tests/oracle/layout_pairs.py [NAME ...]

Each pair computes the same. The first form stores a weight, stacks layers or orders the dimensions of an
activation so that a copy or transpose may be needed, the second form in the order in which matmuls
and loops read it. What XLA says so far (in the commit that adds this paragraph): stacks along another
dimension than the first and tables that are read by columns cost a copy of the parameter, which another
order spares; weights stored [out, in] cost nothing; transposes of activations become part of
matmuls, whose estimate grows. No rule of `lint` says any of this yet. Printed are, for the step of one device: bytes that copies and transposes outside
fusions read and write (loops count as often as they run), bytes accessed, the peak, and the
compiler's estimate of cycles. Needs an environment with ``jax[tpu]==0.10.2``; no accelerator.
"""

from __future__ import annotations

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import judge_advice  # sets the environment before JAX starts

# isort: split
import advice_programs as base
import jax
import jax.numpy as jnp
from advice_programs import P, array, constrain, norm, square, trained
from jax.sharding import NamedSharding

EXPERTS, HEADS = 8, 8


def weights_stored(mesh, is_turned):
    """An MLP in a scan whose weights are stored [out, in] or [in, out]."""

    def layer(values, weights):
        up, down = weights["up"], weights["down"]
        if is_turned:
            up, down = up.T, down.T
        return values + jax.nn.gelu(norm(values) @ up) @ down, None

    sizes = [(base.WIDTH, base.HIDDEN), (base.HIDDEN, base.WIDTH)]
    specs = [(None, None, "model"), (None, "model", None)]
    if is_turned:
        sizes = [size[::-1] for size in sizes]
        specs = [(None, *spec[:0:-1]) for spec in specs]
    up, down = (
        array(mesh, (base.LAYERS, *size), spec=spec)
        for size, spec in zip(sizes, specs, strict=True)
    )
    values = array(mesh, (base.BATCH, 128, base.WIDTH), spec=("data",))
    return (
        trained(base.stacked(layer, True, "nothing")),
        ({"up": up, "down": down}, values),
        {"donate_argnums": 0},
    )


def layers_stacked(mesh, is_turned):
    """Weights of all layers stacked along the last dimension or the first."""

    def layer(values, weight):
        return values + jnp.tanh(norm(values) @ weight), None

    stack = base.stacked(layer, True, "nothing")

    def loss(weights, values):
        return stack(jnp.moveaxis(weights, -1, 0) if is_turned else weights, values)

    shape, spec = (base.LAYERS, base.HIDDEN, base.HIDDEN), (None, None, "model")
    if is_turned:
        shape, spec = (*shape[1:], shape[0]), (*spec[1:], None)
    values = array(mesh, (base.BATCH, 128, base.HIDDEN), spec=("data",))
    return trained(loss), (array(mesh, shape, spec=spec), values), {"donate_argnums": 0}


def heads_ordered(mesh, is_turned):
    """Attention with the heads after the sequence or before it, in a scan."""

    def layer(values, weights):
        shape = (*values.shape[:2], HEADS, base.WIDTH // HEADS)
        query, key, value = ((norm(values) @ weights[name]).reshape(shape) for name in "qkv")
        if is_turned:
            query, key, value = (jnp.swapaxes(one, 1, 2) for one in (query, key, value))
            scores = jnp.einsum("bhqd,bhkd->bhqk", query, key).astype("float32")
            mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores).astype(value.dtype), value)
            mixed = jnp.swapaxes(mixed, 1, 2)
        else:
            scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype("float32")
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(value.dtype), value)
        mixed = mixed.reshape(values.shape) @ weights["o"]
        return values + constrain(mixed, NamedSharding(mesh, P("data"))), None

    one = (base.LAYERS, base.WIDTH, base.WIDTH)
    weights = {name: array(mesh, one, spec=(None, None, "model")) for name in "qkv"}
    weights["o"] = array(mesh, one, spec=(None, "model"))
    values = array(mesh, (base.BATCH, base.LENGTH, base.WIDTH), spec=("data",))
    return trained(base.stacked(layer, True, "nothing")), (weights, values), {"donate_argnums": 0}


def experts_ordered(mesh, is_turned):
    """Tokens by experts with the experts last, [b, s, f, e], or before the features; unrolled."""
    up, down = (
        ("bsd,dfe->bsfe", "bsfe,fde->bsd") if is_turned else ("bsd,edf->bsef", "bsef,efd->bsd")
    )

    def layer(values, weights):
        hidden = jax.nn.gelu(jnp.einsum(up, norm(values), weights["up"]))
        return values + jnp.einsum(down, hidden, weights["down"]), None

    width, lead = base.HIDDEN // EXPERTS, (base.UNROLLED,)
    sizes = {"up": (EXPERTS, base.WIDTH, width), "down": (EXPERTS, width, base.WIDTH)}
    if is_turned:
        sizes = {"up": (base.WIDTH, width, EXPERTS), "down": (width, base.WIDTH, EXPERTS)}
    spec = (None, None, None, "model") if is_turned else (None, "model")
    weights = {name: array(mesh, (*lead, *size), spec=spec) for name, size in sizes.items()}
    values = array(mesh, (base.BATCH, 128, base.WIDTH), spec=("data",))
    return trained(base.stacked(layer, False, "nothing")), (weights, values), {"donate_argnums": 0}


def table_read(mesh, is_turned):
    """A table of words that is stored [width, words] and read in columns, or in rows."""
    words = 16384

    def loss(weights, tokens):
        table = weights["table"]
        values = jnp.take(table, tokens, axis=1) if is_turned else jnp.take(table, tokens, axis=0)
        values = jnp.moveaxis(values, 0, -1) if is_turned else values
        return square(jnp.tanh(norm(values) @ weights["out"]))

    shape, spec = (
        ((base.WIDTH, words), ("model",)) if is_turned else ((words, base.WIDTH), (None, "model"))
    )
    weights = {
        "table": array(mesh, shape, spec=spec),
        "out": array(mesh, (base.WIDTH, base.WIDTH), spec=("model",)),
    }
    tokens = array(mesh, (base.BATCH, base.LENGTH), "int32", ("data",))
    return trained(loss), (weights, tokens), {"donate_argnums": 0}


PROGRAMS = (weights_stored, layers_stacked, heads_ordered, experts_ordered, table_read)
PLACES = (("v5e:2x2", {"data": 2, "model": 2}), ("v6e:2x4", {"data": 2, "model": 4}))


def copied(text):
    """Bytes that copies and transposes outside fusions read and write, and how many there are."""
    all_lines = judge_advice.computations(text)
    looped = judge_advice.loops(text, all_lines)
    fused = set(re.findall(r"\bfusion\(.*?\bcalls=%?([\w.\-]+)", text))
    total, count = 0, 0
    for name, lines in all_lines.items():
        for line in lines if name not in fused else ():
            found = re.match(r"  (?:ROOT )?%?([\w.\-]+) = (\S+) (copy|transpose|fusion)\(", line)
            if not found or "S(5)" in found[2]:
                continue
            is_copy = found[3] != "fusion" or found[1].startswith(("copy", "transpose"))
            if is_copy and (size := judge_advice.bytes_of(found[2])) >= 1 << 16:
                total += 2 * size * (base.LAYERS if name in looped else 1)
                count += 1
    return total, count


def main():
    """Compiles both forms of each pair and prints what XLA says."""
    for program in PROGRAMS:
        if sys.argv[1:] and program.__name__ not in sys.argv[1:]:
            continue
        for where, axes in PLACES:
            mesh = judge_advice.mesh_of(where, axes)
            for is_turned in (True, False):
                step, arguments, options = program(mesh, is_turned)
                with jax.set_mesh(mesh):
                    compiled = jax.jit(step, **options).lower(*arguments).compile()
                text, cost = compiled.as_text(), compiled.cost_analysis()
                moved, count = copied(text)
                cycles = judge_advice.schedule(text, base.LAYERS)["cycles"]
                peak = compiled.memory_analysis().peak_memory_in_bytes
                print(
                    f"{program.__name__:16} {where} {'turned' if is_turned else 'straight':8}"
                    f" copies {count:3} {moved / 1e6:8.1f} MB"
                    f" accessed {cost.get('bytes accessed', 0) / 1e6:8.1f} MB"
                    f" peak {peak / 1e6:7.1f} MB cycles {cycles:,}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
