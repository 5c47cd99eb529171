"""Comparisons of many programs: of two files or dump directories, or between hosts."""

from __future__ import annotations

from hlofast import _text
from hlofast._changes import MEASURES, UNOPTIMISED, Change, sections, told
from hlofast._core import Field
from hlofast._programs import Program, fingerprints_of, listed, paired
from hlofast._result import Fact, Note, Result, Section
from hlofast.table import of_rows

TYPE_CHECKING = False  # The command line compares modules; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, TypeVar

    from hlofast._diff import Diff

    _Side = TypeVar("_Side")

NO_HOST = "(none)"
"""The host of programs whose folder names none."""
_SIDES = (("before", "first"), ("after", "second"))
_PROGRAMS = (
    Field("name", "program", "The program."),
    Field("count", "changes", "Changes that do not follow from another change."),
    *(
        Field(
            "count",
            measure,
            f"Difference in {measure.replace('_', ' ')}: second minus first.",
            nullable=True,
            signed=True,
        )
        for measure in MEASURES
    ),
    UNOPTIMISED,
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
    Field("name", "host", "The host that compiled it.", nullable=True),
)
_HOSTS = (
    Field("word", "side", "The side that lacks the host: before or after."),
    Field("name", "host", "The host, from the folder name."),
    Field("count", "programs", "Programs of this host that other hosts have on both sides."),
)
_GROWTH = (
    Field("name", "program", "The program."),
    Field("word", "measure", "The total."),
    Field("count", "before", "The total of the first program.", nullable=True),
    Field("count", "change", "Second minus first; unknown if either is unknown.", nullable=True,
          signed=True),
    Field("ratio", "share", "The change relative to the first.", nullable=True, signed=True),
    Field("ratio", "limit", "The largest allowed share."),
)  # fmt: skip
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

    __slots__ = ("_changes", "_growth", "_programs", "_unmatched", "after", "before", "equal",
                 "hosts")  # fmt: skip

    VERB = "diff"
    FACTS = (
        Field("text", "verdict", "What changed, as a sentence."),
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
        self.hosts: tuple[tuple[str, str, int], ...] = ()
        """Hosts of one side alone (`Folders.missing_hosts`)."""
        self._changes: list[Change] = []
        self._programs: list[tuple[Any, ...]] = []
        self._unmatched: list[tuple[Any, ...]] = []
        self._growth: list[tuple[Any, ...]] = []

    def add(
        self,
        name: str,
        diff: Diff,
        before: dict[str, Any],
        after: dict[str, Any],
        is_same: bool | None = None,
    ) -> None:
        """Adds the diff of a program, with path, line and label of its two modules.

        `is_same` tells whether both modules before optimisation are equal; None if unknown.
        """
        if diff.is_empty:
            self.equal += 1
            return
        change = Change(diff.after.name, diff, is_same)
        self._changes.append(change)
        figures = [change.change(measure) for measure in MEASURES]
        places = [place[key] for place in (before, after) for key in ("path", "line", "label")]
        row = (name, len(diff.causes), *figures, change.unoptimised, *places)
        self._programs.append(row)

    def lacks(self, side: str, name: str, place: dict[str, Any]) -> None:
        """Adds a program that only one side has."""
        keys = ("path", "line", "label", "host")
        self._unmatched.append((side, name, *(place.get(key) for key in keys)))

    def exceeds(
        self, name: str, measure: str, before: int | None, change: int | None, limit: float
    ) -> None:
        """Adds a total that grew by more than the share `limit`, or that is unknown."""
        share = change / before if change is not None and before else None
        self._growth.append((name, measure, before, change, share, limit))

    @property
    def has_unmatched(self) -> bool:
        """Whether one side has programs that the other lacks."""
        return bool(self._unmatched)

    @property
    def lacks_hosts(self) -> bool:
        """Whether the second side lacks hosts, so that growth there is unknown."""
        return any(side == "after" for side, _, _ in self.hosts)

    @property
    def is_empty(self) -> bool:
        """Whether there is no difference."""
        return not self._programs and not self._unmatched

    @property
    def title(self) -> str:
        """The two sides compared."""
        return f"{self.before} and {self.after}"

    @property
    def verdict(self) -> str:
        """What changed, as a sentence: missing hosts, missing programs, then figures."""
        parts = []
        for side in ("before", "after"):
            hosts = [host for lacking, host, _ in self.hosts if lacking == side]
            if hosts:
                words = _text.counted(len(hosts), "host is", "hosts are")
                parts.append(f"{words} missing {side}: {_text.names(hosts)}")
        alone = self._alone()
        for side in ("before", "after"):
            names = [row[1] for row in alone if row[0] == side]
            if names:
                words = _text.counted(len(names), "program")
                parts.append(f"{words} only {side}: {_text.names(names)}")
        if self._changes:
            parts.append(told(self._changes))
        return "; ".join(parts) or "no differences"

    def _alone(self) -> list[tuple[Any, ...]]:
        """The programs of one side alone, without those of hosts that the other side lacks."""
        lacking = {(side, host) for side, host, _ in self.hosts}
        other = {"before": "after", "after": "before"}
        return [
            row for row in self._unmatched if (other[row[0]], row[-1] or NO_HOST) not in lacking
        ]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The verdict, and numbers of equal and different programs."""
        differ = len(self._programs)
        values = (self.verdict, self.equal + differ, self.equal, differ)
        return tuple(map(Fact, self.FACTS, values))

    @property
    def notes(self) -> tuple[Note, ...]:
        """How to see the differences of one program."""
        if not self._programs:
            return ()
        return (Note("one-program", "--module NAME shows the differences of one program"),)

    def sections(self) -> tuple[Section, ...]:
        """The programs that differ, and the hosts and programs that only one side has."""
        count = 2 + len(MEASURES) + 1
        shown = [field.name for field in _PROGRAMS[:count]]
        return (
            Section("programs", "Programs that differ", of_rows(_PROGRAMS, self._programs), shown),
            Section("hosts", "Missing hosts", of_rows(_HOSTS, self.hosts), is_whole=True),
            Section("unmatched", "Programs on one side only", of_rows(_UNMATCHED, self._unmatched)),
        )

    def changes(self) -> tuple[Section, ...]:
        """What a pull request shows: growth beyond limits, missing hosts and programs, figures."""
        growth = of_rows(_GROWTH, self._growth)
        _, hosts, unmatched = self.sections()
        alone = of_rows(_UNMATCHED, self._alone())
        return (
            Section("growth", "Growth beyond the limits", growth, is_whole=True),
            hosts,
            Section("unmatched", unmatched.title, alone, ("side", "program", "host")),
            *sections(self._changes),
        )

    def every_section(self) -> tuple[Section, ...]:
        """The sections of `sections` and `changes`."""
        own = self.sections()
        names = [section.name for section in own]
        return (*own, *(section for section in self.changes() if section.name not in names))


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
            hosts = sorted({row["host"] or NO_HOST for row in files})
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

    __slots__ = ("faults", "missing_hosts", "pairs", "unmatched")

    def __init__(self, paths: Sequence[str], module: str | None = None) -> None:
        self.faults: tuple[list[tuple[str, Exception]], ...] = ([], [])
        """Per side, the files and folders that cannot be opened, and a folder without programs."""
        sides: list[list[Program]] = []
        for path, faults in zip(paths, self.faults, strict=True):
            try:
                programs, refused = listed(path)
            except OSError as error:
                faults.append((path, error))
                programs, refused = [], []
            faults += [(name, OSError(reason)) for name, reason in refused]
            if not programs and not faults:
                from hlofast._kinds import NO_DUMPS

                faults.append((path, ValueError(NO_DUMPS)))
            sides.append(
                [program for program in programs if module is None or program.answers_to(module)]
            )
        before, after = sides
        self.pairs, *self.unmatched = paired(before, after)
        self.missing_hosts = tuple(self._missing_hosts())
        """The side that lacks a host, the host, and the number of its programs that others have."""

    def _missing_hosts(self) -> Iterator[tuple[str, str, int]]:
        common = {pair[0].name for pair in self.pairs}
        for side, programs in zip(("after", "before"), self.unmatched, strict=True):
            hosts: dict[str, int] = {}
            for program in programs:
                # Other hosts compiled the program on both sides, so this one compiled it too.
                if program.name in common:
                    hosts[program.host] = hosts.get(program.host, 0) + 1
            for host, count in hosts.items():
                yield side, host or NO_HOST, count

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
