"""Messages inside logs of several processes, JSON documents and loggers' prefixes."""

import io
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from hlofast._messages.api import _zstd, try_stream
from hlofast._messages.clean import bare

MESSAGES = FIXTURES / "messages"
CACHE = (MESSAGES / "cache_v4_0024.txt").read_text()
SCORES = (MESSAGES / "scores_v5e_0034.txt").read_text()


def told(messages: hlofast.Messages) -> dict[str, Any]:
    """All that a reader takes from a text, but for lines and counts."""
    main = messages.main
    assert main is not None
    return {
        "figures": {name: own.bytes for name, own in main.all_figures()},
        "buffers": [own.key for own in main.entries],
        "space": main.space,
        "cause": messages.cause,
    }


def turns(texts: list[str], most: int) -> list[tuple[int, str]]:
    """Lines of several processes, each a few at a time."""
    waiting = [text.splitlines() for text in texts]
    rows = []
    step = 0
    while any(waiting):
        for number, lines in enumerate(waiting):
            step += 1
            for _ in range(1 + (step * 7 + number) % most):
                if lines:
                    rows.append((number, lines.pop(0)))
    return rows


PREFIXES = {
    "compose": "trainer-{}  | ",
    "srun": "{}: ",
    "pdsh": "tpu-vm-{}: ",
    "mpirun": "[1,{}]<stderr>:",
    "torchrun": "[rank{}]: ",
    "ray": "(train pid=81{}, ip=10.0.0.{}) ",
    "kubectl": "[pod/trainer-0-{}/jax] ",
    "kubectl with times": "[pod/trainer-0-{}/jax] 2026-05-12T09:41:07.123456789Z ",
    "journal": "2026-05-12T09:41:07+0200 host{} python[41{}]: ",
    "syslog": "May  2 09:41:07 host{} train.sh[41{}]: ",
}


class TestProcesses:
    @pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
    def test_interleaved_lines_are_sorted_by_process(self, prefix: str) -> None:
        rows = turns([SCORES] * 4, 5)
        log = "\n".join(prefix.format(number, number) + line for number, line in rows)
        messages = hlofast.oom(log)
        assert told(messages) == told(hlofast.oom(SCORES))
        assert messages.main is not None
        assert (len(messages.messages), messages.main.count) == (1, 4)

    def test_different_messages_of_two_processes_stay_apart(self) -> None:
        rows = turns([SCORES, CACHE], 3)
        log = "\n".join(f"worker-{number} | {line}" for number, line in rows)
        found = hlofast.oom(log).messages
        assert len(found) == 2
        expected = [hlofast.oom(SCORES).main, hlofast.oom(CACHE).main]
        for own, alone in zip(found, expected, strict=True):
            assert alone is not None
            assert own.figures == alone.figures
            assert [entry.key for entry in own.entries] == [entry.key for entry in alone.entries]

    def test_lines_without_a_prefix_follow_the_line_before(self) -> None:
        first, rest = SCORES.rstrip("\n").split("\n", 1)
        log = f"[rank0]: {first}\n{rest}\n[rank1]: {first}\n{rest}\n"
        assert told(hlofast.oom(log)) == told(hlofast.oom(SCORES))

    def test_line_numbers_are_not_processes(self) -> None:
        log = "\n".join(f"{number}: {line}" for number, line in enumerate(SCORES.splitlines(), 1))
        assert told(hlofast.oom(log)) == told(hlofast.oom(SCORES))

    def test_lines_keep_their_place(self) -> None:
        log = "".join(f"tpu-vm-{number}: {line}\n" for number, line in turns([CACHE] * 2, 4))
        messages = hlofast.oom("nothing\n" * 10 + log)
        assert messages.main is not None
        for line in messages.main.lines:
            assert "RESOURCE_EXHAUSTED" in ("nothing\n" * 10 + log).split("\n")[line - 1]

    @pytest.mark.parametrize(
        "line",
        [
            "E1000: CompileTimeHbmOom:",
            "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom:",
            "    reserved        258.00M",
            "  1. Size: 6.00G",
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes.",
        ],
    )
    def test_messages_are_not_taken_for_prefixes(self, line: str) -> None:
        assert bare(line) == line

    @pytest.mark.parametrize(
        "prefix",
        [
            "2026-05-12 09:41:07.123 | ERROR    | __main__:main:12 -",
            "2026-05-12 09:41:07,123 - trainer.loop - ERROR -",
            "[2026-05-12, 09:41:07 UTC] {subprocess.py:93} INFO -",
            "train\tRun step\t2026-05-12T09:41:07.1234567Z",
            "ERROR:root:",
            "May 12 09:41:07",
        ],
    )
    def test_prefixes_of_loggers_are_removed(self, prefix: str) -> None:
        assert bare(f"{prefix}     reserved        258.00M").strip() == "reserved        258.00M"

    def test_many_prefixes_take_linear_time(self) -> None:
        line = b" " * 399 + b"a-b.c-1 1: [1," + b"\n"
        start = time.perf_counter()
        try_stream(io.BytesIO(b"RESOURCE_EXHAUSTED\n" + line * 20_000))
        assert time.perf_counter() - start < 20


