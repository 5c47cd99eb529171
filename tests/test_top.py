"""`hlofast top`: the view, driven by textual's pilot, and its plain output."""

import asyncio
import pty
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from test_cli import document, hlofast_command

HOSTILE = """\
HloModule evil

ENTRY main {
  x = f32[8]{0} parameter(0), metadata={op_name="[bold]x\\033[2J"}
  ROOT y = f32[8]{0} add(x, x), metadata={op_name="[/nothing] \\033]0;title\\007" source_file="[link=x]"}
}
"""


def driven(
    module: hlofast.Module,
    drive: Callable[[Any], Awaitable[None]],
    device: str | None = None,
    size: tuple[int, int] = (140, 48),
) -> None:
    """Run the view of `module` without a terminal and hand its pilot to `drive`."""
    pytest.importorskip("textual")
    from hlofast._report.data import Analyses, contents
    from hlofast._top.app import Top

    analyses = Analyses(module.with_context(device=device))

    async def run() -> None:
        app = Top(analyses, contents(analyses, None))
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await drive(pilot)

    # In a thread of its own: a browser that other tests drive keeps a loop running in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(run())).result()


def table(pilot: Any) -> Any:
    """The table on the screen."""
    from textual.widgets import DataTable

    return pilot.app.screen.query_one(DataTable)


def cells(pilot: Any, row: int = 0) -> list[str]:
    return [str(cell) for cell in table(pilot).get_row_at(row)]


def said(pilot: Any, where: str) -> str:
    return str(pilot.app.screen.query_one(where).render())


@pytest.fixture(scope="module")
def module(train_step: Path) -> hlofast.Module:
    return hlofast.load(train_step)


def test_the_verdict_is_that_of_the_analyses(module: hlofast.Module) -> None:
    time = module.time("tpu-v5e")

    async def drive(pilot: Any) -> None:
        from textual.widgets import Sparkline

        text = said(pilot, "#verdict")
        assert f"MFU {100 * time.mfu:.1f} %" in text
        assert "Step time " in text
        memory = module.memory(device="tpu-v5e")
        assert f"{memory.live_peak:,} B" in said(pilot, "#memory Static")
        data = pilot.app.screen.query_one(Sparkline).data
        assert max(data) == memory.live_peak
        assert len(data) <= 400

    driven(module, drive, "tpu-v5e")


def test_rows_are_sorted_and_turned_round(module: hlofast.Module) -> None:
    cost = module.cost().table()
    largest = max(cost, key=lambda row: row["flops"] * row["multiplicity"])
    most_bytes = max(cost, key=lambda row: row["bytes_accessed"] * row["multiplicity"])

    async def drive(pilot: Any) -> None:
        assert cells(pilot)[0] == largest["name"]
        await pilot.press("s")
        assert cells(pilot)[0] == most_bytes["name"]
        await pilot.press("r")
        first = cells(pilot)[0]
        least = min(row["bytes_accessed"] * row["multiplicity"] for row in cost)
        sizes = {r["bytes_accessed"] * r["multiplicity"] for r in cost if r["name"] == first}
        assert sizes == {least}

    driven(module, drive)


def test_an_instruction_leads_to_what_it_reads_and_back(module: hlofast.Module) -> None:
    async def drive(pilot: Any) -> None:
        name = cells(pilot)[0]
        (instruction,) = (i for i in module if i.name == name)
        await pilot.press("enter")
        await pilot.pause()
        assert said(pilot, "#facts").startswith(name)
        neighbours = [cells(pilot, row)[:2] for row in range(table(pilot).row_count)]
        expected = [["operand", other.name] for other in instruction.operands]
        expected += [["user", other.name] for other in instruction.users]
        assert neighbours == expected
        await pilot.press("enter")
        await pilot.pause()
        assert said(pilot, "#facts").startswith(expected[0][1])
        await pilot.press("escape", "escape")
        await pilot.pause()
        assert cells(pilot)[0] == name

    driven(module, drive)


def test_a_sum_leads_to_its_instructions(module: hlofast.Module) -> None:
    async def drive(pilot: Any) -> None:
        pilot.app.screen.show("cost-by-opcode")
        await pilot.pause()
        opcode = cells(pilot)[0]
        await pilot.press("enter")
        await pilot.pause()
        shown = {cells(pilot, row)[1] for row in range(table(pilot).row_count)}
        assert shown == {opcode}
        assert f"opcode {opcode}" in said(pilot, "#place")
        await pilot.press("escape")
        assert table(pilot).row_count == min(len(module), 1000)

    driven(module, drive)


def test_a_filter_finds_and_is_taken_away(module: hlofast.Module) -> None:
    async def drive(pilot: Any) -> None:
        await pilot.press("slash", *"DOT", "enter")
        await pilot.pause()
        assert 0 < table(pilot).row_count < len(module)
        for row in range(table(pilot).row_count):
            assert "dot" in " ".join(cells(pilot, row)).casefold()
        await pilot.press("escape")
        assert table(pilot).row_count == min(len(module), 1000)

    driven(module, drive)


def test_tables_are_reached_by_keyboard(module: hlofast.Module) -> None:
    async def drive(pilot: Any) -> None:
        from textual.widgets import OptionList

        await pilot.press("shift+tab")
        assert isinstance(pilot.app.focused, OptionList)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert "Instructions" not in said(pilot, "#place")
        await pilot.press("q")

    driven(module, drive, size=(80, 24))


