"""What differs between many programs: of two files or dump directories, of the hosts of one."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._programs import Program, fingerprints_of, listed, paired
from hlofast._result import Fact, Note, Result, Section
from hlofast.table import of_rows

TYPE_CHECKING = False  # The command line compares modules; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from hlofast._diff import Diff

    _Side = TypeVar("_Side")

_MEASURES = ("instructions", "flops", "bytes_accessed", "live_peak", "wire_bytes")
_SIDES = (("before", "first"), ("after", "second"))
_PROGRAMS = (
    Field("name", "program", "The program."),
    Field("count", "changes", "Changes that follow from no other change."),
    *(
        Field(
            "count",
            measure,
            f"{measure.replace('_', ' ').capitalize()} of the second less those of the first.",
            nullable=True,
            signed=True,
        )
        for measure in _MEASURES
    ),
    *(
        field
        for side, which in _SIDES
        for field in (
            Field("path", f"path_{side}", f"The file of the {which} one."),
            Field("index", f"line_{side}", f"Where in the file the {which} one begins."),
            Field("text", f"label_{side}", f"What tells the {which} one apart.", nullable=True),
        )
    ),
)
_UNMATCHED = (
    Field("word", "side", "Which of the two has it: before or after."),
    Field("name", "program", "The name of the module."),
    Field("path", "path", "The file."),
    Field("index", "line", "Where in the file it begins."),
    Field("text", "label", "What tells it apart.", nullable=True),
)
_VARIANTS = (
    Field("name", "program", "The name of the module."),
    Field("text", "fingerprint", "A digest of the program without names and metadata."),
    Field("count", "hosts", "Hosts that compiled this one."),
    Field("text", "names", "Those hosts, joined by `, `.", label="which"),
    Field("path", "file", "The file of one of them."),
)
_FILES = (
    Field("text", "fingerprint", "A digest of the program without names and metadata."),
    Field("name", "host", "The host that compiled it.", nullable=True),
    Field("path", "file", "The file."),
)


class Comparison(Result):
    """What differs between the programs of two files or dump directories, program by program."""

    __slots__ = ("_programs", "_unmatched", "after", "before", "equal")

    VERB = "diff"
    FACTS = (
        Field("count", "programs", "Programs that were compared."),
        Field("count", "equal", "Programs without a difference."),
        Field("count", "differ", "Programs with differences."),
    )

    def __init__(self, before: str, after: str) -> None:
        self.before = before
        """Where the first programs come from."""
        self.after = after
        """Where the second programs come from."""
        self.equal = 0
        """Programs without a difference."""
        self._programs: list[tuple[Any, ...]] = []
        self._unmatched: list[tuple[Any, ...]] = []

    def add(self, name: str, diff: Diff, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Take in a program and where its two modules stand (path, line, label)."""
        if diff.is_empty:
            self.equal += 1
            return
        changes = {row["measure"]: row["change"] for row in diff.totals()}
        figures = [changes[measure] for measure in _MEASURES]
        places = [place[key] for place in (before, after) for key in ("path", "line", "label")]
        self._programs.append((name, len(diff.causes), *figures, *places))

    def lacks(self, side: str, name: str, place: dict[str, Any]) -> None:
        """Take in a program that only one side has."""
        self._unmatched.append((side, name, place["path"], place["line"], place["label"]))

    @property
    def has_unmatched(self) -> bool:
        """Whether one side has programs that the other lacks."""
        return bool(self._unmatched)

    @property
    def is_empty(self) -> bool:
        """Whether there is no difference."""
        return not self._programs and not self._unmatched

    @property
    def title(self) -> str:
        """What is compared."""
        return f"{self.before} and {self.after}"

    @property
    def facts(self) -> tuple[Fact, ...]:
        """How many programs differ."""
        differ = len(self._programs)
        return tuple(map(Fact, self.FACTS, (self.equal + differ, self.equal, differ)))

    @property
    def notes(self) -> tuple[Note, ...]:
        """How to see more."""
        if not self._programs:
            return ()
        return (Note("one-program", "--module NAME says in what a program differs"),)

    def sections(self) -> tuple[Section, ...]:
        """The programs that differ, and those that only one side has."""
        shown = [field.name for field in _PROGRAMS[: 2 + len(_MEASURES)]]
        return (
            Section("programs", "Programs that differ", of_rows(_PROGRAMS, self._programs), shown),
            Section("unmatched", "Programs on one side only", of_rows(_UNMATCHED, self._unmatched)),
        )


