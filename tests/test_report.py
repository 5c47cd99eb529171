"""`Module.report` and `hlofast report` without a browser; `test_report_page.py` uses one."""

import base64
import json
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds
from test_cli import document, hlofast_command

UNSCHEDULED = """\
HloModule bare

ENTRY main {
  x = f32[8]{0} parameter(0)
  ROOT y = f32[8]{0} add(x, x)
}
"""


def block(html: str, name: str) -> tuple[dict[str, Any], bytes]:
    """The head and the buffers of a block of a page."""
    packed = html.split(f'id="block-{name}">')[1].split("</script>")[0]
    content = zlib.decompress(base64.b64decode(packed))
    length = int.from_bytes(content[:4], "little")
    return json.loads(content[4 : 4 + length]), content[4 + length :]


@pytest.fixture(scope="module")
def report(train_step: Path) -> Any:
    return hlofast.load(train_step).report(device="tpu-v5e", mesh="data=2,model=4", plots=False)


def test_what_is_not_known_is_said_with_how_to_give_it(train_step: Path) -> None:
    made = hlofast.loads(UNSCHEDULED).report(plots=False)
    assert made.verdict["step"] is None
    assert made.verdict["mfu"] is None
    assert made.verdict["flops"] == 8
    assert "no device given, use --device NAME" in made.html
    assert "no mesh known, use --mesh data=2,model=4" in made.html
    assert 'id="figure-step">unknown<' in made.html


def test_the_verdict_is_that_of_the_analyses(report: Any, train_step: Path) -> None:
    module = hlofast.load(train_step)
    time = module.time("tpu-v5e", mesh="data=2,model=4")
    assert report.verdict["step"] == time.step_seconds
    assert report.verdict["mfu"] == time.mfu
    assert report.verdict["exposed"] == sum(time.exposed.values())
    assert report.verdict["peak"] == module.memory(device="tpu-v5e").allocated_in_hbm
    codes = report.tables["findings"].values("code")
    assert codes[: len(module.lint())] == [finding.code for finding in module.lint()]


def test_columns_are_those_of_the_module(report: Any, train_step: Path) -> None:
    module = hlofast.load(train_step)
    head, buffers = block(report.html, "instructions")
    start, length, kind = head["numbers"]["flops"]
    assert kind == "i64"
    assert buffers[start : start + length] == bytes(module.cost()._data.column("flops"))
    start, length, _ = head["words"]["name"]["texts"]["ascii"]
    assert buffers[start : start + length].decode().split("\n") == module.names()


def test_names_beyond_ascii_and_line_breaks_stay_in_their_row() -> None:
    name = "λ/\U0001f600/x"
    text = UNSCHEDULED.replace("add(x, x)", f'add(x, x), metadata={{op_name="{name}"}}')
    head, buffers = block(hlofast.loads(text).report(plots=False).html, "instructions")
    texts = head["words"]["op_name"]["texts"]
    start, length, _ = texts["utf16"]
    shown = buffers[start : start + length].decode("utf-16-le").split("\n")
    assert len(shown) == texts["count"]
    assert name in shown


def test_headings_leave_no_level_out(report: Any, dumps: Path) -> None:
    for made in (report, hlofast.report(dumps), hlofast.loads(UNSCHEDULED).report()):
        levels = [int(level) for level in re.findall(r"<h([1-6])\b", made.html)]
        assert {1, 2, 3} <= set(levels)
        assert [pair for pair in pairwise(levels) if pair[1] > pair[0] + 1] == []


