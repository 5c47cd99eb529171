"""Seconds of XLA's compiler passes, as Nsight Systems records them.

XLA marks every pass, pipeline and stage of a compilation as a range of NVTX. `nsys stats --report
nvtx_pushpop_trace`, which nsys-jax runs, lists the ranges in a CSV file, by start.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False  # The command line shows histories; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NAME = "nvtx_pushpop_trace.csv"
"""What the name of the CSV file contains."""
_MOST_ROWS = 100_000_000
_MOST_KEYS = 200_000
"""Distinct passes of a file; a compilation of today has a few hundred."""
_MOST_DEPTH = 1_000
_COLUMNS = ("Name", "Start (ns)", "Duration (ns)")
_RANGE = re.compile(r"(?:TSL:)?(Xla\w+):#([^#]*)#")

Key = tuple[str, str, str]
"""Kind of range (`XlaPass`), the pipeline around it, its own name; empty for what it lacks."""


class PassTime:
    """The runs of one pass in one pipeline."""

    __slots__ = ("runs", "seconds", "total_seconds")

    def __init__(self, runs: int = 0, seconds: float = 0.0, total_seconds: float = 0.0) -> None:
        self.runs = runs
        """How often it ran."""
        self.seconds = seconds
        """Seconds of all runs, without the ranges inside them."""
        self.total_seconds = total_seconds
        """Seconds of all runs."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PassTime):
            return NotImplemented
        own = (self.runs, self.seconds, self.total_seconds)
        return own == (other.runs, other.seconds, other.total_seconds)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PassTime({self.runs}, {self.seconds!r}, {self.total_seconds!r})"


class PassTimes:
    """Seconds of passes by module; made by `read` and `pass_seconds`."""

    __slots__ = ("_times", "path")

    def __init__(
        self, times: Mapping[tuple[str, int | None], Mapping[Key, PassTime]], path: str | None
    ) -> None:
        self._times = {module: dict(passes) for module, passes in times.items()}
        self.path = path
        """The file that they come from."""

    def __reduce__(self) -> tuple[object, ...]:
        return PassTimes, (self._times, self.path)

    @property
    def modules(self) -> list[tuple[str, int | None]]:
        """Name and program number of every module that was compiled; None without a number."""
        return list(self._times)

    def of(self, name: str, number: int | None) -> dict[Key, PassTime]:
        """Returns the times of a module; those of its program `number` if the file has them.

        Ranges without a number count for the module if it was compiled once.
        """
        named = {number: passes for (own, number), passes in self._times.items() if own == name}
        numbers = [own for own in named if own is not None]
        chosen: list[int | None] = [*numbers] if len(numbers) <= 1 else []
        if number in numbers:
            chosen = [number]
        elif not chosen and numbers:
            return {}
        if len(numbers) <= 1 and None in named:
            chosen.append(None)
        sums: dict[Key, PassTime] = {}
        for passes in (named[own] for own in chosen):
            for key, time in passes.items():
                known = sums.setdefault(key, PassTime())
                known.runs += time.runs
                known.seconds += time.seconds
                known.total_seconds += time.total_seconds
        return sums


