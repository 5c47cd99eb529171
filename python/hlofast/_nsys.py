"""Archives and folders of nsys-jax: the device time of every thunk, as a profile."""

from __future__ import annotations

import os
import re

from hlofast import _core
from hlofast._extras import library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

_TRACE = re.compile(r"nvtx_gpu_proj_trace|(^|/)trace\.parquet$")
"""Files of `nsys stats` and nsys-jax with the device time of each NVTX range."""
_MODULE = re.compile(r"TSL:XlaModule:#(?:.*,)?hlo_module=([^,#]*)(?:,program_id=(\d+))?.*#", re.S)
_THUNK = re.compile(r"TSL:Thunk:#(?:.*,)?hlo_op=([^,#]*).*#", re.S)
_NEEDED = ("Name", "Projected Start", "Projected Duration", "RangeId", "ParentId")
_READ = (*_NEEDED, "Rank")
_LONGEST = 1 << 20
"""Bytes of one line. The module `csv` refuses cells above 128 KiB."""
_DEEPEST = 64
"""Ranges are followed outwards to this depth."""
_MOST_BYTES = 1 << 30
"""Of one trace after decompression, as of other profiles."""
_MOST_ROWS = 1 << 22
"""Of all traces together. A step of a large model has some 10,000 thunks on a device."""
_LATEST = (1 << 62) // 1000
"""Nanoseconds whose picoseconds, and a length added, fit 64 bits."""


def is_archive(path: str) -> bool:
    """Whether `path` is a zip file, or a folder or file with a trace of nsys-jax."""
    if "://" in path:
        return False
    if os.path.isdir(path):
        return bool(members_of_folder(path))
    if _is_trace(path):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False  # Whoever opens it next says why.


_FORMATS = (".parquet", ".csv", ".csv.xz", ".csv.gz")


def members_of_folder(path: str) -> list[str]:
    """Returns the traces below `path`, at most two folders down."""
    found = []
    for folder, folders, files in os.walk(path):
        if folder.count(os.sep) - path.rstrip(os.sep).count(os.sep) >= 2:
            folders.clear()
        for name in files:
            full = os.path.join(folder, name)
            if _is_trace(full):
                found.append(full)
    return sorted(found)


def _is_trace(path: str) -> bool:
    """Whether a file or member has the name of a trace with device times."""
    return path.endswith(_FORMATS) and _TRACE.search(path.replace(os.sep, "/")) is not None


def read(path: str) -> _core.ProfileData:
    """Reads the profile in an archive, a folder or a file of nsys-jax.

    Ranks are hosts with one GPU each. Thunks that launch NCCL kernels are on a track of their own,
    so that they overlap computation. Raises `ValueError` if there is no trace, and
    `ModuleNotFoundError` without pyarrow if the trace is a Parquet file.
    """
    builder = _Builder()
    rows = 0
    for rank, (name, columns) in enumerate(_tables(path)):
        missing = [column for column in _NEEDED if column not in columns]
        if missing:
            raise ValueError(f"{name}: not a trace of nsys-jax: no column {missing[0]!r}")
        rows += len(columns["Name"])
        if rows > _MOST_ROWS:
            raise _too_large(path)
        builder.add(rank, columns)
    if not builder.programs or not builder.names:
        raise ValueError(f"{path}: no thunk of XLA in the trace")
    return builder.build()


def _tables(path: str) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """Yields the name and the columns of every trace."""
    if os.path.isdir(path):
        members = members_of_folder(path)
        if not members:
            raise ValueError(f"{path}: no nvtx_gpu_proj_trace of nsys-jax in the folder")
        for member in members:
            with open(member, "rb") as file:
                yield member, _columns(member, file)
        return
    if _is_trace(path):
        with open(path, "rb") as file:
            yield path, _columns(path, file)
        return
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            for member in sorted(archive.namelist()):
                if _is_trace(member):
                    with archive.open(member) as file:
                        yield f"{path}: {member}", _columns(member, file)
    # RuntimeError: the member is encrypted.
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise ValueError(f"{path}: broken archive: {error}") from None


