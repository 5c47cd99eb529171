"""A scan in tasks for other threads, processes or machines, with results in order.

A task is a group of files, in the order of the scan, with everything needed to read them: the
programs in the whole listing to which the files belong, the files beside them, and their devices.
Tasks and results can be pickled. Results are processed in the same way as the results of this
process's threads.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hlofast import _core
from hlofast.errors import WorkerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor, Future
    from typing import Any, Protocol

    from hlofast._core import ScanPart, SurveyData

    class Engine(Protocol):
        """Executes tasks."""

        @property
        def at_once(self) -> int:
            """Number of tasks that the engine executes concurrently."""

        def results(self, tasks: Iterator[Task]) -> Iterator[Result | None]:
            """Yields the results of tasks in order; None from time to time while waiting.

            Raises `WorkerError` if a task fails.
            """


_SMALLEST = 1 << 20
_MOST_FILES = 512
_UNKNOWN = 32
_PATIENCE = 0.1


class Task(NamedTuple):
    """A group of files of a scan."""

    survey: Any
    """The files, and facts about the files beside them."""
    options: dict[str, Any]
    """Options of the scan."""
    read: Callable[[str, int], bytes] | None
    """Reads the bytes of a file; None for files on disk."""

    @property
    def title(self) -> str:
        """The task's name in messages."""
        files, _, _, own = self.survey
        return f"{files[0][0]} and {own - 1} more" if own > 1 else str(files[0][0])


class Result(NamedTuple):
    """The result of a task."""

    parts: list[ScanPart]
    files: int
    bytes: int
    """Bytes of the files that were done."""


def run(task: Task) -> Result:
    """Executes a task."""
    data = _core._survey_part(task.survey, task.read).scan(**task.options)
    parts = []
    while not data.is_done:
        part = data.next(_PATIENCE)
        if part is not None:
            parts.append(part)
    return Result(parts, *data.progress())


def split(
    survey: SurveyData,
    options: dict[str, Any],
    at_once: int,
    read: Callable[[str, int], bytes] | None = None,
) -> Iterator[Task]:
    """Yields the tasks of a scan: enough for all workers, none larger than a part of a dataset."""
    size = min(options["batch_bytes"], max(survey.bytes // (4 * at_once), _SMALLEST))
    stamps = survey.stamps()
    first = filled = 0
    for last, (_, (own, _)) in enumerate(stamps, 1):
        filled += own
        if filled >= size or last - first >= _MOST_FILES or last == len(stamps):
            part, programs = survey.part(first, last)
            paths = [path for path, _ in stamps[first:last]]
            yield Task(part, options | _own(options, programs, paths), read)
            first, filled = last, 0


def _own(options: dict[str, Any], programs: list[int], paths: list[str]) -> dict[str, Any]:
    """The options by program and by path, restricted to these programs and paths."""
    devices = options["devices"]
    own: dict[str, Any] = {"devices": [devices[number] for number in programs] if devices else []}
    for name in ("known", "stamps"):
        values = options[name]
        own[name] = {path: values[path] for path in paths if path in values}
    return own


def engine(executor: Any) -> Engine:
    """Returns an `Engine` for an `Executor` or an object that is an engine."""
    if hasattr(executor, "results"):
        own: Engine = executor
        return own
    if not hasattr(executor, "submit"):
        raise TypeError(
            f"an executor needs a method submit, which {type(executor).__name__} does not have"
        )
    return Executed(executor)


class Executed:
    """Executes tasks with an `Executor`."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        # Not all executors expose their number of workers.
        self.at_once = int(getattr(executor, "_max_workers", None) or _UNKNOWN)

    def results(self, tasks: Iterator[Task]) -> Iterator[Result | None]:
        """Yields the results of tasks in order; None from time to time while waiting."""
        waiting: deque[tuple[Task, Future[Result]]] = deque()
        try:
            while True:
                while len(waiting) < 2 * self.at_once and (task := next(tasks, None)) is not None:
                    waiting.append((task, self._submit(task)))
                if not waiting:
                    return
                task, future = waiting[0]
                is_done = future.done()
                try:
                    result = future.result(_PATIENCE)
                except TimeoutError as error:
                    if is_done:  # The task itself raised the error.
                        raise failed(task.title, error) from error
                    yield None
                    continue
                except Exception as error:
                    raise failed(task.title, error) from error
                waiting.popleft()
                yield result
        finally:
            for _, future in waiting:
                future.cancel()

    def _submit(self, task: Task) -> Future[Result]:
        try:
            return self.executor.submit(run, task)
        except Exception as error:
            raise failed(task.title, error) from error


def failed(files: str, error: BaseException) -> WorkerError:
    """The error for a task that failed."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return WorkerError(f"a worker could not read {files}: {said}")


class Tasks:
    """A running scan in tasks, with the interface of `ScanData`."""

    def __init__(self, results: Iterator[Result | None], batch_bytes: int) -> None:
        self.is_done = False
        self._results = results
        self._batch_bytes = batch_bytes
        self._ready: list[ScanPart] = []
        self._files = self._bytes = 0

    def next(self, seconds: float) -> ScanPart | None:  # noqa: ARG002 - `results` decides how long to wait
        """Returns the next part; None if it is not ready."""
        for result in self._results:
            if result is None:
                return None
            self._files += result.files
            self._bytes += result.bytes
            self._ready += result.parts
            if sum(part.size for part in self._ready) >= self._batch_bytes:
                return self._joined()
        self.is_done = True
        return self._joined()

    def stop(self) -> ScanPart:
        """Ends the scan and returns the finished rows as a part."""
        self.is_done = True
        close = getattr(self._results, "close", None)
        if close is not None:
            close()
        return self._joined()

    def progress(self) -> tuple[int, int]:
        """Number of files that are done, and their bytes."""
        return self._files, self._bytes

    def _joined(self) -> ScanPart:
        """Joins the finished parts into one."""
        parts, self._ready = self._ready, []
        if len(parts) == 1:
            return parts[0]
        tables: dict[str, list[_core.ScanTable]] = {}
        for part in parts:
            for name in part.tables():
                tables.setdefault(name, []).append(part.table(name))
        return _core._scan_part(
            [state for part in parts for state in part.states()],
            [path for part in parts for path in part.unchanged()],
            [(name, _core._concatenated(own)) for name, own in tables.items()],
            sum(part.size for part in parts),
        )
