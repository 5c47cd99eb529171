"""What a module computes again, what it keeps instead, what becomes of gathers, what to change."""

from __future__ import annotations

from hlofast import _text as output
from hlofast._context import read_bytes
from hlofast._memory import RULES, SPACES
from hlofast.cli import FINDINGS, UNREADABLE, USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._remat import Remat
    from hlofast._remat_statements import Statement

EXAMPLES = """\
examples:
  hlofast remat module_0042.jit_train_step.after_optimizations.txt
  hlofast remat --mesh data=2,model=4 step.txt
  hlofast remat --top 0 step.txt                 everything that is kept
  hlofast remat --plan step.txt                  what to compute again to need less memory
  hlofast remat --hbm 16GiB --device tpu-v5e step.txt
  hlofast remat --hbm 16GiB --apply -o less.txt step.txt
  hlofast remat --json step.txt | jq '.modules[].statements[] | {code, names, advice}'

Residuals are what forward code makes and backward code reads. Recomputed is what jax.checkpoint,
or the compiler, has executed again instead: operation names tell, else earlier instructions that
compute the same. A gather's result is kept where it, or a copy of it, is a residual.

A plan tries what could be computed again in modules of their own, and counts what they need at the
peak: by default what compiled.memory_analysis() reports of scheduled TPU programs (rule xla), and
what is alive of others (rule in_place), as `hlofast memory` has both. --apply writes the module in
which all of it is computed again.
"""
VERSION = 1
SHOWN_PROOFS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    inputs.add_mesh(parser)
    output.add_top(parser)
    inputs.add_rules(parser)
    plan = parser.add_argument_group("what to compute again")
    plan.add_argument("--plan", action="store_true", help="so that less memory is needed")
    plan.add_argument(
        "--hbm", metavar="SIZE", help="so that so much is enough: 16GiB, 900MB, bytes"
    )
    plan.add_argument("--rule", choices=RULES, help="how the peak is counted (see hlofast memory)")
    plan.add_argument("--device", metavar="NAME", help="count seconds on it (see hlofast time)")
    plan.add_argument("--apply", action="store_true", help="write the new module; goes with -o")
    plan.add_argument("-o", "--output", metavar="OUT", help="file for the new module")


def run(arguments: argparse.Namespace) -> int:
    """Report on the modules of every file."""
    given = inputs.read_mesh_and_rules(arguments)
    if given is None or not _is_plan(arguments):
        return USAGE
    mesh, rules = given
    reader = inputs.Reader(arguments)
    printer = None if arguments.json else output.Printer()
    documents = []
    code = 0
    modules = list(reader) if arguments.apply else reader
    if isinstance(modules, list) and len(modules) > 1:
        inputs.complain("--apply takes one module; --module NAME selects it")
        return USAGE
    for found in modules:
        inputs.note_misfit(found.module, found.path, mesh)
        remat = found.module.remat(
            arguments.hbm, arguments.device, mesh=mesh, rules=rules, rule=arguments.rule
        )
        document = found.describe() | _describe(remat)
        document |= {"plan": None, "applied": None}
        if arguments.plan:
            try:
                document["plan"] = _plan(remat)
            except ValueError as error:
                inputs.complain(f"{found.path}: {found.module.name}: {error}")
                code = USAGE
        if arguments.apply:
            try:
                document["applied"] = _apply(remat, arguments.output)
                code = code if document["applied"] else FINDINGS
            except OSError as error:
                inputs.complain(f"{arguments.output}: {error.strerror or error}")
                document["applied"], code = False, UNREADABLE
        documents.append(document)
        if printer is not None:
            _print(printer, document, arguments.top or None)
    if printer is None:
        contents = {"modules": output.finite(documents), "errors": reader.errors}
        output.print_json("remat", VERSION, contents)
    return reader.exit_code() or code


