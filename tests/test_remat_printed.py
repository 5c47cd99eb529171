"""Rewritten TPU programs as XLA's parser and printer give them back.

`rewrites/printed.jsonl` was recorded with XLA; see `make_printed_rewrites.py`, which also says what
is compared, and `tests/oracle/check_printed_rewrites.py`, which asks XLA again.
"""

import functools
import gzip
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, LONG

sys.path.insert(0, str(FIXTURES))

import make_printed_rewrites  # lies among the fixtures

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in make_printed_rewrites.RECORD.read_text().splitlines()
]
PROGRAMS: dict[str, Path] = make_printed_rewrites.programs()
JUDGED = list(dict.fromkeys(row["program"] for row in ROWS))


MOST = None if LONG else 6
"""Of the rewrites of one program, in the order in which they were recorded."""


@functools.cache
def rewritten(program: str) -> list[tuple[str, int, hlofast.Module]]:
    return list(itertools.islice(make_printed_rewrites.rewritten(PROGRAMS[program]), MOST))


def test_many_programs_were_judged() -> None:
    assert len(ROWS) >= 45
    assert len(JUDGED) >= 15
    assert sum(row["what"] == "plan" for row in ROWS) >= 3
    assert set(JUDGED) <= set(PROGRAMS)


@pytest.mark.parametrize("program", JUDGED)
def test_rewritten_modules_print_back_equal_with_the_predicted_peak(program: str) -> None:
    recorded = [row for row in ROWS if row["program"] == program]
    rows = {row["what"]: row for row in recorded[:MOST]}
    measured = {}
    for what, peak, module in rewritten(program):
        assert what not in measured
        measured[what] = {
            "program": program,
            "what": what,
            "peak": hlofast.loads(module.to_text()).remat(rule=make_printed_rewrites.RULE).peak,
            "fingerprint": make_printed_rewrites.fingerprint(module),
        }
        assert measured[what]["peak"] == peak
    # What is planned now and was not when this was recorded is left to the oracle.
    assert {what: measured.get(what) for what in rows} == rows


@pytest.mark.parametrize(
    "path", sorted(make_printed_rewrites.TEXTS.iterdir()), ids=lambda path: path.name
)
def test_what_xla_prints_is_the_same_program(path: Path) -> None:
    program, what = path.name.removesuffix(".txt.gz").split(".", 1)
    printed = hlofast.loads(gzip.decompress(path.read_bytes()))
    (recorded,) = (row for row in ROWS if (row["program"], row["what"]) == (program, what))
    assert make_printed_rewrites.fingerprint(printed) == recorded["fingerprint"]
    (module,) = (module for rewrite, _, module in rewritten(program) if rewrite == what)
    assert module.same_program(printed, metadata=False)
    # The comparison does not pass whatever is compared.
    original = hlofast.load(PROGRAMS[program])
    assert not original.same_program(printed, metadata=False)


def test_every_kept_text_is_there() -> None:
    names = {path.name.split(".")[0] for path in make_printed_rewrites.TEXTS.iterdir()}
    assert names == set(make_printed_rewrites.KEPT)
