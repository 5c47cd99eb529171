"""`what-if` on programs unlike decoders: a speech encoder, rollouts, layers in stages.

`what_if_unlike.tar.xz` has each in two sizes or more, compiled by `tests/fixtures/make_what_if.py`, with
XLA's own peaks: a change of one is compared with the other.
"""

from __future__ import annotations

import json
import lzma
import pickle
import tarfile
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from test_cli import hlofast_command, validated

pytestmark = pytest.mark.filterwarnings("ignore:some arrays have no layout")

MESHES = {"stages": "stage=4,data=2"}
Steps = dict[str, tuple[hlofast.Module, int]]


@pytest.fixture(scope="module")
def steps() -> Steps:
    """By program and variant: the compiled step, and the peak that XLA says it has."""
    place = FIXTURES / "what_if_unlike.tar.xz"
    with lzma.open(place) as packed, tarfile.open(fileobj=packed) as archive:
        files = {}
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None
            files[entry.name] = file.read()
    found = {}
    for name in {name.rpartition(".")[0] for name in files}:
        module = hlofast.loads(files[f"{name}.txt"])
        mesh = MESHES.get(name.partition(".")[0], "data=8")
        peak = json.loads(files[f"{name}.json"])["peak"]
        found[name] = module.with_context(mesh=mesh, device="tpu-v5e"), peak
    return found


def facts(result: hlofast.WhatIf) -> dict[str, Any]:
    return {fact.name: fact.value for fact in result.facts}


def told(result: hlofast.WhatIf) -> dict[str, str]:
    return {note.code: note.text for note in result.notes}


def figure(module: hlofast.Module, name: str) -> Any:
    """A figure of a module as it is."""
    return module.what_if().figures[name][0]


@pytest.mark.parametrize("program", ["speech", "speech_cut"])
def test_positions_behind_strided_convolutions_follow_the_frames(
    steps: Steps, program: str
) -> None:
    """Windows at the border are padded in the first, and cut off in the second: 511 of 2,048."""
    (module, _), (truth, peak) = steps[f"{program}.0"], steps[f"{program}.1"]
    result = module.what_if(sequence="2x")
    after = {name: values[1] for name, values in result.figures.items()}
    assert after["flops"] == pytest.approx(figure(truth, "flops"), rel=0.02)
    assert after["xla_peak"] == pytest.approx(peak, rel=0.07)
    assert facts(result)["xla_peak_least"] <= peak <= facts(result)["xla_peak_most"]
    assert after["wire_bytes"] == figure(truth, "wire_bytes")
    assert after["step_seconds"] == pytest.approx(figure(truth, "step_seconds"), rel=0.15)
    positions = {"speech": "512 → 1,024", "speech_cut": "511 → 1,023"}[program]
    assert told(result)["derived-sizes"].endswith(positions)
    # The changed module is the one that was asked for, and no more.
    names = {own.name for own in module.instructions}
    assert not [own.name for own in result.changed.instructions if own.name not in names]


def test_fewer_frames_have_fewer_positions(steps: Steps) -> None:
    (module, _), (truth, _) = steps["speech.1"], steps["speech.0"]
    result = module.what_if(sequence=2048)
    assert result.figures["flops"][1] == pytest.approx(figure(truth, "flops"), rel=0.02)


def test_a_result_with_derived_sizes_goes_to_other_processes(steps: Steps) -> None:
    result = steps["speech.0"][0].what_if(sequence="2x")
    again = pickle.loads(pickle.dumps(result))
    assert "derived-sizes" in told(again)
    assert str(again) == str(result)


def test_other_changes_tie_nothing(steps: Steps) -> None:
    module, _ = steps["speech.0"]
    assert not {"derived-sizes", "not-scaled"} & set(told(module.what_if(batch="2x", layers=8)))


def test_the_batch_of_rollouts_is_not_taken_for_their_sequence(steps: Steps) -> None:
    """Time comes first, so that the batch is the second dimension of integers."""
    module, _ = steps["rollout.0"]
    with pytest.raises(ValueError, match=r"it cannot be told: .*1,024 is .* the batch of") as error:
        module.what_if(sequence="2x")
    assert "such as 128:256" in str(error.value)


def test_a_size_says_what_the_sequence_is(steps: Steps) -> None:
    """Minibatches merge time and batch: what nothing ties to the time has a range."""
    (module, _), (truth, peak) = steps["rollout.0"], steps["rollout.1"]
    result = module.what_if(sequence="128:256")
    assert result.change == "sequence 128 → 256"
    own = facts(result)
    assert own["flops_least"] <= figure(truth, "flops") <= own["flops_most"]
    assert own["xla_peak_least"] <= peak <= own["xla_peak_most"]
    assert own.get("step_seconds_after") is None
    assert "not-scaled" in told(result)


def test_sizes_that_no_input_has(steps: Steps) -> None:
    module, _ = steps["rollout.0"]
    with pytest.raises(ValueError, match="no dimension of an input has 100 elements; known: 128"):
        module.what_if(sequence="100:200")
    with pytest.raises(ValueError, match="'many' is not a size"):
        module.what_if(sequence="128:many")


@pytest.mark.parametrize("variant", [1, 2])
def test_stages_with_literal_trip_counts_have_a_range(steps: Steps, variant: int) -> None:
    """Twice the batch may be parts that are twice as large, or twice as many of them."""
    (module, _), (truth, peak) = steps["stages.0"], steps[f"stages.{variant}"]
    result = module.what_if(batch="2x")
    own = facts(result)
    assert own["flops_least"] <= figure(truth, "flops") <= own["flops_most"]
    assert own["xla_peak_least"] <= peak <= own["xla_peak_most"]
    assert own.get("step_seconds_after") is None
    assert "part" in result.peak_undecided
    assert {"batch-in-part", "undecided-flops"} & set(told(result))


def test_small_changes_of_the_batch_have_a_range_too(steps: Steps) -> None:
    module, _ = steps["stages.0"]
    own = facts(module.what_if(batch=72))
    assert own["flops_least"] < own["flops_most"]


def test_the_command_line_takes_sizes(steps: Steps, tmp_path: Any) -> None:
    path = tmp_path / "rollout.txt"
    path.write_text(steps["rollout.0"][0].text)
    options = "what-if", "--mesh", "data=8", "--json"
    done = hlofast_command(*options, "--sequence", "128:2x", path)
    (own,) = validated("what-if", done.stdout)["results"]
    assert own["facts"]["change"]["value"] == "sequence 128 → 256"
    refused = hlofast_command(*options, "--sequence", "2x", path)
    assert "such as 128:256" in refused.stderr


def test_rows_that_devices_exchange_only_after_a_change_are_told() -> None:
    """Work may then wait beside the exchange: the peak of `scattered_v5e.1`, compiled, is 4.5 % higher."""
    place = FIXTURES / "rings.tar.xz"
    with lzma.open(place) as packed, tarfile.open(fileobj=packed) as archive:
        file = archive.extractfile("scattered_v5e.0.txt")
        assert file is not None
        module = hlofast.loads(file.read())
    module = module.with_context(mesh="data=2,fsdp=2,model=2", device="tpu-v5e")
    assert "only after the change" in told(module.what_if(batch=16))["other-lookup"]
    assert "other-lookup" not in told(module.what_if(batch=64))
