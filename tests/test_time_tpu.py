"""The time model on real TPU programs against their compiler's estimates."""

import re
import statistics
from pathlib import Path

import numpy
import pytest

import hlofast
from test_benches import bench_module

bench_module("gpu_accuracy")  # Which the next one imports.
time_accuracy = bench_module("time_accuracy")
PROGRAMS = time_accuracy.programs(time_accuracy.FIXTURES / "dumps")
EVERY = [each for folder in time_accuracy.FOLDERS for each in time_accuracy.programs(folder)]


@pytest.fixture(scope="module")
def measured() -> dict:
    rows = [row for program in EVERY for row in time_accuracy.rows_of(*program)]
    return time_accuracy.measure(rows)


def test_four_generations_are_there() -> None:
    assert {chip for _, chip, _ in EVERY} >= {"v4", "v5e", "v5p", "v6e"}
    assert len(EVERY) >= 100


def test_model_and_compiler_rank_instructions_alike(measured: dict) -> None:
    assert measured["rows"] > 4500
    assert measured["spearman"] > 0.98
    for chip, of_chip in measured["chips"].items():
        assert of_chip["spearman"] > 0.93, chip
    assert sum(own > 0.95 for own in measured["programs"].values()) > 75


def test_errors_after_one_factor_per_chip_and_bound_are_small(measured: dict) -> None:
    assert measured["tested_rows"] > 600
    assert measured["median_error"] < 0.05
    for chip, of_chip in measured["chips"].items():
        if of_chip["tested_rows"]:
            assert of_chip["median_error"] < 0.15, chip
            for factor in of_chip["factors"].values():
                assert 0.8 < factor < 1.25, chip


@pytest.mark.parametrize(("name", "chip", "path"), PROGRAMS, ids=[name for name, _, _ in PROGRAMS])
def test_times_of_programs_hang_together(name: str, chip: str, path: Path) -> None:
    module = hlofast.load(path)
    time = module.time(chip)
    parts = time.compute_seconds + time.memory_seconds + time.other_seconds
    assert parts + sum(time.exposed.values()) == pytest.approx(time.step_seconds)
    assert time.unknown == ()
    seconds, ideal = time.column("seconds"), time.column("roofline_seconds")
    assert numpy.isfinite(seconds).all()
    assert (seconds >= 0).all()
    assert (time.column("end_seconds") >= time.column("start_seconds")).all()
    whole = float((seconds * time.column("multiplicity")).sum())
    assert sum(row["seconds"] for row in time.by("opcode")) == pytest.approx(whole)
    # Collectives are charged the links, and what the schedule spends adds up to the step.
    waits = time.exposed.get("other slices", 0.0)
    for key in ("bound", "opcode", "source", "scope"):
        spent = sum(row["step_seconds"] for row in time.by(key))
        assert spent + waits == pytest.approx(time.step_seconds)
    links = sum(
        row["seconds"] * row["multiplicity"]
        for row in time.collectives
        if row["seconds"] is not None
    )
    charged = {row["bound"]: row["seconds"] for row in time.by("bound")}
    assert charged.get("communication", 0.0) == pytest.approx(links)
    # What is scheduled takes at least as long as at best, and a chip does no more than its peak.
    if module.summary().devices_together > 1:
        with pytest.raises(ValueError, match=r"^not partitioned yet"):
            _ = time.mfu
    else:
        assert time.mfu < 1
    assert float(ideal.max()) <= time.step_seconds


def test_texts_without_windows_take_as_long() -> None:
    # Texts that XLA prints before it makes code, as of programs that do not fit, have no windows.
    braces = rb"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"
    written = re.compile(rb'"window_config":\{' + braces + rb'\},?|"estimated_cycles":"?\d+"?,?')
    steps, updates = [], []
    for name, chip, path in EVERY:
        module = hlofast.load(path)
        text = module.text.encode()
        if (bare := written.sub(b"", text)) == text:
            continue
        before, after = module.time(chip), hlofast.loads(bare).time(chip)
        steps.append(after.step_seconds / before.step_seconds)
        both = zip(before.column("seconds"), after.column("seconds"), strict=True)
        for row, (with_windows, without) in zip(module.instructions, both, strict=True):
            # Updates in place write one layer of a stack, not all.
            if "dynamic-update-slice" in row.name and with_windows > 2e-6:
                updates.append((without / with_windows, name, row.name))
    assert len(steps) >= 100
    assert 0.9 < statistics.median(steps) < 1.1
    assert max(steps) < 1.3
    assert len(updates) >= 100
    assert max(updates) < (1.4,)
