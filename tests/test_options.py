"""Options mean the same in every verb, and every verb over modules takes the context options."""

import argparse
import importlib
from pathlib import Path

import pytest

from hlofast.cli import VERBS, file_of, inputs, values
from hlofast.cli.inputs import WITHOUT_CONTEXT
from shown import figures
from test_cli import document, hlofast_command

SHARED = ("--depth", "--module", "--json", "--top", "--instance", "--device-count")
EXCUSED = (
    *("calibrate", "completion", "config", "guide", "mcp", "plan", "profile", "query", "scan"),
    "schema",
)
"""Verbs that read no module themselves, scans, whose tables know neither budget nor step, the verb
whose argument is the profile, and the server, whose calls have a context each."""


def options(verb: str) -> dict[str, argparse.Action]:
    """The options of a verb."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"hlofast.cli.{file_of(verb)}").configure(parser)
    return {name: action for action in parser._actions for name in action.option_strings}


def context() -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    inputs.add_context(parser)
    return {name: action for action in parser._actions for name in action.option_strings}


def meaning(action: argparse.Action) -> tuple[object, ...]:
    return (action.dest, action.metavar, action.type, action.nargs, action.choices)


def test_the_context_is_what_is_known_of_a_run() -> None:
    assert {action.dest for action in context().values()} == {
        *("mesh", "hosts", "slices", "device", "devices", "rules", "hbm", "step_seconds"),
        *("profile", "libraries", "frame", "merge_layers"),
    }


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_over_modules_take_the_whole_context(verb: str) -> None:
    taken, known = options(verb), context()
    for name in taken.keys() & known.keys():
        assert meaning(taken[name]) == meaning(known[name]), name
        assert taken[name].help == known[name].help, name
    lacks = known.keys() - taken.keys()
    assert bool(lacks) == (verb in WITHOUT_CONTEXT), lacks


def test_those_that_do_not_have_a_reason() -> None:
    assert sorted(WITHOUT_CONTEXT) == list(EXCUSED)
    assert all(WITHOUT_CONTEXT.values())
    assert context().keys() - options("scan").keys() == {
        *("--rules", "--hbm", "--step-time", "--step-seconds", "--profile")
    }
    for verb in ("profile", "calibrate"):
        assert context().keys() - options(verb).keys() == {"--profile"}


@pytest.mark.parametrize("name", SHARED)
def test_shared_options_mean_the_same(name: str) -> None:
    having = {verb: own[name] for verb in VERBS if name in (own := options(verb))}
    assert len(having) > 1
    assert len({meaning(action)[:4] for action in having.values()}) == 1, having


RELATIVE = {"--batch"}
"""Options that also take a factor in `what-if`: 2x."""
OWN = {"--all", "--by", "--fail-on", "--format", "--instance", "--module", "--output", "--rule"}
"""Shared options whose help names what the verb shows or reads."""


def test_an_option_of_several_verbs_is_one_option() -> None:
    having: dict[str, dict[str, argparse.Action]] = {}
    for verb in VERBS:
        for name, action in options(verb).items():
            having.setdefault(name, {})[verb] = action
    shared = {name: list(found.values()) for name, found in having.items() if len(found) > 1}
    assert len(shared) > 20
    for name, actions in shared.items():
        if name in RELATIVE:
            continue
        kinds = {(one.dest, one.type, one.nargs in (None, "?")) for one in actions}
        assert len(kinds) == 1, (name, having[name].keys())
        what = {str(one.help).partition(" (")[0].partition(", ")[0] for one in actions}
        if not OWN & set(actions[0].option_strings) and name not in ("--top", "--device-count"):
            assert len(what) == 1, (name, what)


STEP = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  p = f32[64,64]{1,0:T(8,128)} parameter(0), sharding={replicated}
  ROOT r = f32[64,64]{1,0:T(8,128)} all-reduce(p), replica_groups=[2,4]<=[8], channel_id=1, use_global_device_ids=true, to_apply=sum
}
"""
DECLARED = '[mesh]\naxes = { data = 2, model = 4 }\n[limits]\nhbm = "1GiB"\n'
TINY = '[tiny]\nbackend = "tpu"\nflops.bf16 = 1e12\nhbm_bandwidth = 1e11\njax_devices = 1\n'


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options") / "step.txt"
    path.write_text(STEP)
    return path


