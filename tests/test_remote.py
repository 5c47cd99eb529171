"""Dumps in object stores: over the S3 protocol against a server on loopback, and in memory."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import bucket as buckets
import hlofast
from bucket import ACCOUNT, BUCKET, CUT, FAIL, HANG, IMPATIENT, VANISH, Bucket
from conftest import FIXTURES
from dump_tree import MAX_TEXT_BYTES, Tree, mixed_texts
from hlofast import _remote
from hlofast._remote import RemoteFiles
from hlofast._scan.dataset import Dataset, DatasetError
from hlofast.cli import main
from test_scan_dataset import Rows, content

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(scope="session")
def server() -> Iterator[Bucket]:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with buckets.running() as bucket:
        yield bucket


@pytest.fixture
def bucket(server: Bucket) -> Iterator[Bucket]:
    """The server, with nothing left in its bucket and no faults afterwards."""
    yield server
    server.proxy.faults.clear()
    server.proxy.refused_writes = lambda path: False
    server.empty()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Files of all kinds, readable and not; no links, which buckets do not have."""
    tree = Tree(tmp_path_factory.mktemp("remote") / "dump")
    text = min(mixed_texts(4), key=lambda text: len(text.after))
    tree.program("host-0/xla_dump/", 1, text, 1)
    tree.real_folders("real/")
    tree.odd_files("odd/", text)
    return tree


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four programs of a file each, and a file whose name says nothing."""
    root = tmp_path_factory.mktemp("small") / "dump"
    root.mkdir()
    text = min(mixed_texts(4), key=lambda text: len(text.after)).after
    for number in range(4):
        (root / f"module_{number:04}.f{number}.after_optimizations.txt").write_bytes(text)
    (root / "saved").write_bytes(text)
    return root


def scan(paths: Any, out: Any = None, **options: Any) -> hlofast.Scan:
    options = {"workers": 4, "max_text_bytes": MAX_TEXT_BYTES, "format": "jsonl", **options}
    return hlofast.scan(paths, out, **options)


def rows(scanned: hlofast.Scan, root: object) -> dict[str, list[str]]:
    """All rows of all tables, without what the paths begin with."""
    return {
        table: [repr(row).replace(str(root), "ROOT") for row in scanned[table]]
        for table in scanned.tables
    }


def statuses(scanned: hlofast.Scan) -> dict[str, tuple[str, str | None]]:
    return {row["path"].rpartition("/")[2]: (row["status"], row["reason"]) for row in scanned.files}


@pytest.mark.parametrize("protocol", ["s3", "memory"])
def test_a_remote_scan_equals_a_local_one(
    request: pytest.FixtureRequest, tree: Tree, protocol: str
) -> None:
    if protocol == "s3":
        remote = request.getfixturevalue("bucket").upload(tree.root, "dumps")
    else:
        remote = in_memory(tree.root, "equal")
    local = rows(scan(tree.root), tree.root)
    assert len(local["files"]) == len(tree.expected)
    assert rows(scan(remote), remote) == local


def in_memory(root: Path, name: str) -> str:
    file_system = fsspec.filesystem("memory")
    for path in sorted(root.rglob("*")):
        if path.is_file():
            place = f"/{name}/{path.relative_to(root).as_posix()}"
            file_system.pipe_file(place, path.read_bytes())
    return f"memory://{name}"


def test_beginnings_are_read_by_range(bucket: Bucket, small: Path) -> None:
    """Files that are not modules are not fetched."""
    remote = bucket.upload(small, "ranges")
    large = b"x" * (5 << 20)
    bucket.file_system.pipe_file(f"{BUCKET}/ranges/large.ll", large)
    read: list[int] = []
    ask = bucket.proxy._ask

    def counted(*arguments: Any) -> Any:
        status, headers, answer = ask(*arguments)
        if arguments[1].startswith(f"/{BUCKET}/ranges/large.ll"):
            read.append(len(answer))
        return status, headers, answer

    bucket.proxy._ask = counted  # type: ignore[method-assign]
    try:
        assert statuses(scan(remote))["large.ll"] == ("skipped", "generated code")
    finally:
        del bucket.proxy._ask  # type: ignore[method-assign]
    assert 0 < sum(read) < 1 << 16


def test_objects_that_go_wrong_are_rows(bucket: Bucket, small: Path) -> None:
    remote = bucket.upload(small, "faults")
    names = sorted(path.name for path in small.iterdir())
    faults = dict(zip(names, (VANISH, CUT, FAIL), strict=False))
    bucket.proxy.faults = {f"faults/{name}": fault for name, fault in faults.items()}
    scanned = scan(remote)
    of = statuses(scanned)
    assert sorted(of) == names
    assert of[names[0]] == ("failed", "No such file or directory")
    assert of[names[1]][0] == "failed" and of[names[1]][1]
    assert of[names[2]][0] == "failed" and of[names[2]][1]
    assert [of[name] for name in names[3:]] == [("read", None), ("read", None)]
    assert scanned.counts == {"read": 2, "failed": 3, "skipped": 0, "unchanged": 0}
    # What went wrong with the server is read as soon as it does not.
    bucket.proxy.faults.clear()
    assert scan(remote).counts["read"] == 4


def test_an_object_that_does_not_come_is_given_up(bucket: Bucket, small: Path) -> None:
    remote = bucket.upload(small, "hang")
    bucket.proxy.faults = {"module_0001.f1.after_optimizations.txt": HANG, "saved": HANG}
    scanned = scan(remote, max_seconds=2.0)
    of = statuses(scanned)
    expected = ("failed", "no answer within 2 s")
    assert of["module_0001.f1.after_optimizations.txt"] == of["saved"] == expected
    assert scanned.counts["read"] == 3


def test_a_short_answer_is_told_from_a_new_object(small: Path) -> None:
    """For any protocol: a truncated answer, and an object that has changed."""
    remote = in_memory(small, "short")
    place = "/short/saved"
    file_system = fsspec.filesystem("memory")
    whole = file_system.cat_file(place)
    cat = type(file_system).cat_file

    def short(self: Any, path: str, start: int | None = None, end: int | None = None) -> bytes:
        data: bytes = cat(self, path, start=start, end=end)
        return data[:-100] if path == place and (end or 1 << 20) > 1 << 16 else data

    type(file_system).cat_file = short
    try:
        expected = f"the answer ended after {len(whole) - 100} of {len(whole)} bytes"
        assert statuses(scan(remote))["saved"] == ("failed", expected)
    finally:
        type(file_system).cat_file = cat

    def replaced(self: Any, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if path == place:
            self.pipe_file(path, whole + b"\n\n")
        data: bytes = cat(self, path, start=start, end=end)
        return data

    type(file_system).cat_file = replaced
    try:
        assert statuses(scan(remote))["saved"] == ("read", None)
    finally:
        type(file_system).cat_file = cat


def test_the_size_cap(bucket: Bucket, small: Path) -> None:
    remote = bucket.upload(small, "cap")
    bucket.file_system.pipe_file(
        f"{BUCKET}/cap/module_0009.g.after_optimizations.txt", b"HloModule m\n" * 100_000
    )
    scanned = scan(remote, max_bytes=1_000_000)
    reason = "1200000 bytes, more than 1000000 (the size cap)"
    assert statuses(scanned)["module_0009.g.after_optimizations.txt"] == ("failed", reason)
    assert ("GET", f"/{BUCKET}/cap/module_0009.g.after_optimizations.txt") not in (
        bucket.proxy.requests
    )


def test_objects_are_read_elsewhere(bucket: Bucket, small: Path) -> None:
    """On executors; in other processes they need no listing of their own."""
    remote = bucket.upload(small, "elsewhere")
    with ThreadPoolExecutor(2) as executor:
        assert rows(scan(remote, executor=executor), remote) == rows(scan(small), small)
    files = RemoteFiles(ACCOUNT)
    files.root(remote)
    read = pickle.loads(pickle.dumps(files.reader()))
    assert read(f"{remote}/saved", 9) == b"HloModule"
    with pytest.raises(OSError, match=r"^No such file or directory$"):
        read(f"{remote}/nothing", 9)


def test_a_large_object_is_read_in_ranges(
    monkeypatch: pytest.MonkeyPatch, bucket: Bucket, small: Path
) -> None:
    text = (small / "saved").read_bytes()
    remote = f"{bucket.upload(small, 'large')}/saved"
    monkeypatch.setattr(_remote, "RANGE", len(text) // 3)
    bucket.proxy.requests.clear()
    assert hlofast.load(remote) == hlofast.loads(text)
    assert len([1 for method, _ in bucket.proxy.requests if method == "GET"]) >= 3
    calls = []
    ask = bucket.proxy._ask

    def changing(method: str, path: str, *rest: Any) -> Any:
        calls.append(method)
        if calls.count("GET") == 2:
            bucket.file_system.pipe_file(f"{BUCKET}/large/saved", text + b" ")
        return ask(method, path, *rest)

    monkeypatch.setattr(bucket.proxy, "_ask", changing)
    with pytest.raises(OSError, match="changed while it was read"):
        hlofast.load(remote)


def test_single_files(bucket: Bucket, small: Path) -> None:
    remote = bucket.upload(small, "single")
    module = hlofast.load(f"{remote}/saved")
    assert module == hlofast.load(small / "saved")
    with pytest.raises(FileNotFoundError) as caught:
        hlofast.load(f"{remote}/nothing")
    assert caught.value.filename == f"{remote}/nothing"
    options = ACCOUNT | {"endpoint_url": bucket.proxy.address}
    assert hlofast.load(f"{remote}/saved", storage_options=options) == module
    with pytest.raises(OSError, match="no-such-protocol"):
        hlofast.load("no-such-protocol://x/y")
    assert scan(f"{remote}/saved").counts["read"] == 1


def test_a_server_without_ranges(small: Path) -> None:
    """A plain web server gives everything, whatever it is asked for."""
    pytest.importorskip("aiohttp")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=small))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        path = f"http://127.0.0.1:{server.server_port}/saved"
        assert hlofast.load(path) == hlofast.load(small / "saved")
        assert scan(path).counts["read"] == 1
        with pytest.raises(FileNotFoundError):
            hlofast.load(path + "-not")
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    options = ACCOUNT | IMPATIENT | {"endpoint_url": "http://127.0.0.1:9"}
    scanned = scan("s3://bucket/dumps", storage_options=options)
    ((status, reason),) = statuses(scanned).values()
    assert status == "failed" and "127.0.0.1:9" in reason


@pytest.mark.parametrize(
    "arguments",
    [
        ["summary", "{}/{after}"],
        ["memory", "{}/{after}"],
        ["diff", "{}/{before}", "{}/{after}"],
        ["history", "{}"],
        ["scan", "{}"],
        ["summary", "{}/nothing"],
    ],
    ids=" ".join,
)
def test_verbs_read_objects(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Verbs print the same as for local files."""
    folder = FIXTURES / "dump_folders" / "cpu"
    remote = in_memory(folder, "verbs")
    stem = "module_0000.jit_train_step"
    names = {"before": f"{stem}.before_optimizations.txt.gz"}
    names["after"] = f"{stem}.cpu_after_optimizations.txt.gz"
    ends = []
    for root in (str(folder), remote):
        code = main([argument.format(root, **names) for argument in arguments])
        printed = capsys.readouterr()
        ends.append((code, printed.out.replace(root, "ROOT"), printed.err.replace(root, "ROOT")))
    assert ends[0] == ends[1]


