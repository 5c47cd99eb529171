"""Ranges of the time model: the 10th and 90th percentile of measured over modelled time.

    python benches/time_ranges.py [REAL_STEPS]

GPUs: instructions of the measured A100 step that were not fitted, by what bounds them and weighted
by their time, and entries of XLA's table of collectives that were not fitted. TPUs: whole steps
against what trainers published; REAL_STEPS is a folder of `NAME.txt.xz` with `NAME.json` (the keys
`mesh`, `slices`, and `device` and `step` of `published`). `python/hlofast/_time_parts.py` holds the
result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpu_accuracy
import hlofast
from hlofast._time import BOUNDS

LOW, HIGH = 0.1, 0.9


def quantiles(ratios: list[tuple[float, float]]) -> tuple[float, float]:
    """The percentiles of ratios with weights."""
    ordered = sorted(ratios)
    whole = sum(weight for _, weight in ordered)
    found = []
    for share in (LOW, HIGH):
        left = share * whole
        value = ordered[-1][0]
        for ratio, weight in ordered:
            left -= weight
            if left <= 0:
                value = ratio
                break
        found.append(value)
    return found[0], found[1]


def gpu() -> dict[str, tuple[float, float]]:
    """Measured over modelled by part of the step, on what was left out of the fits."""
    rows, _ = gpu_accuracy.step()
    module = hlofast.load(next(gpu_accuracy.A100.glob("*.hlo.pb.xz")))
    bounds = module.time(gpu_accuracy.STEP_DEVICE).column("bound")
    parts: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if not row["is_fitted"]:
            bound = BOUNDS[bounds[module[row["instruction"]].row]]
            part = bound if bound in ("compute", "memory") else "other"
            parts.setdefault(part, []).append((row["measured"] / row["model"], row["measured"]))
    sent = [row for row in gpu_accuracy.collectives() if not row["is_fitted"]]
    parts["exposed"] = [(row["measured"] / row["model"], 1.0) for row in sent]
    return {part: quantiles(ratios) for part, ratios in parts.items()}


def steps(folder: Path) -> list[tuple[str, float, float]]:
    """Name, published and modelled seconds of real steps."""
    found = []
    for path in sorted(folder.glob("*.txt.xz")):
        facts = json.loads(path.with_name(path.name[: -len(".txt.xz")] + ".json").read_text())
        published = facts.get("published", {})
        module = hlofast.load(path)
        slices = facts.get("slices") or 1
        mesh = hlofast.Mesh(facts["mesh"], slices=slices)
        time = module.time(published["device"], mesh=mesh)
        found.append((facts["name"], float(published["step"]), time.step_seconds))
    return found


def main() -> None:
    """Prints the percentiles."""
    for part, (low, high) in gpu().items():
        print(f"gpu {part:8} {low:.3f} {high:.3f}")
    for argument in sys.argv[1:]:
        ratios = []
        for name, published, modelled in steps(Path(argument)):
            print(f"{name:28} published {published:.2f} s, model {modelled:.2f} s, "
                  f"{modelled / published - 1:+.1%}")  # fmt: skip
            ratios.append((published / modelled, 1.0))
        print("tpu whole    {:.3f} {:.3f}".format(*quantiles(ratios)))


if __name__ == "__main__":
    main()
