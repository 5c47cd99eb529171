"""Advice judged by the compiler: programs before and after the change that it asks for.

`tests/oracle/judge_advice.py` compiled the programs of `tests/fixtures/advice_cases.py` and recorded
what XLA says of them.
"""

from __future__ import annotations

import functools
import json
import sys
import tarfile
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))
import advice_cases as cases

TOLERANCE = 0.1
"""The share of a promise by which XLA's figure may miss it."""
RECORDED = json.loads((FIXTURES / "advice" / "truth.json").read_text())
TRUTH = RECORDED["programs"]
VALUES = RECORDED["values"]
"""By pair: the norm of what the results differ by, by their norm."""
ROUNDING, EXACT = 0.02, 1e-6


@functools.cache
def texts() -> dict[str, bytes]:
    found = {}
    with tarfile.open(FIXTURES / "advice" / "programs.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.removesuffix(".txt")] = file.read()
    return found


def device(where: str) -> str:
    """The chip of a topology."""
    return f"tpu-{where.partition(':')[0]}"


@functools.cache
def program(name: str) -> hlofast.Module:
    where, axes, *_ = cases.PROGRAMS[name]
    told: dict[str, Any] = {} if where == cases.CPU else {"device": device(where)}
    if " x" in where:
        told["slices"] = int(where.partition(" x")[2])
    return hlofast.loads(texts()[name], mesh=axes, **told)


def findings(name: str, code: str) -> tuple[hlofast.Finding, ...]:
    return program(name).lint().of(code)


def figure(finding: hlofast.Finding, name: str) -> float:
    value = finding.figures.get(name, getattr(finding, name, None))
    assert value is not None
    return value


def test_every_program_is_judged() -> None:
    assert TRUTH.keys() == cases.PROGRAMS.keys() == texts().keys()


def of_compiler(name: str, key: str) -> float:
    """What XLA says of a program; its cycles as seconds, the peak without arguments as temporary,
    payload that is not gathered as reduced."""
    record = TRUTH[name]
    if key == "seconds":
        return record["cycles"] / float(hlofast.devices.get(device(record["where"]))["clock"].value)
    if key == "temporary":
        return float(record["peak"] - record["arguments"])
    if key == "reduced":
        return float(record["payload"] - record["gathered"])
    return float(record[key])


def promised(name: str, code: str, key: str) -> float:
    return sum(figure(finding, key) for finding in findings(name, code))


def test_every_rule_is_judged() -> None:
    counts = cases.counts()
    assert counts.keys() == hlofast.Findings.RULES.keys()
    for code, number in counts.items():
        assert number["helps"] > 1, code
        assert number["twins"] > 0, code
        # What else the advice costs: a figure of XLA, the last bits, or nothing that XLA counts.
        kinds = [kind for kind in ("costs", "rounds", "free") if number[kind]]
        assert len(kinds) == 1, code
    only = {kind: sum(number[kind] > 0 for number in counts.values()) for kind in cases.MEANING}
    assert only == {"helps": 25, "twins": 25, "costs": 10, "rounds": 6, "free": 9}


@pytest.mark.parametrize(("code", "before", "after", "of_xla", "key"), cases.HELPS)
def test_advice_keeps_its_promise(
    code: str, before: str, after: str, of_xla: str, key: str | None
) -> None:
    assert findings(before, code)
    assert all(finding.remedy for finding in findings(before, code))
    assert findings(after, code) == ()
    moved = of_compiler(before, of_xla) - of_compiler(after, of_xla)
    if key is None:
        assert moved > 0
    else:
        promise = promised(before, code, key)
        assert promise > 0
        if any(finding.is_lower_bound for finding in findings(before, code)):
            assert moved >= promise
        else:
            assert moved == pytest.approx(promise, rel=TOLERANCE)


@pytest.mark.parametrize(("code", "before", "after", "of_xla", "key", "words"), cases.COSTS)
def test_what_advice_costs_is_said(
    code: str, before: str, after: str, of_xla: str, key: str | None, words: str
) -> None:
    grown = of_compiler(after, of_xla) - of_compiler(before, of_xla)
    assert grown > 0
    for finding in findings(before, code):
        assert words in finding.message + finding.remedy
    if key is not None:
        cost = promised(before, code, key)
        assert grown == pytest.approx(cost, rel=TOLERANCE)
        assert any(
            f"{cost:,} B per device" in finding.message for finding in findings(before, code)
        )


@pytest.mark.parametrize("code", [*cases.FREE, *cases.ROUNDS])
def test_advice_that_costs_nothing_else(code: str) -> None:
    # Conversions count as FLOPs of a few programs that round.
    flops = ("flops",) if code in cases.FREE else ()
    for own, before, after, *_ in cases.HELPS:
        for key in ("peak", "held", "payload", "wire", *flops):
            if own == code:
                assert of_compiler(after, key) <= 1.001 * of_compiler(before, key), (before, key)


@pytest.mark.parametrize(("code", "before", "after"), sorted({own[:3] for own in cases.HELPS}))
def test_values_stay_equal(code: str, before: str, after: str) -> None:
    difference = VALUES[f"{before} {after}"]
    if difference is None:
        pytest.skip("the program does not run on CPU devices")
    # Sums are taken in another order; 16 bits have 8 of mantissa.
    assert difference < ROUNDING
    if difference > EXACT and code in cases.ROUNDS:
        for finding in findings(before, code):
            assert cases.ROUNDS[code] in finding.message + finding.remedy


@pytest.mark.parametrize(("code", "name", "advised", "of_xla"), cases.SILENT)
def test_twins_are_silent(code: str, name: str, advised: str | None, of_xla: str | None) -> None:
    assert findings(name, code) == ()
    if advised is not None and of_xla is not None:
        # What the rule would advise changes nothing.
        assert TRUTH[advised][of_xla] == pytest.approx(TRUTH[name][of_xla], rel=0.001)


@pytest.mark.parametrize("name", cases.CLEAN)
def test_clean_programs_have_no_finding(name: str) -> None:
    assert list(program(name).lint()) == []


@pytest.mark.parametrize(("code", "before", "after"), cases.FAILS)
def test_changes_that_do_not_help_are_not_advised(code: str, before: str, after: str) -> None:
    (first,), (second,) = findings(before, code), findings(after, code)
    assert first.bytes == second.bytes
    assert "with_sharding_constraint" not in first.remedy


def fates(name: str) -> dict[str, list[dict[str, Any]]]:
    """The gathers of activations by fate."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in program(name).remat().gathers:
        if row["tensor_kind"] == "activation":
            found.setdefault(row["fate"], []).append(row)
    return found


@pytest.mark.parametrize(("before", "after"), cases.GATHERS)
def test_gathers_are_recomputed_as_advised(before: str, after: str) -> None:
    stated = [own for own in program(before).remat().statements if own.code == "gather-kept"]
    assert stated[0].advice
    assert "must list the all-gather of the tensor as recomputed or backward" in stated[0].advice
    assert "kept" in fates(before)
    # The check that the advice asks for.
    assert "kept" not in fates(after)
    assert fates(after).keys() & {"recomputed", "backward"}
    done = [own for own in program(after).remat().statements if own.code == "gather-kept"]
    assert done == []


def test_saving_the_shard_frees_what_the_statement_says() -> None:
    before, after = cases.GATHERS[0]
    (stated,) = [own for own in program(before).remat().statements if own.code == "gather-kept"]
    gathered = stated.figures["bytes"]
    shards = gathered // 2
    assert f"the shards before gathering take {shards:,} B" in stated.text
    freed = TRUTH[before]["peak"] - TRUTH[after]["peak"]
    assert freed == pytest.approx(gathered - shards, rel=TOLERANCE)


@pytest.mark.parametrize(("before", "after"), cases.GATHERS[:1])
def test_gathering_again_costs_what_the_statement_says(before: str, after: str) -> None:
    (stated,) = [own for own in program(before).remat().statements if own.code == "gather-kept"]
    grown = TRUTH[after]["payload"] - TRUTH[before]["payload"]
    assert grown == pytest.approx(stated.figures["bytes"], rel=TOLERANCE)
    assert stated.advice
    assert "gathers it again" in stated.advice


def test_statements_of_other_programs_have_no_advice_to_gather_again() -> None:
    # Weights that are gathered, a shard that is saved, a layer's input that a loop stacks.
    for name in ("weights_gathered", "sequence_shard", "carried_whole"):
        stated = [own for own in program(name).remat().statements if own.code == "gather-kept"]
        assert [own for own in stated if own.advice] == []


@pytest.mark.parametrize(("before", "after"), cases.FORWARD)
def test_gradients_without_a_forward_pass(before: str, after: str) -> None:
    (stated,) = [own for own in program(before).remat().statements if own.code == "no-forward"]
    assert stated.advice
    assert "value_and_grad" in stated.advice
    done = program(after).remat()
    assert "no-forward" not in {own.code for own in done.statements}
    assert program(before).remat().instructions["forward"] == 0
    assert done.instructions["forward"] > 0


@pytest.mark.parametrize(("before", "after"), cases.CONSTRAINED)
def test_constraints_whose_gather_is_not_there(before: str, after: str) -> None:
    code = "name-before-constraint"
    (stated,) = [own for own in program(before).remat().statements if own.code == code]
    assert stated.advice
    assert "value_and_grad of all weights" in stated.advice
    # The check that the advice asks for.
    assert fates(after).keys() & {"recomputed", "backward"}
    assert "kept" not in fates(after)
    assert code not in {own.code for own in program(after).remat().statements}


@pytest.mark.parametrize(("before", "after"), cases.COPIES)
def test_statement_about_copies_keeps_its_promise(before: str, after: str) -> None:
    code = "widened-weights-kept"
    (stated,) = [own for own in program(before).remat().statements if own.code == code]
    assert stated.advice
    freed = TRUTH[before]["peak"] - TRUTH[after]["peak"]
    assert freed == pytest.approx(stated.figures["bytes"], rel=TOLERANCE)
    assert [own for own in program(after).remat().statements if own.code == code] == []


def test_copies_that_the_compiler_makes_get_no_advice() -> None:
    # XLA for CPUs multiplies in f32 whatever the program says.
    stated = program("input_and_weights_experts").remat().statements
    assert [own for own in stated if own.code == "widened-weights-kept" and own.advice] == []


def test_copies_of_the_compiler_have_the_line_of_what_they_move() -> None:
    (finding,) = findings("parked_away", "offload-waited")
    assert finding.source_file == "tests/fixtures/advice_schedules.py"
    module = program("parked_away")
    copy = module[finding.instructions[0]]
    assert copy.metadata is None or copy.metadata.source_line is None
    (maker,) = copy.operands[:1]
    assert maker.metadata is not None
    assert finding.source_line == maker.metadata.source_line
    assert finding.place == f"made at {finding.source_file}:{finding.source_line}"


def test_calls_of_a_shared_line_are_named() -> None:
    found = findings("planted_whole_batch", "batch-gathered")
    calls = {finding.source_line: finding.called_at for finding in found}
    # The norm of a layer, which attention and MLP call.
    assert any(calls.values())
    for finding in found:
        for call in finding.called_at:
            assert call in finding.place
            assert call != f"{finding.source_file}:{finding.source_line}"


def test_a_scatter_that_takes_as_long_is_no_finding() -> None:
    # Without a device only FLOPs are known.
    _, axes, *_ = cases.PROGRAMS["experts_dispatched"]
    alone = hlofast.loads(texts()["experts_dispatched"], mesh=axes).lint()
    (finding,) = alone.of("one-hot-matmul")
    moved = finding.figures["replacing_bytes"]
    assert f"moves {moved:,} B of memory instead" in finding.message
    assert findings("experts_dispatched", "one-hot-matmul") == ()


def test_what_donation_frees_is_less_than_the_state() -> None:
    (finding,) = findings("lm_undonated", "undonated-state")
    assert finding.peak_bytes == TRUTH["lm_undonated"]["peak"] - TRUTH["lm"]["peak"]
    assert finding.bytes is not None
    assert 0 < finding.peak_bytes < finding.bytes
    assert finding.at_stake.endswith("at the peak")
    assert f"lowers the peak of memory by {finding.peak_bytes:,} B" in finding.message


def test_findings_are_ordered_by_seconds() -> None:
    for name in cases.PROGRAMS:
        timed = [finding.seconds for finding in program(name).lint()]
        known = [seconds for seconds in timed if seconds is not None]
        assert timed[: len(known)] == sorted(known, reverse=True)
        assert all(seconds > 0 for seconds in known)
    (finding,) = findings("loop_inside", "loop-invariant-collective")
    alone = hlofast.loads(texts()["loop_inside"]).lint().of("loop-invariant-collective")[0]
    assert finding.seconds is not None
    assert alone.seconds is None
    # The same share of the collective's time as of its calls.
    (row,) = program("loop_inside").time().collectives.to_pylist()
    assert finding.seconds == pytest.approx(row["seconds"] * (row["multiplicity"] - 1))


def test_parameters_have_their_names_in_the_program() -> None:
    (finding,) = findings("words_replicated", "replicated-parameter")
    assert finding.values == ("weights['embedding']",)
    assert finding.shown_names == finding.values
    assert finding.names[0].startswith("param")
    (row,) = [row for row in program("words_replicated").lint().table() if row["values"]]
    assert row["values"] == "weights['embedding']"


def test_small_updates() -> None:
    (finding,) = findings("adapted_apart", "small-updates")
    # Scale, shift and gate of 16 layers: weight, gradient and two moments in, three arrays out.
    assert finding.figures["kernels"] == finding.places == 48
    assert finding.figures["stacks"] == 3
    assert finding.figures["bytes_each"] == 7 * 256 * 4
    assert finding.phases == ("optimizer",)
    assert finding.at_stake.endswith("us")
    # Without a device no time is known.
    alone = hlofast.loads(texts()["adapted_apart"])
    assert alone.lint().of("small-updates") == ()
