"""Policies of steps whose names are those of early JAX, asked of texts that XLA has optimised and not scheduled."""

import re
import tarfile

import pytest

import hlofast
from conftest import FIXTURES
from hlofast import cli


def early(text: bytes) -> bytes:
    """A text as JAX of 2022 named it: `remat(core_fn)` around recomputed and backward work alike."""

    def renamed(found: re.Match[bytes]) -> bytes:
        name = found[1].replace(b"checkpoint/rematted_computation/", b"checkpoint/")
        again = b"remat(core_fn)/" if b"transpose(" in name else b""
        return b'op_name="' + name.replace(b"checkpoint/", again) + b'"'

    return re.sub(rb'op_name="([^"]*)"', renamed, text)


@pytest.fixture(scope="module")
def scheduled() -> bytes:
    """Six layers without a scan under `nothing_saveable`, compiled for an H100."""
    with tarfile.open(FIXTURES / "h100" / "texts.tar.xz") as archive:
        return archive.extractfile("unrolled.nothing.txt").read()


@pytest.fixture(scope="module")
def unscheduled(scheduled) -> bytes:
    return scheduled.replace(b", is_scheduled=true", b"")


@pytest.mark.parametrize("is_scheduled", [True, False])
def test_early_names_tell_what_is_recomputed(scheduled, unscheduled, is_scheduled):
    text = scheduled if is_scheduled else unscheduled
    assert b"remat(core_fn)" in early(text) and b"rematted_computation" not in early(text)
    known, renamed = (hlofast.loads(own).remat().policies for own in (text, early(text)))
    assert known.is_checkpointed and renamed.is_checkpointed
    assert renamed.as_compiled.recomputed_flops == known.as_compiled.recomputed_flops > 0
    row = renamed.table.to_pylist()[0]
    assert row["recomputed_flops"] == renamed.as_compiled.recomputed_flops
    assert row["same_as"] is None and row["kept"] == renamed.as_compiled.kept


def test_a_step_that_recomputes_all_recomputes_what_nothing_saveable_does(unscheduled):
    for text in (unscheduled, early(unscheduled)):
        policies = hlofast.loads(text).remat().policies
        nothing = policies.policy("nothing_saveable")
        assert policies.as_compiled.recomputed_flops == nothing.recomputed_flops
        assert policies.peak <= nothing.peak * 1.01


def test_a_note_tells_which_recomputation_policies_count(unscheduled):
    remat = hlofast.loads(early(unscheduled)).remat(hbm="1GiB")
    whole = next(fact.value for fact in remat.facts if fact.field.name == "recomputed_flops")
    own = remat.policies.as_compiled.recomputed_flops
    assert own < whole
    (note,) = (note.text for note in remat.notes if note.code == "policy-recomputed")
    assert f"{whole:,} FLOP" in note and f"{own:,} are matmuls" in note


def test_the_smallest_policy_is_not_above_the_step_as_compiled(unscheduled):
    policies = hlofast.loads(early(unscheduled)).remat(hbm="0.2GiB").policies
    assert policies.chosen.name == "smallest"
    assert policies.chosen.peak <= min(policies.table.values("peak"))
    assert "needs the least memory of all policies" in policies.code_shown[0]


def test_the_values_that_optimised_rows_write_are_in_memory():
    """Without a schedule the peak was half of the peak of the schedule: 1.6 of 5 GB were kept."""
    with tarfile.open(FIXTURES / "h100" / "texts.tar.xz") as archive:
        text = archive.extractfile("small.none.txt").read()
    bare = text.replace(b", is_scheduled=true", b"")
    after, before = (hlofast.loads(own).remat().policies for own in (text, bare))
    assert before.is_modelled and not after.is_modelled
    assert before.peak == pytest.approx(after.peak, rel=0.05)


def test_what_if_points_to_the_option_for_another_mesh(capsys):
    path = str(FIXTURES / "train_step.after_optimizations.txt")
    assert cli.main(["what-if", "--mesh", "data=2", path]) == 2
    said = capsys.readouterr().err
    assert "the module is for 8" in said and "--mesh-to data=2" in said
    assert cli.main(["what-if", "--mesh", "data=2", "--mesh-to", "data=4", path]) == 2
    assert "give --mesh-to" not in capsys.readouterr().err
