"""Scanning a dump directory into Parquet, compared with XLA's parser on the same files."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import scan_dumps
from harness import CHECKOUT, Figure, Record, bare_python, interleave, say
from texts import CACHE

sys.path.insert(0, str(CHECKOUT / "tests"))
from dump_tree import MAX_TEXT_BYTES, Text, Tree, fixture_texts, grow, make_traps, of_xla

TABLES = ["modules", "collectives", "matmuls", "buffers"]
SCAN = """
import json, os, time
import hlofast
if {processors} and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{processors}])
begin = time.perf_counter()
options = dict(tables={tables!r}, workers={workers}, max_text_bytes={limit})
found = hlofast.scan({root!r}, {out!r}, **options)
# Peak of this program alone: ru_maxrss includes the process that started it.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) * 1024
print(json.dumps([time.perf_counter() - begin, peak, found.counts]))
"""
PARSE = """
import json, sys, threading, time
import hlofast
paths, lock = iter(json.load(sys.stdin)), threading.Lock()
def work():
    while True:
        with lock:
            path = next(paths, None)
        if path is None:
            return
        hlofast.load(path, threads=1)
begin = time.perf_counter()
workers = [threading.Thread(target=work) for _ in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(time.perf_counter() - begin)
"""
SAMPLE = 10
"""XLA parses every 10th file."""


def plant(root: Path, folders: list[Path], texts: list[Text]) -> Tree:
    """A directory with dumps of two hosts, the second without per-pass dumps, and other files."""
    tree = Tree(root)
    for folder in folders:
        tree.dumped(f"host-0/{folder.name}/", folder)
        for path in sorted(folder.glob("*_optimizations.txt")):
            name = f"host-1/{folder.name}/{path.name}"
            tree.put(name, path.read_bytes(), of_xla(path.name))
    tree.real_folders("real/")
    tree.odd_files("odd/", min(texts, key=lambda text: len(text.after)))
    make_traps(tree)
    return tree


@pytest.fixture(scope="module")
def trees(quick: bool) -> Iterator[list[Tree]]:
    """Two directories; the first has a quarter of the programs of the second."""
    root = CACHE / "scan"
    shutil.rmtree(root, ignore_errors=True)
    say("making the directories to scan")
    texts = fixture_texts()
    if quick:
        made = [grow(root / name, texts, hosts=1, passes=2) for name in ("small", "large")]
    else:
        folders = scan_dumps.folders()
        parts = (("small", folders[: len(folders) // 4]), ("large", folders))
        made = [plant(root / name, some, texts) for name, some in parts]
    yield made
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def distinct(quick: bool) -> Iterator[list[Path]]:
    """Every text of the dumps once, the largest first."""
    root = CACHE / "distinct"
    shutil.rmtree(root, ignore_errors=True)
    digests: set[bytes] = set()
    paths = []

    def put(name: str, text: bytes) -> None:
        if text.startswith(b"HloModule") and sha256(text).digest() not in digests:
            digests.add(sha256(text).digest())
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
            paths.append(path)

    if quick:
        for number, text in enumerate(fixture_texts()):
            put(f"module_{number:04}.f.before_optimizations.txt", text.before)
            put(f"module_{number:04}.f.after_optimizations.txt", text.after)
    else:
        for folder in scan_dumps.folders():
            for path in sorted(folder.glob("*.txt")):
                put(f"{folder.name}/{path.name}", path.read_bytes())
    yield sorted(paths, key=lambda path: -path.stat().st_size)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def quick(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--quick"))


def run(root: Path, out: Path, workers: int, processors: int) -> tuple[float, int, dict[str, int]]:
    """Seconds, peak memory in bytes and counts of a scan in its own process.

    The scan may use `processors` cores (0: all). A further thread writes the results.
    """
    shutil.rmtree(out, ignore_errors=True)
    code = SCAN.format(
        root=str(root),
        out=str(out),
        tables=TABLES,
        workers=workers,
        processors=processors,
        limit=MAX_TEXT_BYTES,
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True
    )
    seconds, peak, counts = json.loads(done.stdout)
    return seconds, peak, counts


def unpacked(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def bench_scan(
    record: Record, quick: bool, trees: list[Tree], xla_parse: Callable[[str], Any], tmp_path: Path
) -> None:
    small, tree = trees
    out = tmp_path / "out"
    names = [name for name, expected in tree.expected.items() if expected.status == "read"]
    digests: dict[bytes, int] = {}
    size = protos = 0
    for name in names:
        text = unpacked((tree.root / name).read_bytes())
        digests[sha256(text).digest()] = len(text)
        size += len(text)
        protos += len(text) if name.endswith(".pb") else 0
    texts = [name for name in names if ".txt" in name][:: 1 if quick else SAMPLE]
    peaks: dict[str, int] = {}

    def scan(root: Path, workers: int, name: str, processors: int = 0) -> float:
        seconds, peak, counts = run(root, out, workers, processors)
        expected = (tree if root == tree.root else small).expected
        assert sum(counts.values()) == len(expected)
        peaks[name] = max(peaks.get(name, 0), peak)
        return seconds

    def xla() -> tuple[int, float]:
        """Bytes that XLA parsed, and seconds; without files that XLA cannot read, such as logs."""
        parsed, spent = 0, 0.0
        for name in texts:
            text = unpacked((tree.root / name).read_bytes())
            decoded = text.decode()
            begin = time.perf_counter()
            try:
                xla_parse(decoded)
            except Exception:
                continue
            spent += time.perf_counter() - begin
            parsed += len(text)
        return parsed, parsed / spent

    rounds = 1 if quick else 3
    seconds: dict[str, list[float]] = {"two": [], "one": [], "one worker": []}
    peers: list[float] = []
    sample = 0
    for turn in range(rounds):
        say(f"scanning {len(tree.expected)} files, then XLA's parser, turn {turn + 1} of {rounds}")
        seconds["two"].append(scan(tree.root, 2, "large"))
        seconds["one"].append(scan(tree.root, 1, "one", processors=1))
        seconds["one worker"].append(scan(tree.root, 1, "one"))
        sample, peer = xla()
        peers.append(peer)
    scan(small.root, 2, "small")
    rate = size / min(seconds["two"])
    alone, with_writer = (
        min(seconds[name]) / min(seconds["two"]) for name in ("one", "one worker")
    )
    distinct = sum(digests.values())
    what = (
        f"scan to Parquet, {len(tree.expected):,} files, {size / 1e6:,.0f} MB of modules "
        f"({100 * distinct / size:.0f} % distinct)"
    )
    figures = record.figures
    figures.append(Figure(f"{what}: rate, 2 threads", rate / 1e6, "MB/s", at_least=120))
    figures.append(Figure("… of the rate of XLA's parser alone", rate / max(peers), at_least=4))
    figures.append(Figure("… 2 threads against 1 on one processor", alone, at_least=1.7))
    figures.append(
        Figure("… 2 threads against 1 beside the writing thread", with_writer, at_least=1.7)
    )
    if not quick:
        peak, grown = peaks["large"] / 1e6, peaks["large"] / peaks["small"]
        figures.append(Figure("… peak memory", peak, "MB", at_most=300))
        ratio = len(tree.expected) / len(small.expected)
        figures.append(
            Figure(f"… against a directory of 1/{ratio:.0f} of the files", grown, at_most=1.25)
        )
    record.details.append(
        {"seconds": {name: min(all_of) for name, all_of in seconds.items()}, "bytes": size}
        | {"bytes_of_protos": protos, "distinct_bytes": distinct}
        | {"files": len(tree.expected), "peaks": peaks, "xla_bytes": sample}
        | {"xla_bytes_per_second": max(peers)}
    )


def bench_every_file_is_classified(record: Record, trees: list[Tree]) -> None:
    import hlofast

    tree = trees[1]
    scanned = hlofast.scan(tree.root, tables=["modules"], max_text_bytes=MAX_TEXT_BYTES)
    rows = {os.path.relpath(row["path"], tree.root): row for row in scanned.files}
    right = sum(
        (rows[name]["kind"], rows[name]["status"], rows[name]["stage"] or "") == expected[:3]
        for name, expected in tree.expected.items()
        if name in rows
    )
    share = 100 * right / max(len(tree.expected), len(rows))
    record.figures.append(
        Figure(f"scan: files classified as made, of {len(rows):,}", share, "%", at_least=100)
    )


def bench_distinct_files(
    record: Record,
    quick: bool,
    distinct: list[Path],
    xla_parse: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    """Files of which none repeats another, beside XLA's parser and beside parsing alone."""
    root = CACHE / "distinct"
    size = sum(path.stat().st_size for path in distinct)

    def parse() -> float:
        paths = json.dumps([str(path) for path in distinct])
        code = [sys.executable, "-P", "-c", PARSE]
        done = subprocess.run(code, check=True, capture_output=True, text=True, input=paths)
        return float(done.stdout)

    def xla() -> float:
        """Bytes per second."""
        parsed, spent = 0, 0.0
        for path in distinct[:: 1 if quick else SAMPLE]:
            text = path.read_text()
            begin = time.perf_counter()
            try:
                xla_parse(text)
            except Exception:
                continue
            spent += time.perf_counter() - begin
            parsed += len(text)
        return parsed / spent

    rounds = 1 if quick else 3
    scans, parses, peers = [], [], []
    for turn in range(rounds):
        say(f"scanning {len(distinct)} distinct files, turn {turn + 1} of {rounds}")
        scans.append(run(root, tmp_path / "out", 2, 0)[0])
        parses.append(parse())
        peers.append(xla())
    rate = size / min(scans)
    what = f"scan without repeats to Parquet, {len(distinct):,} files, {size / 1e6:,.0f} MB"
    figures = record.figures
    figures.append(Figure(f"{what}: rate, 2 threads", rate / 1e6, "MB/s"))
    figures.append(
        Figure("… without repeats, of the rate of XLA's parser", rate / max(peers), at_least=9)
    )
    figures.append(
        Figure("… without repeats, of the rate of parsing", min(parses) / min(scans), at_least=0.25)
    )
    record.details.append(
        {"distinct": {"bytes": size, "scan": min(scans), "parse": min(parses)}}
        | {"distinct_xla_bytes_per_second": max(peers)}
    )


def bench_small_directory(record: Record, quick: bool, tmp_path: Path) -> None:
    """Small folders, from start to end of the process."""
    program = str(Path(sysconfig.get_path("scripts")) / "hlofast")

    def start(command: list[str]) -> None:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)

    def folder(count: int) -> tuple[str, int]:
        """The path of a folder with `count` texts, and their bytes."""
        path, size = tmp_path / str(count), 0
        path.mkdir()
        for number, text in enumerate(fixture_texts()[: count // 2]):
            for stage, content in (("before", text.before), ("after", text.after)):
                name = f"module_{number:04}.f.{stage}_optimizations.txt"
                size += (path / name).write_bytes(content)
        return str(path), size

    (ten, ten_bytes), (twenty, twenty_bytes) = folder(10), folder(20)
    assert sum(1 for _ in Path(twenty).iterdir()) == 20
    scan = [program, "scan"]
    work = {
        "bare": lambda: start(bare_python()),
        "cold": lambda: start([*scan, ten, "-o", "out", "--format", "jsonl"]),
        "terminal": lambda: start([*scan, twenty]),
        "parquet": lambda: start([*scan, twenty, "-o", "out"]),
    }
    times = interleave(work, 3 if quick else 40)
    for what, size, words, most in (
        ("cold", ten_bytes, "10 files to JSON lines", 5),
        ("terminal", twenty_bytes, "20 files to the terminal", 4),
        ("parquet", twenty_bytes, "20 files to Parquet", 8),
    ):
        ratio = times[what].best / times["bare"].best
        words = f"scan of {words}, {size / 1e6:.1f} MB, of a bare Python start"
        record.figures.append(Figure(words, ratio, at_most=most))
        record.details.append({"what": what, "bytes": size} | times[what].facts())
