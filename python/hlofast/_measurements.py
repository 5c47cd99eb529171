"""`Measurements`: measured times of collectives, from CSV, JSON or Alpa's pickles."""

from __future__ import annotations

import bisect
from _collections_abc import Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any

_FIELDS = ("kind", "group_size", "bytes", "seconds")
KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast", "send-recv",
)  # fmt: skip
_CLASSES = {
    ("alpa.mesh_profiling", "ProfilingResultDatabase"),
    ("alpa.mesh_profiling", "MeshProfilingResult"),
    ("alpa.pipeline_parallel.stage_profiling", "StageProfileResult"),
    ("alpa.pipeline_parallel.stage_profiling", "ModuleProfileResult"),
}
_ALPA = {
    "all_gather_cost_dict": "all-gather",
    "all_reduce_cost_dict": "all-reduce",
    "all_to_all_cost_dict": "all-to-all",
    "reduce_scatter_cost_dict": "reduce-scatter",
}
_MOST_BYTES = 256 << 20
"""Limit on the size of a file: enough for millions of measurements.

A larger file is probably named by mistake.
"""
_WIDTHS = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8, "s32": 4, "s8": 1}


class Measurements:
    """Measured seconds of collectives by kind, group size and bytes, interpolated linearly.

    Bytes are the bytes of the whole array: the result of an all-gather, the operand of other kinds.
    """

    __slots__ = ("_tables",)

    def __init__(self, rows: Iterable[tuple[str, int, float, float]]) -> None:
        """Each item of `rows` is kind, group size, bytes, seconds."""
        points: dict[tuple[str, int], dict[float, list[float]]] = {}
        for kind, group_size, size, seconds in rows:
            if kind not in KINDS:
                raise ValueError(f"unknown kind {kind!r}; known kinds: {', '.join(KINDS)}")
            if not (group_size >= 1 and 0 <= size < float("inf") and 0 <= seconds < float("inf")):
                text = "bytes and seconds must be finite and not negative, group_size positive"
                raise ValueError(f"{kind}: {size!r} bytes in {seconds!r} s: {text}")
            points.setdefault((kind, group_size), {}).setdefault(size, []).append(seconds)
        self._tables = {
            key: sorted((size, sum(times) / len(times)) for size, times in sizes.items())
            for key, sizes in points.items()
        }

    def seconds(self, kind: str, payload: float, group_size: int) -> float | None:
        """Seconds of a collective; None if its kind and group size were not measured.

        Beyond the largest size, the last segment is extrapolated; below the smallest size, its time
        is used.
        """
        table = self._tables.get((kind, group_size))
        if table is None:
            return None
        at = bisect.bisect_left(table, (payload, 0.0))
        if at < len(table) and table[at][0] == payload:
            return table[at][1]
        if at == 0:
            return table[0][1]
        if len(table) == 1:
            return table[0][1] * payload / table[0][0] if table[0][0] else table[0][1]
        first, second = (table[-2], table[-1]) if at == len(table) else (table[at - 1], table[at])
        slope = (second[1] - first[1]) / (second[0] - first[0])
        return max(first[1] + slope * (payload - first[0]), 0.0)

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        """The measured kinds and group sizes."""
        return tuple(self._tables)

    def __repr__(self) -> str:
        count = sum(len(table) for table in self._tables.values())
        return f"<Measurements: {count} of {len(self._tables)} kinds and group sizes>"


