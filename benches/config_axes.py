"""Steps compiled along mesh axes that plans leave at 1, beside those along the axis they size.

    python benches/config_axes.py

Records are those of `tests/fixtures/make_maxtext_peaks.py`; "step" is the step that `Module.time`
models from the compiled text. Both steps of a pair have one model, batch, policy and instance.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent.parent / "tests" / "fixtures" / "maxtext_peaks.json"
PAIRS = {
    "8b_tensor_sequence_v5p": "8b_tensor_v5p",
    "13b_tensor_sequence_v6e": "13b_tensor_v6e",
    "8b_tensor_transpose_v5p": "8b_tensor_v5p",
    "13b_tensor_transpose_v5p": "13b_tensor4_v5p",
    "8b_sequence_v5p": "8b_context_v5p",
    "7b_sequence_v5e": "7b_context_v5e",
    "7b_autoregressive_v5e": "7b_tensor_v5e",
    "7b_stage_v5p": "7b_full_v5p",
    "8b_stage_v6e": "8b_full64_v6e",
}
"""A step along an axis that plans leave at 1, and the one beside it."""


def rows() -> list[dict[str, Any]]:
    """One dictionary per pair that was compiled: shares by which the first exceeds the other."""
    known = json.loads(RECORDS.read_text())
    found = []
    for name, beside in PAIRS.items():
        if name in known and beside in known:
            one, other = (_figures(known[each]) for each in (name, beside))
            shares = {key: one[key] / other[key] - 1 for key in one}
            found.append({"name": name, "beside": beside, **shares})
    return found


def _figures(record: dict[str, Any]) -> dict[str, float]:
    sent = sum(sum(kinds.values()) for kinds in record["traffic"].values())
    figures = {key: record[key] for key in ("state", "peak", "seconds")}
    return {**figures, "payload": sent}


def main() -> None:
    """Prints one line per pair."""
    print(f"{'step':26}{'beside':18}{'state':>8}{'peak':>8}{'payload':>9}{'step':>8}")
    for row in rows():
        shares = "".join(
            f"{row[key]:>+{width}.1%}"
            for key, width in (("state", 8), ("peak", 8), ("payload", 9), ("seconds", 8))
        )
        print(f"{row['name']:26}{row['beside']:18}{shares}")


if __name__ == "__main__":
    main()
