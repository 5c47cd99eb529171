"""Accuracy of the step time of MaxText configs against rates that MaxText published.

    python benches/maxtext_accuracy.py [--json FILE]
    python benches/maxtext_accuracy.py --models

Each row is a run as its arguments describe it, a published rate, and hlofast's step from the config
alone. TFLOP/s per chip become seconds with the FLOPs that MaxText logged, the whole square of
attention included (before July 2025); tokens per second per device with the tokens of a step.
Nothing is fitted on these rows: the rates of the model are those of `config_accuracy.py`.

`--models` counts the models whose parameters are those of their published weights, and whose logged
FLOPs are those of MaxText's formulas: `PUBLISHED` and `LOGGED` of `tests/test_maxtext_models.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from hlofast import config

V5E = "AI-Hypercomputer/maxtext, configs/tpu/v5e/README.md"
V5P = "AI-Hypercomputer/maxtext, configs/tpu/v5p/README.md"
V4 = "AI-Hypercomputer/maxtext, configs/tpu/v4/README.md"
TIERS = "AI-Hypercomputer/maxtext, model tiering"
FULL = ("remat_policy=full", "attention=flash", "max_target_length=2048")
OFFLOAD = (
    "remat_policy=custom", "decoder_layer_input=offload", "query_proj=offload",
    "key_proj=offload", "value_proj=offload", "out_proj=offload", "attention=flash",
)  # fmt: skip

CURVES = [
    ("16B", "v5e-256", V5E, {1: 120, 2: 117, 4: 117, 8: 115, 16: 111, 32: 108},
     (*FULL, "global_parameter_scale=16", "per_device_batch_size=6")),
    ("64B", "v5e-256", V5E, {1: 118, 2: 112, 4: 110, 8: 108, 16: 105, 32: 99},
     (*FULL, "global_parameter_scale=64", "per_device_batch_size=2")),
    ("22B", "v4-128", V4, {1: 156, 2: 152, 4: 149, 8: 146},
     (*FULL, "base_emb_dim=6144", "base_num_query_heads=24", "base_num_kv_heads=24",
      "base_mlp_dim=24576", "base_num_decoder_layers=48", "head_dim=256", "num_vocab_tiling=8",
      "mlp_activations=[gelu]", "per_device_batch_size=13")),
    ("128B", "v5p-256", V5P, {1: 315},
     ("remat_policy=minimal", "attention=flash", "global_parameter_scale=128",
      "ici_tensor_parallelism=8", "per_device_batch_size=1")),
]  # fmt: skip
"""Name, instance, source, TFLOP/s per chip by number of slices, arguments."""
TOKENS = [
    ("llama2-70b", 900, 4096, 3,
     ("remat_policy=qkv_proj_offloaded", "attention=flash", "ici_fsdp_parallelism=1",
      "ici_fsdp_transpose_parallelism=256")),
    ("llama3.1-8b", 7207, 8192, 4, OFFLOAD),
    ("mixtral-8x7b", 3899, 4096, 12, (*OFFLOAD, "sparse_matmul=false", "capacity_factor=1.25")),
]  # fmt: skip
"""Models on v6e-256: name, tokens per second and device, length, sequences, arguments."""


def rows() -> list[dict[str, object]]:
    """One dictionary per published figure."""
    found = []
    for name, instance, source, rates, arguments in CURVES:
        run = config.loads("", path="defaults.yml", overrides=arguments)
        operations = run.logged_flops(causal=False).total
        for slices, rate in rates.items():
            at = instance if slices == 1 else f"{instance}-{slices}"
            found.append(judged(name, run, at, operations / rate, source))
    for name, rate, length, sequences, own in TOKENS:
        arguments = (
            *own, f"model_name={name}", f"max_target_length={length}",
            f"per_device_batch_size={sequences}",
        )  # fmt: skip
        run = config.loads("", path="defaults.yml", overrides=arguments)
        found.append(judged(name, run, "v6e-256", sequences * length / rate, TIERS))
    return found


def judged(
    name: str, run: config.Config, at: str, published: float, source: str
) -> dict[str, object]:
    """The step of a run beside the published one."""
    verdict = run.select(at).verdict()
    modelled = verdict.step_seconds
    return {
        "name": name,
        "instance": at,
        "published": published,
        "modelled": modelled,
        "error": None if modelled is None else modelled / published - 1,
        "complete": verdict.communication_seconds is not None,
        "status": verdict.status,
        "source": source,
    }


def models() -> None:
    """Prints how many models have the published parameters and MaxText's logged FLOPs."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    import test_maxtext_models as known

    counted = [
        known.run(f"model_name={name}").parameter_count() - published - more
        for name, (published, _, more) in known.PUBLISHED.items()
    ]
    print(f"parameters: {counted.count(0)} of {len(counted)} models as published")
    same = 0
    for name, expected in known.LOGGED.items():
        length = () if name == "gpt3-22b" else ("max_target_length=8192",)
        own = known.run(f"model_name={name}", "per_device_batch_size=3", *length).logged_flops()
        same += (own.learnable_weight, own.attention) == expected
    print(f"logged FLOPs: {same} of {len(known.LOGGED)} models to the last digit")


def main() -> None:
    """Prints the rows and the share of errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--models", action="store_true", help="parameters and FLOPs of models")
    arguments = parser.parse_args()
    if arguments.models:
        models()
        return
    found = rows()
    for row in found:
        step = "unknown" if row["modelled"] is None else f"{row['modelled']:7.3f} s"
        error = "" if row["error"] is None else f"{row['error']:+7.1%}"
        note = "" if row["complete"] else "  without collectives"
        print(
            f"{row['name']:14}{row['instance']:12}{row['published']:8.3f} s {step} {error}  "
            f"{row['status']}{note}"
        )
    errors = [abs(row["error"]) for row in found if row["error"] is not None]
    within = {limit: sum(error <= limit for error in errors) for limit in (0.15, 0.3)}
    print(f"\nmedian {statistics.median(errors):.1%}, largest {max(errors):.1%}; ", end="")
    print(
        ", ".join(f"{count} of {len(errors)} within {limit:.0%}" for limit, count in within.items())
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
