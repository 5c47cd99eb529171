"""Pages of dump directories and of their programs, and where a page may be written."""

import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

import hlofast
from browser import Browser
from test_cli import hlofast_command
from test_report import UNSCHEDULED
from test_report_page import SMALL


def test_a_directory_s_page(browser: Browser, tmp_path: Path, train_step: Path) -> None:
    for host, text in (("host0", SMALL), ("host1", SMALL.replace("64,64", "32,32"))):
        (tmp_path / host).mkdir()
        name = "module_0001.small.sm_9.0_gpu_after_optimizations.txt"
        (tmp_path / host / name).write_text(text)
    path = tmp_path / "report.html"
    made = hlofast.report(tmp_path, path, device="h100")
    opened = browser.open(path)
    assert opened.errors == []
    programs = opened.page.locator("#programs table tbody tr[aria-rowindex] td:first-child")
    names = [name.split("/")[0] for name in programs.all_inner_texts()]
    assert names == ["host0", "host1"]
    shown = opened.page.locator("#figure-differing").get_attribute("value")
    assert float(shown) == made.verdict["differing"] == 1
    assert opened.page.locator("#hosts .statements li").count() == 1


def test_a_directory_s_charts_show_every_program_and_dump(browser: Browser, tmp_path: Path) -> None:
    stages = ("before_optimizations", "after_optimizations")
    for host in ("cpu", "tpu"):
        (tmp_path / host).mkdir()
        for stage in (*stages, "0001.cse.after_pipeline-start.before_dce"):
            (tmp_path / host / f"module_0000.small.{stage}.txt").write_text(SMALL)
    hlofast.report(tmp_path, tmp_path / "report.html")
    opened = browser.open(tmp_path / "report.html")
    page = opened.page
    labels = "[...figures[0].figure.yaxis][0].major_label_overrides.values()"
    assert page.evaluate(f"[...{labels}]") == ["cpu/module_0000.small", "tpu/module_0000.small"]
    # Each dump takes the width of one number, so the last is seen too.
    assert page.evaluate("[0, 1].map((n) => figures[1].figure.x_range[n ? 'end' : 'start'])") == [
        0, 3,
    ]  # fmt: skip
    for item in page.locator("#history .legend li").all():
        swatch = item.locator(".swatch").bounding_box()
        box = item.bounding_box()
        middle = swatch["y"] + swatch["height"] / 2
        assert abs(middle - (box["y"] + box["height"] / 2)) < 4
    assert opened.errors == []


