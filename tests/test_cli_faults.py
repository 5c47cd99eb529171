"""Internal errors, closed streams, bad files and bad arguments of the program `hlofast`."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hlofast
from conftest import A100_STEP, A100_TRACE, FIXTURES
from hlofast import _json
from hlofast import _text as output
from hlofast._kinds import NO_DUMPS
from hlofast.cli import INTERNAL, UNREADABLE, USAGE, VERBS, main, results
from test_cli import COMMAND, document, hlofast_command

POSIX = pytest.mark.skipif(os.name != "posix", reason="file descriptors of POSIX")
HAS_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
DUMPS = FIXTURES / "dump_folders" / "cpu"
ESCAPE = "a\x1b[31mb\x07"
ESCAPED = "a\\x1b[31mb\\x07"
TINY_DEVICE = """\
[tiny]
base = "tpu-v5p"
hbm_bandwidth = 1e-300
hbm_achieved_bandwidth = 1e-300
fast_memory_bandwidth = 1e-300
link_bandwidth = 1e-300
flops = { bf16 = 1e-300, f32 = 1e-300 }
"""


def calls(step: Path, folder: Path) -> dict[str, list[str | Path]]:
    """For every verb arguments that it takes; what is written goes below `folder`."""
    expected = folder / "expected.toml"
    expected.write_text('[peak]\nmax = "1GiB"\n')
    device: list[str | Path] = ["--device", "tpu-v5p"]
    given: dict[str, list[str | Path]] = {
        "calibrate": [A100_TRACE, A100_STEP, "--device", "a100"],
        "check": [step, "--expect", expected],
        "completion": ["bash"],
        "config": [FIXTURES / "configs" / "decoder_70b.txt"],
        "diff": [step, step],
        "graph": [step],
        "guide": [],
        "history": [DUMPS],
        "mcp": ["--root", folder],
        "plan": ["model_name=llama2-7b", "--instance", "v5e-16"],
        "profile": [FIXTURES / "profiles" / "several.xplane.pb.xz"],
        "oom": [FIXTURES / "messages" / "easydel166.txt"],
        "query": [DUMPS, "select count(*) from modules"],
        "report": [step, "-o", folder / "page.html", "--no-charts"],
        "scan": [DUMPS],
        "schema": ["scan"],
        "show": [step, "tuple.67"],
        "time": [step, *device],
        "trace": [step, *device, "-o", folder / "trace.json"],
    }
    if importlib.util.find_spec("duckdb") is None:
        given["query"] = ["--help"]
    return {verb: given.get(verb, [step]) for verb in VERBS}


class TestInternalErrors:
    def raising(self, raised: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a verb that raises."""
        code = (
            "import sys\nfrom hlofast.cli import main, summary\n"
            f"def run(arguments): print('begun'); {raised}\n"
            "summary.run = run\nsys.exit(main(['summary', 'x']))"
        )
        return subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            env=os.environ | variables,
        )

    @pytest.mark.parametrize(
        ("raised", "said"),
        [
            ("raise TypeError('one\\ntwo\\x1b')", "TypeError: one\\ntwo\\x1b"),
            ("[][0]", "IndexError: list index out of range"),
            ("raise MemoryError", "MemoryError"),
            ("raise BaseException('a panic')", "BaseException: a panic"),
            ("run(arguments)", "RecursionError: maximum recursion depth exceeded"),
        ],
    )
    def test_one_line_and_exit_code_70(self, raised: str, said: str) -> None:
        done = self.raising(raised)
        assert (done.returncode, INTERNAL) == (70, 70)
        (line,) = done.stderr.splitlines()
        hint = " (set HLOFAST_DEBUG=1 for the traceback; please report it)"
        assert line.startswith(f"hlofast: internal error: {said}")
        assert line.endswith(hint)
        assert done.stdout.startswith("begun\n")

    def test_the_traceback_when_debugging(self) -> None:
        done = self.raising("raise TypeError('here')", HLOFAST_DEBUG="1")
        assert done.returncode == INTERNAL
        assert "Traceback (most recent call last)" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("hlofast: internal error: TypeError: here (")
        assert "Traceback" not in self.raising("raise TypeError", HLOFAST_DEBUG="0").stderr


