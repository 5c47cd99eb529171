"""Published steps on 1 to 32 slices: the fit of `slice_wait`, and its error on curves left out.

    python benches/time_slices.py [--json FILE]

A step on S slices takes as long as on one slice, plus the transfers between slices that nothing
hides, plus a wait that grows with log2(S): `step(S) = step(1) * exp(a * log2(S)) + shown(S)`.
`a` is the device figure `slice_wait`. The transfers are the bfloat16 gradients of one device at the
bandwidth of its network; a tenth of them is shown, as in dumps of steps on several slices, where
the loop over layers hides all but its last iterations (assumed, not fitted: `SHOWN`).

Each curve is judged with `a` fitted on the others. The error is that of the loss of throughput per
doubling over the whole curve, in points.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import hlofast

SHOWN = 0.1
BYTES = 2
"""Bytes of a gradient element on the network: bfloat16, as the sends of AXLearn's dumps."""

CURVES: list[dict[str, Any]] = [
    # MaxText, configs/tpu/v5e/README.md: TFLOP/s per chip at 1, 2, 4, ... slices of v5e-256.
    {"name": "MaxText 16B, v5e-256", "device": "v5e", "parameters": 16e9, "chips": 256,
     "step": 10.31, "rates": [120, 117, 117, 115, 111, 108]},
    {"name": "MaxText 64B, v5e-256", "device": "v5e", "parameters": 64e9, "chips": 256,
     "step": 13.25, "rates": [118, 112, 110, 108, 105, 99]},
    # MaxText, configs/tpu/v4/README.md: slices of v4-128; the step from 6ND at 156 TFLOP/s.
    {"name": "MaxText 22B, v4-128", "device": "v4", "parameters": 22e9, "chips": 64,
     "step": 6 * 22e9 * 13 * 2048 / 156e12, "rates": [156, 152, 149, 146]},
    # MaxText, configs/tpu/v5p/README.md; its batch is not published, 2 x 2048 tokens are assumed.
    {"name": "MaxText 64B, v5p-128", "device": "v5p", "parameters": 64e9, "chips": 64,
     "step": 6 * 64e9 * 2 * 2048 / 323e12, "rates": [323, 309]},
    # AXLearn, fuji-7B-v2: 2.6 % from 1 to 4 slices of v5e-256.
    {"name": "AXLearn fuji-7B-v2, v5e-256", "device": "v5e", "parameters": 7e9, "chips": 256,
     "step": 2.21 / 1.026, "rates": [1.0, None, 1 / 1.026]},
]  # fmt: skip


def shown(curve: dict[str, Any], slices: int) -> float:
    """Seconds of transfers between slices that nothing hides, as a share of the step."""
    chip = hlofast.devices.get(curve["device"])
    payload = BYTES * curve["parameters"] / curve["chips"]
    wire = 2 * (slices - 1) / slices * payload
    return float(SHOWN * wire / chip.require("network_bandwidth") / curve["step"])


def wait(curve: dict[str, Any]) -> float:
    """The wait per doubling that the longest run of a curve implies."""
    slices = 2 ** (len(curve["rates"]) - 1)
    slower = curve["rates"][0] / curve["rates"][-1]
    return math.log(slower - shown(curve, slices)) / math.log2(slices)


def loss(ratio: float, doublings: float) -> float:
    """Per cent of throughput lost per doubling if a step takes `ratio` times as long."""
    return 100 * (1 - math.exp(-math.log(ratio) / doublings))


def judged() -> list[dict[str, Any]]:
    """Each curve with the loss published and the loss predicted from the other curves."""
    rows = []
    for curve in CURVES:
        fitted = statistics.fmean(wait(other) for other in CURVES if other is not curve)
        doublings = len(curve["rates"]) - 1
        predicted = math.exp(fitted * doublings) + shown(curve, 2**doublings)
        published = loss(curve["rates"][0] / curve["rates"][-1], doublings)
        rows.append(
            {
                "curve": curve["name"],
                "slices": 2**doublings,
                "wait": fitted,
                "published": published,
                "predicted": loss(predicted, doublings),
                "error": loss(predicted, doublings) - published,
                "first": loss(curve["rates"][0] / curve["rates"][1], 1)
                if curve["rates"][1]
                else None,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    rows = judged()
    fitted = statistics.fmean(wait(curve) for curve in CURVES)
    print(f"slice_wait on all curves: {fitted:.4f} per doubling")
    print("loss of throughput per doubling, per cent:")
    for row in rows:
        first = "" if row["first"] is None else f", first doubling {row['first']:.1f} published"
        print(
            f"  {row['curve']:28} to {row['slices']:2} slices: published {row['published']:.2f}, "
            f"from the others {row['predicted']:.2f} ({row['error']:+.2f} points){first}"
        )
    worst = max(abs(row["error"]) for row in rows)
    print(f"largest error of a curve left out: {worst:.2f} points")
    if options.json:
        options.json.write_text(json.dumps({"slice_wait": fitted, "curves": rows}, indent=1))


if __name__ == "__main__":
    main()
