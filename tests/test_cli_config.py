"""`hlofast config`: rules, instances and differences for people, as JSON and as exit codes."""

from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds
from test_cli import document, hlofast_command

TRAINER = FIXTURES / "configs" / "trainer_rules.txt"


def shown(*arguments: str | Path) -> tuple[Any, list[Any]]:
    """What is said of the config, and of it on each instance."""
    config, *selections = document("config", *arguments)["results"]
    return config, selections


def selected(*arguments: str | Path) -> list[dict[str, Any]]:
    """By instance the facts, the mesh and the notes."""
    return [
        {name: fact["value"] for name, fact in result["facts"].items()}
        | {"rule": result["facts"].get("rule", {"value": None})["value"]}
        | {"mesh": mesh_of(result), "notes": result["notes"]}
        for result in shown(*arguments)[1]
    ]


def mesh_of(selection: Any) -> dict[str, int] | None:
    """The mesh of a config on an instance."""
    return {row["axis"]: row["size"] for row in selection["tables"]["mesh"]} or None


@pytest.fixture
def other(tmp_path: Path) -> Path:
    config = hlofast.config.load(TRAINER)
    path = tmp_path / "other.txt"
    changed = config.replace({"model.decoder.dim": 128, "max_step": 10}).without("learner")
    path.write_text(changed.to_text())
    return path


def test_all_rules_are_the_python_objects() -> None:
    printed, selections = shown(TRAINER)
    config = hlofast.config.load(TRAINER)
    assert printed["name"] == "axlearn.common.trainer.SpmdTrainer"
    values = {name: fact["value"] for name, fact in printed["facts"].items()}
    assert values == {
        "file": str(TRAINER),
        "values": len(list(config.leaves())),
        "axes": "pipeline, data, fsdp, model",
        "parameters": None,
        "mesh_rules": 11,
        "trainer": "AXLearn",
    }
    assert printed["tables"]["rules"] == config.rules().to_pylist()
    chosen = config.select_all()
    rows = printed["tables"]["selections"]
    for row, selection, effective in zip(rows, selections, chosen, strict=True):
        assert row["instance"] == selection["name"] == effective.instance.name
        assert (row["rule"], row["devices"]) == (effective.rule, effective.devices)
        assert mesh_of(selection) == (None if effective.mesh is None else effective.mesh.shape)
        assert selection["tables"]["changes"] == effective.changes.to_pylist()
        assert row["changes"] == len(effective.changes)
        assert selection["tables"]["noted"] == effective.notes.to_pylist()
        notes = [(own["kind"], own["text"]) for own in effective.notes]
        told = [(note["code"], note["text"]) for note in selection["notes"]]
        assert [own for own in told if own[0] != "statement"] == notes
    assert {row["rule"] for row in rows} == {*range(11), None}


def test_the_page_of_a_config() -> None:
    from hlofast.config._results import Described, Selected

    config = hlofast.config.load(TRAINER)
    described = Described(config, map(Selected, config.select_all()))
    assert hlofast_command("config", TRAINER).stdout == f"{described}\n\n"
    html = Selected(config.select("<i>"))._repr_html_()
    assert "<i>" not in html
    assert "&lt;i&gt;" in html
    assert ">memory B</th>" in described._repr_html_().replace("<br>", " ")


def test_all_rules_for_people() -> None:
    done = hlofast_command("config", TRAINER)
    assert done.returncode == 0 and done.stderr == ""
    for shown in (
        "mesh rules  11",
        "   2  tpu-v6e-16-4 ",
        "  64  data=4,fsdp=16 ",
        "   1  tpu-v5p-.* ",
        "MeshShapeModifier,V6eFlashConfigModifier",
        "note: trainer.modifiers.MeshShapeModifier is not modelled",
        "note: rule 9 is treated as not matching: unsupported back-reference",
        "other instances",
    ):
        assert shown in done.stdout, shown


