"""Fits the constants of memory-bound GPU kernels on a measured A100 step, and prints them.

    python benches/fit_a100.py

The step is `tests/fixtures/a100`. Constants are fitted on the instructions whose name hashes to an
even byte (`gpu_accuracy.is_fitted`) and judged on the others. The formula is that of
`rust/hlofast/src/time/gpu.rs`. Then `matmul_efficiency` is fitted on the kernels with matmuls by
the built model. Needs NumPy.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

import hlofast
from fit_gpu import Array, minimum
from gpu_accuracy import is_fitted

FOLDER = Path(__file__).parent.parent / "tests" / "fixtures" / "a100"
DEVICE = "a100-40gb"
FULL_RATE = 108 * 1.41e9
"""Cores times clock."""
NAMES = ("achieved", "launch", "reduction", "row", "column", "turned", "sliced", "transcendental")


def measured() -> Any:
    """The joined profile of the step."""
    module = hlofast.load(
        next(FOLDER.glob("*.hlo.pb.xz")),
        profile=FOLDER / "nvtx_gpu_proj_trace.csv.xz",
        mesh="data=4",
    )
    return module.profile(device=DEVICE)


def elements(shape: Any) -> int:
    """Elements of an array."""
    return math.prod(shape.dimensions)


def features(instruction: Any) -> list[float]:
    """Reductions, elements reduced along rows and columns, elements written turned, and sliced."""
    if instruction.opcode == "fusion":
        body = list(instruction.called_computations[0])
        root = body[-1]
        roots = list(root.operands) if root.opcode == "tuple" else [root]
    else:
        body = roots = [instruction]
    rows = columns = turned = 0.0
    reductions = [inner for inner in body if inner.opcode == "reduce"]
    for inner in reductions:
        array = inner.operands[0].shape
        minor = array.layout.minor_to_major[0] if array.layout else len(array.dimensions) - 1
        if minor in inner.attributes["dimensions"]:
            rows += elements(array)
        else:
            columns += elements(array)
    for inner in roots:
        if inner.opcode == "transpose" and reductions:
            permutation = inner.attributes["dimensions"]
            if permutation[-1] != len(permutation) - 1:
                turned += elements(inner.shape)
    slices = [elements(inner.shape) for inner in roots if inner.opcode == "slice"]
    sliced = float(sum(slices)) if len(slices) > 1 else 0.0
    return [float(bool(reductions)), rows, columns, turned, sliced]


def model(p: Array, rows: Array, peak: float = 1.5552e12) -> Array:
    """Seconds of kernels without products."""
    e = np.exp(p)
    achieved = 1 / (1 + np.exp(-p[0]))
    work = rows[:, 2] / e[3] + rows[:, 3] / e[4] + rows[:, 4] / e[5] + rows[:, 5] / e[6]
    work = (work + rows[:, 6] / e[7]) / FULL_RATE
    return np.asarray(1e-6 * (e[1] + e[2] * rows[:, 1]) + rows[:, 0] / (achieved * peak) + work)


def main() -> None:
    """Fit, judge and print."""
    profile = measured()
    module = profile.module
    cost = {row["instruction"]: row for row in module.cost().table()}
    products = {row["name"] for row in module.cost().matmuls()}
    names: list[str] = []
    data: list[list[float]] = []
    seconds: list[float] = []
    for row in profile.table():
        instruction = module[row["instruction"]]
        if instruction.opcode not in ("fusion", "reduce") or not row["median_seconds"]:
            continue
        if instruction.opcode == "fusion" and any(
            inner.name in products for inner in instruction.called_computations[0]
        ):
            continue
        own = cost[row["instruction"]]
        moved = own["bytes_read"] + own["bytes_written"]
        data.append([moved, *features(instruction), own["transcendentals"] or 0])
        names.append(instruction.name)
        seconds.append(row["median_seconds"] / row["calls"])
    rows, clock = np.array(data, float), np.array(seconds)
    fitted = np.array([is_fitted(name) for name in names])

    def loss(p: Array) -> float:
        error = np.abs(np.log(model(p, rows[fitted]) / clock[fitted]))
        weight = clock[fitted] + 1e-6
        return float(
            np.sum(weight * (np.minimum(error, 1) + 0.5 * np.maximum(error - 0.2, 0)))
            / np.sum(clock[fitted])
        )

    start = np.array([2.2, *np.log([2.1, 0.8, 11, 2, 0.9, 1.8, 16])])
    p = minimum(loss, start, 5)
    values = [1 / (1 + math.exp(-p[0])), *np.exp(p[1:])]
    for name, value in zip(NAMES, values, strict=True):
        print(f"{name}: {value:.3g}")
    for label, half in (("fitted", fitted), ("judged", ~fitted)):
        own, estimate = clock[half], model(p, rows[half])
        error = np.abs(estimate / own - 1)
        share = own[error < 0.25].sum() / own.sum()
        print(
            f"{label}: {share:.1%} of the time within 25 %, {np.mean(error < 0.25):.1%} of "
            f"{len(own)} kernels, {estimate.sum() * 1e3:.2f} ms for {own.sum() * 1e3:.2f} ms"
        )
    efficiency(profile, names)


def efficiency(profile: Any, others: list[str]) -> None:
    """Fit, judge and print `matmul_efficiency`."""
    module, known = profile.module, set(others)
    own = [
        (module[row["instruction"]], row["median_seconds"] / row["calls"])
        for row in profile.table()
        if module[row["instruction"]].opcode in ("fusion", "custom-call") and row["median_seconds"]
    ]
    own = [(instruction, clock) for instruction, clock in own if instruction.name not in known]
    clock = np.array([seconds for _, seconds in own])
    fitted = np.array([is_fitted(instruction.name) for instruction, _ in own])
    device = hlofast.devices.get(DEVICE)

    def of(share: float) -> Array:
        seconds = module.time(device.replace(matmul_efficiency=share)).column("seconds")
        return np.array([float(seconds[instruction.row]) for instruction, _ in own])

    def distance(share: float) -> float:
        # The total: single shapes err by the tiles that a library chooses.
        return abs(float(of(share)[fitted].sum() / clock[fitted].sum()) - 1)

    best = min((at / 100 for at in range(80, 101)), key=distance)
    print(f"matmul_efficiency: {best:.2f}")
    for label, half in (("fitted", fitted), ("judged", ~fitted)):
        estimate = of(best)[half]
        error = np.abs(estimate / clock[half] - 1)
        share = clock[half][error < 0.25].sum() / clock[half].sum()
        print(
            f"{label}: {share:.1%} of the time within 25 % of {half.sum()} kernels with matmuls, "
            f"{estimate.sum() * 1e3:.2f} ms for {clock[half].sum() * 1e3:.2f} ms"
        )


if __name__ == "__main__":
    main()
