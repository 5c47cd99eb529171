"""The action of `.github/actions/hlofast`: its own shell steps, on pairs of dump folders.

The steps run as the runner of GitHub runs them; `gh` is a stand-in that keeps comments in a file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT, FIXTURES
from hlofast import _markdown
from hlofast._comparison import Comparison
from hlofast._core import Field
from hlofast._result import Section
from hlofast.table import of_rows
from test_cli import COMMAND, hlofast_command

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the action runs bash")

ACTION = CHECKOUT / ".github" / "actions" / "hlofast" / "action.yml"
DOCUMENT = CHECKOUT / "docs" / "ci.md"
MESH = "data=2,model=4"
PAIRS: dict[str, tuple[int, tuple[str, ...]]] = {
    # Pair: exit code of `hlofast diff`, what its verdict says.
    "equal": (0, ()),
    "renamed": (0, ()),
    "more_peak": (1, ("jit_train_step: live peak +163.2 %",)),
    "more_collectives": (1, ("all-gather along model 0 → 16 calls", "bytes sent +171.4 %")),
    "other_compiler": (
        1,
        (
            "jit_train_step: same program, compiled differently",
            "jit_evaluate: same program, compiled differently",
        ),
    ),
    "other_flags": (1, ("jit_train_step: same program, compiled differently: live peak +56.1 %",)),
    "missing_host": (1, ("1 host is missing after: host_1",)),
}
GH = r"""
import json, os, sys
path = os.environ["COMMENTS"]
comments = json.load(open(path))
words = sys.argv[1:]
assert words.pop(0) == "api", words
method, body, place, query = "GET", None, None, None
while words:
    word = words.pop(0)
    if word == "--method": method = words.pop(0)
    elif word == "--field": body = open(words.pop(0).removeprefix("body=@")).read()
    elif word == "--jq": query = words.pop(0)
    elif word not in ("--paginate", "--silent"): place = word
if os.environ.get("FORBIDDEN"):
    sys.exit("HTTP 403: Resource not accessible by integration")
assert place.startswith("repos/owner/name/issues/"), place
if method == "GET":
    assert query == '.[] | select(.user.type == "Bot" and (.body | startswith(env.MARKER))) | .id'
    for one in comments:
        if one["user"]["type"] == "Bot" and one["body"].startswith(os.environ["MARKER"]):
            print(one["id"])
elif method == "POST":
    assert place.endswith("/issues/7/comments"), place
    comments.append({"id": len(comments) + 1, "body": body, "user": {"type": "Bot"}})
else:
    assert method == "PATCH"
    (one,) = (one for one in comments if str(one["id"]) == place.rpartition("/")[2])
    one["body"] = body
