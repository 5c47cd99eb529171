#!/usr/bin/env python
"""Ask XLA what offloading the inputs of layers does to a step's peak.

    python tests/oracle/judge_inputs.py

Compiles programs of ``policy_models`` whose layers name their input, and move it, and further values, to host
memory or keep them.  Writes the bytes in HBM into ``tests/fixtures/policies/inputs.jsonl``;
``tests/test_policies.py`` compares them with what the texts without checkpointing say.  Needs an
environment with ``jax[tpu]==0.10.2``; no accelerator is needed.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
sys.path.insert(0, str(FIXTURES))

# The scripts of the fixtures are found only now; `make_dumps` sets the environment before JAX starts.
import make_dumps  # noqa: E402, F401 - see above

# isort: split
import make_policies  # noqa: E402 - see above

# isort: split
import policy_models  # noqa: E402 - see above
from jax.ad_checkpoint import checkpoint_name  # noqa: E402 - see above

PROGRAMS = ("dense_v5e_8", "moe_v5e_8", "dense_v6e_8")
"""Names of programs."""
CHOICES = (((), ()), ((), ("input",)), (("mixed",), ("input",)), ((), ("input", "gate", "up")))
"""Values that are saved, and values that are moved to host memory."""


def main():
    """Compiles each program under each choice."""
    layer = policy_models._layer

    def named(config, axes, is_decoder, source, value, weights):
        return layer(config, axes, is_decoder, source, checkpoint_name(value, "input"), weights)

    policy_models._layer = named
    lines = []
    for program in PROGRAMS:
        for saved, moved in CHOICES:
            with tempfile.TemporaryDirectory() as folder:
                _, record = make_policies.compile_one(
                    f"{program}.inputs", pathlib.Path(folder), (saved, moved)
                )
            row = {"program": program, "saved": saved, "moved": moved}
            lines.append(json.dumps(row | {"hbm": record["allocated"]["0"]}) + "\n")
            print(lines[-1].strip(), flush=True)
    (FIXTURES / "policies" / "inputs.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
