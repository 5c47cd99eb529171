"""Two threads on one large text, compared with two independent parses at once."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hlofast
from harness import Figure, Record, interleave
from texts import Text, committed, dumps, generated

SIMILAR = ("cpu_stacks.after", "cpu_stacks_unfused.after")


def texts() -> list[Text]:
    real = [text for text in dumps() if text.name in SIMILAR]
    return [generated("similar", 100_000), *real, generated("giant", 100_000)]


@pytest.mark.parametrize("text", texts(), ids=lambda text: text.name)
def bench_threads(text: Text, benchmark: Any, record: Record, quick: bool) -> None:
    data = text.read()
    same(hlofast.loads(data, threads=1), hlofast.loads(data, threads=2))
    with ThreadPoolExecutor(2) as pool:

        def two_parses() -> None:
            for done in [pool.submit(hlofast.loads, data, threads=1) for _ in range(2)]:
                done.result()

        two_parses()
        times = interleave(
            {
                "one": lambda: hlofast.loads(data, threads=1),
                "two": lambda: hlofast.loads(data, threads=2),
                "independent": two_parses,
            },
            5 if quick else 40,
        )
    benchmark.group = "two threads"
    benchmark.pedantic(lambda: hlofast.loads(data, threads=2), rounds=3 if quick else 10)
    speed_up = times["one"].best / times["two"].best
    independent = 2 * times["one"].best / times["independent"].best
    note = f"{speed_up:.2f}× compared with {independent:.2f}×"
    if text.name.startswith("giant"):
        title = "two threads on one giant computation, of one thread's speed"
        record.figures.append(Figure(title, speed_up, at_least=0.95))
    else:
        title = f"two threads on {text.name}, of the speed-up of two parses"
        record.figures.append(Figure(title, speed_up / independent, at_least=0.9, note=note))
    record.details.append(
        {"text": text.name, "bytes": len(data), "speed_up": speed_up, "independent": independent}
        | {name: measured.facts() for name, measured in times.items()}
    )


ANALYSES = ("cost", "collectives", "memory", "lint")


def bench_analyses_on_threads(record: Record, quick: bool) -> None:
    """Sixteen modules, each analysed by one of the threads; they compute without the lock."""
    data = max((text.read() for text in committed()), key=len)

    def analyse(module: hlofast.Module) -> None:
        for name in ANALYSES:
            getattr(module, name)()

    def run(pool: ThreadPoolExecutor) -> float:
        modules = [hlofast.loads(data, threads=1) for _ in range(16)]
        begin = time.perf_counter()
        for done in [pool.submit(analyse, module) for module in modules]:
            done.result()
        return time.perf_counter() - begin

    best = {"one": float("inf"), "two": float("inf")}
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(2) as two:
        for _ in range(3 if quick else 20):
            for name, pool in (("one", one), ("two", two)):
                best[name] = min(best[name], run(pool))
    speed_up = best["one"] / best["two"]
    record.figures.append(Figure("analyses of 16 modules, two threads", speed_up, at_least=1.5))
    record.details.append(
        {"text": "analyses"} | {name: {"best": seconds} for name, seconds in best.items()}
    )


def same(single: Any, two: Any) -> None:
    """Columns and ids do not depend on the number of threads."""
    for name in single.columns:
        assert np.array_equal(single.columns[name], two.columns[name]), name
    assert [c.name for c in single.computations] == [c.name for c in two.computations]