json.dump(comments, open(path, "w"))
"""


class Runner:
    """Runs the steps of the action in a folder, with its inputs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.comments = folder / "comments.json"
        self.summary = folder / "summary.md"
        self.environment: dict[str, str] = {}
        self.said = ""
        for name in ("bin", "temp", "workspace"):
            (folder / name).mkdir()
        self.comments.write_text("[]")
        self.summary.touch()
        self.program("gh", f"#!{sys.executable}\n{GH}")
        words = " ".join(f"'{word}'" for word in COMMAND)
        self.program("hlofast", f'#!/bin/sh\nexec {words} "$@"\n')

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def bodies(self) -> list[str]:
        """The comments of the pull request."""
        return [one["body"] for one in json.loads(self.comments.read_text())]

    def run(self, **inputs: str) -> int:
        """Runs the action; returns the exit code of the step that failed, otherwise 0."""
        action = yaml.safe_load(ACTION.read_text())
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        assert set(given) <= set(action["inputs"]), given
        values = {
            **{f"inputs.{name}": own.get("default", "") for name, own in action["inputs"].items()},
            **{f"inputs.{name}": value for name, value in given.items()},
            "github.event.pull_request.number": "7",
            "github.event.pull_request.base.sha": "0" * 40,
        }
        output = self.folder / "output.txt"
        for step in action["runs"]["steps"]:
            assert step["shell"] == "bash"
            if "if" in step and not self._holds(step["if"], values):
                continue
            output.write_text("")
            variables = {name: self._filled(own, values) for name, own in step["env"].items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.workspace,
                env={
                    **os.environ,
                    **self.environment,
                    **variables,
                    "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                    "RUNNER_TEMP": str(self.folder / "temp"),
                    "GITHUB_WORKSPACE": str(self.workspace),
                    "GITHUB_REPOSITORY": "owner/name",
                    "GITHUB_ACTION_PATH": str(ACTION.parent),
                    "GITHUB_STEP_SUMMARY": str(self.summary),
                    "GITHUB_OUTPUT": str(output),
                    "COMMENTS": str(self.comments),
                },
                capture_output=True,
                text=True,
                check=False,
            )
            self.said += done.stdout + done.stderr
            if done.returncode:
                return done.returncode
            for line in output.read_text().splitlines():
                name, _, value = line.partition("=")
                values[f"steps.{step.get('id')}.outputs.{name}"] = value
        return 0

    @staticmethod
    def _filled(text: str, values: dict[str, str]) -> str:
        """A text with its expressions evaluated; a value is never evaluated again."""
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: values.get(found[1], ""), str(text))

    @staticmethod
    def _holds(condition: str, values: dict[str, str]) -> bool:
        parts = [re.fullmatch(r"([\w.-]+) (==|!=) '(.*)'", own) for own in condition.split(" && ")]
        return all(
            (values[part[1]] == part[3]) == (part[2] == "==") for part in parts if part is not None
        )


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pairs of dump folders."""
    folder = tmp_path_factory.mktemp("pairs")
    with tarfile.open(FIXTURES / "pull_requests.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def inputs(folders: Path, pair: str) -> dict[str, str]:
    return {
        "before": str(folders / pair / "before"),
        "after": str(folders / pair / "after"),
        "mesh": MESH,
    }


def unescaped(text: str) -> str:
    return re.sub(r"\\([\\`*\[\]<>|~&!{}_])", r"\1", text)


@pytest.mark.parametrize("pair", PAIRS)
class TestPairs:
    def test_verdict_and_exit_code(self, folders: Path, pair: str) -> None:
        code, told = PAIRS[pair]
        sides = [folders / pair / side for side in ("before", "after")]
        done = hlofast_command("diff", "--markdown", "--mesh", MESH, *sides)
        assert (done.returncode, done.stderr) == (code, "")
        assert bool(done.stdout) == bool(code)
        for words in told:
            assert words in unescaped(done.stdout)

    def test_the_comment_of_the_action(self, runner: Runner, folders: Path, pair: str) -> None:
        code, told = PAIRS[pair]
        assert runner.run(**inputs(folders, pair), fail_on_change="true") == code
        bodies = runner.bodies()
        assert len(bodies) == code
        assert bool(runner.summary.read_text()) == bool(code)
        for body in bodies:
            assert body.startswith("<!-- hlofast: programs -->\n")
            assert runner.summary.read_text() in body
            for words in told:
                assert words in unescaped(body)


def test_figures_are_those_of_the_api(folders: Path) -> None:
    sides = [folders / "more_collectives" / side for side in ("before", "after")]
    done = hlofast_command("diff", "--markdown", "--mesh", MESH, *sides)
    paths = [next(side.glob("*train_step.cpu_after*")) for side in sides]
    before, after = (hlofast.load(path, mesh=MESH) for path in paths)
    compared = hlofast.diff(before, after)
    for row in compared.totals():
        if row["measure"] in ("live_peak", "wire_bytes", "bytes_accessed"):
            shown = [f"{row[side]:,} B" for side in ("before", "after")]
            assert any(
                line.startswith("| `jit_train_step`") and all(text in line for text in shown)
                for line in done.stdout.splitlines()
            ), row
    for row in compared.collectives():
        calls = [row[f"executions_{side}"] for side in ("before", "after")]
        line = f"| `jit_train_step` | {row['kind']} | `{row['axes']}` | {calls[0]} | {calls[1]} |"
        assert (line in done.stdout) == (calls[0] != calls[1]), line


def test_another_version_of_jax_and_its_compiler(folders: Path) -> None:
    """The lowering changed too, so the difference is not put down to the compiler alone."""
    sides = [folders / "other_jax" / side for side in ("before", "after")]
    done = hlofast_command("diff", "--markdown", *sides)
    assert done.returncode == 1
    assert "compiled differently" not in done.stdout
    assert "jit\\_train\\_step" not in done.stdout.partition("####")[0]
    assert "jit_train_step: live peak" in unescaped(done.stdout)


class TestLimits:
    def test_growth_within_limits_is_reported_and_passes(
        self, runner: Runner, folders: Path
    ) -> None:
        given = inputs(folders, "more_collectives")
        assert runner.run(**given, max_growth="live_peak=900%,wire_bytes=900%") == 0
        (body,) = runner.bodies()
        assert "Growth beyond the limits" not in body
        assert "all-gather" in body

    def test_growth_beyond_limits_fails_and_is_named(self, runner: Runner, folders: Path) -> None:
        given = inputs(folders, "more_collectives")
        assert runner.run(**given, max_growth="live_peak=900%,wire_bytes=10%") == 1
        (body,) = runner.bodies()
        growth = body.partition("#### Growth beyond the limits")[2].partition("####")[0]
        assert "wire_bytes" in unescaped(growth)
        assert "live_peak" not in unescaped(growth)
        assert "+171.4 %" in growth
        assert "10.0 %" in growth

    def test_a_missing_host_exceeds_every_limit(self, runner: Runner, folders: Path) -> None:
        given = inputs(folders, "missing_host")
        assert runner.run(**given, max_growth="live_peak=900%") == 1

    @pytest.mark.parametrize("pair", ["equal", "renamed"])
    def test_equal_programs_exceed_no_limit(self, runner: Runner, folders: Path, pair: str) -> None:
        assert runner.run(**inputs(folders, pair), max_growth="live_peak=0%,flops=0%") == 0
        assert runner.bodies() == []

    def test_differences_alone_do_not_fail(self, runner: Runner, folders: Path) -> None:
        assert runner.run(**inputs(folders, "more_peak")) == 0
        assert len(runner.bodies()) == 1

    @pytest.mark.parametrize(("peak", "code"), [("512KiB", 1), ("1GiB", 0)])
    def test_expectations_of_the_largest_program(
        self, runner: Runner, folders: Path, peak: str, code: int
    ) -> None:
        (runner.workspace / "limits.toml").write_text(f"peak.max = '{peak}'\n")
        assert runner.run(**inputs(folders, "equal"), expect="limits.toml") == code
        assert len(runner.bodies()) == code
        for body in runner.bodies():
            assert "at most 524,288" in body
            assert str(runner.folder) not in body.replace(str(runner.workspace), "")


class TestComments:
    def test_one_comment_is_kept_up_to_date(self, runner: Runner, folders: Path) -> None:
        assert runner.run(**inputs(folders, "more_peak")) == 0
        assert runner.run(**inputs(folders, "more_collectives")) == 0
        (body,) = runner.bodies()
        assert "all-gather" in body
        assert runner.run(**inputs(folders, "equal")) == 0
        (body,) = runner.bodies()
        assert body.endswith("No differences.\n")

    def test_comments_of_others_stay(self, runner: Runner, folders: Path) -> None:
        marker = "<!-- hlofast: programs -->"
        others = [
            {"id": 1, "body": f"{marker}\nmine", "user": {"type": "User"}},
            {"id": 2, "body": f"see {marker}", "user": {"type": "Bot"}},
            {"id": 3, "body": "<!-- hlofast: gpu -->", "user": {"type": "Bot"}},
        ]
        runner.comments.write_text(json.dumps(others))
        assert runner.run(**inputs(folders, "more_peak")) == 0
        assert runner.run(**inputs(folders, "more_peak"), name="gpu") == 0
        bodies = runner.bodies()
        assert bodies[:2] == [own["body"] for own in others[:2]]
        assert "live peak" in bodies[2]
        assert len(bodies) == 4

    def test_without_permission_the_summary_has_it(self, runner: Runner, folders: Path) -> None:
        runner.environment["FORBIDDEN"] = "1"
        assert runner.run(**inputs(folders, "more_peak")) == 0
        assert "::warning::no permission to comment" in runner.said
        assert "live peak +163.2" in runner.summary.read_text()

    def test_comments_can_be_switched_off(self, runner: Runner, folders: Path) -> None:
        assert runner.run(**inputs(folders, "more_peak"), comment="false") == 0
        assert runner.bodies() == []
        assert "live peak +163.2" in runner.summary.read_text()


class TestFaults:
    def test_a_folder_without_dumps_fails_and_is_named(
        self, runner: Runner, folders: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "empty").mkdir()
        given = inputs(folders, "equal") | {"after": str(tmp_path / "empty")}
        assert runner.run(**given) == 1
        (body,) = runner.bodies()
        assert "    hlofast: after: no XLA dumps here" in body

    def test_a_broken_dump_fails_and_is_named(
        self, runner: Runner, folders: Path, tmp_path: Path
    ) -> None:
        broken = tmp_path / "broken"
        broken.mkdir()
        name = "module_0001.jit_train_step.cpu_after_optimizations.txt"
        (broken / name).write_text("HloModule <img>,```\n\n```</pre> @everyone")
        assert runner.run(**(inputs(folders, "equal") | {"after": str(broken)})) == 1
        (body,) = runner.bodies()
        told = body.partition("could not be compared")[2].strip("\n").split("\n")
        assert any("error" in line for line in told)
        assert all(line.startswith("    ") or not line for line in told)


def commit(folder: Path, message: str) -> None:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["add", "-A"], ["commit", "--quiet", "-m", message]):
        subprocess.run(["git", *settings, *words], cwd=folder, check=True)


def test_the_command_runs_on_both_commits(runner: Runner, folders: Path) -> None:
    """The checkout of a pull request is a merge; the command sees where XLA is to write dumps."""
    place = runner.workspace
    compile_py = (
        "import os, re, shutil\n"
        "out = re.search(r'--xla_dump_to=(\\S+)', os.environ['XLA_FLAGS'])[1]\n"
        "shutil.copytree('dumps', out)\n"
    )
    (place / "compile.py").write_text(compile_py)
    subprocess.run(["git", "init", "--quiet", "-b", "main"], cwd=place, check=True)
    (place / "dumps").symlink_to(folders / "more_peak" / "before")
    commit(place, "base")
    subprocess.run(["git", "switch", "--quiet", "-c", "change"], cwd=place, check=True)
    (place / "dumps").unlink()
    (place / "dumps").symlink_to(folders / "more_peak" / "after")
    commit(place, "change")
    subprocess.run(["git", "switch", "--quiet", "main"], cwd=place, check=True)
    merge = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "merge", "--quiet"]
    subprocess.run([*merge, "--no-ff", "-m", "merge", "change"], cwd=place, check=True)
    command = f"'{sys.executable}' compile.py"
    assert runner.run(run=command, mesh=MESH, max_growth="live_peak=5%") == 1
    (body,) = runner.bodies()
    assert "live peak +163.2 %" in body
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=place, capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == 1


HOSTILE = (
    "a|b`c``d", "<script>alert(1)</script>", "@everyone", "#1", "https://example.org",
    "[x](https://example.org)", "![x](y)", "**bold**", "a\nb", "\x1b[31m", "|", "`", "\\|", " ",
    "&lt;", "-->", "www.example.org", "$x$ and $y$",
)  # fmt: skip


@pytest.fixture
def rendered() -> Any:
    """Markdown as HTML, by an implementation of CommonMark with tables."""
    markdown_it = pytest.importorskip("markdown_it")
    return markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render


@pytest.mark.parametrize("name", HOSTILE)
def test_names_mean_nothing_in_markdown(rendered: Any, name: str) -> None:
    fields = (Field("name", "program", "A name."), Field("text", "words", "A sentence."))
    section = Section("t", "Title", of_rows(fields, [(name, name), ("next", "next")]))
    shown = Comparison(name, "b")
    shown.lacks("before", name, {"path": name, "line": 1, "label": None})
    html = rendered(_markdown.result(shown, (section, *shown.changes())))
    tags = set(re.findall(r"<(/?\w+)", html))
    allowed = "h3 h4 p strong ul li table thead tbody tr th td code blockquote span".split()
    assert {tag.removeprefix("/") for tag in tags} <= set(allowed), html
    rows = re.findall(r"<tr>(.*?)</tr>", html, flags=re.DOTALL)
    assert {len(re.findall(r"<t[dh]\b", row)) for row in rows} <= {2, 3}
    outside = re.sub(r"<code>.*?</code>", "", html, flags=re.DOTALL)
    assert not re.search(r"@\w|#\d|://|www\.", outside), outside
    # GitHub renders $…$ as a formula, unless each sign stands in an element of its own.
    assert "$" not in outside.replace("<span>$</span>", ""), outside


def test_a_document_fits_a_comment() -> None:
    whole = Comparison("a", "b")
    for number in range(5_000):
        whole.lacks("before", f"program_{number}" * 20, {"path": "p", "line": 1, "label": None})
    text = _markdown.result(whole, whole.changes(), limit=None)
    assert len(text) < 65_000
    assert "further table left out" in text


class TestDocument:
    def test_its_lines_are_those_of_the_action(self) -> None:
        """Every input that the page uses exists; the example takes five lines."""
        known = set(yaml.safe_load(ACTION.read_text())["inputs"])
        blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
        steps = [
            step
            for block in blocks
            for job in yaml.safe_load(block).get("jobs", {}).values()
            for step in job["steps"]
            if "/.github/actions/hlofast@" in step.get("uses", "")
        ]
        assert steps
        for step in steps:
            assert set(step["with"]) <= known
        (lines,) = re.findall(
            r"( +- uses: \S+/\.github/actions/hlofast@\S+\n(?: +\w.*\n)+)", blocks[0]
        )
        assert len(lines.splitlines()) == 5

    def test_the_comment_shown_is_what_the_action_writes(
        self, runner: Runner, folders: Path
    ) -> None:
        assert runner.run(**inputs(folders, "more_collectives"), max_growth="live_peak=10%") == 1
        (body,) = runner.bodies()
        text = DOCUMENT.read_text()
        sample = f"<!-- sample -->\n{body.partition('-->')[2].strip()}\n<!-- /sample -->"
        shown, count = re.subn(
            r"<!-- sample -->\n.*?<!-- /sample -->", lambda _: sample, text, flags=re.DOTALL
        )
        assert count == 1
        if os.environ.get("BLESS"):
            DOCUMENT.write_text(shown)
        assert shown == text

    def test_the_pytest_recipe_runs(self, tmp_path: Path, folders: Path) -> None:
        (recipe,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
        (tmp_path / "step.txt").write_bytes(
            next((folders / "equal" / "before").glob("*train_step.cpu_after*")).read_bytes()
        )
        dumped = recipe.replace("compiled_step()", "'step.txt'")
        assert dumped != recipe
        (tmp_path / "test_programs.py").write_text(dumped)
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "test_programs.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert "1 passed" in done.stdout
