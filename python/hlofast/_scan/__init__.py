"""`hlofast.scan`: everything in dump directories as tables."""

from __future__ import annotations

import os

from hlofast import _core, _text
from hlofast._core import Field
from hlofast._extras import library
from hlofast._names import meant, unknown
from hlofast._result import Fact, Note, Result, Section
from hlofast._scan import formats
from hlofast._scan.found import Tables
from hlofast._scan.progress import Progress
from hlofast._units import read_bytes, read_seconds
from hlofast.errors import WorkerError
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Executor
    from os import PathLike
    from typing import Any

    from hlofast._core import Mesh, ScanData, ScanPart, ScanTable, SurveyData
    from hlofast._remote import RemoteFiles
    from hlofast._scan.dataset import Dataset
    from hlofast._scan.folder import RemoteFolder
    from hlofast._scan.stored import ReadFolder, Stored
    from hlofast._scan.tasks import Engine, Tasks
    from hlofast.devices import Device

_TABLES, KINDS, STAGES = _core._scan_words()
TABLES = tuple(name for name in _TABLES if name != "files")
"""The tables that can be asked for; `files` is always there."""
DEFAULT_TABLES = tuple(name for name in TABLES if name != "instructions")
"""Those there are unless others are asked for."""
MAX_BYTES = 1 << 30
"""Larger files are not read."""
MAX_SECONDS = 300.0
"""Longer than this nobody waits for one file."""
BATCH_BYTES = 32 << 20
"""Text, or rows, that go into one part of a dataset."""
MEMORY = 128 << 20
"""Bytes that files under way and their rows take, about; a larger file is read alone."""
_PATIENCE = 0.05
_REQUESTS = 8
"""Objects that are read at once: threads wait for servers more than they work."""
_SETTLED = 2.0


_SHOWN = ("program", "host", "files", "status", "flops", "wire_bytes", "live_peak", "device")
_FAILURES = ("path", "line", "column", "reason")


