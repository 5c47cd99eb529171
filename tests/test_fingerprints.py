"""`hlofast.fingerprints`, and `hlofast diff` of dump directories from several hosts and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import hlofast
from renamed import renamed
from test_cli import document, hlofast_command
from test_cli_diff import counts, unmatched
from test_diff import PROGRAM, REPLACED, changed

STEP = "module_0007.jit_step.after_optimizations.txt"
EVAL = "module_0009.jit_eval.after_optimizations.txt"
SMALL = (
    "HloModule jit_eval\n\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p)\n}\n"
)


def write(folder: Path, what: str | None, seed: int = 0) -> Path:
    """A dump directory with two programs, the first changed as `what` says."""
    folder.mkdir(parents=True)
    text = PROGRAM if what is None else changed(REPLACED[what][0])
    (folder / STEP).write_text(renamed(hlofast.loads(text), seed))
    before = STEP.replace("after", "before")
    (folder / before).write_text(PROGRAM)
    (folder / EVAL).write_text(SMALL)
    return folder


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Four hosts, of which the third compiled another step."""
    for number in range(4):
        what = "other replica groups" if number == 2 else None
        write(tmp_path / "dump" / f"host{number}", what, number)
    return tmp_path / "dump"


def test_the_host_that_compiled_something_else(hosts: Path) -> None:
    table = hlofast.fingerprints(hosts)
    assert len(table) == 8
    rows = table.to_pylist()
    odd = [row for row in rows if row["program"] == "jit_step" and row["hosts"] == 1]
    assert [row["host"] for row in odd] == ["host2"]
    assert all(row["is_common"] == (row["program"] == "jit_eval") for row in rows)
    assert {row["hosts"] for row in rows if row["program"] == "jit_eval"} == {4}
    assert not any(row["error"] for row in rows)
    step = next(row for row in rows if row["host"] == "host1" and row["program"] == "jit_step")
    assert step["fingerprint"] == hlofast.load(step["file"]).fingerprint()
    assert step["module_id"] == 7


def test_hosts_on_the_command_line(hosts: Path) -> None:
    done = hlofast_command("diff", hosts)
    assert done.returncode == 1
    assert "host0, host1, host3" in done.stdout
    assert "jit_eval" not in done.stdout
    (result,) = document("diff", hosts)["results"]
    assert {name: fact["value"] for name, fact in result["facts"].items()} == {
        "hosts": 4,
        "programs": 2,
        "differ": 1,
    }
    variants = result["tables"]["variants"]
    assert {row["program"] for row in variants} == {"jit_step"}
    assert [row["names"] for row in variants] == ["host0, host1, host3", "host2"]
    files = result["tables"]["files"]
    assert [row["host"] for row in files] == ["host0", "host1", "host3", "host2"]
    assert all(hlofast.load(row["file"]).fingerprint() == row["fingerprint"] for row in files)
    (hosts / "host2" / STEP).write_text(PROGRAM)
    assert hlofast_command("diff", hosts).returncode == 0
    assert document("diff", hosts)["results"][0]["tables"]["variants"] == []


def test_a_file_that_cannot_be_read_is_named(hosts: Path) -> None:
    broken = hosts / "host1" / EVAL
    broken.write_text("HloModule jit_eval\n\nENTRY e {")
    row = next(row for row in hlofast.fingerprints(hosts) if row["file"] == str(broken))
    assert row["error"]
    assert (row["fingerprint"], row["is_common"], row["hosts"]) == (None, False, 0)
    done = hlofast_command("diff", hosts)
    assert done.returncode == 3
    assert str(broken) in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(OSError, match="nowhere"):
        hlofast.fingerprints(hosts / "nowhere")
    assert hlofast_command("diff", hosts / "nowhere").returncode == 3


def test_directories_program_by_program(tmp_path: Path) -> None:
    monday = write(tmp_path / "monday", None)
    tuesday = write(tmp_path / "tuesday", "removed collective", seed=5)
    for path in list(tuesday.glob("module_0007*")):
        path.rename(tuesday / path.name.replace("0007", "0012"))
    printed = document("diff", monday, tuesday)
    *compared, whole = printed["results"]
    pairs = {pair["label"]: pair for pair in compared}
    # The last stage stands for a program; names of files say which program it is.
    assert pairs["module_0009.jit_eval"]["facts"]["differences"]["value"] == 0
    assert counts(pairs["module_0012.jit_step"]) == {"vanished": 1}
    (row,) = whole["tables"]["programs"]
    assert row["label_before"] == "module_0007.jit_step"
    assert row["label_after"] == "module_0012.jit_step"
    done = hlofast_command("diff", monday, tuesday)
    assert done.returncode == 1
    assert "jit_step" in done.stdout
    assert "jit_eval" not in done.stdout
    full = hlofast_command("diff", "--module", "jit_step", monday, tuesday)
    assert full.returncode == 1
    assert "all-reduce" in full.stdout
    assert hlofast_command("diff", "--module", "jit_eval", monday, tuesday).returncode == 0
    assert hlofast_command("diff", monday, monday).returncode == 0
    assert hlofast_command("diff", "--module", "none", monday, tuesday).returncode == 2
    assert hlofast_command("diff", monday, tuesday / EVAL).returncode == 2


def test_programs_of_one_name_are_paired_by_what_they_are(tmp_path: Path) -> None:
    texts = [SMALL.replace("negate", opcode) for opcode in ("negate", "sine", "abs")]
    for side, order in (("a", (0, 1, 2)), ("b", (2, 0, 1))):
        (tmp_path / side).mkdir()
        for number, which in enumerate(order):
            name = EVAL.replace("0009", f"{number + 1:04}")
            (tmp_path / side / name).write_text(texts[which])
    printed = document("diff", tmp_path / "a", tmp_path / "b")
    differences = [pair["facts"]["differences"]["value"] for pair in printed["results"][:-1]]
    assert differences == [0] * 3
    (tmp_path / "b" / EVAL.replace("0009", "0002")).unlink()
    printed = document("diff", tmp_path / "a", tmp_path / "b")
    differences = [pair["facts"]["differences"]["value"] for pair in printed["results"][:-1]]
    assert differences == [0] * 2
    assert unmatched(printed) == [("before", "jit_eval")]
    assert hlofast_command("diff", tmp_path / "a", tmp_path / "b").returncode == 1
