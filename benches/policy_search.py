"""How far the search for a checkpoint policy is from the best one, and how long it takes.

    python benches/policy_search.py                every part
    python benches/policy_search.py PART           one of: exact, compiled, time

`exact`: on the programs of tests/fixtures/policies, the added time of the policies that the search
finds for eight budgets between the lowest and the highest peak, against the best of all policies
by the same model, as a share of the time of recomputing everything. The search is also run with a
limit, as it runs for layers with many values, which cannot all be tried.

`compiled`: on programs that were compiled under every set of saved values (sets.jsonl.xz), FLOPs
and bytes by XLA of the policies that hlofast chooses for twelve sizes of memory, against the set
that has the fewest FLOPs of those that fit by XLA's memory accounting; with the margin that hlofast
leaves free for its own errors, and with smaller ones.

`time`: seconds of `Policies.chosen` and `Policies.best` on one core, for a generated module of
100,000 instructions with a thousand values.
"""

from __future__ import annotations

import itertools
import json
import lzma
import sys
import time
from typing import Any

import generate
import hlofast
import policy_accuracy
from hlofast._policies import MARGIN

BUDGETS = 8
SIZES = 12
MOST_POLICIES = 10_000
"""Programs with more policies are left out of `exact`."""
LIMITED = 0.25
"""The share of all policies that the limited search may try."""


def chip_of(program: str) -> str:
    """The device of a program, by its name."""
    part = next(part for part in program.split("_") if part in policy_accuracy.LIMITS)
    return f"tpu-{part}"


def exact_of(policies: hlofast.Policies, offloads: bool) -> dict[str, list[float]]:
    """By kind of search: distances to the best policy. Empty if there are too many policies."""
    data, rows = policies._data, policies.savable.to_pylist()
    values = [at for at, row in enumerate(rows) if row["kind"].endswith("matmul")]
    fates = (0, 1, 2) if offloads else (0, 1)
    count = len(fates) ** len(values)
    if count > MOST_POLICIES:
        return {}

    def measured(own: list[int]) -> tuple[int, float, bool]:
        found = data.outcome(own)
        is_held = policies.host_memory is None or found["on_host"] <= policies.host_memory
        return found["peak"], found["seconds"] + found["waiting"], is_held

    known = []
    for chosen in itertools.product(fates, repeat=len(values)):
        own = [0] * len(rows)
        for at, fate in zip(values, chosen, strict=True):
            own[at] = fate
        known.append(measured(own))
    low, high = min(own[0] for own in known), max(own[0] for own in known)
    whole = measured([0] * len(rows))[1]
    found: dict[str, list[float]] = {"search": [], "limited": []}
    for number in range(1, BUDGETS + 1):
        budget = low + (high - low) * number // (BUDGETS + 1)
        best = min(work for peak, work, is_held in known if peak <= budget and is_held)
        for name, most in (("search", None), ("limited", max(64, int(count * LIMITED)))):
            peak, work, _ = measured(data.choose(budget, offloads, most))
            assert peak <= budget
            found[name].append((work - best) / whole)
    return found


def exact() -> dict[str, list[float]]:
    """By fates and search: the distances to the best policy, over programs and budgets."""
    every: dict[str, list[float]] = {}
    for program, text in policy_accuracy.texts().items():
        policies = hlofast.loads(text).remat(device=chip_of(program)).policies
        if policies is None:
            continue
        for offloads in (False, True):
            for name, found in exact_of(policies, offloads).items():
                fates = "with offload" if offloads else "saved or recomputed"
                every.setdefault(f"{fates}, {name}", []).extend(found)
    return every


def compiled(margin: float) -> list[dict[str, Any]]:
    """One row per program and size of memory: what XLA makes of the chosen policy.

    Without a device the policy is chosen by FLOPs. `margin` is the share of memory left free.
    """
    path = policy_accuracy.FIXTURES / "policies" / "sets.jsonl.xz"
    with lzma.open(path, "rt") as lines:
        records = [json.loads(line) for line in lines]
    texts, found = policy_accuracy.texts(), []
    for program in sorted({record["program"] for record in records}):
        own = [record for record in records if record["program"] == program]
        by_names = {frozenset(record["names"]): record for record in own}
        everything = frozenset().union(*by_names)
        least, most = min(r["flops"] for r in own), max(r["flops"] for r in own)
        low, high = min(r["hbm"] for r in own), max(r["hbm"] for r in own)
        policies = hlofast.loads(texts[program]).remat().policies
        savable = policies.savable.to_pylist()
        for number in range(1, SIZES + 1):
            size = low + (high - low) * number // (SIZES + 1)
            fates = policies._data.choose(int(size * (1 - margin)), False)
            kept = [savable[at] for at, fate in enumerate(fates) if fate]
            names = {policy_accuracy.name_of(row) for row in kept}
            record = by_names[frozenset(names & everything)]
            fits = [other for other in own if other["hbm"] <= size]
            best = min(fits, key=lambda other: other["flops"])
            found.append(
                {
                    "program": program,
                    "size": size,
                    "names": record["names"],
                    "fits": record["hbm"] <= size,
                    "distance": (record["flops"] - best["flops"]) / (most - least),
                    "share_of_step": record["flops"] / best["flops"] - 1,
                    "best": best["names"],
                }
            )
    return found


def seconds() -> dict[str, float]:
    """Seconds of the plan of a large module, its instructions and its values."""
    module = hlofast.loads(generate.text("scan", 100_000))
    remat = module.remat(device="tpu-v5p")
    found = {"instructions": float(len(module))}
    started = time.process_time()
    policies = remat.policies
    found["model"] = time.process_time() - started
    found["values"] = float(len(policies.savable))
    policies.hbm = int(policies.peak * 0.75)
    started = time.process_time()
    assert policies.chosen is not None
    found["chosen"] = time.process_time() - started
    started = time.process_time()
    assert policies.best
    found["frontier"] = time.process_time() - started
    return found


def shares(values: list[float]) -> str:
    """Mean, 90th percentile and worst of some shares."""
    order = sorted(values)
    rank = order[int(0.9 * (len(order) - 1))]
    mean = sum(order) / len(order)
    return f"{len(order):4} cases, mean {mean:.2%}, 90 % within {rank:.2%}, worst {order[-1]:.2%}"


def main() -> int:
    """Prints the figures of each part."""
    parts = sys.argv[1:] or ["exact", "compiled", "time"]
    if "exact" in parts:
        for name, values in exact().items():
            print(f"{name:30} {shares(values)}")
    if "compiled" in parts:
        for margin in (MARGIN, 0.05, 0.0):
            rows = compiled(margin)
            fit = [row for row in rows if row["fits"]]
            print(f"{margin:.0%} of memory free: {len(fit)} of {len(rows)} chosen policies fit")
            for name, key in (("all recomputable", "distance"), ("the step", "share_of_step")):
                print(f"  FLOPs beyond the best's, of {name:16} {shares([r[key] for r in fit])}")
    if "time" in parts:
        for name, value in seconds().items():
            print(f"{name:14} {value:10,.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