def test_a_page_is_written_whole_or_not_at_all(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")

    def full(*_: Any) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", full)
        with pytest.raises(OSError, match="no space"):
            report.save(path)
    assert path.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    report.save(path)
    assert path.read_text(encoding="utf-8") == report.html
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600


def test_notebooks_show_it_in_a_frame_of_its_own(report: Any) -> None:
    shown = report._repr_html_()
    frame, beside = shown.split("</iframe>")
    assert frame.startswith("<iframe ") and frame.count("<") == 1
    assert 'sandbox="allow-scripts"' in frame
    # The script is the same beside every frame; nothing of a dump is in it.
    other = hlofast.loads(UNSCHEDULED).report(plots=False)._repr_html_()
    assert beside == other.split("</iframe>")[1] and beside.count("<") == 2 + beside.count(" < ")


def test_config_is_compared(tmp_path: Path, train_step: Path) -> None:
    declared = tmp_path / "declared.toml"
    declared.write_text("[mesh]\naxes = { data = 4, model = 4 }\n")
    module = hlofast.load(train_step)
    html = module.report(config=declared, plots=False).html
    check = hlofast.check(declared, module)
    assert not check.ok
    assert 'id="check-title"' in html
    for finding in check.found():
        assert finding.message[:40].replace("'", "&#x27;") in html


def test_a_check_that_cannot_be_made_says_why(
    tmp_path: Path, train_step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("more devices than <numbers>")

    declared = tmp_path / "declared.toml"
    declared.write_text("[mesh]\naxes = { data = 4, model = 4 }\n")
    monkeypatch.setattr(hlofast, "check", refuse)
    html = hlofast.load(train_step).report(config=declared, plots=False).html
    section = html[html.index('id="check-title"') :].partition("</section>")[0]
    assert "more devices than &lt;numbers&gt;" in section


def test_a_page_with_charts_of_seed_002_is_small(seeds: Seeds) -> None:
    pytest.importorskip("bokeh")
    module = hlofast.load(seeds.path("002"))
    made = module.report(device="a100")
    assert len(made.html.encode()) < 5_000_000
    assert made.verdict["step"] == module.time("a100").step_seconds
    head, _ = block(made.html, "instructions")
    assert head["rows"] == len(module)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two hosts wrote, who compiled something else, one with dumps between passes."""
    folder = tmp_path_factory.mktemp("dumps")
    with tarfile.open(FIXTURES / "passes.tar.xz") as archive:
        archive.extractall(folder / "host0", filter="data")
    (folder / "host1").mkdir()
    name = "module_0000.jit_train_step.cpu_after_optimizations.txt.gz"
    shutil.copy(FIXTURES / "dump_folders" / "cpu" / name, folder / "host1")
    (folder / "host1" / "module_0009.jit_bad.before_optimizations.txt").write_text("HloModule x")
    return folder


def test_a_directory_ranks_programs_and_tells_hosts_and_passes(dumps: Path) -> None:
    made = hlofast.report(dumps, plots=False)
    assert made.verdict["programs"] == 2
    assert made.verdict["differing"] == 1
    assert made.verdict["step"] is None
    findings = made.tables["findings"].to_pylist()
    assert findings[0]["code"] == "hosts-differ: jit_train_step"
    head, buffers = block(made.html, "sections")
    sheets = {sheet["key"]: sheet for part in head["sections"] for sheet in part["sheets"]}
    assert {"programs", "fingerprints", "history-0", "failures"} <= set(sheets)
    history = hlofast.history(dumps, "host0/module_0000.jit_train_step")
    assert sheets["history-0"]["rows"] == len(history)
    columns = {column["key"]: column for column in sheets["history-0"]["columns"]}
    start, length, _ = columns["live_peak"]["data"]
    assert buffers[start : start + length] == bytes(history._columns["live_peak"])
    scan = hlofast.scan(dumps, tables=("modules",)).programs
    largest = max(flops for flops in scan.values("flops") if flops is not None)
    assert made.verdict["flops"] == largest


def test_what_is_of_one_module_does_not_go_with_a_directory(dumps: Path) -> None:
    with pytest.raises(ValueError, match="a directory"):
        hlofast.report(dumps, module="jit_train_step")


class TestCommand:
    def test_says_the_verdict(self, train_step: Path, tmp_path: Path) -> None:
        path = tmp_path / "report.html"
        arguments = ("report", train_step, "-o", path, "--device", "tpu-v5e", "--no-charts")
        (result,) = document(*arguments)["results"]
        module = hlofast.load(train_step)
        values = {name: fact["value"] for name, fact in result["facts"].items()}
        made = module.report(device="tpu-v5e", plots=False)
        assert made.verdict.items() <= values.items()
        assert values["page"] == str(path)
        assert result["notes"][-1]["figures"] == {"bytes": path.stat().st_size}
        assert [row["code"] for row in result["tables"]["findings"]] == made.tables[
            "findings"
        ].values("code")
        assert {note["code"] for note in result["notes"]} == {*made.verdict, "page"}
        assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        done = hlofast_command(*arguments)
        assert done.returncode == 0
        assert "Step time" in done.stdout

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (("--device", "tpu-v99"), 2),
            (("--mesh", "data"), 2),
            (("--instance", "tpu-v5litepod-16"), 2),
            (("--config", "absent.toml"), 3),
            (("--module", "absent"), 2),
        ],
    )
    def test_faults_write_nothing(
        self, train_step: Path, tmp_path: Path, arguments: tuple[str, ...], code: int
    ) -> None:
        path = tmp_path / "report.html"
        done = hlofast_command("report", train_step, "-o", path, *arguments, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert done.stderr.startswith("hlofast: ")
        assert not path.exists()

    def test_a_directory(self, dumps: Path, tmp_path: Path) -> None:
        path = tmp_path / "report.html"
        (result,) = document("report", dumps, "-o", path, "--no-charts")["results"]
        assert result["facts"]["kind"]["value"] == "directory"
        assert path.stat().st_size == result["notes"][-1]["figures"]["bytes"]
        done = hlofast_command("report", dumps, "-o", path, "--module", "jit_train_step")
        assert done.returncode == 2

    def test_a_config_is_said_to_be_one(self, tmp_path: Path) -> None:
        config = FIXTURES / "configs" / "decoder_small.txt"
        done = hlofast_command("report", config, "-o", tmp_path / "report.html")
        assert done.returncode == 3
        assert "is a trainer config: hlofast plan writes a page about it" in done.stderr

    def test_unreadable_input_is_exit_code_3(self, tmp_path: Path) -> None:
        done = hlofast_command("report", tmp_path / "absent.txt", "-o", tmp_path / "report.html")
        assert done.returncode == 3
        assert "absent.txt" in done.stderr

    def test_a_folder_that_is_not_there(self, train_step: Path, tmp_path: Path) -> None:
        done = hlofast_command("report", train_step, "-o", tmp_path / "absent" / "report.html")
        assert done.returncode == 3
        assert done.stderr == f"hlofast: {tmp_path / 'absent'}: No such file or directory\n"

    def test_loads_no_numpy(self, train_step: Path, tmp_path: Path) -> None:
        arguments = ["report", str(train_step), "-o", str(tmp_path / "r.html"), "--device", "v5e"]
        code = (
            "import sys\nfrom hlofast.__main__ import main\n"
            f"main({arguments!r})\nprint('\\n'.join(sys.modules), file=sys.stderr)"
        )
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert not {"numpy", "bokeh", "dataclasses"} & set(done.stderr.split())


@pytest.mark.parametrize("name", ["r.pdf", "r.PNG", "r.html.gz"])
def test_names_of_other_formats_are_refused(train_step: Path, tmp_path: Path, name: str) -> None:
    done = hlofast_command("report", train_step, "-o", tmp_path / name)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the page is HTML; give -o a name ending in .html" in done.stderr
    assert not list(tmp_path.iterdir())


def test_pages_without_charts_are_said_to_be(train_step: Path, tmp_path: Path) -> None:
    page = str(tmp_path / "page")
    code = (
        "import sys\nsys.modules['bokeh'] = None\nfrom hlofast.cli import main\n"
        f"sys.exit(main(['report', {str(train_step)!r}, '-o', {page!r}, *sys.argv[1:]]))"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == (
        "hlofast: note: the charts of the page are static, as charts need bokeh: pip install "
        "'hlofast[report]'\n"
    )
    command.append("--no-charts")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
