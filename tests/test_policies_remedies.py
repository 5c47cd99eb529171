"""What `remat` says where no checkpoint policy fits: no code, and what would make the step fit."""

import re
import sys
import warnings

import pytest

import hlofast
from conftest import FIXTURES
from hlofast import cli

sys.path.insert(0, str(FIXTURES))
import policy_texts


@pytest.fixture(scope="module")
def texts():
    return policy_texts.unpack("texts")


@pytest.fixture(scope="module")
def dense(texts):
    return hlofast.loads(texts["dense_v5e_8"])


def test_nothing_fits_a_small_memory(dense):
    policies = dense.remat(hbm="3GiB", device="tpu-v5e").policies
    assert policies.chosen.fits is False
    note = next(note for note in policies.notes if note.code == "no-policy-fits")
    missing = note.figures["missing"]
    assert missing == policies.chosen.peak - policies.hbm > 0
    remedies = {row["change"]: row for row in policies.remedies}
    assert {"batch", "mesh"} <= set(remedies)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classes = dense.memory().by("class")
    state = next(row for row in classes if row["class"] == "parameter")
    shards = int(re.search(r"over (\d+) times", remedies["mesh"]["how"])[1])
    assert remedies["mesh"]["saved"] == state["bytes"] - state["bytes"] // shards
    for row in remedies.values():
        assert row["enough"] == ("yes" if row["saved"] >= missing else "no")
        assert note.figures[f"by_{row['change']}"] == row["saved"]
    assert dense.remat(hbm="15.75GiB", device="tpu-v5e").policies.remedies is None


@pytest.mark.parametrize("source", ["compiled", "before optimisation"])
def test_an_absurd_memory_has_no_answer_and_no_code(texts, source, capsys, tmp_path):
    given = texts if source == "compiled" else policy_texts.unpack("lowered")
    path = tmp_path / "step.txt"
    path.write_bytes(given["dense_v5e_8" if source == "compiled" else "dense_v5e_8.none"])
    remat = hlofast.load(path).remat(hbm="0.3GiB", device="tpu-v5e")
    policies = remat.policies
    lowest = policies.chosen
    assert (lowest.name, lowest.fits) == ("smallest", False)
    assert lowest.peak == min(policies.table.values("peak"))
    assert "chosen" not in str(policies.table.to_pylist())
    head, lines = policies.code_shown
    assert lines == [] and "does not fit" in head and f"{lowest.peak:,} B" in head
    assert cli.main(["remat", "--hbm", "0.3GiB", "--device", "tpu-v5e", str(path)]) == 0
    for shown in (capsys.readouterr().out, str(remat), remat._repr_html_()):
        assert "checkpoint_policies." not in shown and "No code" in shown
        assert "What would make the step fit" not in shown
    page = hlofast.load(path, device="tpu-v5e", hbm="0.3GiB").report(plots=False).html
    assert "checkpoint_policies.s" not in page and "checkpoint_policies.n" not in page
    # Every change is as large as any that was tried, and the note has the least that one needs.
    remedies = policies.remedies.to_pylist()
    assert {row["enough"] for row in remedies} == {"no"}
    assert {row["factor"] for row in remedies if row["change"] != "dtype"} == {64}
    for row in remedies:
        assert row["peak"] == lowest.peak - row["saved"] > policies.hbm
    least = min(row["peak"] for row in remedies)
    assert "no single change of batch, accumulation or mesh" in policies.way_out
    assert f"is about {least:,} B ({policies.hbm:,} B available)" in policies.way_out
    (plan,) = (note.text for note in remat.notes if note.code == "plan-of-values")
    assert "follow" not in plan
    # What somebody asks for has its code.
    assert "checkpoint_policies.nothing_saveable" in policies.policy("nothing_saveable").code


def test_remedies_before_optimisation_are_those_of_one_device(texts):
    """Text and compiled program tell of nearly the same bytes; the text is of eight devices."""
    lowered = policy_texts.unpack("lowered")["dense_v5e_8.none"]
    tables = []
    for text in (texts["dense_v5e_8"], lowered):
        policies = hlofast.loads(text).remat(hbm="0.3GiB").policies
        tables.append({row["change"]: row["saved"] for row in policies.remedies})
    assert tables[1]["mesh"] == pytest.approx(tables[0]["mesh"], rel=0.05)


def test_shapes_of_all_devices_are_not_compared_with_one():
    text = policy_texts.unpack("lowered")["dense_v5e_8.none"]
    remat = hlofast.loads(text).remat(hbm="90GiB", device="tpu-v5e")
    assert remat.fits is None and remat.policies.as_compiled.fits


def test_a_message_gets_no_policy_that_needs_more(tmp_path, capsys):
    """The model lets the step fit as it is; what is faster then keeps more."""
    step, message = tmp_path / "step.txt", tmp_path / "message.log"
    step.write_bytes(policy_texts.unpack("lowered")["dense_v5e_8.nothing"])
    message.write_text(
        "Ran out of memory in memory space hbm. Used 30.00G of 24.00G hbm. "
        "Exceeded hbm capacity by 6.00G.\n"
    )
    chosen = hlofast.load(step).remat(hbm="24GiB").policies.chosen
    assert chosen.fits and chosen.peak > hlofast.load(step).remat().policies.peak
    assert cli.main(["oom", str(message), str(step)]) in (0, 1)
    assert "jax.checkpoint with" not in capsys.readouterr().out


def test_a_size_and_a_policy_start_from_the_same_peak():
    module = hlofast.loads(policy_texts.unpack("lowered")["dense_v5e_8.none"])
    alone = module.what_if(batch=64)
    both = module.what_if(batch=64, policy="nothing_saveable")
    assert both.figures["xla_peak"][0] == alone.figures["xla_peak"][0]
    assert both.figures["xla_peak"][1] < alone.figures["xla_peak"][1]
    assert "modelled-peak" in {note.code for note in alone.notes}


def test_another_memory_has_no_modelled_peak():
    module = hlofast.loads(policy_texts.unpack("lowered")["dense_v5e_8.none"])
    assert module.memory().peak_before is not None
    host = module.memory(space="host")
    assert host.peak_before is None and host.needed is None
