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
compiled.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import statistics
import tarfile
import warnings
from pathlib import Path
from typing import Any

import hlofast

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures" / "what_if"
SIZES = ("batch", "sequence", "layers")


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


def compiled(folder: Path) -> list[tuple[dict[str, Any], bytes]]:
    """The record and the text of each variant in a folder."""
    places = sorted(folder.glob("*.json"))
    return [(json.loads(at.read_text()), at.with_suffix(".txt").read_bytes()) for at in places]


def figures(module: hlofast.Module) -> tuple[int, dict[str | None, int | None]]:
    """The peak, and wire bytes by axes."""
    table = module.collectives().by("axes")
    sent = dict(zip(table.values("axes"), table.values("total_wire_bytes"), strict=True))
    return module.memory().xla_peak, sent


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
    peak, sent = figures(result.changed)
    true_peak, true_sent = truth
    exact = [axes for axes, size in true_sent.items() if sent.get(axes) == size]
    total, true_total = sum(filter(None, sent.values())), sum(filter(None, true_sent.values()))
    return row | {
        "peak_error": peak / true_peak - 1,
        "axes": len(true_sent),
        "exact_axes": len(exact),
        "is_exact": sent == true_sent,
        "exact_bytes": sum(true_sent[axes] or 0 for axes in exact),
        "bytes": true_total,
        "wire_error": total / true_total - 1 if true_total else 0.0,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares of the changes."""
    done = [row for row in rows if "refused" not in row]
    if not done:
        return {"changes": len(rows), "refused": len(rows)}
    share = lambda good: sum(good) / len(rows)  # noqa: E731 - short and local
    return {
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
    }


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, help="folder of make_what_if.py")
    parser.add_argument("--json", type=Path, help="write all changes to a file")
    parser.add_argument("--pairs", action="store_true", help="print every change")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # Some arrays without a layout; the figures stand.
    loaded = []
    for record, text in committed() if given.texts is None else compiled(given.texts):
        if record["refused"]:
            continue  # XLA itself rematerialises until it gives up.
        module = hlofast.loads(text).with_context(mesh=record["mesh"])
        loaded.append((record, module, figures(module)))
        if "peak" in record:
            error = loaded[-1][2][0] / record["peak"] - 1
            name = f"{record['program']}.{record['variant']}"
            print(f"{name}: the account of the text is {error:+.4%} off XLA's peak")
    rows = [
        judge(record, module, other, truth)
        for (record, module, _), (other, _, truth) in itertools.permutations(loaded, 2)
        if record["program"] == other["program"]
    ]
    if given.pairs:
        for row in rows:
            print(json.dumps(row))
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kind = "held out" if row["held_out"] else "fitted"
        groups.setdefault(f"{kind}: all", []).append(row)
        place = "other mesh" if "mesh" in row["changes"] else "same mesh"
        groups.setdefault(f"{kind}: {place}", []).append(row)
        if len(row["changes"]) == 1:
            groups.setdefault(f"{kind}: only {row['changes'][0]}", []).append(row)
        groups.setdefault(f"{kind}: {row['program']}", []).append(row)
    for name, own in sorted(groups.items()):
        figures_of_group = summary(own)
        words = [f"{key} {value:.3g}" for key, value in figures_of_group.items()]
        print(f"{name:32} {'  '.join(words)}")
    if given.json:
        report = {"summary": {name: summary(own) for name, own in sorted(groups.items())}}
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
