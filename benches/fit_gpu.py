"""Fits the constants of the GPU time model on XLA's measured tables, and prints them as Rust.

    python benches/fit_gpu.py [collectives | matmuls]

The tables are `tests/fixtures/gpu_tables`. Every fifth entry is left out of the fit;
`benches/time_accuracy.py` judges the built model on those. The formulas are those of
`rust/hlofast/src/time/gpu_collectives.rs` and `gpu_products.rs`. Needs NumPy.
"""

from __future__ import annotations

import csv
import io
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TABLES = Path(__file__).parent.parent / "tests" / "fixtures" / "gpu_tables"
MIB = 2.0**20
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
NETWORKS = {
    "HOPPER": (("sm_90",), (2, 4, 8)),
    "BLACKWELL": (("sm_100_B200",), (2, 4, 8)),
    "RACK": (("sm_100_GB200", "sm_103"), (4, 8, 16, 32, 64)),
}
"""By network: devices of the table, and the group sizes with a latency of their own."""
PERMUTE_SIZES = tuple(4.0**power for power in range(5, 18))
CHIPS = {
    "sm_90": (132, 3.35e12, {"bf16": 989.4e12, "f32": 494.7e12, "f8": 1978.9e12}),
    "sm_100_B200": (148, 8e12, {"bf16": 2250e12, "f32": 1125e12, "f8": 4500e12}),
}
"""Cores, HBM bandwidth and peaks, as in devices.toml (32-bit floats run as TF32)."""
BYTES = {"bf16": (2, 2), "f32": (4, 4), "f8": (1, 2)}
TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (128, 256), (256, 128))
SPLITS = (1, 2, 4, 8, 16)


def read(name: str) -> list[dict[str, str]]:
    """Rows of a table of the fixtures."""
    text = lzma.decompress((TABLES / f"{name}.csv.xz").read_bytes()).decode()
    return list(csv.DictReader(io.StringIO(text)))


def minimum(loss: Callable[[Array], float], start: Array, rounds: int = 4) -> Array:
    """The place of the minimum, by the downhill simplex method, restarted `rounds` times."""
    best = start
    for _ in range(rounds):
        size = len(best)
        simplex = [
            best,
            *(best + 0.1 * np.maximum(np.abs(best), 0.5) * row for row in np.eye(size)),
        ]
        values = [loss(point) for point in simplex]
        for _ in range(400 * size):
            order = np.argsort(values)
            simplex = [simplex[at] for at in order]
            values = [values[at] for at in order]
            if values[-1] - values[0] < 1e-7:
                break
            center = np.mean(simplex[:-1], axis=0)
            step = center - simplex[-1]
            point, value = center + step, loss(center + step)
            if value < values[0]:
                further = center + 2 * step
                reached = loss(further)
                if reached < value:
                    point, value = further, reached
            elif value >= values[-2]:
                point = center + (0.5 if value < values[-1] else -0.5) * step
                value = loss(point)
                if value >= values[-1]:
                    simplex = [simplex[0] + 0.5 * (corner - simplex[0]) for corner in simplex]
                    values = [loss(corner) for corner in simplex]
                    continue
            simplex[-1], values[-1] = point, value
        best = simplex[int(np.argmin(values))]
    return best


def distance(model: Array, measured: Array) -> float:
    """Mean error in logarithms; errors above 30 % weigh more."""
    error = np.abs(np.log(model / measured))
    return float(np.mean(error) + 0.3 * np.mean(np.maximum(error - 0.3, 0)))


def shown(name: str, model: Array, measured: Array, out: NDArray[np.bool_], limit: float) -> None:
    """Print both errors."""
    error = np.abs(model / measured - 1)
    for label, rows in (("fit", ~out), ("left out", out)):
        own = error[rows]
        print(
            f"// {name}, {label}: median {np.median(own):.1%}, "
            f"{np.mean(own <= limit):.1%} within {limit:.0%}, {len(own)} entries"
        )


def wire_share(kind: str, devices: Array) -> Array:
    """Bytes on the wire over bytes of the array."""
    return (2 if kind == "all-reduce" else 1) * (devices - 1) / devices


def collective(p: Array, kind: str, sizes: tuple[int, ...], devices: Array, size: Array) -> Array:
    """Seconds by the formula of gpu_collectives.rs; `p` is scale, growth, crowd, sharpness and the
    latencies.
    """
    wire = wire_share(kind, devices) * size / MIB
    latency = np.exp(np.interp(np.log2(devices), np.log2(sizes), p[4:]))
    transfer = np.exp(p[0]) * 1e-6 * wire ** p[1] * devices ** p[2]
    sharpness = np.exp(p[3])
    return np.asarray((latency**sharpness + transfer**sharpness) ** (1 / sharpness))


