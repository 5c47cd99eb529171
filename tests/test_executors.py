"""`hlofast.scan` on executors gives the rows of the local scan even if workers fail."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import hlofast
from dump_tree import MAX_TEXT_BYTES, Tree, grow, mixed_texts
from hlofast.errors import WorkerError
from test_scan_dataset import Rows, content


def scan(tree: Tree, out: Path | None = None, **options: Any) -> hlofast.Scan:
    options = {"batch_bytes": 1, "workers": 1, "format": "jsonl", **options}
    return hlofast.scan(tree.root, out, max_text_bytes=MAX_TEXT_BYTES, **options)


def rows(scanned: hlofast.Scan) -> dict[str, str]:
    """All rows of all tables in their order; NaN is not equal to itself, its text is."""
    return {table: str(scanned[table].to_pylist()) for table in scanned.tables}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return grow(tmp_path_factory.mktemp("executors") / "dump", mixed_texts(2), hosts=1)


@pytest.fixture(scope="module")
def local(tree: Tree) -> hlofast.Scan:
    return scan(tree)


@pytest.fixture(scope="module")
def undisturbed(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    scan(tree, out)
    return content(out)


def processes(kind: type[ProcessPoolExecutor] = ProcessPoolExecutor) -> ProcessPoolExecutor:
    return kind(2, mp_context=get_context("spawn"))


@pytest.mark.parametrize("make", [processes, lambda: ThreadPoolExecutor(2)])
@pytest.mark.parametrize("batch_bytes", [1, 1 << 18, 1 << 30])
def test_executors_find_what_threads_find(
    tree: Tree, local: hlofast.Scan, make: Callable[[], Executor], batch_bytes: int
) -> None:
    with make() as executor:
        scanned = scan(tree, executor=executor, batch_bytes=batch_bytes)
    assert len(rows(scanned)) > 8
    assert rows(scanned) == rows(local)
    assert scanned.counts == local.counts
    assert scanned.failures == local.failures
    assert scanned.unknown_targets == local.unknown_targets


def test_datasets_are_those_of_a_local_scan(tree: Tree, undisturbed: Rows, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ThreadPoolExecutor(3) as executor:
        scan(tree, out, executor=executor, batch_bytes=1 << 20)
        assert content(out) == undisturbed
        again = scan(tree, out, executor=executor)
        assert again.counts["unchanged"] == sum(again.counts.values()) == len(tree.expected)
        assert content(out) == undisturbed
    assert scan(tree, out).counts["unchanged"] == len(tree.expected)


class Killing(ProcessPoolExecutor):
    """Kills one of its workers when the tenth task comes."""

    tasks = 0

    def submit(self, *arguments: Any) -> Future[Any]:
        self.tasks += 1
        if self.tasks == 10:
            os.kill(next(iter(self._processes)), signal.SIGKILL)
        return super().submit(*arguments)


def test_a_killed_worker_is_an_error_and_the_dataset_goes_on(
    tree: Tree, undisturbed: Rows, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with processes(Killing) as executor, pytest.raises(WorkerError, match="BrokenProcessPool"):
        scan(tree, out, executor=executor)
    content(out)
    scanned = scan(tree, out)
    assert sum(scanned.counts.values()) == len(tree.expected)
    assert content(out) == undisturbed


class Ending(ThreadPoolExecutor):
    """Its tasks end as they should, and one of them in another way."""

    def __init__(self, end: BaseException, number: int = 20) -> None:
        super().__init__(2)
        self.end = end
        self.numbers = iter(range(1 << 30))
        self.number = number

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        if next(self.numbers) != self.number:
            return super().submit(function, *arguments)
        future: Future[Any] = Future()
        future.set_exception(self.end)
        return future


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (TimeoutError("the network"), WorkerError),
        (MemoryError(), WorkerError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_what_was_done_before_an_error_stays(
    tree: Tree, undisturbed: Rows, tmp_path: Path, end: BaseException, kind: type[BaseException]
) -> None:
    out = tmp_path / "out"
    with Ending(end) as executor, pytest.raises(kind):
        scan(tree, out, executor=executor)
    done = sum(len(own) for table, own in content(out).items() if table == "files")
    assert done == 20
    assert scan(tree, out).counts["unchanged"] == done
    assert content(out) == undisturbed


def test_errors_say_where_and_why(tree: Tree) -> None:
    with Ending(OSError("no more memory"), 0) as executor:
        with pytest.raises(WorkerError) as caught:
            scan(tree, executor=executor)
        executor.shutdown()
        with pytest.raises(WorkerError, match="cannot schedule"):
            scan(tree, executor=executor)
    assert str(tree.root) in str(caught.value)
    assert "OSError: no more memory" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


class Slow(ThreadPoolExecutor):
    """Its first task takes until all are submitted that will be before it is done."""

    def __init__(self) -> None:
        super().__init__(2)
        self.submitted = 0
        self.before_the_first = 0

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        self.submitted += 1
        if self.submitted > 1:
            return super().submit(function, *arguments)

        def late() -> Any:
            count = -1
            while count != self.submitted:
                count = self.submitted
                time.sleep(0.3)
            self.before_the_first = count
            return function(*arguments)

        return super().submit(late)


def test_tasks_wait_until_results_are_taken(tree: Tree) -> None:
    with Slow() as executor:
        scan(tree, executor=executor)
    assert executor.before_the_first == 4 < executor.submitted


def test_what_is_no_executor_is_refused(tree: Tree) -> None:
    with pytest.raises(TypeError, match="submit"):
        scan(tree, executor=7)


def test_folders_without_files_need_no_tasks(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        scanned = hlofast.scan(tmp_path, executor=executor)
    assert sum(scanned.counts.values()) == 0


def test_there_is_work_for_all_although_one_part_would_hold_it(tree: Tree) -> None:
    with Slow() as executor:
        scan(tree, executor=executor, batch_bytes=1 << 30)
    assert executor.submitted > 1