class TestJson:
    def test_a_record_whose_exception_has_a_field_of_its_own(self) -> None:
        record = {"level": "ERROR", "msg": "step failed", "error": {"stack": SCORES}}
        assert told(hlofast.oom(json.dumps(record))) == told(hlofast.oom(SCORES))

    @pytest.mark.parametrize("indent", [None, 1, 4])
    def test_an_export_of_records(self, indent: int | None) -> None:
        records = [
            {"insertId": f"x{number}", "severity": "ERROR", "textPayload": line}
            for number, line in enumerate(SCORES.splitlines())
        ]
        for document in (records, {"entries": records}):
            log = json.dumps(document, indent=indent)
            assert told(hlofast.oom(log)) == told(hlofast.oom(SCORES))

    def test_a_notebook(self) -> None:
        cell = {"cell_type": "code", "outputs": [{"text": SCORES.splitlines(keepends=True)}]}
        log = json.dumps({"cells": [cell], "metadata": {}}, indent=1)
        assert told(hlofast.oom(log)) == told(hlofast.oom(SCORES))

    def test_records_of_two_pods(self) -> None:
        log = "\n".join(
            json.dumps({"message": line, "kubernetes": {"pod_name": f"trainer-{number}"}})
            for number, line in turns([SCORES] * 2, 4)
        )
        messages = hlofast.oom(log)
        assert told(messages) == told(hlofast.oom(SCORES))
        assert messages.main is not None
        assert messages.main.count == 2

    @pytest.mark.parametrize("end", [200, 3_000, 9_000])
    def test_a_document_that_is_cut_off(self, end: int) -> None:
        log = json.dumps([{"textPayload": line} for line in SCORES.splitlines()])[:-end]
        messages = hlofast.oom(log)
        assert messages.main is not None
        assert messages.main.space == "hbm"

    def test_deep_and_wide_documents(self) -> None:
        for log in (
            '{"a":' * 50_000 + '"RESOURCE_EXHAUSTED"',
            '{"msg": "RESOURCE_EXHAUSTED", "a": [' + "0," * 200_000 + "0]}",
            '[{"msg": "RESOURCE_EXHAUSTED"}' + ', {"x": []}' * 100_000 + "]",
        ):
            try_stream(io.BytesIO(log.encode()))


