"""Train steps measured on an H100 beside what hlofast says of their texts.

    python benches/h100_steps.py [--json FILE]
    python benches/h100_steps.py --plans FILE     the chosen policies, for make_gpu_steps.py

The steps are those of `tests/fixtures/h100`: twelve programs on one GPU under several checkpoint
policies, compiled and run with JAX 0.11.2 by `tests/fixtures/make_gpu_steps.py`. Printed are the
step time and the peak of each; then, from every text, the peak and the change of the step time
under each other policy, after and before optimisation. Rates of kernels were fitted on the
programs of `gpu_texts.FITTED`. Last come the policies that hlofast chose from texts without
checkpointing, which ran beside those of JAX (`h100/plans.json`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

import hlofast
import policy_accuracy

import gpu_texts  # isort: skip

SHARES = (0.25, 0.5)
"""Of the memory between saving nothing and saving everything, for which policies are chosen."""
LIMITS = (0.05, 0.12)
"""Errors whose shares are shown."""


def steps() -> list[dict[str, Any]]:
    """One row per step that ran: clock, modelled time, XLA's peak and ours."""
    found = []
    records, texts = gpu_texts.records(), gpu_texts.texts()
    for (program, policy), seconds in gpu_texts.clocks().items():
        module = hlofast.loads(texts[program, policy])
        modelled = module.time(gpu_texts.DEVICE).step_seconds
        peak = records[program, policy]["peak"]
        found.append(
            {
                "program": program,
                "policy": policy,
                "is_fitted": program in gpu_texts.FITTED,
                "clock": seconds,
                "modelled": modelled,
                "error": modelled / seconds - 1 if modelled else None,
                "peak": peak,
                "peak_error": module.memory().hbm_peak / peak - 1,
            }
        )
    return found


def policies(archive: str) -> list[dict[str, Any]]:
    """One row per text and other policy: peaks, and the change of the step time."""
    found = []
    records, clocks = gpu_texts.records(), gpu_texts.clocks()
    for (program, policy), text in gpu_texts.texts(archive).items():
        remat = hlofast.loads(text).remat(device=gpu_texts.DEVICE)
        known = remat.policies
        if known is None:
            continue
        for (other, name), record in records.items():
            if other != program or name in (policy, "none"):
                continue
            outcome = policy_accuracy.policy_of(known, name, program)
            pair = clocks.get((program, policy)), clocks.get((program, name))
            change = pair[1] / pair[0] - 1 if pair[0] and pair[1] else None
            modelled = outcome.step_seconds, known.step_seconds
            found.append(
                {
                    "program": program,
                    "text": policy,
                    "policy": name,
                    "peak": record["peak"],
                    "error": outcome.peak / record["peak"] - 1,
                    "change": change,
                    "modelled_change": modelled[0] / modelled[1] - 1
                    if modelled[0] and modelled[1]
                    else None,
                }
            )
    return found


def plans() -> list[dict[str, Any]]:
    """The policies that are chosen from texts without checkpointing, for less memory than these.

    The memory is that of a step that saves nothing, and a share of what saving everything adds.
    """
    chosen: dict[tuple[str, str], dict[str, Any]] = {}
    for archive, share in itertools.product(("texts", "before"), SHARES):
        for (program, policy), text in gpu_texts.texts(archive).items():
            if policy != "none":
                continue
            module = hlofast.loads(text)
            known = module.remat(device=gpu_texts.DEVICE).policies
            if known is None:
                continue
            least = known.policy("nothing_saveable").peak
            hbm = int((least + share * (known.peak - least)) / (1 - known.margin))
            own = module.remat(device=gpu_texts.DEVICE, hbm=hbm).policies.chosen
            if own is None:
                continue
            named = [policy_accuracy.name_of(row) for row in own.saved]
            if None in named:
                continue
            moved = {
                name
                for name, at in zip(named, own.saved_numbers, strict=True)
                if own.is_offloaded(at)
            }
            kept, gone = sorted({*named} - moved), sorted(moved)
            key = "+".join(kept) + ("~" + "+".join(gone) if gone else "")
            plan = {"program": program, "text": archive, "policy": key, "hbm": hbm}
            plan |= {"peak": own.peak, "seconds": own.step_seconds, "as_is": known.step_seconds}
            chosen.setdefault((program, key), plan)
    return list(chosen.values())


