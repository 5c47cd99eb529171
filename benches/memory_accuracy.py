"""Accuracy of the memory figures against `compiled.memory_analysis()` and XLA's own verdict.

    python benches/memory_accuracy.py [--json FILE]

The programs are those of tests/fixtures/peaks, compiled ahead of time for TPU v4, v5e, v5p and v6e.
Half of the programs were held out while the model was made. Figures: the error of the XLA peak;
arguments, results, aliases and host memory that are exact; the error of `temp`; the error of what
is allocated in HBM; and, for the programs near the limit of their device, whether the verdict is
XLA's.
"""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
import warnings
from pathlib import Path
from typing import Any

import hlofast

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures" / "peaks"
PARTS = ("argument", "output", "alias", "host_argument", "host_output", "host_alias", "host_temp")
ONE_CORE = 15.25 * 2**30
"""HBM of a program for one core of TPU v4; for both cores, the device's own figure applies."""


def programs() -> list[dict[str, Any]]:
    """What XLA told about every program."""
    with lzma.open(FIXTURES / "truth.jsonl.xz", "rt") as lines:
        return [json.loads(line) for line in lines]


def text_of(name: str) -> bytes:
    """The text of a program after optimisation."""
    return lzma.decompress((FIXTURES / f"{name}.txt.xz").read_bytes())


def row_of(record: dict[str, Any]) -> dict[str, Any]:
    """The figures of a program beside XLA's figures."""
    chip = record["chips"].split(":")[0]
    is_one_core = chip == "v4" and not record["megacore"]
    module = hlofast.loads(text_of(record["name"]))
    module = module.with_context(device=f"tpu-{chip}", hbm=int(ONE_CORE) if is_one_core else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some arrays without a layout; the figures stand.
        memory = module.memory()
    facts = {fact.name: fact.value for fact in memory.facts}
    allocated, assigned = memory.allocated_in_hbm, record["assigned"]["0"]
    row = {
        "program": record["name"],
        "chip": chip,
        "held_out": record["held_out"],
        "allocated": allocated,
        "allocated_error": None if allocated is None else allocated / assigned - 1,
        "fits": facts["fits"],
        "is_near_limit": record["limit"],
        "is_right": facts["fits"] == ("refused" not in record),
    }
    truth = record.get("memory_analysis")
    if truth is not None:
        row["peak_error"] = memory.xla_peak / truth["peak_memory_in_bytes"] - 1
        wrong = [part for part in PARTS if memory.xla[key(part)] != truth[key(part)]]
        row["wrong_parts"] = wrong
        shown = {part["part"]: part["bytes"] for part in memory.tables["xla"]}
        row["temp_error"] = off(shown["temp"], truth[key("temp")])
    return row


def off(value: int, truth: int) -> float:
    """The relative error; without temporaries in truth, 0 or 1."""
    return value / truth - 1 if truth else float(value != 0)


def key(part: str) -> str:
    """The name of a part in `CompiledMemoryStats`."""
    return f"{part}_size_in_bytes"


def measure(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors and counts of some programs."""
    peaks = sorted(abs(row["peak_error"]) for row in rows if "peak_error" in row)
    allocated = sorted(
        abs(row["allocated_error"]) for row in rows if row["allocated_error"] is not None
    )
    temps = sorted(abs(row["temp_error"]) for row in rows if "temp_error" in row)
    judged = [row for row in rows if row["is_near_limit"]]
    return {
        "programs": len(rows),
        "peaks": len(peaks),
        "peak_median": statistics.median(peaks),
        "peak_within_0.1_percent": sum(error <= 1e-3 for error in peaks) / len(peaks),
        "peak_worst": peaks[-1],
        "exact_parts": sum(row.get("wrong_parts") == [] for row in rows) / len(peaks),
        "temp_median": statistics.median(temps),
        "temp_exact": sum(error == 0 for error in temps) / len(temps),
        "temp_within_1_percent": sum(error <= 1e-2 for error in temps) / len(temps),
        "temp_worst": temps[-1],
        "allocated": len(allocated),
        "allocated_median": statistics.median(allocated),
        "allocated_within_0.2_percent": sum(error <= 2e-3 for error in allocated) / len(allocated),
        "allocated_worst": allocated[-1],
        "judged": len(judged),
        "verdicts_right": sum(row["is_right"] for row in judged) / len(judged),
    }


def halves(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The measures of all programs, of the modelled half, and of the held-out half."""
    return {
        "all": measure(rows),
        "fitted": measure([row for row in rows if not row["held_out"]]),
        "held out": measure([row for row in rows if row["held_out"]]),
    }


def main() -> None:
    """Prints the measures and the programs with an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write rows and measures")
    arguments = parser.parse_args()
    rows = [row_of(record) for record in programs()]
    measured = halves(rows)
    for name in measured["all"]:
        values = (measured[half][name] for half in measured)
        shown = (f"{value:12,}" if isinstance(value, int) else f"{value:12.4%}" for value in values)
        print(f"{name:32}", *shown)
    for row in sorted(rows, key=lambda row: -abs(row.get("peak_error", 0.0))):
        wrong = row.get("wrong_parts")
        if row.get("peak_error") or wrong or not row["is_right"]:
            print(f"{row['program']:28} peak {row.get('peak_error', 0.0):+.4%}", wrong, row["fits"])
    for row in sorted(rows, key=lambda row: -abs(row["allocated_error"] or 0.0))[:8]:
        print(f"{row['program']:28} allocated {row['allocated_error'] or 0.0:+.4%}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"measures": measured, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
