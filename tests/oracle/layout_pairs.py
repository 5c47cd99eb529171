#!/usr/bin/env python
"""Ask XLA whether a program can spare copies that change a layout: compile programs in three forms.

    python tests/oracle/layout_pairs.py [NAME ...]

The forms of a program of ``advice_layouts`` compute the same.  What XLA says so far: stacks along
another dimension than the first, experts stored last and tables that are read by columns cost copies
of the parameter, which another order spares, and so does an order that the compiler chooses;
weights stored [out, in] cost nothing; transposes of activations become part of matmuls, whose
estimate grows.  The rule ``copied-parameter`` of ``lint`` says so.  Printed are, for the step of one
device: bytes that copies and transposes outside fusions read and write (loops count as often as they
run), bytes accessed, the peak, and the compiler's estimate of cycles.  Needs an environment with
``jax[tpu]==0.10.2``; no accelerator.
"""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import judge_advice  # sets the environment before JAX starts

# isort: split
import advice_layouts as programs
import advice_programs as base
import jax

PROGRAMS = (
    programs.weights_stored,
    programs.layers_stacked,
    programs.heads_ordered,
    programs.experts_ordered,
    programs.table_read,
)
PLACES = (("v5e:2x2", {"data": 2, "model": 2}), ("v6e:2x4", {"data": 2, "model": 4}))


def main():
    """Compiles the forms of each program and prints what XLA says."""
    for program in PROGRAMS:
        if sys.argv[1:] and program.__name__ not in sys.argv[1:]:
            continue
        for where, axes in PLACES:
            mesh = judge_advice.mesh_of(where, axes)
            for how in ("turned", "straight", "chosen"):
                step, arguments, options = program(mesh, how)
                with jax.set_mesh(mesh):
                    compiled = jax.jit(step, **options).lower(*arguments).compile()
                text, cost = compiled.as_text(), compiled.cost_analysis()
                moved = judge_advice.copied(text, base.LAYERS)
                cycles = judge_advice.schedule(text, base.LAYERS)["cycles"]
                peak = compiled.memory_analysis().peak_memory_in_bytes
                print(
                    f"{program.__name__:16} {where} {how:8}"
                    f" copies {moved / 1e6:8.1f} MB"
                    f" accessed {cost.get('bytes accessed', 0) / 1e6:8.1f} MB"
                    f" peak {peak / 1e6:7.1f} MB cycles {cycles:,}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
