"""Numbers with units mean the same as options and as Python arguments."""

from pathlib import Path

import pytest

import hlofast
from hlofast._units import read_bytes, read_rate, read_seconds
from test_cli import hlofast_command


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("16GiB", 16 << 30),
        ("16GB", 16 * 10**9),
        # XLA prints "Used 20.5G of 15.75G hbm" for 2**30 bytes.
        ("95G", 95 << 30),
        ("15.75g", 63 << 28),
        ("9007199254740993", 9007199254740993),
        ("9007199254740993 B", 9007199254740993),
    ],
)
def test_bytes(text: str, count: int) -> None:
    assert read_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "rate"),
    [("197T", 197e12), ("197TFLOP/s", 197e12), ("4.6 PFLOPS", 4.6e15), ("1.97e14", 1.97e14)],
)
def test_rates(text: str, rate: float) -> None:
    assert read_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "seconds"), [("300ms", 0.3), ("1.2s", 1.2), ("1e-3", 0.001), ("5min", 300), (2, 2)]
)
def test_seconds(text: str | float, seconds: float) -> None:
    assert read_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "x", "1 apple", "-1s", "nan", "inf", "9" * 5000, "1e999T"])
def test_what_is_no_figure_is_refused_with_an_example(text: str) -> None:
    for read, example in ((read_bytes, "16GiB"), (read_seconds, "300ms"), (read_rate, "197T")):
        with pytest.raises(ValueError, match=example):
            read(text)


def test_python_takes_texts(train_step: Path) -> None:
    module = hlofast.load(train_step)
    told = module.cost(peak_flops="197T").mfu("300ms")
    assert told.as_dict() == module.cost().mfu(0.3, 197e12).as_dict()


@pytest.mark.parametrize(
    ("options", "example"),
    [
        (("cost", "FILE", "--step-time", "1s", "--peak-flops", "fast"), "197T"),
        (("cost", "FILE", "--step-time", "soon"), "300ms"),
        (("memory", "FILE", "--hbm", "much"), "16GiB"),
        (("scan", "FILE", "--max-bytes", "much"), "16GiB"),
        (("scan", "FILE", "--max-seconds", "long"), "300ms"),
        (("trace", "FILE", "-o", "x.json", "--min-duration", "short"), "300ms"),
    ],
)
def test_options_say_what_they_take(
    options: tuple[str, ...], example: str, train_step: Path
) -> None:
    done = hlofast_command(*(str(train_step) if word == "FILE" else word for word in options))
    assert done.returncode == 2
    assert f"such as {example}" in done.stderr


def test_a_peak_in_tera_is_what_it_says(train_step: Path) -> None:
    shown = [
        hlofast_command(
            "cost", "--step-time", "300ms", "--peak-flops", peak, str(train_step)
        ).stdout
        for peak in ("197T", "197 TFLOP/s", "1.97e14")
    ]
    assert "MFU" in shown[0]
    assert len(set(shown)) == 1