@POSIX
class TestClosedStreams:
    def run(self, number: int, arguments: list[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run the program with one of its standard streams closed."""
        how = f'exec "$@" {number}{"<" if number == 0 else ">"}&-'
        command = ["sh", "-c", how, "sh", *COMMAND, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    @pytest.mark.parametrize("verb", VERBS)
    def test_every_verb_ends_as_ever(self, verb: str, train_step: Path, tmp_path: Path) -> None:
        arguments: list[str | Path] = [verb, *calls(train_step, tmp_path)[verb]]
        whole = hlofast_command(*arguments)
        assert whole.returncode in (0, USAGE)
        for number in range(3):
            done = self.run(number, arguments)
            assert done.returncode == whole.returncode
            assert done.stdout == ("" if number == 1 else whole.stdout)
            assert done.stderr == ("" if number == 2 else whole.stderr)

    @pytest.mark.parametrize("number", range(3))
    def test_a_scan_writes_its_whole_dataset(self, number: int, tmp_path: Path) -> None:
        out = tmp_path / "out"
        arguments: list[str | Path] = ["scan", DUMPS, "-o", out, "--format", "jsonl"]
        assert self.run(number, arguments).returncode == 0
        stored, scanned = hlofast.open_dataset(out), hlofast.scan(DUMPS, tables=("modules",))
        assert len(stored["modules"]) == len(scanned["modules"]) > 0
        # Nothing of what a closed stream would have got is in a file.
        for line in (out / "hlofast-manifest.jsonl").read_text().splitlines():
            json.loads(line)

    def test_standard_input_that_is_closed_is_empty(self) -> None:
        done = self.run(0, ["cost", "-"])
        assert (done.returncode, done.stdout) == (UNREADABLE, "")
        assert done.stderr.startswith("hlofast: <stdin>: error: the input is empty")
        assert self.run(0, ["config", "-"]).returncode in (0, UNREADABLE)

    @pytest.mark.parametrize("number", [1, 2])
    def test_faults_keep_their_exit_code(self, number: int) -> None:
        assert self.run(number, ["summary", "no such file"]).returncode == UNREADABLE
        assert self.run(number, ["summary", "--nonsense"]).returncode == USAGE


@HAS_FULL
class TestFullDevice:
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    @pytest.mark.parametrize("arguments", [["--help"], ["cost", "--help"], [], ["--version"]])
    def test_help_that_cannot_be_written(self, arguments: list[str], unbuffered: str) -> None:
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*COMMAND, *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            )
        assert done.returncode == UNREADABLE
        assert done.stderr == "hlofast: output: No space left on device\n"

    def test_messages_that_cannot_be_written_keep_the_exit_code(self, train_step: Path) -> None:
        with Path("/dev/full").open("w") as full:
            arguments = ["summary", str(train_step), "no such file"]
            done = subprocess.run(
                [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=full, text=True
            )
        assert done.returncode == UNREADABLE
        assert done.stdout.startswith(hlofast.load(train_step).name)


class TestEscapes:
    @pytest.mark.parametrize("verb", VERBS)
    def test_an_argument_in_a_message(self, verb: str, train_step: Path, tmp_path: Path) -> None:
        arguments = calls(train_step, tmp_path)[verb]
        name = f"no such {ESCAPE}"
        for call in ([name, *arguments[1:]], [*arguments, f"--{ESCAPE}"]):
            done = hlofast_command(verb, *call)
            assert done.returncode in (USAGE, UNREADABLE)
            assert ESCAPED in (done.stdout if verb == "scan" else "") + done.stderr
            assert "\x1b" not in done.stdout + done.stderr

    def test_names_of_verbs_modules_meshes_and_devices(self, train_step: Path) -> None:
        for call in (
            [ESCAPE],
            ["summary", train_step, "--module", ESCAPE],
            ["collectives", train_step, "--mesh", ESCAPE],
            ["time", train_step, "--device", ESCAPE],
            ["show", train_step, ESCAPE],
            ["lint", train_step, "--fail-on", ESCAPE],
            ["guide", ESCAPE],
        ):
            done = hlofast_command(*call)
            assert done.returncode in (USAGE, UNREADABLE)
            assert ESCAPED in done.stderr
            assert "\x1b" not in done.stdout + done.stderr

    @pytest.mark.parametrize(
        "verb", ["summary", "cost", "memory", "show", "top", "lint", "matmuls"]
    )
    def test_names_of_dumps(self, verb: str, tmp_path: Path) -> None:
        path = tmp_path / f"dump{ESCAPE}.txt"
        path.write_text(
            "HloModule m\nENTRY e {\n"
            "  p = f32[4,4] parameter(0)\n"
            f"  ROOT d = f32[4,4] dot(p, p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}},"
            f' metadata={{op_name="{ESCAPE}" source_file="{ESCAPE}" source_line=7}}\n}}\n'
        )
        done = hlofast_command(verb, path, *(["d"] if verb == "show" else []))
        assert done.returncode == 0
        assert "\x1b" not in done.stdout + done.stderr
        if verb in ("show", "cost"):
            assert ESCAPED in done.stdout

    def test_columns_of_tables(self) -> None:
        import io

        printer = output.Printer(io.StringIO())
        printer.columns("t", [ESCAPE], [[ESCAPE]])
        printer.paragraph(f"{ESCAPE}: ", "text")
        written = printer.stream.getvalue()  # type: ignore[attr-defined]
        assert "\x1b" not in written
        assert written.count(ESCAPED) == 3


class TestFiguresOfJson:
    @pytest.fixture
    def device(self, tmp_path: Path) -> list[str | Path]:
        path = tmp_path / "devices.toml"
        path.write_text(TINY_DEVICE)
        return ["--device", "tiny", "--devices", path]

    @staticmethod
    def strictly(text: str) -> Any:
        """A document, which has no numbers that JSON has not."""

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is no JSON")

        return json.loads(text, parse_constant=refuse)

    @pytest.mark.parametrize("verb", ["time", "top", "report"])
    def test_infinite_figures_are_null(
        self, verb: str, train_step: Path, tmp_path: Path, device: list[str | Path]
    ) -> None:
        rest = ["-o", tmp_path / "page.html", "--no-charts"] if verb == "report" else []
        printed = self.strictly(hlofast_command(verb, train_step, *device, *rest, "--json").stdout)
        assert document(verb, train_step, *device, *rest) == printed  # The schema allows it.
        if verb == "time":
            (module,) = printed["results"]
            assert module["facts"]["step_seconds"]["value"] is None
            assert module["tables"]["groups"][0]["seconds"] is None
        else:
            (result,) = printed["results"]
            assert result["facts"]["step"]["value"] is None

    def test_people_still_read_them(self, train_step: Path, device: list[str | Path]) -> None:
        done = hlofast_command("time", train_step, *device)
        assert (done.returncode, done.stderr) == (0, "")
        assert " inf s" in done.stdout
        assert "nan" not in done.stdout

    def test_infinite_utilization(self, train_step: Path) -> None:
        tiny = ["--step-seconds", "1e-308", "--peak-flops", "1e-308"]
        (module,) = document("cost", train_step, *tiny)["results"]
        assert module["facts"]["mfu"] == {"value": None, "unit": None, "provenance": "unknown"}

    def test_a_figure_that_was_forgotten_is_no_document(self) -> None:
        for value in (float("inf"), float("nan")):
            with pytest.raises(ValueError, match="Out of range float values"):
                results.print_json({"figure": value})

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(),
            lambda own: st.lists(own) | st.dictionaries(st.text(), own) | st.tuples(own, own),
        ),
        st.sampled_from([None, 0, 1, 2]),
    )
    def test_documents_are_those_of_json(self, value: Any, indent: int | None) -> None:
        assert _json.dumps(value, indent) == json.dumps(value, indent=indent)

    def test_finite(self) -> None:
        inf, nan = float("inf"), float("nan")
        assert output.finite({"a": [1, 2.5, (nan, "inf")], "b": -inf, "c": None, "d": True}) == {
            "a": [1, 2.5, [None, "inf"]],
            "b": None,
            "c": None,
            "d": True,
        }


class TestFiles:
    def test_nested_names_of_axes(self, train_step: Path, tmp_path: Path) -> None:
        path = tmp_path / "mesh.toml"
        path.write_text('[mesh]\naxes = { data = 8 }\nbatch_axes = [["data"]]\n')
        done = hlofast_command("check", path, train_step)
        assert (done.returncode, done.stdout) == (UNREADABLE, "")
        assert done.stderr == f"hlofast: {path}: mesh.batch_axes must be a list of axis names\n"

    @pytest.mark.parametrize("text", ["[" * 200_000, '[{"kind": ' * 200_000])
    def test_nested_measurements(self, train_step: Path, tmp_path: Path, text: str) -> None:
        path = tmp_path / "measured.json"
        path.write_text(text)
        done = hlofast_command("time", train_step, "--device", "v5p", "--collectives", path)
        assert (done.returncode, done.stdout) == (USAGE, "")
        assert done.stderr == f"hlofast: {path}: nested too deeply\n"

    def test_a_folder_without_dumps(self, tmp_path: Path) -> None:
        folder, page = tmp_path / "empty", tmp_path / "page.html"
        folder.mkdir()
        done = hlofast_command("report", folder, "-o", page)
        said = f"hlofast: {folder}: {NO_DUMPS}\n"
        for arguments in (
            ("report", folder, "-o", page),
            ("history", folder),
            ("verdict", folder),
            ("diff", folder, folder),
        ):
            done = hlofast_command(*arguments)
            assert (done.returncode, done.stdout) == (UNREADABLE, ""), arguments
            assert set(done.stderr.splitlines(keepends=True)) == {said}, arguments
        assert not page.exists()
        with pytest.raises(ValueError, match="no XLA dumps here; write them with"):
            hlofast.report(folder)
        scanned = hlofast.scan(folder)
        assert [note.code for note in scanned.notes] == ["no-modules"]

    def test_a_history_needs_a_folder(self, train_step: Path) -> None:
        done = hlofast_command("history", train_step)
        assert done.returncode == UNREADABLE
        assert "is a file; history reads the dump directory" in done.stderr

    @pytest.mark.parametrize("verb", ["diff", "memory"])
    def test_standard_input_is_there_once(self, train_step: Path, verb: str) -> None:
        done = hlofast_command(verb, "-", "-", input=train_step.read_text())
        assert done.returncode == UNREADABLE
        assert done.stderr == "hlofast: <stdin>: standard input is read already; give - once\n"

    def test_a_scan_reads_no_standard_input(self) -> None:
        done = hlofast_command("scan", "-", input="HloModule m")
        assert (done.returncode, done.stdout) == (USAGE, "")
        assert "not standard input" in done.stderr

    @pytest.mark.skipif(sys.platform != "linux", reason="no limit of the address space")
    @pytest.mark.parametrize("how", ["file", "stdin"])
    def test_more_than_memory_holds(self, tmp_path: Path, how: str) -> None:
        import resource

        path = tmp_path / "large.txt"
        with path.open("wb") as file:
            file.write(b"text\n")
            file.truncate(1 << 30)  # Sparse: nothing of it lies on disk.
        limit = 768 << 20
        with path.open("rb") as file:
            done = subprocess.run(
                [*COMMAND, "summary", str(path) if how == "file" else "-"],
                stdin=file,
                capture_output=True,
                text=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
            )
        name = path if how == "file" else "<stdin>"
        assert (done.returncode, done.stdout) == (UNREADABLE, "")
        assert done.stderr == f"hlofast: {name}: out of memory while reading it\n"

    @pytest.mark.parametrize("option", ["--devices", "--rules", "--expect", "--collectives"])
    def test_a_large_file_where_a_small_one_is_wanted(
        self, train_step: Path, tmp_path: Path, option: str
    ) -> None:
        path = tmp_path / "large.csv"
        with path.open("wb") as file:
            file.truncate(1 << 30)
        verb = {"--rules": "lint", "--expect": "check"}.get(option, "time")
        device = ["--device", "v5p"] if verb == "time" else []
        done = hlofast_command(verb, train_step, *device, option, path)
        assert done.returncode in (USAGE, UNREADABLE)
        assert done.stderr.startswith(f"hlofast: {path}: larger than ")

    @pytest.mark.skipif(importlib.util.find_spec("duckdb") is None, reason="duckdb is missing")
    def test_sql_that_is_no_text(self) -> None:
        done = subprocess.run(
            [*COMMAND, "query", str(DUMPS), "-"],
            input=b"\xff",
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
        )
        assert (done.returncode, done.stdout) == (UNREADABLE, b"")
        assert b"can't decode byte 0xff" in done.stderr


@pytest.mark.parametrize("verb", [["what-if"], ["graph"], ["remat", "--apply"]])
def test_an_input_is_not_overwritten(
    train_step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    path, other = tmp_path / "step.txt", tmp_path / "other.txt"
    path.write_bytes(train_step.read_bytes())
    other.symlink_to(path)
    for out in (path, other):
        assert main([*verb, str(path), "-o", str(out)]) == 2
        assert "an input, which would be overwritten" in capsys.readouterr().err
    assert path.read_bytes() == train_step.read_bytes()
    assert main([*verb, str(path), "-o", str(tmp_path / "none" / "x")]) == 3


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
def test_standard_output_is_no_file_called_dash(
    train_step: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    out: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(train_step)
    for verb in (["graph"], ["fmt"]):
        # These print nothing else there.
        assert main([*verb, path]) == 0
        printed = capfdbinary.readouterr().out
        assert main([*verb, path, "-o", out]) == 0
        assert capfdbinary.readouterr().out == printed != b""
    for verb in (["what-if", "--batch", "2x"], ["remat", "--plan", "--apply"]):
        assert main([*verb, path, "-o", out]) == 2
        told = capfdbinary.readouterr()
        assert b"standard output has the report" in told.err and not told.out
    assert main(["guide", "-o", out]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["memory", "--hbm", "-1GiB"], "--hbm -1GiB: '-1GiB' is not a number of bytes such as"),
        (["what-if", "--batch", "-2x"], "batch: '-2x' is not a size such as 256 or a multiple"),
        (["time", "--top", "-3k"], "argument --top: not a whole number from 0: '-3k'"),
        (["time", "--step-time", "-3ms"], "--step-time -3ms: '-3ms' is not a time such as 300ms"),
        (["lint", "--min-share", "-0.1"], "argument --min-share: '-0.1' is not a number from 0"),
        (["stages", "--most-moved", "-1x"], "--most-moved: '-1x' is not a number from 0 to 1"),
    ],
)
def test_values_below_zero_are_named_with_what_is_allowed(
    arguments: list[str], said: str, train_step: Path
) -> None:
    done = hlofast_command(*arguments, train_step)
    assert done.returncode == USAGE
    assert said in done.stderr and "expected one argument" not in done.stderr


def test_text_that_was_cut_off_is_told(train_step: Path) -> None:
    whole = train_step.read_text()
    entry = whole.index("\nENTRY ")
    quote = whole.index('op_name="', entry) + 12
    for end in (quote, whole.index("metadata={", entry) + 9, whole.index(" = ", entry) + 3):
        with pytest.raises(hlofast.ParseError) as raised:
            hlofast.loads(whole[:end])
        assert "if the file was cut off, copy it again, or dump again" in str(raised.value)
    # Between two lines of a body: at its first, in its middle, before its closing brace.
    body = whole.index("\n", entry + 1) + 1
    lines = [at for at in range(body, len(whole)) if whole[at - 1] == "\n"]
    for end in (body, lines[1], lines[len(lines) // 2], whole.rindex("}")):
        for text in (whole[:end], whole[: end - 1]):
            with pytest.raises(hlofast.ParseError) as raised:
                hlofast.loads(text)
            assert "if the file was cut off, copy it again, or dump again" in str(raised.value)
    with pytest.raises(hlofast.ParseError, match="cut off"):
        hlofast.loads("HloModule m")
    # A fault elsewhere is another fault.
    with pytest.raises(hlofast.ParseError) as raised:
        hlofast.loads(whole[:quote] + "\n" + whole[quote:].replace('"', "", 1))
    assert "cut off" not in str(raised.value)
