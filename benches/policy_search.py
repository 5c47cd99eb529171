"""How far the search for a checkpoint policy is from the best one, and how long it takes.

    python benches/policy_search.py                every part
    python benches/policy_search.py PART           one of: exact, compiled, margins, time

`exact`: on the programs of tests/fixtures/policies, the added time of the policies that the search
finds for eight budgets between the lowest and the highest peak, against the best of all policies
by the same model, as a share of the time of recomputing everything. The search is also run with a
limit, as it runs for layers with many values, which cannot all be tried.

`compiled`: on programs that were compiled under every set of saved values (sets.jsonl.xz), FLOPs
and bytes by XLA of the policies that hlofast chooses for twelve sizes of memory, against the set
that has the fewest FLOPs of those that fit by XLA's memory accounting; with the margin that hlofast
leaves free for its own errors, with smaller ones, and with the smallest margin whose policy XLA
accepts. It prints the table of benches/README.md.

`margins`: on all programs of policy_accuracy.py, the share of policies that would fit a memory of
which they take by the model all but a margin.

`time`: seconds of `Policies.chosen` and `Policies.best` on one core, for a generated module of
100,000 instructions with a thousand values.
"""

from __future__ import annotations

import itertools
import json
import lzma
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import generate
import hlofast
import policy_accuracy
from hlofast._policies import MARGIN, MARGIN_BEFORE

BUDGETS = 8
SIZES = 12
SMALLER = (0.07, 0.05, 0.0)
"""Margins to compare with that of hlofast."""
Said = Callable[[list[dict[str, Any]]], str]
LEAST_FIT, MOST_BEYOND = 0.95, 0.05
"""What is asked: the share of chosen policies that fit, and their FLOPs beyond the best set's."""
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


def margins() -> Iterator[str]:
    """The table of `margins` in benches/README.md."""
    rows = policy_accuracy.rows(policy_accuracy.lowered(None))
    rows = [row for row in rows if row["error"] is not None]
    yield "| figure | asked | fitted | held out | met |"
    yield "|---|---|---|---|---|"
    for optimisation, own in (("after", MARGIN), ("before", MARGIN_BEFORE)):
        known = [row for row in rows if row["optimisation"] == optimisation]
        for margin in sorted({own, MARGIN, *SMALLER}, reverse=True):
            yield line(
                f"{optimisation} optimisation, {margin * 100:.0f} % left free: policies that fit",
                "",
                known,
                lambda part, margin=margin: counted(part, lambda each: each["error"] >= -margin),
                False,
            )


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


def line(figure: str, asked: str, rows: list[dict[str, Any]], said: Said, is_met: bool) -> str:
    """A line of the table: what `said` makes of the fitted rows and of those held out."""
    held = [row for row in rows if row["program"].startswith("held_")]
    values = (said([row for row in rows if row not in held]), said(held))
    met = ("yes" if is_met else "**open**") if asked else ""
    return f"| {' | '.join((figure, asked, *values, met))} |".replace("  ", " ")


def counted(rows: list[dict[str, Any]], holds: Callable[[dict[str, Any]], bool]) -> str:
    """How many rows `holds` is true of."""
    return f"{sum(map(holds, rows))} of {len(rows)}"


def table() -> Iterator[str]:
    """The table of `compiled` in benches/README.md."""
    yield "| figure | asked | fitted | held out | met |"
    yield "|---|---|---|---|---|"
    by_margin = {margin: compiled(margin) for margin in (MARGIN, *SMALLER)}
    # Tight policies first: for each size of memory the first one that XLA accepts.
    tried = zip(*(by_margin[margin] for margin in sorted(by_margin)), strict=True)
    tried = [next((row for row in rows if row["fits"]), rows[-1]) for rows in tried]
    for margin, rows in {**by_margin, None: tried}.items():
        fit = [row for row in rows if row["fits"]]
        near = [row for row in fit if row["distance"] <= MOST_BEYOND]
        is_own = margin == MARGIN
        start = (
            "tight policies compiled first"
            if margin is None
            else f"{margin * 100:.0f} % of memory left free"
        )
        yield line(
            f"{start}: chosen policies that fit",
            f"≥ {LEAST_FIT * 100:.0f} %" if is_own else "",
            rows,
            lambda own: counted(own, lambda each: each["fits"]),
            len(fit) >= LEAST_FIT * len(rows),
        )
        yield line(
            f"{start}: FLOPs beyond the best's within {MOST_BEYOND * 100:.0f} % of recomputable",
            "all" if is_own else "",
            fit,
            lambda own: counted(own, lambda each: each["distance"] <= MOST_BEYOND),
            len(near) == len(fit),
        )
        for name, key in (("recomputable FLOPs", "distance"), ("the step", "share_of_step")):
            for what, of in (("mean", statistics.fmean), ("worst", max)):
                yield line(
                    f"{start}: FLOPs beyond the best's, of {name}: {what}",
                    "",
                    fit,
                    lambda own, of=of, key=key: f"{of(row[key] for row in own) * 100:.1f} %",
                    False,
                )


def main() -> int:
    """Prints the figures of each part."""
    parts = sys.argv[1:] or ["exact", "compiled", "margins", "time"]
    if "exact" in parts:
        for name, values in exact().items():
            print(f"{name:30} {shares(values)}")
    if "compiled" in parts:
        print(*table(), sep="\n")
    if "margins" in parts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(*margins(), sep="\n")
    if "time" in parts:
        for name, value in seconds().items():
            print(f"{name:14} {value:10,.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
