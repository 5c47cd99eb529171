"""Accuracy of peaks under other checkpoint policies against programs compiled under them.

    python benches/policy_accuracy.py [--json FILE]
    python benches/policy_accuracy.py --plans FILE     the chosen policies, for make_policies.py

The programs are those of tests/fixtures/policies, compiled ahead of time for TPU v5e, v5p and v6e
under every policy. The peak under a policy is modelled from the text without checkpointing, and
from texts compiled under another policy, and compared with the peak of the program that was
compiled under the policy. Programs whose name begins with `held_` were compiled after the model was
made.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import hlofast

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
sys.path.insert(0, str(FIXTURES))

import policy_texts  # noqa: E402

LINES = (FIXTURES / "policy_models.py").read_text().splitlines()
LIMITS = {"v5e": int(15.75 * 2**30), "v5p": int(95.74 * 2**30), "v6e": int(31.25 * 2**30)}
"""The HBM that libtpu gives a program, from its messages when it refuses one."""
NAMED = {
    "attention_names": ("query", "key", "value", "mixed"),
    "mlp_names": ("mixed", "gate", "up"),
    "offload_mlp": ("gate", "up"),
}
"""The values that a policy of names saves or offloads."""
BUILT_IN = {
    "nothing": "nothing_saveable",
    "dots": "dots_saveable",
    "plain_dots": "dots_with_no_batch_dims_saveable",
}


def texts() -> dict[str, bytes]:
    """By program: its text without checkpointing."""
    return policy_texts.unpack("texts") | policy_texts.unpack("unrolled")


def checkpointed() -> dict[tuple[str, str], bytes]:
    """By program and policy: texts of programs whose layers are checkpointed."""
    every = policy_texts.unpack("checkpointed").items()
    return {(name.split(".")[0], name.split(".")[1]): text for name, text in every}


def name_of(line: int | None) -> str | None:
    """The name that the models give to the value of a source line."""
    named = re.search(r'checkpoint_name\(.*"(\w+)"\)', LINES[line - 1] if line else "")
    return named[1] if named else None


def policy_of(policies: hlofast.Policies, name: str) -> hlofast.Policy:
    """The policy called `name` in the fixtures."""
    if name in BUILT_IN:
        return policies.policy(BUILT_IN[name])
    rows = [
        at
        for at, row in enumerate(policies.savable)
        if row["kind"].endswith("matmul") and name_of(row["source_line"]) in NAMED[name]
    ]
    return policies.policy(**{"offload" if name.startswith("offload") else "save": rows})


def rows() -> list[dict[str, Any]]:
    """One row per text and policy."""
    compiled = policy_texts.peaks()
    found = []
    plain = {(program, "none"): text for program, text in texts().items()}
    for (program, own), text in (plain | checkpointed()).items():
        policies = hlofast.loads(text).remat().policies
        for policy in (*BUILT_IN, *NAMED):
            peak = compiled.get(program, {}).get(policy)
            if peak is None or policy == own:
                continue
            modelled = None if policies is None else policy_of(policies, policy).peak
            error = None if modelled is None else modelled / peak - 1
            found.append(
                {
                    "program": program,
                    "text": own,
                    "policy": policy,
                    "held_out": program.startswith("held_"),
                    "unrolled": "unrolled" in program,
                    "peak": peak,
                    "modelled": modelled,
                    "error": error,
                }
            )
    return found


def plans() -> dict[str, Any]:
    """The values that the chosen policy keeps, for each program that does not fit its chip, and for
    each checkpointed program that could save more."""
    needed = {
        record["program"]: record["hbm"]
        for record in policy_texts.truth()
        if record["policy"] == "none"
    }
    plain = {(program, ""): text for program, text in texts().items()}
    chosen: dict[str, Any] = {}
    for (program, under), text in (plain | checkpointed()).items():
        chip = next(part for part in program.split("_") if part in LIMITS)
        if not under and needed[program] <= LIMITS[chip]:
            continue
        policies = hlofast.loads(text).remat(hbm=LIMITS[chip], device=f"tpu-{chip}").policies
        if policies is None or policies.chosen is None:
            continue
        own = policies.chosen
        named = [name_of(line) for line in own.saved.values("source_line")]
        moved = [own.is_offloaded(at) for at in own.saved_numbers]
        pairs = list(zip(named, moved, strict=True))
        nothing = policies.policy("nothing_saveable")
        chosen[f"{program}.{under}".rstrip(".")] = {
            "names": sorted({name for name, is_moved in pairs if name and not is_moved}),
            "offloaded": sorted({name for name, is_moved in pairs if name and is_moved}),
            "unnamed": named.count(None),
            "limit": LIMITS[chip],
            "modelled": policies.chosen.peak,
            "fits": policies.chosen.fits,
            "flops": policies.chosen.recomputed_flops,
            "seconds": policies.chosen.recomputed_seconds,
            "waiting": policies.chosen.waiting_seconds,
            "nothing_seconds": nothing.recomputed_seconds,
        }
    return chosen


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The errors of some rows."""
    known = sorted(abs(row["error"]) for row in rows if row["error"] is not None)
    lower = sorted(-row["error"] for row in rows if row["error"] is not None)
    return {
        "programs": len({row["program"] for row in rows}),
        "peaks": len(rows),
        "modelled": len(known),
        "median": statistics.median(known),
        "within 5 %": sum(error <= 0.05 for error in known) / len(known),
        "within 12 %": sum(error <= 0.12 for error in known) / len(known),
        "worst": known[-1],
        "too low by, 90th percentile": max(0.0, lower[int(0.9 * (len(lower) - 1))]),
    }


def main() -> None:
    """Prints the errors by set and by policy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--plans", type=Path, help="write the chosen policies to this file")
    given = parser.parse_args()
    if given.plans:
        given.plans.write_text(json.dumps(plans(), indent=1) + "\n")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = rows()
    sets: dict[str, list[dict[str, Any]]] = {}
    kinds = {
        "not checkpointed": [r for r in every if r["text"] == "none" and not r["unrolled"]],
        "checkpointed": [row for row in every if row["text"] != "none"],
        "unrolled": [row for row in every if row["unrolled"]],
    }
    for kind, own in kinds.items():
        sets[f"{kind}, fitted"] = [row for row in own if not row["held_out"]]
        sets[f"{kind}, held out"] = [row for row in own if row["held_out"]]
        for policy in (*BUILT_IN, *NAMED):
            sets[f"{kind}, {policy}"] = [row for row in own if row["policy"] == policy]
    for name, part in sets.items():
        if not part:
            continue
        print(name)
        for label, value in figures(part).items():
            print(f"  {label:28} {value:8.0f}" if value > 2 else f"  {label:28} {value:8.1%}")
    if given.json:
        given.json.write_text(json.dumps(every, indent=1) + "\n")


if __name__ == "__main__":
    main()
