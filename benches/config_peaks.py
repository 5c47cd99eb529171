"""Accuracy of the memory peaks that configs imply, against steps compiled for TPUs ahead of time.

    python benches/config_peaks.py [--json FILE]

Rows are the points of `tests/fixtures/maxtext_points.py`, compiled with MaxText's own code; both
choices of the runs of `tests/fixtures/maxtext_choices.py`, likewise; the steps in plain JAX of
`tests/fixtures/maxtext_steps.json`; and those of `tests/fixtures/stand_ins`. A row is judged by
XLA's peak, or by the bytes of its refusal. The model was derived from the points that
`is_fitted` names, from all steps in plain JAX and from the stand-ins but `HELD_OUT`; all other rows
were held out.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import warnings
from pathlib import Path
from typing import Any

import hlofast
from hlofast import config

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
sys.path.insert(0, str(FIXTURES))
from maxtext_points import is_fitted, refusal  # noqa: E402

LIMITS = (0.05, 0.12)
HELD_OUT = ("v5e_256_4_split", "v5p_1024_split", "v6e_256_split")
"""Stand-ins that were compiled after the model was made."""


def _records(name: str) -> dict[str, Any]:
    path = FIXTURES / name
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _of_step(step: dict[str, Any]) -> list[str]:
    """MaxText's arguments for a step of `maxtext_steps.json`."""
    return [
        f"model_name={step['model']}", f"max_target_length={step['length']}",
        f"per_device_batch_size={step['sequences']}", "attention=flash",
        f"ici_tensor_parallelism={step['tensor']}", "remat_policy=custom",
        *(f"{name}=device" for name in step.get("saved", ())),
        *(f"{name}=offload" for name in step.get("offloaded", ())),
    ]  # fmt: skip


def maxtext_rows() -> list[dict[str, Any]]:
    """One dictionary per step of MaxText, compiled with its own code or written in plain JAX."""
    found = []
    for name, record in _records("maxtext_peaks.json").items():
        effective = _maxtext(record["instance"], record["arguments"])
        if effective.traffic().gaps:
            continue  # Plans leave such steps out.
        found.append(judged(name, "MaxText", effective, record, fitted=is_fitted(name)))
    for name, pair in _records("maxtext_plans.json").items():
        for kind, record in pair.items():
            effective = _maxtext(record["instance"], record["arguments"])
            own = f"{name} {kind}"
            found.append(judged(own, "MaxText", effective, record, fitted=is_fitted(own)))
    for name, record in _records("maxtext_steps.json").items():
        effective = _maxtext(record["instance"], _of_step(record))
        found.append(judged(name, "plain JAX", effective, record, fitted=True))
    return found


def stand_in_rows() -> list[dict[str, Any]]:
    """One dictionary per stand-in of a config of AXLearn."""
    found = []
    for name, record in _records("stand_ins/stand_ins.json").items():
        if record["mistake"] is not None:
            continue
        path = FIXTURES / "configs" / f"{record['config']}.txt"
        effective = config.load(path).select(record["instance"])
        if effective.traffic().gaps:
            continue  # Plans leave such steps out.
        own = _of_stand_in(name, record)
        found.append(judged(name, "stand-in", effective, own, fitted=name not in HELD_OUT))
    return found


def _of_stand_in(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """The device's peak of a stand-in, or the bytes of its refusal."""
    if "refused" in record:
        return refusal("\n".join(record["refused"]))
    text = lzma.decompress((FIXTURES / "stand_ins" / f"{name}.txt.xz").read_bytes())
    # XLA's own figure takes the larger of the heaps in device and host memory.
    return {"peak": hlofast.loads(text).memory().hbm_peak}


def _maxtext(instance: str, arguments: list[str]) -> config.EffectiveConfig:
    return config.loads("", path="run.yml", overrides=arguments).select(instance)


def judged(
    name: str,
    origin: str,
    effective: config.EffectiveConfig,
    record: dict[str, Any],
    *,
    fitted: bool,
) -> dict[str, Any]:
    """The modelled peak of a step beside XLA's."""
    verdict = effective.verdict()
    modelled = verdict.peak_bytes
    exact = record.get("device") or record.get("peak") or record.get("used")
    return {
        "name": name,
        "origin": origin,
        "instance": record.get("instance", effective.instance.name),
        "is_fitted": fitted,
        "xla": exact,
        "modelled": modelled,
        "error": modelled / exact - 1 if modelled and exact else None,
        "least": verdict.expected_peak_bytes,
        "most": verdict.relaxed_peak_bytes,
        "status": verdict.status,
        "fits": "refused" not in record,
        "is_right": (verdict.status in ("fits", "tight")) == ("refused" not in record),
    }


def summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """Shares of rows whose error is within the limits, and whose verdict is right.

    Refusals that do not tell the bytes have no error; a peak that is not modelled counts as wrong.
    """
    known = [row for row in found if row["xla"]]
    errors = [1.0 if row["error"] is None else abs(row["error"]) for row in known]
    shares = {
        f"within {limit:.0%}": sum(own <= limit for own in errors) / max(1, len(known))
        for limit in LIMITS
    }
    right = sum(row["is_right"] for row in found) / max(1, len(found))
    return {**shares, "verdict right": right}


def main() -> None:
    """Prints the rows and the shares, fitted and held out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # Some arrays without a layout.
    found = maxtext_rows() + stand_in_rows()
    for title, is_own in (("fitted", True), ("held out", False)):
        own = [row for row in found if row["is_fitted"] == is_own]
        own.sort(key=lambda row: -abs(1 if row["error"] is None else row["error"]))
        print(f"{title}: GiB of XLA, modelled; bounds of the model")
        for row in own:
            error = "unknown" if row["error"] is None else f"{row['error']:+7.1%}"
            sizes = "".join(
                f"{(row[key] or 0) / (1 << 30):8.2f}"
                for key in ("xla", "modelled", "least", "most")
            )
            wrong = "" if row["is_right"] else f"  {'fits' if row['fits'] else 'does not fit'}"
            print(
                f"{row['name']:26}{row['origin']:10}{row['instance']:20}{sizes} {error}  "
                f"{row['status']}{wrong}"
            )
        shares = ", ".join(f"{name} {share:.0%}" for name, share in summary(own).items())
        print(f"{title}: {len(own)} steps; {shares}\n")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in summary(found).items())
    print(f"all: {len(found)} steps; {shares}; asked 80 %, 100 %, 97 %")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
