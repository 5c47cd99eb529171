"""`hlofast oom`, and the verbs that show messages too."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import hlofast
import message_texts
from conftest import FIXTURES
from shown import check_one_source, figures
from test_cli import document, hlofast_command, validated

GIVEN = FIXTURES / "messages" / "easydel166.txt"
DUMP = FIXTURES / "dump_folders" / "tpu"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    path.write_text(message_texts.NEW_WARNING + message_texts.TPU_2019)
    return path


def test_the_verb_prints_what_the_function_returns(log: Path) -> None:
    done = hlofast_command("oom", log)
    assert (done.returncode, done.stderr) == (0, "")
    check_one_source(hlofast.oom(log), done.stdout)
    (result,) = document("oom", log)["results"]
    assert figures(result)["cause"] == "padding"
    assert [row["bytes"] for row in result["tables"]["buffers"]] == [32 << 30, 512 << 20]


def test_standard_input(log: Path) -> None:
    done = hlofast_command("oom", "-", input=log.read_text())
    assert done.returncode == 0
    assert done.stdout.startswith("<stdin>\n")


def test_axes_of_a_mesh(log: Path) -> None:
    done = hlofast_command("oom", "--mesh", "x=4,y=2", log)
    assert "to: P(None, ('x', 'y'), None)" in done.stdout


def test_a_dump_directory_gives_live_ranges(tmp_path: Path) -> None:
    (path,) = DUMP.glob("*.after_optimizations.txt.gz")
    row = hlofast.load(path).memory().live.row(0)
    text = (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 12.00M of 8.00M hbm.\n"
        f"  1. Size: 2.00M\n     Shape: {row['shape']}\n"
        f"     XLA label: {row['name']} = copy(a)\n     Allocation type: HLO temp\n"
    )
    log = tmp_path / "job.log"
    log.write_text(text)
    for dump in (DUMP, path):
        (result,) = document("oom", log, dump)["results"]
        (own,) = result["tables"]["buffers"]
        assert (own["instruction"], own["at_peak"]) == (row["name"], "yes")
        assert figures(result)["joined"] == 1
        assert result["tables"]["live"]


@pytest.mark.parametrize("verb", ["verdict", "summary", "memory"])
def test_other_verbs_show_messages(verb: str, log: Path) -> None:
    done = hlofast_command(verb, log)
    assert (done.returncode, done.stderr) == (0, "")
    assert "HBM when the program was compiled: 41.74G used of 16.00G, 25.74G missing" in done.stdout
    assert "Warnings of the partitioner" in done.stdout or "involuntary" in done.stdout
    (result,) = validated(verb, hlofast_command(verb, "--json", log).stdout)["results"]
    assert figures(result)["cause"] == "padding"


def test_a_file_alone_is_recognised(log: Path) -> None:
    assert "41.74G used of 16.00G" in hlofast_command(log).stdout


def test_other_verbs_point_to_it(log: Path) -> None:
    done = hlofast_command("cost", log)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"hlofast oom {log}" in done.stderr


def test_a_log_with_a_module_shows_both(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    module = "HloModule m\n\nENTRY e {\n  ROOT p = f32[4]{0} parameter(0)\n}\n"
    path.write_text(message_texts.NEW_WARNING + module)
    messages, summary = document("summary", path)["results"]
    assert figures(messages)["warnings"] == 1
    assert summary["name"] == "m"


def test_a_report_alone_is_shown_by_memory() -> None:
    (path,) = DUMP.glob("*memory-usage-report.txt.gz")
    done = hlofast_command("oom", path)
    assert done.returncode == 0
    assert "9,988,096 B" in done.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"nothing\n", "no out-of-memory message"),
        (b"nothing\n", "give the log from the line with the error on"),
        (b"", "the input is empty: give the log"),
        (b"\n" * 100_000, "the input is empty: give the log"),
        (b"\n" * 100_000 + b"hello\n", "no out-of-memory message"),
        (b"HloModule m, is_scheduled=true\n", "this is a program; `hlofast memory` shows"),
        (gzip.compress(b"nothing\n", mtime=0)[:-4], "ends too early: copy the file again"),
    ],
)
def test_a_file_without_messages(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(content)
    done = hlofast_command("oom", path)
    assert (done.returncode, done.stdout) == (3, "")
    assert said in done.stderr
    assert json.loads(hlofast_command("oom", "--json", path).stdout)["errors"]


def test_wrong_arguments(tmp_path: Path, log: Path) -> None:
    cases: list[tuple[tuple[Any, ...], int, str]] = [
        ((tmp_path,), 3, "is a folder"),
        ((tmp_path / "none.log",), 3, "No such file"),
        ((log, tmp_path / "none"), 3, "No such file"),
        ((log, DUMP, "--module", "none"), 2, "no program 'none'"),
        ((log, log), 3, "no HLO module found"),
        (("--mesh", "x=", log), 2, "mesh"),
    ]
    for arguments, code, said in cases:
        done = hlofast_command("oom", *arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert said in done.stderr
