"""`Scanner`: the options of a scan, and its execution."""

from __future__ import annotations

import errno
import os

from hlofast import _core
from hlofast._context import Context, read_mesh
from hlofast._names import meant
from hlofast._scan import formats
from hlofast._scan.progress import Progress
from hlofast._scan.result import TABLES, Scan
from hlofast._units import read_bytes, read_seconds
from hlofast.errors import WorkerError
from hlofast.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Executor
    from os import PathLike
    from typing import Any

    from hlofast._core import Mesh, ScanData, ScanTable, SurveyData
    from hlofast._remote import RemoteFiles
    from hlofast._scan.dataset import Dataset
    from hlofast._scan.folder import RemoteFolder
    from hlofast._scan.stored import ReadFolder
    from hlofast._scan.tasks import Engine, Tasks
    from hlofast.devices import Device

DEFAULT_TABLES = tuple(name for name in TABLES if name != "instructions")
"""The tables of a scan by default."""
MAX_BYTES = 1 << 30
"""Largest file that is read, by default."""
MAX_SECONDS = 300.0
"""Time limit per file, by default."""
BATCH_BYTES = 32 << 20
"""Bytes of text or rows in one part of a dataset, by default."""
MEMORY = 128 << 20
"""Memory budget for files being read and their rows; a larger file is read alone."""
_PATIENCE = 0.05
_REQUESTS = 8
"""Minimum number of threads for remote objects, which mostly wait for servers."""
_SETTLED = 2.0


class Scanner:
    """The options of a scan; `run` executes it."""

    def __init__(
        self,
        paths: str | PathLike[str] | Iterable[str | PathLike[str]],
        out: str | PathLike[str] | None = None,
        *,
        format: str = "parquet",  # noqa: A002 - as in `scan`
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
        libraries: str | Iterable[str] | None = None,
        frame: str | None = None,
        merge_layers: bool = False,
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
                raise ValueError(f"no table {name!r}{hint} available tables: {', '.join(TABLES)}")
        self.device = device
        if device is not None and device != "auto":
            from hlofast import devices

            devices.get(device)
        self.mesh = None if mesh is None else read_mesh(mesh)
        names = Context(libraries=libraries, frame=frame, merge_layers=merge_layers)
        self.names = {
            "frame": names.frame,
            "libraries": list(names.libraries or ()),
            "merge_layers": bool(names.merge_layers),
        }
        """The contents of source columns and scopes, as in `Context`."""
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
            raise ValueError("workers must be at least 1")
        self.max_bytes = read_bytes(max_bytes)
        self.max_text_bytes = read_bytes(max_text_bytes)
        self.max_seconds = None if max_seconds is None else read_seconds(max_seconds, least=0)
        self.batch_bytes = max(read_bytes(batch_bytes), 1)
        self.progress = progress
        self.stamps: dict[str, tuple[int, int]] = {}
        """Sizes and times of files that need not be reopened (while following a job)."""

    def run(self, each: Any = None) -> Scan:
        """Runs the scan; `each`, if given, is called with every part instead of storing it."""
        # Creates the dataset first: if it lies below the paths, every scan sees it.
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

    def require_paths(self) -> None:
        """Raises `FileNotFoundError` if none of the paths exists; stores are not asked.

        A dataset would then lose the rows of all files.
        """
        known = (path for path in self.paths if "://" in path or os.path.lexists(path))
        if self.paths and next(known, None) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.paths[0])

    def _dataset(self) -> Dataset | None:
        if self.out is None:
            return None
        from hlofast._scan.dataset import Dataset

        chip = self.device if isinstance(self.device, str | None) else repr(self.device._parts())
        place = None if self.mesh is None else str(self.mesh)
        if self.mesh is not None and (self.mesh.hosts, self.mesh.slices) != (None, None):
            place = repr(self.mesh)  # `str` would show the axes only.
        options = {
            "hlofast": _core._version,
            "tables": self.tables,
            "device": chip,
            "mesh": place,
            **{name: value for name, value in self.names.items() if value},
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
        """Scans the files of `survey`, into `dataset` if there is one."""
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
        scan.given_mesh = self.mesh
        chips, places = self._devices(survey, scan)
        options: dict[str, Any] = {
            "tables": self.tables,
            "chips": chips,
            "devices": places,
            "mesh": self.mesh,
            **self.names,
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
            while not data.is_done:
                # Interrupts are handled in between. No part outlives its turn: the memory of its
                # rows is for the next files.
                part = data.next(_PATIENCE)
                bar.show(*data.progress())
                if part is not None:
                    scan._take(part)
                    take(part)
                del part
            if dataset is not None:
                dataset.put_programs(survey.programs(self._figures(scan, survey)))
        except (KeyboardInterrupt, WorkerError):
            # Keeps finished files, so that the next scan continues from here.
            if dataset is not None:
                dataset.recover()
                dataset.add(data.stop())
                dataset.put_programs(survey.programs(self._figures(scan, survey)))
            raise
        finally:
            data.stop()
            if files is not None:
                files.close()  # Clears the bar before waiting for threads.
            bar.close()
        return scan

    def _figures(self, scan: Scan, survey: SurveyData) -> ScanTable | None:
        """The rows of `modules` that the table of programs needs."""
        if "modules" not in self.tables:
            return None
        columns = [field.name for field in _core._scan_fields("programs")]
        canonical = set(Table(survey.programs().columns()).values("canonical"))

        def counts(part: dict[str, list[Any]], row: int) -> bool:
            return bool(part["label"][row]) or part["path"][row] in canonical

        return scan._stored().rows("modules", ["path", "label", "program", *columns], counts)

    def trust(self, scan: Scan, begin: float) -> None:
        """Treats the files of `scan` as unchanged while their size and time stay the same.

        Files written shortly before the scan began (`begin`, in seconds since 1970) are excluded:
        they may have been rewritten since with the same time.
        """
        latest = int((begin - _SETTLED) * 1e9)
        stamps = [] if scan._survey is None else scan._survey.stamps()
        self.stamps = {path: stamp for path, stamp in stamps if 0 < stamp[1] < latest}

    def _devices(self, survey: SurveyData, scan: Scan) -> tuple[list[Any], list[int | None]]:
        """The chips to time for, and the index of each program's chip."""
        targets = survey.targets()
        if self.device is None:
            return [], []
        if self.device != "auto":
            from hlofast import devices

            scan.given_device = given = devices.get(self.device)
            return [given._parts()], [0] * len(targets)
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
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _to_read(dataset: Dataset) -> ReadFolder | RemoteFolder:
    """A folder to read a dataset from, independent of the folder being written."""
    from hlofast._scan.folder import LocalFolder
    from hlofast._scan.stored import ReadFolder

    folder = dataset.folder
    return ReadFolder(folder.path) if isinstance(folder, LocalFolder) else folder.again()
