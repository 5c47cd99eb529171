"""Fits the constants of memory-bound kernels of Hopper GPUs on measured steps, and prints them.

    python benches/fit_h100.py

The steps are `tests/fixtures/h100`. Constants are fitted on the programs of `gpu_texts.FITTED`
and judged on the others. The formula is that of `rust/hlofast/src/time/gpu.rs`; the features of a
kernel are those of `fit_a100.py`, and elements that an element-wise kernel writes transposed.
Needs NumPy.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

import hlofast
from fit_a100 import elements, features
from fit_gpu import Array, minimum

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fixtures"))

import gpu_texts

NAMES = ("achieved", "launch", "reduction", "row", "column", "turned", "sliced", "transcendental")
NAMES += ("looped",)


def looped(instruction: Any) -> float:
    """Elements that an element-wise kernel writes transposed."""
    if str(instruction.attributes.get("kind")) != "kLoop":
        return 0.0
    found = 0.0
    for inner in instruction.called_computations[0]:
        if inner.opcode == "transpose":
            order = inner.attributes["dimensions"]
            if order[-1] != len(order) - 1:
                found = max(found, float(elements(inner.shape)))
    return found


def measured() -> list[dict[str, Any]]:
    """Kernels without products: program, features, executions and seconds of one call."""
    texts = gpu_texts.texts()
    found: list[dict[str, Any]] = []
    by_program: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in gpu_texts.kernels():
        by_program.setdefault((row["program"], row["policy"]), []).append(row)
    for pair, rows in by_program.items():
        module = hlofast.loads(texts[pair])
        time = module.time(gpu_texts.DEVICE)
        seconds = time.column("seconds")
        executions = {own["instruction"]: own["multiplicity"] for own in time.table()}
        cost = {own["instruction"]: own for own in module.cost().table()}
        products = {own["name"] for own in module.cost().matmuls()}
        for row in rows:
            instruction = module[row["instruction"]]
            body = instruction.called_computations
            is_product = instruction.opcode == "fusion" and any(
                inner.name in products for inner in body[0]
            )
            once = float(seconds[instruction.row])
            if instruction.opcode not in ("fusion", "reduce") or is_product or not once > 0:
                continue
            own = cost[instruction.row]
            moved = own["bytes_read"] + own["bytes_written"]
            figures = [moved, *features(instruction), own["transcendentals"] or 0]
            runs = executions[instruction.row] or 1
            found.append(
                {
                    "program": pair[0],
                    "features": [*figures, looped(instruction)],
                    "runs": runs,
                    "seconds": float(row["seconds"]) / runs,
                    "model": once,
                }
            )
    return found


def model(p: Array, rows: Array, peak: float, rate: float) -> Array:
    """Seconds of kernels; `rate` are cores times clock."""
    e = np.exp(p)
    achieved = 1 / (1 + np.exp(-p[0]))
    work = sum(rows[:, at] / e[at + 1] for at in range(2, 8)) / rate
    return np.asarray(1e-6 * (e[1] + e[2] * rows[:, 1]) + rows[:, 0] / (achieved * peak) + work)


def main() -> None:
    """Fit, judge and print."""
    device = hlofast.devices.get(gpu_texts.DEVICE)
    peak = float(device.value("hbm_bandwidth") or 0)
    rate = float(device.value("cores") or 0) * float(device.value("clock") or 0)
    kernels = [own for own in measured() if own["seconds"] > 0]
    rows = np.array([own["features"] for own in kernels], float)
    clock = np.array([own["seconds"] for own in kernels])
    runs = np.array([own["runs"] for own in kernels])
    built = np.array([own["model"] for own in kernels])
    fitted = np.array([own["program"] in gpu_texts.FITTED for own in kernels])

    def loss(p: Array) -> float:
        error = np.abs(np.log(model(p, rows[fitted], peak, rate) / clock[fitted]))
        weight = (clock[fitted] + 1e-6) * runs[fitted]
        total = np.sum(clock[fitted] * runs[fitted])
        return float(
            np.sum(weight * (np.minimum(error, 1) + 0.5 * np.maximum(error - 0.2, 0))) / total
        )

    start = np.array([2.2, *np.log([1.4, 0.8, 30, 20, 0.9, 1.8, 60, 0.62])])
    p = minimum(loss, start, 5)
    values = [peak / (1 + math.exp(-p[0])), *np.exp(p[1:])]
    for name, value in zip(NAMES, values, strict=True):
        print(f"{name}: {value:.4g}")
    for label, half in (("fitted", fitted), ("judged", ~fitted)):
        for of, estimate in (("fit", model(p, rows, peak, rate)), ("built model", built)):
            own, weight = estimate[half], (clock * runs)[half]
            error = np.abs(own / clock[half] - 1)
            share = weight[error < 0.25].sum() / weight.sum()
            total = np.sum(own * runs[half]) / weight.sum()
            print(
                f"{label}, {of}: {share:.1%} of the time within 25 %, {np.mean(error < 0.25):.1%} "
                f"of {len(own)} kernels, total {total:.3f} of the measured"
            )


if __name__ == "__main__":
    main()
