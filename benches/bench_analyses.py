"""Collectives, time, lint and memory of a module, compared with the time to parse it."""

from collections.abc import Callable
from typing import Any

import hlofast
from harness import Figure, Record, against, geometric_mean, say, seconds
from texts import Text, dumps, generated, seed
from work import device_for, peak, step


def measure(text: Text, rounds: int) -> dict[str, float]:
    """Best times in milliseconds; the contestants alternate."""
    say(f"analyses of {text.name}")
    data = text.read()
    best: dict[str, float] = {}
    device = device_for(data)

    def clock(name: str, work: Callable[[], object]) -> None:
        best[name] = min(best.get(name, float("inf")), seconds(work) * 1e3)

    for _ in range(rounds):
        clock("parse", lambda: hlofast.loads(data))
        for name, ask in {"step": lambda module: step(module, device), "memory": peak}.items():
            fresh = hlofast.loads(data)
            clock(name, lambda ask=ask, fresh=fresh: ask(fresh))
    return best


def bench_analyses(benchmark: Any, record: Record, quick: bool) -> None:
    texts = [text for text in (seed(), *dumps()) if text is not None]
    if quick:
        texts = texts[:3]
    ratios: dict[str, list[float]] = {"step": [], "memory": []}
    for index, text in enumerate(texts):
        milliseconds = measure(text, 3 if quick else 15 if index == 0 else 3)
        for name, values in ratios.items():
            values.append(milliseconds[name] / milliseconds["parse"])
        record.details.append({"text": text.name} | {f"{k}_ms": v for k, v in milliseconds.items()})
    asked = {
        "step": ("collectives + time + lint, of the time of parsing", 3.0),
        "memory": ("memory, of the time of parsing", 2.0),
    }
    first = texts[0].name.replace("_", " ")
    for name, (what, most) in asked.items():
        mean = geometric_mean(ratios[name])
        record.figures += [
            Figure(f"analyses: {what}, {first}", ratios[name][0], at_most=most),
            Figure(f"analyses: {what}, geometric mean of {len(texts)}", mean),
        ]
    sizes = (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000)
    per_row = []
    for size in sizes:
        milliseconds = measure(generated("instructions", size), 2 if size > 100_000 else 5)
        per_row.append(milliseconds["memory"] / size)
        record.details.append({"instructions": size, "memory_ms": milliseconds["memory"]})
    what = f"memory: time per instruction, {sizes[-1]:,} compared with {sizes[0]:,} instructions"
    record.figures.append(Figure(f"analyses: {what}", per_row[-1] / per_row[0]))
    data = texts[0].read()
    benchmark.group = f"analyses {texts[0].name}"
    modules = iter([hlofast.loads(data) for _ in range(6 * 3)])
    device = device_for(data)
    against(
        benchmark, lambda: step(next(modules), device), {"parse": lambda: hlofast.loads(data)}, 3
    )
