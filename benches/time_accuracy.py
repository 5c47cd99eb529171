"""Accuracy of the time model against the TPU compiler's own estimates, and GPU measurements.

    python benches/time_accuracy.py [--json FILE] [FOLDER ...]

The default is every TPU program in tests/fixtures (dumps, peaks, sharded). A folder holds HLO text
and either an `index.json` as written by tests/fixtures/make_dumps.py, a `truth.jsonl` as written by
make_peaks.py and make_sharded.py, or for each `NAME.txt` a `NAME.json` with the key `chips`,
`topology` or `backend`, such as `v5e:2x4`.

Rows are instructions that have `estimated_cycles`; equal rows of one program count once. Per chip
generation and bound (compute, memory) one factor is fitted on every second program (the median of
compiler over model) and the error is measured on the others, for rows above 1 % of the step.
Programs are sorted by name. Rank correlations are over all rows of a program. Without
a folder, the GPU model is judged too: see `gpu_accuracy.py`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import re
import statistics
from pathlib import Path
from typing import Any

import gpu_accuracy
import hlofast
from hlofast._time import BOUNDS

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
FOLDERS = [FIXTURES / name for name in ("dumps", "peaks", "sharded")]
SHARE = 0.01
LEAST_ROWS = 5
"""Programs with fewer rows have no rank correlation."""
SUFFIXES = (".txt", ".txt.gz", ".txt.xz")


def programs(folder: Path) -> list[tuple[str, str, Path]]:
    """Name, chip and file of every TPU program of a folder."""
    listed: list[tuple[str, str, Path]] = []
    per_core = set()
    """Programs of TPU v4 that were compiled for cores, not for megacore."""
    index = folder / "index.json"
    truth = [path for path in folder.glob("truth.jsonl*") if path.suffix in (".gz", ".xz")]
    if truth:
        opened = gzip.open if truth[0].suffix == ".gz" else lzma.open
        with opened(truth[0], "rt", encoding="utf-8") as lines:
            for line in lines:
                entry = json.loads(line)
                paths = [folder / (entry["name"] + suffix) for suffix in SUFFIXES]
                path = next((path for path in paths if path.exists()), None)
                if path is not None and isinstance(entry.get("chips"), str):
                    listed.append((entry["name"], entry["chips"], path))
                    if not entry.get("megacore"):
                        per_core.add(entry["name"])
    elif index.exists():
        for entry in json.loads(index.read_text())["dumps"]:
            paths = [folder / (entry["name"] + suffix) for suffix in SUFFIXES]
            path = next((path for path in paths if path.exists()), None)
            if path is not None:
                listed.append((entry["name"], str(entry["backend"]), path))
    else:
        for path in sorted(folder.iterdir()):
            suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
            if suffix is None:
                continue
            facts_file = path.with_name(path.name[: -len(suffix)] + ".json")
            if facts_file.exists():
                facts = json.loads(facts_file.read_text())
                topology = facts.get("chips") or facts.get("topology") or facts.get("backend")
                if isinstance(topology, str):
                    listed.append((path.name[: -len(suffix)], topology, path))
    chips = []
    for name, backend, path in sorted(listed):
        # `v5e:2x4`, `v5e/8`, `v5e-256`.
        chip = re.split("[:/-]", backend)[0]
        if chip == "v4" and name in per_core:
            chip = "tpu-v4-cores"
        try:
            hlofast.devices.get(chip)
        except (KeyError, ValueError):
            continue
        chips.append((name, chip, path))
    return chips


def rows_of(name: str, chip: str, path: Path) -> list[dict[str, Any]]:
    """Every row with an estimate: seconds of the model and of the compiler."""
    module = hlofast.load(path)
    time = module.time(chip)
    compiler = time._data.column("compiler_seconds").tolist()
    model = time._data.column("seconds").tolist()
    times = time._data.column("multiplicity").tolist()
    bounds = time._data.column("bound").tolist()
    # The compiler's estimates of collectives leave out the links.
    sent = BOUNDS.index("communication")
    known = [
        row
        for row, value in enumerate(compiler)
        if value == value and times[row] > 0 and bounds[row] != sent
    ]
    step = sum(compiler[row] * times[row] for row in known)
    rows = []
    seen = set()
    for row in known:
        instruction = module[row]
        key = (str(instruction.shape), compiler[row], model[row])
        if key in seen:
            continue
        seen.add(key)
        rows.append(
            {
                "program": name,
                "chip": chip,
                "instruction": instruction.name,
                "shape": str(instruction.shape)[:72],
                "bound": "compute" if bounds[row] == 1 else "memory",
                "kind": instruction.attributes.get("kind", instruction.opcode),
                "model": model[row],
                "compiler": compiler[row],
                "share": compiler[row] * times[row] / step,
            }
        )
    return rows


def ranks(values: list[float]) -> list[float]:
    """Ranks in ascending order; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    result = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for place in range(at, end):
            result[order[place]] = (at + end - 1) / 2
        at = end
    return result


