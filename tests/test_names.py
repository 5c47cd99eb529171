"""Suggestions for unknown names."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from hlofast._names import nearest
from test_cli import hlofast_command


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda m: m.cost().by("scop"), "no key 'scop'; did you mean scope"),
        (lambda m: m.cost().by("layer"), "known: phase, scope, source"),
        (lambda m: m.time("tpu-v5e").by("phas"), "did you mean phase"),
        (lambda m: m.collectives().by("axis"), "did you mean axes"),
        (lambda m: m.matmuls()["flop"], "did you mean flops"),
        (lambda m: m.matmuls().by("kinds"), "did you mean kind"),
        (lambda m: m.matmuls().sort_by("flosp"), "did you mean flops"),
        (lambda m: m.matmuls().field("K"), "did you mean k"),
        (lambda m: m.show("convolution.3"), "did you mean convolution.31"),
        (lambda m: m.show("convolution"), "did you mean convolution."),
        (lambda m: m.memory().live_at("convolution.3"), "did you mean convolution.31"),
        (lambda m: m.remat().by("kind", "residual"), "did you mean residuals"),
        (lambda m: m.stages().by("kind", "stahs"), "did you mean stash"),
        (lambda m: hlofast.devices.get("tpu-v5"), "did you mean tpu-v5"),
        (lambda m: m.graph("mian.9_spmd"), "did you mean main.9_spmd"),
        (lambda m: m.graph(around="all-gather.6"), "did you mean all-gather.6"),
    ],
)
def test_python_says_what_is_near(ask: Any, said: str, train_step: Path) -> None:
    with pytest.raises(KeyError) as fault:
        ask(hlofast.load(train_step))
    assert said in str(fault.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "FILE", "fusion.9999"), "did you mean fusion."),
        (("show", "FILE", "all-reduc"), "did you mean all-reduce"),
        (("memory", "--at", "convolution.3", "FILE"), "did you mean convolution.31"),
        (("time", "--device", "tpu-v5x", "FILE"), "did you mean tpu-v"),
        (("scan", "FILE", "--tables", "matmul"), "did you mean matmuls"),
        (("graph", "--around", "all-gathr.63", "FILE"), "did you mean all-gather.63"),
        (("graph", "--computation", "mian.9_spmd", "FILE"), "did you mean main.9_spmd"),
        (
            ("graph", "--around", "all-gather.63", "--computation", "main.9_spmd", "FILE"),
            "is in wide.region_4.5_spmd.sunk, not in 'main.9_spmd'",
        ),
    ],
)
def test_commands_say_what_is_near(arguments: tuple[str, ...], said: str, train_step: Path) -> None:
    done = hlofast_command(*(train_step if word == "FILE" else word for word in arguments))
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[mesh]\naxes = {data=2, model=4}\nbatch_axes = ['dta']\n", "did you mean data?"),
        (
            "[mesh]\naxes = {data=2, model=4}\n[[parameters]]\nname='.*'\nspec=['modle']\n",
            "the mesh has no axis 'modle'; did you mean model?",
        ),
    ],
)
def test_declared_axes(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        hlofast.Declaration.loads(text)


def test_axes_of_limits(train_step: Path) -> None:
    declared = hlofast.Declaration.loads("[mesh]\naxes = {data=2, model=4}\n")
    limits = hlofast.Expectations({"collectives.modle.all-reduce.max_count": 0})
    check = hlofast.check(declared, hlofast.load(train_step), limits)
    (found,) = (one for one in check.found("expectation"))
    assert found.message == "the axes of the mesh are: data, model; did you mean model?"
    with pytest.raises(ValueError, match="did you mean all-reduce"):
        hlofast.Expectations({"collectives.any.all-reduc.max_count": 0})
    with pytest.raises(ValueError, match="did you mean one-hot-matmul"):
        hlofast.Expectations({"lint.forbid": ["one-hot-matmuls"]})
    with pytest.raises(ValueError, match="did you mean vmem"):
        hlofast.load(train_step).memory(space="vmen")


def test_many_and_long_names_take_no_time() -> None:
    names = [f"fusion.{number}" for number in range(300_000)]
    assert nearest("fusion.299999x", names)
    assert nearest("x" * 100_000, names) == []
    assert nearest("fusion.1", ["y" * 100_000, "fusion.12"]) == ["fusion.12"]


def test_the_nearest_stand_first() -> None:
    assert nearest("fusion", ["fusion.1", "confusion", "fusion.2"])[:2] == ["fusion.1", "fusion.2"]
    assert nearest("Summry", ["summary", "memory", "time"])[0] == "summary"
    assert nearest("quite another", ["summary", "memory"]) == []


def test_a_history_of_doubtful_modules_warns_nobody(tmp_path: Path) -> None:
    text = """\
HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }

ENTRY e {
  p = f32[4] parameter(0)
  n = f32[8] broadcast(p), dimensions={}
  ROOT r = f32[8] negate(n)
}
"""
    with pytest.warns(UserWarning, match="input_output_alias"):
        hlofast.loads(text).memory()
    for number, stage in enumerate(("before_optimizations", "after_optimizations")):
        (tmp_path / f"module_0001.m.{stage}.txt").write_text(
            text.replace("negate", "sine" if number else "negate")
        )
    done = hlofast_command("history", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hlofast.history(tmp_path)


def test_the_fixture_fails_with_its_message_alone(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = FIXTURES / "train_step.after_optimizations.txt"
    (tmp_path / "test_it.py").write_text(
        f"def test_limit(hlofast_check):\n    hlofast_check({str(path)!r}, {{'peak.max': '1KiB'}})\n"
        "def test_file(hlofast_check):\n    hlofast_check('nowhere.txt')\n"
        f"def test_table(hlofast_check):\n    hlofast_check({str(path)!r}, {{'peaks': {{}}}})\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for said in ("peak: declared at most 1,024", "No such file or directory", "'peaks'"):
        assert said in done.stdout
    for internal in ("_module.py", "expectations.py", "pytest_plugin.py", "def check"):
        assert internal not in done.stdout
