"""Shell completion: shells accept the scripts, and bash completes verbs and options."""

import shutil
import subprocess
from pathlib import Path

import pytest

from hlofast._completion import Option
from hlofast.cli import VERBS, parser_of
from hlofast.cli.guide import PAGES
from test_cli import hlofast_command


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    paths = {}
    for shell in ("bash", "zsh", "fish"):
        done = hlofast_command("completion", shell)
        assert (done.returncode, done.stderr) == (0, "")
        paths[shell] = folder / f"hlofast.{shell}"
        paths[shell].write_text(done.stdout)
    return paths


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_accepts_its_script(shell: str, scripts: dict[str, Path]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    done = subprocess.run([shell, "-n", scripts[shell]], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def completed(script: Path, *words: str, folder: Path) -> list[str]:
    """What bash offers for the last word."""
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    typed = " ".join(f"'{word}'" for word in ("hlofast", *words))
    code = (
        f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _hlofast; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    return done.stdout.split()


def test_bash_completes(scripts: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "step.txt").touch()

    def offered(*words: str) -> list[str]:
        return completed(scripts["bash"], *words, folder=tmp_path)

    assert set(offered("")) == {*VERBS, "step.txt"}
    assert offered("col") == ["collectives"]
    assert offered("st") == ["stages", "step.txt"]
    assert offered("cost", "--pe") == ["--peak-flops"]
    assert offered("cost", "--by", "sc") == ["scope"]
    assert offered("cost", "st") == ["step.txt"]
    assert offered("cost", "--device", "tpu-v5") == ["tpu-v5e", "tpu-v5p"]
    assert offered("step.txt", "--device", "h1") == ["h100", "h100-pcie"]
    assert offered("scan", "--device", "a") == [
        one for one in offered("scan", "--device", "") if one[0] == "a"
    ]
    assert "auto" in offered("scan", "--device", "")
    assert offered("check", "--fail-on", "w") == ["warning"]
    assert offered("lint", "--fail-on", "one-h") == ["one-hot-matmul"]
    assert offered("lint", "--fail-on", "any,one-h") == ["any,one-hot-matmul"]
    assert offered("diff", "--max-growth", "live_peak=5%,fl") == ["live_peak=5%,flops="]
    assert offered("memory", "--space", "v") == ["vmem"]
    assert offered("scan", "--tables", "modules,mat") == ["modules,matmuls"]
    assert offered("time", "--collectives", "s") == ["speed-of-light", "step.txt"]
    assert offered("step.txt", "--hb") == ["--hbm"]
    assert offered("guide", "mf") == ["mfu"]
    assert "mfu" in PAGES
    assert offered("completion", "z") == ["zsh"]
    assert offered("schema", "lin") == ["lint"]


OPEN = {
    "--library",
    "--mesh",
    "--module",
    "--instance",
    "--name",
    "--around",
    "--computation",
    "--at",
    "--address",
    "--find",
    "--save",
    "--offload",
    "--like",
}
"""Options whose values are names of the caller's own files, modules, axes and machines."""


@pytest.mark.parametrize("verb", VERBS)
def test_closed_sets_of_values_are_offered(verb: str) -> None:
    for action in parser_of(verb)._actions:
        names = set(action.option_strings)
        metavar = str(action.metavar)
        is_path = "FILE" in metavar or metavar in ("PATH", "OUT", "PAGE", "CONFIG", "DIR")
        is_open = is_path or names & OPEN or action.type is not None
        if not names or action.nargs == 0 or (is_open and metavar != "MEASURE=X%,..."):
            continue
        is_figure = any(sign.isdigit() for sign in metavar) or metavar in ("N", "X", "T")
        assert is_figure or Option(verb, action).choices, (verb, names, metavar)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_and_option_is_in_it(shell: str, scripts: dict[str, Path]) -> None:
    text = scripts[shell].read_text()
    for verb in VERBS:
        assert verb in text
        for action in parser_of(verb)._actions:
            for name in action.option_strings:
                spelled = name if shell != "fish" else f"{'-l' if name[1] == '-' else '-s'} "
                assert (spelled if shell != "fish" else spelled + name.lstrip("-")) in text
