"""Scans on Ray, and HLO tables in Ray Data pipelines.

    with hlofast.ray.Cluster("auto") as cluster:
        hlofast.scan("/shared/dumps", "tables", executor=cluster)

    files = ray.data.read_binary_files("s3://bucket/dumps", include_paths=True)
    hlofast.ray.analyse(files, "collectives").write_parquet("s3://bucket/collectives")

`read_binary_files` decompresses files by their extension, and a damaged file ends the pipeline; a
scan records the failure in a row and continues. Both need `ray[data]`, the extra `ray`.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from importlib import import_module
from importlib.util import find_spec

from hlofast import _core, _scan
from hlofast.errors import WorkerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from hlofast._core import Mesh, SurveyData
    from hlofast._scan.tasks import Result, Task
    from hlofast.devices import Device

__all__ = ["Cluster", "Rows", "analyse"]

_RETRIES = 3
"""Retries of a task whose worker died."""
_PATIENCE = 0.1
"""Seconds between two chances for the caller to act, such as to show progress."""


class Cluster:
    """A Ray cluster as `executor` of `hlofast.scan`.

    `address` is the address of a running cluster, or "auto" for the cluster of this machine. By
    default, RAY_ADDRESS is used, or else a cluster is started on this machine. If the process is
    already connected, that connection is used. `options` are arguments of `ray.init`.

    Tasks of the cluster read the files; all nodes need the files under the same paths and the same
    version of hlofast. A task whose worker dies is retried. `close`, or the end of the `with`
    block, disconnects and stops a cluster that was started here.

    Raises `ModuleNotFoundError` if Ray is not installed.
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        spec = find_spec("ray")
        # Ray leaves a folder named `ray` in temporary folders, and Python could import that folder
        # by mistake.
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(
                "Ray is not installed: pip install 'hlofast[ray]'", name="ray"
            )
        self.address = address
        self.options = options
        self._is_ours = False

    @property
    def at_once(self) -> int:
        """Number of processors of the cluster."""
        return max(int(self._connected().cluster_resources().get("CPU", 1)), 1)

    def results(self, tasks: Iterator[Task]) -> Iterator[Result | None]:
        """Yields the results of tasks in order; raises `WorkerError` if a task fails."""
        from hlofast._scan.tasks import failed

        ray = self._connected()
        most = 2 * self.at_once
        waiting: deque[Any] = deque()
        run = None
        try:
            while True:
                while len(waiting) < most and (task := next(tasks, None)) is not None:
                    if run is None:
                        how = {"num_cpus": task.options["workers"], "max_retries": _RETRIES}
                        run = ray.remote(**how)(_run)
                    waiting.append(run.remote(pickle.dumps(task)))
                if not waiting:
                    return
                ready, _ = ray.wait([waiting[0]], timeout=_PATIENCE)
                if not ready:
                    yield None
                    continue
                result = pickle.loads(ray.get(waiting.popleft()))
                if isinstance(result, WorkerError):
                    raise result
                yield result
        except ray.exceptions.RayError as error:
            raise failed("some of the files", error) from error
        finally:
            # A scan that ends early, by an error or Ctrl-C, leaves no work on the cluster. Where
            # `close` disconnects, the cluster itself ends the tasks; Ray 2.60 aborts the process
            # if a cancelled task answers during a shutdown.
            if not self._is_ours:
                for reference in waiting:
                    ray.cancel(reference)

    def _connected(self) -> Any:
        """Connects to Ray if necessary; returns the module `ray`."""
        # Disables usage statistics; Ray reads the variable once, when it is imported.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray = import_module("ray")
        if not ray.is_initialized():
            address = self.address or os.environ.get("RAY_ADDRESS") or "local"
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
            if address == "local":
                options["include_dashboard"] = False
            try:
                ray.init(address, **(options | self.options))
            except (OSError, RuntimeError) as error:
                raise WorkerError(f"cannot connect to Ray at {address}: {error}") from error
            self._is_ours = True
        return ray

    def close(self) -> None:
        """Disconnects from Ray if this object connected; stops a cluster that it started."""
        if self._is_ours:
            import_module("ray").shutdown()
            self._is_ours = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _run(held: bytes) -> bytes:
    """Runs a pickled task; returns its pickled result or `WorkerError`."""
    from hlofast._scan.tasks import failed, run

    files = "some of the files"
    try:
        task = pickle.loads(held)
        files = task.title
        return pickle.dumps(run(task))
    except Exception as error:
        # Ray would send the whole traceback.
        return pickle.dumps(failed(files, error))


class Rows:
    """A function for `map_batches` that turns the bytes of files into rows of one table.

    It takes a `pyarrow.Table` with the columns `bytes` and `path`, as `ray.data.read_binary_files`
    returns with `include_paths=True`, and returns the rows of `table`: one of the tables of
    `hlofast.scan`, or "files", which has one row per file with the reason if it could not be read.
    Programs are named by their paths below `root`. Each file is read alone, without the buffer
    assignments, device descriptions and modules before optimisation beside it; `device` is the chip
    to time for. The other options are as in `hlofast.scan`.
    """

    def __init__(
        self,
        table: str = "modules",
        *,
        root: str = "",
        device: str | Device | None = None,
        mesh: Mesh | str | Mapping[str, int] | None = None,
        max_bytes: int | str = _scan.MAX_BYTES,
        max_text_bytes: int | str = _scan.MAX_BYTES,
        max_seconds: float | str | None = _scan.MAX_SECONDS,
        libraries: str | Iterable[str] | None = None,
        frame: str | None = None,
        merge_layers: bool = False,
    ) -> None:
        self.table = table
        self.root = root
        self._scanner = _scan.Scanner(
            (),
            tables=() if table == "files" else (table,),
            device=device,
            mesh=mesh,
            workers=1,
            max_bytes=max_bytes,
            max_text_bytes=max_text_bytes,
            max_seconds=max_seconds,
            libraries=libraries,
            frame=frame,
            merge_layers=merge_layers,
        )

    def __call__(self, batch: Any) -> Any:
        """The rows of the files in `batch`, a `pyarrow.Table`."""
        arrow = import_module("pyarrow")
        tables = []
        for path, held in zip(batch["path"].to_pylist(), batch["bytes"], strict=True):
            survey = _survey(path, held.as_py(), self.root)
            rows = self._scanner.scan(survey).to_arrow(self.table)
            if rows.num_rows:
                tables.append(rows)
        return arrow.concat_tables(tables) if tables else arrow.table({})


def _survey(path: str, data: bytes, root: str) -> SurveyData:
    """A survey of one file with these bytes."""

    def read(_: str, most: int) -> bytes:
        return data[:most]

    return _core._survey_listing([(path, len(data), 0, None)], [root], read)


def analyse(dataset: Any, table: str = "modules", **options: Any) -> Any:
    """Returns the rows of one table as a `ray.data.Dataset`.

    `dataset` has the columns `bytes` and `path`, as `ray.data.read_binary_files` returns with
    `include_paths=True`; `options` are the options of `Rows`.
    """
    return dataset.map_batches(Rows(table, **options), batch_format="pyarrow", batch_size=32)