def planned() -> list[dict[str, Any]]:
    """One row per step that ran beside the chosen policies: clock, modelled time, both peaks."""
    found = []
    for step in gpu_texts.planned():
        module = hlofast.loads(step.pop("text"))
        modelled = module.time(gpu_texts.PLANNED_ON).step_seconds
        error = modelled / step["seconds"] - 1
        peak_error = module.memory().hbm_peak / step["peak"] - 1
        found.append(step | {"modelled": modelled, "error": error, "peak_error": peak_error})
    return found


def shown(rows: list[dict[str, Any]], key: str = "error") -> str:
    """Median, shares within limits and the worst."""
    errors = [row[key] for row in rows if row[key] is not None]
    if not errors:
        return "none"
    size = [abs(error) for error in errors]
    worst = max(errors, key=abs)
    near = [sum(own <= limit for own in size) / len(size) for limit in LIMITS]
    return (
        f"{len(size)}: median {statistics.median(size):.1%}, within 5 % {near[0]:.0%}, within "
        f"12 % {near[1]:.0%}, worst {worst:+.1%}"
    )


def measure() -> dict[str, Any]:
    """All rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {"steps": steps(), "after": policies("texts"), "before": policies("before")}
        return found | {"planned": planned(), "plans": gpu_texts.plans()}


def main() -> None:
    """Prints the rows and the errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--plans", type=Path, help="write the chosen policies to this file")
    given = parser.parse_args()
    if given.plans:
        given.plans.write_text(json.dumps(plans(), indent=1) + "\n")
        return
    rows = measure()
    for row in rows["steps"]:
        print(
            f"{row['program']:10} {row['policy']:15} {row['clock'] * 1e3:6.1f} ms, modelled "
            f"{row['modelled'] * 1e3:6.1f} ms ({row['error']:+.1%}); peak {row['peak_error']:+.4%}"
        )
    for label, is_fitted in (("fitted programs", True), ("others", False)):
        own = [row for row in rows["steps"] if row["is_fitted"] == is_fitted]
        print(f"step time, {label}: {shown(own)}; peaks {shown(own, 'peak_error')}")
    for archive in ("after", "before"):
        own = rows[archive]
        print(f"peaks under policies, {archive} optimisation: {shown(own)}")
        for kind, is_plain in (("without checkpointing", True), ("checkpointed", False)):
            part = [row for row in own if (row["text"] == "none") == is_plain]
            print(f"  from text {kind}: {shown(part)}")
            clocked = [
                row["modelled_change"] - row["change"]
                for row in part
                if None not in (row["change"], row["modelled_change"])
            ]
            if clocked:
                same = statistics.median(abs(own) for own in clocked)
                print(
                    f"    change of the step time, {len(clocked)}: {same * 100:.1f} points off at "
                    f"the median, {max(clocked, key=abs) * 100:+.1f} at worst"
                )
    own = rows["planned"]
    peaks = shown(own, "peak_error")
    print(f"step time on a GPU that nothing was fitted on: {shown(own)}; peaks {peaks}")
    own = [
        {
            "fits": plan["ran"]["peak"] <= plan["hbm"],
            "peak": plan["peak"] / plan["ran"]["peak"] - 1,
            "slower": plan["ran"]["seconds"] / plan["fastest"]["seconds"] - 1,
        }
        for plan in rows["plans"]
    ]
    fit = sum(row["fits"] for row in own)
    print(f"chosen policies: {fit} of {len(own)} fit; peaks {shown(own, 'peak')}")
    print(f"  clock over that of the fastest policy of JAX that fits: {shown(own, 'slower')}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