def fit_collectives() -> None:
    """Fit and print the constants of gpu_collectives.rs."""
    rows = read("collectives")
    every, measured_all, left = [], [], []
    for network, (names, sizes) in NETWORKS.items():
        print(f"const {network}: Table = Table {{")
        for kind in KINDS:
            own = [
                (at, row)
                for at, row in enumerate(rows)
                if row["device"] in names and row["kind"] == kind
            ]
            devices = np.array([float(row["devices"]) for _, row in own])
            size = np.array([float(row["bytes"]) for _, row in own])
            measured = np.array([float(row["nanoseconds"]) * 1e-9 for _, row in own])
            out = np.array([at % 5 == 4 for at, _ in own])

            def loss(
                p: Array,
                kind: str = kind,
                sizes: tuple[int, ...] = sizes,
                devices: Array = devices[~out],
                size: Array = size[~out],
                measured: Array = measured[~out],
            ) -> float:
                return distance(collective(p, kind, sizes, devices, size), measured)

            p = minimum(loss, np.array([1.3, 0.97, 0.0, 0.0, *[np.log(25e-6)] * len(sizes)]))
            model = collective(p, kind, sizes, devices, size)
            shown(f"{network} {kind}", model, measured, out, 0.35)
            every.append(model)
            measured_all.append(measured)
            left.append(out)
            micros = ", ".join(
                f"({n}, {np.exp(a) * 1e6:.1f})" for n, a in zip(sizes, p[4:], strict=True)
            )
            print(
                f"    {kind.replace('-', '_')}: Curve {{ scale: {np.exp(p[0]):.3f}, "
                f"growth: {p[1]:.3f}, crowd: {p[2]:.3f}, sharpness: {np.exp(p[3]):.3f},"
            )
            print(f"    latencies: &[{micros}] }},")
        own = [
            (at, row)
            for at, row in enumerate(rows)
            if row["device"] in names and row["kind"] == "collective-permute"
        ]
        size = np.array([float(row["bytes"]) for _, row in own])
        measured = np.array([float(row["nanoseconds"]) * 1e-9 for _, row in own])
        out = np.array([at % 5 == 4 for at, _ in own])
        knots = np.log(np.array(PERMUTE_SIZES))

        near = np.abs(np.log(size)[:, None] - knots) < 0.7
        found = [np.median(np.log(measured[rows & ~out])) for rows in near.T if (rows & ~out).any()]
        p = np.array(found)
        knots = knots[: len(p)]
        slope = (np.log(size) - knots[-1]).clip(min=0)
        model = np.exp(np.interp(np.log(size), knots, p) + slope)
        shown(f"{network} permute", model, measured, out, 0.35)
        every.append(model)
        measured_all.append(measured)
        left.append(out)
        print(f"    permute: &[{', '.join(f'{np.exp(a) * 1e6:.1f}' for a in p)}],\n}};")
    shown("all", np.concatenate(every), np.concatenate(measured_all), np.concatenate(left), 0.35)


def product(
    p: Array, shape: Array, chip: tuple[int, float, float], sizes: tuple[int, int]
) -> Array:
    """Seconds by the formula of gpu_products.rs."""
    batch, m, n, k = shape.T
    cores, bandwidth, peak = chip
    start, depth, split_cost, memory = np.exp(p[:4])
    shares = dict(zip((4096, 8192, 16384, 32768), 1 / (1 + np.exp(-p[4:8])), strict=True))
    best = np.full(len(m), np.inf)
    for rows, columns in TILES:
        for split in SPLITS:
            waves = np.ceil(batch * np.ceil(m / rows) * np.ceil(n / columns) * split / cores)
            work = 2 * rows * columns * (k / split + depth)
            seconds = waves * work * cores / (peak * shares[rows * columns])
            if split > 1:
                partial = 8 * split * batch * m * n / (bandwidth * memory)
                seconds = seconds + split_cost * np.log2(split) + partial
            best = np.minimum(best, seconds)
    moved = batch * ((m * k + k * n) * sizes[0] + m * n * sizes[1])
    return np.asarray(start + np.maximum(best, moved / (bandwidth * memory)))


def fit_matmuls() -> None:
    """Fit and print the constants of gpu_products.rs."""
    rows = read("matmuls")
    every, measured_all, left = [], [], []
    for device, (cores, bandwidth, peaks) in CHIPS.items():
        for kind, peak in peaks.items():
            own = [
                (at // 3, row)
                for at, row in enumerate(rows)
                if row["device"] == device and row["type"] == kind
            ]
            shape = np.array(
                [[float(row[key]) for key in ("batch", "m", "n", "k")] for _, row in own]
            )
            measured = np.array([float(row["nanoseconds"]) * 1e-9 for _, row in own])
            out = np.array([at % 5 == 4 for at, _ in own])
            # Entries above the peak of the chip cannot be right; they count as at the peak.
            ideal = 2 * shape.prod(axis=1) / peak
            print(f"// {device} {kind}: {np.sum(measured < ideal)} entries above the peak")
            target = np.maximum(measured, ideal)
            chip = (cores, bandwidth, peak)

            def loss(
                p: Array,
                shape: Array = shape[~out],
                target: Array = target[~out],
                chip: tuple[int, float, float] = chip,
                sizes: tuple[int, int] = BYTES[kind],
            ) -> float:
                bound = 1e3 * max(0.0, float(p[3]))
                return distance(product(p, shape, chip, sizes), target) + bound

            start = np.array(
                [np.log(5e-6), np.log(200), np.log(2e-6), np.log(0.85), 0, 0.5, 1.5, 2]
            )
            p = minimum(loss, start, 3)
            model = product(p, shape, chip, BYTES[kind])
            shown(f"{device} {kind}", model, measured, out, 0.25)
            every.append(model)
            measured_all.append(measured)
            left.append(out)
            shares = ", ".join(f"{1 / (1 + np.exp(-a)):.3f}" for a in p[4:8])
            print(
                f"    Products {{ start: {np.exp(p[0]):.3g}, depth: {np.exp(p[1]):.1f}, "
                f"split: {np.exp(p[2]):.3g}, memory: {np.exp(p[3]):.3f}, shares: [{shares}] }},"
            )
    shown("all", np.concatenate(every), np.concatenate(measured_all), np.concatenate(left), 0.25)


if __name__ == "__main__":
    if "matmuls" not in sys.argv[1:]:
        fit_collectives()
    if "collectives" not in sys.argv[1:]:
        fit_matmuls()
