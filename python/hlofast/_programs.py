"""The programs of a dump directory: the files of each compilation of a module."""

from __future__ import annotations

from hlofast import _core
from hlofast._core import Field
from hlofast._files import named
from hlofast._module import Module, load
from hlofast.table import Table, of_rows

TYPE_CHECKING = False  # Verbs list programs; importing typing would slow their start.
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from typing import Any, TypeVar

    _Name = TypeVar("_Name", str, tuple[str, str])

_ORDER = {"before": 0, "pass": 1, "in-pass": 1, "partitioned": 1, "before-config-assignment": 2}
"""The order of stages in a compilation; other stages come last. The SPMD partitioner is one of the
passes, but its dump has no number."""


def whole(path: str) -> Module:
    """Reads the module in a file of a dump directory.

    Also raises `ParseError` for text that ends before its entry (`Module.missing_entry`), so that
    figures of a truncated file are not mistaken for figures of the program.
    """
    module = load(path)
    if (fault := module.missing_entry) is not None:
        raise fault
    return module


class File:
    """A module in a dump directory, at one stage of its compilation."""

    __slots__ = ("after", "before", "path", "pipeline", "stage", "step")

    def __init__(self, record: dict[str, Any]) -> None:
        self.path: str = named(record["path"])
        """The path of the file."""
        self.stage: str = record["stage"]
        """The stage of the compilation: before, pass, in-pass, partitioned, after, ..."""
        self.step: int | None = record["step"] if record["step"] >= 0 else None
        """The number of the pass; None for other stages."""
        self.pipeline: str = record["pipeline"]
        """The pipeline of the pass; empty for other stages."""
        self.after: str = record["after"]
        """The pass that ran last."""
        self.before: str = record["before"]
        """The pass that came next."""


class Program:
    """One compilation of one module in one process."""

    __slots__ = ("_record", "files", "host", "key", "module_id", "name")

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record
        self.key: str = record["key"]
        """Identifies the program within the folder."""
        self.host: str = record["host"]
        """The host or process that wrote it, taken from the folder names; empty if unknown."""
        self.module_id: int | None = record["module_id"]
        """The number of the module within the process."""
        self.name: str = record["name"]
        """The name of the module in file names."""
        self.files: tuple[File, ...] = tuple(File(file) for file in record["files"])
        """Its modules, one per dumped stage. The first module, from the last stage, represents the
        program."""

    def answers_to(self, name: str | int) -> bool:
        """Whether `name` is the program's name, number or key."""
        if isinstance(name, int):
            return name == self.module_id
        number = None if self.module_id is None else f"{self.module_id:04}"
        return name in (self.name, self.key, number, f"module_{number}")

    def steps(self) -> list[File]:
        """The modules in the order of compilation, each stage once."""
        passes = [file.step or 0 for file in self.files if "spmd" in file.pipeline]
        partitioned = max(passes, default=-1)
        places: dict[tuple[int, int, str, str], File] = {}
        for file in self.files:
            stage = _ORDER.get(file.stage, len(_ORDER))
            step = -1 if file.step is None else file.step
            step = partitioned if file.stage == "partitioned" else step
            places.setdefault((stage, step, file.stage, file.after), file)
        return [places[place] for place in sorted(places)]

    def __reduce__(self) -> tuple[object, ...]:
        return Program, (self._record,)

    def __repr__(self) -> str:
        return f"<Program {self.key}: {len(self.files)} modules>"


