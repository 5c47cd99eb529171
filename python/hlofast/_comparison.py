"""Comparisons of many programs: of two files or dump directories, or between hosts."""

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
    Field("count", "changes", "Changes that no other change causes."),
    *(
        Field(
            "count",
            measure,
            f"Difference in {measure.replace('_', ' ')}: second minus first.",
            nullable=True,
            signed=True,
        )
        for measure in _MEASURES
    ),
    *(
        field
        for side, which in _SIDES
        for field in (
            Field("path", f"path_{side}", f"File of the {which} program."),
            Field("index", f"line_{side}", f"First line of the {which} program in its file."),
            Field(
                "text",
                f"label_{side}",
                f"Label that distinguishes the {which} program.",
                nullable=True,
            ),
        )
    ),
)
_UNMATCHED = (
    Field("word", "side", "The side that has the program: before or after."),
    Field("name", "program", "The name of the module."),
    Field("path", "path", "The file."),
    Field("index", "line", "First line of the program in the file."),
    Field("text", "label", "Label that distinguishes the program.", nullable=True),
)
_VARIANTS = (
    Field("name", "program", "The name of the module."),
    Field("text", "fingerprint", "A digest of the program without names and metadata."),
    Field("count", "hosts", "Number of hosts that compiled this variant."),
    Field("text", "names", "Names of these hosts, joined by `, `.", label="host names"),
    Field("path", "file", "The file of one of these hosts."),
)
_FILES = (
    Field("text", "fingerprint", "A digest of the program without names and metadata."),
    Field("name", "host", "The host that compiled it.", nullable=True),
    Field("path", "file", "The file."),
)


class Comparison(Result):
    """Differences between the programs of two files or dump directories, program by program."""

    __slots__ = ("_programs", "_unmatched", "after", "before", "equal")

    VERB = "diff"
    FACTS = (
        Field("count", "programs", "Programs compared."),
        Field("count", "equal", "Programs without differences."),
        Field("count", "differ", "Programs with differences."),
    )

    def __init__(self, before: str, after: str) -> None:
        self.before = before
        """File or directory of the first programs."""
        self.after = after
        """File or directory of the second programs."""
        self.equal = 0
        """Number of programs without differences."""
        self._programs: list[tuple[Any, ...]] = []
        self._unmatched: list[tuple[Any, ...]] = []

    def add(self, name: str, diff: Diff, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Adds the diff of a program, with path, line and label of its two modules."""
        if diff.is_empty:
            self.equal += 1
            return
        changes = {row["measure"]: row["change"] for row in diff.totals()}
        figures = [changes[measure] for measure in _MEASURES]
        places = [place[key] for place in (before, after) for key in ("path", "line", "label")]
        self._programs.append((name, len(diff.causes), *figures, *places))

    def lacks(self, side: str, name: str, place: dict[str, Any]) -> None:
        """Adds a program that only one side has."""
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
        """The two sides compared."""
        return f"{self.before} and {self.after}"

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Numbers of equal and different programs."""
        differ = len(self._programs)
        return tuple(map(Fact, self.FACTS, (self.equal + differ, self.equal, differ)))

    @property
    def notes(self) -> tuple[Note, ...]:
        """How to see the differences of one program."""
        if not self._programs:
            return ()
        return (Note("one-program", "--module NAME shows the differences of one program"),)

    def sections(self) -> tuple[Section, ...]:
        """The programs that differ, and the programs that only one side has."""
        shown = [field.name for field in _PROGRAMS[: 2 + len(_MEASURES)]]
        return (
            Section("programs", "Programs that differ", of_rows(_PROGRAMS, self._programs), shown),
            Section("unmatched", "Programs on one side only", of_rows(_UNMATCHED, self._unmatched)),
        )


class HostComparison(Result):
    """Programs that differ between the hosts of a dump directory."""

    __slots__ = ("_rows", "folder")

    VERB = "diff"
    FACTS = (
        Field("count", "hosts", "Hosts of the dump directory."),
        Field("count", "programs", "Programs by name."),
        Field("count", "differ", "Programs that differ between hosts."),
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
        """Whether all hosts compiled identical programs."""
        return all(row["error"] or row["is_common"] for row in self._rows)

    def _groups(self) -> list[tuple[str, str, list[dict[str, Any]]]]:
        """Program, fingerprint and rows of every variant.

        The most common variant of a program comes first.
        """
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
        """Numbers of hosts, programs and programs that differ."""
        counts = (
            len({row["host"] for row in self._rows}),
            len({row["program"] for row in self._rows}),
            len({program for program, _, _ in self._groups()}),
        )
        return tuple(map(Fact, self.FACTS, counts))

    def sections(self) -> tuple[Section, ...]:
        """Programs that differ between hosts, by program and fingerprint."""
        rows = []
        for program, fingerprint, files in self._groups():
            hosts = sorted({row["host"] or "(none)" for row in files})
            rows.append((program, fingerprint, len(hosts), ", ".join(hosts), files[0]["file"]))
        title = "Programs that differ between hosts"
        return (Section("variants", title, of_rows(_VARIANTS, rows)),)

    def every_section(self) -> tuple[Section, ...]:
        """The variants, and the file of each host."""
        rows = [
            (fingerprint, row["host"], row["file"])
            for _, fingerprint, files in self._groups()
            for row in files
        ]
        return (*self.sections(), Section("files", "Files of the variants", of_rows(_FILES, rows)))


class Folders:
    """The programs of two dump directories, paired by host, name and fingerprint."""

    __slots__ = ("faults", "pairs", "unmatched")

    def __init__(self, paths: Sequence[str], module: str | None = None) -> None:
        self.faults: tuple[list[tuple[str, OSError]], ...] = ([], [])
        """Per side, the files and folders that cannot be opened."""
        sides: list[list[Program]] = []
        for path, faults in zip(paths, self.faults, strict=True):
            try:
                programs, refused = listed(path)
            except OSError as error:
                faults.append((path, error))
                programs, refused = [], []
            faults += [(name, OSError(reason)) for name, reason in refused]
            sides.append(
                [program for program in programs if module is None or program.answers_to(module)]
            )
        before, after = sides
        self.pairs, *self.unmatched = paired(before, after)

    @property
    def is_empty(self) -> bool:
        """Whether no program was found."""
        return not self.pairs and not any(self.unmatched)


def paired_by_name(
    before: Sequence[_Side], after: Sequence[_Side], name: Callable[[_Side], str]
) -> tuple[list[tuple[_Side, _Side]], list[_Side], list[_Side]]:
    """Returns pairs of equal name, in order, and the items of each side without a partner.

    Two single items are paired whatever their names.
    """
    if len(before) == len(after) == 1:
        return [(before[0], after[0])], [], []
    named: dict[str, list[_Side]] = {}
    for item in after:
        named.setdefault(name(item), []).append(item)
    pairs, rest = [], []
    for item in before:
        others = named.get(name(item))
        if others:
            pairs.append((item, others.pop(0)))
        else:
            rest.append(item)
    return pairs, rest, [item for others in named.values() for item in others]