class HostComparison(Result):
    """Which hosts of a dump directory compiled something else."""

    __slots__ = ("_rows", "folder")

    VERB = "diff"
    FACTS = (
        Field("count", "hosts", "Hosts of the dump directory."),
        Field("count", "programs", "Programs by name."),
        Field("count", "differ", "Programs that hosts compiled differently."),
    )

    def __init__(self, folder: str, programs: list[Program], module: str | None = None) -> None:
        self.folder = folder
        """The dump directory."""
        rows = list(fingerprints_of(programs))
        self._rows = [row for row in rows if module in (None, row["program"], row["key"])]

    @property
    def errors(self) -> list[tuple[str, str]]:
        """Files that could not be read, and why."""
        return [(row["file"], row["error"]) for row in self._rows if row["error"]]

    @property
    def is_empty(self) -> bool:
        """Whether all hosts compiled the same."""
        return all(row["error"] or row["is_common"] for row in self._rows)

    def _groups(self) -> list[tuple[str, str, list[dict[str, Any]]]]:
        """Program, fingerprint and rows; of each program first what most hosts have."""
        programs: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for row in self._rows:
            if not row["error"] and not row["is_common"]:
                variants = programs.setdefault(row["program"], {})
                variants.setdefault(row["fingerprint"], []).append(row)
        return [
            (program, fingerprint, rows)
            for program, variants in programs.items()
            for fingerprint, rows in sorted(variants.items(), key=lambda own: -own[1][0]["hosts"])
        ]

    @property
    def title(self) -> str:
        """The dump directory."""
        return self.folder

    @property
    def facts(self) -> tuple[Fact, ...]:
        """How many hosts and programs there are."""
        counts = (
            len({row["host"] for row in self._rows}),
            len({row["program"] for row in self._rows}),
            len({program for program, _, _ in self._groups()}),
        )
        return tuple(map(Fact, self.FACTS, counts))

    def sections(self) -> tuple[Section, ...]:
        """What hosts compiled differently, by program and fingerprint."""
        rows = []
        for program, fingerprint, found in self._groups():
            hosts = sorted({row["host"] or "(none)" for row in found})
            rows.append((program, fingerprint, len(hosts), ", ".join(hosts), found[0]["file"]))
        title = "Programs that hosts compiled differently"
        return (Section("variants", title, of_rows(_VARIANTS, rows)),)

    def every_section(self) -> tuple[Section, ...]:
        """That, and the file of every host."""
        rows = [
            (fingerprint, row["host"], row["file"])
            for _, fingerprint, found in self._groups()
            for row in found
        ]
        return (*self.sections(), Section("files", "Their files", of_rows(_FILES, rows)))


class Folders:
    """The programs of two dump directories, paired by host, name and fingerprint."""

    __slots__ = ("faults", "pairs", "unmatched")

    def __init__(self, paths: Sequence[str], module: str | None = None) -> None:
        self.faults: tuple[list[tuple[str, OSError]], ...] = ([], [])
        """Of either side the files and folders that cannot be opened."""
        sides: list[list[Program]] = []
        for path, faults in zip(paths, self.faults, strict=True):
            try:
                found, refused = listed(path)
            except OSError as error:
                faults.append((path, error))
                found, refused = [], []
            faults += [(name, OSError(reason)) for name, reason in refused]
            sides.append([one for one in found if module is None or one.answers_to(module)])
        before, after = sides
        self.pairs, *self.unmatched = paired(before, after)

    @property
    def is_empty(self) -> bool:
        """Whether no program was found."""
        return not self.pairs and not any(self.unmatched)


def paired_by_name(
    before: Sequence[_Side], after: Sequence[_Side], name: Callable[[_Side], str]
) -> tuple[list[tuple[_Side, _Side]], list[_Side], list[_Side]]:
    """What has one name, in order, and what has no partner; two alone need no name."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])], [], []
    named: dict[str, list[_Side]] = {}
    for found in after:
        named.setdefault(name(found), []).append(found)
    pairs, rest = [], []
    for found in before:
        others = named.get(name(found))
        if others:
            pairs.append((found, others.pop(0)))
        else:
            rest.append(found)
    return pairs, rest, [found for others in named.values() for found in others]
