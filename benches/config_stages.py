"""Peaks of MaxText's pipelines that configs imply, against steps compiled for TPUs ahead of time.

    python benches/config_stages.py

Records are those of `tests/fixtures/make_maxtext_peaks.py`. The peaks were derived from the texts
of the steps in `READ`; the others were compiled afterwards. "step" is the step that `Module.time`
models from the compiled text. hlofast models no step of a pipeline from its config; "simple" is the
error of an estimate: the same run with data in place of stages, whose layers run once in every
iteration, and gather their weights and reduce their gradients in each, exposed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hlofast import config, devices
from hlofast.config._time import GATHERS, rates_of

RECORDS = Path(__file__).parent.parent / "tests" / "fixtures" / "maxtext_peaks.json"
READ = (
    "7b_stage_v5p", "8b_stage_v6e", "8b_stage_v5p", "13b_stage_v5p", "7b_stage2_v5p",
    "8b_stage_saved_v5p", "8b_stages_few_v5p", "8b_stages_context_v5p", "7b_stages_v5e",
    "8b_stages_v5p",
)  # fmt: skip
"""Steps that the peaks were derived from."""
_REDUCTIONS = "reductions of gradients"
_LAYERS = (GATHERS, _REDUCTIONS)


def rows() -> list[dict[str, Any]]:
    """One dictionary per step with stages whose peak is modelled."""
    found = []
    for name, record in json.loads(RECORDS.read_text()).items():
        if "_stage" not in name:
            continue
        effective = _run(record["instance"], record["arguments"])
        verdict, pipeline = effective.verdict(), effective._implied().parts.pipeline
        exact = record.get("peak") or record.get("used")
        modelled = verdict.peak_bytes
        found.append(
            {
                "name": name,
                "is_read": name in READ,
                "gaps": [why for _, why in verdict.gaps],
                "iterations": pipeline and pipeline.iterations,
                "bubble": pipeline and pipeline.bubble / pipeline.iterations,
                "repeats": pipeline and pipeline.repeats,
                "state": verdict.memory.state_bytes / record["state"] - 1
                if "state" in record
                else None,
                "xla": exact,
                "modelled": modelled,
                "error": modelled / exact - 1 if modelled and exact else None,
                "is_right": (verdict.status in ("fits", "tight")) == ("refused" not in record),
                "seconds": record.get("seconds"),
                "simple": pipeline and "seconds" in record and _simple(record, pipeline),
            }
        )
    return found


def _run(instance: str, arguments: list[str]) -> config.EffectiveConfig:
    return config.loads("", path="run.yml", overrides=arguments).select(instance)


def _simple(record: dict[str, Any], pipeline: Any) -> float:
    """The error of the estimate of the step."""
    plain = [each for each in record["arguments"] if "pipeline" not in each]
    own = _run(record["instance"], [*plain, f"ici_data_parallelism={pipeline.stages}"])
    time, implied = own.verdict().time, own._implied()
    assert time is not None
    assert own.instance.device is not None
    rates = rates_of(devices.get(own.instance.device), implied.rates)
    more = pipeline.iterations / (pipeline.microbatches * pipeline.repeats)
    # Each iteration gathers the weights of a stage; a step without stages gathers all of them once.
    often = pipeline.iterations / (pipeline.stages * pipeline.repeats)
    parts = {name: seconds for name, seconds in time.parts if name not in _LAYERS}
    head = sum(each.multiplications for each in implied.parts.products if each.layers == 1)
    layers = sum(
        each.multiplications * each.layers
        for each in implied.parts.products
        if each.layers > 1 and not each.is_attention
    )
    matmuls = parts.pop("matmuls")
    step = matmuls * (head + layers * more) / (head + layers)
    step += sum(parts.pop(name, 0.0) for name in ("attention", "element-wise")) * more
    gathers = time.demand.gathers / rates.links
    reductions = time.demand.reductions / rates.links * rates.reductions
    step += (gathers + reductions) * often + sum(parts.values())
    return step / float(record["seconds"]) - 1


def main() -> None:
    """Prints one line per step."""
    print(f"{'step':26}{'read':6}{'repeats':>8}{'iterations':>11}{'bubble':>8}{'XLA':>9}"
          f"{'modelled':>10}{'error':>8}{'step':>8}{'simple':>8}")  # fmt: skip
    for row in rows():
        if row["modelled"] is None:
            print(f"{row['name']:26}{'; '.join(row['gaps'])}")
            continue
        sizes = f"{row['xla'] / (1 << 30):9.2f}{row['modelled'] / (1 << 30):10.2f}"
        step = "" if row["seconds"] is None else f"{row['seconds']:8.2f}{row['simple']:+8.0%}"
        print(
            f"{row['name']:26}{'yes' if row['is_read'] else 'no':6}{row['repeats']:8}"
            f"{row['iterations']:11}{row['bubble']:8.0%}{sizes}{row['error']:+8.1%}{step}"
        )


if __name__ == "__main__":
    main()