def _is_plan(arguments: argparse.Namespace) -> bool:
    """Whether what is said about a plan makes sense, which is said if not."""
    if arguments.apply != (arguments.output is not None):
        inputs.complain("--apply and -o go together")
        return False
    try:
        if arguments.hbm is not None:
            inputs.note_small(arguments.hbm)
            arguments.hbm = read_bytes(arguments.hbm)
        if arguments.device is not None:
            from hlofast import devices

            arguments.device = devices.get(arguments.device)
    except (KeyError, ValueError) as error:
        inputs.complain(str(error.args[0]) if error.args else str(error))
        return False
    given = (arguments.hbm, arguments.device, arguments.rule)
    asked = arguments.apply or any(one is not None for one in given)
    arguments.plan = arguments.plan or asked
    return True


def _apply(remat: Remat, path: str) -> bool:
    """Write the new module beside `path` and move it there; False if there is none to write.

    An `OSError` if it cannot be written.
    """
    from hlofast._files import replacing

    try:
        text = remat.apply().to_text()
    except ValueError as error:
        inputs.complain(f"{error}; nothing is written")
        return False
    with replacing(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))
    return True


def _describe(remat: Remat) -> dict[str, Any]:
    """The JSON form of one module's report."""
    recomputed = [_recomputed(remat, row) for row in remat.recomputed]
    residuals = [_residual(remat, row) for row in remat.residuals]
    gathers = [_gather(row, residuals) for row in remat.gathers]
    phases = remat.instructions
    return {
        "instructions": phases,
        "totals": {
            "recomputed": len(recomputed),
            "recomputed_flops": sum(row["flops"] or 0 for row in recomputed),
            "recomputed_collectives": sum(row["is_collective"] for row in recomputed),
            "residuals": len(residuals),
            "residual_bytes": sum(row["bytes"] or 0 for row in residuals),
            "gathers": len(gathers),
            "kept_gathers": sum(row["fate"] == "kept" for row in gathers),
            "named_values": len(remat._data.marks()[0]),
            "is_lower_bound": any(row["bytes"] is None for row in residuals)
            or any(row["multiplicity"] is None for row in recomputed),
        },
        "statements": [_statement(statement) for statement in remat.statements],
        "recomputed": recomputed,
        "residuals": sorted(residuals, key=lambda row: -(row["bytes"] or 0)),
        "gathers": sorted(gathers, key=lambda row: -(row["payload_out"] or 0)),
        "notes": _notes(remat),
    }


def _plan(remat: Remat) -> dict[str, Any]:
    """What to compute again, and what comes of it."""
    at = remat.peak_at
    candidates = remat.candidates.to_pylist()
    return {
        "hbm": remat.hbm,
        "device": None if remat.device is None else getattr(remat.device, "name", None),
        "memory": {
            "rule": remat.rule,
            "is_default": remat._rule is None,
            "sizes": "device",
            "space": _space(remat._planned().space()),
            "constants": "program" if remat.rule == "xla" else "last_use",
        },
        "peak": remat.peak,
        "peak_at": None if at is None else at.name,
        "peak_after": remat.peak_after,
        "steps": list(remat.steps),
        "fits": remat.fits,
        "candidates": [_candidate(row) for row in candidates],
    }


def _candidate(row: dict[str, Any]) -> dict[str, Any]:
    file = row["source_file"] or None
    return {
        **{name: row[name] for name in ("name", "index", "kind", "shape")},
        "bytes": output.known(row["bytes"]),
        "again": row["again"].split(),
        "is_stack": bool(row["is_stack"]),
        "kept_instead": output.known(row["kept_instead"]),
        "is_alive_at_peak": bool(row["is_alive_at_peak"]),
        "peak": output.known(row["peak"]),
        "saved": row["saved"] if row["peak"] >= 0 else None,
        **{name: output.known(row[name]) for name in ("flops", "bytes_moved", "wire_bytes")},
        "seconds": row["seconds"] if row["seconds"] == row["seconds"] else None,
        "chosen": output.known(row["chosen"]),
        "refusal": row["refusal"] or None,
        "no_saving": row["no_saving"] or None,
        "change": row["change"],
        "source_file": file,
        "source_line": row["source_line"] if file and row["source_line"] > 0 else None,
    }