def test_names_of_dumps_steer_nothing() -> None:
    async def drive(pilot: Any) -> None:
        shown = [cell for row in range(2) for cell in cells(pilot, row)]
        assert any("[bold]x" in cell for cell in shown)
        await pilot.press("enter")
        await pilot.pause()
        everything = "".join(shown) + said(pilot, "#facts")
        assert "\x1b" not in everything
        assert "\x07" not in everything

    module = hlofast.loads(HOSTILE.replace("\\033", "\x1b").replace("\\007", "\x07"))
    driven(module, drive)


def test_plain_text_where_there_is_no_terminal(train_step: Path, module: hlofast.Module) -> None:
    done = hlofast_command("top", "--top", "2", str(train_step))
    assert done.returncode == 0
    assert done.stdout.startswith("jit_train_step")
    table = module.cost().table()
    largest = max(table, key=lambda row: row["flops"] * row["multiplicity"])
    lines = done.stdout.split("Instructions (2 of ")[1].splitlines()
    assert lines[2].startswith(largest["name"])
    assert len(lines[1:4]) == 3


def test_tables_as_json(train_step: Path, module: hlofast.Module) -> None:
    (result,) = document("top", "--device", "tpu-v5e", train_step)["results"]
    assert result["facts"]["step"]["value"] == module.time("tpu-v5e").step_seconds
    rows = result["tables"]["instructions"]
    assert len(rows) == len(module)
    assert sum(row["flops"] for row in rows) == module.cost().flops
    assert {"memory_peak", "collectives", "matmuls", "residuals"} <= result["tables"].keys()


def test_inputs_that_are_none(tmp_path: Path) -> None:
    assert hlofast_command("top", str(tmp_path / "absent.txt")).returncode == 3
    bad = tmp_path / "bad.txt"
    bad.write_text("HloModule m\nENTRY e { ROOT p = f32[ parameter(0) }")
    assert hlofast_command("top", str(bad)).returncode == 3
    assert hlofast_command("top", "--device", "nothing", str(bad)).returncode == 2


def test_the_view_ends_with_q(train_step: Path) -> None:
    pytest.importorskip("textual")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "hlofast", "top", str(train_step)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as running:
        import os

        os.close(theirs)
        seen = b""
        while b"Instructions" not in seen:
            seen += os.read(ours, 1 << 16)
        os.write(ours, b"q")
        try:
            while os.read(ours, 1 << 16):
                pass
        except OSError:  # The other end has gone.
            pass
        assert running.wait(60) == 0
    os.close(ours)


FUSED = """\
HloModule fused, num_partitions=1

inner {
  a = f32[100]{0} parameter(0)
  ROOT b = f32[100]{0} add(a, a)
}

outer {
  a = f32[100]{0} parameter(0)
  b = f32[100]{0} fusion(a), kind=kLoop, calls=inner
  ROOT c = f32[100]{0} multiply(b, b)
}

ENTRY main {
  x = f32[100]{0} parameter(0), metadata={op_name="p[\\'layers\\']"}
  y = f32[100]{0} negate(x)
  ROOT z = f32[100]{0} fusion(y), kind=kLoop, calls=outer
}
"""


class TestPlainText:
    """What is printed elsewhere than on a terminal."""

    @pytest.fixture(scope="class")
    @staticmethod
    def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("top") / "fused.txt"
        path.write_text(FUSED)
        return path

    def test_what_is_inside_fusions_stands_beside_them(self, dump: Path) -> None:
        (result,) = document("top", "--json", dump)["results"]
        rows = result["tables"]["instructions"]
        counted = {
            row["instruction"]: (row["flops"], row["fused_flops"])
            for row in rows
            if row["opcode"] != "parameter"
        }
        assert counted["z"] == (0, 200)
        assert counted["c"] == (100, 0)
        assert counted["y"] == (100, 0)
        text = hlofast_command("top", dump).stdout
        heads = text.partition("\nInstructions\n")[2].splitlines()[0]
        assert all(label in heads for label in ("own FLOPs", "own bytes", "FLOPs fused"))
        assert "with their total in FLOPs fused; its bytes count at the fusion" in text

    def test_one_device_is_not_counted(self, dump: Path) -> None:
        facts = [
            line.split(maxsplit=1)[0]
            for line in hlofast_command("top", dump).stdout.split("\n")[1:10]
        ]
        assert "instructions" in facts
        assert not {"partitions", "replicas", "implied"} & set(facts)

    def test_names_are_without_escapes(self, dump: Path) -> None:
        for arguments in (("top",), ("memory", "--by", "scope"), ("cost", "--by", "scope")):
            text = hlofast_command(*arguments, dump).stdout
            assert "\\'" not in text
        assert "p['layers']" in hlofast_command("memory", "--by", "scope", dump).stdout
        module = hlofast.load(dump)
        assert "p['layers']" in module.cost().table()["scope"].tolist()

    def test_the_size_says_what_is_left_out_of_it(self) -> None:
        dump = FIXTURES / "sharded" / "decoder_v5e_256.txt.gz"
        text = hlofast_command("top", dump).stdout
        size = re.search(r"^instructions +([0-9,]+)\nimplied +([0-9,]+)$", text, re.M)
        rows = re.search(r"^Instructions \(10 of ([0-9,]+)\)$", text, re.M)
        assert size is not None
        assert rows is not None
        written, implied, all_of_them = (
            int(number.replace(",", "")) for number in (*size.groups(), *rows.groups())
        )
        assert written + implied == all_of_them

    def test_it_says_how_to_give_a_device_to_itself(self, dump: Path) -> None:
        text = hlofast_command("top", dump).stdout
        assert "no device given, use --device NAME" in text
        assert "hlofast report" not in text
