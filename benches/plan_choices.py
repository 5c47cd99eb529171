"""The best choice of a plan beside the choice that MaxText's authors published, both compiled.

    python benches/plan_choices.py

Records are those of `tests/fixtures/make_maxtext_plans.py`. "text" is the step that `Module.time`
models from the compiled program; "config" is the step that the plan promised. The plan wins where
its choice fits and its step per sequence is no longer than that of the published choice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent.parent / "tests" / "fixtures" / "maxtext_plans.json"
TIE = 0.005
"""Steps that differ by less count as equal, as in plans."""


def rows() -> list[dict[str, Any]]:
    """One dictionary per run of which both choices were compiled."""
    found = []
    for name, pair in json.loads(RECORDS.read_text()).items():
        if len(pair) < 2:
            continue
        row: dict[str, Any] = {"name": name, "instance": pair["plan"]["instance"]}
        for kind, record in pair.items():
            row[kind] = record.get("seconds")
            row[f"{kind}_peak"] = record.get("device") or record.get("peak") or record.get("used")
            row[f"{kind}_config"] = record["promised"]["seconds"]
            row[f"{kind}_fits"] = "refused" not in record
        row["ratio"] = None
        if row["plan"] and row["published"]:
            row["ratio"] = row["plan"] / row["published"]
        row["wins"] = row["plan_fits"] and (not row["published_fits"] or row["ratio"] <= 1 + TIE)
        found.append(row)
    return found


def main() -> None:
    """Prints one line per run and the counts."""
    found = rows()
    print(f"{'run':16}{'instance':10}{'':10}{'peak':>10}{'text':>10}{'config':>10}")
    for row in found:
        for kind in ("published", "plan"):
            step = f"{row[kind]:8.3f} s" if row[kind] else "  refused "
            peak = f"{(row[f'{kind}_peak'] or 0) / 2**30:6.2f} GiB"
            head = f"{row['name']:16}{row['instance']:10}{kind:10}"
            print(f"{head}{peak}{step}{row[f'{kind}_config']:8.3f} s")
        ratio = "" if row["ratio"] is None else f"{row['ratio'] - 1:+.1%} "
        print(f"{'':36}{ratio}{'as fast or faster' if row['wins'] else 'slower'}")
    fits = sum(row["plan_fits"] for row in found)
    wins = sum(row["wins"] for row in found)
    counts = f"the plan's choice fits in {fits}, is as fast or faster in {wins}"
    print(f"{len(found)} runs: {counts}; asked 10, 10, 9")


if __name__ == "__main__":
    main()