class TestWordings:
    def test_scratchpads_of_the_sparsecore(self) -> None:
        words = (
            "error: 'memref.alloca' op E3000: CompileTimeSparseCoreAllocationFailure: current "
            "allocation offset upper bound (917759 words) exceeds the legitimate user allocatable "
            "offset upper bound (65535 words) in memory space {} when allocating 458752 words."
        )
        spaces = {0: "smem", 201: "tilespmem", 202: "spmem", 203: "hbm", 204: "sflag"}
        for number, space in spaces.items():
            messages = hlofast.oom(words.format(number))
            assert messages.main is not None
            assert (messages.main.space, messages.main.code) == (space, "E3000")
            assert messages.main.figures["requested"].bytes == 4 * 458_752
            assert messages.main.figures["limit"].bytes == 4 * 65_535
            assert any("SparseCore" in own.text for own in messages.advice)

    def test_no_replica_count_fits_the_scratchpad(self) -> None:
        messages = hlofast.oom(
            "RESOURCE_EXHAUSTED: No viable logical replica count for the embedding table with "
            "metadata: max_nz_per_row = 1, feature_width = 8, sample_count = 204800 (last tried "
            "split factor for vector splitting = 1, fixed_size_allocation_bytes = 410880, "
            "row_dependent_size_allocation_bytes = 1696224, total_spmem_size_bytes = 524288) ..."
        )
        assert messages.main is not None
        figures = {name: own.bytes for name, own in messages.main.figures.items()}
        assert figures == {"fixed": 410_880, "row_dependent": 1_696_224, "limit": 524_288}
        assert messages.cause == "vmem"

    def test_a_missed_target_of_rematerialisation_alone(self) -> None:
        messages = hlofast.oom(
            "W external/xla/xla/service/hlo_rematerialization.cc:2941] Can't reduce memory use "
            "below 22.27GiB (23917347918 bytes) by rematerialization; only reduced to 37.90GiB "
            "(40693879420 bytes), down from 38.20GiB (41022266148 bytes) originally"
        )
        assert messages.main is not None
        assert messages.main.figures["rematerialized_from"].bytes == 41_022_266_148
        assert messages.main.exceeded == 40_693_879_420 - 23_917_347_918
        assert messages.cause == "temporaries"

    @pytest.mark.parametrize(
        ("gaps", "word"), [("8.00G", "residuals"), ("20.14G", "fragmentation")]
    )
    def test_gaps_are_the_cause_if_the_program_fits_without_them(
        self, gaps: str, word: str
    ) -> None:
        text = (MESSAGES / "second" / "routed_v5e_0023.txt").read_text()
        assert "(8.00G)" in text
        assert hlofast.oom(text.replace("(8.00G)", f"({gaps})")).cause == word

    def test_tiles_of_one_allocation(self) -> None:
        text = (
            "RESOURCE_EXHAUSTED: Allocation (size={}) would exceed memory (size=17179869184) :: "
            "#allocation5 [shape = '{}', space=hbm, size = 0xffffffffffffffff, tag = 'output of "
            "a.0@{{}}'] :: <no-hlo-instruction>"
        )
        padded = hlofast.oom(text.format(18_432_000_000, "f32[36000000,1]{1,0:T(8,128)}"))
        assert padded.cause == "padding"
        assert padded.table("buffers").to_pylist()[0]["padding"] == 18_432_000_000 - 144_000_000
        full = hlofast.oom(text.format(18_432_000_000, "f32[36000000,128]{1,0:T(8,128)}"))
        assert full.cause == "temporaries"

    def test_integers_are_not_scores_of_a_vocabulary(self) -> None:
        text = (
            "RESOURCE_EXHAUSTED: Allocation (size=68719476736) would exceed memory "
            "(size=34359738368) :: #allocation11 [shape = '{}[131072,131072]{{0,1:T(8,128)}}', "
            "space=hbm, size = 0x0, tag = 'output of a@{{}}'] :: <no-hlo-instruction>"
        )
        assert hlofast.oom(text.format("s32")).cause == "temporaries"
        assert hlofast.oom(text.format("f32")).cause == "logits"


class TestZstd:
    @pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed")
    def test_zstd_is_read_or_refused_with_the_remedy(self, tmp_path: Path) -> None:
        packed = tmp_path / "job.log.zst"
        (tmp_path / "job.log").write_text(CACHE)
        subprocess.run(["zstd", "-q", tmp_path / "job.log", "-o", packed], check=True)
        if _zstd() is None:
            with pytest.raises(hlofast.ParseError, match="zstd -dc"):
                hlofast.oom(packed)
        else:
            assert told(hlofast.oom(packed)) == told(hlofast.oom(CACHE))
        command = [sys.executable, "-m", "hlofast", "oom", str(packed)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode in (0, 3)
        assert "internal error" not in result.stderr