class Scan(Result):
    """What a scan found: in memory, or where it was written.

    `scan["modules"]` is a `Table`; `to_arrow`, `to_pandas` and `to_polars` give one table to those
    libraries, `to_duckdb` all of them to a connection. What is unknown is None, a null or masked,
    as in every table.
    """

    VERB = "scan"
    FACTS = (
        Field("path", "dataset", "Where the tables are written; unknown if they are in memory."),
        Field("count", "read", "Files that were read in this scan.", adds_up=True),
        Field("count", "failed", "Files that could not be read in this scan.", adds_up=True),
        Field("count", "skipped", "Files that hold nothing to read.", adds_up=True),
        Field("count", "unchanged", "Files whose rows the dataset already has.", adds_up=True),
        Field(
            "count",
            "failed_before",
            "Unchanged files that could not be read in an earlier scan.",
            label="failed before",
            adds_up=True,
        ),
    )

    def __init__(
        self,
        survey: SurveyData | None,
        folder: ReadFolder | RemoteFolder | None,
        tables: Iterable[str] = (),
    ) -> None:
        self.path = None if folder is None else folder.path
        """The dataset; None if the rows are in memory."""
        self.counts = {"read": 0, "failed": 0, "skipped": 0, "unchanged": 0}
        """Files by what became of them; their sum is the number of files."""
        self.failures: list[dict[str, Any]] = []
        """The rows in `files` of those that failed, at most a thousand."""
        self._failed: set[str] = set()
        self._failed_before: list[dict[str, Any]] | None = None
        self.unknown_targets: list[str] = []
        """Chips that dumps name and that the device table has not."""
        self.is_started_over = False
        """Whether earlier rows were given up, since they were made with other options."""
        self._survey = survey
        self._folder = folder
        self._asked = frozenset(("files", "programs", *tables))
        self._parts: dict[str, list[ScanTable]] = {}
        self._tables: dict[str, Table] = {}

    @property
    def files(self) -> Table:
        """Every file, what it is and what became of it; `fields` says what the columns are."""
        return self["files"]

    @property
    def programs(self) -> Table:
        """The compilations that the files belong to, each with the figures of its last stage.

        `fields` says what the columns are. The figures are those of the canonical module; they are
        unknown where that could not be read, and without the table `modules`.
        """
        return self["programs"]

    @property
    def failed_before(self) -> list[dict[str, Any]]:
        """The rows in `files` of unchanged files that failed when they were scanned.

        Those are not read again: `counts` has them among the unchanged, and `failures` not at all.
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
        """What some hosts compiled and others did not: a row per module name and fingerprint.

        Only hosts are compared that compiled a module of that name to that stage; a host is what
        `programs` says it is. Without rows if all hosts compiled the same.
        """
        from hlofast._programs import differing_hosts

        return differing_hosts(self.programs)

    @property
    def tables(self) -> Tables:
        """The tables that have rows, by name; each is made when it is first asked for."""
        names = self._stored().tables if self._folder is not None else ("programs", *self._parts)
        return Tables(self, names)

    @property
    def title(self) -> str:
        """How many files were found."""
        return _text.counted(sum(self.counts.values()), "file")

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The dataset, and files by what became of them."""
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
        """What to keep in mind about the tables."""
        notes = []
        if self.is_started_over:
            text = "the dataset was made anew, because its rows were made with other options"
            notes.append(Note("started-over", text))
        for target in self.unknown_targets:
            text = f"a dump names the device {target!r}, which is not known: no times for it"
            notes.append(Note("unknown-target", text))
        return tuple(notes)

    def sections(self) -> tuple[Section, ...]:
        """The programs, what hosts compiled differently, what could not be read."""
        programs = self.programs
        shown = [name for name in _SHOWN if name in programs]
        fields = [field for field in _core._scan_fields("files") if field.name in _FAILURES]
        fields.sort(key=lambda field: _FAILURES.index(field.name))
        failed = [
            [row[name] for name in _FAILURES] for row in (*self.failures, *self.failed_before)
        ]
        columns = ("module_name", "fingerprint", "flops", "hosts", "other_hosts")
        return (
            Section("programs", "Programs", programs, shown),
            Section(
                "differing_hosts",
                "Compiled otherwise by other hosts",
                self.differing_hosts(),
                columns,
            ),
            Section("failures", "Not read", of_rows(fields, failed), ("path", "line", "reason")),
        )

    def _stored(self) -> Stored:
        from hlofast._scan.stored import Stored

        if self._folder is None:
            raise ValueError("a scan whose rows are in memory")
        return Stored(self._folder)

    def __getitem__(self, name: str) -> Table:
        """A table; one that was not asked for has neither rows nor columns.

        A KeyError for other names.
        """
        if name != "programs" and name not in _TABLES:
            raise unknown("table", name, ("programs", *_TABLES))
        if name not in self._tables:
            rows = self._rows(name)
            self._tables[name] = Table(() if rows is None else rows.columns())
        return self._tables[name]

    def _rows(self, name: str) -> ScanTable | None:
        """The rows of a table; None of one that was not asked for."""
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
        """A duckdb connection with all tables under their names; needs `hlofast[duckdb]`."""
        connection = library("duckdb", "duckdb").connect() if connection is None else connection
        for table in self.tables:
            connection.register(table, self.to_arrow(table))
        return connection

    def query(self, sql: str) -> Table:
        """What a SELECT over the tables gives, by duckdb; needs `hlofast[duckdb]`.

        All tables that were asked for are there under their names, with rows or without; nothing
        else can be read, and nothing written. Null is None in the result; integers beyond 64 bits
        stand as the largest number there is, and what is neither number nor text as text. A
        `ValueError` for what duckdb cannot answer, with its reason.
        """
        from hlofast._scan.query import Query

        with Query(self, sql) as query:
            return query.table()

    def _take(self, part: ScanPart) -> None:
        """Count what is in `part`."""
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

    def _keep(self, part: ScanPart) -> None:
        for table in part.tables():
            self._parts.setdefault(table, []).append(part.table(table))

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items() if count)
        place = "" if self.path is None else f" in {self.path}"
        return f"<Scan of {sum(self.counts.values()):,} files: {counts}{place}>"


