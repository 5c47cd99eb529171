"""`hlofast.scan`: reads dump directories into tables."""

from __future__ import annotations

import os

from hlofast._scan import formats
from hlofast._scan.result import _TABLES, TABLES, Scan
from hlofast._scan.scanner import BATCH_BYTES, MAX_BYTES, MAX_SECONDS, Scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Executor
    from os import PathLike
    from typing import Any

    from hlofast._core import Mesh
    from hlofast._scan.folder import RemoteFolder
    from hlofast._scan.tasks import Engine
    from hlofast.devices import Device

__all__ = [
    "BATCH_BYTES",
    "MAX_BYTES",
    "MAX_SECONDS",
    "TABLES",
    "_TABLES",
    "Scan",
    "Scanner",
    "formats",
    "open_dataset",
    "scan",
]


def open_dataset(
    path: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Scan:
    """Opens the dataset that a scan wrote to `path`.

    A scan may still be writing to it: each table holds the rows that the manifest names when the
    table is first read. `storage_options` are as in `scan`, for fsspec paths. Raises `ValueError`
    if the folder is not a dataset, and `OSError` if it cannot be read.
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


def scan(
    paths: str | PathLike[str] | Iterable[str | PathLike[str]],
    out: str | PathLike[str] | None = None,
    *,
    format: str = "parquet",  # noqa: A002 - the usual word
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
) -> Scan:
    """Reads all files below `paths` on several threads into tables.

    `paths` are files and folders. With `out`, the rows are written to a dataset: one folder
    `table=NAME` per table, with files in `format` (parquet, jsonl or csv). A dataset written with
    the same options is updated: only new and changed files are read, and the rows of deleted files
    are removed. Without `out`, all rows stay in memory.

    `tables` selects from modules, computations, instructions, collectives, matmuls, buffers (live
    at the peak), remat and lint; the default is all except instructions. `device` is the chip to
    time modules for: "auto" for the chip that a dump names, None for no times. `mesh` applies to
    all modules instead of the mesh in each text; without `mesh`, a text without axis names takes
    the names from the module before optimisation, as with `load`, if that module is also below
    `paths`. `workers` is the number of threads, by default one per processor. `libraries`, `frame`
    and `merge_layers` select source lines and scopes, as in `hlofast.Context`.

    With `executor` (one of `concurrent.futures`, any object with the same `submit`, or an
    `hlofast.ray.Cluster`), tasks of `workers` threads each (default 1) read the files there, under
    the same paths. The result is the same. Raises `WorkerError` if a task or its process fails; a
    further scan completes `out`.

    One file never stops the scan: a file fails, with its reason, if it is larger than `max_bytes`,
    holds more than `max_text_bytes`, or takes longer than `max_seconds`; these limits also take
    texts such as `"1GiB"` and `"5min"`. `progress` shows a bar on standard error if that is a
    terminal.

    `paths` and `out` may be fsspec paths (`s3://…`, `gs://…`), which need the extra `remote`;
    `storage_options`, such as credentials, are passed to its file systems. Files that a server
    refuses become rows of `files`, like all files that cannot be read.

    Raises `ValueError` for invalid options and for an `out` that is not a dataset, and `OSError` if
    `out` cannot be written, or is given and none of `paths` exists.
    """
    scanner = Scanner(
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
        libraries=libraries,
        frame=frame,
        merge_layers=merge_layers,
    )
    if out is not None:
        scanner.require_paths()
    return scanner.run()
