"""`hlofast.scan`: everything in dump directories as tables."""

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
    instead of the one each speaks of. Without it axes have the names in each text alone: those of
    the module before optimisation, which `load` finds beside a dump, are not looked up.
    `workers` are threads, one per processor if None.

    With `executor`, one of `concurrent.futures` or anything with its `submit`, or an
    `hlofast.ray.Cluster`, the files are read there, in tasks of `workers` threads each (one if
    None) that have to find the files under the same paths. What comes of it is the same. A
    `WorkerError` if a task fails, as with its process; scanned again, `out` is completed.

    No file stops the others: one of more than `max_bytes`, with more than `max_text_bytes` in it or
    that takes longer than `max_seconds` fails, with its reason. Texts like `"1GiB"` and `"5min"` do
    for these. `progress` shows a bar on standard error if that is a terminal.

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
