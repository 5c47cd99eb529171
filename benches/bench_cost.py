"""Costs of a module, compared with XLA's own cost analysis."""

from collections.abc import Callable
from typing import Any

import hlofast
from harness import Figure, Record, against, geometric_mean, say, seconds
from texts import Text, dumps, seed
from work import attribute, count, decoded


def bench_cost(
    benchmark: Any,
    record: Record,
    quick: bool,
    xla_parse: Callable[[str], Any],
    xla_cost: Callable[[Any], dict[str, float]],
) -> None:
    texts = [text for text in (seed(), *dumps()) if text is not None]
    if quick:
        texts = texts[:4]
    ratios: dict[str, list[float]] = {"count": [], "attribute": [], "loads": []}
    rounds = 3 if quick else 10
    for index, text in enumerate(texts):
        detail = measure(text, 2 if quick or index else rounds, xla_parse, xla_cost)
        for name, times in ratios.items():
            times.append(detail[name])
        record.details.append({"text": text.name, **detail})
    names = {
        "count": ("FLOPs, transcendentals, bytes by memory space, multiplicities", 30),
        "attribute": ("the same with phase, scope and source of every instruction", 8),
        "loads": ("loads + cost beside XLA's parse + cost", 38),
    }
    first = texts[0].name.replace("_", " ")
    for name, (what, asked) in names.items():
        record.figures += [
            Figure(f"cost: {what}, {first}", ratios[name][0], at_least=asked),
            Figure(f"cost: {what}, geometric mean", geometric_mean(ratios[name])),
        ]
    # pytest-benchmark's own table shows the first text.
    data = texts[0].read()
    benchmark.group = f"cost {texts[0].name}"
    peer = xla_parse(data.decode())
    modules = iter([decoded(data) for _ in range(6 * rounds)])
    against(benchmark, lambda: count(next(modules)), {"xla": lambda: xla_cost(peer)}, rounds)


def measure(
    text: Text,
    rounds: int,
    xla_parse: Callable[[str], Any],
    xla_cost: Callable[[Any], dict[str, float]],
) -> dict[str, float]:
    """Ratios of the best times; XLA and hlofast alternate."""
    say(f"cost of {text.name}")
    data = text.read()
    string = data.decode()
    peer = xla_parse(string)
    best: dict[str, float] = {}

    def clock(name: str, work: Callable[[], object]) -> None:
        best[name] = min(best.get(name, float("inf")), seconds(work))

    for _ in range(rounds):
        clock("xla", lambda: xla_cost(peer))
        clock("xla_loads", lambda: xla_cost(xla_parse(string)))
        for _ in range(3):
            for name, work in {"attribute": attribute, "count": count}.items():
                fresh = decoded(data)
                clock(name, lambda work=work, fresh=fresh: work(fresh))
            clock("loads", lambda: hlofast.loads(data).cost().flops)
    return {
        "count": best["xla"] / best["count"],
        "attribute": best["xla"] / best["attribute"],
        "loads": best["xla_loads"] / best["loads"],
        "xla_ms": best["xla"] * 1e3,
        "count_ms": best["count"] * 1e3,
        "attribute_ms": best["attribute"] * 1e3,
        "xla_loads_ms": best["xla_loads"] * 1e3,
        "loads_ms": best["loads"] * 1e3,
    }
