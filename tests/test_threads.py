"""Many threads that read one module at once get the same results."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import hlofast

THREADS = 8
T = TypeVar("T")


def in_threads(count: int, work: Callable[[], T]) -> list[T]:
    """The results of `work` on `count` threads that start together; raises what one of them raises."""
    barrier = threading.Barrier(count)
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            barrier.wait()
            results.append(work())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(results) == count
    return results


def facts(module: hlofast.Module) -> list[object]:
    """Every lazy column and every decoder."""
    columns = {name: module.columns[name].tolist() for name in module.columns}
    instructions = [
        (
            i.name,
            i.users.names(),
            str(i.shape),
            [(key, repr(value)) for key, value in i.attributes.items()],
            i.metadata and (i.metadata.op_name, len(i.metadata.stack_frames)),
            i.source and str(i.source),
            i.backend_config,
            i.frontend_attributes,
            i.parameter_number,
            i.literal and (i.literal.text, [leaf.array.tolist() for leaf in i.literal.leaves]),
            i.text_line,
        )
        for i in module
    ]
    header = [(key, repr(value)) for key, value in module.header.items()]
    more = [module.op_names, module.source_files, str(module.summary()), module.fingerprint()]
    return [columns, instructions, header, more, module.table().to_pylist(), module.to_text()]


def test_all_threads_agree(train_step: Path) -> None:
    module = hlofast.load(train_step)
    results = in_threads(THREADS, lambda: facts(module))
    expected = facts(hlofast.load(train_step))
    assert all(result == expected for result in results)


ANALYSES: dict[str, Callable[[hlofast.Module], Any]] = {
    "cost": hlofast.Module.cost,
    "matmuls": hlofast.Module.matmuls,
    "collectives": hlofast.Module.collectives,
    "lint": hlofast.Module.lint,
    "memory": hlofast.Module.memory,
    "remat": hlofast.Module.remat,
    "stages": hlofast.Module.stages,
    "time": lambda module: module.time("v5e"),
    "summary": hlofast.Module.summary,
    "verdict": hlofast.Module.verdict,
}


@pytest.mark.parametrize("name", ANALYSES)
def test_one_module_in_16_threads(train_step: Path, name: str) -> None:
    """The first use of an analysis, on all threads at once."""
    analysis = ANALYSES[name]

    def document(module: hlofast.Module) -> str:
        return json.dumps(analysis(module).to_dict(), sort_keys=True, default=str)

    module = hlofast.load(train_step)
    results = in_threads(16, lambda: document(module))
    assert set(results) == {document(hlofast.load(train_step))}


def test_threads_share_arrays(train_step: Path) -> None:
    module = hlofast.load(train_step)
    arrays = in_threads(THREADS, lambda: [id(module.columns[name]) for name in module.columns])
    assert all(ids == arrays[0] for ids in arrays)


def test_loading_releases_the_interpreter_lock(train_step: Path) -> None:
    """Threads that load at the same time get equal modules, whoever holds the lock."""
    data = train_step.read_bytes()
    modules = in_threads(4, lambda: hlofast.loads(data))
    assert all(module == modules[0] for module in modules)