def test_a_directory_s_programs_have_pages(browser: Browser, tmp_path: Path) -> None:
    hostile = SMALL.replace("HloModule small", "HloModule small.2e")
    texts = {"small": SMALL, "large": SMALL.replace("64,64", "256,256"), "a&b <i>": hostile}
    for number, (name, text) in enumerate(texts.items()):
        (tmp_path / f"module_{number:04}.{name}.after_optimizations.txt").write_text(text)
    made = hlofast.report(tmp_path, tmp_path / "report.html", pages=2)
    assert sorted(path.name for path in (tmp_path / "report_programs").iterdir()) == [
        "01_large.html", "02_small.html",
    ]  # fmt: skip
    opened = browser.open(tmp_path / "report.html")
    links = opened.page.locator("#programs table a")
    assert [link.split(".")[-1] for link in links.all_inner_texts()] == ["large", "small"]
    links.first.click()
    opened.page.wait_for_selector("body.module[data-state=complete]", state="attached")
    assert opened.page.locator("#figure-flops").get_attribute("value") == str(
        hlofast.loads(texts["large"]).cost().flops
    )
    opened.page.get_by_role("link", name="all programs").click()
    opened.page.wait_for_selector("body.directory", state="attached")
    assert opened.errors == []
    assert "the pages of 2 programs are in" in made.notes[-1].text


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `dumps` of three programs, in the folder where the test runs."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    for number in range(3):
        text = UNSCHEDULED.replace("bare", f"bare{number}").replace("8]", f"{8 - number}]")
        (folder / f"module_000{number}.bare{number}.after_optimizations.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    return folder


def addresses(page: Path) -> list[str]:
    """The files to which the table of programs of a page has links."""
    found = re.findall(r'<td[^>]*><a href="([^"#]+)"', page.read_text())
    return [os.fsdecode(unquote_to_bytes(own)) for own in found]


def check_links(page: Path, count: int) -> None:
    """Checks that the links of a page lead to its pages, all of them, and back."""
    found = [page.parent / address for address in addresses(page)]
    assert len(found) == count
    folder = page.parent / f"{page.stem}_programs"
    assert sorted(found) == (sorted(folder.iterdir()) if count else [])
    for own in found:
        (up,) = re.findall(r'<li><a href="([^"#]+)">', own.read_text())
        assert (own.parent / os.fsdecode(unquote_to_bytes(up))).samefile(page)


class TestPagesOfPrograms:
    @pytest.mark.parametrize("place", ["dumps", ".", "./dumps/", "dumps/../dumps", "{}"])
    def test_relative_folders_have_them(self, programs: Path, place: str) -> None:
        place = place.format(programs)
        done = hlofast_command("report", place, "-o", "x.html", "--no-charts", cwd=programs.parent)
        assert (done.returncode, done.stderr) == (0, "")
        assert "the pages of 3 programs are in x_programs" in done.stdout
        check_links(programs.parent / "x.html", 3)

    def test_one_that_cannot_be_made_is_said_with_the_reason(self, programs: Path) -> None:
        several = UNSCHEDULED + UNSCHEDULED.replace("bare", "other")
        (programs / "module_0007.two.after_optimizations.txt").write_text(several)
        arguments = ("report", "dumps", "-o", "x.html", "--no-charts")
        done = hlofast_command(*arguments, cwd=programs.parent)
        said = "module_0007.two has no page: 2 modules where one was expected: bare, other"
        assert (done.returncode, done.stderr) == (0, f"hlofast: dumps: {said}\n")
        assert said in (programs.parent / "x.html").read_text()
        assert len(addresses(programs.parent / "x.html")) == 3

    @pytest.mark.skipif(sys.platform != "linux", reason="the system may refuse such names")
    def test_names_that_are_not_utf_8(self, programs: Path) -> None:
        name = os.fsdecode(b"module_0009.\xff.after_optimizations.txt")
        (programs / "module_0000.bare0.after_optimizations.txt").rename(programs / name)
        page = programs.parent / os.fsdecode(b"x\xfe.html")
        made = hlofast.report("dumps", page.name, plots=False)
        check_links(page, 3)
        assert not [note for note in made.notes if note.code == "no-page"]
        prints = hlofast.scan("dumps").programs
        assert "module_0009.\ufffd" in prints.values("program")
        done = hlofast_command("report", "dumps", "-o", page.name, "--no-charts", cwd=page.parent)
        assert (done.returncode, done.stderr) == (0, "")

    def test_those_of_earlier_runs_go(self, programs: Path) -> None:
        folder = Path("x_programs")
        hlofast.report("dumps", "x.html", plots=False)
        (folder / "04_own.html").write_text("<!DOCTYPE html>\nnot from here")
        (folder / "notes.txt").write_text("mine")
        os.mkfifo(folder / "05_pipe.html")  # Opening it would wait for a writer.
        arguments = ("report", "dumps", "-o", "x.html", "--no-charts", "--pages", "1")
        assert hlofast_command(*arguments, cwd=programs.parent).returncode == 0
        (folder / "05_pipe.html").unlink()
        kept = ["01_bare0.html", "04_own.html", "notes.txt"]
        assert sorted(path.name for path in folder.iterdir()) == kept
        hlofast.report("dumps", "x.html", plots=False, pages=0)
        assert sorted(path.name for path in folder.iterdir()) == kept[1:]
        hlofast.report("dumps", "y.html", plots=False)
        hlofast.report("dumps", "y.html", plots=False, pages=0)
        assert not Path("y_programs").exists()

    def test_a_page_saved_elsewhere_has_its_own(self, programs: Path) -> None:
        for folder in ("q1", "q2"):
            Path(folder).mkdir()
        made = hlofast.report("dumps", "q1/a.html", plots=False)
        made.save("q2/b.html")
        shutil.rmtree("q1")
        check_links(Path("q2/b.html"), 3)
        made.save("q2/a.html")
        check_links(Path("q2/a.html"), 3)
        check_links(Path("q2/b.html"), 3)


class TestPlace:
    """The file of `-o` and `Report.save`, for a file and for a directory."""

    @pytest.mark.parametrize(
        "subject", ["dumps", "dumps/module_0000.bare0.after_optimizations.txt"]
    )
    def test_a_missing_folder_is_named(self, programs: Path, subject: str) -> None:
        (programs.parent / "file").touch()
        for place, named in (("q/x.html", "q"), ("file/x.html", "file"), ("dumps", "dumps")):
            done = hlofast_command("report", subject, "-o", place, cwd=programs.parent)
            assert (done.returncode, done.stdout) == (3, "")
            assert re.fullmatch(rf"hlofast: {named}: [A-Z][a-z ]+\n", done.stderr), done.stderr
            with pytest.raises(OSError, match=r"\[Errno") as refused:
                hlofast.report(subject, place, plots=False)
            assert refused.value.filename == named
        assert sorted(path.name for path in programs.parent.iterdir()) == ["dumps", "file"]

    def test_an_empty_name_writes_nothing(self, programs: Path) -> None:
        done = hlofast_command("report", "dumps", "-o", "", "--no-charts", cwd=programs.parent)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "hlofast: -o: the name is empty; give a name ending in .html\n"
        with pytest.raises(FileNotFoundError):
            hlofast.report("dumps", "", plots=False)
        assert [path.name for path in programs.parent.iterdir()] == ["dumps"]

    @pytest.mark.parametrize("place", ["-", "/dev/stdout"])
    @pytest.mark.parametrize(
        "subject", ["dumps", "dumps/module_0000.bare0.after_optimizations.txt"]
    )
    def test_standard_output_is_the_page_alone(
        self, programs: Path, subject: str, place: str
    ) -> None:
        command = ("report", subject, "-o", place, "--no-charts")
        done = hlofast_command(*command, cwd=programs.parent)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("<!DOCTYPE html>") and done.stdout.endswith("</html>\n")
        page = programs.parent / "page.html"
        page.write_text(done.stdout)
        assert addresses(page) == []
        assert sorted(path.name for path in programs.parent.iterdir()) == ["dumps", "page.html"]
        done = hlofast_command(*command, "--json", cwd=programs.parent)
        assert (done.returncode, done.stdout) == (2, "")
        assert "leave --json out" in done.stderr

    def test_python_writes_it_too(
        self, programs: Path, capsysbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        made = hlofast.report("dumps", "-", plots=False)
        assert capsysbinary.readouterr().out.decode() == made.html
        assert not Path("-").exists()

    @pytest.mark.parametrize("kind", ["itself", "link", "hard link"])
    @pytest.mark.parametrize("role", ["dump", "config", "devices", "rules"])
    def test_inputs_are_not_overwritten(self, programs: Path, role: str, kind: str) -> None:
        files = {role: programs.parent / role for role in ("config", "devices", "rules")}
        files["config"].write_text("[predicted]\nflops = 1\n")
        files["devices"].write_text("[d]\nbackend = 'tpu'\n")
        files["rules"].write_text("[[rule]]\nphase = 'forward'\n")
        files["dump"] = programs / "module_0000.bare0.after_optimizations.txt"
        if kind == "itself":
            files[role] = files[role].rename(files[role].with_name("x"))
        out = files[role].with_name("x")
        if kind == "link":
            out.symlink_to(files[role])
        elif kind == "hard link":
            out.hardlink_to(files[role])
        before = files[role].read_bytes()
        options = [] if role == "dump" else [f"--{role}", files[role]]
        done = hlofast_command("report", files["dump"], "-o", out, *options, cwd=programs.parent)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"hlofast: {out}: an input, which would be overwritten")
        assert done.stderr.count("\n") == 1
        if role in ("dump", "config"):
            config = files["config"] if role == "config" else None
            with pytest.raises(shutil.SameFileError, match="an input"):
                hlofast.report(files["dump"], out, config=config, plots=False)
        assert files[role].read_bytes() == before

    def test_nor_are_those_of_a_directory(self, programs: Path) -> None:
        dump = programs / "module_0001.bare1.after_optimizations.txt"
        before = dump.read_bytes()
        Path("x.html").symlink_to(dump)
        Path("y_programs").mkdir()
        Path("y_programs/02_bare1.html").hardlink_to(dump)
        for out in ("x.html", "y.html"):
            done = hlofast_command("report", "dumps", "-o", out, "--no-charts", cwd=programs.parent)
            assert done.returncode == 2
            assert "an input, which would be overwritten (the same file as dumps/" in done.stderr
        assert Path("x.html").is_symlink() and not Path("y.html").exists()
        assert [path.name for path in Path("y_programs").iterdir()] == ["02_bare1.html"]
        assert dump.read_bytes() == before
