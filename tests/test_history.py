"""`hlofast.history` and `hlofast history`: what each pass did to a module."""

from __future__ import annotations

import pickle
import shutil
import tarfile
from pathlib import Path

import pytest

import hlofast
from conftest import FIXTURES
from hlofast._history_find import HistoryFound
from renamed import renamed
from test_cli import document, hlofast_command

NAME = "module_0000.jit_train_step"


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps that XLA wrote between its passes."""
    folder = tmp_path_factory.mktemp("passes")
    with tarfile.open(FIXTURES / "passes.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def history(dump: Path) -> hlofast.History:
    return hlofast.history(dump)


def test_every_dump_is_a_row_in_order(dump: Path, history: hlofast.History) -> None:
    assert len(history) == len(list(dump.iterdir())) == 66
    rows = history.to_pylist()
    assert rows[0]["stage"] == "before"
    assert rows[-1]["stage"] == "after"
    steps = [row["step"] for row in rows[1:-1]]
    assert steps == list(range(64))
    assert not any(row["error"] for row in rows)
    inlined = rows[5]
    assert (inlined["pipeline"], inlined["pass"]) == ("spmd-partitioner", "call-inliner")


def test_files_are_named(dump: Path) -> None:
    done = hlofast_command("history", "--files", dump)
    files = [line.partition("file: ")[2] for line in done.stdout.splitlines() if "file: " in line]
    assert len(files) == 39
    assert all(Path(file).is_file() for file in files)
    assert "\n6 pipeline-start\n  file: " in done.stdout


def test_figures_are_those_of_the_modules(history: hlofast.History) -> None:
    for index in (0, 10, 65):
        module = history.module(index)
        row = history.row(index)
        assert row["instructions"] == module.instruction_count
        assert row["flops"] == module.cost().flops
        assert row["bytes_accessed"] == module.cost().bytes_accessed
        assert row["live_peak"] == module.memory().live_peak
        assert row["fusions"] == len(module.where(opcode="fusion"))
    before, after = history.row(0), history.row(65)
    assert before["fusions"] == 0 < after["fusions"]
    # The partitioner has not added them yet.
    assert before["collectives"] is None and after["collectives"] > 0


def test_passes_are_told_by_what_they_did(history: hlofast.History) -> None:
    rows = history.to_pylist()
    did = {(row["pipeline"], row["pass"]): row for row in rows}
    cleaned = did["spmd-cleanup", "dce"]
    assert (cleaned["vanished"], cleaned["appeared"], cleaned["changed"]) == (51, 0, 0)
    assert did["spmd-partitioner", "spmd-partitioning"]["collectives"] > 0
    annotated = did["HLO_passes_through_layout_assignment", "while-loop-trip-count-annotator"]
    counts = [annotated[kind] for kind in ("vanished", "appeared", "moved", "changed")]
    assert counts == [0, 0, 0, 2]
    wrapped = did["HLO_passes_after_layout_assignment", "fusion-wrapper"]
    assert wrapped["moved"] == wrapped["appeared"] == 13
    assert wrapped["fusions"] == rows[rows.index(wrapped) - 1]["fusions"] + 13
    assert did["HLO_passes_after_layout_assignment", "fusion"]["moved"] > 20
    copies = did["copy-insertion", "after_adding_copies_to_resolve_interference"]
    assert (copies["vanished"], copies["appeared"]) == (0, 22)
    # XLA dumps at the start of pipelines, too, where nothing has happened.
    starts = [row for row in rows[2:] if row["pass"] == "pipeline-start"]
    assert len(starts) > 10
    assert all(row["is_same"] for row in starts if row["pipeline"] == "simplification")


def test_neighbours_and_their_differences_agree(history: hlofast.History) -> None:
    for index in range(1, len(history)):
        row = history.row(index)
        if row["is_same"]:
            assert [row[kind] for kind in ("vanished", "appeared", "moved", "changed")] == [0] * 4
            before, after = history.module(index - 1), history.module(index)
            # The number of copies of equal computations does not count as a difference.
            if len(before.computations) == len(after.computations):
                assert before.instruction_count == after.instruction_count


def test_every_step_renamed_is_the_same_history(
    dump: Path, history: hlofast.History, tmp_path: Path
) -> None:
    for number, path in enumerate(sorted(dump.iterdir())):
        (tmp_path / path.name).write_text(renamed(hlofast.load(path), number))
    other = hlofast.history(tmp_path, "jit_train_step")
    # The order in the text decides the peak; operation names help to tell what became of what.
    for name in ("instructions", "fusions", "collectives", "flops", "is_same"):
        assert other[name].tolist() == history[name].tolist(), name


def test_modules_are_chosen_by_name_number_and_key(dump: Path, tmp_path: Path) -> None:
    for host in ("host0", "host1"):
        shutil.copytree(dump, tmp_path / host)
    for name in (None, "jit_train_step", 0, "0000"):
        with pytest.raises(ValueError, match=r"host0/module_0000\.jit_train_step"):
            hlofast.history(tmp_path, name)
    chosen = hlofast.history(tmp_path, f"host1/{NAME}")
    assert chosen.program.host == "host1"
    with pytest.raises(ValueError, match=r"no module 'jit_eval'.*jit_train_step"):
        hlofast.history(dump, "jit_eval")
    with pytest.raises(OSError, match="nothing"):
        hlofast.history(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no XLA dumps here"):
        hlofast.history(tmp_path / "empty")


def test_the_module_with_passes_is_meant(dump: Path, tmp_path: Path) -> None:
    shutil.copytree(dump, tmp_path / "dump")
    after = tmp_path / "dump" / f"{NAME}.cpu_after_optimizations.txt"
    shutil.copy(after, after.with_name(after.name.replace("0000", "0001")))
    assert hlofast.history(tmp_path / "dump", "jit_train_step").program.module_id == 0


def test_what_cannot_be_read_is_a_row_with_its_reason(dump: Path, tmp_path: Path) -> None:
    for path in sorted(dump.iterdir())[:6]:
        shutil.copy(path, tmp_path)
    broken = sorted(tmp_path.iterdir())[3]
    broken.write_text(broken.read_text()[:3000])
    rows = hlofast.history(tmp_path).to_pylist()
    (failed,) = [row for row in rows if row["error"]]
    assert failed["file"] == str(broken)
    assert failed["instructions"] is failed["live_peak"] is None
    assert len(rows) == 6
    done = hlofast_command("history", tmp_path)
    assert done.returncode == 3
    assert broken.name in done.stderr
    assert "Traceback" not in done.stderr
    printed = document("history", tmp_path)
    (result,) = printed["results"]
    steps = result["tables"]["steps"]
    assert [step["instructions"] is None for step in steps].count(True) == 1
    assert [note["code"] for note in result["notes"]] == ["unreadable", "global"]
    assert [error["path"] for error in printed["errors"]] == [str(broken)]


def test_a_notebook_shows_it(dump: Path, tmp_path: Path) -> None:
    step = next(iter(sorted(dump.iterdir())))
    folder = tmp_path / "<i>"
    folder.mkdir()
    shutil.copy(step, folder)
    html = hlofast.history(tmp_path)._repr_html_()
    assert "<i>" not in html
    assert "&lt;i&gt;/module_0000" in html
    assert ">live peak B</th>" in html.replace("<br>", " ")


def test_pickle(dump: Path) -> None:
    history = hlofast.history(dump)
    assert pickle.loads(pickle.dumps(history)) == history


def test_document_is_the_table(dump: Path, history: hlofast.History) -> None:
    (printed,) = document("history", dump, "jit_train_step")["results"]
    facts = {name: fact["value"] for name, fact in printed["facts"].items()}
    assert facts == {"module": "jit_train_step", "dumps": 66, "same": sum(history["is_same"])}
    assert printed["name"] == NAME
    assert [note["code"] for note in printed["notes"]] == ["global"]
    steps = printed["tables"]["steps"]
    assert steps == history.to_pylist()
    assert steps[0]["step"] is None
    assert steps[1]["pass"] == "pipeline-start"


def test_for_people(dump: Path) -> None:
    done = hlofast_command("history", dump, "0")
    assert done.returncode == 0, done.stderr
    for shown in (NAME, "66", "spmd-partitioning", "fusion", "live peak"):
        assert shown in done.stdout
    assert done.stdout == f"{hlofast.history(dump)}\n\n"
    short = done.stdout.count("\n")
    table = len(hlofast.history(dump).sections()[0].table)
    assert table > 10
    for option in ((), ("--files",)):
        few = hlofast_command("history", "--top", "3", *option, dump).stdout
        assert f"Passes (3 of {table})" in few
        assert few.count("\n") < 3 * 3 + 12
    every = hlofast_command("history", "--top", "0", dump).stdout
    assert "Passes\n" in every
    assert every.count("\n") >= short
    assert hlofast_command("history", "--all", dump).stdout.count("\n") > short
    assert hlofast_command("history", dump, "jit_eval").returncode == 2
    assert hlofast_command("history", dump / "nothing").returncode == 3


NET = {"made": 1, "cloned": 1, "merged": -1, "removed": -1, "changed": 0, "renamed": 0, "moved": 0}


def events(found: HistoryFound) -> list[tuple[str, str, str | None, str | None]]:
    return [
        (row["pass"], row["event"], row["before"], row["after"])
        for row in found.events
        if row["event"] != "renamed"
    ]


class TestFind:
    def test_what_passes_did_adds_up(self, history: hlofast.History) -> None:
        modules = [history.module(row) for row in range(len(history))]
        for opcode in {opcode for module in modules for opcode in module.opcodes()}:
            found = history.find(opcode)
            facts = {fact.name: fact.value for fact in found.facts}
            counts = [
                sum(own.opcode == opcode and not own.is_implicit for own in module)
                for module in (modules[0], modules[-1])
            ]
            assert [facts["first"], facts["last"]] == counts
            net = sum(
                row["count"] - 1 if row["event"] == "split" else NET[row["event"]] * row["count"]
                for row in found.events
            )
            assert counts[0] + net == counts[1], opcode

    def test_the_partitioner_makes_the_collectives(self, history: hlofast.History) -> None:
        found = history.find("collective")
        assert found.kind == "collective"
        assert events(found) == [
            # Its own pipelines are dumped before the pass itself.
            ("spmd-partitioning", "made", None, "all-gather, all-gather.1"),
            (
                "spmd-partitioning", "made", None,
                "all-reduce, all-reduce.1, all-reduce.2, all-reduce.3",
            ),
        ]  # fmt: skip
        assert {row["pipeline"] for row in found.events if row["event"] == "made"} == {
            "spmd-partitioner"
        }

    # By hand, from the texts of the dumps.
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            # The dot of a computation that is called, inlined, divided and followed to the end.
            ("dot_general.6", [("call-inliner", "moved", "dot_general.6", "dot_general.4"),
              ("spmd-partitioning", "changed", "dot_general.11", "dot.3")]),
            # fused_computation.4 of the fusion pass.
            (
                "tanh.13",
                [("call-inliner", "moved", "tanh.3", "tanh.2"),
                 ("spmd-partitioning", "changed", "tanh.5", "tanh.7"),
                 ("fusion", "moved", "tanh.12", "tanh.13")],
            ),
            # The fusion that wraps it is the twin of another: CSE leaves it dead.
            (
                "copy.11",
                [("layout-assignment", "made", None, "copy.3"),
                 ("fusion-wrapper", "moved", "copy.3", "copy.11"),
                 ("dce", "removed", "copy.11", None)],
            ),
            (
                "wrapped_copy.3",
                [("fusion-wrapper", "made", None, "wrapped_copy.3"),
                 ("cse", "merged", "wrapped_copy.3", "wrapped_copy.2")],
            ),
            # Three fusions read the index: two get a copy.
            (
                "subtract.5",
                [("fusion", "cloned", "subtract.5", "subtract.7"),
                 ("fusion", "cloned", "subtract.5", "subtract.8"),
                 ("fusion", "moved", "subtract.5", "subtract.6")],
            ),
            # jax.checkpoint's barrier; its users read the tuple that was its operand.
            (
                "remat2.20",
                [("call-inliner", "moved", "remat2.6", "remat2.1"),
                 ("spmd-partitioning", "changed", "remat2.11", "remat2.15"),
                 ("cse_barrier_expander", "removed", "remat2.20", "tuple.36")],
            ),
            # Out of the loop, where CSE finds another.
            ("partition-id.6",
             [("spmd-partitioning", "made", None, "partition-id.3"),
              ("while-loop-invariant-code-motion", "moved", "partition-id.3", "partition-id.6"),
              ("cse", "merged", "partition-id.6", "partition-id.5")]),
            # x / 1024 becomes x * (1 / 1024).
            ("div.2",
             [("algsimp", "changed", "div.2", "multiply.3"),
              ("fusion-wrapper", "moved", "multiply.3", "multiply.9")]),
            # The loop-invariant negation of a constant is computed before the loop, then folded.
            ("negate.1",
             [("while-loop-invariant-code-motion", "made", None, "negate.1"),
              ("constant_folding", "removed", "negate.1", "constant.89")]),
            # One of seven index computations in two callees, which become one each.
            ("squeeze.0", [("flatten-call-graph", "cloned", "squeeze.1", "squeeze.0")]),
        ],
    )  # fmt: skip
    def test_an_instruction_is_followed(
        self,
        history: hlofast.History,
        name: str,
        expected: list[tuple[str, str, str | None, str | None]],
    ) -> None:
        found = history.find(name)
        assert found.kind == "name"
        assert [own for own in events(found) if own in expected] == expected
        if name != "squeeze.0":
            assert events(found) == expected

    def test_renamed_by_every_loop_pass(self, history: hlofast.History) -> None:
        found = history.find("all-reduce.13")
        names = [row["after"] for row in found.events]
        assert names == [f"all-reduce.{number}" for number in (1, 5, 7, 9, 11, 13)]
        assert [row["before"] for row in found.events] == [None, *names[:-1]]
        assert {fact.name: fact.value for fact in found.facts}["renamed"] == 5
        (said,) = found.notes
        assert said.code == "other-names"
        # Every name on the way tells the same.
        assert history.find("%all-reduce.7").events.to_pylist() == found.events.to_pylist()

    def test_what_no_dump_has(self, history: hlofast.History) -> None:
        with pytest.raises(ValueError, match=r"'all-redce'.*did you mean all-reduce"):
            history.find("all-redce")
        for nothing in ("", "%"):
            with pytest.raises(ValueError, match="nothing to find: give the name of an instruct"):
                history.find(nothing)

    def test_nothing_is_refused(self, dump: Path) -> None:
        done = hlofast_command("history", "--find", "", dump)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("hlofast: nothing to find: give")

    def test_for_people_and_programs(self, dump: Path) -> None:
        done = hlofast_command("history", "--find", "collective", dump)
        assert done.returncode == 0, done.stderr
        assert "Events by pass" in done.stdout
        (printed,) = document("history", "--find", "collective", dump)["results"]
        found = hlofast.history(dump).find("collective")
        assert printed["tables"]["events"] == found.events.to_pylist()
        assert printed["facts"]["made"]["value"] == 6
        count = len(found.events)
        first = hlofast_command("history", "--find", "collective", "--top", "1", dump).stdout
        assert count > 1 and f"Events by pass (1 of {count})" in first
        every = hlofast_command("history", "--find", "collective", "--top", "0", dump).stdout
        assert "Events by pass\n" in every
        done = hlofast_command("history", "--find", "nothing-at-all", dump)
        assert done.returncode == 2
        assert "nothing-at-all" in done.stderr


def test_passes_and_the_search_agree_about_the_partitioner(history: hlofast.History) -> None:
    rows = history.to_pylist()
    first = next(row["step"] for row in rows if row["collectives"])
    made = [row["step"] for row in history.find("collective").events if row["event"] == "made"]
    assert first == min(made)
    assert all(row["devices_together"] == 1 for row in rows if (row["step"] or 0) >= first)


def steps(folder: Path, *bodies: str) -> hlofast.History:
    """A history of hand-written dumps."""
    for number, body in enumerate(bodies):
        text = (
            "HloModule m\n\nadd {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n"
            f"  ROOT s = f32[] add(x, y)\n}}\n\nENTRY e {{\n{body}}}\n"
        )
        name = f"module_0001.m.{number:04}.pipeline.after_pass{number}.before_pass{number + 1}.txt"
        (folder / name).write_text(text)
    return hlofast.history(folder)


PARAMETERS = "  p = f32[64] parameter(0)\n  q = f32[64] parameter(1)\n"


def reduced(name: str, of: str, shape: str = "f32[64]") -> str:
    return f"  {name} = {shape} all-reduce({of}), replica_groups={{}}, to_apply=add\n"


class TestFindInHandWrittenDumps:
    def test_a_combiner_merges(self, tmp_path: Path) -> None:
        both = "(f32[64], f32[64])"
        history = steps(
            tmp_path,
            PARAMETERS + reduced("a", "p") + reduced("b", "q") + f"  ROOT t = {both} tuple(a, b)\n",
            PARAMETERS
            + reduced("c", "p, q", both)
            + "  g = f32[64] get-tuple-element(c), index=0\n"
            + "  h = f32[64] get-tuple-element(c), index=1\n"
            + f"  ROOT t = {both} tuple(g, h)\n",
        )
        found = history.find("collective")
        sums = {fact.name: fact.value for fact in found.facts}
        assert (sums["first"], sums["last"]) == (2, 1)
        merged = [row for row in found.events if row["event"] == "merged"]
        assert [(row["pass"], row["after"]) for row in merged] == [("pass1", "c")]

    def test_a_split(self, tmp_path: Path) -> None:
        named = ', metadata={op_name="sum"}\n'
        history = steps(
            tmp_path,
            PARAMETERS + "  ROOT n = f32[64] negate(p)" + named,
            PARAMETERS
            + "  s0 = f32[32] slice(p), slice={[0:32]}\n"
            + "  s1 = f32[32] slice(p), slice={[32:64]}\n"
            + "  n0 = f32[32] negate(s0)" + named
            + "  n1 = f32[32] negate(s1)" + named
            + "  ROOT c = f32[64] concatenate(n0, n1), dimensions={0}\n",
            PARAMETERS
            + "  s0 = f32[32] slice(p), slice={[0:32]}\n"
            + "  n0 = f32[32] negate(s0)" + named
            + "  ROOT c = f32[64] concatenate(n0, n0), dimensions={0}\n",
        )  # fmt: skip
        for wanted in ("n", "negate"):
            found = history.find(wanted)
            (split,) = [row for row in found.events if row["event"] == "split"]
            assert (split["pass"], split["before"], split["count"]) == ("pass1", "n", 2)
            assert set(split["after"].split(", ")) == {"n0", "n1"}
            # The parts are followed too.
            (gone,) = [row for row in found.events if row["event"] in ("removed", "merged")]
            assert (gone["pass"], gone["before"]) == ("pass2", "n1")

    def test_an_asynchronous_pair_counts_once(self, tmp_path: Path) -> None:
        history = steps(
            tmp_path,
            PARAMETERS + "  ROOT a = f32[64] all-reduce(p), replica_groups={}, to_apply=add\n",
            PARAMETERS
            + "  s = f32[64] all-reduce-start(p), replica_groups={}, to_apply=add\n"
            + "  ROOT d = f32[64] all-reduce-done(s)\n",
        )
        found = history.find("collective")
        sums = {fact.name: fact.value for fact in found.facts}
        assert (sums["first"], sums["last"]) == (1, 1)
        (row,) = found.events
        assert (row["event"], row["opcode"], row["after"]) == ("changed", "all-reduce-start", "s")

    @pytest.mark.parametrize(
        ("before", "after", "changes"),
        [
            ("f32[64]", "bf16[64]", "type f32 to bf16"),
            ("f32[64]", "f32[8,8]", "shape [64] to [8,8]"),
            ("f32[64]", "f32[64]{0}", None),
        ],
    )
    def test_a_change_is_told_from_a_new_name(
        self, tmp_path: Path, before: str, after: str, changes: str | None
    ) -> None:
        def body(name: str, shape: str) -> str:
            return f"  p = {shape} parameter(0)\n" + reduced(f"ROOT {name}", "p", shape)

        history = steps(tmp_path, body("a", before), body("b", after))
        for wanted in ("a", "b", "collective", "all-reduce"):
            found = history.find(wanted)
            (row,) = found.events
            assert row["event"] == ("renamed" if changes is None else "changed")
            assert (row["before"], row["after"], row["changes"]) == ("a", "b", changes)
            assert changes is None or changes in str(found)

    @pytest.mark.parametrize(
        ("groups", "is_changed"), [("{{0,1},{2,3}}", False), ("[2,2]<=[2,2]T(1,0)", True)]
    )
    def test_groups_are_compared_by_their_devices(
        self, tmp_path: Path, groups: str, is_changed: bool
    ) -> None:
        def body(name: str, groups: str) -> str:
            return PARAMETERS + reduced(f"ROOT {name}", "p").replace("={}", f"={groups}")

        history = steps(tmp_path, body("a", "[2,2]<=[4]"), body("b", groups))
        (row,) = history.find("a").events
        expected = f"groups [2,2]<=[4] to {groups}" if is_changed else None
        assert row["changes"] == expected
        assert row["event"] == ("changed" if is_changed else "renamed")

    def test_instructions_with_the_same_kind_of_change_share_a_row(self, tmp_path: Path) -> None:
        def body(sizes: tuple[str, str]) -> str:
            both = f"({sizes[0]}, {sizes[1]})"
            parameters = [
                f"  {name} = {size} parameter({number})\n"
                for number, (name, size) in enumerate(zip("pq", sizes, strict=True))
            ]
            sums = [
                reduced(name, of, size) for name, of, size in zip("ab", "pq", sizes, strict=True)
            ]
            return "".join((*parameters, *sums, f"  ROOT t = {both} tuple(a, b)\n"))  # fmt: skip

        history = steps(tmp_path, body(("f32[64]", "f32[32]")), body(("f32[8]", "f32[4]")))
        (row,) = history.find("collective").events
        assert (row["event"], row["count"]) == ("changed", 2)
        assert row["changes"] == "shape [64] and 1 more to [8] and 1 more"

    def test_an_unreadable_dump_is_skipped(self, tmp_path: Path) -> None:
        body = PARAMETERS + "  ROOT n = f32[64] negate(p)\n"
        history = steps(tmp_path, body, body, body.replace("negate", "sine"))
        broken = sorted(tmp_path.iterdir())[1]
        broken.write_text(broken.read_text()[:40])
        found = hlofast.history(tmp_path).find("negate")
        assert [note.code for note in found.notes] == ["unreadable"]
        (gone,) = found.events
        assert (gone["pass"], gone["event"], gone["after"]) == ("pass2", "removed", "n")
        assert len(history) == 3


@pytest.mark.parametrize("backend", ["cpu", "tpu"])
def test_a_search_counts_every_collective_once(backend: str) -> None:
    # XLA for TPUs writes one all-gather in four fusions, from its start to its end.
    history = hlofast.history(FIXTURES / "dump_folders" / backend)
    last = history.module(len(history) - 1).collectives()
    found = history.find("collective")
    facts = {fact.field.name: fact.value for fact in found.facts}
    assert facts["last"] == len(last) == {"cpu": 16, "tpu": 17}[backend]
    facts = {fact.field.name: fact.value for fact in history.find("all-gather").facts}
    assert facts["last"] == last.values("kind").count("all-gather")