def test_ambiguous_names_stand_with_each_reading() -> None:
    rows = [row for row in selected(TRAINER) if row["rule"] == 7]
    assert [(row["instance"], row["devices"], row["mesh"]["fsdp"]) for row in rows] == [
        ("neuron-trn2.48xlarge-8", 8, 2),
        ("neuron-trn2.48xlarge-8", 512, 128),
        ("neuron-trn2n.48xlarge-8", 8, 2),
        ("neuron-trn2n.48xlarge-8", 512, 128),
    ]
    assert rows[1]["notes"][0]["text"].endswith("this reading assumes 8 machines of 64 devices")
    rows = [row for row in selected(TRAINER, "--device-count", "16") if row["rule"] == 7]
    assert [row["devices"] for row in rows] == [16, 16]
    by_rule = {row["rule"]: row for row in selected(TRAINER, "--device-count", "16")}
    assert by_rule[1]["mesh"]["fsdp"] == 8  # The selector has no number.
    assert by_rule[3]["devices"] == 16 and by_rule[0]["devices"] == 32  # The names have.


def test_rules_that_are_never_taken(tmp_path: Path) -> None:
    path = tmp_path / "trainer.txt"
    config = hlofast.config.load(TRAINER).with_value("mesh_rules[3][0]", "tpu-v6e-16-2")
    path.write_text(config.to_text())
    assert "rule 3 never applies to 'tpu-v6e-16-2'" in hlofast_command("config", path).stdout


def test_an_instance() -> None:
    done = hlofast_command("config", TRAINER, "--instance", "tpu-v6e-16-2", "--top", "0")
    assert done.returncode == 0
    for shown in (
        "\nrule          2\n",
        "\nselector      tpu-v6e-16-(2|4)\n",
        "\ndevices       32\n",
        "\nslices        2\n",
        "\ndevice        tpu-v6e\n",
        "\nmesh          data=2,fsdp=16\n",
        "(1, 1, -1, 1)",
        "(1, -1, 16, 1)",
        "rule 2, MeshShapeModifier",
        "rule 2, V6eFlashConfigModifier",
    ):
        assert shown in done.stdout, shown
    done = hlofast_command("config", TRAINER, "--instance", "tpu-v6e-16")
    assert "\naccumulation  4\n" in done.stdout


def test_several_instances_and_devices() -> None:
    names = ["tpu-v6e-16-8", "neuron-trn2.48xlarge-8"]
    arguments = [part for name in names for part in ("--instance", name)]
    rows = selected(TRAINER, *arguments, "--device-count", "128")
    assert [row["instance"] for row in rows] == names
    assert [row["rule"] for row in rows] == [None, 7]
    told = [note["text"] for note in rows[0]["notes"] if note["code"] == "no-rule"]
    assert told[1].startswith("rule 2, 'tpu-v6e-16-(2|4)', is close")
    assert rows[1]["mesh"] == {"pipeline": 1, "data": 1, "fsdp": 32, "model": 4}


def test_text() -> None:
    done = hlofast_command("config", TRAINER, "--text")
    assert done.stdout == TRAINER.read_text()
    done = hlofast_command("config", TRAINER, "--text", "--instance", "tpu-v6e-16")
    expected = hlofast.config.load(TRAINER).select("tpu-v6e-16").config
    assert done.stdout == expected.to_text()


def test_differences(other: Path) -> None:
    done = hlofast_command("config", TRAINER, "--diff", other)
    assert done.returncode == 1
    assert "changed  1\nadded    1\nremoved  1\n" in done.stdout
    assert "model.decoder.dim" in done.stdout and "128" in done.stdout
    same = hlofast_command("config", TRAINER, "--diff", TRAINER)
    assert same.returncode == 0 and "changed  0\nadded    0\nremoved  0\n" in same.stdout
    printed, selections = shown(TRAINER, "--diff", other)
    expected = hlofast.config.load(TRAINER).diff(hlofast.config.load(other)).to_pylist()
    assert printed["tables"] == {"differences": expected}
    assert printed["name"] == f"{TRAINER} and {other}"
    assert selections == []
    assert shown(TRAINER, "--diff", TRAINER)[0]["tables"] == {"differences": []}