def test_folders_of_objects_are_compared(small: Path) -> None:
    remote = in_memory(small, "compared")
    own = list(hlofast.fingerprints(small))
    there = list(hlofast.fingerprints(remote))
    assert [row | {"file": ""} for row in there] == [row | {"file": ""} for row in own]
    history = hlofast.history(remote, "f1")
    assert [row["file"] for row in history] == [f"{remote}/module_0001.f1.after_optimizations.txt"]
    assert history.module(0) == hlofast.load(small / "saved")
    assert main(["diff", remote, remote]) == 0


WITHOUT = """
import sys
sys.modules[{missing!r}] = None
from hlofast.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("missing", "arguments", "named"),
    [
        ("fsspec", ["summary", "s3://b/x"], "hlofast[remote]"),
        ("fsspec", ["scan", "s3://b/x"], "hlofast[remote]"),
        ("fsspec", ["scan", ".", "-o", "s3://b/x", "--format", "csv"], "hlofast[remote]"),
        ("fsspec", ["diff", "s3://b/x", "s3://b/x"], "hlofast[remote]"),
        ("fsspec", ["history", "s3://b/x"], "hlofast[remote]"),
        ("s3fs", ["summary", "s3://b/x"], "s3fs"),
    ],
)
def test_a_missing_extra_is_named(
    missing: str, arguments: list[str], named: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-P", "-c", WITHOUT.format(missing=missing), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 3


def stored(bucket: Bucket, name: str, target: Path) -> Rows:
    """All rows of a dataset in the bucket; fails on anything else."""
    return content(bucket.download(name, target))


IN_STEPS: dict[str, Any] = {"batch_bytes": 1, "tables": ["modules"]}
"""A batch per file."""


@pytest.fixture(scope="module")
def undisturbed(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    scan(small, out, **IN_STEPS)
    return content(out)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_datasets_in_a_bucket(bucket: Bucket, small: Path, tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    root = tmp_path / "dump"
    root.mkdir()
    for path in small.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    out = f"s3://{BUCKET}/out"
    options: dict[str, Any] = {"format": form, "tables": ["modules", "matmuls"]}
    local = scan(root, tmp_path / "local", **options)
    scanned = scan(root, out, **options)
    assert scanned.path == out
    assert scanned.tables == local.tables
    assert stored(bucket, "out", tmp_path / "first") == content(tmp_path / "local")
    assert rows(scanned, root) == rows(local, root)
    assert rows(hlofast.open_dataset(out), root) == rows(local, root)
    assert scan(root, out, **options).counts["unchanged"] == 5
    (root / "saved").unlink()
    (root / "module_0000.f0.after_optimizations.txt").write_text("HloModule cut")
    (root / "new.ll").write_text("; new\n")
    scanned = scan(root, out, **options)
    assert scanned.counts == {"read": 0, "failed": 1, "skipped": 1, "unchanged": 3}
    scan(root, tmp_path / "fresh", **options)
    assert stored(bucket, "out", tmp_path / "second") == content(tmp_path / "fresh")


def test_what_servers_say_is_the_same_is_not_fetched(
    bucket: Bucket, small: Path, tmp_path: Path
) -> None:
    remote, out = bucket.upload(small, "same"), tmp_path / "out"
    names = sorted(path.name for path in small.iterdir())
    bucket.file_system.pipe_file(f"{BUCKET}/same/x.ll", b"; code\n")
    bucket.proxy.faults = {f"same/{names[0]}": CUT}
    assert scan(remote, out).counts == {"read": 4, "failed": 1, "skipped": 1, "unchanged": 0}
    bucket.proxy.faults.clear()
    text = (small / names[1]).read_bytes()
    bucket.file_system.pipe_file(f"{BUCKET}/same/{names[1]}", text.replace(b"f32", b"f16"))
    bucket.proxy.requests.clear()
    assert scan(remote, out).counts == {"read": 2, "failed": 0, "skipped": 0, "unchanged": 4}
    # The object whose name says nothing is looked at; those that changed or went wrong are read.
    fetched = {path for method, path in bucket.proxy.requests if method == "GET"}
    expected = {f"/{BUCKET}/same/{name}" for name in (names[0], names[1], "saved")}
    assert fetched - {f"/{BUCKET}"} == expected
    scan(remote, tmp_path / "fresh")
    assert content(out) == content(tmp_path / "fresh")


def test_a_dataset_in_a_bucket_is_asked(bucket: Bucket, small: Path, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    out = f"s3://{BUCKET}/asked"
    scan(small, out, tables=["modules"])
    count = "SELECT count(*) AS modules, sum(flops) AS flops FROM modules"
    expected = scan(small, tmp_path / "local", tables=["modules"]).query(count)
    assert hlofast.open_dataset(out).query(count) == expected
    assert expected["modules"].tolist() == [5]


def test_a_dataset_beside_its_dumps(bucket: Bucket, small: Path, tmp_path: Path) -> None:
    remote = bucket.upload(small, "both")
    first = scan(remote, f"{remote}/results")
    second = scan(remote, f"{remote}/results")
    assert first.counts == {"read": 5, "failed": 0, "skipped": 1, "unchanged": 0}
    assert second.counts["unchanged"] == 6
    assert statuses(first)["results"] == ("skipped", "a dataset that hlofast wrote")


def test_an_interrupted_scan_is_taken_up(
    bucket: Bucket, small: Path, undisturbed: Rows, tmp_path: Path
) -> None:
    """Whichever write is the last that the server takes, the next scan ends as if nothing was."""
    out = f"s3://{BUCKET}/out"
    writes = 0

    def after(count: int) -> Any:
        nonlocal writes
        writes = 0

        def refuse(path: str) -> bool:
            nonlocal writes
            writes += 1
            return writes > count

        return refuse

    taken = 0
    # A batch takes four: two parts, the manifest and its copy.
    for count in (0, 2, 7, 12):
        bucket.proxy.refused_writes = after(count)
        with pytest.raises(OSError):
            scan(small, out, **IN_STEPS)
        bucket.proxy.refused_writes = lambda path: False
        scanned = scan(small, out, **IN_STEPS)
        taken += scanned.counts["unchanged"]
        assert sum(scanned.counts.values()) == 5
        assert stored(bucket, "out", tmp_path / str(count)) == undisturbed
        bucket.empty()
    assert taken > 0


def test_what_was_not_committed_does_not_count(
    bucket: Bucket, small: Path, undisturbed: Rows, tmp_path: Path
) -> None:
    out = f"s3://{BUCKET}/out"
    scanned = scan(small, out, **IN_STEPS)
    part = f"{BUCKET}/out/table=files/part-00000099-0a0b0c0d.jsonl"
    bucket.file_system.pipe_file(part, b"{}\n")
    pytest.importorskip("pyarrow")
    assert len(scanned["files"]) == 5
    lost = next(name for name in bucket.names("out") if name.startswith("table=modules"))
    bucket.file_system.pipe_file(f"{BUCKET}/out/{lost}", b"{")
    assert scan(small, out, **IN_STEPS).counts["unchanged"] == 4
    assert stored(bucket, "out", tmp_path / "again") == undisturbed


def test_two_scans_of_one_dataset(bucket: Bucket, small: Path, tmp_path: Path) -> None:
    out = f"s3://{BUCKET}/out"
    scan(small, out)
    files = RemoteFiles(None)
    first = Dataset(out, "jsonl", {"run": 1}, files)
    second = Dataset(out, "jsonl", {"run": 2}, files)
    with pytest.raises(DatasetError, match="another scan"):
        first._append({"add": [], "next": 1})
    second._append({"add": [], "next": 1})
    with pytest.raises(DatasetError, match="not a dataset"):
        Dataset(f"s3://{BUCKET}", "jsonl", {}, files)


def test_rows_stay_while_a_folder_cannot_be_listed(
    bucket: Bucket, small: Path, undisturbed: Rows, tmp_path: Path
) -> None:
    remote = bucket.upload(small, "listed")
    out = tmp_path / "out"
    scan(remote, out)
    bucket.proxy.faults = {f"/{BUCKET}": FAIL}
    scanned = scan(remote, out)
    assert scanned.counts["failed"] == 1
    bucket.proxy.faults.clear()
    assert scan(remote, out).counts["unchanged"] == 5


def manifest(bucket: Bucket, name: str) -> list[dict[str, Any]]:
    """The rows of a dataset's manifest, none while there is none."""
    path = f"{BUCKET}/{name}/hlofast-manifest.jsonl"
    bucket.file_system.invalidate_cache()
    if not bucket.file_system.exists(path):
        return []
    return [json.loads(line) for line in bucket.file_system.cat_file(path).splitlines()]


