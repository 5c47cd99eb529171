"""Costs with TPU sizes against the TPU compilers' own figures."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import hlofast

FIXTURES = Path(__file__).parent / "fixtures"

# The compilers of v5p and v6e align the pointer tables of tuples to 32 bytes, that of v5e to 512,
# which is what hlofast counts; no text says for which of them it was compiled.
TABLE_SLACK = 512 - 32


def read(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def text_of(path: Path) -> str:
    name = path.name.removesuffix(".xla.json.gz")
    (dump,) = (
        file
        for file in (path.with_name(f"{name}.txt"), path.with_name(f"{name}.txt.gz"))
        if file.exists()
    )
    return read(dump)


INDEX = json.loads((FIXTURES / "dumps" / "index.json").read_text())["dumps"]
PROGRAMS = {
    path.name.removesuffix(".xla.json.gz"): path
    for path in [
        *sorted((FIXTURES / "dumps").glob("tpu_*.after*.xla.json.gz")),
        FIXTURES / "train_step.after_optimizations.xla.json.gz",
    ]
}
SMALL = {
    row["name"]: row
    for row in map(json.loads, read(FIXTURES / "costs" / "tpu_programs.jsonl.gz").splitlines())
}


# Sums of bytes that are not the compiler's yet, by program.
OTHER_BYTES = {
    # Fusions of work beside asynchronous collectives.
    "tpu_decode.after": {"", "0{}", "9{}", "12{}"},
    # Gathers and scatters whose results or updates are padded themselves: slices of 48 elements.
    "tpu_indexing.after": {"", "0{}", "out{}"},
    # Likewise, and a scatter that runs on the SparseCore: about 2^25 bytes more read and written,
    # what one such scatter moves by the rule.
    "tpu_mixture.after": {"", "0{}", "out{}"},
}


def figures(text: str) -> tuple[list[float], float]:
    cost = hlofast.loads(text).cost(xla=True, backend="tpu", float32=True)
    return [float(cost.flops), float(cost.transcendentals)], float(cost.bytes_accessed)


def compare(name: str, text: str, theirs: dict[str, float], slack: float) -> None:
    """Equal FLOPs and transcendentals, 32-bit sums included; bytes within ``slack``."""
    operations, moved = figures(text)
    assert operations == [theirs.get("flops", 0.0), theirs.get("transcendentals", 0.0)]
    if name not in OTHER_BYTES:
        assert moved == pytest.approx(theirs["bytes accessed"], rel=1e-6, abs=slack)


def compare_sums(name: str, text: str, theirs: dict[str, float], slack: float) -> None:
    """The whole dictionary, but for the time: `optimal_seconds` uses rates of the device."""
    ours = hlofast.loads(text).cost(xla=True, backend="tpu", float32=True).cost_analysis()
    for key in (ours.keys() | theirs.keys()) - {"optimal_seconds"}:
        allowed = 0.0 if key.startswith("utilization") else slack
        near = pytest.approx(theirs.get(key, 0.0), rel=1e-6, abs=allowed)
        # An exception that agrees has to go.
        is_other = key.removeprefix("bytes accessed") in OTHER_BYTES.get(name, ())
        assert (ours.get(key, 0.0) == near) is not is_other, key


def slack_of(text: str, device: str) -> float:
    """Bytes that tables of tuples may count too much."""
    if device == "v5e":
        return 0.0
    return TABLE_SLACK * len(re.findall(r" (?:tuple|while|[a-z-]+-done|fusion)\(", text))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    path = PROGRAMS[name]
    device = next(row["backend"] for row in INDEX if row["name"] == name)[:3]
    text = text_of(path)
    theirs = json.loads(read(path))["compiled_cost_analysis"]
    compare(name, text, theirs, slack_of(text, device))
    compare_sums(name, text, theirs, slack_of(text, device))


@pytest.mark.parametrize("name", SMALL)
def test_small_programs(name):
    row = SMALL[name]
    slack = slack_of(row["text"], row["backend"][:3])
    compare(name, row["text"], row["cost"], slack)
    compare_sums(name, row["text"], row["cost"], slack)


def test_there_are_enough_programs():
    assert len(PROGRAMS) >= 12
    assert len(SMALL) >= 150
