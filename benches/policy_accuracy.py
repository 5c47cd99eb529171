"""Accuracy of peaks under other checkpoint policies against programs compiled under them.

    python benches/policy_accuracy.py [--json FILE] [--lowered DIR] [--groups DIR] [--unlike DIR]
    python benches/policy_accuracy.py --plans FILE     the chosen policies, for make_policies.py

The programs are those of tests/fixtures/policies, compiled ahead of time for TPU v5e, v5p and v6e
under every policy. The peak under a policy is modelled, with the device named, from texts without
checkpointing, under another policy, also one that moves values to host memory, and before
optimisation, and compared with the peak of the program that was compiled under the policy.
Programs whose name begins with `held_` were not used to make the model. `--lowered` reads the texts
before optimisation from a folder, into which `make_policies.py --lower` writes all of them, instead
of the committed ones. Step times are compared with the time model on the text that was compiled
under the policy; `--groups` judges those of layers in groups on more texts, which
`make_policies.py --out DIR --only groups` writes, and `--unlike` those of train steps unlike the
others, which `make_unlike.py --out DIR` and `make_unlike2.py --out DIR` compile with nothing saved,
and the peaks of those of them whose texts are not committed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

import hlofast
from hlofast._policy_units import peaks_apart

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
sys.path.insert(0, str(FIXTURES))

import policy_texts  # noqa: E402

LINES = {
    name: (FIXTURES / name).read_text().splitlines()
    for name in ("policy_models.py", "policy_variants.py", "policy_exchanged.py")
}
LIMITS = {"v5e": int(15.75 * 2**30), "v5p": int(95.74 * 2**30), "v6e": int(31.25 * 2**30)}
"""The HBM that libtpu gives a program, from its refusals."""
NAMED = {
    "attention_names": ("query", "key", "value", "mixed"),
    "mlp_names": ("mixed", "gate", "up"),
    "offload_mlp": ("gate", "up"),
}
"""The values that a policy of names saves or offloads."""
OFFLOADS = ("offload_mlp",)
UNLIKE = ("unlike", "unlike2", "unlike3", "unlike4", "unlike5", "vmapped", "functions")
"""Train steps unlike the others, without and with the device."""
OTHERS = ("groups", "nameless", "offloaded", "second")
"""Kinds of programs with rows of their own."""
MOVED = ("offload_dots", "offload_input")
"""Policies under which only the texts of `policy_offloaded` are compiled."""
KINDS = ("refused by XLA", "fits without checkpointing", "checkpointed")
"""Kinds of programs that a policy is chosen for."""


def texts() -> dict[str, bytes]:
    """By program: its text without checkpointing."""
    return policy_texts.unpack("texts", "unrolled", "variants")


def keyed(every: dict[str, bytes]) -> dict[tuple[str, str], bytes]:
    """Texts called PROGRAM.POLICY, by program and policy."""
    return {(name.split(".")[0], name.split(".")[1]): text for name, text in every.items()}


def read_all(folder: Path, pattern: str = "*.txt") -> dict[tuple[str, str], bytes]:
    """The texts in a folder, by program and policy."""
    return keyed({place.stem: place.read_bytes() for place in sorted(folder.glob(pattern))})


def checkpointed(archive: str = "checkpointed") -> dict[tuple[str, str], bytes]:
    """By program and policy: texts of programs whose layers are checkpointed."""
    return keyed(policy_texts.unpack(archive))


def in_groups() -> dict[tuple[str, str], bytes]:
    """By program and policy: texts of programs whose layers are scanned in groups."""
    return keyed(policy_texts.unpack("groups"))


def offloaded() -> dict[tuple[str, str], bytes]:
    """By program and policy: scheduled texts whose scans move values to host memory."""
    return keyed(policy_texts.unpack("offloaded"))


def nameless() -> dict[tuple[str, str], bytes]:
    """By program and policy: texts of layers in a plain loop without scopes."""
    plain = policy_texts.unpack("unrolled").items()
    every = {(name, "none"): policy_texts.without_scopes(text) for name, text in plain}
    return every | keyed(policy_texts.unpack("nameless"))


def small() -> dict[tuple[str, str], bytes]:
    """By program and policy: texts of programs compiled for one rule, most of them small."""
    return keyed(policy_texts.unpack(*policy_texts.LOWERED))


def lowered(folder: Path | None = None) -> dict[tuple[str, str], bytes]:
    """By program and policy: texts before optimisation, of `folder` or the committed ones."""
    return keyed(policy_texts.unpack("lowered")) if folder is None else read_all(folder)


def name_of(row: dict[str, Any]) -> str | None:
    """The name that the models give to a value; `kernel` for the results of a kernel."""
    if row["kind"] == "kernel":
        return "kernel"
    lines = LINES.get(Path(row["source_file"] or "").name, [])
    line = row["source_line"]
    named = re.search(r'checkpoint_name\(.*"(\w+)"\)', lines[line - 1] if line and lines else "")
    return named[1] if named else None


def is_named(row: dict[str, Any], names: tuple[str, ...], program: str) -> bool:
    """Whether a policy of names keeps a value.

    The models name the attention kernel's result `mixed`; one of them also names its statistics.
    """
    if row["kind"] == "kernel":
        is_result = row["shape"].startswith("bf16") or "_named_" in program
        return is_result and "mixed" in names
    return row["kind"].endswith("matmul") and name_of(row) in names


def policy_of(policies: hlofast.Policies, name: str, program: str) -> hlofast.Policy:
    """The policy called `name` in the fixtures."""
    if name in policy_texts.BUILT_IN:
        return policies.policy(policy_texts.BUILT_IN[name])
    savable = policies.savable
    if name == "offload_dots":
        return policies.policy(
            offload=[at for at, row in enumerate(savable) if row["kind"] == "matmul"]
        )
    if name == "offload_input":
        names = NAMED["attention_names"][:3]
        saved = [at for at, row in enumerate(savable) if is_named(row, names, program)]
        moved = [at for at, row in enumerate(savable) if is_named(row, ("mixed",), program)]
        moved += [at for at, row in enumerate(savable) if row["kind"] == "input"]
        return policies.policy(save=saved, offload=moved)
    rows = [at for at, row in enumerate(savable) if is_named(row, NAMED[name], program)]
    return policies.policy(**{"offload" if name.startswith("offload") else "save": rows})


def rows(before: dict[tuple[str, str], bytes]) -> list[dict[str, Any]]:
    """One row per text and policy; `before` are the texts before optimisation."""
    compiled = policy_texts.peaks()
    found = []
    plain = {(program, "none"): text for program, text in texts().items()}
    for name in ("offloaded", *policy_texts.LOWERED):
        for (program, policy), own in policy_texts.pairs(name).items():
            compiled.setdefault(program, {})[policy] = own["peak"]
    loops_before = {
        (program, own): policy_texts.without_scopes(text)
        for (program, own), text in before.items()
        if own == "none" and policy_texts.kind_of(program) == "unrolled"
    }
    # With the kind of the rows, if it is not that of the program.
    sets = (
        ("after", plain | checkpointed() | in_groups() | small(), None),
        ("after", checkpointed("checkpointed_second"), "second"),
        ("after", offloaded(), "offloaded"),
        ("after", nameless(), "nameless"),
        ("before", before, None),
        ("before", loops_before, "nameless"),
    )
    # By program and policy: what the variants recompute under the policy, and what the others would
    # according to the text that XLA compiled without checkpointing.
    flops: dict[tuple[str, str], Any] = {
        (str(own["program"]), str(own["policy"])): own["flops"]
        for own in policy_texts.truth()
        if "flops" in own
    }
    for optimisation, every, kind in sets:
        for (program, own), text in every.items():
            policies = hlofast.loads(text).remat(device=f"tpu-{chip_of(program)}").policies
            for policy in (*policy_texts.BUILT_IN, *NAMED, *(MOVED if kind == "offloaded" else ())):
                peak = compiled.get(program, {}).get(policy)
                is_known = policy == own and optimisation == "after"
                if peak is None or is_known or is_unknown(program):
                    continue
                outcome = None
                if policies is not None and not (
                    policy in OFFLOADS and refuses_to_offload(program)
                ):
                    outcome = policy_of(policies, policy, program)
                modelled = None if outcome is None else outcome.peak
                again = None if outcome is None else outcome.recomputed_flops
                if optimisation == "after" and own == "none" and kind != "nameless":
                    flops.setdefault((program, policy), again)
                found.append(
                    {
                        "program": program,
                        "text": own,
                        "optimisation": optimisation,
                        "kind": kind or policy_texts.kind_of(program),
                        "policy": policy,
                        "held_out": program.startswith("held_"),
                        "peak": peak,
                        "modelled": modelled,
                        "error": None if modelled is None else modelled / peak - 1,
                        "recomputed_flops": again,
                        "compiled_flops": flops.get((program, policy)),
                    }
                )
    return found


def is_unknown(program: str) -> bool:
    """Whether groups of layers take the policy too, and not only layers, as the model has it."""
    return program.startswith("grouped")


def refuses_to_offload(program: str) -> bool:
    """Whether the model says that it does not cover values in host memory in a program."""
    return policy_texts.kind_of(program) == "groups" and "whole" not in program


def plans() -> dict[str, Any]:
    """The values that the chosen policy keeps, for each program that does not fit its chip, that is
    faster with checkpointing although it fits, or that is checkpointed and could save more."""
    needed = {
        record["program"]: record["hbm"]
        for record in policy_texts.truth()
        if record["policy"] == "none"
    }
    plain = {(program, ""): text for program, text in texts().items()}
    groups = {(name, ""): text for (name, own), text in in_groups().items() if own == "none"}
    chosen: dict[str, Any] = {}
    for (program, under), text in (plain | groups | checkpointed()).items():
        chip = chip_of(program)
        if is_unknown(program):
            continue
        policies = hlofast.loads(text).remat(hbm=LIMITS[chip], device=f"tpu-{chip}").policies
        if policies is None or policies.chosen is None:
            continue
        own = policies.chosen
        named = [name_of(row) for row in own.saved]
        moved = [own.is_offloaded(at) for at in own.saved_numbers]
        pairs = list(zip(named, moved, strict=True))
        # Encoder and decoder give the same names to their values.
        kept = set(own.saved_numbers)
        others = [row for at, row in enumerate(policies.savable) if at not in kept]
        others = [row for row in others if row["kind"] not in ("input", "other", "collective")]
        split = {name_of(row) for row in others} & {*named} - {None}
        nothing = policies.policy("nothing_saveable")
        chosen[f"{program}.{under}".rstrip(".")] = {
            "names": sorted({name for name, is_moved in pairs if name and not is_moved}),
            "offloaded": sorted({name for name, is_moved in pairs if name and is_moved}),
            "unnamed": named.count(None) + len(split),
            "limit": LIMITS[chip],
            "modelled": policies.chosen.peak,
            "fits": policies.chosen.fits,
            "flops": policies.chosen.recomputed_flops,
            "seconds": policies.chosen.recomputed_seconds,
            "waiting": policies.chosen.waiting_seconds,
            "nothing_seconds": nothing.recomputed_seconds,
            "fits_as_is": needed[program] <= LIMITS[chip] or bool(under),
            "as_is_seconds": policies.step_seconds,
            "step_seconds": policies.chosen.step_seconds,
        }
    return chosen


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The errors of some rows."""
    known = sorted(abs(row["error"]) for row in rows if row["error"] is not None)
    lower = sorted(-row["error"] for row in rows if row["error"] is not None)
    pairs = [(row["recomputed_flops"], row["compiled_flops"]) for row in rows]
    same = [own == other for own, other in pairs if None not in (own, other)]
    return {
        "programs": len({row["program"] for row in rows}),
        "peaks": len(rows),
        "modelled": len(known),
        "median": statistics.median(known),
        "within 5 %": sum(error <= 0.05 for error in known) / len(known),
        "within 12 %": sum(error <= 0.12 for error in known) / len(known),
        "worst": known[-1],
        "too low by, 90th percentile": max(0.0, lower[int(0.9 * (len(lower) - 1))]),
        "FLOPs as in the compiled text": sum(same) / len(same) if same else 0.0,
    }