def spearman(left: list[float], right: list[float]) -> float:
    """Rank correlation."""
    return statistics.correlation(ranks(left), ranks(right))


def measure(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Correlations, factors and errors by chip and over all."""
    result: dict[str, Any] = {"chips": {}}
    errors: list[float] = []
    for chip in sorted({row["chip"] for row in rows}):
        of_chip = [row for row in rows if row["chip"] == chip]
        names = sorted({row["program"] for row in of_chip})
        fitted = set(names[::2])
        factors = {}
        for bound in ("compute", "memory"):
            fit = [row for row in of_chip if row["bound"] == bound and row["program"] in fitted]
            large = [row for row in fit if row["share"] >= SHARE] or fit
            ratios = [row["compiler"] / row["model"] for row in large if row["model"] > 0]
            factors[bound] = statistics.median(ratios) if ratios else 1.0
        for row in of_chip:
            row["error"] = abs(row["model"] * factors[row["bound"]] / row["compiler"] - 1)
        tested = [row for row in of_chip if row["program"] not in fitted]
        own = [row["error"] for row in tested if row["share"] >= SHARE]
        errors += own
        result["chips"][chip] = {
            "programs": len(names),
            "rows": len(of_chip),
            "tested_rows": len(own),
            "spearman": spearman(
                [row["model"] for row in of_chip], [row["compiler"] for row in of_chip]
            ),
            "factors": factors,
            "median_error": statistics.median(own) if own else None,
        }
    model, compiler = [row["model"] for row in rows], [row["compiler"] for row in rows]
    result["rows"] = len(rows)
    result["spearman"] = spearman(model, compiler)
    each = []
    for name in sorted({row["program"] for row in rows}):
        own = [row for row in rows if row["program"] == name]
        if len(own) >= LEAST_ROWS:
            ranked = spearman([row["model"] for row in own], [row["compiler"] for row in own])
            each.append((ranked, name))
    result["programs"] = {name: ranked for ranked, name in sorted(each)}
    result["tested_rows"] = len(errors)
    result["median_error"] = statistics.median(errors) if errors else None
    result["errors_below_15_percent"] = (
        sum(error <= 0.15 for error in errors) / len(errors) if errors else None
    )
    worst: dict[tuple[str, float, float], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: -row["error"]):
        if row["share"] >= SHARE:
            worst.setdefault((row["program"], row["model"], row["compiler"]), row)
    result["worst"] = [row | {"reason": reason(row)} for row in list(worst.values())[:10]]
    return result


def reason(row: dict[str, Any]) -> str:
    """The likely reason for the error, from the shape and kind of the row."""
    if row["kind"] == "kOutput" and row["model"] < row["compiler"]:
        return "matmul over a window or after elementwise work, which the model underestimates"
    if row["kind"] == "kOutput":
        return "matmul whose result the compiler passes on in VMEM without waiting"
    if row["model"] < row["compiler"]:
        return "waits for a layout that vector registers cannot hold, or reduces across lanes"
    return "bytes that the compiler does not move"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="time model against the TPU compiler")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for folder in arguments.folders or FOLDERS:
        for name, chip, path in programs(folder):
            rows += rows_of(name, chip, path)
    result = measure(rows)
    for chip, of_chip in result["chips"].items():
        factors = ", ".join(f"{bound} {factor:.3f}" for bound, factor in of_chip["factors"].items())
        error = of_chip["median_error"]
        text = "no row tested" if error is None else f"median error {error:.1%}"
        print(
            f"{chip:4} {of_chip['programs']:3} programs {of_chip['rows']:5} rows  "
            f"rank correlation {of_chip['spearman']:.4f}  factors {factors}  "
            f"{text} of {of_chip['tested_rows']}"
        )
    print(
        f"all  {result['rows']} rows  rank correlation {result['spearman']:.4f}  median error "
        f"{result['median_error']:.1%} of {result['tested_rows']}, "
        f"{result['errors_below_15_percent']:.0%} of them below 15 %"
    )
    ranked = list(result["programs"].values())
    high = sum(own >= 0.95 for own in ranked)
    print(
        f"rank correlation by program: {high} of {len(ranked)} at 0.95 or more, median "
        f"{statistics.median(ranked):.4f}, lowest "
        + ", ".join(f"{name} {own:.3f}" for name, own in list(result["programs"].items())[:5])
    )
    print("\nworst above 1 % of the step (factors applied):")
    for row in result["worst"]:
        print(
            f"  {row['error']:6.0%}  {row['chip']} {row['program']} {row['instruction']} "
            f"{row['kind']} {row['shape']}: compiler {row['compiler'] * 1e6:.2f} us, model "
            f"{row['model'] * 1e6:.2f} us; {row['reason']}"
        )
    if not arguments.folders:
        result["gpu"] = gpu_accuracy.measure(spearman)
        print(f"\n{gpu_accuracy.shown(result['gpu'])}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
