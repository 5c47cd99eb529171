"""`Scan`: the tables of a scan, in memory or in a dataset."""

from __future__ import annotations

from hlofast import _core, _text
from hlofast._context import backend_differs
from hlofast._core import Field
from hlofast._extras import library
from hlofast._names import unknown
from hlofast._result import Fact, Note, Result, Section
from hlofast._scan.found import Tables
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast._core import Mesh, ScanPart, ScanTable, SurveyData
    from hlofast._scan.folder import RemoteFolder
    from hlofast._scan.stored import ReadFolder, Stored
    from hlofast.devices import Device

_TABLES, *_ = _core._scan_words()
TABLES = tuple(name for name in _TABLES if name != "files")
"""The tables that can be selected; `files` is always present."""
_TOGETHER = "devices_together"
_SHOWN = (
    *("program", "host", "files", "status", "flops", "wire_bytes", "live_peak", _TOGETHER),
    "device",
)
_FAILURES = ("path", "line", "column", "reason")
_SKIPPED = (
    Field("word", "kind", "What the files are, by their names and contents."),
    Field("count", "files", "Number of files."),
    Field("path", "example", "The first of their names."),
)


class Scan(Result):
    """The tables of a scan, in memory or in a dataset.

    `scan["modules"]` is a `Table`; `to_arrow`, `to_pandas` and `to_polars` convert one table,
    `to_duckdb` registers all tables with a connection. Unknown values are None, null or masked, as
    in every table.
    """

    VERB = "scan"
    FACTS = (
        Field("path", "dataset", "The dataset with the tables; unknown if they are in memory."),
        Field("count", "read", "Files that were read in this scan.", adds_up=True),
        Field("count", "failed", "Files that could not be read in this scan.", adds_up=True),
        Field("count", "skipped", "Files with nothing to read.", adds_up=True),
        Field("count", "unchanged", "Files whose rows are already in the dataset.", adds_up=True),
        Field("count", "failed_before",
              "Unchanged files that could not be read in an earlier scan.", adds_up=True),
    )  # fmt: skip

    def __init__(
        self,
        survey: SurveyData | None,
        folder: ReadFolder | RemoteFolder | None,
        tables: Iterable[str] = (),
    ) -> None:
        self.path = None if folder is None else folder.path
        """The dataset; None if the rows are in memory."""
        self.counts = {"read": 0, "failed": 0, "skipped": 0, "unchanged": 0}
        """Number of files by status; the sum is the number of all files."""
        self.failures: list[dict[str, Any]] = []
        """The rows of `files` for failed files, at most 1000."""
        self._failed: set[str] = set()
        self._skipped: dict[str, tuple[int, str]] = {}
        self._failed_before: list[dict[str, Any]] | None = None
        self.unknown_targets: list[str] = []
        """Chips named by dumps that are missing from the device table."""
        self.given_device: Device | None = None
        """The device that modules were timed for, if it was not found beside them."""
        self.given_mesh: Mesh | None = None
        """The mesh of all modules that it fits, if one was given."""
        self.is_started_over = False
        """Whether earlier rows were dropped because they were written with other options."""
        self._survey = survey
        self._folder = folder
        self._asked = frozenset(("files", "programs", *tables))
        self._parts: dict[str, list[ScanTable]] = {}
        self._tables: dict[str, Table] = {}

    @property
    def files(self) -> Table:
        """All files with their kind and status; `fields` describes the columns."""
        return self["files"]

    @property
    def programs(self) -> Table:
        """The compilations that the files belong to, each with the figures of its last stage.

        `fields` describes the columns. The figures come from the canonical module; they are unknown
        if it could not be read, and without the table `modules`.
        """
        return self["programs"]

    @property
    def failed_before(self) -> list[dict[str, Any]]:
        """The rows of `files` for unchanged files that failed in an earlier scan.

        They are not read again: `counts` counts them as unchanged, and `failures` omits them.
        """
        if self._failed_before is None:
            self._failed_before = []
            if self.counts["unchanged"] and self._folder is not None:

                def counts(part: dict[str, list[Any]], row: int) -> bool:
                    return part["status"][row] == "failed" and part["path"][row] not in self._failed

                rows = self._stored().rows("files", where=counts)
                self._failed_before = Table(rows.columns()).to_pylist()
        return self._failed_before

    def differing_hosts(self) -> Table:
        """Programs that differ between hosts: one row per module name and fingerprint.

        Only hosts that compiled a module of this name up to this stage are compared; `programs`
        gives the hosts. Empty if all hosts compiled the same programs.
        """
        from hlofast._programs import differing_hosts

        return differing_hosts(self.programs)

    @property
    def tables(self) -> Tables:
        """The tables that have rows, by name; each is built on first use."""
        names = self._stored().tables if self._folder is not None else ("programs", *self._parts)
        return Tables(self, names)

    @property
    def title(self) -> str:
        """The number of files found."""
        return _text.counted(sum(self.counts.values()), "file")

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The dataset, and the number of files by status."""
        before = {"dataset": self.path, "failed_before": len(self.failed_before)}
        values: dict[str, Any] = before | self.counts
        is_shown = {"dataset": self.path is not None, "failed_before": bool(self.failed_before)}
        return tuple(
            Fact(field, values[field.name])
            for field in self.FACTS
            if is_shown.get(field.name, True)
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes about the tables."""
        notes = []
        if self.has_no_modules:
            from hlofast._kinds import HOW_TO_DUMP

            text = f"no XLA dumps among these files; write them with {HOW_TO_DUMP}"
            notes.append(Note("no-modules", text))
        if self.is_started_over:
            text = "the dataset was rewritten because its rows were made with other options"
            notes.append(Note("started-over", text))
        for target in self.unknown_targets:
            text = f"a dump names the unknown device {target!r}: its programs have no times"
            notes.append(Note("unknown-target", text))
        if (device := self.given_device) is not None:
            for compiled, count in sorted(self._misfits().items()):
                text = f"{backend_differs(device, compiled, count)}: no times"
                notes.append(Note("other-backend", text))
        if self.given_mesh is not None and (count := self._of_other_meshes()):
            modules = "module is" if count == 1 else "modules are"
            text = (
                f"mesh {self.given_mesh} has {self.given_mesh.device_count:,} devices; "
                f"{count:,} {modules} for another number: their axes are those of their texts"
            )
            notes.append(Note("mesh", text, modules=count))
        if together := self._together():
            text = (
                f"{_text.counted(together, 'program is', 'programs are')} not partitioned yet: "
                "FLOPs, bytes, peaks and times cover all devices together; `hlofast FILE` gives "
                "the peak of one device; the collectives that the partitioner adds, and the bytes "
                "that they send, are unknown"
            )
            notes.append(Note("global", text, programs=together))
        return tuple(notes)

    @property
    def has_no_modules(self) -> bool:
        """Whether no file has a module, or could not be read."""
        counts = self.counts
        return not (counts["read"] or counts["failed"] or counts["unchanged"])

    def _together(self) -> int:
        """Programs whose figures cover several devices together."""
        programs = self.programs
        if _TOGETHER not in programs:
            return 0
        return sum((count or 1) > 1 for count in programs.values(_TOGETHER))

    def _of_other_meshes(self) -> int:
        """Modules that the given mesh does not fit."""
        table = self._modules("mesh")
        given = str(self.given_mesh)
        return 0 if "mesh" not in table else sum(own != given for own in table.values("mesh"))

    def _modules(self, *columns: str) -> Table:
        """Columns of the table `modules`; without columns if it was not selected."""
        if self._folder is None:
            return self["modules"]
        stored = self._stored()
        if "modules" not in stored.asked:
            return Table(())
        return Table(stored.rows("modules", ["path", *columns]).columns())

    def _misfits(self) -> dict[str, int]:
        """Modules by backend that do not fit the given device."""
        table = self._modules("backend", "device")
        found: dict[str, int] = {}
        if "backend" in table:
            pairs = zip(table.values("backend"), table.values("device"), strict=True)
            for backend, device in pairs:
                if backend is not None and device is None:
                    found[backend] = found.get(backend, 0) + 1
        return found

    def sections(self) -> tuple[Section, ...]:
        """The programs, those that differ between hosts, files that failed, and skipped files."""
        programs = self.programs
        hidden = () if self._together() else (_TOGETHER,)
        shown = [name for name in _SHOWN if name in programs and name not in hidden]
        fields = [field for field in _core._scan_fields("files") if field.name in _FAILURES]
        fields.sort(key=lambda field: _FAILURES.index(field.name))
        failed = [
            [row[name] for name in _FAILURES] for row in (*self.failures, *self.failed_before)
        ]
        skipped = [(kind, *known) for kind, known in sorted(self._skipped.items())]
        columns = ("module_name", "fingerprint", "flops", "hosts", "other_hosts")
        return (
            Section("programs", "Programs", programs, shown),
            Section(
                "differing_hosts",
                "Programs that differ between hosts",
                self.differing_hosts(),
                columns,
            ),
            Section("failures", "Not read", of_rows(fields, failed), ("path", "line", "reason")),
            Section("skipped", "Nothing to read", of_rows(_SKIPPED, skipped)),
        )

    def _stored(self) -> Stored:
        from hlofast._scan.stored import Stored

        if self._folder is None:
            raise ValueError("the scan is in memory and has no dataset")
        return Stored(self._folder)

    def __getitem__(self, name: str) -> Table:
        """Returns a table; a table that was not selected is empty, without columns.

        Raises `KeyError` for other names.
        """
        if name != "programs" and name not in _TABLES:
            raise unknown("table", name, ("programs", *_TABLES))
        if name not in self._tables:
            rows = self._rows(name)
            self._tables[name] = Table(() if rows is None else rows.columns())
        return self._tables[name]

    def _rows(self, name: str) -> ScanTable | None:
        """The rows of a table; None if it was not selected."""
        if self._folder is not None:
            stored = self._stored()
            return stored.rows(name) if name in stored.asked else None
        if name not in self._asked:
            return None
        if name == "programs" and self._survey is not None:
            return self._survey.programs(self._rows("modules"))
        parts = self._parts.get(name)
        return _core._concatenated(parts) if parts else _core._scan_rows(name, 0, {})

    def to_arrow(self, table: str) -> Any:
        """A table as `pyarrow.Table`; needs `hlofast[arrow]`."""
        arrow = library("pyarrow", "arrow")
        if self._folder is not None:
            return self._stored().to_arrow(table)
        rows = self._rows(table)
        return arrow.table({} if rows is None else rows)

    def to_pandas(self, table: str) -> Any:
        """A table as `pandas.DataFrame`; needs `hlofast[pandas]`."""
        library("pandas", "pandas")
        return self.to_arrow(table).to_pandas()

    def to_polars(self, table: str) -> Any:
        """A table as `polars.DataFrame`; needs `hlofast[polars,arrow]`."""
        polars = library("polars", "polars")
        return polars.from_arrow(self.to_arrow(table))

    def to_duckdb(self, connection: Any = None) -> Any:
        """A DuckDB connection with all tables under their names; needs `hlofast[duckdb]`."""
        connection = library("duckdb", "duckdb").connect() if connection is None else connection
        for table in self.tables:
            connection.register(table, self.to_arrow(table))
        return connection

    def query(self, sql: str) -> Table:
        """The result of a SELECT over the tables, by DuckDB; needs `hlofast[duckdb]`.

        All selected tables are available under their names, even without rows; the query can
        neither read nor write anything else. Null becomes None; integers beyond 64 bits become the
        largest integer, and values of other kinds than numbers and text become text. Raises
        `ValueError` with DuckDB's reason if the query fails.
        """
        from hlofast._scan.query import Query

        with Query(self, sql) as query:
            return query.table()

    def _take(self, part: ScanPart) -> None:
        """Counts the files in `part`."""
        self.counts["unchanged"] += len(part.unchanged())
        if "files" not in part.tables():
            return
        self._count(Table(part.table("files").columns()))

    def _count(self, files: Table) -> None:
        statuses = files.values("status")
        for row, status in enumerate(statuses):
            self.counts[status or "skipped"] += 1
            if status == "failed":
                self._failed.add(str(files._columns["path"][row]))
                if len(self.failures) < 1000:
                    self.failures.append(files.row(row))
            elif status != "read":
                kind = str(files._columns["kind"][row])
                name = str(files._columns["path"][row]).replace("\\", "/").rpartition("/")[2]
                count, first = self._skipped.get(kind, (0, name))
                self._skipped[kind] = count + 1, min(first, name)

    def _keep(self, part: ScanPart) -> None:
        for table in part.tables():
            self._parts.setdefault(table, []).append(part.table(table))

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items() if count)
        place = "" if self.path is None else f" in {self.path}"
        return f"<Scan of {sum(self.counts.values()):,} files: {counts}{place}>"