def _columns(name: str, file: IO[bytes]) -> dict[str, list[Any]]:
    """Reads the columns of one trace that are needed, as lists.

    Raises `ValueError` for a damaged file and for one beyond `_MOST_BYTES` or `_MOST_ROWS`.
    """
    import zlib

    if name.endswith(".parquet"):
        import io

        parquet = library("pyarrow.parquet", "datasets")
        try:
            # The members of archives are not seekable at random.
            content = file.read(_MOST_BYTES + 1)
            if len(content) > _MOST_BYTES:
                raise _too_large(name)
            opened = parquet.ParquetFile(io.BytesIO(content))
            if opened.metadata.num_rows > _MOST_ROWS:
                raise _too_large(name)
            known = set(opened.schema_arrow.names)
            table = opened.read([column for column in _READ if column in known])
        except _TooLargeError:
            raise
        except (OSError, ValueError, zlib.error) as error:
            raise ValueError(f"{name}: broken Parquet file: {error}") from None
        return {column: table.column(column).to_pylist() for column in table.column_names}
    import csv
    import lzma

    from hlofast._files import decompressed

    try:
        with decompressed(file) as opened:
            reader = csv.reader(_lines(name, opened))
            heads = [head.removesuffix(" (ns)") for head in next(reader, [])]
            places = {head: at for at, head in enumerate(heads) if head in _READ}
            columns: dict[str, list[Any]] = {head: [] for head in places}
            if not all(head in places for head in _NEEDED):
                return columns
            for row in reader:
                if len(row) == len(heads):
                    for head, at in places.items():
                        columns[head].append(row[at])
                if reader.line_num > _MOST_ROWS:
                    raise _too_large(name)
    except (csv.Error, OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{name}: broken CSV file: {error}") from None
    return columns


def _lines(name: str, file: IO[bytes]) -> Iterator[str]:
    """Yields the lines of a text, within `_MOST_BYTES`."""
    left = _MOST_BYTES
    while line := file.readline(_LONGEST):
        left -= len(line)
        if left < 0:
            raise _too_large(name)
        yield line.decode("utf-8", "replace")


class _TooLargeError(ValueError):
    """A trace beyond the limits."""


def _too_large(name: str) -> _TooLargeError:
    limits = f"{_MOST_BYTES >> 30} GiB or {_MOST_ROWS:,} rows"
    return _TooLargeError(f"{name}: a trace of more than {limits}; profile fewer steps")


def _number(value: Any) -> int | None:
    """Returns a whole number; None for an empty cell, NaN, and what 64 bits cannot hold."""
    if value in (None, ""):
        return None
    try:
        try:
            number = int(value)  # As a float, large numbers of nanoseconds lose digits.
        except ValueError:
            number = int(float(value))
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << 62 else None


class _Builder:
    """Collects hosts, programs and events of all ranks."""

    def __init__(self) -> None:
        self.ranks: dict[int, int] = {}
        self.programs: dict[tuple[str, int | None], int] = {}
        self.names: dict[str, int] = {}
        self.launches: list[tuple[int, int, int, int]] = []
        self.events: tuple[list[int], ...] = ([], [], [], [], [], [])

    def add(self, rank: int, columns: dict[str, list[Any]]) -> None:
        """Adds the ranges of one trace, which may hold several ranks."""
        names = columns["Name"]
        ranks = columns.get("Rank", [rank] * len(names))
        starts, lengths, ids, parents = (
            [_number(value) for value in columns[name]] for name in _NEEDED[1:]
        )
        # Times since 1970 are counted from the first, as their picoseconds would not fit 64 bits.
        known = [start for start in starts if start is not None]
        base = min(known) if max(known, default=0) > _LATEST else 0
        # By rank and range: the parent, and the program if the range is one.
        around: dict[tuple[int, int], tuple[int | None, int | None]] = {}
        with_nccl: set[tuple[int, int]] = set()
        thunks: list[tuple[int, int, str]] = []
        for at, name in enumerate(names):
            device = self.ranks.setdefault(_number(ranks[at]) or 0, len(self.ranks))
            start, length, own, parent = starts[at], lengths[at], ids[at], parents[at]
            if own is None or start is None or length is None or not isinstance(name, str):
                continue
            starts[at] = start = start - base
            if abs(start) > _LATEST or not 0 <= length <= _LATEST:
                continue
            program = None
            # The patterns take quadratic time on a long name that does not end as they do.
            is_range = name.endswith("#")
            if is_range and (found := _MODULE.fullmatch(name)):
                key = found[1], _number(found[2])
                program = self.programs.setdefault(key, len(self.programs))
                self.launches.append((device, program, start * 1000, length * 1000))
            elif is_range and (found := _THUNK.fullmatch(name)):
                thunks.append((at, device, found[1]))
            elif name.startswith("NCCL:") and parent is not None:
                with_nccl.add((device, parent))
            around[device, own] = parent, program
        for at, device, op in thunks:
            start, length, own = starts[at], lengths[at], ids[at]
            assert start is not None
            assert length is not None
            assert own is not None
            number = self.names.setdefault(op, len(self.names))
            track = 2 * device + ((device, own) in with_nccl)
            program = _program_of(around, device, parents[at])
            row = (track, -1 if program is None else program, number, number)
            for column, value in zip(self.events, (*row, start * 1000, length * 1000), strict=True):
                column.append(value)

    def build(self) -> _core.ProfileData:
        """Returns the profile."""
        from array import array

        hosts = [f"rank {rank}" for rank in self.ranks]
        devices = [(at, f"GPU of rank {rank}", "gpu") for rank, at in self.ranks.items()]
        tracks = []
        for at in self.ranks.values():
            tracks += [(at, "thunks", "ops"), (at, "NCCL", "stream")]
        return _core._profile_of_columns(
            hosts,
            devices,
            tracks,
            list(self.programs),
            list(self.names),
            [array("q", column) for column in self.events],
            self.launches,
        )


def _program_of(
    around: dict[tuple[int, int], tuple[int | None, int | None]], device: int, parent: int | None
) -> int | None:
    """Returns the program of the innermost module range around a thunk."""
    for _ in range(_DEEPEST):
        if parent is None:
            return None
        parent, program = around.get((device, parent), (None, None))
        if program is not None:
            return program
    return None
