"""Time and memory per byte as texts grow, compared with a module of 10,000 instructions."""

from typing import Any

import hlofast
from harness import Figure, Record, interleave, say
from texts import Text, generated

BASE = ("instructions", 10_000)
GROWN = {
    ("instructions", 1_000): "10^3 instructions",
    ("instructions", 100_000): "10^5 instructions",
    ("instructions", 1_000_000): "10^6 instructions",
    ("untyped_tuple", 100_000): "tuple of 10^5, operands without types",
    ("typed_tuple", 3_000): "tuple of 3·10^3, type repeated",
    ("header_line", 10_000_000): "header line of 10 MB",
}
LARGEST = ("instructions", 1_000_000)


def bench_growth(benchmark: Any, record: Record, quick: bool) -> None:
    base = generated(*BASE)
    data = base.read()
    benchmark.group = "10^4 instructions"
    benchmark.pedantic(lambda: hlofast.loads(data, threads=1), rounds=20, warmup_rounds=2)
    per_byte = hlofast.loads(data, threads=1).nbytes / len(data)
    slowest, fullest = ("", 0.0), ("", 0.0)
    for size, title in GROWN.items():
        if quick and size == LARGEST:
            continue
        detail = compared(data, generated(*size), 3 if quick else 9)
        detail["title"] = title
        detail["memory_of_text"] = (memory := detail.pop("nbytes") / detail["bytes"])
        detail["memory_ratio"] = memory / per_byte
        record.details.append(detail)
        slowest = max(slowest, (title, detail["time_ratio"]), key=lambda pair: pair[1])
        fullest = max(fullest, (title, detail["memory_ratio"]), key=lambda pair: pair[1])
    record.figures += [
        Figure(
            "growth: time per byte, relative to 10^4 instructions", slowest[1], at_most=1.5,
            note=slowest[0],
        ),
        Figure(
            "growth: memory per byte, relative to 10^4 instructions", fullest[1],
            at_most=1.0, note=fullest[0],
        ),
    ]  # fmt: skip


def compared(data: bytes, text: Text, rounds: int) -> dict[str, Any]:
    """Times `text` and the base `data` alternately. The smaller text runs more often."""
    say(f"growth: {text.name}")
    grown = text.read()
    turns = max(1, round(min(len(grown) / len(data), 20)))
    backwards = max(1, round(min(len(data) / len(grown), 20)))
    times = interleave(
        {
            "base": lambda: hlofast.loads(data, threads=1),
            "grown": lambda: hlofast.loads(grown, threads=1),
        },
        rounds,
        turns={"base": turns, "grown": backwards},
    )
    module = hlofast.loads(grown, threads=1)
    speeds = {"base": len(data) / times["base"].best, "grown": len(grown) / times["grown"].best}
    return {
        "text": text.name,
        "bytes": len(grown),
        "instructions": module.instruction_count,
        "nbytes": module.nbytes,
        "time_ratio": speeds["base"] / speeds["grown"],
        "base": times["base"].facts(),
        "grown": times["grown"].facts(),
    }
