"""Diff of a module with itself, renamed and reordered, compared with the time to parse it."""

import sys
from pathlib import Path
from typing import Any

import hlofast
from harness import CHECKOUT, Figure, Record, against, interleave, say
from texts import Text, generated, seed

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from renamed import renamed


def measure(text: Text, rounds: int) -> dict[str, float]:
    """Best times in milliseconds; the contestants alternate."""
    say(f"diff of {text.name}")
    data = text.read()
    before = hlofast.loads(data)
    after = hlofast.loads(renamed(before))
    assert before.diff(after).is_empty
    times = interleave(
        {
            "parse": lambda: hlofast.loads(data),
            # A module keeps its results, so each call gets a fresh module.
            "both": lambda: hlofast.loads(data).diff(after),
        },
        rounds,
    )
    parse, both = times["parse"].best * 1e3, times["both"].best * 1e3
    return {"parse_ms": parse, "diff_ms": both - parse}


def bench_diff(benchmark: Any, record: Record, quick: bool) -> None:
    step = CHECKOUT / "tests" / "fixtures" / "train_step.after_optimizations.txt"
    texts = [text for text in (seed(), Text("train_step", step)) if text is not None]
    for text in texts:
        record.details.append({"text": text.name} | measure(text, 3 if quick else 9))
    first = record.details[0]
    name = str(first["text"]).replace("_", " ")
    record.figures.append(
        Figure(f"diff: of the time of parsing, {name}", first["diff_ms"] / first["parse_ms"])
    )
    sizes = (10_000, 30_000) if quick else (10_000, 100_000, 300_000)
    per_row = []
    for size in sizes:
        detail = measure(generated("instructions", size), 3)
        per_row.append(detail["diff_ms"] / size)
        record.details.append({"instructions": size, **detail})
    what = f"time per instruction, {sizes[-1]:,} compared with {sizes[0]:,} instructions"
    record.figures.append(Figure(f"diff: {what}", per_row[-1] / per_row[0], at_most=2.0))
    data = texts[0].read()
    benchmark.group = f"diff {texts[0].name}"
    module = hlofast.loads(data)
    other = hlofast.loads(renamed(module))
    against(benchmark, lambda: module.diff(other), {"parse": lambda: hlofast.loads(data)}, 3)
