"""What differs between two programs, whatever their instructions are called and how they stand."""

from __future__ import annotations

import argparse

from hlofast.cli import DONE, FINDINGS, USAGE, inputs, output
from hlofast.cli.collectives import add_mesh, read_mesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._diff import Diff
    from hlofast.cli.inputs import Found
    from hlofast.table import Table

EXAMPLES = """\
examples:
  hlofast diff step.before.txt step.after.txt
  hlofast diff monday/module_0042.jit_train_step.after_optimizations.txt tuesday/step.txt.gz
  hlofast diff --no-layouts --no-backend-config cpu.txt tpu.txt
  hlofast diff --mesh data=2,model=4 a.txt b.txt    collectives by these axes
  hlofast diff --json a.txt b.txt | jq '.pairs[].changes[] | select(.is_consequence | not)'

Instructions are matched by what they compute and what is computed from them. Names, metadata,
channel numbers, order and copies of equal computations are no difference; the order is one with
--schedule. Shown are the changes that others do not follow from (a result has another shape since
its operand has: that follows); --all shows every one. Files with several modules are compared
module by module, by name. Of two trainer configs it says what `hlofast config A --diff B` does.
Exit codes: 0 no difference, 1 some, 2 usage, 3 unreadable.
"""
VERSION = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    for name, text in (("before", "the first file"), ("after", "the second")):
        parser.add_argument(name, metavar=name.upper(), help=f'{text}; "-" is standard input')
    parser.add_argument("--module", metavar="NAME", help="only the modules of this name")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--all", action="store_true", help="also what follows from other changes")
    parser.add_argument("--no-layouts", action="store_true", help="layouts do not count")
    parser.add_argument("--no-backend-config", action="store_true", help="nor does this attribute")
    parser.add_argument("--schedule", action="store_true", help="the order of instructions counts")
    add_mesh(parser)
    output.add_top(parser)
    parser.add_argument("--rules", metavar="FILE.toml", help="phases of operation names")


def run(arguments: argparse.Namespace) -> int:
    """Compare the modules of two files."""
    rules = inputs.read_rules(arguments.rules)
    is_mesh, mesh = read_mesh(arguments)
    if rules is None or not is_mesh:
        return USAGE
    code = _compare_configs(arguments)
    if code is not None:
        return code
    readers = []
    sides: list[list[Found]] = []
    for path in (arguments.before, arguments.after):
        reader = inputs.Reader(argparse.Namespace(files=[path], module=arguments.module))
        readers.append(reader)
        sides.append(list(reader))
    codes = [reader.exit_code() for reader in readers]
    printer = None if arguments.json else output.Printer()
    documents = []
    pairs, only_before, only_after = _paired(*sides)
    has_differences = bool(only_before or only_after)
    for before, after in pairs:
        diff = before.module.diff(
            after.module,
            layouts=not arguments.no_layouts,
            backend_config=not arguments.no_backend_config,
            schedule=arguments.schedule,
            mesh=mesh,
            rules=rules,
        )
        has_differences = has_differences or not diff.is_empty
        document = _describe(before, after, diff)
        if printer is None:
            documents.append(document)
        else:
            _print(printer, document, diff, arguments)
    errors = [error for reader in readers for error in reader.errors]
    if printer is None:
        document = {
            "pairs": documents,
            "only_before": [found.describe() for found in only_before],
            "only_after": [found.describe() for found in only_after],
            "errors": errors,
        }
        output.print_json("diff", VERSION, document)
    else:
        for sort, rest in (("before", only_before), ("after", only_after)):
            if rest:
                shown = output.names([found.module.name for found in rest])
                printer.paragraph(f"only {sort}: ", shown)
    if any(codes):
        return max(codes)
    return FINDINGS if has_differences else DONE


def _compare_configs(arguments: argparse.Namespace) -> int | None:
    """The exit code of comparing two trainer configs; None if the files are none."""
    paths = (arguments.before, arguments.after)
    heads = [_head(path) for path in paths]
    if not all(head and b"HloModule" not in head for head in heads):
        return None
    from hlofast import config

    if not all(config.is_config(head) for head in heads):
        return None
    from hlofast.cli import config as verb

    given = argparse.ArgumentParser()
    verb.configure(given)
    options = ["--diff", arguments.after, "--top", str(arguments.top)]
    options += ["--json"] if arguments.json else []
    return verb.run(given.parse_args([*options, "--", arguments.before]))