def test_watch_follows_a_bucket(bucket: Bucket, small: Path) -> None:
    source = small / "saved"
    name = "module_{:04}.f.after_optimizations.txt".format
    bucket.file_system.pipe_file(f"{BUCKET}/job/{name(0)}", source.read_bytes())
    out = f"s3://{BUCKET}/followed"
    writes_to_refuse: list[int] = []
    bucket.proxy.refused_writes = lambda path: bool(writes_to_refuse and writes_to_refuse.pop())
    command = [sys.executable, "-P", "-m", "hlofast", "scan", f"s3://{BUCKET}/job", "-o", out]
    process = subprocess.Popen(
        [*command, "--format", "jsonl", "--watch", "0.05"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | bucket.environment,
    )
    try:
        for number in (1, 2):
            deadline = time.monotonic() + 60
            while True:
                # The programs are written when all else is.
                if sum("programs" in row for row in manifest(bucket, "followed")) == number:
                    break
                if time.monotonic() > deadline or process.poll() is not None:
                    pytest.fail(f"module {number} was not seen")
                time.sleep(0.05)
            bucket.file_system.pipe_file(f"{BUCKET}/job/{name(number)}", source.read_bytes())
            writes_to_refuse.append(number)
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"1 read" in said
    assert b"hlofast: s3://" in said
    assert b"Traceback" not in said
    batches = [batch for row in manifest(bucket, "followed") for batch in row.get("add", ())]
    followed = {path for batch in batches for path in batch["files"]}
    assert {f"s3://{BUCKET}/job/{name(number)}" for number in range(2)} <= followed