def reason(error: Exception) -> str:
    """The reason why a file cannot be read; for system errors, without the error number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def programs(folder: str | os.PathLike[str]) -> list[Program]:
    """Returns the programs below `folder`; raises `OSError` if it cannot be read."""
    return listed(folder)[0]


def listed(folder: str | os.PathLike[str]) -> tuple[list[Program], list[tuple[str, str]]]:
    """Returns the programs below `folder`, and paths that cannot be opened, with the reasons.

    Broken links are among these paths. Raises `OSError` if the folder itself cannot be read.
    """
    import os

    path = os.fspath(folder)
    if "://" in path:
        from hlofast import _remote

        survey = _remote.listed(path)
    else:
        os.listdir(path)  # noqa: PTH208 - listdir tells why a folder cannot be read; pathlib is not loaded.
        survey = _core._survey([path])
    return [Program(record) for record in survey.program_files()], survey.refused()


_FINGERPRINTS = (
    Field("name", "program", "The name of the module."),
    Field("name", "key", "Identifies the program within the folder."),
    Field("name", "host", "The host that compiled it.", nullable=True),
    Field("index", "module_id", "The number of the module in the process.", nullable=True),
    Field("text", "fingerprint", "Digest of the program without names and metadata.",
          nullable=True),
    Field("count", "hosts", "Hosts with a program of this name and fingerprint."),
    Field("flag", "is_common", "Whether all hosts with a program of this name have this one."),
    Field("path", "file", "The file of its last stage."),
    Field("text", "error", "Why the file could not be read.", nullable=True),
)  # fmt: skip
_DIFFERING = (
    Field("name", "module_name", "The name of the module."),
    Field("word", "stage", "The stage of the compilation."),
    Field("text", "fingerprint", "Digest of the program without names and metadata."),
    Field("text", "hosts", "Hosts that compiled this fingerprint, joined by `, `."),
    Field("text", "other_hosts", "Hosts whose program of this name has another fingerprint."),
    Field("count", "programs", "Programs with this fingerprint."),
    Field("name", "program", "The first program with this fingerprint."),
    Field("count", "instructions", "Instructions in the text, each counted once."),
    Field("flops", "flops", "Floating-point operations over all calls.", label="FLOP"),
)


def fingerprints(folder: str | os.PathLike[str]) -> Table:
    """Fingerprints by host: one row per program below `folder`, taken from its last stage.

    Columns: `program` (name of the module), `key` (identifies it within the folder), `host` (None
    if folder names do not give it), `module_id` (None without one), `fingerprint` (from
    `Module.fingerprint`, which ignores names and metadata; None if the file could not be read),
    `hosts` (number of hosts with this name and fingerprint), `is_common` (whether all hosts with a
    program of this name have this fingerprint), `file`, `error` (why the file could not be read).
    Raises `OSError` if the folder cannot be read.
    """
    return fingerprints_of(programs(folder))


def fingerprints_of(programs: list[Program]) -> Table:
    """`fingerprints` for programs that are already listed."""
    prints: list[str | None] = []
    errors: list[str | None] = []
    for program in programs:
        fingerprint = error = None
        try:
            fingerprint = whole(program.files[0].path).fingerprint()
        except (OSError, ValueError) as fault:
            error = reason(fault)
        prints.append(fingerprint)
        errors.append(error)
    of_name, hosts = _hosts(
        (program.name, fingerprint, program.host)
        for program, fingerprint in zip(programs, prints, strict=True)
        if fingerprint is not None
    )
    rows = []
    for program, fingerprint, error in zip(programs, prints, errors, strict=True):
        same = 0 if fingerprint is None else len(hosts[program.name, fingerprint])
        is_common = same == len(of_name.get(program.name, ())) > 0
        about = (program.name, program.key, program.host, program.module_id)
        rows.append((*about, fingerprint, same, is_common, program.files[0].path, error))
    return of_rows(_FINGERPRINTS, rows)


def differing_hosts(programs: Table) -> Table:
    """The table of `Scan.differing_hosts`, from its table of programs."""
    rows = [row for row in programs if row["fingerprint"]]
    # A host that was stopped early has an earlier stage, which does not count as a difference.
    of_name, hosts = _hosts(
        ((row["module_name"] or "", row["stage"] or ""), row["fingerprint"], row["host"] or "")
        for row in rows
    )
    groups: dict[tuple[Any, str], list[dict[str, Any]]] = {}
    for row in rows:
        name = (row["module_name"] or "", row["stage"] or "")
        if len(hosts[name, row["fingerprint"]]) < len(of_name[name]):
            groups.setdefault((name, row["fingerprint"]), []).append(row)
    keys = sorted(groups, key=lambda key: (key[0], -len(hosts[key]), groups[key][0]["program"]))
    variants = []
    for key in keys:
        (name, stage), fingerprint = key
        others = of_name[name, stage] - hosts[key]
        first = groups[key][0]
        variants.append(
            (
                name,
                stage,
                fingerprint,
                ", ".join(sorted(hosts[key])),
                ", ".join(sorted(others)),
                len(groups[key]),
                first["program"],
                first["instructions"],
                first["flops"],
            )
        )
    return of_rows(_DIFFERING, variants)


def _hosts(
    compiled: Iterable[tuple[_Name, str, str]],
) -> tuple[dict[_Name, set[str]], dict[tuple[_Name, str], set[str]]]:
    """The hosts of each name, and the hosts of each pair of name and fingerprint."""
    of_name: dict[_Name, set[str]] = {}
    hosts: dict[tuple[_Name, str], set[str]] = {}
    for name, fingerprint, host in compiled:
        of_name.setdefault(name, set()).add(host)
        hosts.setdefault((name, fingerprint), set()).add(host)
    return of_name, hosts


def paired(
    before: list[Program], after: list[Program]
) -> tuple[list[tuple[Program, Program]], list[Program], list[Program]]:
    """Pairs the programs of two folders; also returns the unpaired programs of each side.

    Programs with equal host and name are paired first, then programs with equal names, then renamed
    programs with equal fingerprints. Among several candidates, equal fingerprints are paired first,
    the rest by number.
    """
    pairs: list[tuple[Program, Program]] = []
    for key in (_host_and_name, _name, _host_and_fingerprint, _fingerprint_alone):
        if not before or not after:
            break
        groups: dict[tuple[str, ...], tuple[list[Program], list[Program]]] = {}
        for number, side in enumerate((before, after)):
            for program in side:
                groups.setdefault(key(program), ([], []))[number].append(program)
        matched = [pair for group in groups.values() for pair in _paired_of_one_name(*group)]
        pairs += matched
        before = _without(before, [pair[0] for pair in matched])
        after = _without(after, [pair[1] for pair in matched])
    return pairs, before, after


def _host_and_name(program: Program) -> tuple[str, ...]:
    return program.host, program.name


def _name(program: Program) -> tuple[str, ...]:
    return (program.name,)


def _host_and_fingerprint(program: Program) -> tuple[str, ...]:
    return program.host, *_fingerprint_alone(program)


def _fingerprint_alone(program: Program) -> tuple[str, ...]:
    # Programs that cannot be read equal no other program.
    return (_fingerprint(program) or program.files[0].path,)


def _without(programs: list[Program], some: list[Program]) -> list[Program]:
    gone = {id(program) for program in some}
    return [program for program in programs if id(program) not in gone]


def _paired_of_one_name(
    before: list[Program], after: list[Program]
) -> list[tuple[Program, Program]]:
    pairs = []
    if len(before) * len(after) > 1:
        prints: dict[str, list[Program]] = {}
        for program in after:
            prints.setdefault(_fingerprint(program), []).append(program)
        for program in before:
            same = prints.get(_fingerprint(program))
            if same:
                pairs.append((program, same.pop(0)))
        before = _without(before, [pair[0] for pair in pairs])
        after = _without(after, [pair[1] for pair in pairs])
    return pairs + list(zip(before, after, strict=False))


def is_same_source(before: Program, after: Program) -> bool | None:
    """Whether the modules of two programs before optimisation are equal; None if unknown."""
    prints = []
    for program in (before, after):
        file = next((file for file in program.files if file.stage == "before"), None)
        try:
            prints.append(None if file is None else whole(file.path).fingerprint())
        except (OSError, ValueError):
            prints.append(None)
    return None if None in prints else prints[0] == prints[1]


def _fingerprint(program: Program) -> str:
    """The fingerprint of the last stage; empty if its file cannot be read."""
    try:
        return whole(program.files[0].path).fingerprint()
    except (OSError, ValueError):
        return ""
