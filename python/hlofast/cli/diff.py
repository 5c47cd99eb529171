"""Compares two programs, regardless of instruction names and order."""

from __future__ import annotations

import argparse
import errno
import os

from hlofast import _files, _text
from hlofast.cli import DONE, FINDINGS, UNREADABLE, USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast import Context
    from hlofast._comparison import Comparison
    from hlofast._diff import Diff
    from hlofast._programs import Program
    from hlofast.cli.inputs import Found

    _Contexts = tuple[Context, Context]

EXAMPLES = """\
examples:
  hlofast diff step.before.txt step.after.txt
  hlofast diff monday/module_0042.jit_train_step.after_optimizations.txt tuesday/step.txt.gz
  hlofast diff --no-layouts --no-backend-config cpu.txt tpu.txt
  hlofast diff --mesh data=2,model=4 a.txt b.txt    collectives by mesh axis
  hlofast diff monday/ tuesday/                     two dump directories, program by program
  hlofast diff dump/                                programs that differ between hosts
  hlofast diff --max-growth live_peak=5% a.txt b.txt  for CI: fail if the peak grows by more
  hlofast diff --profile a.xplane.pb --profile-after b.xplane.pb a.txt b.txt
  hlofast diff monday.xplane.pb tuesday.xplane.pb   what became slower or faster
  hlofast diff --markdown monday/ tuesday/          a comment for a pull request (docs/ci.md)
  hlofast diff --json a.txt b.txt | jq '.results[].tables.changes'

Instructions are matched by what they compute and by their users. Names, metadata, channel numbers,
instruction order and copies of equal computations are ignored; --order compares the order too.
Changes that follow from another change, such as a result shape that changed with its operand, are
shown only with --all.

Inputs: files with several modules are compared by module name. Two dump directories are compared
by the last stage of each program, matched by host, name and fingerprint; missing hosts are listed.
For one directory, the fingerprints of each program are compared between hosts. With a profile of
each side, the output also has the parts of the step, phases, opcodes and instructions that became
slower or faster; measured times do not affect the exit code. For two profiles, the main programs
and their modules are compared. Two trainer configs are compared like `hlofast config A --diff B`.

Exit codes: 0 equal, 1 different, 2 wrong usage, 3 unreadable. With --max-growth, 1 means that a
total grew by more than allowed or is unknown, for example because AFTER lacks a host.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    help_ = 'a file ("-" is standard input) or a dump directory'
    parser.add_argument("before", metavar="BEFORE", help=help_)
    parser.add_argument("after", metavar="AFTER", nargs="?", help="program to compare with BEFORE")
    parser.add_argument("--module", metavar="NAME", help="compare only modules of this name")
    results.add_json(parser)
    results.add_markdown(parser)
    parser.add_argument("--all", action="store_true", help="show changes that follow from others")
    parser.add_argument("--no-layouts", action="store_true", help="ignore layouts")
    parser.add_argument("--no-backend-config", action="store_true", help="ignore backend_config")
    parser.add_argument(
        "--order", dest="schedule", action="store_true", help="compare the instruction order too"
    )
    parser.add_argument(
        "--max-growth",
        type=_limits,
        metavar="MEASURE=X%,...",
        help="fail only if a total grows by more than X %%, such as live_peak=5%%,flops=1%%",
    )
    _text.add_top(parser)
    inputs.add_context(parser)
    parser.add_argument(
        "--profile-after", metavar="PATH", help="profile of AFTER; --profile is that of BEFORE"
    )


def _limits(text: str) -> dict[str, float]:
    """Reads limits of growth: the largest allowed share of each measure."""
    from hlofast._diff import MEASURES
    from hlofast._names import meant

    limits = {}
    for part in text.split(","):
        measure, _, limit = part.partition("=")
        if measure not in MEASURES:
            hint = meant(measure, MEASURES) or ";"
            message = f"unknown measure {measure!r}{hint} known: {', '.join(MEASURES)}"
            raise argparse.ArgumentTypeError(message)
        try:
            limits[measure] = float(limit.removesuffix("%")) / 100
        except ValueError:
            limits[measure] = -1
        if not limit.endswith("%") or not 0 <= limits[measure] < float("inf"):
            raise argparse.ArgumentTypeError(f"{part!r} is not MEASURE=X%, such as live_peak=5%")
    return limits


def _growth(comparison: Diff, limits: dict[str, float], place: str, whole: Comparison) -> bool:
    """Prints the totals that grew beyond their limits, and adds them to the whole comparison.

    Returns whether a total grew beyond its limit or is unknown.
    """
    exceeded = False
    totals = comparison.totals()
    known = set(totals.values("measure"))
    for measure in (own for own in limits if own not in known):
        exceeded = True
        whole.exceeds(comparison.after.name, measure, None, None, limits[measure])
        why = "no model covers the programs; scheduled programs have live_peak"
        inputs.complain(f"{place}: {measure} unknown: {why}")
    for row in totals:
        limit, before, change = limits.get(row["measure"]), row["before"], row["change"]
        if limit is None or (change is not None and change <= limit * before):
            continue
        exceeded = True
        if change is not None:
            grown = f"grew by {change:,} from {before:,}"
            grown += f", {100 * change / before:.4g} %" if before else ""
        elif before is not None and row["after"] is not None:
            covered = [
                f"{side.upper()} covers {_text.counted(row[f'devices_{side}'], 'device')}"
                for side in ("before", "after")
            ]
            grown = f"cannot be compared: {', '.join(covered)}"
        else:
            grown = "unknown"
        whole.exceeds(comparison.after.name, row["measure"], before, change, limit)
        inputs.complain(f"{place}: {row['measure']} {grown}; allowed: {100 * limit:g} %")
    return exceeded


def run(arguments: argparse.Namespace) -> int:
    """Compares the modules of two files or folders, or the hosts of one folder."""
    if arguments.json and arguments.markdown:
        inputs.complain("--json and --markdown exclude each other")
        return USAGE
    context = inputs.read_context(arguments)
    paths = [arguments.before, *([] if arguments.after is None else [arguments.after])]
    folders = [_files.is_folder(path) for path in paths]
    are_profiles = len(paths) == 2 and _are_profiles(paths)
    if not are_profiles and not all(folders) and (any(folders) or len(paths) == 1):
        for path in paths:
            if path != "-" and "://" not in path and not os.path.lexists(path):
                inputs.complain(f"{path}: {os.strerror(errno.ENOENT)}")
                return UNREADABLE
        inputs.complain("give two files, two dump directories, or one dump directory of many hosts")
        return USAGE
    if len(paths) == 1:
        if arguments.max_growth:
            inputs.complain("--max-growth compares two programs: give two files or two folders")
            return USAGE
        return _compare_hosts(arguments)
    after = context
    if arguments.profile_after is not None or context.profile is not None:
        given = argparse.Namespace(**{**vars(arguments), "profile": arguments.profile_after})
        after = inputs.read_context(given)
    sides = (context, after)
    if are_profiles:
        return _compare(arguments, _Profiles(paths, arguments.module, sides))
    if all(folders):
        return _compare(arguments, _Folders(paths, arguments.module, sides))
    code = None if arguments.max_growth or arguments.markdown else _compare_configs(arguments)
    if code is not None:
        return code
    return _compare(arguments, _Files(paths, arguments.module, sides))


def _are_profiles(paths: list[str]) -> bool:
    """Whether all paths are profiles, or folders with recordings and without programs."""
    from hlofast._programs import listed

    for path in paths:
        if path == "-":
            return False
        try:
            if not inputs.is_profile(path) or (_files.is_folder(path) and listed(path)[0]):
                return False
        except OSError:
            return False  # Whoever reads the path says why.
    return True


def _compare(arguments: argparse.Namespace, sources: _Files | _Folders | _Profiles) -> int:
    """Shows the differences, program by program."""
    from hlofast._comparison import Comparison
    from hlofast._diff import Diff, diff

    shower = results.Shower(Diff, arguments)
    whole = Comparison(arguments.before, arguments.after)
    has_grown = False
    for before, after in sources:
        comparison = diff(
            before.module,
            after.module,
            layouts=not arguments.no_layouts,
            backend_config=not arguments.no_backend_config,
            schedule=arguments.schedule,
        )
        if arguments.json:
            shower.show(comparison, comparison.every_section(), after)
        elif not sources.is_summed_up and not arguments.markdown:
            shower.show(comparison, comparison.sections(consequences=arguments.all))
        if arguments.max_growth:
            has_grown |= _growth(comparison, arguments.max_growth, after.path, whole)
        is_same = None if comparison.is_empty else sources.is_same_source()
        name = after.label or after.module.name
        whole.add(name, comparison, before.place(), after.place(), is_same)
    for side, rest, other in zip(
        ("before", "after"), sources.unmatched, sources.is_read[::-1], strict=True
    ):
        # A side that could not be read may contain the missing program.
        for name, place in rest if other or arguments.json else ():
            whole.lacks(side, name, place)
    if all(sources.is_read):
        whole.hosts = sources.missing_hosts
    if arguments.markdown:
        if not whole.is_empty:
            shower.show(whole, whole.changes())
    elif sources.is_summed_up or arguments.json or whole.has_unmatched:
        shower.show(whole, whole.every_section() if arguments.json else None)
    shower.end(sources.failures.errors)
    is_grown = has_grown or whole.lacks_hosts
    is_fine = not is_grown if arguments.max_growth else whole.is_empty
    return sources.exit_code() or (DONE if is_fine else FINDINGS)


class _Sources:
    """Pairs of modules to compare."""

    is_summed_up = False
    """Whether there are several pairs, so that the text output lists the pairs that differ."""
    missing_hosts: tuple[tuple[str, str, int], ...] = ()
    """Hosts that only one side has (`Folders.missing_hosts`)."""

    def is_same_source(self) -> bool | None:
        """Whether the last pair is equal before optimisation; None if unknown."""
        return None


class _Files(_Sources):
    """The modules of two files, paired by name."""

    def __init__(self, paths: list[str], module: str | None, contexts: _Contexts) -> None:
        from hlofast._comparison import paired_by_name

        self.failures = inputs.Failures()
        readers = [
            inputs.Reader(argparse.Namespace(files=[path], module=module), context)
            for path, context in zip(paths, contexts, strict=True)
        ]
        before, after = (list(reader) for reader in readers)
        self._pairs, *rest = paired_by_name(before, after, lambda loaded: loaded.module.name)
        self.unmatched = [[(loaded.module.name, loaded.place()) for loaded in own] for own in rest]
        self.is_read = [not reader.errors for reader in readers]
        """For each side, whether it was read completely, so that missing programs are certain."""
        self.failures.errors += [error for reader in readers for error in reader.errors]
        self._code = max(reader.exit_code() for reader in readers)

    def __iter__(self) -> Iterator[tuple[Found, Found]]:
        return iter(self._pairs)

    def exit_code(self) -> int:
        return self._code


class _Folders(_Sources):
    """The programs of two dump directories, paired by host, name and fingerprint."""

    def __init__(self, paths: list[str], module: str | None, contexts: _Contexts) -> None:
        from hlofast._comparison import Folders

        self.failures = inputs.Failures()
        self._contexts = contexts
        folders = Folders(paths, module)
        for faults in folders.faults:
            for path, error in faults:
                self.failures.failed(path, error)
        self.is_read = [not faults for faults in folders.faults]
        """For each side, whether it was read completely, so that missing programs are certain."""
        self._misses = module is not None and folders.is_empty and not self.failures.errors
        if self._misses:
            inputs.complain(f"neither folder has a module {module!r}")
        self._pairs = folders.pairs
        self.unmatched = [
            [(program.name, _place(program)) for program in own] for own in folders.unmatched
        ]
        self.missing_hosts = folders.missing_hosts
        self._pair: tuple[Program, Program] | None = None
        self.is_summed_up = len(folders.pairs) > 1

    def __iter__(self) -> Iterator[tuple[Found, Found]]:
        for pair in self._pairs:
            sides = [self._load(*each) for each in zip(pair, self._contexts, strict=True)]
            self._pair = pair
            if sides[0] is not None and sides[1] is not None:
                yield sides[0], sides[1]

    def is_same_source(self) -> bool | None:
        """Whether the last pair is equal before optimisation; None if unknown."""
        from hlofast._programs import is_same_source

        return None if self._pair is None else is_same_source(*self._pair)

    def _load(self, program: Program, context: Context) -> Found | None:
        from hlofast._programs import whole

        path = program.files[0].path
        try:
            module = whole(path)
        except (OSError, ValueError) as error:
            self.failures.failed(path, error)
            return None
        return inputs.Found(inputs.told(module, context, path), path, 1, program.key)

    def exit_code(self) -> int:
        return UNREADABLE if self.failures.errors else USAGE if self._misses else DONE


class _Profiles(_Sources):
    """The main programs of two profiles, with their modules."""

    def __init__(self, paths: list[str], module: str | None, contexts: _Contexts) -> None:
        from hlofast._profile_modules import measured_of
        from hlofast._profiles import load_profile

        self.failures = inputs.Failures()
        self.unmatched: list[list[tuple[str, dict[str, Any]]]] = [[], []]
        self._sides: list[Found] = []
        for path, context in zip(paths, contexts, strict=True):
            try:
                profile = load_profile(path)
                # The same program on both sides, if the second profile has it.
                first = self._sides[0].module.name if self._sides else None
                try:
                    measured = measured_of(profile, path, None, module or first, context)
                except ValueError:
                    if module is not None or first is None:
                        raise
                    measured = measured_of(profile, path, None, None, context)
            except (OSError, ValueError, ModuleNotFoundError) as error:
                self.failures.failed(path, error)
            else:
                self._sides.append(inputs.Found(measured.module, path, 1, None))
        self.is_read = [not self.failures.errors] * 2
        """For each side, whether all of it was read, so that missing programs are known."""

    def __iter__(self) -> Iterator[tuple[Found, Found]]:
        if len(self._sides) == 2:
            yield self._sides[0], self._sides[1]

    def exit_code(self) -> int:
        return UNREADABLE if self.failures.errors else DONE


def _place(program: Program) -> dict[str, Any]:
    path, host = program.files[0].path, program.host or None
    return {"path": path, "line": 1, "label": program.key, "host": host}


def _compare_hosts(arguments: argparse.Namespace) -> int:
    """Shows which programs of a dump directory differ between hosts."""
    from hlofast._comparison import HostComparison
    from hlofast._programs import listed

    failures = inputs.Failures()
    shower = results.Shower(HostComparison, arguments)
    try:
        programs, refused = listed(arguments.before)
    except OSError as error:
        failures.failed(arguments.before, error)
        shower.end(failures.errors)
        return UNREADABLE
    for path, reason in refused:
        failures.failed(path, OSError(reason))
    comparison = HostComparison(arguments.before, programs, arguments.module)
    for path, reason in comparison.errors:
        failures.failed(path, ValueError(reason))
    if not (arguments.markdown and comparison.is_empty):
        shower.show(comparison, comparison.every_section() if arguments.json else None)
    shower.end(failures.errors)
    if failures.errors:
        return UNREADABLE
    return DONE if comparison.is_empty else FINDINGS


def _compare_configs(arguments: argparse.Namespace) -> int | None:
    """Compares two trainer configs; returns the exit code, or None if either file is not one."""
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
    """Returns the first bytes of a file; none for standard input and unreadable files."""
    if path == "-":
        return b""
    try:
        return inputs.read(path, 1 << 16)
    except OSError:
        return b""
