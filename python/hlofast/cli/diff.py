"""What differs between two programs, whatever their instructions are called and how they stand."""

from __future__ import annotations

import argparse
import errno
import os

from hlofast import _text as output
from hlofast.cli import DONE, FINDINGS, UNREADABLE, USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._diff import Diff
    from hlofast._programs import Program
    from hlofast.cli.inputs import Found
    from hlofast.table import Table

EXAMPLES = """\
examples:
  hlofast diff step.before.txt step.after.txt
  hlofast diff monday/module_0042.jit_train_step.after_optimizations.txt tuesday/step.txt.gz
  hlofast diff --no-layouts --no-backend-config cpu.txt tpu.txt
  hlofast diff --mesh data=2,model=4 a.txt b.txt    collectives by these axes
  hlofast diff monday/ tuesday/                     dump directories, program by program
  hlofast diff dump/                                which hosts compiled something else
  hlofast diff --json a.txt b.txt | jq '.pairs[].changes[] | select(.is_consequence | not)'

Instructions are matched by what they compute and what is computed from them. Names, metadata,
channel numbers, order and copies of equal computations are no difference; the order is one with
--schedule. Shown are the changes that others do not follow from (a result has another shape since
its operand has: that follows); --all shows every one. Files with several modules are compared
module by module, by name; of dump directories the last stage of each program, by host, name and
fingerprint; of one directory the fingerprints that its hosts have of each program. Of two trainer
configs it says what `hlofast config A --diff B` does. Exit codes: 0 no difference, 1 some, 2 usage,
3 unreadable.
"""
VERSION = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    help_ = 'a file ("-" is standard input) or a dump directory'
    parser.add_argument("before", metavar="BEFORE", help=help_)
    parser.add_argument("after", metavar="AFTER", nargs="?", help="what it is compared with")
    parser.add_argument("--module", metavar="NAME", help="only the modules of this name")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--all", action="store_true", help="also what follows from other changes")
    parser.add_argument("--no-layouts", action="store_true", help="layouts do not count")
    parser.add_argument("--no-backend-config", action="store_true", help="nor does this attribute")
    parser.add_argument("--schedule", action="store_true", help="the order of instructions counts")
    inputs.add_mesh(parser)
    output.add_top(parser)
    inputs.add_rules(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare the modules of two files or folders, or the hosts of one folder."""
    given = inputs.read_mesh_and_rules(arguments)
    if given is None:
        return USAGE
    mesh, rules = given
    paths = [arguments.before, *([] if arguments.after is None else [arguments.after])]
    folders = [inputs.is_folder(path) for path in paths]
    if not all(folders) and (any(folders) or len(paths) == 1):
        for path in paths:
            if path != "-" and "://" not in path and not os.path.lexists(path):
                inputs.complain(f"{path}: {os.strerror(errno.ENOENT)}")
                return UNREADABLE
        inputs.complain("compared are two files, two dump directories, or the hosts of one")
        return USAGE
    sources: _Files | _Folders
    if len(paths) == 1:
        return _compare_hosts(arguments)
    if all(folders):
        sources = _Folders(paths, arguments.module)
    else:
        code = _compare_configs(arguments)
        if code is not None:
            return code
        sources = _Files(paths, arguments.module)
    printer = None if arguments.json else output.Printer()
    summary: list[tuple[str, dict[str, Any]]] = []
    documents = []
    for before, after in sources:
        for side in (before, after):
            inputs.note_misfit(side.module, side.path, mesh)
        diff = before.module.diff(
            after.module,
            layouts=not arguments.no_layouts,
            backend_config=not arguments.no_backend_config,
            schedule=arguments.schedule,
            mesh=mesh,
            rules=rules,
        )
        document = _describe(before, after, diff)
        summary.append((after.label or after.module.name, document))
        if printer is None:
            documents.append(document)
        elif not sources.is_summed_up:
            _print(printer, document, diff, arguments)
    if printer is None:
        document = {
            "pairs": documents,
            "only_before": sources.only_before,
            "only_after": sources.only_after,
            "hosts": [],
            "errors": sources.errors,
        }
        output.print_json("diff", VERSION, document)
    else:
        if sources.is_summed_up:
            _print_summary(printer, summary, arguments.top)
        for sort, rest, other in (
            ("before", sources.only_before, sources.is_read[1]),
            ("after", sources.only_after, sources.is_read[0]),
        ):
            if rest and other:
                shown = output.names([module["name"] for module in rest])
                printer.paragraph(f"only {sort}: ", shown)
    code = sources.exit_code()
    if code:
        return code
    is_same = all(document["is_empty"] for _, document in summary)
    return DONE if is_same and not (sources.only_before or sources.only_after) else FINDINGS


class _Files:
    """The modules of two files, paired by name."""

    is_summed_up = False

    def __init__(self, paths: list[str], module: str | None) -> None:
        self._readers = [
            inputs.Reader(argparse.Namespace(files=[path], module=module)) for path in paths
        ]
        before, after = (list(reader) for reader in self._readers)
        self._pairs, rest_before, rest_after = _paired(before, after)
        self.only_before = [found.describe() for found in rest_before]
        self.only_after = [found.describe() for found in rest_after]
        self.is_read = [not reader.errors for reader in self._readers]
        """Of either side, whether what it lacks is known."""

    def __iter__(self) -> Iterator[tuple[Found, Found]]:
        return iter(self._pairs)

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [error for reader in self._readers for error in reader.errors]

    def exit_code(self) -> int:
        return max(reader.exit_code() for reader in self._readers)


class _Folders(inputs.Failures):
    """The programs of two dump directories, paired by host, name and fingerprint."""

    def __init__(self, paths: list[str], module: str | None) -> None:
        super().__init__()
        from hlofast._programs import listed, paired

        sides: list[list[Program]] = []
        self.is_read = [True, True]
        """Of either side, whether what it lacks is known."""
        for side, path in enumerate(paths):
            try:
                found, refused = listed(path)
            except OSError as error:
                self.failed(path, error)
                found, refused = [], []
                self.is_read[side] = False
            for name, reason in refused:
                self.failed(name, OSError(reason))
                self.is_read[side] = False
            sides.append([one for one in found if module is None or one.answers_to(module)])
        self._misses = module is not None and not any(sides) and not self.errors
        if self._misses:
            inputs.complain(f"no module {module!r} in either folder")
        self._pairs, rest_before, rest_after = paired(*sides)
        self.only_before = [_described(program) for program in rest_before]
        self.only_after = [_described(program) for program in rest_after]
        self.is_summed_up = len(self._pairs) > 1
        """Whether there may be many pairs, of which people first want to know which differ."""

    def __iter__(self) -> Iterator[tuple[Found, Found]]:
        for pair in self._pairs:
            found = [self._load(program) for program in pair]
            if found[0] is not None and found[1] is not None:
                yield found[0], found[1]

    def _load(self, program: Program) -> Found | None:
        from hlofast._programs import whole

        path = program.files[0].path
        try:
            return inputs.Found(whole(path), path, 1, program.key)
        except (OSError, ValueError) as error:
            self.failed(path, error)
            return None

    def exit_code(self) -> int:
        return UNREADABLE if self.errors else USAGE if self._misses else DONE


def _described(program: Program) -> dict[str, Any]:
    path = program.files[0].path
    return {"path": path, "line": 1, "label": program.key, "name": program.name}


def _compare_hosts(arguments: argparse.Namespace) -> int:
    """Say which hosts of a dump directory compiled something else."""
    from hlofast._programs import fingerprints_of, listed

    failures = inputs.Failures()
    try:
        listing, refused = listed(arguments.before)
    except OSError as error:
        failures.failed(arguments.before, error)
        return UNREADABLE
    for path, reason in refused:
        failures.failed(path, OSError(reason))
    table = fingerprints_of(listing)
    rows = [row for row in table if arguments.module in (None, row["program"], row["key"])]
    hosts = {row["host"] for row in rows}
    programs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        if row["error"]:
            failures.failed(row["file"], ValueError(row["error"]))
        elif not row["is_common"]:
            prints = programs.setdefault(row["program"], {})
            prints.setdefault(row["fingerprint"], []).append(row)
    documents: list[dict[str, Any]] = []
    for name, prints in programs.items():
        # First what most hosts have.
        groups = sorted(prints.items(), key=lambda group: -group[1][0]["hosts"])
        variants = [
            {
                "fingerprint": fingerprint,
                "hosts": sorted({row["host"] or "" for row in found}),
                "paths": [row["file"] for row in found],
            }
            for fingerprint, found in groups
        ]
        documents.append({"program": name, "variants": variants})
    if arguments.json:
        document = {
            "pairs": [],
            "only_before": [],
            "only_after": [],
            "hosts": documents,
            "errors": failures.errors,
        }
        output.print_json("diff", VERSION, document)
    else:
        printer = output.Printer()
        printer.heading(arguments.before)
        printer.facts(
            [
                ("hosts", f"{len(hosts):,}"),
                ("programs", f"{len({row['program'] for row in rows}):,}"),
                ("differ", f"{len(documents):,}" if documents else "none"),
            ]
        )
        cells = [
            (
                output.label(document["program"]),
                variant["fingerprint"][:12],
                len(variant["hosts"]),
                output.names([host or "(none)" for host in variant["hosts"]]),
                output.label(variant["paths"][0]),
            )
            for document in documents
            for variant in document["variants"]
        ]
        columns = ("program", "fingerprint", "hosts", "which", "file")
        shown = cells[: arguments.top or None]
        printer.table("Programs that hosts compiled differently", columns, shown, len(cells))
    if failures.errors:
        return UNREADABLE
    return FINDINGS if documents else DONE


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
        return inputs.read(path, 1 << 16)
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
        "notes": diff.notes,
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
        if document["notes"]:
            printer.line()
        for note in document["notes"]:
            printer.paragraph("note: ", note)
    printer.line()


def _print_summary(
    printer: output.Printer, pairs: list[tuple[str, dict[str, Any]]], top: int
) -> None:
    """One line per program that differs, and how many do not."""
    different = [(name, document) for name, document in pairs if not document["is_empty"]]
    same = len(pairs) - len(different)
    printer.facts(
        [("programs", f"{len(pairs):,}"), ("equal", f"{same:,}"), ("differ", f"{len(different):,}")]
    )
    measures = ("instructions", "flops", "bytes_accessed", "live_peak", "wire_bytes")
    rows = []
    for name, document in different[: top or None]:
        totals = {row["measure"]: row["change"] for row in document["totals"]}
        signed = [None if totals[one] is None else f"{totals[one]:+,}" for one in measures]
        counts = sum(document["counts"].values())
        figures = [value and output.Figure(value) for value in signed]
        rows.append((output.label(name), counts, *figures))
    columns = ("program", "changes", *(name.replace("_", " ") for name in measures))
    printer.table("Programs that differ", columns, rows, len(different))
    if len(different):
        printer.line()
        printer.line("--module NAME says in what a program differs.")


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