def _statement(statement: Statement) -> dict[str, Any]:
    return {
        "code": statement.code,
        "text": statement.text,
        "advice": statement.advice,
        "instructions": [
            {"row": row, "name": name}
            for row, name in zip(statement.instructions, statement.names, strict=True)
        ],
        "figures": statement.figures,
    }


def _recomputed(remat: Remat, row: dict[str, Any]) -> dict[str, Any]:
    numbers = ("multiplicity", "flops", "bytes_read", "bytes_written")
    return {
        **{name: row[name] for name in ("instruction", "name", "computation", "opcode", "by")},
        "twin": remat.module[row["twin"]].name if row["twin"] >= 0 else None,
        "is_collective": bool(row["is_collective"]),
        **{name: output.known(row[name]) for name in numbers},
        **output.origin(row),
    }


def _residual(remat: Remat, row: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: row[name] for name in ("instruction", "name", "index", "kind", "shape")},
        "bytes": output.known(row["bytes"]),
        "span": row["span"],
        "first_use": remat.module[row["first_use"]].name,
        "last_use": remat.module[row["last_use"]].name,
        "widened_from": row["widened_from"] or None,
        "is_stacked": bool(row["is_stacked"]),
        "trip_count": output.known(row["trip_count"]),
        "made_by": remat.module[row["made_by"]].name,
        "source": row["source_name"],
        "is_named": bool(row["is_named"]),
        "is_in_flight": bool(row["is_in_flight"]),
        **output.origin(row),
    }


def _gather(row: dict[str, Any], residuals: list[dict[str, Any]]) -> dict[str, Any]:
    texts = ("instruction", "name", "computation", "fate", "moved")
    numbers = ("group_size", "payload_in", "payload_out", "wire_bytes", "multiplicity")
    residual = residuals[row["residual"]] if row["residual"] >= 0 else None
    return {
        **{name: row[name] for name in texts},
        **{name: row[name] or None for name in ("tensor", "shape", "axes")},
        **{name: output.known(row[name]) for name in numbers},
        "residual": residual and {name: residual[name] for name in ("name", "index", "bytes")},
        **output.origin(row),
    }


def _notes(remat: Remat) -> list[dict[str, Any]]:
    """What to keep in mind: kind and words."""
    summary = remat.module.summary(shapes=1)
    notes: list[dict[str, Any]] = []

    def note(kind: str, text: str) -> None:
        notes.append({"kind": kind, "text": text})

    phases = remat.instructions
    if not phases["backward"] and not phases["recompute"]:
        note(
            "no-backward",
            "no instruction is known to be of a backward pass, so nothing is kept for one",
        )
    if summary["status"] in ("unoptimised", "annotated"):
        note(
            "global",
            f"the module is {summary['status']}: shapes are those of all devices together, and "
            "the partitioner, which writes most all-gathers, has not run",
        )
    if not summary["is_scheduled"]:
        note(
            "unscheduled",
            "the module is not scheduled: spans are counted in the order of the text",
        )
    elsewhere = remat.outside_phase()
    if elsewhere:
        flops = sum(max(row["flops"], 0) for row in elsewhere)
        note(
            "other-phases",
            f"phase recompute, here and in `hlofast cost`, leaves out {flops:,} FLOP of "
            f"{output.counted(len(elsewhere), 'recomputed instruction')}: clones of the compiler "
            "and twins have the phase of what they repeat",
        )
    by_place = [row for row in remat.residuals if not row["is_named"]]
    if by_place:
        count = output.counted(len(by_place), "residual")
        note(
            "by-place",
            f"{count} told by their place before all backward code, not by operation names",
        )
    return notes


