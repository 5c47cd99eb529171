"""The program `hlofast`: output, imports and exit codes."""

import contextlib
import gzip
import importlib.resources
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import hlofast
import schemas
from conftest import A100_STEP, A100_TRACE, FIXTURES
from hlofast import _text as output
from hlofast.cli import VERBS, main

NO_JSON = {"completion", "mcp", "schema"}
"""Verbs that print a script or a schema, or speak another protocol."""
COMMAND = [sys.executable, "-P", "-m", "hlofast"]

TWO_MODULES = """\
A page about two programs.

HloModule first, num_partitions=2

ENTRY main {
  x = f32[2,3]{1,0} parameter(0)
  ROOT y = f32[2,3]{1,0} negate(x)
}

and then

HloModule second

half {
  a = f32[] parameter(0)
  ROOT y = f32[] negate(a)
}

ENTRY main {
  x = f32[4] parameter(0), metadata={op_name="jit(f)/x"}
  y = f32[4] exponential(x), metadata={op_name="jit(f)/exp" source_file="f.py" source_line=7}
  ROOT r = (f32[4], f32[4]) tuple(y, y)
}
"""


def hlofast_command(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program as a user would, in a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def without_reader(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the program with nobody who reads what it prints."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [*COMMAND, *map(str, arguments)]
    try:
        return subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writer)


def document(*arguments: str | Path, **options: Any) -> Any:
    """The JSON that a verb prints, checked against the verb's schema."""
    done = hlofast_command(*arguments, "--json", **options)
    return validated(arguments[0], done.stdout)


def validated(verb: str | Path, text: str) -> Any:
    """The JSON document of a verb, checked against the verb's schema."""
    printed = json.loads(text)
    schemas.check(str(verb), printed)
    return printed


def values_of(result: Any) -> dict[str, Any]:
    """The values of a result's facts by name."""
    return {name: fact["value"] for name, fact in result["facts"].items()}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.txt"
    path.write_text(TWO_MODULES)
    return path


class TestProgram:
    def test_help_names_every_verb_and_gives_examples(self) -> None:
        done = hlofast_command("--help")
        assert done.returncode == 0
        assert "examples:" in done.stdout
        for verb in VERBS:
            assert f"\n  {verb} " in done.stdout

    @pytest.mark.parametrize("verb", VERBS)
    def test_help_of_a_verb_gives_examples(self, verb: str) -> None:
        done = hlofast_command(verb, "--help")
        assert done.returncode == 0
        assert f"hlofast {verb} " in done.stdout.partition("examples:")[2]

    def test_version(self) -> None:
        done = hlofast_command("--version")
        assert (done.returncode, done.stdout) == (0, f"hlofast {hlofast.__version__}\n")

    def test_installed_program(self) -> None:
        program = Path(sys.executable).parent / "hlofast"
        if not program.exists():
            pytest.skip("the environment has no scripts")
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"hlofast {hlofast.__version__}\n"

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("sumary", "x"),
            ("--nonsense",),
            ("summary",),
            ("show", "x"),
            ("summary", "x", "--top", "-1"),
        ],
    )
    def test_wrong_usage_is_exit_code_2(self, arguments: tuple[str, ...]) -> None:
        done = hlofast_command(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr

    def test_every_verb_has_a_valid_schema(self) -> None:
        for verb in [name for name in VERBS if name not in NO_JSON]:
            text = importlib.resources.files("hlofast") / "schemas" / f"{verb}.json"
            schema = json.loads(text.read_text())
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["properties"]["schema"] == {"const": f"hlofast.{verb}"}
            results = schema["properties"]["results"]["items"]["properties"]
            for table in results["tables"]["properties"].values():
                rows = table["items"]
                assert {"type", "properties", "required", "additionalProperties"} >= rows.keys()
                for value in rows.get("properties", {}).values():
                    assert value.keys() == {"type", "description"}

    def test_schemas_are_printed(self) -> None:
        names = hlofast_command("schema").stdout.split()
        assert set(names) == set(VERBS) - NO_JSON
        schemas = importlib.resources.files("hlofast") / "schemas"
        for name in names:
            done = hlofast_command("schema", name)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout == (schemas / f"{name}.json").read_text()
        done = hlofast_command("schema", "kost")
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            done.stderr
            == f"hlofast: no schema 'kost'; choose one of {', '.join(names)}; did you mean cost?\n"
        )

    @pytest.mark.parametrize(
        "arguments", [("--help",), ("summary",), ("cost",), ("matmuls",), ("show",), ("fmt",)]
    )
    def test_loads_neither_numpy_nor_heavy_modules(
        self, arguments: tuple[str, ...], page: Path
    ) -> None:
        rest = [] if arguments == ("--help",) else [str(page)]
        rest += ["y", "--module", "first"] if arguments == ("show",) else []
        code = (
            "import sys\nfrom hlofast.__main__ import main\n"
            f"try: main({[*arguments, *rest]!r})\nexcept SystemExit: pass\n"
            "print('\\n'.join(sys.modules), file=sys.stderr)"
        )
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        loaded = set(done.stderr.split())
        heavy = {"numpy", "json", "inspect", "dataclasses", "typing"}
        heavy |= {"subprocess", "importlib.metadata", "tempfile", "pathlib", "unittest", "logging"}
        assert "hlofast.cli" in loaded
        assert not heavy & loaded

    def test_no_verb_loads_numpy(self, train_step: Path, tmp_path: Path) -> None:
        step, out, dumps = (
            str(train_step),
            str(tmp_path / "out"),
            str(FIXTURES / "dump_folders/cpu"),
        )
        expected = tmp_path / "expected.toml"
        expected.write_text('[peak]\nmax = "1GiB"\n')
        report = tmp_path / "memory-usage-report.txt"
        report.write_text(
            "Memory Space: default (color=0)\nTotal bytes: 4 (4B)\n cumulative_size;\n"
        )
        device = ["--device", "tpu-v5p"]
        arguments = {
            "completion": ["bash"],
            "calibrate": [str(A100_TRACE), str(A100_STEP), "--device", "a100"],
            "check": [step, "--expect", str(expected)],
            "config": [str(FIXTURES / "configs" / "decoder_70b.txt")],
            "diff": [step, step],
            "graph": [step, "-o", f"{out}.dot"],
            "guide": [],
            "history": [dumps],
            "memory": [step, "--by", "source"],
            "oom": [str(report)],
            "plan": ["model_name=llama2-7b", "--instance", "v5e-16"],
            "profile": [str(FIXTURES / "profiles" / "several.xplane.pb.xz")],
            "report": [step, "-o", f"{out}.html", "--no-charts", *device],
            "scan": [dumps],
            "schema": ["scan"],
            "show": [step, "tuple.67"],
            "time": [step, "--by", "source", *device],
            "top": [step, *device],
            "trace": [step, "-o", f"{out}.json", *device],
        }
        # DuckDB and, of datasets, pyarrow may load it; the server reads standard input until it ends.
        others = [verb for verb in VERBS if verb not in ("query", "mcp")]
        calls = [[verb, *arguments.get(verb, [step])] for verb in others]
        code = (
            "import sys\nfrom hlofast.cli import main\n"
            f"for call in {calls!r}: print(call[0], main(call), file=sys.stderr)\n"
            "print('\\n'.join(sys.modules), file=sys.stderr)"
        )
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        said = done.stderr.splitlines()
        assert said[: len(calls)] == [f"{call[0]} 0" for call in calls]
        assert "numpy" not in said

    @pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="no pipes to close")
    def test_closed_pipe_ends_quietly(self, train_step: Path) -> None:
        read, write = os.pipe()
        os.close(read)
        command = [*COMMAND, "summary", "--top", "0", str(train_step)]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, b"")

    @pytest.mark.skipif(sys.platform == "win32", reason="signals work differently there")
    def test_interrupt_is_exit_code_130(self) -> None:
        child = subprocess.Popen(
            [*COMMAND, "summary", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A background job of a shell starts with the signal ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        # The program is inside its read of standard input once its mapped files include _core.
        maps = Path(f"/proc/{child.pid}/maps")
        for _ in range(2000):
            if not maps.exists() or "_core" in maps.read_text():
                break
            time.sleep(0.01)
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        stdout, stderr = child.communicate(timeout=60)
        assert (child.returncode, stdout, stderr) == (130, b"", b"")


class TestFiles:
    def test_missing_file_is_exit_code_3_and_the_others_are_read(self, page: Path) -> None:
        done = hlofast_command("summary", "no such file.txt", page)
        assert done.returncode == 3
        assert done.stderr == "hlofast: no such file.txt: No such file or directory\n"
        assert "first" in done.stdout

    def test_errors_stand_in_the_document(self, tmp_path: Path) -> None:
        broken = tmp_path / "broken.txt"
        broken.write_text("HloModule m\n\nENTRY main {\n  ROOT x = f32[] add(y, z)\n}\n")
        (error,) = document("summary", broken)["errors"]
        assert error["path"] == str(broken)
        assert error["line"] == 4
        done = hlofast_command("summary", broken)
        assert done.returncode == 3
        assert "Traceback" not in done.stderr
        assert f"{broken}:4:" in done.stderr

    def test_what_is_not_hlo_is_exit_code_3(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("no program here\n")
        done = hlofast_command("summary", path)
        assert (done.returncode, done.stdout) == (3, "")
        assert str(path) in done.stderr

    def test_standard_input(self, page: Path) -> None:
        with page.open() as file:
            modules = document("summary", "-", stdin=file)["results"]
        assert [(m["path"], m["name"]) for m in modules] == [
            ("<stdin>", "first"),
            ("<stdin>", "second"),
        ]

    def test_compressed(self, page: Path, tmp_path: Path) -> None:
        packed = tmp_path / "page.txt.gz"
        packed.write_bytes(gzip.compress(page.read_bytes()))
        plain, unpacked = document("summary", page), document("summary", packed)
        for module in unpacked["results"]:
            module["path"] = str(page)
        assert unpacked == plain

    def test_several_modules_and_their_lines(self, page: Path) -> None:
        modules = document("summary", page)["results"]
        assert [(m["name"], m["line"]) for m in modules] == [("first", 3), ("second", 12)]

    def test_module_selects_by_name(self, page: Path) -> None:
        (module,) = document("summary", page, "--module", "second")["results"]
        assert module["name"] == "second"
        done = hlofast_command("summary", page, "--module", "third")
        assert done.returncode == 2
        assert done.stderr == f"hlofast: {page}: no module 'third'; the file holds first, second\n"


class TestSummary:
    def test_document_is_the_python_summary(self, train_step: Path) -> None:
        (module,) = document("summary", train_step)["results"]
        (part,) = hlofast.find_modules(train_step.read_bytes())
        summary = part.module.summary().to_dict()
        assert {key: module[key] for key in summary} == summary
        assert set(module) - set(summary) == {"path", "line", "label"}

    def test_tables_for_people(self, train_step: Path) -> None:
        module = hlofast.load(train_step)
        done = hlofast_command("summary", train_step)
        assert done.returncode == 0
        assert done.stdout.startswith(f"{module.name}\n")
        assert "\x1b" not in done.stdout
        for title in ("Parameters by size", "Opcodes", "Fusions", "Computations by size"):
            assert f"\n{title}" in done.stdout
        shown = len(hlofast_command("summary", train_step, "--top", "0").stdout)
        assert shown > len(done.stdout)


class TestShow:
    def test_instruction(self, page: Path) -> None:
        (result,) = document("show", page, "%x", "--module", "second")["results"]
        facts = values_of(result)
        assert (facts["opcode"], facts["shape"], facts["bytes"]) == ("parameter", "f32[4]", 16)
        assert facts["kind"] == "instruction"
        assert (result["name"], facts["module"]) == ("x", "second")
        assert [user["instruction"] for user in result["tables"]["users"]] == ["y"]

    def test_operands_source_and_line(self, page: Path) -> None:
        (result,) = document("show", page, "main/y", "--module", "second")["results"]
        facts = values_of(result)
        assert [own["instruction"] for own in result["tables"]["operands"]] == ["x"]
        assert (facts["op_name"], facts["source_file"], facts["source_line"]) == (
            "jit(f)/exp",
            "f.py",
            7,
        )
        line = TWO_MODULES.splitlines()[facts["text_line"] - 1]
        (row,) = result["tables"]["text"]
        assert (row["line"], row["text"].strip()) == (facts["text_line"], line.strip())
        assert line.startswith("  y = ")

    def test_operand_used_twice_stands_twice(self, page: Path) -> None:
        (result,) = document("show", page, "r")["results"]
        assert [own["instruction"] for own in result["tables"]["operands"]] == ["y", "y"]
        assert values_of(result)["is_root"]

    def test_computation(self, page: Path) -> None:
        (result,) = document("show", page, "half")["results"]
        facts, tables = values_of(result), result["tables"]
        assert (facts["kind"], facts["role"], facts["instructions"]) == ("computation", "unused", 2)
        assert [own["instruction"] for own in tables["parameters"]] == ["a"]
        assert facts["root"] == "y"
        assert "\n".join(row["text"] for row in tables["text"]) in TWO_MODULES
        lines = TWO_MODULES.splitlines()
        assert [lines[row["line"] - 1] for row in tables["text"]] == [
            row["text"] for row in tables["text"]
        ]

    def test_ambiguous_name_says_where(self, page: Path) -> None:
        done = hlofast_command("show", page, "y", "--module", "second")
        assert done.returncode == 2
        assert "half/y" in done.stderr
        assert "main/y" in done.stderr

    def test_unknown_name(self, page: Path) -> None:
        done = hlofast_command("show", page, "nowhere")
        assert done.returncode == 2
        assert "nowhere" in done.stderr

    def test_for_people(self, page: Path) -> None:
        done = hlofast_command("show", page, "main/y", "--module", "second")
        assert done.returncode == 0
        assert "exponential" in done.stdout
        assert "f.py" in done.stdout
        whole = hlofast_command("show", page, "half")
        assert "ROOT y = f32[] negate(a)" in whole.stdout

    def test_the_python_result(self, page: Path) -> None:
        second = hlofast.find_modules(TWO_MODULES)[1].module
        assert second is not None
        shown = second.show("main/y")
        printed = hlofast_command("show", page, "main/y", "--module", "second").stdout.splitlines()
        assert [printed[0], *printed[2:]] == [*str(shown).splitlines(), ""]
        (own,) = validated("show", shown.to_json())["results"]
        assert own == shown.to_dict()
        html = second.show("x")._repr_html_()
        assert "16 B" in html
        with pytest.raises(KeyError, match="nowhere"):
            second.show("nowhere")
        with pytest.raises(ValueError, match="2 instructions are named 'y': half/y, main/y"):
            second.show("y")

    def test_html_escapes_names(self) -> None:
        text = TWO_MODULES.replace("jit(f)/exp", "<b>")
        second = hlofast.find_modules(text)[1].module
        assert second is not None
        html = second.show("main/y")._repr_html_()
        assert "&lt;b&gt;" in html
        assert "<b>" not in html


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [["cost"], ["summary", "--json"], ["fmt"], ["lint"]])
def test_a_full_disk_is_said_in_one_line(train_step: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-P", "-m", "hlofast", *arguments, str(train_step)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3
    assert done.stderr == "hlofast: output: No space left on device\n"


def test_what_was_printed_before_a_fault_of_the_output_comes_out(
    train_step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fmt", str(train_step), "-o", str(tmp_path / "none" / "x")]) == 3
    assert capsys.readouterr().err == f"hlofast: {tmp_path}/none/x: No such file or directory\n"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["fmt", str(train_step), "-o", str(tmp_path / "none" / "x")]) == 3


def test_text_that_ends_before_its_entry_is_told(train_step: Path, tmp_path: Path) -> None:
    whole = train_step.read_text()
    folder = tmp_path / "dumps"
    folder.mkdir()
    cut = folder / "module_0001.cut.after_optimizations.txt"
    cut.write_text(whole[: whole.index("ENTRY ")])
    fault = hlofast.load(cut).missing_entry
    assert fault is not None
    assert (fault.kind, fault.path) == ("invalid-computation", str(cut))
    assert "no computation is marked as ENTRY, and the last one, " in fault.message
    assert hlofast.load(train_step).missing_entry is None
    # What there is is shown, and said not to be the program.
    for verb in ("cost", "lint", "memory", "time --device v5e"):
        done = hlofast_command(*verb.split(), "--json", cut)
        assert done.returncode == 3
        assert done.stderr.startswith(f"hlofast: {cut}:{fault.line}:")
        output = json.loads(done.stdout)
        assert len(output["results"]) == 1
        assert [error["message"] for error in output["errors"]] == [str(fault)]
    # Where nobody looks at one module it is none.
    (row,) = hlofast.scan(folder).files
    assert (row["status"], row["line"], row["reason"]) == ("failed", fault.line, fault.message)
    done = hlofast_command("diff", folder, folder)
    assert (done.returncode, fault.message in done.stderr) == (3, True)
    (row,) = hlofast.fingerprints(folder)
    assert (row["fingerprint"], row["error"] is not None) == (None, True)
    done = hlofast_command("history", folder, "cut")
    assert (done.returncode, fault.message in done.stderr) == (3, True)


def test_a_module_that_takes_no_time() -> None:
    module = hlofast.loads("ENTRY e { ROOT a = f32[2] parameter(0) }")
    assert len(module.time("v5e").by("phase")) == 0


def test_closed_output(train_step: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "summary", str(train_step)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_encoding_without_the_signs_of_tables(train_step: Path) -> None:
    command = [sys.executable, "-P", "-m", "hlofast", "collectives", "--mesh", "data=4,model=2"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, train_step], capture_output=True, env=environment)
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\\xd7" in done.stdout


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestOutput:
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")

    def test_colour_only_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert output.Printer(FakeTerminal()).styled("x", "1") == "\x1b[1mx\x1b[0m"
        assert output.Printer(io.StringIO()).styled("x", "1") == "x"
        monkeypatch.setenv("NO_COLOR", "1")
        assert output.Printer(FakeTerminal()).styled("x", "1") == "x"

    def test_table_fits_the_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        printer = output.Printer(FakeTerminal())
        printer.width = 40
        printer.table("T", ["name", "bytes"], [["long" * 30, 1_234_567], ["b", None]], 7)
        lines = printer.stream.getvalue().splitlines()
        assert max(map(len, lines)) <= 40
        assert lines[1] == "T (2 of 7)"
        # The middle goes, so that numbers at the end of names stay.
        assert "…" in lines[3]
        assert lines[3].endswith("long  1,234,567")
        assert lines[4].split() == ["b", "-"]

    def test_paragraphs_break_at_the_edge(self, monkeypatch: pytest.MonkeyPatch) -> None:
        printer = output.Printer(FakeTerminal())
        printer.width = 40
        printer.paragraph("note: ", "word " * 20 + "end")
        lines = printer.stream.getvalue().splitlines()
        assert max(map(len, lines)) <= 40
        assert lines[0].startswith("note: word ")
        assert all(line.startswith("      word ") for line in lines[1:])
        assert " ".join(lines).split() == ["note:", *["word"] * 20, "end"]
        wide = output.Printer(io.StringIO())
        wide.paragraph("note: ", "word " * 20)
        assert wide.stream.getvalue().count("\n") == 1

    def test_names_cannot_steer_the_terminal(self) -> None:
        printer = output.Printer(io.StringIO())
        printer.line("a\x1b[2Jb\rc")
        assert printer.stream.getvalue() == "a\\x1b[2Jb\\rc\n"

    @pytest.mark.parametrize(
        ("count", "text"),
        [(0, "0 B"), (1_000, "1,000 B"), (3_294_166_544, "3,294,166,544 B (3.068 GiB)")],
    )
    def test_sizes(self, count: int, text: str) -> None:
        assert output.size(count) == text
        assert output.size(None) == "unknown"


def test_a_folder_where_a_file_is_wanted_leads_to_its_programs(tmp_path: Path) -> None:
    done = hlofast_command("cost", tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    reason = "is a folder: `hlofast FOLDER` names its programs"
    assert done.stderr == f"hlofast: {tmp_path}: {reason}\n"


def test_modules_of_one_name_are_chosen_by_number(tmp_path: Path) -> None:
    """A log holds a program before and after a change; every command that is shown selects one."""
    path = tmp_path / "log.txt"
    small = "HloModule step\n\nENTRY e {\n  ROOT x = f32[2] parameter(0)\n}\n"
    path.write_text(small + small.replace("  ROOT", "  y = f32[4] parameter(1)\n  ROOT"))
    done = hlofast_command("graph", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"hlofast: {path} holds 2 modules; choose one with --module: 0, 1\n"
    for number, instructions in enumerate((1, 2)):
        (result,) = document("summary", path, "--module", str(number))["results"]
        assert result["facts"]["instructions"]["value"] == instructions
        assert len(hlofast.load(path, module=number)) == instructions
    done = hlofast_command("report", path, "-o", tmp_path / "page.html")
    assert "choose one with --module: 0, 1" in done.stderr
    commands = re.findall(r"--module (\S+)", hlofast_command("verdict", path).stdout)
    assert set(commands) == {"1"}  # The larger module.
    assert hlofast_command("summary", path, "--module", "2").returncode == 2
