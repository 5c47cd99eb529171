"""Scans on Ray and `hlofast.ray`, on a real cluster of two workers on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

import hlofast
from dump_tree import MAX_TEXT_BYTES, Tree, grow, mixed_texts
from hlofast.errors import WorkerError
from test_executors import rows
from test_scan_dataset import content

# Ray and what it imports warn of each other.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Workers find this module, for what kills them.
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        ray = pytest.importorskip("ray")
        pytest.importorskip("ray.data")
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=80 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
        )
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return grow(tmp_path_factory.mktemp("ray") / "dump", mixed_texts(2), hosts=1)


def scan(tree: Tree, out: Path | None = None, **options: Any) -> hlofast.Scan:
    """Of about ten tasks."""
    options = {"batch_bytes": tree.text_bytes // 10, "workers": 1, "format": "jsonl", **options}
    return hlofast.scan(tree.root, out, max_text_bytes=MAX_TEXT_BYTES, **options)


class Deadly:
    """A task that kills the worker that takes it, once or always."""

    def __init__(self, task: Any, marker: str | None) -> None:
        self.options = task.options
        self.task = task
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return _die, (self.task, self.marker)


def _die(task: Any, marker: str | None) -> Any:
    if marker is None or not Path(marker).exists():
        if marker is not None:
            Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def mined(number: int, marker: str | None) -> Any:
    """The cluster, with a task that is deadly."""

    class Mined(hlofast.ray.Cluster):
        def results(self, tasks: Any) -> Any:
            own = enumerate(tasks)
            return super().results(
                Deadly(task, marker) if at == number else task for at, task in own
            )

    return Mined()


def test_a_killed_worker_changes_nothing(ray: Any, tree: Tree, tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    scanned = scan(tree, executor=mined(4, str(marker)))
    assert marker.exists()
    local = scan(tree)
    assert len(rows(scanned)) > 8
    assert rows(scanned) == rows(local)
    assert scanned.counts == local.counts
    assert scanned.failures == local.failures


def test_a_task_that_always_kills_is_an_error(
    ray: Any, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hlofast.ray._RETRIES", 0)
    out = tmp_path / "out"
    with pytest.raises(WorkerError, match="died"):
        scan(tree, out, executor=mined(4, None))
    content(out)
    scan(tree, out, executor=hlofast.ray.Cluster())
    scan(tree, tmp_path / "local")
    assert content(out) == content(tmp_path / "local")


def test_pipelines_of_ray_data_get_tables(ray: Any, tree: Tree, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    # Ray itself decompresses files; what has no program of its own goes with another's.
    others = shutil.ignore_patterns("*.gz", "jax_ir*")
    shutil.copytree(tree.root / "odd", folder, ignore=others)
    local = hlofast.scan(folder, device="h100", max_text_bytes=MAX_TEXT_BYTES)
    files = ray.data.read_binary_files(str(folder), include_paths=True)
    for table in ("modules", "files"):
        options = {"root": str(folder), "max_text_bytes": MAX_TEXT_BYTES, "device": "h100"}
        frame = hlofast.ray.analyse(files, table, **options).to_pandas()
        own = json.loads(frame.to_json(orient="records"))
        assert len(own) > 5
        expected = json.loads(local.to_arrow(table).to_pandas().to_json(orient="records"))

        def by_path(row: dict[str, Any]) -> tuple[str, str]:
            return row["path"], str(row)

        assert sorted(own, key=by_path) == sorted(expected, key=by_path)


def test_pipelines_may_have_batches_without_rows(ray: Any, tree: Tree) -> None:
    text = mixed_texts(1)[0].after
    items = [{"path": "b", "bytes": b"notes"}, {"path": "a.txt", "bytes": text}] * 2
    files = ray.data.from_items(items, override_num_blocks=4)
    taken = hlofast.ray.analyse(files).take_all()
    assert [(row["path"], row["program"]) for row in taken] == [("a.txt", "a.txt")] * 2


def test_batches_without_rows_have_no_columns(tree: Tree) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    make = hlofast.ray.Rows("lint")
    batch = pyarrow.table({"path": ["a.txt"], "bytes": [b"nothing"]})
    assert make(batch).num_rows == 0
    with pytest.raises(ValueError, match="nothing"):
        hlofast.ray.Rows("nothing")


def command(tree: Tree, out: str | Path, *options: str) -> list[str]:
    batch = str(tree.text_bytes // 10)
    base = [sys.executable, "-P", "-m", "hlofast", "scan", str(tree.root), "-o", str(out)]
    return [*base, "--format", "jsonl", "--batch-bytes", batch, *options]


def test_the_command_line_prints_rows_and_nothing_else(ray: Any, tree: Tree) -> None:
    address = ray.get_runtime_context().gcs_address
    arguments = command(tree, "-", "--engine", "ray", "--address", address)
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    local = subprocess.run(command(tree, "-"), capture_output=True, text=True, check=False)
    assert done.returncode == local.returncode == 3, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(local.stdout.splitlines())
    assert done.stderr == ""


def test_an_interrupted_scan_can_be_taken_up(ray: Any, tree: Tree, tmp_path: Path) -> None:
    address = ray.get_runtime_context().gcs_address
    out = tmp_path / "out"
    arguments = command(tree, out, "--batch-bytes", "1", "--engine", "ray", "--address", address)
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and not list(out.glob("table=files/part-*")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    # The last: the signal came after Python had taken its handlers down.
    assert process.returncode in (130, 3, -signal.SIGINT), said
    assert b"Traceback" not in said
    content(out)
    for folder in (out, tmp_path / "local"):
        hlofast.scan(tree.root, folder, format="jsonl")
    assert content(out) == content(tmp_path / "local")


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--address", "auto"), "--engine ray"), (("--engine", "dask"), "invalid choice")],
)
def test_wrong_usage(tree: Tree, options: tuple[str, ...], said: str) -> None:
    done = subprocess.run(command(tree, "-", *options), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("spec", [None, ModuleSpec("ray", None)])
def test_without_ray_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None
) -> None:
    """A folder of the name is not Ray."""
    monkeypatch.setattr("hlofast.ray.find_spec", lambda name: spec)
    with pytest.raises(ModuleNotFoundError, match=r"hlofast\[ray\]"):
        hlofast.ray.Cluster()


def test_nothing_imports_ray_unless_it_is_used() -> None:
    code = "import sys, hlofast, hlofast.ray; print('ray' in sys.modules, 'pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
