"""The guide shows real output; BLESS=1 updates its pages."""

import importlib.resources
import os
import re
import signal
import struct
import subprocess
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import console
import hlofast
from conftest import CHECKOUT
from hlofast import _text as output
from hlofast import cli
from hlofast.cli import guide
from test_cli import COMMAND, FakeTerminal, document, hlofast_command

SOURCES = CHECKOUT / "python" / "hlofast" / "guide"
FIGURE = re.compile(r"`([+<>-]?\d[\d.,]* ?[%\w]{0,5}(?: exact)?|train\.py:\d+|\w+\[[\d,]+\])`")
"""A number, a source line or a shape in a sentence."""
FROM_ELSEWHERE = {("remat", "1.296 s"): "axes"}
"""Figures in sentences of a page that outputs on another page show."""
EXIT_CODES = (
    cli.DONE,
    cli.FINDINGS,
    cli.USAGE,
    cli.UNREADABLE,
    cli.INTERNAL,
    cli.INTERRUPTED,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `hlofast guide -o` writes."""
    folder = tmp_path_factory.mktemp("guide") / "new" / "guide"
    done = hlofast_command("guide", "-o", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"; begin with {folder}/start.md\n")
    return folder


def blocks_of(text: str) -> list[str]:
    """What the blocks of a page hold."""
    return re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


class Parts(HTMLParser):
    """What is in a page for a browser."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: set[str | None] = set()
        self.links: list[str] = []
        self.images: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.ids.add(values.get("id"))
        if tag == "a":
            self.links.append(values["href"] or "")
        if tag == "img":
            assert values["alt"]
            self.images.append(values["src"] or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def prose(text: str) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def tables(*arguments: str | Path) -> Any:
    """The tables of a verb, as JSON has them."""
    (result,) = document(*arguments)["results"]
    return result["tables"]


class TestPages:
    @pytest.mark.parametrize("name", guide.PAGES)
    def test_commands_print_what_the_page_shows(self, name: str, folder: Path) -> None:
        if name == "start":
            pytest.importorskip("bokeh")
        ran = console.check(SOURCES / f"{name}.md", folder)
        assert ran == len(tables("guide", name)["commands"])
        assert ran or name == "protobuf"

    @pytest.mark.parametrize("name", guide.PAGES)
    def test_figures_in_sentences_are_those_of_outputs(self, name: str) -> None:
        def shown(page: str) -> str:
            return "".join(blocks_of((SOURCES / f"{page}.md").read_text()))

        figures = FIGURE.findall(prose((SOURCES / f"{name}.md").read_text()))
        if name == "start":
            assert set(figures) == {str(code) for code in EXIT_CODES}
            return
        for figure in figures:
            whole = re.compile(rf"(?<![\d.,]){re.escape(figure)}(?![\d])")
            assert whole.search(shown(FROM_ELSEWHERE.get((name, figure), name))), figure

    def test_lines_named_are_those_of_the_program(self) -> None:
        text = (SOURCES / "memory.md").read_text()
        ((first, last),) = re.findall(r"`train\.py` lines (\d+) to (\d+)", text)
        lines = (SOURCES / "train.py").read_text().splitlines()[int(first) - 1 : int(last)]
        assert lines[0].strip() == "body = layer"
        assert lines[-1].strip() == "body = jax.checkpoint(layer, policy=policy)"

    def test_files_and_links_named_exist(self, folder: Path) -> None:
        for name in guide.PAGES:
            text = (folder / f"{name}.md").read_text()
            for target in re.findall(r"\]\(([^)]+)\)", text):
                assert target.startswith("https://") or (folder / target).is_file(), target
            for path in re.findall(r"`(\w+\.(?:txt|py))`", text):
                made_by_compilers = path in {"after_optimizations.txt", "before_optimizations.txt"}
                assert made_by_compilers or (folder / path).is_file(), path
            for verb in re.findall(r"`hlofast (\w+)", text):
                assert verb in hlofast.cli.VERBS, verb

    def test_every_file_is_named(self, folder: Path) -> None:
        text = "".join((folder / f"{name}.md").read_text() for name in guide.PAGES)
        for path in folder.rglob("*"):
            if path.is_file() and path.name != "start.md":
                assert path.name in text, path

    def test_fields_of_protobufs_are_those_of_the_reader(self) -> None:
        rows = [f"| `{field}` | {what} |\n" for field, what in hlofast.protobuf_fields_not_in_text]
        table = "".join(["| field | what it is |\n", "|---|---|\n", *rows])
        path = SOURCES / "protobuf.md"
        text = path.read_text()
        shown = re.sub(
            r"(?<=<!-- fields -->\n).*?(?=<!-- /fields -->)", table, text, flags=re.DOTALL
        )
        if os.environ.get("BLESS"):
            path.write_text(shown)
        assert shown == text

    def test_text_is_as_wide_as_an_editor(self) -> None:
        for name in guide.PAGES:
            for line in prose((SOURCES / f"{name}.md").read_text()).splitlines():
                assert len(line) <= 100 or line.startswith(("|", "!")), line


class TestCommand:
    def test_list_has_every_page(self) -> None:
        done = hlofast_command("guide")
        assert done.returncode == 0
        for name in guide.PAGES:
            title = (SOURCES / f"{name}.md").read_text().splitlines()[0].removeprefix("# ")
            assert re.search(rf"^{name} +{re.escape(title)}$", done.stdout, flags=re.MULTILINE)

    @pytest.mark.parametrize("name", ["memory", "protobuf"])
    def test_page_is_printed_as_it_is(self, name: str) -> None:
        done = hlofast_command("guide", name)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == (SOURCES / f"{name}.md").read_text()

    def test_all_pages(self) -> None:
        texts = [(SOURCES / f"{name}.md").read_text() for name in guide.PAGES]
        assert hlofast_command("guide", "--all").stdout == "\n".join(texts)

    def test_terminal_gets_no_marks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        printer = output.Printer(FakeTerminal())
        guide.Page("mfu").show(printer, is_first=True)
        shown = printer.stream.getvalue()
        assert shown.startswith("\x1b[1mIs my MFU real?\x1b[0m\n")
        assert "```" not in shown
        assert "\x1b[1m$ hlofast cost --xla" in shown

    def test_document(self, tmp_path: Path) -> None:
        assert [page["page"] for page in tables("guide")["pages"]] == list(guide.PAGES)
        axes = tables("guide", "axes")
        assert axes["pages"][0]["text"] == (SOURCES / "axes.md").read_text()
        assert axes["commands"][0]["command"].startswith("hlofast time ")
        written = tables("guide", "-o", tmp_path / "g")
        assert sorted(row["file"] for row in written["files"]) == sorted(
            str(path) for path in (tmp_path / "g").rglob("*") if path.is_file()
        )

    def test_unknown_page_is_exit_code_2(self) -> None:
        done = hlofast_command("guide", "mpu")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"hlofast: no page 'mpu'; choose one of {', '.join(guide.PAGES)}\n"

    @pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="no pipes to close")
    def test_closed_pipe_ends_quietly(self) -> None:
        read, write = os.pipe()
        os.close(read)
        command = [*COMMAND, "guide", "--all"]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, b"")


