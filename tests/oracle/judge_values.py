"""Whether a change that advice asks for keeps the values: both programs run on CPU devices.

Programs are small: the sizes that ``SIZES`` names are replaced.  Arguments are random and equal, and
where a change stacks weights, they are stacked here.
"""

from __future__ import annotations

import contextlib

import advice_cases
import advice_layouts
import advice_memory
import advice_models
import advice_programs
import advice_schedules
import advice_types
import jax
import jax.numpy as jnp
import numpy as np
import planted_models
from jax.sharding import Mesh

MODULES = (
    advice_programs,
    advice_types,
    advice_schedules,
    advice_models,
    advice_layouts,
    advice_memory,
)
SIZES = {
    advice_programs: {"LAYERS": 4, "WIDTH": 64, "HIDDEN": 128, "BATCH": 8, "LENGTH": 32},
    advice_memory: {
        "WIDTH": 64,
        "HIDDEN": 128,
        "BATCH": 8,
        "LENGTH": 32,
        "WORDS": 256,
        "SLOTS": 8,
    },
    advice_models: {"WORDS": 256},
    planted_models: {"BATCH": 8, "SEQUENCE": 32, "WIDTH": 64, "HIDDEN": 128, "VOCABULARY": 256},
}
FEWEST_WORDS = 256
"""Random integers are less than this: they are tokens."""


def build(name, mesh):
    """The function of a program, its arguments and the options of ``jax.jit``."""
    _, _, function, arguments = advice_cases.PROGRAMS[name]
    made = next(getattr(module, function) for module in MODULES if hasattr(module, function))
    return made(mesh, **arguments)


@contextlib.contextmanager
def small():
    """Inside, programs are small."""
    old = {module: {size: getattr(module, size) for size in SIZES[module]} for module in SIZES}
    try:
        for module, sizes in SIZES.items():
            for size, value in sizes.items():
                setattr(module, size, value)
        yield
    finally:
        for module, sizes in old.items():
            for size, value in sizes.items():
                setattr(module, size, value)


def stack_inputs(tree):
    """Weights of queries, keys and values, and what has their structure, as one."""
    tree = dict(tree)
    return {"out": tree["out"], "qkv": jnp.stack([tree[name] for name in "qkv"], axis=1)}


def stack_small(tree):
    """Small parameters of all layers as stacks."""
    leaves = jax.tree.map(lambda *layers: jnp.stack(layers), *tree["small"])
    return {"large": tree["large"], "small": leaves}


def turn_table(tree):
    """A table of words with the words first."""
    return {**tree, "table": tree["table"].T}


def stack_first(weights):
    """Layers stacked on the first dimension."""
    return jnp.moveaxis(weights, -1, 0)


STACKED = {
    "table_rows": lambda trees: (turn_table(trees[0]), *trees[1:]),
    "layers_first": lambda trees: (stack_first(trees[0]), *trees[1:]),
    "inputs_fused": lambda trees: (stack_inputs(trees[0]), *trees[1:]),
    "adapted_stacked": lambda trees: (*map(stack_small, trees[:3]), *trees[3:]),
    "biased_stacked": lambda trees: (*map(stack_small, trees[:2]), *trees[2:]),
}
STACKED_RESULTS = {
    "table_rows": lambda trees: (trees[0], turn_table(trees[1])),
    "layers_first": lambda trees: (trees[0], stack_first(trees[1])),
    "inputs_fused": STACKED["inputs_fused"],
    "adapted_stacked": lambda trees: (trees[0], *map(stack_small, trees[1:])),
    "biased_stacked": lambda trees: (trees[0], *map(stack_small, trees[1:])),
}


def drawn(argument, numbers):
    """A random array like ``argument``."""
    if jnp.issubdtype(argument.dtype, jnp.integer):
        return jnp.asarray(numbers.integers(0, FEWEST_WORDS, argument.shape), argument.dtype)
    return jnp.asarray(numbers.normal(size=argument.shape) * 0.1, argument.dtype)


def difference(before, after):
    """The norm of what the results differ by, by the norm of the results: the largest of all arrays.

    None where a program does not run on CPU devices.
    """
    _, axes, *_ = advice_cases.PROGRAMS[before]
    count = int(np.prod(list(axes.values())))
    mesh = Mesh(np.array(jax.devices("cpu")[:count]).reshape(tuple(axes.values())), tuple(axes))
    numbers = np.random.default_rng(0)
    with small(), jax.set_mesh(mesh):
        function, arguments, _ = build(before, mesh)
        values = jax.tree.map(lambda argument: drawn(argument, numbers), arguments)
        changed, wanted, _ = build(after, mesh)
        given = STACKED.get(after, lambda trees: trees)(values)

        def run(function, values, like):
            placed = jax.tree.map(
                lambda value, own: jax.device_put(value.astype(own.dtype), own.sharding),
                values,
                like,
            )
            return jax.jit(function)(*placed)

        first = run(function, values, arguments)
        second = run(changed, given, wanted)
        first = STACKED_RESULTS.get(after, lambda trees: trees)(first)
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return max(
        relative(np.asarray(one, "float64"), np.asarray(two, "float64")) for one, two in pairs
    )


def relative(one, two):
    """The norm of the difference by the norm of the first."""
    return float(np.linalg.norm(one - two) / max(np.linalg.norm(one), 1e-30))
