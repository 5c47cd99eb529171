"""Accuracy of the traffic that configs imply, against steps compiled for TPUs ahead of time.

    python benches/config_traffic.py [--json FILE]

Rows are the mesh axes of the points of `tests/fixtures/maxtext_points.py`, compiled with MaxText's
own code. Compared are the payloads of all collectives of a step along the axes, whatever their
kind: XLA gathers weights in loops of permutes too, and reduces where a config implies a scatter.
Axes whose payload is below a hundredth of the step's are left out. The traffic of experts, of the
tokens of a sequence and of tensor axes was modelled from the points that `is_traffic_read` names;
all others were held out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hlofast import config

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
sys.path.insert(0, str(FIXTURES))
from maxtext_points import POINTS, is_traffic_read  # noqa: E402

LIMIT = 0.15
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
        modelled: dict[str, int] = {}
        for each in traffic.transfers:
            axes = _key(each.axes)
            modelled[axes] = modelled.get(axes, 0) + each.payload * each.count
        compiled: dict[str, int] = {}
        for axes, kinds in record["traffic"].items():
            own = _key(axes.split(","))
            compiled[own] = compiled.get(own, 0) + sum(kinds.values())
        total = sum(compiled.values())
        for axes in sorted({*compiled, *modelled}):
            exact, own = compiled.get(axes, 0), modelled.get(axes, 0)
            if max(exact, own) < _LEAST * total:
                continue
            found.append({
                "name": name, "axes": axes, "compiled": exact, "modelled": own,
                "share": exact / total, "error": own / exact - 1 if exact else None,
                "is_fitted": is_traffic_read(name),
            })  # fmt: skip
        found.append({
            "name": name, "axes": "all", "compiled": total, "modelled": sum(modelled.values()),
            "share": 1.0, "error": sum(modelled.values()) / total - 1,
            "is_fitted": is_traffic_read(name),
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
