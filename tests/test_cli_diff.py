"""`hlofast diff`: differences for people, as JSON and as exit codes."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from renamed import renamed
from test_cli import TWO_MODULES, document, hlofast_command
from test_diff import PROGRAM, REPLACED, changed


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "before.txt"
    path.write_text(PROGRAM)
    return path


def planted(folder: Path, what: str) -> Path:
    path = folder / "after.txt"
    path.write_text(renamed(hlofast.loads(changed(REPLACED[what][0]))))
    return path


def pairs(*arguments: str | Path) -> list[Any]:
    """The modules that were compared, in pairs; what is said of all of them stands last."""
    *compared, whole = document("diff", *arguments)["results"]
    assert set(whole["tables"]) >= {"programs", "hosts", "unmatched", "live_peak", "collectives"}
    return compared


def unmatched(printed: Any) -> list[tuple[str, str]]:
    """Side and name of the modules without a partner."""
    rows = printed["results"][-1]["tables"]["unmatched"]
    return [(row["side"], row["program"]) for row in rows]


def only(*arguments: str | Path) -> Any:
    (pair,) = pairs(*arguments)
    return pair


def values(pair: Any) -> dict[str, Any]:
    """The facts of a pair."""
    return {name: fact["value"] for name, fact in pair["facts"].items()}


def counts(pair: Any) -> dict[str, int]:
    """How many causes there are by kind and aspect, as `Diff.counts` says it."""
    return {
        f"{row['kind']} {row['aspect'] or ''}".rstrip(): row["changes"]
        for row in pair["tables"]["counts"]
    }


def test_document_is_the_python_object(program: Path, tmp_path: Path) -> None:
    other = planted(tmp_path, "removed collective")
    pair = only(program, other)
    diff = hlofast.load(program).diff(hlofast.load(other))
    tables = pair["tables"]
    assert counts(pair) == diff.counts() == {"vanished": 1}
    assert values(pair) == {
        "before": str(program),
        "after": str(other),
        "differences": 1,
        "consequences": len(diff.changes) - 1,
        "compares_layouts": True,
        "same_schedule": None,
    }
    shown = [row["name"] for row in (*tables["changes"], *tables["consequences"])]
    names = [row["name_after"] or row["name_before"] for row in diff.changes]
    assert sorted(shown) == sorted(names)
    assert [row["is_consequence"] for row in tables["changes"]] == [False]
    totals = {row["measure"]: row["change"] for row in tables["totals"]}
    assert totals == {row["measure"]: row["change"] for row in diff.totals()}
    (collective,) = tables["collectives_by_axes"]
    assert (collective["executions_before"], collective["executions_after"]) == (1, 0)
    done = hlofast_command("diff", program, other)
    assert done.stdout == f"{diff}\n\n"


def test_a_notebook_shows_it() -> None:
    before, after = (
        hlofast.loads(text, path="<i>.txt")
        for text in (PROGRAM, PROGRAM.replace("{{0,1},{2,3}}", "{{0,2},{1,3}}"))
    )
    html = before.diff(after)._repr_html_()
    assert "<i>" not in html
    assert "&lt;i&gt;.txt" in html
    assert ">wire bytes before</th>" in html


def test_contradictions_of_either_side_are_notes(program: Path, tmp_path: Path) -> None:
    # A parameter that the module does not have: the live peak is doubtful, and that is said.
    doubtful = tmp_path / "doubtful.txt"
    aliases = "{ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }"
    assert aliases in PROGRAM
    doubtful.write_text(PROGRAM.replace(aliases, "{ {}: (7, {}, may-alias) }"))
    note = "1 entry of input_output_alias ignored"
    assert not any(note in own["text"] for own in only(program, program)["notes"])
    for paths, side in (
        ((doubtful, program), "before"),
        ((program, doubtful), "after"),
        ((doubtful, doubtful), "both"),
    ):
        notes = [own["text"] for own in only(*paths)["notes"] if note in own["text"]]
        assert [text.partition(":")[0] for text in notes] == [side]
    done = hlofast_command("diff", program, doubtful)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"note: after: {note}" in " ".join(done.stdout.split())


def test_exit_codes(program: Path, tmp_path: Path) -> None:
    same = tmp_path / "same.txt"
    same.write_text(renamed(hlofast.load(program)))
    assert hlofast_command("diff", program, same).returncode == 0
    assert hlofast_command("diff", program, planted(tmp_path, "swapped operands")).returncode == 1
    assert hlofast_command("diff", program, tmp_path / "missing.txt").returncode == 3
    assert hlofast_command("diff", program).returncode == 2
    assert hlofast_command("diff", "--hosts", "none", program, same).returncode == 2
    assert hlofast_command("diff", "--module", "no such", program, same).returncode == 2
    layout = planted(tmp_path, "changed layout")
    assert hlofast_command("diff", program, layout).returncode == 1
    assert hlofast_command("diff", "--no-layouts", program, layout).returncode == 0
    config = planted(tmp_path, "changed backend config")
    assert hlofast_command("diff", "--no-backend-config", program, config).returncode == 0


def test_for_people(program: Path, tmp_path: Path) -> None:
    done = hlofast_command(
        "diff", "--mesh", "data=2,model=2", program, planted(tmp_path, "other replica groups")
    )
    assert done.returncode == 1
    for shown in (
        "step → renamed",
        "changed  replica_groups        1",
        "replica_groups",
        "{{0,1},{2,3}}",
        "{{0,2},{1,3}}",
        "Collectives by axes",
        "all-reduce",
        "model",
        "data",
    ):
        assert shown in done.stdout
    assert "\x1b" not in done.stdout


def test_consequences_are_shown_on_demand(program: Path, tmp_path: Path) -> None:
    other = planted(tmp_path, "changed dimension")
    short = hlofast_command("diff", program, other).stdout
    assert "consequences      2" in short
    assert "\nConsequences\n" not in short
    shown = hlofast_command("diff", "--all", program, other).stdout
    assert "\nConsequences\n" in shown
    assert shown.count("dimensions  ") == short.count("dimensions  ") + 2


def test_trip_counts_are_always_shown(program: Path, tmp_path: Path) -> None:
    shown = hlofast_command("diff", program, planted(tmp_path, "changed trip count")).stdout
    lines = [line.split() for line in shown.splitlines()]
    changes = lines[lines.index(["Changes"]) : lines.index(["Totals"])]
    assert [line[1] for line in changes if line[:1] == ["changed"]] == ["constant", "trip_count"]


def test_the_order_counts_on_demand(train_step: Path, tmp_path: Path) -> None:
    other = tmp_path / "shuffled.txt"
    other.write_text(renamed(hlofast.load(train_step), seed=1))
    done = hlofast_command("diff", train_step, other)
    assert done.returncode == 0
    assert "the order of instructions differs, but is not compared" in done.stdout
    assert hlofast_command("diff", "--order", train_step, other).returncode == 1


def test_several_modules_are_paired_by_name(tmp_path: Path) -> None:
    page, other = tmp_path / "page.txt", tmp_path / "other.txt"
    page.write_text(TWO_MODULES)
    first, second = (part for part in TWO_MODULES.split("HloModule ")[1:])
    other.write_text(
        f"HloModule {second.replace('exponential', 'sine')}\nHloModule {first}\nHloModule third\n\nENTRY e {{\n  ROOT p = f32[] parameter(0)\n}}\n"
    )
    printed = document("diff", page, other)
    by_name = {pair["name"]: pair for pair in printed["results"][:-1]}
    assert values(by_name["first"])["differences"] == 0
    assert by_name["first"]["tables"]["totals"]
    assert counts(by_name["second"]) == {"changed opcode": 1}
    assert unmatched(printed) == [("after", "third")]
    (program,) = printed["results"][-1]["tables"]["programs"]
    lines = program["line_before"], program["line_after"]
    assert lines == tuple(
        path.read_text().split("HloModule second")[0].count("\n") + 1 for path in (page, other)
    )
    assert hlofast_command("diff", "--module", "first", page, other).returncode == 0


def test_two_configs_are_compared_as_configs(tmp_path: Path) -> None:
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_text("model.dim: 64\nmodel.klass: 'axlearn.common.causal_lm.Model'\nname: 'trainer'\n")
    b.write_text(a.read_text().replace("64", "128"))
    done = hlofast_command("diff", a, b)
    assert done.returncode == 1, done.stderr
    assert done.stdout == hlofast_command("config", a, "--diff", b).stdout
    assert "model.dim" in done.stdout
    assert hlofast_command("diff", a, a).returncode == 0
    assert '"hlofast.config"' in hlofast_command("diff", "--json", a, b).stdout


def test_names_cannot_steer_a_terminal(program: Path, tmp_path: Path) -> None:
    other = tmp_path / "after.txt"
    other.write_text(PROGRAM.replace('"widen"', '"\\033[31mwide"'))
    done = hlofast_command("diff", program, other)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout


def test_what_cannot_be_read_stands_in_the_document(program: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.txt"
    broken.write_text(PROGRAM[:900])
    printed = document("diff", program, broken)
    assert [error["path"] for error in printed["errors"]] == [str(broken)]
    assert unmatched(printed) == [("before", "step")]
    done = hlofast_command("diff", program, broken)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "one side" not in done.stdout
    # Nor is anything said of what a file lacks that is not there.
    done = hlofast_command("diff", program, tmp_path / "none.txt")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"hlofast: {tmp_path / 'none.txt'}: No such file or directory\n"


class TestFoldersWithFaults:
    """Of two dump directories, and of the hosts of one."""

    @pytest.fixture
    @staticmethod
    def folders(tmp_path: Path) -> tuple[Path, Path]:
        for host in ("before", "after"):
            (tmp_path / host).mkdir()
            for number, text in enumerate((PROGRAM, "no module")):
                name = f"module_000{number}.jit_f{number}.after_optimizations.txt"
                (tmp_path / host / name).write_text(text)
        (tmp_path / "before" / "module_0007.jit_g.after_optimizations.txt").symlink_to("nowhere")
        return tmp_path / "before", tmp_path / "after"

    @pytest.mark.parametrize("are_two", [True, False])
    def test_paths_stand_once_and_links_are_named(
        self, folders: tuple[Path, Path], are_two: bool
    ) -> None:
        before, after = folders
        arguments = folders if are_two else (before.parent,)
        done = hlofast_command("diff", *arguments)
        assert done.returncode == 3
        faults = [line for line in done.stderr.splitlines() if line.startswith("hlofast: ")]
        broken = "module_0001.jit_f1.after_optimizations.txt"
        link = before / "module_0007.jit_g.after_optimizations.txt"
        assert sorted(faults) == sorted(
            [
                f"hlofast: {link}: No such file or directory",
                f"hlofast: {before / broken}: error: no HLO module found",
                f"hlofast: {after / broken}: error: no HLO module found",
            ]
        )

    def test_errors_of_the_system_are_without_their_number(self) -> None:
        from hlofast._programs import reason

        assert reason(PermissionError(13, "Permission denied", "x")) == "Permission denied"


def test_loads_neither_numpy_nor_json(program: Path, tmp_path: Path) -> None:
    import sys

    other = planted(tmp_path, "changed constant")
    code = (
        "import sys\nfrom hlofast.__main__ import main\n"
        f"try: main(['diff', {str(program)!r}, {str(other)!r}])\nexcept SystemExit: pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert not {"numpy", "json", "typing", "dataclasses"} & set(done.stderr.split())


class TestGrowth:
    """`--max-growth`: limits for continuous integration."""

    def test_growth_within_the_limits_passes_whatever_else_differs(
        self, train_step: Path, tmp_path: Path
    ) -> None:
        other = larger(train_step, tmp_path)
        done = hlofast_command("diff", "--max-growth", "live_peak=900%", train_step, other)
        assert (done.returncode, done.stderr) == (0, "")
        assert hlofast_command("diff", train_step, other).returncode == 1

    def test_more_growth_fails_and_says_how_much(self, train_step: Path, tmp_path: Path) -> None:
        other = larger(train_step, tmp_path)
        limits = "instructions=50%,live_peak=0%"
        done = hlofast_command("diff", "--max-growth", limits, train_step, other)
        assert done.returncode == 1
        assert f"hlofast: {other}: live_peak grew by " in done.stderr
        assert " %; allowed: 0 %\n" in done.stderr
        assert "instructions" not in done.stderr

    def test_a_program_that_shrinks_passes(self, train_step: Path, tmp_path: Path) -> None:
        other = larger(train_step, tmp_path)
        limits = "live_peak=0%,flops=0%"
        assert hlofast_command("diff", "--max-growth", limits, other, train_step).returncode == 0

    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ("live_peek=5%", "unknown measure 'live_peek'; did you mean live_peak?"),
            ("live_peak", "'live_peak' is not MEASURE=X%, such as live_peak=5%"),
            ("live_peak=5", "is not MEASURE=X%"),
            ("live_peak=-5%", "is not MEASURE=X%"),
            ("live_peak=nan%", "is not MEASURE=X%"),
        ],
    )
    def test_other_limits_are_wrong_usage(
        self, train_step: Path, limits: str, message: str
    ) -> None:
        done = hlofast_command("diff", "--max-growth", limits, train_step, train_step)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr

    def test_hosts_of_one_folder_have_no_growth(self, tmp_path: Path) -> None:
        done = hlofast_command("diff", "--max-growth", "flops=1%", tmp_path)
        assert (done.returncode, done.stdout) == (2, "")


def larger(dump: Path, folder: Path) -> Path:
    """The same program with a live value of 16 MiB more."""
    module = hlofast.load(dump)
    text = module.to_text()
    entry = text.index("ENTRY ")
    at = text.index("\n", entry) + 1
    end = text.rindex("ROOT ")
    end = text.rindex("\n", 0, end) + 1
    made = "  %large.0 = f32[]{:T(128)} constant(1)\n"
    made += "  %large = f32[2048,2048]{1,0:T(8,128)} broadcast(%large.0), dimensions={}\n"
    used = "  %large.1 = f32[2048,2048]{1,0:T(8,128)} negate(%large)\n"
    used += "  %large.2 = f32[2048,2048]{1,0:T(8,128)} add(%large, %large.1)\n"
    path = folder / "larger.txt"
    path.write_text(text[:at] + made + text[at:end] + used + text[end:])
    return path


class TestMarkdown:
    """`--markdown`: what changed, for a pull request."""

    @pytest.fixture
    @staticmethod
    def folders(tmp_path: Path) -> tuple[Path, Path]:
        return tmp_path / "before", tmp_path / "after"

    def write(self, folder: Path, name: str, text: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test_files(self, program: Path, tmp_path: Path) -> None:
        same = tmp_path / "same.txt"
        same.write_text(renamed(hlofast.load(program)))
        done = hlofast_command("diff", "--markdown", program, same)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        other = planted(tmp_path, "removed collective")
        done = hlofast_command("diff", "--markdown", program, other)
        assert done.returncode == 1
        assert "all-reduce" in done.stdout.partition("- programs: 1")[0]
        assert done.stdout.count("### ") == done.stdout.count("#### ") + 1

    def test_all_devices_are_not_set_against_one(self) -> None:
        """A text before partitioning has the work of all devices: no figure of it shrank."""
        before, after = (
            FIXTURES / "shares" / f"grad_fsdp_tp{end}.txt.xz" for end in (".before", "")
        )
        done = hlofast_command("diff", "--markdown", before, after)
        assert done.returncode == 1
        assert "-87.5 %" not in done.stdout and "-76.4 %" not in done.stdout
        told = "FLOPs 1,344,536,576 of 8 devices → 168,280,070 of 1 device"
        assert told in done.stdout.partition("- programs")[0]
        _, _, flops = done.stdout.partition("#### FLOPs")
        header, _, row = flops.split("\n")[2:5]
        assert "| devices before | devices after |" in header and "change" not in header
        assert row.endswith("| 8 | 1 |")
        whole = document("diff", before, after)["results"][-1]["tables"]["flops"]
        assert [(one["change"], one["share"], one["devices_before"]) for one in whole] == [
            (None, None, 8)
        ]

    def test_it_excludes_json(self, program: Path) -> None:
        done = hlofast_command("diff", "--markdown", "--json", program, program)
        message = "hlofast: --json and --markdown exclude each other\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", message)

    def test_hosts_of_one_folder(self, tmp_path: Path) -> None:
        name = "module_0001.jit_step.after_optimizations.txt"
        for host, text in (("a", PROGRAM), ("b", PROGRAM)):
            self.write(tmp_path / "dump", f"{host}/{name}", text)
        done = hlofast_command("diff", "--markdown", tmp_path / "dump")
        assert (done.returncode, done.stdout) == (0, "")
        self.write(tmp_path / "dump", f"b/{name}", changed(REPLACED["removed collective"][0]))
        done = hlofast_command("diff", "--markdown", tmp_path / "dump")
        assert done.returncode == 1
        assert "| `step` |" in done.stdout or "| `jit_step` |" in done.stdout

    def test_renamed_programs_are_paired_by_what_they_compute(
        self, folders: tuple[Path, Path]
    ) -> None:
        other = changed(REPLACED["removed collective"][0])
        texts = {"f": PROGRAM, "g": other}
        for number, name in enumerate(("f", "g")):
            file = f"module_000{number}.jit_{name}.after_optimizations.txt"
            self.write(folders[0], file, texts[name])
            file = f"module_000{number}.jit_new_{name}.after_optimizations.txt"
            self.write(folders[1], file, renamed(hlofast.loads(texts[name])))
        done = hlofast_command("diff", "--markdown", *folders)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_processes_of_another_number_are_not_missing_hosts(
        self, folders: tuple[Path, Path]
    ) -> None:
        # XLA's subfolders are named by host and process, which differs between runs.
        for folder, processes in zip(folders, ("101 102", "201 202")):
            for process in processes.split():
                file = "module_0001.jit_f.after_optimizations.txt"
                self.write(folder, f"jit_f/worker_{process}/{file}", PROGRAM)
        done = hlofast_command("diff", "--markdown", *folders)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_a_change_on_every_host_stands_once(self, folders: tuple[Path, Path]) -> None:
        other = changed(REPLACED["removed collective"][0])
        for folder, text in zip(folders, (PROGRAM, other)):
            for host in range(12):
                file = f"host_{host}/module_0001.jit_f.after_optimizations.txt"
                self.write(folder, file, text)
        done = hlofast_command("diff", "--markdown", *folders)
        assert done.returncode == 1
        (row,) = re.findall(r"\| `step` \| all-reduce \|.*", done.stdout)
        assert row.endswith("| 12 |")

    @pytest.mark.parametrize("which", [0, 1])
    def test_a_folder_without_dumps_is_unreadable(
        self, folders: tuple[Path, Path], which: int
    ) -> None:
        for folder in folders:
            folder.mkdir()
        file = "module_0001.jit_f.after_optimizations.txt"
        self.write(folders[which], file, PROGRAM)
        done = hlofast_command("diff", *folders)
        assert done.returncode == 3
        assert f"{folders[1 - which]}: no XLA dumps here; write them with" in done.stderr
