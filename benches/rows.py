"""The rows of the result tables: the recorded figure of each, its label and its peer.

`table.py` writes them. A row takes the first unused figure whose name begins with the row's; times
and sizes come from the details of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Details = list[dict[str, Any]]
Cell = Callable[[Details], str]

GPU = "seed_002"
"""The dump called GPU step in the tables."""
KILO, MEGA = 1e3, 1e6


@dataclass(frozen=True)
class Row:
    """A figure; without `what`, it keeps its recorded name. README.md shows rows with `front`."""

    figure: str
    what: str
    ours: Cell | None = None
    peer: Cell | None = None
    front: str = ""
    front_peer: str = ""


@dataclass(frozen=True)
class Section:
    """One recorded result. `peer` is the heading of the peer's column."""

    result: str
    title: str
    intro: str
    peer: str
    rows: tuple[Row, ...]


def digits(value: float) -> str:
    """Three significant digits."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def duration(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{digits(seconds / scale)} {unit}"
    return f"{digits(seconds * 1e9)} ns"


def size(count: float) -> str:
    scale, unit = (MEGA, "MB") if count >= MEGA else (KILO, "kB")
    return f"{digits(count / scale)} {unit}"


def _at(row: dict[str, Any], path: str) -> Any:
    """The value at `a.b`; None if the row lacks it."""
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _mean(path: str, match: dict[str, Any], *, all_but_gpu: bool) -> Callable[[Details], float]:
    """Geometric mean over the matching rows that have the value, so that ratios of means hold."""

    def mean(details: Details) -> float:
        rows = [row for row in details if all(row.get(k) == v for k, v in match.items())]
        if all_but_gpu:
            rows = [row for row in rows if row.get("text") != GPU]
        values = [value for row in rows if (value := _at(row, path)) is not None]
        return math.exp(sum(map(math.log, values)) / len(values))

    return mean


def time(path: str, scale: float = 1, *, dumps: bool = False, **match: Any) -> Cell:
    """Seconds (times `scale`) of one text, or the mean of several; `dumps` leaves out GPU step."""
    mean = _mean(path, match, all_but_gpu=dumps)
    return lambda details: duration(mean(details) * scale)


def bytes_of(path: str, *, dumps: bool = False, **match: Any) -> Cell:
    mean = _mean(path, match, all_but_gpu=dumps)
    return lambda details: size(mean(details))


def slowest(path: str, **match: Any) -> Cell:
    """Seconds of the text with the lowest ratio."""

    def cell(details: Details) -> str:
        rows = [row for row in details if all(row.get(k) == v for k, v in match.items())]
        rows = [row for row in rows if row["text"] != GPU] or rows
        return duration(_at(min(rows, key=lambda row: row["ratio"]), path))

    return cell


def speed(bytes_path: str, seconds_path: str = "") -> Cell:
    """MB/s of the first row with bytes: a recorded rate, or bytes divided by its seconds."""

    def cell(details: Details) -> str:
        row = next(row for row in details if _at(row, bytes_path) is not None)
        seconds = _at(row, seconds_path) if seconds_path else 1
        return f"{digits(_at(row, bytes_path) / seconds / MEGA)} MB/s"

    return cell


def _parse(what: str, figure: str, words: str, *, front: str = "") -> tuple[Row, Row]:
    """The figures of GPU step and of the dumps."""
    return (
        Row(
            f"{figure}, seed 002", f"{words}, GPU step",
            time("ours.best", what=what, text=GPU), time("xla.best", what=what, text=GPU),
            front, "XLA's parser",
        ),
        Row(
            f"{figure}, geometric mean", f"{words}, dumps, geometric mean",
            time("ours.best", what=what, dumps=True), time("xla.best", what=what, dumps=True),
        ),
    )  # fmt: skip


def _cost(key: str, peer: str, figure: str, words: str, *, front: str = "") -> tuple[Row, Row]:
    ms = 1e-3
    return (
        Row(
            f"cost: {figure}, seed 002", f"{words}, GPU step",
            time(f"{key}_ms", ms, text=GPU), time(f"{peer}_ms", ms, text=GPU),
            front, "XLA's HloCostAnalysis",
        ),
        Row(
            f"cost: {figure}, geometric mean", f"{words}, all texts, geometric mean",
            time(f"{key}_ms", ms), time(f"{peer}_ms", ms),
        ),
    )  # fmt: skip


def _start(figure: str, words: str, *, front: str = "") -> Row:
    bare = time("best", what="bare")
    return Row(figure, words, time("best", what=words), bare, front, "a bare Python start")


def _scan(key: str) -> Cell:
    return speed("bytes", f"seconds.{key}")


def _threads(text: str, words: str) -> Row:
    of = "giant_100000" if text == "one giant" else text
    return Row(
        f"two threads on {text}", words, time("two.best", text=of), time("one.best", text=of)
    )


_plain = _parse("plain", "parse", "parse", front="parse a 2.7 MB optimised GPU train step")
_strict = _parse(
    "strict", "strict parse, every attribute decoded", "strict parse",
    front="parse it strictly: decode and check every attribute, as XLA does",
)  # fmt: skip

SECTIONS = (
    Section(
        "parse", "Parsing",
        "One thread, compared with the parser of jaxlib on the same text. Strict parsing decodes "
        "and checks every attribute, as XLA's parser does.",
        "XLA's parser",
        (
            _plain[0],
            _plain[1],
            Row(
                "parse, slowest", "parse, the dump with the lowest ratio",
                slowest("ours.best", what="plain"), slowest("xla.best", what="plain"),
            ),
            *_parse("columns", "parse, all columns and users", "parse and derive every column"),
            *_strict,
            Row("parse, against xprof's", "parse, compared with xprof's HloGraphDb, median"),
        ),
    ),
    Section(
        "proto", "Protobufs",
        "`HloModuleProto` compared with XLA's own reader, processor time of one thread.",
        "XLA's reader",
        (
            Row(
                "read a protobuf, processor time, geometric", "read, all texts, geometric mean",
                time("ours.best"), time("xla.best"),
            ),
            Row(
                "read a protobuf, processor time, slowest", "read, the text with the lowest ratio",
                slowest("ours.best"), slowest("xla.best"),
            ),
        ),
    ),
    Section(
        "profiles", "Profiles",
        "An XSpace of 100 MB, grown from what `jax.profiler` recorded of 8 CPU devices, processor "
        "time of one thread; ProfileData gives name, times and stats of every event in Python.",
        "ProfileData",
        (
            Row("read a profile, processor time", "read into tables, rate"),
            Row(
                "read a profile, compared", "read into tables",
                time("ours.best"), time("profile_data.best"),
            ),
        ),
    ),
    Section(
        "cost", "Cost",
        "Of a parsed module, compared with `HloCostAnalysis` on XLA's parsed module; the last two "
        "rows include parsing on both sides. hlofast multiplies by trip counts; XLA does not.",
        "XLA",
        (
            *_cost(
                "count", "xla", "FLOPs, transcendentals, bytes by memory space, multiplicities",
                "FLOPs, bytes by memory space, call counts",
                front="cost of that step, parsed",
            ),
            *_cost(
                "attribute", "xla", "the same with phase, scope and source of every instruction",
                "the same with phase, scope and source",
            ),
            *_cost(
                "loads", "xla_loads", "loads + cost beside XLA's parse + cost", "parse and cost"
            ),
        ),
    ),
    Section(
        "analyses", "Other analyses",
        "Times on a parsed module; the last column compares with the time to parse its text.",
        "parse",
        (
            Row(
                "analyses: collectives + time + lint, of the time of parsing, seed 002",
                "collectives, step time and lint, GPU step",
                time("step_ms", 1e-3, text=GPU), time("parse_ms", 1e-3, text=GPU),
            ),
            Row(
                "analyses: collectives + time + lint, of the time of parsing, geometric",
                "collectives, step time and lint, all texts, geometric mean",
                time("step_ms", 1e-3), time("parse_ms", 1e-3),
            ),
            Row(
                "analyses: memory, of the time of parsing, seed", "memory, GPU step",
                time("memory_ms", 1e-3, text=GPU), time("parse_ms", 1e-3, text=GPU),
            ),
            Row(
                "analyses: memory, of the time of parsing, geo",
                "memory, all texts, geometric mean",
                time("memory_ms", 1e-3, instructions=None), time("parse_ms", 1e-3),
            ),
            Row(
                "analyses: memory: time per instruction",
                "memory of 1,000,000 instructions: time per instruction, compared with 10,000",
                time("memory_ms", 1e-9, instructions=1_000_000),
                time("memory_ms", 1e-7, instructions=10_000),
            ),
        ),
    ),
    Section(
        "diff", "Diff",
        "A module compared with itself, renamed and reordered.",
        "peer",
        (
            Row(
                "diff: of the time of parsing, seed 002",
                "diff, GPU step, compared with parsing it",
                time("diff_ms", 1e-3, text=GPU), time("parse_ms", 1e-3, text=GPU),
            ),
            Row(
                "diff: time per instruction",
                "diff of 300,000 instructions: time per instruction, compared with 10,000",
                time("diff_ms", 1e-3 / 300_000, instructions=300_000),
                time("diff_ms", 1e-7, instructions=10_000),
            ),
        ),
    ),
    Section(
        "scan", "Scanning a dump directory",
        "Text decompressed and read, analysed and written to Parquet.",
        "peer",
        (
            Row("scan to Parquet", ""),
            Row(
                "… of the rate of XLA's parser",
                "rate, compared with XLA's parser alone, one thread",
                _scan("two"), speed("xla_bytes_per_second"),
                "scan a dump directory into Parquet, two threads",
                "XLA's parser alone, one thread",
            ),
            Row(
                "… 2 threads against 1 on one", "two threads, compared with one thread on one core",
                _scan("two"), _scan("one"),
            ),
            Row(
                "… 2 threads against 1 beside",
                "two threads, compared with one thread; a third writes",
                _scan("two"), _scan("one worker"),
            ),
            Row("… peak memory", "peak memory"),
            Row(
                "… against a directory", "peak memory, compared with a quarter of the files",
                bytes_of("peaks.large"), bytes_of("peaks.small"),
            ),
            Row("scan: files classified", "files classified correctly"),
            Row("scan without repeats", ""),
            Row(
                "… without repeats, of the rate of XLA's parser",
                "files without repeats: rate, compared with XLA's parser alone, one thread",
                speed("distinct.bytes", "distinct.scan"), speed("distinct_xla_bytes_per_second"),
            ),
            Row(
                "… without repeats, of the rate of parsing",
                "files without repeats: rate, compared with parsing alone, two threads",
                speed("distinct.bytes", "distinct.scan"), speed("distinct.bytes", "distinct.parse"),
            ),
            Row(
                "scan of 10 files", "10 files to JSON lines, compared with a bare Python start",
                time("best", what="cold"),
            ),
            Row(
                "scan of 20 files to the terminal",
                "20 files to the terminal, compared with a bare Python start",
                time("best", what="terminal"),
            ),
            Row(
                "scan of 20 files to Parquet",
                "20 files to Parquet, compared with a bare Python start",
                time("best", what="parquet"),
            ),
        ),
    ),
    Section(
        "startup", "Start of a process",
        "Compared with `python -c pass`.",
        "bare Python",
        (
            _start("import hlofast", "import hlofast", front="`import hlofast`"),
            _start("hlofast --help", "hlofast --help"),
            _start("hlofast summary", "hlofast summary, 10 kB"),
        ),
    ),
    Section(
        "walk", "Reading a module from Python",
        "Names, opcodes and operands of all instructions of GPU step, compared with the same walk "
        "over jaxlib's objects.",
        "jaxlib",
        (
            Row(
                "walking instructions", "walk over views",
                time("best", what="ours"), time("best", what="xla"),
            ),
            Row(
                "the same facts through columns", "columns and lists of names",
                time("best", what="columns"), time("best", what="xla"),
            ),
            Row(
                "the same facts as lists", "lists of str alone",
                time("best", what="lists"), time("best", what="xla"),
            ),
            Row("one zero-copy column", "one column as a NumPy array, without a copy"),
        ),
    ),
    Section(
        "memory", "Memory of a module",
        "Bytes beyond the text, compared with the text.",
        "text",
        (
            Row(
                "memory beyond the text, seed 002", "parsed, GPU step",
                bytes_of("parsed_bytes", text=GPU), bytes_of("bytes", text=GPU),
            ),
            Row(
                "… with every column", "with every column and users, GPU step",
                bytes_of("touched_bytes", text=GPU), bytes_of("bytes", text=GPU),
            ),
            Row(
                "memory beyond the text, geo", "parsed, dumps, geometric mean",
                bytes_of("parsed_bytes", dumps=True), bytes_of("bytes", dumps=True),
            ),
            Row(
                "… with every column", "with every column and users, dumps, geometric mean",
                bytes_of("touched_bytes", dumps=True), bytes_of("bytes", dumps=True),
            ),
            Row("nbytes, largest error", "`nbytes` compared with the allocator, largest error"),
        ),
    ),
    Section(
        "growth", "Growth with size",
        "Per byte of text, compared with a module of 10,000 instructions: from 1,000 to 1,000,000 "
        "instructions, tuples of 100,000 and a header line of 10 MB.",
        "10,000 instructions",
        (
            Row("growth: time per byte", "time, worst case"),
            Row("growth: memory per byte", "memory, worst case"),
        ),
    ),
    Section(
        "threads", "Two threads on one text",
        "`loads(threads=2)` compared with `threads=1`. The ratio of the first three rows is the "
        "speed-up over the speed-up of two independent parses, which this machine limits.",
        "one thread",
        (
            _threads("similar_100000", "100,000 generated instructions"),
            _threads("cpu_stacks.after", "CPU dump of 9.6 MB, fused"),
            _threads("cpu_stacks_unfused.after", "CPU dump, not fused"),
            _threads(
                "one giant", "one computation, 100,000 instructions, compared with one thread"
            ),
            Row(
                "analyses of 16 modules",
                "cost, collectives, memory and lint of 16 modules, compared with one thread",
                time("two.best", text="analyses"), time("one.best", text="analyses"),
            ),
        ),
    ),
    Section(
        "report", "Report",
        "`hlofast report`, from start to end of the process.",
        "peer",
        (
            Row("report: the command, seed 002", "the command, GPU step"),
            Row("report: size", "size of that page"),
            Row("report: the command, 1,000,000", "the command, 1,000,000 instructions"),
            Row("report: first search", "first search in that page after it loads"),
        ),
    ),
)  # fmt: skip