def open_dataset(
    path: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Scan:
    """The dataset that a scan wrote to `path`, as it is now.

    It may still be written to: each table is what its manifest names when it is first read.
    `storage_options` are those of `scan`, for a path of fsspec. A `ValueError` for a folder that is
    no dataset, an `OSError` for one that cannot be read.
    """
    from hlofast._scan.stored import ReadFolder

    name = os.fspath(path)
    folder: ReadFolder | RemoteFolder
    if "://" in name:
        from hlofast._remote import RemoteFiles
        from hlofast._scan.folder import RemoteFolder

        folder = RemoteFolder(name, RemoteFiles(storage_options))
    else:
        folder = ReadFolder(name)
    opened = Scan(None, folder)
    opened._stored()
    opened._count(opened.files)
    return opened


def _to_read(dataset: Dataset) -> ReadFolder | RemoteFolder:
    """Where a dataset is read, apart from what writes it."""
    from hlofast._scan.folder import LocalFolder
    from hlofast._scan.stored import ReadFolder

    folder = dataset.folder
    return ReadFolder(folder.path) if isinstance(folder, LocalFolder) else folder.again()


def scan(
    paths: str | PathLike[str] | Iterable[str | PathLike[str]],
    out: str | PathLike[str] | None = None,
    *,
    format: str = "parquet",  # noqa: A002 - the word for it
    tables: Iterable[str] | None = None,
    device: str | Device | None = "auto",
    mesh: Mesh | str | Mapping[str, int] | None = None,
    workers: int | None = None,
    executor: Executor | Engine | None = None,
    max_bytes: int | str = MAX_BYTES,
    max_text_bytes: int | str = MAX_BYTES,
    max_seconds: float | str | None = MAX_SECONDS,
    batch_bytes: int | str = BATCH_BYTES,
    progress: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Scan:
    """Read everything below `paths` on several threads and make tables of it.

    `paths` are files and folders. With `out` the rows go into a dataset: a folder
    `table=NAME` per table with files of `format` (parquet, which needs pyarrow; jsonl; csv). A
    dataset made with the same options is brought up to date: only files that are new or whose bytes
    changed are read again, the rows of those that are gone go. Without `out` all rows stay in
    memory.

    `tables` are some of modules, computations, instructions, collectives, matmuls, buffers (alive
    at the peak), remat and lint; without it all but instructions. `device` is the chip to time
    modules for, "auto" the one that a dump names, None for no times; `mesh` that of all modules
    instead of the one each speaks of. `workers` are threads, one per processor if None.

    With `executor`, one of `concurrent.futures` or anything with its `submit`, or an
    `hlofast.ray.Cluster`, the files are read there, in tasks of `workers` threads each (one if
    None) that have to find the files under the same paths. What comes of it is the same. A
    `WorkerError` if a task fails, as with its process; scanned again, `out` is completed.

    No file stops the others: one of more than `max_bytes`, with more than `max_text_bytes` in it or
    that takes longer than `max_seconds` fails, with its reason. Texts like `"1GiB"` and `"5min"` do
    for these. `progress` shows a bar on standard
    error if that is a terminal.

    `paths` and `out` may be those of fsspec (`s3://…`, `gs://…`), which needs the extra `remote`;
    `storage_options` are what its file systems take, credentials and the like. What a server says
    no to is a row of `files`, as everything that cannot be read.

    A `ValueError` for options that cannot be and for an `out` that is something else, an `OSError`
    for an `out` that cannot be written.
    """
    return Scanner(
        paths,
        out,
        format=format,
        tables=tables,
        device=device,
        mesh=mesh,
        workers=workers,
        executor=executor,
        max_bytes=max_bytes,
        max_text_bytes=max_text_bytes,
        max_seconds=max_seconds,
        batch_bytes=batch_bytes,
        progress=progress,
        storage_options=storage_options,
    ).run()


class Scanner:
    """The options of a scan; each `run` makes one."""

    def __init__(
        self,
        paths: str | PathLike[str] | Iterable[str | PathLike[str]],
        out: str | PathLike[str] | None,
        *,
        format: str,  # noqa: A002 - as in `scan`
        tables: Iterable[str] | None,
        device: str | Device | None,
        mesh: Mesh | str | Mapping[str, int] | None,
        workers: int | None,
        executor: Executor | Engine | None,
        max_bytes: int | str,
        max_text_bytes: int | str,
        max_seconds: float | str | None,
        batch_bytes: int | str,
        progress: bool,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        several = [paths] if isinstance(paths, str | os.PathLike) else paths
        self.paths = [os.fspath(path) for path in several]
        self.out = None if out is None else os.fspath(out)
        if self.out is not None:
            formats.check(format)
        self.format = format
        self.tables = list(DEFAULT_TABLES if tables is None else dict.fromkeys(tables))
        for name in self.tables:
            if name not in TABLES:
                hint = meant(name, TABLES) or ";"
                raise ValueError(f"no table {name!r}{hint} those there are: {', '.join(TABLES)}")
        self.device = device
        if device is not None and device != "auto":
            from hlofast import devices

            devices.get(device)
        if isinstance(mesh, str):
            mesh = _core.Mesh.parse(mesh)
        elif mesh is not None and not isinstance(mesh, _core.Mesh):
            mesh = _core.Mesh(mesh)
        self.mesh = mesh
        self.storage_options = storage_options
        self.engine: Engine | None = None
        if executor is not None:
            from hlofast._scan.tasks import engine

            self.engine = engine(executor)
        if workers is None:
            workers = _processors() if executor is None else 1
            if executor is None and any("://" in path for path in self.paths):
                workers = max(workers, _REQUESTS)
        self.workers = workers
        if self.workers < 1:
            raise ValueError("workers is at least 1")
        self.max_bytes = read_bytes(max_bytes)
        self.max_text_bytes = read_bytes(max_text_bytes)
        self.max_seconds = None if max_seconds is None else read_seconds(max_seconds, least=0)
        self.batch_bytes = max(read_bytes(batch_bytes), 1)
        self.progress = progress
        self.stamps: dict[str, tuple[int, int]] = {}
        """Sizes and times of files that need not be opened again (while following a job)."""

    def run(self, each: Any = None) -> Scan:
        """Scan. `each` is called with every part, instead of keeping or writing it."""
        # First the dataset: if it lies below the paths, every scan sees it.
        dataset = self._dataset()
        try:
            if not any("://" in path for path in self.paths):
                return self.scan(_core._survey(self.paths), dataset, each)
            from hlofast import _remote

            files = _remote.RemoteFiles(self.storage_options, self.max_seconds)
            return self.scan(_remote.survey(self.paths, files), dataset, each, files)
        finally:
            if dataset is not None:
                dataset.close()

    def _dataset(self) -> Dataset | None:
        if self.out is None:
            return None
        from hlofast._scan.dataset import Dataset

        chip = self.device if isinstance(self.device, str | None) else repr(self.device._parts())
        options = {
            "hlofast": _core._version,
            "tables": self.tables,
            "device": chip,
            "mesh": None if self.mesh is None else str(self.mesh),
            "max_bytes": self.max_bytes,
            "max_text_bytes": self.max_text_bytes,
            "max_seconds": self.max_seconds,
        }
        if "://" not in self.out:
            return Dataset(self.out, self.format, options)
        from hlofast._remote import RemoteFiles

        return Dataset(self.out, self.format, options, RemoteFiles(self.storage_options))

    def scan(
        self,
        survey: SurveyData,
        dataset: Dataset | None = None,
        each: Any = None,
        files: RemoteFiles | None = None,
    ) -> Scan:
        """Scan files that have been listed, into `dataset` if there is one."""
        scan = Scan(survey, None if dataset is None else _to_read(dataset), self.tables)
        known: dict[str, str] = {}
        stamps = dict(self.stamps)
        if dataset is not None:
            scan.is_started_over = dataset.is_started_over
            known = dataset.known()
            if files is not None:
                dataset.tags = files.tags
                untouched = dataset.untouched()
                stamps |= {path: stamp for path, stamp in survey.stamps() if path in untouched}
            gone = known.keys() - set(survey.paths())
            unclear = () if files is None else tuple(files.refused)
            dataset.forget(path for path in gone if not path.startswith(unclear))
        chips, places = self._devices(survey, scan)
        options: dict[str, Any] = {
            "tables": self.tables,
            "chips": chips,
            "devices": places,
            "mesh": self.mesh,
            "known": known,
            "stamps": stamps,
            "workers": self.workers,
            "memory": MEMORY,
            "max_bytes": self.max_bytes,
            "max_text_bytes": self.max_text_bytes,
            "max_seconds": self.max_seconds,
            "batch_bytes": self.batch_bytes,
        }
        data: ScanData | Tasks
        if self.engine is None:
            data = survey.scan(**options)
        else:
            from hlofast._scan.tasks import Tasks, split

            read = None if files is None else files.reader()
            tasks = split(survey, options, self.engine.at_once, read)
            data = Tasks(self.engine.results(tasks), self.batch_bytes)
        take = each or (scan._keep if dataset is None else dataset.add)
        bar = Progress(len(survey), survey.bytes, is_wanted=self.progress)
        try:
            for part in _parts(data, bar):
                scan._take(part)
                take(part)
            if dataset is not None:
                dataset.put_programs(survey.programs(self._figures(scan, survey)))
        except (KeyboardInterrupt, WorkerError):
            # What is done is kept, so that the next scan goes on from here.
            if dataset is not None:
                dataset.recover()
                dataset.add(data.stop())
                dataset.put_programs(survey.programs(self._figures(scan, survey)))
            raise
        finally:
            data.stop()
            if files is not None:
                files.close()  # Before threads are waited for.
            bar.close()
        return scan

    def _figures(self, scan: Scan, survey: SurveyData) -> ScanTable | None:
        """Of the modules of a dataset what the table of programs takes over."""
        if "modules" not in self.tables:
            return None
        columns = [field.name for field in _core._scan_fields("programs")]
        canonical = set(Table(survey.programs().columns()).values("canonical"))

        def counts(part: dict[str, list[Any]], row: int) -> bool:
            return bool(part["label"][row]) or part["path"][row] in canonical

        return scan._stored().rows("modules", ["path", "label", "program", *columns], counts)

    def trust(self, scan: Scan, begin: float) -> None:
        """Take files that `scan` has seen as unchanged while their size and time are.

        What was written shortly before the scan began, at `begin` in seconds since 1970, may have
        been written again since without another time.
        """
        latest = int((begin - _SETTLED) * 1e9)
        stamps = [] if scan._survey is None else scan._survey.stamps()
        self.stamps = {path: stamp for path, stamp in stamps if 0 < stamp[1] < latest}

    def _devices(self, survey: SurveyData, scan: Scan) -> tuple[list[Any], list[int | None]]:
        """The chips to time for, and for each program the number of its chip."""
        targets = survey.targets()
        if self.device is None:
            return [], []
        if self.device != "auto":
            from hlofast import devices

            return [devices.get(self.device)._parts()], [0] * len(targets)
        words = sorted({target for target in targets if target is not None})
        if not words:
            return [], []
        from hlofast import devices

        chips: list[Any] = []
        numbers: dict[str, int] = {}
        for word in words:
            try:
                chip = devices.get(word)
            except devices.UnknownDeviceError:
                scan.unknown_targets.append(word)
                continue
            numbers[word] = len(chips)
            chips.append(chip._parts())
        return chips, [None if target is None else numbers.get(target) for target in targets]


def _processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _parts(data: ScanData | Tasks, bar: Progress) -> Iterator[ScanPart]:
    """The parts of a scan as they come; an interrupt is seen in between."""
    while not data.is_done:
        part = data.next(_PATIENCE)
        bar.show(*data.progress())
        if part is not None:
            yield part
