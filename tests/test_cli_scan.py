"""`hlofast scan`: what it prints, its JSON, its exit codes."""

import json
from pathlib import Path

import pytest

from dump_tree import Tree, grow, mixed_texts
from hlofast.cli import main
from test_cli import document, hlofast_command, without_reader

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    texts = mixed_texts(2)
    return grow(tmp_path_factory.mktemp("cli") / "dump", texts, hosts=1, odd=False)


def test_programs_are_printed(tree: Tree) -> None:
    done = hlofast_command("scan", tree.root)
    assert done.returncode == 0
    name = mixed_texts(1)[0].name
    assert f"host-0/xla_dump/module_0000.jit_{name}" in done.stdout
    assert done.stdout.startswith(f"{len(tree.expected)} files: ")
    assert done.stderr == ""


def test_the_document_keeps_to_its_schema(tree: Tree, tmp_path: Path) -> None:
    printed = document("scan", tree.root)
    assert printed["path"] is None
    assert sum(printed["counts"].values()) == len(tree.expected)
    assert all(program["flops"] is not None for program in printed["programs"] if program["after"])
    written = document("scan", tree.root, "-o", tmp_path / "out", "--format", "csv")
    assert written["path"] == str(tmp_path / "out")
    assert written["counts"] == printed["counts"]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "module_0001.f.after_optimizations.txt").write_text("HloModule f\n\nENTRY e {\n  x")
    done = hlofast_command("scan", tmp_path)
    assert done.returncode == 3
    assert "module_0001.f.after_optimizations.txt, line 4" in done.stdout
    assert document("scan", tmp_path)["failures"][0]["line"] == 4


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
    assert again.stdout.startswith("3 files: 3 unchanged (2 of them failed before)\n")
    assert again.stdout.partition("Not read")[2] == first.stdout.partition("Not read")[2] != ""
    broken.write_text("HloModule f\n\nENTRY e {\n  ROOT")
    printed = document("scan", dumps, "-o", out)
    assert printed["counts"] == {"read": 0, "failed": 1, "skipped": 0, "unchanged": 2}
    assert printed["failed_before"] == 1
    assert [Path(row["path"]).name[:11] for row in printed["failures"]] == [
        "module_0002",
        "module_0001",
    ]
    for path in dumps.glob("module_000[12]*"):
        path.unlink()
    done = hlofast_command("scan", dumps, "-o", out)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "1 file: 1 unchanged")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("-o", "out", "--format=csv"),
            "what is done is kept in out; the same command goes on from there",
        ),
        ((), "nothing is kept without -o OUT"),
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