def pass_seconds(
    events: Iterable[tuple[str, int, int, object]],
) -> dict[tuple[str, int | None], dict[Key, PassTime]]:
    """Sums the ranges of passes: by module and program number, then by kind, pipeline and name.

    An event is a name such as `TSL:XlaPass:#name=dce,module=jit_step,program_id=7#`, its start and
    duration in nanoseconds, and its thread. Events of one thread come in the order of their starts
    and nest. Other names are passed over. Raises `ValueError` for events that do not nest, and for
    more distinct passes than a compiler has.
    """
    times: dict[tuple[str, int | None], dict[Key, PassTime]] = {}
    open_ranges: dict[object, list[tuple[int, PassTime, str]]] = {}
    count = 0
    for name, start, duration, thread in events:
        match = _RANGE.match(name)
        if match is None:
            continue
        kind, fields = match.group(1), dict(_fields(match.group(2)))
        stack = open_ranges.setdefault(thread, [])
        while stack and stack[-1][0] <= start:
            stack.pop()
        if len(stack) > _MOST_DEPTH or len(open_ranges) > _MOST_KEYS:
            raise ValueError(f"ranges of passes do not nest, at {start} ns")
        own = fields.get("name", "")
        number = fields.get("program_id", "")
        numbered = int(number) if number.isdecimal() and len(number) < 12 else None
        pipeline = stack[-1][2] if stack else ""
        is_pipeline = kind == "XlaPassPipeline"
        passes = times.setdefault((fields.get("module", ""), numbered), {})
        # The time of a pipeline itself belongs to the pipeline.
        key = (kind, own if is_pipeline else pipeline, "" if is_pipeline else own)
        if key not in passes:
            count += 1
            if count > _MOST_KEYS:
                raise ValueError(f"more than {_MOST_KEYS:,} distinct passes")
            passes[key] = PassTime()
        time = passes[key]
        seconds = duration * 1e-9
        time.runs += 1
        time.seconds += seconds
        time.total_seconds += seconds
        if stack:
            stack[-1][1].seconds -= seconds
        stack.append((start + duration, time, own if is_pipeline else pipeline))
    return times


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for field in text.split(","):
        name, _, value = field.partition("=")
        yield name.strip(), value.strip()


def read(path: str | os.PathLike[str]) -> PassTimes:
    """Returns the pass times in a file, or in the one beside or in a folder.

    Files are CSV, plain or compressed with gzip or xz, with the columns `Name`, `Start (ns)` and
    `Duration (ns)`. They are read row by row. Raises `OSError` and `ValueError`.
    """
    import csv
    import zlib
    from io import TextIOWrapper
    from lzma import LZMAError

    from hlofast._files import decompressing

    name = os.fspath(path)
    if os.path.isdir(name):
        found = beside(name)
        if found is None:
            raise ValueError(f"{name}: no pass times here: no file named *{NAME}*")
        name = found
    try:
        with decompressing(name) as file, TextIOWrapper(file, "utf-8", "replace", "\n") as text:
            rows = csv.reader(text, strict=False)
            return PassTimes(pass_seconds(_events(rows)), name)
    except (EOFError, LZMAError, zlib.error) as error:
        raise ValueError(f"{name}: cannot be decompressed: {error}") from None
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None


def _events(rows: Iterator[list[str]]) -> Iterator[tuple[str, int, int, object]]:
    header = next(rows, [])
    missing = [column for column in _COLUMNS if column not in header]
    if missing:
        raise ValueError(f"no column {missing[0]!r}; {NAME} of nsys-jax has it")
    name, start, duration = (header.index(column) for column in _COLUMNS)
    thread = [header.index(column) for column in ("PID", "TID") if column in header]
    width = max(name, start, duration, *thread, 0)
    for number, row in enumerate(rows, 2):
        if number > _MOST_ROWS:
            raise ValueError(f"more than {_MOST_ROWS:,} rows")
        if not row:
            continue
        if len(row) <= width:
            raise ValueError(f"line {number}: {len(row)} columns instead of {len(header)}")
        yield (
            row[name],
            _nanoseconds(row[start], number),
            _nanoseconds(row[duration], number),
            tuple(row[column] for column in thread),
        )


def _nanoseconds(text: str, number: int) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise ValueError(f"line {number}: not a time in nanoseconds: {text[:40]!r}")
    return int(text)


def beside(folder: str) -> str | None:
    """Returns the file with pass times in a dump directory or in the folder around it.

    In an unpacked nsys-jax archive, `dump` lies beside the file.
    """
    if "://" in folder:
        return None
    around = os.path.join(folder, os.pardir)
    for place in (folder, around):
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        for name in names:
            if NAME in name:
                return os.path.normpath(os.path.join(place, name))
    return None