def _print(printer: output.Printer, document: dict[str, Any], limit: int | None) -> None:
    printer.heading(document["name"])
    printer.facts(_facts(document))
    for statement in document["statements"]:
        printer.line()
        printer.paragraph("* ", f"{statement['text']} [{statement['code']}]")
        proofs = [proof["name"] for proof in statement["instructions"]]
        if proofs:
            shown = ", ".join(proofs[:SHOWN_PROOFS])
            more = len(proofs) - SHOWN_PROOFS
            printer.paragraph("  proof: ", shown + (f" and {more:,} more" if more > 0 else ""))
        if statement["advice"]:
            printer.paragraph("  advice: ", statement["advice"])
    _print_gathers(printer, document["gathers"], limit)
    _print_residuals(printer, document["residuals"], limit)
    _print_recomputed(printer, document["recomputed"], limit)
    if document["plan"] is not None:
        _print_plan(printer, document["plan"], limit)
    printer.notes(document["notes"])


def _facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    totals = document["totals"]
    phases = ", ".join(f"{phase} {count:,}" for phase, count in document["instructions"].items())
    recomputed = output.counted(totals["recomputed"], "instruction")
    if totals["recomputed"]:
        recomputed += f", {output.quantity(totals['recomputed_flops'], 'FLOP')}"
        recomputed += by_whom([row["by"] for row in document["recomputed"]])
    residuals = output.counted(totals["residuals"], "residual")
    if totals["residuals"]:
        residuals += f", {output.size(totals['residual_bytes'])}"
    gathers = output.counted(totals["gathers"], "all-gather")
    if totals["gathers"]:
        gathers += f", {totals['kept_gathers']:,} kept from forward to backward"
    return [
        ("file", f"{document['path']}{line}"),
        ("phases", f"{phases} instructions"),
        ("recomputed", recomputed),
        ("kept", residuals),
        ("gathers", gathers),
    ]


def by_whom(by: list[str]) -> str:
    """`: program 5, compiler 15`; nothing where the program alone has things computed again."""
    counts = {one: by.count(one) for one in ("program", "compiler", "twin")}
    if counts["program"] == len(by):
        return ""
    return ": " + ", ".join(f"{one} {count:,}" for one, count in counts.items() if count)


def _print_gathers(
    printer: output.Printer, gathers: list[dict[str, Any]], limit: int | None
) -> None:
    rows = [
        [
            row["name"],
            row["fate"],
            row["moved"],
            _end(row["tensor"] or "-"),
            row["shape"] or "-",
            row["axes"] or "-",
            row["payload_out"],
            row["wire_bytes"],
            row["multiplicity"],
            output.source(row),
        ]
        for row in gathers[:limit]
    ]
    columns = [
        "name",
        "fate",
        "moved",
        "tensor",
        "shape",
        "axes",
        "B out",
        "wire B",
        "times",
        "from",
    ]
    printer.table("All-gathers", columns, rows, len(gathers))


def _print_residuals(
    printer: output.Printer, residuals: list[dict[str, Any]], limit: int | None
) -> None:
    total = sum(row["bytes"] or 0 for row in residuals)
    rows = [
        [
            row["name"] + (row["index"] if row["index"] != "{}" else ""),
            _kind(row),
            row["shape"],
            row["bytes"],
            output.share(row["bytes"] or 0, total),
            row["span"],
            row["last_use"],
            row["source"],
            output.source(row),
        ]
        for row in residuals[:limit]
    ]
    columns = ["made by", "kind", "shape", "B", "share", "span", "last use", "computed by", "from"]
    printer.table("Kept from forward to backward", columns, rows, len(residuals))


def _print_recomputed(
    printer: output.Printer, recomputed: list[dict[str, Any]], limit: int | None
) -> None:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in recomputed:
        operation = (row["op_name"] or "").rsplit("/", 1)[-1] or row["opcode"]
        groups.setdefault((row["by"], operation, output.source(row)), []).append(row)
    totals = [
        [
            operation,
            by,
            len(rows),
            sum(row["multiplicity"] or 0 for row in rows),
            sum(row["flops"] or 0 for row in rows),
            source,
        ]
        for (by, operation, source), rows in groups.items()
    ]
    totals.sort(key=lambda row: (-int(str(row[4])), -int(str(row[2]))))
    columns = ["operation", "recomputed by", "instructions", "times", "FLOPs", "from"]
    printer.table("Recomputed, by operation and line", columns, totals[:limit], len(totals))


