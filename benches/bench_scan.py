"""Scanning a dump directory into Parquet, beside XLA's parser on the same files."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import CHECKOUT, Figure, Record, Times, bare_python, interleave
from texts import CACHE, dumps

sys.path.insert(0, str(CHECKOUT / "tests"))
from dump_tree import Text, Tree, fixture_texts, grow

TABLES = ["modules", "collectives", "matmuls", "buffers"]
SCAN = """
import json, resource, sys, time
import hlofast
begin = time.perf_counter()
options = dict(tables={tables!r}, workers={workers}, max_text_bytes=8 << 20)
found = hlofast.scan({root!r}, {out!r}, **options)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([time.perf_counter() - begin, peak, found.counts]))
"""


def jax_texts() -> list[Text]:
    """The pairs among the dumps of the other benches, and the committed pairs."""
    texts = fixture_texts(largest=1 << 30)
    index = {text.name: text.path for text in dumps()}
    for name, path in index.items():
        stem, _, stage = name.partition(".")
        if stage.startswith("after") and len(path.read_bytes()) < 10_000_000:
            before = next((p for n, p in index.items() if n.startswith(f"{stem}.before")), None)
            text = (before or path).read_bytes()
            texts.append(Text(stem, stem.split("_")[0], text, path.read_bytes()))
    return texts


@pytest.fixture(scope="module")
def trees(quick: bool) -> Iterator[list[Tree]]:
    """Two directories, the second three times as large."""
    root = CACHE / "scan"
    shutil.rmtree(root, ignore_errors=True)
    texts = fixture_texts() if quick else jax_texts()
    made = []
    for name, hosts, rounds in (("small", 1, 1), ("large", 1 if quick else 3, 1 if quick else 4)):
        tree = grow(root / name, texts, hosts=hosts, passes=2, rounds=rounds)
        made.append(tree)
    yield made
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def quick(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--quick"))


def run(root: Path, out: Path, workers: int) -> tuple[float, int, dict[str, int]]:
    """Seconds, peak memory in bytes and counts of a scan in a process of its own."""
    shutil.rmtree(out, ignore_errors=True)
    code = SCAN.format(root=str(root), out=str(out), tables=TABLES, workers=workers)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True
    )
    seconds, peak, counts = json.loads(done.stdout)
    return seconds, peak, counts


def bench_scan(
    record: Record, quick: bool, trees: list[Tree], xla_parse: Callable[[str], Any], tmp_path: Path
) -> None:
    small, tree = trees
    out = tmp_path / "out"
    names = [name for name, e in tree.expected.items() if e.status == "read"]
    texts = [(tree.root / name).read_bytes() for name in names]
    texts = [gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text for text in texts]
    size = sum(map(len, texts))
    peaks: dict[str, int] = {}

    def scan(root: Path, workers: int, name: str) -> float:
        seconds, peak, counts = run(root, out, workers)
        expected = (tree if root == tree.root else small).expected
        assert sum(counts.values()) == len(expected)
        peaks[name] = max(peaks.get(name, 0), peak)
        return seconds

    def xla() -> None:
        for text in texts[:: 20 if not quick else 1]:
            try:
                xla_parse(text.decode())
            except Exception:  # Logs and fragments of another form.
                continue

    rounds = 1 if quick else 3
    seconds: dict[str, list[float]] = {"two": [], "one": []}
    times: dict[str, Times] = {}
    for _ in range(rounds):
        seconds["two"].append(scan(tree.root, 2, "large"))
        seconds["one"].append(scan(tree.root, 1, "one"))
        times = interleave({"xla": xla}, 1)
        seconds.setdefault("xla", []).append(times["xla"].best)
    scan(small.root, 2, "small")
    sample = sum(map(len, texts[:: 20 if not quick else 1]))
    rate = size / min(seconds["two"])
    peer = sample / min(seconds["xla"])
    gain = min(seconds["one"]) / min(seconds["two"])
    what = f"scan to Parquet, {len(tree.expected):,} files, {size / 1e6:,.0f} MB of text"
    if quick:
        peak = grown = None
    else:
        peak, grown = peaks["large"] / 1e6, peaks["large"] / peaks["small"]
    figures = record.figures
    figures.append(Figure(f"{what}: rate, 2 threads", rate / 1e6, "MB/s", at_least=120))
    figures.append(Figure("… of the rate of XLA's parser alone", rate / peer, at_least=4))
    figures.append(Figure("… 2 threads against 1", gain, at_least=1.7))
    if peak is not None and grown is not None:
        figures.append(Figure("… peak memory", peak, "MB", at_most=300))
        ratio = len(tree.expected) / len(small.expected)
        figures.append(
            Figure(f"… against a directory of 1/{ratio:.0f} of the files", grown, at_most=1.25)
        )
    record.details.append(
        {"seconds": {name: min(all_of) for name, all_of in seconds.items()}, "bytes": size}
        | {"files": len(tree.expected), "peaks": peaks, "xla_bytes": sample}
    )


def bench_every_file_is_classified(record: Record, trees: list[Tree]) -> None:
    import hlofast

    tree = trees[1]
    found = hlofast.scan(tree.root, tables=["modules"], max_text_bytes=8 << 20)
    rows = {os.path.relpath(row["path"], tree.root): row for row in found.files}
    right = sum(
        (rows[name]["kind"], rows[name]["status"], rows[name]["stage"]) == expected[:3]
        for name, expected in tree.expected.items()
        if name in rows
    )
    share = 100 * right / max(len(tree.expected), len(rows))
    record.figures.append(
        Figure(f"scan: files classified as made, of {len(rows):,}", share, "%", at_least=100)
    )


def bench_small_directory(record: Record, quick: bool, tmp_path: Path) -> None:
    """Ten files to JSON lines, from start to end of the process."""
    folder, size = tmp_path / "ten", 0
    folder.mkdir()
    for number, text in enumerate(fixture_texts()[:5]):
        for stage, content in (("before", text.before), ("after", text.after)):
            path = folder / f"module_{number:04}.f.{stage}_optimizations.txt"
            path.write_bytes(content)
            size += len(content)
    assert size < 2_000_000
    program = str(Path(sysconfig.get_path("scripts")) / "hlofast")

    def start(command: list[str]) -> None:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)

    ours = [program, "scan", str(folder), "-o", "out", "--format", "jsonl"]
    work = {"bare": lambda: start(bare_python()), "ours": lambda: start(ours)}
    times = interleave(work, 3 if quick else 40)
    ratio = times["ours"].best / times["bare"].best
    what = f"scan of 10 files, {size / 1e6:.1f} MB, to JSON lines, of a bare Python start"
    record.figures.append(Figure(what, ratio, at_most=5))
    record.details.append({"what": "cold", "bytes": size} | times["ours"].facts())