def test_a_base_applies_to_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, own, other = (tmp_path / name for name in ("configs/base.yml", "own.yml", "other.yml"))
    base.parent.mkdir()
    base.write_text(hlofast.config.loads("steps: 7\n", path="run.yml").to_text())
    own.write_text("base_config: base.yml\nmodel_name: llama2-7b\n")
    other.write_text("base_config: base.yml\nmodel_name: llama2-7b\nremat_policy: minimal\n")
    monkeypatch.setenv("M_MAX_TARGET_LENGTH", "4096")
    assert shown(own, "--diff", own, "--base", base)[0]["tables"] == {"differences": []}
    (row,) = shown(own, "--diff", other, "--base", base)[0]["tables"]["differences"]
    assert row["path"] == "remat_policy"
    # Arguments belong to FILE.
    rows = shown(own, "steps=9", "--diff", other, "--base", base)[0]["tables"]["differences"]
    assert {row["path"] for row in rows} == {"remat_policy", "steps"}


def test_standard_input() -> None:
    done = hlofast_command("config", "-", "--text", input=TRAINER.read_text())
    assert done.stdout == TRAINER.read_text()
    done = hlofast_command("config", "-", "--diff", TRAINER, input=TRAINER.read_text())
    assert done.returncode == 0 and "<stdin> and " in done.stdout


def test_what_cannot_be_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("a: 1\nb: (1, 2\n")
    done = hlofast_command("config", bad, TRAINER)
    assert done.returncode == 3
    assert f"{bad}:2:4: error: unclosed '('" in done.stderr and "^" in done.stderr
    assert "tpu-v6e-16" in done.stdout
    for arguments in ((bad, "--diff", TRAINER), (TRAINER, "--diff", "no such file")):
        assert hlofast_command("config", *arguments).returncode == 3
    printed = document("config", bad, "no such file", TRAINER)
    assert [error["kind"] for error in printed["errors"]] == [
        "unclosed-bracket",
        "FileNotFoundError",
    ]
    assert printed["errors"][0]["line"] == 2
    assert sum("selections" in result["tables"] for result in printed["results"]) == 1
    assert document("config", bad, "--diff", TRAINER)["results"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--device-count", "0"),
        ("--device-count", "x"),
        (TRAINER, "--diff", TRAINER),
        ("--diff", TRAINER, "--instance", "x"),
        ("--text", "--json"),
        ("--text", "--instance", "x", "--instance", "y"),
        ("-", "-"),
    ],
)
def test_usage(arguments: tuple[str | Path, ...]) -> None:
    files = [] if not arguments else [TRAINER]
    assert hlofast_command("config", *files, *arguments, input="").returncode == 2


def test_no_numpy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys; from hlofast.cli import main; main(sys.argv[1:]);"
        "print('numpy' in sys.modules, file=sys.stderr)"
    )
    import subprocess
    import sys

    command = [sys.executable, "-P", "-c", code, "config", str(TRAINER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "False\n"


def test_the_seed(seeds: Seeds) -> None:
    printed, _ = shown(seeds.path("004"))
    assert printed["facts"]["values"]["value"] == 470
    meshes = {
        (row["instance"], row["devices"]): {
            name: size for name, size in row["mesh"].items() if size > 1
        }
        for row in selected(seeds.path("004"))
        if row["mesh"] is not None
    }
    assert meshes["tpu-v5litepod-256-4", 1024] == {"data": 4, "fsdp": 256}
    assert meshes["gpu-a3-ultragpu-8g-256", 256] == {"data": 4, "fsdp": 64}
    assert meshes["neuron-trn2n.48xlarge-64", 64] == {"fsdp": 16, "model": 4}
    assert meshes["neuron-trn2n.48xlarge-64", 4096] == {"fsdp": 1024, "model": 4}


@pytest.mark.parametrize("verb", ["config", "plan", "check"])
def test_a_program_is_not_a_config(train_step: Path, verb: str) -> None:
    """The file is named, and what it is, rather than where a config would go on otherwise."""
    given = {"plan": ["--device", "v5p", "--chips", "8"], "check": [train_step]}.get(verb, [])
    done = hlofast_command(verb, train_step, *given)
    assert (done.returncode, done.stdout) == (2 if verb == "check" else 3, "")
    assert done.stderr.startswith(f"hlofast: {train_step}: ")
    assert "an HLO module, not a " in done.stderr and done.stderr.count("\n") == 1