def _print_plan(printer: output.Printer, plan: dict[str, Any], limit: int | None) -> None:
    chosen = [row for row in plan["candidates"] if row["chosen"] is not None]
    chosen.sort(key=lambda row: int(row["chosen"]))
    printer.line()
    printer.heading("Plan")
    facts = [("peak", f"{output.size(plan['peak'])} at {plan['peak_at']}")]
    if plan["hbm"] is not None:
        facts.append(("wanted", output.size(plan["hbm"])))
    if chosen:
        facts.append(("with the plan", f"{output.size(plan['peak_after'])}{_fits(plan)}"))
    else:
        facts.append(("with the plan", _without(plan)))
    facts.append(("counted", _counted(plan["memory"])))
    printer.facts(facts)
    for number, (row, peak) in enumerate(zip(chosen, plan["steps"], strict=True), 1):
        made = row["name"] + (row["index"] if row["index"] != "{}" else "")
        price = [f"{row['wire_bytes']:,} wire B"] if row["wire_bytes"] else []
        price += [f"{row['flops']:,} FLOP"] if row["flops"] else []
        price += [f"{row['seconds'] * 1e3:,.3f} ms"] if row["seconds"] is not None else []
        cost = f" for {', '.join(price)}" if price else ""
        text = f"{row['kind'].replace('_', ' ')} {made} {row['shape']}: peak {peak:,} B{cost}"
        printer.paragraph(f"{number}. ", text)
        printer.paragraph("   change: ", row["change"])
        if row["again"]:
            printer.paragraph("   module: ", f"copies of {', '.join(row['again'])}")
    rows = [
        [
            row["name"] + (row["index"] if row["index"] != "{}" else ""),
            row["kind"].replace("_", " "),
            row["shape"],
            row["bytes"],
            row["kept_instead"],
            row["saved"],
            row["flops"],
            row["wire_bytes"],
            None if row["seconds"] is None else output.Figure(f"{row['seconds'] * 1e3:,.3f}"),
            "yes" if row["is_alive_at_peak"] else "no",
            row["refusal"] or row["no_saving"] or "",
        ]
        for row in plan["candidates"][:limit]
    ]
    names = (
        "kept|kind|shape|B|B instead|peak B saved|FLOPs|wire B|ms|at the peak|saves nothing since"
    )
    printer.table("Candidates", names.split("|"), rows, len(plan["candidates"]))


def _counted(memory: dict[str, Any]) -> str:
    """How peaks are counted, and why so."""
    text = f"rule {memory['rule']}"
    if memory["rule"] == "xla":
        text += ", as compiled.memory_analysis() counts"
        if memory["space"] != "hbm":
            text += f": not HBM's heap, but that of {memory['space']}, which is larger"
    elif memory["is_default"]:
        text += ", what is alive"
    return f"{text}; sizes device, HBM; no fragmentation"


def _space(number: int) -> str:
    return next((name for name, space in SPACES.items() if space == number), f"S({number})")


def _fits(plan: dict[str, Any]) -> str:
    if plan["fits"] is None:
        return ""
    return ", which fits" if plan["fits"] else ", which does not fit"


def _without(plan: dict[str, Any]) -> str:
    """What is said where nothing is chosen."""
    if plan["fits"]:
        return "the peak fits as it is; nothing has to be computed again"
    text = "no value that could be computed again brings the peak down"
    return text if plan["fits"] is None else f"{text}, and it does not fit"


def _kind(row: dict[str, Any]) -> str:
    kind = str(row["kind"]).replace("_", " ")
    if row["widened_from"]:
        kind += f" of {row['widened_from']}"
    if row["is_in_flight"]:
        kind += ", in flight"
    if row["is_stacked"]:
        trips = row["trip_count"]
        kind += ", stacked" if trips is None else f", stacked {trips:,} times"
    return kind


def _end(name: str) -> str:
    """The last components of an operation's name."""
    parts = name.split("/")
    return output.label(name if len(parts) <= 3 else "…/" + "/".join(parts[-3:]))
