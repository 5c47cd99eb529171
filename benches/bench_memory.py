"""Memory in addition to the text, as reported by `nbytes` and checked against the allocator."""

import json
import subprocess
from typing import Any

import pytest

import hlofast
from harness import CHECKOUT, Figure, Record, geometric_mean, say
from texts import Text, dumps, seed


def measured(text: Text) -> dict[str, Any]:
    data = text.read()
    module = hlofast.loads(data, threads=1)
    parsed = module.nbytes
    for name in module.columns:
        module.columns[name]
    return {
        "text": text.name,
        "bytes": len(data),
        "parsed": parsed / len(data),
        "touched": module.nbytes / len(data),
        "parsed_bytes": parsed,
        "touched_bytes": module.nbytes,
    }


def bench_memory(record: Record) -> None:
    first = seed()
    details = {text.name: measured(text) for text in [*([first] if first else []), *dumps()]}
    record.details += details.values()
    of_dumps = [detail for name, detail in details.items() if name != "seed_002"]
    if first:
        detail = details[first.name]
        record.figures += [
            Figure("memory beyond the text, seed 002", detail["parsed"], "× text", at_most=0.4),
            Figure("… with every column and users", detail["touched"], "× text", at_most=0.6),
        ]
    means = {key: geometric_mean(d[key] for d in of_dumps) for key in ("parsed", "touched")}
    title = f"memory beyond the text, geometric mean of {len(of_dumps)} dumps"
    record.figures += [
        Figure(title, means["parsed"], "× text", at_most=0.5),
        Figure("… with every column and users", means["touched"], "× text", at_most=0.8),
    ]


def bench_allocator(record: Record) -> None:
    """`nbytes` equals the bytes requested from the allocator."""
    texts = [text for text in [seed(), *dumps()] if text][:12]
    say("building a program that counts allocations (cargo, release profile)")
    command = ["cargo", "run", "--quiet", "--release", "--package", "hlofast"]
    output = subprocess.check_output(
        [*command, "--example", "memory", "--", *(str(text.path) for text in texts)],
        cwd=CHECKOUT, text=True,
    )  # fmt: skip
    worst = 0.0
    for text, line in zip(texts, output.splitlines(), strict=True):
        counted, python = json.loads(line), measured(text)
        assert counted["parsed"] == python["parsed_bytes"]
        assert counted["touched"] == python["touched_bytes"], "memory.rs misses a column"
        for key in ("parsed", "touched"):
            error = abs(counted[f"{key}_counted"] - counted[key]) / counted[f"{key}_counted"]
            worst = max(worst, error)
        record.details.append({"allocator": text.name} | counted)
    assert worst == pytest.approx(0, abs=0.01)
    record.figures.append(
        Figure("nbytes, largest error compared with the allocator", worst * 100, "%", at_most=1)
    )
