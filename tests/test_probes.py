"""The probes, XLA's verdicts on them and the tables made from both belong together."""

from __future__ import annotations

import importlib.util
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from probes import coverage
from probes.catalog import all_probes
from probes.judge import stable
from probes.opcode_table import minimal_instructions, reference_row

HERE = Path(__file__).parent / "probes"


@pytest.fixture(scope="module")
def probes():
    return list(all_probes())


@pytest.fixture(scope="module")
def verdicts():
    return coverage.stored_verdicts()


def test_every_probe_has_its_verdict(probes, verdicts):
    judged = {row["id"]: (row["row"], row["text"]) for row in verdicts.values()}
    assert judged == {probe.id: (probe.row, probe.text) for probe in probes}


def test_there_are_enough_probes_in_every_section(probes):
    assert len({probe.text for probe in probes}) >= 1500
    sections = Counter(probe.row[0] for probe in probes)
    assert set(sections) == set(coverage.TITLES)


def test_generated_tables_are_current(probes, verdicts):
    assert (HERE / "COVERAGE.md").read_text() == coverage.coverage(probes, verdicts)
    assert (HERE / "newest.toml").read_text() == coverage.newest(probes, verdicts)


def test_every_opcode_has_an_accepted_instruction(verdicts):
    opcodes = [op.opcode for op in minimal_instructions()]
    assert len(set(opcodes)) == len(opcodes) == 133
    assert [op for op in opcodes if verdicts[f"opcodes/{op}/minimal"]["verdict"] != "accept"] == []


def test_every_opcode_row_has_both_verdicts(probes, verdicts):
    seen = defaultdict(set)
    for probe in probes:
        seen[probe.row].add(verdicts[probe.id]["verdict"] == "accept")
    rows = {reference_row(op.opcode) for op in minimal_instructions()}
    assert {row for row in rows if len(seen[row]) < 2} == set()


def test_newest_names_probes_that_the_judge_refused_or_refuses_newly(verdicts):
    constructs = tomllib.loads((HERE / "newest.toml").read_text())["construct"]
    assert constructs
    for construct in constructs:
        accepted = [verdicts[identifier]["verdict"] for identifier in construct["accepted"]]
        assert "accept" not in accepted, construct["name"]
        assert accepted or construct["rejected"], construct["name"]


@pytest.mark.oracle
@pytest.mark.skipif(importlib.util.find_spec("jaxlib") is None, reason="needs jaxlib")
def test_verdicts_are_what_xla_says_today(probes, verdicts):
    again = stable([probe.text for probe in probes])
    differing = [
        probe.id
        for probe, now in zip(probes, again, strict=True)
        if now["verdict"] != verdicts[probe.id]["verdict"]
    ]
    assert differing == []
