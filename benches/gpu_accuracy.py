"""Accuracy of the GPU time model against measurements.

Called by `benches/time_accuracy.py`. Three comparisons, each with the error on what the model was
fitted on and on what was left out: XLA's measured collectives and matmuls
(`tests/fixtures/gpu_tables`, every fifth entry left out), and the instructions of a training step
on four A100 (`tests/fixtures/a100`, split by a hash of the name).
"""

from __future__ import annotations

import csv
import hashlib
import io
import lzma
import statistics
from pathlib import Path
from typing import Any

import hlofast

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
A100 = FIXTURES / "a100"
STEP_DEVICE = "a100-40gb"
COLLECTIVE_DEVICES = {
    "sm_90": "h100",
    "sm_100_B200": "b200",
    "sm_100_GB200": "gb200",
    "sm_103": "gb300",
}
MATMUL_DEVICES = {"sm_90": "h100", "sm_100_B200": "b200"}
TYPES = {"bf16": ("bf16", "bf16"), "f32": ("f32", "f32"), "f8": ("f8e4m3fn", "bf16")}
DIMENSIONS = (
    "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
)
COLLECTIVE_LIMIT, MATMUL_LIMIT, STEP_LIMIT = 0.35, 0.25, 0.25


def is_fitted(name: str) -> bool:
    """Whether the instruction is in the half that constants are fitted on."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 0


def read(name: str) -> list[dict[str, str]]:
    """Rows of a table."""
    text = lzma.decompress((FIXTURES / "gpu_tables" / f"{name}.csv.xz").read_bytes()).decode()
    return list(csv.DictReader(io.StringIO(text)))


def errors(rows: list[dict[str, Any]], limit: float) -> dict[str, Any]:
    """The errors of rows with the seconds of `model` and `measured`, by half."""
    result: dict[str, Any] = {}
    for label in ("fitted", "left_out"):
        own = [
            abs(row["model"] / row["measured"] - 1)
            for row in rows
            if row["is_fitted"] == (label == "fitted")
        ]
        result[label] = {
            "entries": len(own),
            "median_error": statistics.median(own) if own else None,
            "share_within": sum(error <= limit for error in own) / len(own) if own else None,
        }
    return result


def by(rows: list[dict[str, Any]], keys: tuple[str, ...], limit: float) -> dict[str, Any]:
    """`errors` of all rows and of each group."""
    groups: dict[str, list[dict[str, Any]]] = {"all": rows}
    for row in rows:
        groups.setdefault(" ".join(str(row[key]) for key in keys), []).append(row)
    return {name: errors(group, limit) for name, group in groups.items()}


def collectives() -> list[dict[str, Any]]:
    """Every entry of XLA's table: measured and modelled seconds."""
    rows = []
    for at, row in enumerate(read("collectives")):
        name = COLLECTIVE_DEVICES[row["device"]]
        group = 2 if row["kind"] == "collective-permute" else int(row["devices"])
        device = hlofast.devices.get(name)
        estimate = device.collective_time(row["kind"], float(row["bytes"]), group)
        rows.append(
            {
                "device": name,
                "kind": row["kind"],
                "devices": group,
                "bytes": int(row["bytes"]),
                "is_fitted": at % 5 != 4,
                "measured": int(row["nanoseconds"]) * 1e-9,
                "model": estimate.seconds,
            }
        )
    return rows


def matmuls() -> list[dict[str, Any]]:
    """Every entry of XLA's table: measured and modelled seconds of a single dot."""
    listed = read("matmuls")
    found: list[dict[str, Any]] = []
    for table, device in MATMUL_DEVICES.items():
        own = [(at, row) for at, row in enumerate(listed) if row["device"] == table]
        body = []
        for at, row in own:
            operand, result = TYPES[row["type"]]
            b, m, n, k = (row[key] for key in ("batch", "m", "n", "k"))
            body.append(
                f"  l{at} = {operand}[{b},{m},{k}]{{2,1,0}} parameter({2 * len(body)})\n"
                f"  r{at} = {operand}[{b},{k},{n}]{{2,1,0}} parameter({2 * len(body) + 1})\n"
                f"  d{at} = {result}[{b},{m},{n}]{{2,1,0}} dot(l{at}, r{at}), "
                f"{DIMENSIONS}\n"
            )
        root = "  ROOT t = () tuple()\n"
        text = "HloModule m, is_scheduled=true\n\nENTRY e {\n" + "".join([*body, root]) + "}\n"
        module = hlofast.loads(text)
        seconds = module.time(device).column("seconds")
        for at, row in own:
            found.append(
                {
                    "device": device,
                    "type": row["type"],
                    "is_fitted": at // 3 % 5 != 4,
                    "measured": int(row["nanoseconds"]) * 1e-9,
                    "model": float(seconds[module[f"d{at}"].row]),
                }
            )
    return found


