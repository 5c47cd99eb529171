"""Accuracy of `what-if`: every ordered pair of compiled variants of a program is a change.

    python benches/what_if_accuracy.py [--texts DIR] [--json FILE] [--pairs]

`tests/fixtures/what_if_models.py` names the programs and their variants: other batches, sequences,
layers and meshes, alone and together; `tests/fixtures/make_what_if.py --out DIR` compiles them
ahead of time for TPUs. Without `--texts` the committed programs are judged. For each change the
text of one variant is changed to the sizes of the other and compared with the text that XLA
compiled for these: wire bytes along each combination of mesh axes, and the peak as XLA counts it
(hlofast's account of the compiled text, which equals `peak_memory_in_bytes`: see
`benches/memory_accuracy.py`; records of `--whole` compilations are compared here too). Programs
called `held_...` are those for which no rule was made; rules were still changed after they were
compiled. A change is answered if the text decides all its wire bytes (`WhatIf.undecided`), its
peak (`WhatIf.peak_undecided`), or its FLOPs (`WhatIf.flops_undecided`), which are compared with
those of the compiled text, as executed. The step time is that of the time model on the changed
text, compared with the model on the compiled text: what the change misses, not what the model
does.

With `--policies`, texts without checkpointing of tests/fixtures/policies are changed to a policy,
and compared with the texts compiled under it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import statistics
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hlofast
from hlofast import _what_if_wire

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures" / "what_if"
SIZES = ("batch", "sequence", "layers")
RIGHT: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "wire": ("open", lambda row: row["is_exact"]),
    "peak": ("peak_open", lambda row: abs(row["peak_error"]) <= 0.05),
    "flops": ("flops_open", lambda row: abs(row["flops_error"]) <= 0.01),
}
"""By figure: what says why it is open, and whether it is right."""


def committed() -> list[tuple[dict[str, Any], bytes]]:
    """The record and the text of each committed variant."""
    lines = (FIXTURES / "records.jsonl").read_text().splitlines()
    records = {f"{own['program']}.{own['variant']}.txt": own for own in map(json.loads, lines)}
    found = []
    for path in sorted(FIXTURES.glob("*.tar.xz")):
        with lzma.open(path) as packed, tarfile.open(fileobj=packed) as archive:
            for entry in archive:
                file = archive.extractfile(entry)
                assert file is not None
                found.append((records[entry.name], file.read()))
    return found


def archived(place: Path) -> list[tuple[dict[str, Any], bytes]]:
    """The record and the text of each variant in an archive that holds both."""
    with lzma.open(place) as packed, tarfile.open(fileobj=packed) as archive:
        files = {own.name: file.read() for own in archive if (file := archive.extractfile(own))}
    records = sorted(name for name in files if name.endswith(".json"))
    return [(json.loads(files[own]), files[own.replace(".json", ".txt")]) for own in records]


def loaded(record: dict[str, Any], text: bytes) -> hlofast.Module:
    """A variant on its mesh and its chip."""
    device = device_of(record["chips"])
    return hlofast.loads(text).with_context(mesh=record["mesh"], device=device)


def compiled(folder: Path) -> list[tuple[dict[str, Any], bytes]]:
    """The record and the text of each variant in a folder."""
    places = sorted(folder.glob("*.json"))
    return [(json.loads(at.read_text()), at.with_suffix(".txt").read_bytes()) for at in places]


def figures(module: hlofast.Module) -> tuple[int, dict[str | None, int | None], float, int]:
    """The peak, wire bytes by axes, the modelled step time, and FLOPs."""
    own = module.memory().xla_peak, sent_by(module)
    return *own, module.time().step_seconds, module.cost().flops


def sent_by(module: hlofast.Module) -> dict[str | None, int | None]:
    """Wire bytes by axes."""
    table = module.collectives().by("axes")
    return dict(zip(table.values("axes"), table.values("total_wire_bytes"), strict=True))


def device_of(chips: str) -> str:
    """The device of a program: of v5e:2x4 or dense_v5e_8."""
    return next(f"tpu-{chip}" for chip in ("v5e", "v5p", "v6e") if chip in chips)


def judge_policies() -> list[dict[str, Any]]:
    """One row per program that is committed without checkpointing and under a built-in policy."""
    import policy_accuracy

    plain = policy_accuracy.texts()
    rows = []
    for (program, policy), text in sorted(policy_accuracy.checkpointed().items()):
        name = policy_accuracy.policy_texts.BUILT_IN.get(policy)
        if name is None or program not in plain:
            continue
        device = device_of(program)
        own, other = (
            hlofast.loads(one).with_context(device=device) for one in (plain[program], text)
        )
        row = {
            "program": program,
            "held_out": program.startswith("held_"),
            "changes": ["policy"],
            "variants": ["none", policy],
        }
        try:
            result = own.what_if(policy=name)
            after = {key: values[1] for key, values in result.figures.items()}
            sent = _what_if_wire.after(result)
            seconds = result.policy.step_seconds
        except ValueError as error:
            rows.append(row | {"refused": str(error)})
            continue
        truth = hlofast_figures(other)
        rows.append(
            row
            | {
                "peak_error": after["xla_peak"] / truth["xla_peak"] - 1,
                "open": ["policy"],
                "peak_open": result.peak_undecided,
                "flops_error": after["flops"] / truth["flops"] - 1,
                "time_error": seconds / truth["step_seconds"] - 1,
            }
            | compared(sent, sent_by(other))
        )
    return rows


def hlofast_figures(module: hlofast.Module) -> dict[str, Any]:
    """The figures that `what-if` shows, of a module as it is."""
    return {name: values[0] for name, values in module.what_if().figures.items()}


def compared(
    sent: dict[str | None, int | None], true_sent: dict[str | None, int | None]
) -> dict[str, Any]:
    """Wire bytes of a change beside those of the compiled text."""
    exact = [axes for axes, size in true_sent.items() if sent.get(axes) == size]
    total, true_total = sum(filter(None, sent.values())), sum(filter(None, true_sent.values()))
    return {
        "axes": len(true_sent),
        "exact_axes": len(exact),
        "is_exact": sent == true_sent,
        "exact_bytes": sum(true_sent[axes] or 0 for axes in exact),
        "bytes": true_total,
        "wire_error": total / true_total - 1 if true_total else 0.0,
    }


def judge(
    record: dict[str, Any], module: hlofast.Module, other: dict[str, Any], truth: Any
) -> dict[str, Any]:
    """The figures of one change beside those of the compiled variant."""
    changed = [name for name in SIZES if record[name] != other[name]]
    wanted = {name: other[name] for name in changed}
    mesh = other["mesh"] if record["mesh"] != other["mesh"] else None
    row = {
        "program": record["program"],
        "held_out": record["held_out"],
        "variants": [record["variant"], other["variant"]],
        "changes": [*changed, *(["mesh"] if mesh else [])],
    }
    if "unrolled" in record["program"] and "layers" in changed:
        return row | {"refused": "layers without a loop"}
    try:
        # Of several sequences, the variants change the tokens of the decoder.
        if "sequence" in wanted and "pair" in record["program"]:
            wanted["sequence"] = {"tokens": wanted["sequence"]}
        result = module.what_if(**wanted, mesh=mesh)
    except ValueError as error:
        return row | {"refused": str(error)}
    seconds, flops = result.changed.time().step_seconds, result.changed.cost().flops
    peak = result.figures["xla_peak"][1]
    sent = _what_if_wire.after(result)
    flops += result.moves_work
    true_peak, true_sent, true_seconds, true_flops = truth
    table = result.wire_bytes
    known = [own for own in table if own["after"] or own["axes"] in true_sent]
    answered = {own["axes"]: own["after"] for own in known if own["undecided"] is None}
    return (
        row
        | compared(sent, true_sent)
        | {
            "peak_error": peak / true_peak - 1,
            "time_error": seconds / true_seconds - 1,
            "flops_error": flops / true_flops - 1,
            "flops_open": result.flops_undecided,
            "open": sorted({own["undecided"] for own in table} - {None}),
            "answered_axes": len(answered),
            "right_axes": sum(true_sent.get(axes) == size for axes, size in answered.items()),
            "peak_open": result.peak_undecided,
        }
    )


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares of the changes."""
    done = [row for row in rows if "refused" not in row]
    if not done:
        return {"changes": len(rows), "refused": len(rows)}
    share = lambda good: sum(good) / len(rows)  # noqa: E731 - short and local
    found = {
        "changes": len(rows),
        "refused": len(rows) - len(done),
        "peak_within_5": share(abs(row["peak_error"]) <= 0.05 for row in done),
        "peak_median": statistics.median(abs(row["peak_error"]) for row in done),
        "peak_worst": max(abs(row["peak_error"]) for row in done),
        "all_axes_exact": share(row["is_exact"] for row in done),
        "axes_exact": sum(r["exact_axes"] for r in done) / sum(r["axes"] for r in done),
        "bytes_exact": sum(r["exact_bytes"] for r in done) / sum(r["bytes"] for r in done),
        "wire_within_1": share(abs(row["wire_error"]) <= 0.01 for row in done),
        "wire_within_5": share(abs(row["wire_error"]) <= 0.05 for row in done),
        "time_within_5": share(abs(row["time_error"]) <= 0.05 for row in done),
        "time_within_10": share(abs(row["time_error"]) <= 0.1 for row in done),
        "time_median": statistics.median(abs(row["time_error"]) for row in done),
        "time_worst": max(abs(row["time_error"]) for row in done),
    }
    axes = sum(row.get("answered_axes", 0) for row in done)
    if axes:
        found["axes_answered"] = axes / sum(row["axes"] for row in done)
        found["right_of_answered_axes"] = sum(row["right_axes"] for row in done) / axes
    for what, (key, is_good) in RIGHT.items():
        answered = [row for row in done if not row.get(key)]
        found[f"{what}_answered"] = len(answered) / len(rows)
        if answered:
            found[f"{what}_right_of_answered"] = sum(map(is_good, answered)) / len(answered)
            if what != "wire":
                worst = max(abs(row[f"{what}_error"]) for row in answered)
                found[f"{what}_worst_of_answered"] = worst
    return found


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, help="folder of make_what_if.py")
    parser.add_argument("--json", type=Path, help="write all changes to a file")
    parser.add_argument("--pairs", action="store_true", help="print every change")
    parser.add_argument("--policies", action="store_true", help="judge changes of the policy")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # Some arrays without a layout; the figures stand.
    every = []
    if given.policies:
        report(judge_policies(), given.pairs, given.json)
        return
    for record, text in committed() if given.texts is None else compiled(given.texts):
        if record["refused"]:
            continue  # XLA itself rematerialises until it gives up.
        module = loaded(record, text)
        every.append((record, module, figures(module)))
        if "peak" in record:
            error = every[-1][2][0] / record["peak"] - 1
            name = f"{record['program']}.{record['variant']}"
            print(f"{name}: the account of the text is {error:+.4%} off XLA's peak")
    rows = [
        judge(record, module, other, truth)
        for (record, module, _), (other, _, truth) in itertools.permutations(every, 2)
        if record["program"] == other["program"]
    ]
    report(rows, given.pairs, given.json)


def report(rows: list[dict[str, Any]], pairs: bool, place: Path | None) -> None:
    """Prints the tables, and writes them to a file."""
    if pairs:
        for row in rows:
            print(json.dumps(row))
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kind = "held out" if row["held_out"] else "fitted"
        groups.setdefault(f"{kind}: all", []).append(row)
        where = "other mesh" if "mesh" in row["changes"] else "same mesh"
        groups.setdefault(f"{kind}: {where}", []).append(row)
        if len(row["changes"]) == 1:
            groups.setdefault(f"{kind}: only {row['changes'][0]}", []).append(row)
        groups.setdefault(f"{kind}: {row['program']}", []).append(row)
    for name, own in sorted(groups.items()):
        figures_of_group = summary(own)
        words = [f"{key} {value:.3g}" for key, value in figures_of_group.items()]
        print(f"{name:32} {'  '.join(words)}")
    if place is not None:
        every = {"summary": {name: summary(own) for name, own in sorted(groups.items())}}
        place.write_text(json.dumps(every, indent=1) + "\n")


if __name__ == "__main__":
    main()