def read_measurements(path: str | PathLike[str]) -> Measurements:
    """Reads measurements of collectives from a file; the extension gives the format.

    `.csv`: columns `kind,group_size,bytes,seconds`, named in the first line, in any order; other
    columns are ignored. `.json`: a list of objects with these keys. `.pkl` or `.pickle`: Alpa's
    `ProfilingResultDatabase` or `MeshProfilingResult`, read without running any code in it: only
    Alpa's four classes, tuples, lists, dictionaries, numbers and strings are accepted. Raises
    `ValueError` for other content.
    """
    name = str(path)
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not loaded, for a quick start.
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{name}: larger than {_MOST_BYTES:,} bytes, the limit for measurements")
    try:
        if name.endswith(".csv"):
            return Measurements(_rows_of_csv(content))
        if name.endswith(".json"):
            return Measurements(_rows_of_json(content))
        if name.endswith((".pkl", ".pickle")):
            return Measurements(_rows_of_alpa(_unpickled(content)))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    except RecursionError:
        raise ValueError(f"{name}: nested too deeply") from None
    raise ValueError(f"{name}: the file must be .csv, .json or Alpa's .pkl")


def _row(where: str, row: dict[str, Any]) -> tuple[str, int, float, float]:
    missing = [field for field in _FIELDS if row.get(field) is None]
    if missing:
        raise ValueError(f"{where}: missing {', '.join(missing)}")
    try:
        return str(row["kind"]), int(row["group_size"]), float(row["bytes"]), float(row["seconds"])
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{where}: group_size, bytes and seconds must be numbers") from None


def _rows_of_csv(content: bytes) -> list[tuple[str, int, float, float]]:
    import csv

    reader = csv.DictReader(content.decode("utf-8-sig").splitlines())
    try:
        return [_row(f"line {reader.line_num}", row) for row in reader]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None


def _rows_of_json(content: bytes) -> list[tuple[str, int, float, float]]:
    import json

    rows = json.loads(content)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("measurements must be a list of objects")
    return [_row(f"entry {number}", row) for number, row in enumerate(rows)]


class _Record:
    """The state of an object of one of Alpa's classes."""

    def __init__(self, *_: object) -> None:
        self.state: dict[str, Any] = {}

    def __new__(cls, *_: object) -> _Record:
        record = super().__new__(cls)
        record.state = {}
        return record

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise ValueError("the state of Alpa's records must be a dictionary")
        self.state = state


def _unpickled(content: bytes) -> object:
    import io
    import pickle

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, qualified: str) -> Any:
            if (module, qualified) in _CLASSES:
                return _Record
            raise ValueError(f"{module}.{qualified} is not allowed")

        def persistent_load(self, _: object) -> Any:
            raise ValueError("persistent identifiers are not allowed")

    try:
        return Reader(io.BytesIO(content)).load()
    except ValueError:
        raise
    except Exception as error:  # Broken pickles raise exceptions of any kind.
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _rows_of_alpa(database: object) -> list[tuple[str, int, float, float]]:
    """Rows of a database (whose entries are results by cluster and shape) or of one result.

    Alpa keys measurements by device groups and element type, and stores sizes in elements.
    """
    rows: list[tuple[str, int, float, float]] = []
    pending, depth = [database], 0
    while pending and depth < 100_000:
        depth += 1
        thing = pending.pop()
        state = thing.state if isinstance(thing, _Record) else thing
        if not isinstance(state, dict):
            continue
        for field, kind in _ALPA.items():
            for key, points in _items(state.get(field)):
                groups, element_type = key if isinstance(key, tuple) and len(key) == 2 else ((), "")
                width = _WIDTHS.get(str(element_type))
                first = groups[0] if isinstance(groups, (tuple, list)) and groups else ()
                if width is None or not isinstance(first, (tuple, list)) or not first:
                    continue
                try:
                    for elements, seconds in points:
                        rows.append((kind, len(first), float(elements) * width, float(seconds)))
                except (TypeError, ValueError, OverflowError):
                    raise ValueError(f"{field} must hold pairs of elements and seconds") from None
        pending.extend(value for value in state.values() if isinstance(value, (_Record, dict)))
    if not rows:
        raise ValueError("the file has no measurements of collectives")
    return rows


def _items(table: object) -> list[tuple[Any, Any]]:
    if not isinstance(table, dict):
        return []
    return [(key, points) for key, points in table.items() if isinstance(points, (list, tuple))]