def step() -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Instructions of the compute stream of the A100 step, and totals in seconds."""
    module = hlofast.load(
        next(A100.glob("*.hlo.pb.xz")), profile=A100 / "nvtx_gpu_proj_trace.csv.xz", mesh="data=4"
    )
    profile = module.profile(device=STEP_DEVICE)
    time = module.time(STEP_DEVICE)
    seconds = time.column("seconds")
    rows = []
    for row in profile.table():
        instruction = module[row["instruction"]]
        model = float(seconds[row["instruction"]])
        is_compute = instruction.opcode in ("fusion", "custom-call", "reduce", "copy", "dot")
        if not is_compute or not row["median_seconds"] or model <= 0:
            continue
        rows.append(
            {
                "instruction": instruction.name,
                "opcode": instruction.opcode,
                "is_fitted": is_fitted(instruction.name),
                "measured": row["median_seconds"] / row["calls"],
                "model": model,
            }
        )
    totals = {
        "measured_step": float(profile.step_seconds),
        "model_step": float(time.step_seconds or 0.0),
        "measured_compute": sum(row["measured"] for row in rows),
        "model_compute": sum(row["model"] for row in rows),
    }
    return rows, totals


def measure_step(ranked: Any) -> dict[str, Any]:
    """Shares of time within the limit, rank correlation and totals; `ranked` correlates ranks."""
    rows, totals = step()
    result: dict[str, Any] = dict(totals)
    for label in ("fitted", "left_out"):
        own = [row for row in rows if row["is_fitted"] == (label == "fitted")]
        near = [row for row in own if abs(row["model"] / row["measured"] - 1) <= STEP_LIMIT]
        model, measured = [row["model"] for row in own], [row["measured"] for row in own]
        long = [row for row in own if row["measured"] >= 20e-6]
        result[label] = {
            "entries": len(own),
            "share_of_time_within": sum(row["measured"] for row in near) / sum(measured),
            "share_within": len(near) / len(own),
            "spearman": ranked(model, measured),
            "spearman_above_20_us": ranked(
                [row["model"] for row in long], [row["measured"] for row in long]
            ),
            "total": sum(model) / sum(measured),
        }
    return result


def measure(ranked: Any) -> dict[str, Any]:
    """All three comparisons."""
    return {
        "collectives": by(collectives(), ("device", "kind"), COLLECTIVE_LIMIT),
        "matmuls": by(matmuls(), ("device", "type"), MATMUL_LIMIT),
        "step": measure_step(ranked),
    }


def shown(result: dict[str, Any]) -> str:
    """The figures as text."""
    lines = []
    for name, limit in (("collectives", COLLECTIVE_LIMIT), ("matmuls", MATMUL_LIMIT)):
        for group, halves in result[name].items():
            parts = [
                f"{label.replace('_', ' ')}: median error {own['median_error']:.1%}, "
                f"{own['share_within']:.0%} within {limit:.0%} of {own['entries']}"
                for label, own in halves.items()
                if own["entries"]
            ]
            lines.append(f"{name} {group:24} {'; '.join(parts)}")
    own = result["step"]
    for label in ("fitted", "left_out"):
        half = own[label]
        lines.append(
            f"A100 step, {label.replace('_', ' ')}: {half['share_of_time_within']:.1%} of the time "
            f"within {STEP_LIMIT:.0%}, {half['share_within']:.0%} of {half['entries']} "
            f"instructions, rank correlation {half['spearman']:.3f} "
            f"({half['spearman_above_20_us']:.3f} above 20 us), total {half['total']:.3f}"
        )
    for name in ("compute", "step"):
        model, measured = own[f"model_{name}"], own[f"measured_{name}"]
        lines.append(
            f"A100 {name}: model {model * 1e3:.1f} ms, measured {measured * 1e3:.1f} ms, "
            f"{model / measured - 1:+.1%}"
        )
    return "\n".join(lines)