class TestTheyAreUsed:
    def test_check_holds_the_program_against_the_budget(self, step: Path) -> None:
        declared = step.parent / "mesh.toml"
        declared.write_text(DECLARED)

        def peak(*given: str) -> dict[str, object]:
            (result,) = document("check", declared, step, *given)["results"]
            (row,) = (
                row
                for name in ("findings", "agreeing")
                for row in result["tables"][name]
                if row["code"] == "peak-bytes"
            )
            return row

        assert (peak()["severity"], peak()["declared"]) == ("agrees", "at most 1,073,741,824 B")
        told = peak("--hbm", "1KiB")
        assert (told["severity"], told["declared"]) == ("error", "at most 1,024 B")

    def test_check_names_the_axes_of_the_context(self, step: Path) -> None:
        limits = step.parent / "limits.toml"
        limits.write_text("[collectives.model.all-reduce]\nmax_count = 0\n")
        documents = [
            document("check", "--expect", limits, step, *given)["results"][0]["tables"]
            for given in ((), ("--mesh", "data=2,model=4"))
        ]
        compiled = [[row["compiled"] for row in tables["findings"]] for tables in documents]
        assert compiled == [["no such axis"], ["1"]]

    def test_pages_know_devices_of_files_budgets_and_hosts(self, step: Path) -> None:
        devices = step.parent / "tiny.toml"
        devices.write_text(TINY)
        given = ("--device", "tiny", "--devices", devices, "--hbm", "64MiB")
        page = step.parent / "page.html"
        (result,) = document("report", step, "-o", page, "--no-charts", *given)["results"]
        assert figures(result)["step"] is not None
        said = {note["code"]: note["text"] for note in result["notes"]}
        assert "of 64.00 MiB of HBM" in said["peak"]
        (result,) = document("top", step, *given, "--mesh", "a=2,b=4", "--hosts", "2")["results"]
        assert figures(result)["device"] == "tiny"
        assert figures(result)["mesh"] == "a=2,b=4"
        assert "of 64.00 MiB of HBM" in {n["code"]: n["text"] for n in result["notes"]}["peak"]

    def test_scans_lay_the_mesh_on_hosts(self, step: Path) -> None:
        def levels(*given: str) -> list[str]:
            lines = hlofast_command(
                "scan", step, "-o", "-", "--tables", "collectives", "--mesh", "a=2,b=4", *given
            ).stdout.splitlines()
            return [line for line in lines if '"collectives"' in line]

        assert len(levels()) == 1
        assert levels() != levels("--hosts", "8")
        done = hlofast_command("scan", step, "--hosts", "8")
        assert done.returncode == 2
        assert "--hosts and --slices need --mesh" in done.stderr

    @pytest.mark.parametrize("verb", ["check", "fmt", "graph", "report", "show", "summary", "top"])
    def test_a_mesh_of_another_module_is_refused(self, step: Path, verb: str) -> None:
        before = {"check": [step.parent / "any.toml"]}.get(verb, [])
        after = {"show": ["r"], "report": ["-o", step.parent / "none.html"]}.get(verb, [])
        (step.parent / "any.toml").write_text("[model]\nlayers = 2\n")
        done = hlofast_command(verb, *before, step, *after, "--mesh", "data=3")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"hlofast: {step}: mesh data=3 has 3 devices, the module is for 8\n"


def test_numbers_of_devices_have_one_name(tmp_path: Path) -> None:
    for verb in ("check", "config", "stages", "report"):
        assert meaning(options(verb)["--device-count"]) == (
            *("device_count", "N", values.count, None, None),
        )
    done = hlofast_command("report", tmp_path, "-o", tmp_path / "a.html", "--device-count", "4")
    assert (done.returncode, done.stderr) == (2, "hlofast: --device-count needs --config\n")