class TestFolder:
    def test_holds_the_files_of_the_package(self, folder: Path) -> None:
        package = importlib.resources.files("hlofast") / "guide"
        assert (folder / "train.py").read_bytes() == (package / "train.py").read_bytes()
        assert (package / guide.ARCHIVE).is_file()
        config = folder / "trainer.txt"
        assert hlofast.config.load(config)["klass"].endswith("SpmdTrainer")
        for path in sorted(set(folder.glob("*.txt")) - {config}):
            module = hlofast.load(path)
            assert (module.name, module.num_partitions) == ("jit_train_step", 8)
            assert module.is_scheduled

    def test_dumps_have_the_lines_of_the_program(self, folder: Path) -> None:
        lines = (folder / "train.py").read_text().splitlines()
        products = hlofast.load(folder / "step.txt").matmuls()
        places = {(row["source_file"], row["source_line"]) for row in products}
        assert {file for file, _ in places} == {"train.py"}
        assert len(places) >= 6
        for _, line in places:
            assert re.search(r"einsum|@|jax\.nn|value_and_grad", lines[line - 1]), lines[line - 1]

    def test_writing_again_changes_nothing(self, folder: Path) -> None:
        def state() -> dict[Path, int]:
            return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

        before = state()
        assert hlofast_command("guide", "-o", folder).returncode == 0
        assert state() == before

    @pytest.mark.parametrize("name", ["step.txt", "pictures"])
    def test_files_of_the_user_stay(self, name: str, tmp_path: Path) -> None:
        (tmp_path / name).write_text("mine")
        done = hlofast_command("guide", "-o", tmp_path)
        assert done.returncode == 2
        assert str(tmp_path / name) in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert (tmp_path / name).read_text() == "mine"

    def test_folder_that_cannot_be_is_exit_code_3(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        done = hlofast_command("guide", "-o", tmp_path / "file" / "guide")
        assert done.returncode == 3
        assert "Traceback" not in done.stderr
        assert str(tmp_path / "file") in done.stderr

    def test_page_for_a_browser_needs_nothing_else(self, folder: Path, tmp_path: Path) -> None:
        pytest.importorskip("markdown_it")
        (tmp_path / "guide.html").write_text("an older one")
        done = hlofast_command("guide", "-o", tmp_path / "guide.html")
        assert (done.returncode, done.stderr) == (0, "")
        page = Parts((tmp_path / "guide.html").read_text())
        assert set(guide.PAGES) <= page.ids
        assert {target for target in page.links if not target.startswith("https:")} == {
            f"#{name}" for name in guide.PAGES if name != "start"
        }
        pictures = sorted((folder / "pictures").iterdir())
        shown = [b64decode(source.removeprefix("data:image/png;base64,")) for source in page.images]
        assert sorted(shown) == sorted(path.read_bytes() for path in pictures)
        assert "script" not in page.tags
        for name in guide.PAGES:
            for block in blocks_of((folder / f"{name}.md").read_text()):
                assert block in page.text

    def test_page_for_a_browser_asks_for_its_extra(self, tmp_path: Path) -> None:
        (tmp_path / "markdown_it.py").write_text("raise ImportError")
        environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
        done = hlofast_command("guide", "-o", tmp_path / "guide.html", env=environment)
        assert done.returncode == 2
        assert "hlofast[guide]" in done.stderr
        assert not (tmp_path / "guide.html").exists()

    def test_pictures_are_small_and_of_both_themes(self) -> None:
        pictures = sorted((SOURCES / "pictures").iterdir())
        assert sum(path.stat().st_size for path in pictures) <= 200_000
        assert {path.stem.rpartition("_")[2] for path in pictures} == {"light", "dark"}
        for path in pictures:
            head = path.read_bytes()[:24]
            assert head.startswith(b"\x89PNG\r\n")
            assert struct.unpack(">2I", head[16:]) == (1280, 800)

    def test_dumps_are_small(self) -> None:
        # Three quarters of it are the profile.
        assert (SOURCES / guide.ARCHIVE).stat().st_size <= 450_000