def _head(path: str) -> bytes:
    """The first bytes of a file; none of standard input and of what cannot be read."""
    if path == "-":
        return b""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def _paired(
    before: list[Found], after: list[Found]
) -> tuple[list[tuple[Found, Found]], list[Found], list[Found]]:
    """Modules of one name, in order, and those without a partner; two alone need no name."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])], [], []
    named: dict[str, list[Found]] = {}
    for found in after:
        named.setdefault(found.module.name, []).append(found)
    pairs, only_before = [], []
    for found in before:
        others = named.get(found.module.name)
        if others:
            pairs.append((found, others.pop(0)))
        else:
            only_before.append(found)
    return pairs, only_before, [found for others in named.values() for found in others]


def _describe(before: Found, after: Found, diff: Diff) -> dict[str, Any]:
    """The JSON form of a pair of modules."""
    return {
        "before": before.describe(),
        "after": after.describe(),
        "is_empty": diff.is_empty,
        "compares_layouts": diff.compares_layouts,
        "same_schedule": diff.same_schedule,
        "counts": diff.counts(),
        "changes": [_change(row) for row in diff.changes],
        "totals": [_figures(row) for row in diff.totals()],
        "opcodes": _different(diff.opcodes()),
        "collectives_by_axes": _different(diff.collectives()),
        "collectives_by_scope": _different(diff.collectives("scope")),
        "cost_by_scope": _different(diff.by("scope")),
    }


def _change(row: dict[str, Any]) -> dict[str, Any]:
    """A change as JSON has it: null for what is not there."""
    return {
        "kind": row["kind"],
        "aspect": row["aspect"] or None,
        "opcode": row["opcode"] or None,
        "before": row["before"],
        "after": row["after"],
        "is_consequence": bool(row["is_consequence"]),
        **{
            f"{name}_{side}": row[f"{name}_{side}"] or None
            for side in ("before", "after")
            for name in ("name", "computation")
        },
        "op_name": row["op_name"] or None,
        "source_file": row["source_file"] or None,
        "source_line": row["source_line"] if row["source_line"] > 0 else None,
    }


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    known = bool(row["is_known"])
    figures = {name: row[name] if known else None for name in ("before", "after", "change")}
    bound = bool(row["is_lower_bound"])
    return row | figures | {"is_known": known, "is_lower_bound": bound}


def _different(table: Table) -> list[dict[str, Any]]:
    """The rows in which the modules differ."""
    names = [name.removesuffix("_before") for name in table.columns if name.endswith("_before")]
    return [
        row for row in table if any(row[f"{name}_before"] != row[f"{name}_after"] for name in names)
    ]


def _print(
    printer: output.Printer, document: dict[str, Any], diff: Diff, arguments: argparse.Namespace
) -> None:
    names = [document[side]["name"] for side in ("before", "after")]
    printer.heading(names[0] if names[0] == names[1] else f"{names[0]} → {names[1]}")
    counts = ", ".join(f"{count:,} {name}" for name, count in document["counts"].items())
    follow = len(document["changes"]) - sum(document["counts"].values())
    printer.facts(
        [
            *((side, document[side]["path"]) for side in ("before", "after")),
            ("differences", counts or "none"),
            ("that follow", output.counted(follow, "change") if follow else ""),
            ("not compared", ", ".join(_not_compared(diff))),
        ]
    )
    if not diff.is_empty:
        changes = [
            row
            for row in document["changes"]
            # A trip count follows from constants that say little by themselves.
            if arguments.all or not row["is_consequence"] or row["aspect"] == "trip_count"
        ]
        _print_changes(printer, changes, arguments.top)
        _print_totals(printer, document["totals"])
        for title, name, columns in (
            ("Collectives by axes", "collectives_by_axes", ("kind", "axes")),
            ("Collectives by scope", "collectives_by_scope", ("kind", "scope")),
            ("Opcodes", "opcodes", ("opcode",)),
            ("Cost by scope", "cost_by_scope", ("scope",)),
        ):
            _print_sides(printer, title, document[name], columns, arguments.top)
    printer.line()


def _not_compared(diff: Diff) -> Iterator[str]:
    if not diff.compares_layouts:
        yield "layouts"
    if diff.same_schedule is False and "changed schedule" not in diff.counts():
        yield "the order of instructions, which differs"


def _print_changes(printer: output.Printer, changes: list[dict[str, Any]], top: int) -> None:
    rows = []
    for row in changes[: top or None]:
        name = row["name_after"] or row["name_before"] or "(module)"
        what = row["kind"] if row["aspect"] is None else row["aspect"]
        before, after = (output.label(row[side]) or "-" for side in ("before", "after"))
        rows.append((what, name, row["opcode"] or "-", before, after, _origin(row)))
    columns = ("change", "instruction", "opcode", "before", "after", "from")
    printer.table("Changes", columns, rows, len(changes))


def _origin(row: dict[str, Any]) -> str:
    source = row["source_file"]
    if row["op_name"]:
        return output.label(str(row["op_name"]))
    return output.label(f"{source}:{row['source_line']}") if source else "-"


def _print_totals(printer: output.Printer, totals: list[dict[str, Any]]) -> None:
    rows = []
    for row in totals:
        name = row["measure"].replace("_", " ")
        if row["is_lower_bound"]:
            name += " (at least)"
        change = None if row["change"] is None else output.Figure(f"{row['change']:+,}")
        before = row["before"] or 0
        share = (
            output.Figure(f"{100 * row['change'] / before:+.1f} %")
            if before and row["change"]
            else None
        )
        rows.append((name, row["before"], row["after"], change, share, row["provenance"]))
    columns = ("total", "before", "after", "change", "share", "known")
    printer.table("Totals", columns, rows, len(rows))


def _print_sides(
    printer: output.Printer,
    title: str,
    found: list[dict[str, Any]],
    keys: tuple[str, ...],
    top: int,
) -> None:
    rows = []
    for row in found[: top or None]:
        figures = [value if value >= 0 else None for name, value in row.items() if name not in keys]
        rows.append((*(output.label(row[key]) or "(none)" for key in keys), *figures))
    names = list(found[0]) if found else []
    columns = [name.replace("_", " ") for name in names]
    printer.table(title, columns, rows, len(found))