def chosen() -> list[str]:
    """What XLA makes of the chosen policies: one line for each kind of program."""
    lines = []
    for is_held, kind in itertools.product((False, True), KINDS):
        own = [plan for plan in policy_texts.plans() if kind_of_plan(plan) == kind]
        own = [plan for plan in own if plan["program"].startswith("held_") == is_held]
        exact = sum(plan["recomputed_flops"] == plan["flops"] for plan in own)
        errors = [plan["step_seconds"] / plan["compiled_seconds"] - 1 for plan in own]
        changes = [
            [plan[key] / plan["as_is_seconds"] - 1 for plan in own]
            for key in ("step_seconds", "compiled_seconds")
        ]
        promised, compiled = ([f"{each(some):+.1%}" for each in (min, max)] for some in changes)
        accepted = sum(plan["accepted"] for plan in own)
        lines.append(
            f"{'held out' if is_held else 'fitted'}, {kind}: {accepted} of {len(own)} accepted, "
            f"FLOPs as promised in {exact}; step time: median error "
            f"{statistics.median(map(abs, errors)):.1%}, worst {max(errors, key=abs):+.1%}; change "
            f"promised {' to '.join(promised)}, compiled {' to '.join(compiled)}"
        )
    return lines


def unlike(name: str, folder: Path | None = None, is_named: bool = False) -> list[str]:
    """Peaks of a set of train steps of `make_unlike.py` or its siblings: a line each, one for all.

    Texts that are not committed are read from `folder`. `is_named`: whether to name the device.
    """
    lines = (FIXTURES / "policies" / f"{name}.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    peaks = {(own["program"], own["policy"]): own.get("used", own["peak"]) for own in records}
    chips = {own["program"]: own.get("chip") for own in records}
    texts = policy_texts.unpack(name)
    found = []
    known: dict[str, list[float]] = {}
    for program in dict.fromkeys(own["program"] for own in records):
        parts = []
        for suffix, label in ((".none", "after optimisation"), (".none.before", "before")):
            place = None if folder is None else folder / f"{program}{suffix}.txt"
            if program + suffix not in texts and place is not None and place.exists():
                texts[program + suffix] = place.read_bytes()
            if program + suffix not in texts:
                continue
            chip = chips.get(program) or "v5p"  # Those of `make_unlike.py` are all for v5p.
            device = f"tpu-{chip}" if is_named or name == "drawn" else None
            module = hlofast.loads(texts[program + suffix], device=device)
            policies = module.remat().policies
            found_peaks = {} if policies is None else {"none": policies.peak}
            if suffix == ".none":
                found_peaks["none"] = module.memory().hbm_peak
            compiled = [own for own in policy_texts.BUILT_IN.items() if (program, own[0]) in peaks]
            for policy, called in compiled:
                if policies is None or called in policies._unknown:
                    continue
                found_peaks[policy] = policies.policy(called).peak
                if program.endswith("_each"):
                    found_peaks[policy] = peaks_apart(policies, [policies.policy(called)])[called][
                        0
                    ]
            errors = [
                f"{policy} {own / peaks[program, policy] - 1:+.1%}"
                for policy, own in found_peaks.items()
                if own is not None
            ]
            part = "large" if program.endswith("_large") else "all others"
            if name == "vmapped":
                part = "held out" if program.startswith("held_") else "fitted"
            if name == "drawn":
                number = int(re.sub(r"\D", "", program))
                part = "fitted" if number in policy_texts.FITTED_DRAWS else "held out"
                part = f"Python loops, {part}" if number in policy_texts.LOOP_DRAWS else part
                part = f"drawn last, {part}" if number in policy_texts.LATER_DRAWS else part
                part = "fewer layers" if program.endswith("_short") else part
            known.setdefault(f"{label}, {part}", []).extend(
                abs(own / peaks[program, policy] - 1)
                for policy, own in found_peaks.items()
                if own is not None and policy in policy_texts.BUILT_IN
            )
            if policies is None:
                errors.append("policies not modelled")
            elif "dots_with_no_batch_dims_saveable" in policies._unknown:
                errors.append("plain_dots unknown")
            parts.append(f"{label} {', '.join(errors)}")
        if parts:
            found.append(f"{program}: {'; '.join(parts)}")
    for label, errors in sorted(known.items()):
        if errors:
            counts = [sum(error <= most for error in errors) for most in (0.05, 0.12)]
            found.append(
                f"{label}: {len(errors)} peaks, median {statistics.median(errors):.1%}, "
                f"{counts[0]} within 5 %, {counts[1]} within 12 %, worst {max(errors):.1%}"
            )
    return found


def unlike_steps(folder: Path) -> list[str]:
    """Step times under policies, of the train steps whose compiled text is in `folder`."""
    lines, errors = [], []
    for name in ("unlike", "unlike2", "unlike4", "unlike5"):
        for key, text in keyed_after(policy_texts.unpack(name)).items():
            for policy, built_in in policy_texts.BUILT_IN.items():
                place = folder / f"{key}.{policy}.txt"
                if not place.exists():
                    continue
                record = json.loads(place.with_suffix(".json").read_text())
                device = f"tpu-{record.get('chip', 'v5p')}"
                plain = hlofast.loads(text, device=device)
                policies = plain.remat().policies
                compiled = hlofast.loads(place.read_bytes(), device=device).time().step_seconds
                if policies is None or compiled is None:
                    continue
                said = policies.policy(built_in).step_seconds
                if said is None:
                    continue
                errors.append(said / compiled - 1)
                before = plain.time().step_seconds or math.nan
                lines.append(
                    f"{key}, {policy}: {1e3 * before:.1f} ms, modelled {1e3 * said:.1f}, compiled "
                    f"{1e3 * compiled:.1f}: {errors[-1]:+.1%}"
                )
    if errors:
        lines.append(
            f"{len(errors)} steps: median error {statistics.median(map(abs, errors)):.1%}, "
            f"worst {max(errors, key=abs):+.1%}, {sum(own < 0 for own in errors)} too short"
        )
    return lines


def keyed_after(every: dict[str, bytes]) -> dict[str, bytes]:
    """By program: its text after optimisation without checkpointing."""
    return {own.removesuffix(".none"): text for own, text in every.items() if own.endswith(".none")}


def inner_loops() -> list[str]:
    """Peaks and FLOPs of the train steps of `make_inner_loops.py`: one line for each program."""
    lines = (FIXTURES / "policies" / "inner_loops.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    truth = {(own["program"], own["policy"]): own for own in records}
    texts = policy_texts.unpack("inner_loops")
    found = []
    for program in dict.fromkeys(own["program"] for own in records):
        none = truth[program, "none"]
        parts: list[str] = []
        for name in (f"{program}.none", f"{program}.none.before"):
            policies = hlofast.loads(texts[name]).remat().policies
            if policies is None:
                parts.append("not modelled")
                continue
            figures = []
            if policies.is_modelled:
                figures.append(f"as compiled {policies.peak / none['peak'] - 1:+.1%}")
            for policy, own in (
                (own["policy"], own) for own in records if own["program"] == program
            ):
                if policy == "none":
                    continue
                outcome = policies.policy(policy_texts.BUILT_IN[policy])
                again = own["flops"] - none["flops"]
                is_same = "" if outcome.recomputed_flops == again else " (other FLOPs)"
                figures.append(f"{policy} {outcome.peak / own['peak'] - 1:+.1%}{is_same}")
            parts.append(", ".join(figures))
        found.append(f"{program}: after optimisation {'; before '.join(parts)}")
    return found


def chip_of(program: str) -> str:
    """The chip that a program is compiled for."""
    return next(part for part in program.split("_") if part in LIMITS)


def steps(folder: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """Step times under a policy, beside the model on the compiled text, by kind of text.

    From each text to each policy under which a text is there; of layers in groups, also those in
    `folder`.
    """
    plain = {(program, "none"): text for program, text in texts().items()}
    groups = in_groups() if folder is None else read_all(folder, "*groups*.txt") | in_groups()
    kinds = {
        "scanned": plain | checkpointed(),
        "scanned, to policies that offload": plain | offloaded(),
        "without scans": plain | keyed(policy_texts.unpack("nameless")),
        "in groups": groups,
    }
    return {kind: steps_of(own) for kind, own in kinds.items()}


def steps_of(texts: dict[tuple[str, str], bytes]) -> list[dict[str, Any]]:
    """One row per text and policy under which another text of the program is there."""
    other = {program for program, policy in texts if policy != "none"}
    texts = {key: text for key, text in texts.items() if key[0] in other}
    modules = {
        key: hlofast.loads(text, device=f"tpu-{chip_of(key[0])}") for key, text in texts.items()
    }
    compiled = {key: module.time().step_seconds for key, module in modules.items()}
    found = []
    for (program, own), module in modules.items():
        policies = module.remat().policies
        for (other, policy), seconds in compiled.items():
            if other != program or policy in (own, "none") or policies is None:
                continue
            step = policy_of(policies, policy, program).step_seconds
            if step is not None and seconds is not None:
                error = step / seconds - 1
                found.append({"program": program, "text": own, "policy": policy, "error": error})
    return found


def kind_of_plan(plan: dict[str, Any]) -> str:
    """The kind of program that a policy was chosen for."""
    if "." in plan["program"]:
        return "checkpointed"
    return "fits without checkpointing" if plan["fits_as_is"] else "refused by XLA"


def main() -> None:
    """Prints the errors by set and by policy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--lowered", type=Path, help="folder of texts before optimisation")
    parser.add_argument("--groups", type=Path, help="folder of further texts of layers in groups")
    parser.add_argument("--unlike", type=Path, help="folder of train steps unlike the others")
    parser.add_argument("--plans", type=Path, help="write the chosen policies to this file")
    given = parser.parse_args()
    if given.plans:
        given.plans.write_text(json.dumps(plans(), indent=1) + "\n")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = rows(lowered(given.lowered))
    sets: dict[str, list[dict[str, Any]]] = {}
    after = [row for row in every if row["optimisation"] == "after"]
    before = [row for row in every if row["optimisation"] == "before" and row["kind"] == "texts"]
    flat = [row for row in every if row["optimisation"] == "before" and row["kind"] == "unrolled"]
    grouped = [row for row in every if row["optimisation"] == "before" and row["kind"] == "groups"]
    kinds = {
        "not checkpointed": [r for r in after if r["text"] == "none" and r["kind"] == "texts"],
        "small programs": [row for row in after if row["kind"] == "roomy"],
        "exchanged scores": [row for row in after if row["kind"] == "exchanged"],
        "rings": [row for row in after if row["kind"] == "rings"],
        "checkpointed": [r for r in after if r["text"] != "none" and r["kind"] not in OTHERS],
        "checkpointed, second texts": [row for row in after if row["kind"] == "second"],
        "offloaded": [row for row in after if row["kind"] == "offloaded"],
        "unrolled": [row for row in after if row["kind"] == "unrolled"],
        "unrolled, further programs": [row for row in after if row["kind"] == "layers"],
        "plain loops": [r for r in after if r["text"] == "none" and r["kind"] == "nameless"],
        "plain loops, checkpointed": [
            r for r in after if r["text"] != "none" and r["kind"] == "nameless"
        ],
        "kernels": [row for row in after if row["kind"] == "variants"],
        "groups": [r for r in after if r["kind"] == "groups" and "whole" not in r["program"]],
        "checkpointed groups": [
            r for r in after if r["kind"] == "groups" and "whole" in r["program"]
        ],
        "before optimisation": [row for row in before if row["text"] == "none"],
        "before optimisation, checkpointed": [row for row in before if row["text"] != "none"],
        "unrolled before optimisation": [row for row in flat if row["text"] == "none"],
        "unrolled before optimisation, checkpointed": [r for r in flat if r["text"] != "none"],
        "plain loops before optimisation": [
            r for r in every if r["optimisation"] == "before" and r["kind"] == "nameless"
        ],
        "before optimisation, kernels": [
            r for r in every if r["optimisation"] == "before" and r["kind"] == "variants"
        ],
        "groups before optimisation": [
            r for r in grouped if r["text"] == "none" and "whole" not in r["program"]
        ],
        "groups before optimisation, layers checkpointed": [
            r for r in grouped if r["text"] != "none" and "whole" not in r["program"]
        ],
        "checkpointed groups before optimisation": [r for r in grouped if "whole" in r["program"]],
    }
    for kind, own in kinds.items():
        sets[f"{kind}, fitted"] = [row for row in own if not row["held_out"]]
        sets[f"{kind}, held out"] = [row for row in own if row["held_out"]]
        for policy in (*policy_texts.BUILT_IN, *NAMED, *MOVED):
            sets[f"{kind}, {policy}"] = [row for row in own if row["policy"] == policy]
    for name, part in sets.items():
        if all(row["error"] is None for row in part):
            continue
        print(name)
        for label, value in figures(part).items():
            print(f"  {label:28} {value:8.0f}" if value > 2 else f"  {label:28} {value:8.1%}")
    for name in (*UNLIKE, "drawn"):
        print(f"train steps unlike the others: {name}", *unlike(name, given.unlike), sep="\n  ")
    for name in UNLIKE:
        named = [line for line in unlike(name, given.unlike, True) if " peaks, median " in line]
        print(f"the same with the device named: {name}", *named, sep="\n  ")
    print("train steps with loops in their layers", *inner_loops(), sep="\n  ")
    print("chosen policies", *chosen(), sep="\n  ")
    parts = {"fitted": (False,), "held out": (True,), "both": (False, True)}
    for (kind, known), is_plain in itertools.product(steps(given.groups).items(), (True, False)):
        for part, held in parts.items():
            own = [
                row["error"]
                for row in known
                if (row["text"] == "none") == is_plain
                and row["program"].startswith("held_") in held
            ]
            if own:
                print(
                    f"step times of layers {kind}, texts {'without' if is_plain else 'with'} "
                    f"checkpointing, {part}: {len(own)}, median error "
                    f"{statistics.median(map(abs, own)):.1%}, worst {max(own, key=abs):+.1%}"
                )
    if given.unlike:
        print("step times of steps unlike the others", *unlike_steps(given.unlike), sep="\n  ")
    if given.json:
        given.json.write_text(json.dumps(every, indent=1) + "\n")


if __name__ == "__main__":
    main()
