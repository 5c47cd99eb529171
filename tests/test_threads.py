"""Many threads that read one module at once get the same results."""

import threading
from pathlib import Path

import hlofast

THREADS = 8


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
    barrier = threading.Barrier(THREADS)
    results: list[list[object]] = []
    failures: list[BaseException] = []

    def read() -> None:
        try:
            barrier.wait()
            results.append(facts(module))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(results) == THREADS
    expected = facts(hlofast.load(train_step))
    assert all(result == expected for result in results)


def test_threads_share_arrays(train_step: Path) -> None:
    module = hlofast.load(train_step)
    barrier = threading.Barrier(THREADS)
    arrays: list[list[int]] = []

    def read() -> None:
        barrier.wait()
        arrays.append([id(module.columns[name]) for name in module.columns])

    threads = [threading.Thread(target=read) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(arrays) == THREADS
    assert all(ids == arrays[0] for ids in arrays)


def test_loading_releases_the_interpreter_lock(train_step: Path) -> None:
    """Threads that load at the same time get equal modules, whoever holds the lock."""
    data = train_step.read_bytes()
    modules: list[hlofast.Module] = []
    threads = [
        threading.Thread(target=lambda: modules.append(hlofast.loads(data))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(modules) == 4
    assert all(module == modules[0] for module in modules)
