"""`hlofast scan`: what it prints, its JSON, its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

import hlofast
from dump_tree import Tree, grow, mixed_texts
from hlofast.cli import main
from test_cli import document, hlofast_command, without_reader


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    texts = mixed_texts(2)
    return grow(tmp_path_factory.mktemp("cli") / "dump", texts, hosts=1, odd=False)


def scanned(*arguments: str | Path) -> Any:
    """The result of a scan, as JSON has it."""
    (result,) = document("scan", *arguments)["results"]
    return result


def counts(printed: Any) -> dict[str, int]:
    """Files by what became of them."""
    names = ("read", "failed", "skipped", "unchanged")
    return {name: printed["facts"][name]["value"] for name in names}


def test_programs_are_printed(tree: Tree) -> None:
    done = hlofast_command("scan", tree.root)
    assert done.returncode == 0
    name = mixed_texts(1)[0].name
    assert f"host-0/xla_dump/module_0000.jit_{name}" in done.stdout
    assert done.stdout.startswith(f"{len(tree.expected)} files\n")
    assert done.stderr == ""


def test_the_document_keeps_to_its_schema(tree: Tree, tmp_path: Path) -> None:
    printed = scanned(tree.root)
    assert "dataset" not in printed["facts"]
    assert sum(counts(printed).values()) == len(tree.expected)
    programs = printed["tables"]["programs"]
    assert all(program["flops"] is not None for program in programs if program["after"])
    written = scanned(tree.root, "-o", tmp_path / "out", "--format", "csv")
    assert written["facts"]["dataset"]["value"] == str(tmp_path / "out")
    assert counts(written) == counts(printed)


def test_a_scan_says_what_the_command_prints(tree: Tree) -> None:
    result = hlofast.scan(tree.root, tables=["modules"])
    assert str(result) == hlofast_command("scan", tree.root).stdout.rstrip("\n")
    page = result._repr_html_().replace("<br>", " ")
    assert "live peak B</th>" in page and "FLOP</th>" in page
    assert json.loads(result.to_json())["results"][0]["tables"] == scanned(tree.root)["tables"]


def test_hostile_names_are_escaped_in_html(tmp_path: Path) -> None:
    (tmp_path / "module_0001.<b>.after_optimizations.txt").write_text("HloModule f\n\nENTRY e {")
    page = hlofast.scan(tmp_path)._repr_html_()
    assert "&lt;b&gt;" in page and "<b>" not in page


def test_what_is_to_be_kept_in_mind_is_noted(tree: Tree, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hlofast.scan(tree.root, out, format="csv", tables=["modules"])
    again = scanned(tree.root, "-o", out, "--format", "csv", "--tables", "modules,lint")
    assert [note["code"] for note in again["notes"]] == ["started-over"]


def test_a_device_of_another_backend_times_nothing(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    layouts = {"tpu0": "{1,0:T(8,128)}", "tpu1": "{1,0:T(8,128)}", "plain": "{1,0}"}
    for number, (name, layout) in enumerate(layouts.items()):
        (dumps / f"module_{number:04}.{name}.after_optimizations.txt").write_text(
            f"HloModule {name}, is_scheduled=true\n\nENTRY e {{\n"
            f"  x = f32[8,128]{layout} parameter(0)\n"
            f"  ROOT y = f32[8,128]{layout} add(x, x)\n}}\n"
        )
    said = "NVIDIA H100 SXM (h100) is a gpu, 2 modules are for tpu: no times"
    for out in ([], ["-o", tmp_path / "out", "--format", "csv"]):
        printed = scanned(dumps, "--device", "h100", *out)
        assert [note["text"] for note in printed["notes"]] == [said]
    for row in hlofast.scan(dumps, device="h100")["modules"]:
        is_timed = row["module"] == "plain"
        assert (row["device"] == "h100", row["step_seconds"] is not None) == (is_timed, is_timed)
    assert not hlofast.scan(dumps, device="tpu-v5e").notes
    page = tmp_path / "page.html"
    done = hlofast_command("report", dumps, "-o", page, "--no-charts", "--device", "h100")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("2 modules are for tpu: no times") == 1
    assert "the pages of 3 programs are in" in done.stdout
    (dumps / "module_0002.plain.after_optimizations.txt").unlink()
    made = hlofast.report(dumps, device="h100", plots=False)
    assert made.verdict["step"] is None and said in made.html


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "module_0001.f.after_optimizations.txt").write_text("HloModule f\n\nENTRY e {\n  x")
    done = hlofast_command("scan", tmp_path)
    assert done.returncode == 3
    not_read = done.stdout.partition("Not read")[2].splitlines()[2].split()
    assert not_read[0].endswith("module_0001.f.after_optimizations.txt") and not_read[1] == "4"
    assert scanned(tmp_path)["tables"]["failures"][0]["line"] == 4


def test_what_failed_before_is_said_again(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    dumps, out = tmp_path / "dumps", tmp_path / "out"
    dumps.mkdir()
    for number in (1, 2):
        broken = dumps / f"module_000{number}.f.after_optimizations.txt"
        broken.write_text("HloModule f\n\nENTRY e {\n  x")
    (dumps / "module_0003.g.after_optimizations.txt").write_text(
        "HloModule g\n\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"
    )
    first = hlofast_command("scan", dumps, "-o", out)
    assert first.returncode == 3
    again = hlofast_command("scan", dumps, "-o", out)
    assert again.returncode == 3
    facts = [line.split() for line in again.stdout.splitlines()[1:7]]
    assert facts[-2:] == [["unchanged", "3"], ["failed", "before", "2"]]
    assert again.stdout.partition("Not read")[2] == first.stdout.partition("Not read")[2] != ""
    broken.write_text("HloModule f\n\nENTRY e {\n  ROOT")
    printed = scanned(dumps, "-o", out)
    assert counts(printed) == {"read": 0, "failed": 1, "skipped": 0, "unchanged": 2}
    assert printed["facts"]["failed_before"]["value"] == 1
    assert [Path(row["path"]).name[:11] for row in printed["tables"]["failures"]] == [
        "module_0002",
        "module_0001",
    ]
    for path in dumps.glob("module_000[12]*"):
        path.unlink()
    done = hlofast_command("scan", dumps, "-o", out)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "1 file")
    assert "unchanged  1\n" in done.stdout and "failed before" not in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("-o", "out", "--format=csv"),
            "finished parts are kept in out; run the same command to continue",
        ),
        ((), "nothing was kept; with -o OUT a scan can be continued"),
    ],
)
def test_an_interrupt_says_how_to_go_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    said: str,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hlofast._scan.Scanner.run", interrupted)
    assert main(["scan", str(tmp_path), *options]) == 130
    assert said in capsys.readouterr().err


def test_json_lines_on_standard_output(tree: Tree) -> None:
    done = hlofast_command("scan", tree.root, "-o", "-", "--tables", "modules,collectives")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["table"] for row in rows} == {"files", "modules", "collectives"}
    assert sum(row["table"] == "files" for row in rows) == len(tree.expected)


def test_a_reader_that_goes_is_no_error(tree: Tree) -> None:
    done = without_reader("scan", tree.root, "-o", "-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "options",
    [
        ("--watch",),
        ("-o", "-", "--json"),
        ("--tables", "nothing"),
        ("--device", "nonsense"),
        ("--mesh", "x"),
        ("--workers", "-1"),
        ("--format", "xml"),
        ("-o", "FILE"),
    ],
)
def test_wrong_usage(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    given = [str(tmp_path / "file") if option == "FILE" else option for option in options]
    done = hlofast_command("scan", tmp_path, *given)
    assert done.returncode in (2, 3)
    assert "Traceback" not in done.stderr
    assert done.stderr
