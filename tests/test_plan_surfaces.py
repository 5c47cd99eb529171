"""Every surface of one plan of `remat` says the same: the policy, its peak and its seconds."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from hlofast import Policy, cli

sys.path.insert(0, str(FIXTURES))
import policy_texts

OPTIONS = {"device": "tpu-v5e", "hbm": "12GiB"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer that does not fit without checkpointing."""
    path = tmp_path_factory.mktemp("plan") / "dense.txt"
    path.write_bytes(policy_texts.unpack("texts")["dense_v5e_8"])
    return path


@pytest.fixture(scope="module")
def chosen(place: Path) -> Policy:
    policies = hlofast.load(place).remat(**OPTIONS).policies
    assert policies is not None
    assert policies.chosen is not None
    return policies.chosen


def printed(place: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    arguments = ["remat", "--device", OPTIONS["device"], "--hbm", OPTIONS["hbm"], *more]
    assert cli.main([*arguments, str(place)]) == 0
    return capsys.readouterr().out


def plain(page: str) -> str:
    """The words of HTML, without its tags."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


def seconds(value: float | None) -> str:
    """Seconds as tables show them."""
    assert value is not None
    return f"{value:.4g} s" if value >= 1 else f"{1e3 * value:.4g} ms"


def names(code: str) -> list[str]:
    """The values that code names."""
    return re.findall(r'checkpoint_name\(x, "(\w+)"\)', code)


def test_json_says_what_python_says(
    place: Path, chosen: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    tables: dict[str, Any] = json.loads(printed(place, capsys, "--json"))["results"][0]["tables"]
    [row] = [row for row in tables["policies"] if row["policy"] == "chosen"]
    assert row["peak"] == chosen.peak
    assert row["kept"] == chosen.kept
    assert row["recomputed_flops"] == chosen.recomputed_flops
    assert row["recomputed_seconds"] == chosen.recomputed_seconds
    assert row["step_seconds"] == chosen.step_seconds
    fates = [row["fate"] for row in tables["savable"]]
    assert fates.count("saved") - [row["kind"] for row in tables["savable"]].count("input") == len(
        [at for at in chosen.saved_numbers if not chosen.is_offloaded(at)]
    )
    # The frontier holds the same policy with the same figures.
    [point] = [row for row in tables["frontier"] if row["policy"] == "chosen"]
    for key in ("peak", "recomputed_flops", "recomputed_seconds", "step_seconds"):
        assert point[key] == row_of(tables["policies"], "chosen")[key]


def row_of(rows: list[dict[str, Any]], policy: str) -> dict[str, Any]:
    return next(row for row in rows if row["policy"] == policy)


def test_text_and_notebook_show_the_same_figures(
    place: Path, chosen: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    remat = hlofast.load(place).remat(**OPTIONS)
    surfaces = {
        "terminal": printed(place, capsys),
        "text": str(remat),
        "notebook": plain(remat._repr_html_()),
    }
    for surface, shown in surfaces.items():
        found = [shown[at.start() : at.start() + 300] for at in re.finditer(r"\bchosen ", shown)]
        rows = [row for row in found if f"{chosen.peak:,}" in row]
        assert rows, surface
        for value in (chosen.step_seconds, chosen.recomputed_seconds):
            assert any(seconds(value) in row for row in rows), (surface, seconds(value))


def test_the_page_says_what_the_verdict_says(place: Path, chosen: Policy) -> None:
    module = hlofast.load(place, **OPTIONS)
    page = plain(module.report(plots=False).html)
    moved = sum(map(chosen.is_offloaded, chosen.saved_numbers))
    assert f"a policy that saves {len(chosen.saved_numbers) - moved} values" in page
    assert f"about {chosen.peak / 2**30:.2f} GiB at the peak" in page
    assert f"and a step of {seconds(chosen.step_seconds)} instead of" in page


def test_code_names_the_values_of_the_policy(
    place: Path, chosen: Policy, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = names(chosen.code)
    assert len(wanted) == len(chosen.saved_numbers) > 0
    policies = hlofast.load(place).remat(**OPTIONS).policies
    assert policies is not None
    again = policies.policy(
        save=[at for at in chosen.saved_numbers if not chosen.is_offloaded(at)],
        offload=[at for at in chosen.saved_numbers if chosen.is_offloaded(at)],
    )
    assert (again.peak, again.step_seconds) == (chosen.peak, chosen.step_seconds)
    remat = hlofast.load(place).remat(**OPTIONS)
    for shown in (printed(place, capsys), str(remat), plain(remat._repr_html_())):
        assert names(shown) == wanted
    tables = json.loads(printed(place, capsys, "--json"))["results"][0]["tables"]
    assert names("\n".join(row["code"] for row in tables["code"])) == wanted


def test_where_there_are_policies_nothing_else_is_shown_to_follow(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remat = hlofast.load(place).remat(**OPTIONS)
    page = hlofast.load(place, **OPTIONS).report(plots=False).html
    assert "Checkpoint policies of the layers" in str(remat)
    for text in (printed(place, capsys), str(remat), plain(remat._repr_html_()), plain(page)):
        assert "Candidates (" not in text
        assert "with the plan" not in text
        assert text.count("hlofast remat --plan") == 1
    # It is there for programs, and for those who ask.
    tables = json.loads(printed(place, capsys, "--json"))["results"][0]["tables"]
    assert tables["plan"] and tables["candidates"] and tables["policies"]
    for more in (["--plan"], ["--rule", "xla"]):
        asked = printed(place, capsys, *more)
        assert "Candidates (" in asked and "with the plan" in asked
        assert "follow a checkpoint policy" in asked and "left out" not in asked
    assert len(remat.candidates) == len(tables["candidates"])


def test_without_policies_the_plan_of_single_values_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = FIXTURES / "train_step.after_optimizations.txt"
    remat = hlofast.load(path).remat(hbm="1MiB")
    assert remat.policies is None
    for text in (printed(path, capsys, "--hbm", "1MiB"), str(remat), plain(remat._repr_html_())):
        assert "with the plan" in text
        assert "hlofast remat --plan" not in text


def test_an_out_of_memory_message_is_answered_with_the_policy(place: Path, chosen: Policy) -> None:
    module = hlofast.load(place)
    messages = hlofast.oom(
        "Ran out of memory in memory space hbm. Used 44.00G of 12.00G hbm", module
    )
    policies = module.remat(hbm="12GiB").policies
    assert policies is not None and policies.chosen is not None
    [own] = [own for own in messages.advice if "jax.checkpoint with" in own.text]
    assert own.bytes == policies.peak - policies.chosen.peak
    assert policies.chosen.counted in own.text
    assert not any("rematerialise" in other.text for other in messages.advice)
