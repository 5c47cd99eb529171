"""Accuracy of the traffic that configs imply, against steps compiled for TPUs ahead of time.

    python benches/config_traffic.py [--json FILE]

Rows are the mesh axes of the points of `tests/fixtures/maxtext_points.py`, compiled with MaxText's
own code, and of stand-ins of configs of AXLearn that split the tokens of sequences. Compared are
the payloads of all collectives of a step along the axes, whatever their kind: XLA gathers weights
in loops of permutes too, and reduces where a config implies a scatter. Axes whose payload is below
a hundredth of the step's are left out. The traffic of experts, of the tokens of a sequence and of
tensor axes was modelled from the points that `is_traffic_read` names; all others were held out.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from pathlib import Path
from typing import Any

import hlofast
from hlofast import config

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
sys.path.insert(0, str(FIXTURES))
from maxtext_points import POINTS, is_traffic_read  # noqa: E402

LIMIT = 0.15
SPLIT = ("small_split", "v5e_256_4_split", "v5p_1024_split", "v6e_256_split")
"""Stand-ins along `seq`."""
_LEAST = 0.01


def rows() -> list[dict[str, Any]]:
    """One dictionary per point and axes."""
    found = []
    for name, record in json.loads((FIXTURES / "maxtext_peaks.json").read_text()).items():
        if "traffic" not in record:
            continue
        run = config.loads("", path="run.yml", overrides=POINTS[name][1])
        traffic = run.select(record["instance"]).traffic()
        if traffic.gaps:
            continue  # Plans leave such steps out.
        compiled: dict[str, int] = {}
        for axes, kinds in record["traffic"].items():
            own = _key(axes.split(","))
            compiled[own] = compiled.get(own, 0) + sum(kinds.values())
        found += _of(name, traffic, compiled)
    for name in SPLIT:
        found += _of(name, *_of_stand_in(name))
    return found


def _of_stand_in(name: str) -> tuple[config.StepTraffic, dict[str, int]]:
    """The traffic of a stand-in that its config implies, and that of its text by axes."""
    record = json.loads((FIXTURES / "stand_ins" / "stand_ins.json").read_text())[name]
    run = config.load(FIXTURES / "configs" / f"{record['config']}.txt").select(record["instance"])
    text = lzma.decompress((FIXTURES / "stand_ins" / f"{name}.txt.xz").read_bytes())
    compiled: dict[str, int] = {}
    for row in hlofast.loads(text).collectives(mesh=run.mesh).to_pylist():
        axes = _key((row["axes"] or "unknown").split("×"))
        compiled[axes] = compiled.get(axes, 0) + row["payload"] * row["multiplicity"]
    return run.traffic(), compiled


def _of(name: str, traffic: config.StepTraffic, compiled: dict[str, int]) -> list[dict[str, Any]]:
    """The rows of one step."""
    found = []
    modelled: dict[str, int] = {}
    for each in traffic.transfers:
        axes = _key(each.axes)
        modelled[axes] = modelled.get(axes, 0) + each.payload * each.count
    total = sum(compiled.values())
    is_fitted = is_traffic_read(name)
    for axes in sorted({*compiled, *modelled}):
        exact, own = compiled.get(axes, 0), modelled.get(axes, 0)
        if max(exact, own) < _LEAST * total:
            continue
        found.append({
            "name": name, "axes": axes, "compiled": exact, "modelled": own,
            "share": exact / total, "error": own / exact - 1 if exact else None,
            "is_fitted": is_fitted,
        })  # fmt: skip
    whole = sum(modelled.values())
    found.append({
        "name": name, "axes": "all", "compiled": total, "modelled": whole, "share": 1.0,
        "error": whole / total - 1, "is_fitted": is_fitted,
    })  # fmt: skip
    return found


def _key(axes: Any) -> str:
    return ",".join(sorted(axes))


def within(found: list[dict[str, Any]], limit: float = LIMIT) -> float:
    """The share of rows whose error is within a limit."""
    errors = [1.0 if row["error"] is None else abs(row["error"]) for row in found]
    return sum(own <= limit for own in errors) / max(1, len(errors))


def main() -> None:
    """Prints the rows and the shares, read and held out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    found = rows()
    for title, is_own in (("read", True), ("held out", False)):
        own = [row for row in found if row["is_fitted"] == is_own]
        print(f"{title}: GiB of the compiled step, modelled")
        for row in own:
            error = "none" if row["error"] is None else f"{row['error']:+7.1%}"
            sizes = f"{row['compiled'] / 2**30:9.2f}{row['modelled'] / 2**30:9.2f}"
            print(f"{row['name']:28}{row['axes']:20}{sizes} {error}")
        whole = [row for row in own if row["axes"] == "all"]
        parts = [row for row in own if row["axes"] != "all"]
        print(
            f"{title}: {len(whole)} steps, {within(whole):.0%} within {LIMIT:.0%}; "
            f"{len(parts)} axes, {within(parts):.0%}\n"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
