"""`hlofast.oom`: what ran out, what holds it, and what the partitioner warns of."""

import gzip
import html
import json
import lzma
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import hlofast
import message_texts
from conftest import FIXTURES
from hlofast._messages.amounts import amount, written
from hlofast._messages.classes import classify
from hlofast._messages.entries import Entry
from message_texts import ALL

GIVEN = FIXTURES / "messages"
GIB, MIB = 1 << 30, 1 << 20


def figures(messages: hlofast.Messages, number: int = 0) -> dict[str, str | None]:
    """The figures of a message as they are written."""
    return {
        f"{row['account']}: {row['figure']}" if row["account"] else row["figure"]: row["written"]
        for row in messages.tables["figures"]
        if row["message"] == number
    }


def facts(messages: hlofast.Messages) -> dict[str, Any]:
    return {fact.name: fact.value for fact in messages.facts}


def buffers(messages: hlofast.Messages) -> list[dict[str, Any]]:
    return messages.tables["buffers"].to_pylist()


class TestAmounts:
    @pytest.mark.parametrize(
        ("text", "size", "plus_minus"),
        [
            ("63.80G", 68_504_728_371, 5_368_710),
            ("560.00M", 560 * MIB, 5_243),
            ("384.0KiB", 384 << 10, 52),
            ("0B", 0, 0),
            ("6291456 bytes", 6_291_456, 0),
            ("134217728", 1 << 27, 0),
            ("5.00 GiB", 5 * GIB, 5_368_710),
            ("16G", 16 * GIB, GIB // 2),
        ],
    )
    def test_sizes_are_read_with_their_rounding(
        self, text: str, size: int, plus_minus: int
    ) -> None:
        own = amount(text)
        assert own is not None
        assert (own.bytes, own.plus_minus, own.text) == (size, plus_minus, text)

    @pytest.mark.parametrize("text", ["", "G", "1.2.3G", "9" * 21, "99999999999P", "1X"])
    def test_other_texts_are_not_sizes(self, text: str) -> None:
        assert amount(text) is None

    @given(some.integers(0, 2**53))
    def test_a_size_lies_within_the_rounding_of_its_text(self, size: int) -> None:
        own = amount(written(size))
        assert own is not None
        assert abs(own.bytes - size) <= own.plus_minus + 1


class TestGiven:
    def test_easydel(self) -> None:
        messages = hlofast.oom(GIVEN / "easydel166.txt")
        assert figures(messages) == {
            "used": "63.80G",
            "limit": "30.75G",
            "exceeded": "33.05G",
            "total": "65.05G",
            "output": "0B",
            "output_shared": "0B",
            "usage hbm: total": "65.05G",
            "usage hbm: reserved": "1.25G",
            "usage hbm: program": "63.80G",
            "usage hbm: arguments": "0B",
            "requirement hbm: total": "63.80G",
            "requirement hbm: global": "1.14M",
            "requirement hbm: scoped": "4.56M",
            "requirement hbm: HLO temp": "63.79G",
            "requirement hbm: HLO temp unpadded": "63.58G",
            "requirement hbm: HLO temp padded": "63.58G",
            "requirement hbm: HLO temp fragmentation": "210.89M",
            "requirement hbm: utilization": "100%",
            "requirement hbm: fragmentation": "0.3%",
        }
        (row,) = buffers(messages)
        assert (row["bytes"], row["unpadded"], row["padding"]) == (2 * GIB, 2 * GIB, 0)
        assert row["shape"] == "f32[32,4096,4096]{1,2,0:T(8,128)}"
        assert (row["name"], row["opcode"]) == ("fusion.1265.remat3", "fusion")
        assert row["source"].endswith("easydel/modules/attention_module.py:1059")
        assert row["op_name"].endswith("preferred_element_type=bfloat16]")
        assert row["scope"].endswith("self_attention/...qhd,...khd->...hqk/dot_general")
        assert (row["class"], row["phase"]) == ("attention_scores", "forward")
        assert messages.cause == "attention-scores"
        told = facts(messages)
        assert told["ran_out"] == (
            "HBM when the program was compiled: 63.80G used of 30.75G, 33.05G missing"
        )
        assert (told["memory_space"], told["stage"], told["kind"]) == (
            *("hbm", "compile"),
            "tpu-compile",
        )
        assert [(own.code, own.bytes) for own in messages.advice] == [
            ("attention-scores", 2 * GIB),
            ("temporaries", 35_487_167_283),
        ]

    def test_levanter(self) -> None:
        messages = hlofast.oom(GIVEN / "levanter424.txt")
        assert figures(messages) == {}
        rows = buffers(messages)
        assert [row["bytes"] for row in rows] == [560 * MIB] * 2
        assert [row["name"] for row in rows] == ["broadcast.1162", "broadcast.1161.clone"]
        assert [row["class"] for row in rows] == ["zero_stack"] * 2
        assert {row["phase"] for row in rows} == {"backward"}
        assert {row["source_line"] for row in rows} == {208}
        notes = {note.code for note in messages.notes}
        assert {"memory", "cut", "rounded"} <= notes
        assert {fact.name: fact.provenance for fact in messages.facts}["memory_space"] == (
            "assumed"
        )

    def test_pytorch_xla_padding(self) -> None:
        messages = hlofast.oom(GIVEN / "pytorchxla3041.txt")
        told = figures(messages)
        assert told["usage hbm: arguments"] == "7.04G"
        assert told["requirement hbm: HLO temp unpadded"] == "1.12G"
        assert told["requirement hbm: HLO temp padded"] == "1.67G"
        rows = buffers(messages)
        assert [row["expansion"] for row in rows] == [None, 2.0]
        assert [row["padding"] for row in rows] == [0, 285 * MIB]
        assert [row["class"] for row in rows] == ["rng", "temporary"]
        assert messages.cause == "arguments"
        padding = [own for own in messages.advice if own.code == "padding"]
        assert [own.bytes for own in padding] == [285 * MIB]
        assert "dimension 1 of size 1 takes 2" in padding[0].text

    def test_jax_gpu(self) -> None:
        messages = hlofast.oom(GIVEN / "jax13428.txt")
        assert figures(messages) == {
            "requested": "6291456 bytes",
            "buffer assignment: parameter allocation": "6.00MiB",
            "buffer assignment: constant allocation": "0B",
            "buffer assignment: maybe_live_out allocation": "6.00MiB",
            "buffer assignment: preallocated temp allocation": "0B",
            "buffer assignment: total allocation": "12.00MiB",
            "buffer assignment: total fragmentation": "0%",
        }
        first, second = buffers(messages)
        assert (first["bytes"], first["opcode"], first["shape"]) == (
            *(6 * MIB, "concatenate"),
            "f32[4096,128,3]",
        )
        assert (second["bytes"], second["class"]) == (384 << 10, "parameter")
        assert messages.cause == "allocator"

    def test_scoped_memory_of_the_documentation(self) -> None:
        messages = hlofast.oom(GIVEN / "xla_docs_e1001.txt")
        assert figures(messages) == {"requested": "134217728", "limit": "67108864"}
        (row,) = buffers(messages)
        kernel = "ragged_latency_optimized_all_gather_lhs_contracting_gated_matmul_kernel.2"
        assert (row["bytes"], row["name"], row["label"]) == (1 << 27, kernel, "#allocation25")
        assert row["tag"] == f"scoped memory for {kernel}"
        assert (messages.cause, facts(messages)["exceeded"]) == ("vmem", 1 << 26)
        assert "rounded" not in {note.code for note in messages.notes}


class TestEras:
    def test_2019(self) -> None:
        messages = hlofast.oom(message_texts.TPU_2019)
        told = figures(messages)
        assert (told["used"], told["limit"], told["exceeded"]) == ("41.74G", "16.00G", "25.74G")
        assert told["usage hbm: arguments"] == "unknown"
        assert told["requirement hbm: reserved"] == "4.0K"
        assert told["requirement hbm: HLO temp fragmentation"] == "293.84M"
        assert "HLO temp unpadded" not in " ".join(told)
        first, second = buffers(messages)
        assert (first["padding"], first["expansion"]) == (31 * GIB, 32.0)
        assert (second["class"], second["bytes"]) == ("residual", 512 * MIB)
        assert messages.cause == "padding"
        assert "dimension 2 of size 4 takes 128" in messages.advice[0].text

    @pytest.mark.parametrize(
        ("name", "kind", "space", "told", "cause"),
        [
            ("temporaries", "tpu-compile", "hbm",
             {"used": "46.03G", "limit": "15.75G"}, "temporaries"),
            ("loading", "tpu-load", "hbm",
             {"requested": "29.49G", "free": "147.64M", "reserved": "0B",
              "reservable": "147.64M"}, "allocator"),
            ("device_buffer", "tpu-run", "hbm",
             {"requested": "2.00G", "free": "1.50G"}, "allocator"),
            ("in_pieces", "tpu-run", "hbm",
             {"requested": "128.00M", "free": "287.93M", "largest_free": "87.93M"},
             "fragmentation"),
            ("scoped", "tpu-compile", "vmem",
             {"used": "36.25M", "limit": "32.00M", "exceeded": "4.25M"}, "vmem"),
            ("smem", "tpu-compile", "smem",
             {"used": "1.01M", "limit": "1.00M", "exceeded": "7.2K"}, "smem"),
            ("sparse", "tpu-compile", "hbm",
             {"tensorcore": "34.82G", "sparsecore": "174.10G", "limit": "95.74G"}, "temporaries"),
            ("host", "host", "host", {"requested": "8796093022208 bytes"}, "host"),
            ("driver", "gpu-run", "gpu",
             {"requested": "165425291480 bytes", "device": "165425291480 bytes",
              "device_rounded": "154.06GiB", "requested_rounded": "154.06GiB"}, "allocator"),
        ],
    )  # fmt: skip
    def test_short_messages(
        self, name: str, kind: str, space: str, told: dict[str, str], cause: str
    ) -> None:
        messages = hlofast.oom(ALL[name])
        assert figures(messages) == told
        assert (facts(messages)["kind"], facts(messages)["memory_space"]) == (kind, space)
        assert messages.cause == cause
        assert len(messages.messages) == 1
        assert messages.advice

    def test_a_program_that_is_loaded_is_named(self) -> None:
        assert facts(hlofast.oom(message_texts.LOADING))["program"] == "jit_step"

    def test_a_kernel_is_named_with_its_operation(self) -> None:
        messages = hlofast.oom(message_texts.SCOPED)
        (row,) = buffers(messages)
        assert (row["name"], row["opcode"]) == ("fwd.1", "custom-call")
        assert row["op_name"] == "jit(call)/jit(_fwd)/pallas_call"
        assert row["shape"] == "bf16[16384,6144]{1,0:T(8,128)(2,1)}"
        assert facts(messages)["error_code"] == "E1001"

    def test_a_gpu_tells_one_failure_in_layers(self) -> None:
        messages = hlofast.oom(message_texts.GPU)
        (own,) = messages.messages
        assert own.count == 2
        told = figures(messages)
        assert told["requested"] == "21474836480 bytes"
        assert told["rounded"] == "21474836736"
        assert (told["limit"], told["in_use"]) == ("22231108608", "1262522880")
        assert told["in_use_chunks"] == "1.18GiB"
        assert told["bins: 256 in use"] == "7.8KiB"
        assert told["buffer assignment: total allocation"] == "25.91GiB"
        assert own.allocator["NumAllocs"] == 2268042
        chunks = messages.tables["chunks"].to_pylist()
        assert [(row["chunks"], row["size"]) for row in chunks] == [
            (4, 256_000_000),
            (1, 238_522_880),
        ]
        first, second = buffers(messages)
        assert (first["class"], first["source_line"]) == ("logits", 175)
        assert second["class"] == "parameter"
        assert any(own.code == "logits" and own.bytes == first["bytes"] for own in messages.advice)

    def test_every_figure_of_a_table_is_in_the_text(self) -> None:
        for text in ALL.values():
            words = set(re.findall(r"[\d.]+", text))
            for row in hlofast.oom(text).tables["figures"]:
                number = re.match(r"[\d.]+", row["written"])
                is_share = row["percent"] is not None
                assert number is None or is_share or number[0] in words, row


CARRIERS = {
    "quoted": lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
    "coloured": lambda text: "".join(f"\x1b[31m{line}\x1b[0m\n" for line in text.splitlines()),
    "numbered": lambda text: "".join(
        f"{at:5d} | {line}\n" for at, line in enumerate(text.splitlines(), 1)
    ),
    "ranked": lambda text: "".join(f"[rank3]: {line}\n" for line in text.splitlines()),
    "glog": lambda text: "".join(
        f"E0504 09:05:40.719745    1578 xla_util.cc:76] {line}\n" for line in text.splitlines()
    ),
    "tsl": lambda text: "".join(
        f"2020-05-04 09:05:40.719745: E    1578 tensorflow/compiler/xla_util.cc:76] {line}\n"
        for line in text.splitlines()
    ),
    "kubectl": lambda text: "".join(
        f"2026-05-12T09:41:07.000000000Z stderr F {line}\n" for line in text.splitlines()
    ),
    "vllm": lambda text: "".join(
        f"(EngineCore pid=106339) ERROR 06-03 07:41:11 [core.py:1184] {line}\n"
        for line in text.splitlines()
    ),
    "json": lambda text: json.dumps({"log": text, "stream": "stderr"}) + "\n",
    "json lines": lambda text: "".join(
        json.dumps({"severity": "ERROR", "textPayload": line}) + "\n" for line in text.splitlines()
    ),
    "python": lambda text: f"XlaRuntimeError({text!r})\n",
    "html": lambda text: f"<pre><code>{html.escape(text)}</code></pre>",
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "log": lambda text: "step 1 loss 2.0\n" * 5000 + text + "step 2 loss 2.0\n" * 5000,
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", ["easydel166", "pytorchxla3041", "jax13428", "xla_docs_e1001"])
def test_what_carries_a_message_changes_nothing(carrier: str, name: str) -> None:
    text = (GIVEN / f"{name}.txt").read_text()
    plain, carried = hlofast.oom(text), hlofast.oom(CARRIERS[carrier](text))
    assert figures(carried) == figures(plain)
    assert [own.key for own in carried.messages[0].entries] == [
        own.key for own in plain.messages[0].entries
    ]
    assert carried.cause == plain.cause


@pytest.mark.parametrize("name", ["scoped", "loading", "new_warning", "warning_2025", "gpu"])
@pytest.mark.parametrize("carrier", ["json", "quoted", "tsl", "html"])
def test_other_messages_are_carried_too(carrier: str, name: str) -> None:
    plain, carried = hlofast.oom(ALL[name]), hlofast.oom(CARRIERS[carrier](ALL[name]))
    assert figures(carried) == figures(plain)
    assert [own.key for own in carried.warnings] == [own.key for own in plain.warnings]


def test_a_long_name_that_a_terminal_wrapped_is_joined() -> None:
    text = message_texts.TPU_2019.replace(
        "slicewise/cic_update/FloorMod", "slicewise/cic_up\ndate/X"
    )
    assert buffers(hlofast.oom(text))[0]["op_name"] == "slicewise/cic_update/X"


class TestSeveral:
    def test_equal_messages_count_once(self) -> None:
        text = (GIVEN / "easydel166.txt").read_text()
        messages = hlofast.oom("".join(f"host {n}\n{text}\n" for n in range(5)))
        (own,) = messages.messages
        assert own.count == 5
        assert len(own.lines) == 5
        assert facts(messages)["occurrences"] == 5

    def test_a_cut_repetition_is_the_same_message(self) -> None:
        text = (GIVEN / "easydel166.txt").read_text()
        messages = hlofast.oom(text[: text.index("Total hbm")] + "\n\n" + text)
        (own,) = messages.messages
        assert (own.count, len(own.entries)) == (2, 1)

    def test_different_attempts_are_different_messages(self) -> None:
        text = message_texts.TEMPORARIES
        messages = hlofast.oom(text + text.replace("46.03G", "23.10G") + text)
        assert [own.figures["used"].text for own in messages.messages] == ["46.03G", "23.10G"]
        assert [own.count for own in messages.messages] == [2, 1]

    def test_the_message_with_most_figures_comes_first(self) -> None:
        text = (GIVEN / "easydel166.txt").read_text()
        messages = hlofast.oom(message_texts.LOADING + text + message_texts.HOST)
        assert len(messages.messages) == 3
        assert messages.main is not None
        assert messages.main.figures["used"].text == "63.80G"

    @pytest.mark.parametrize(
        ("text", "space", "cause"),
        [
            ("RESOURCE_EXHAUSTED: Ran out of memory in memory space sflag", "sflag", "smem"),
            ("F x.cc:1] CUDA_ERROR_OUT_OF_MEMORY: out of memory", "gpu", "allocator"),
            ("OOM when allocating tensor with shape[4,8] and type float on GPU:0", "gpu",
             "temporaries"),
        ],
    )  # fmt: skip
    def test_a_sentence_without_figures_is_recognised(
        self, text: str, space: str, cause: str
    ) -> None:
        messages = hlofast.oom(f"{text}\n" * 2)
        (own,) = messages.messages
        assert (own.space, messages.cause) == (space, cause)
        assert figures(messages) == {}


class TestClasses:
    @pytest.mark.parametrize(
        ("op_name", "shape", "label", "phase", "expected"),
        [
            ("jit(f)/jvp(M)/attn/bqhd,bkhd->bhqk/dot_general", "f32[2,16,512,512]", "fusion.1 = fusion(a)",
             "forward", "attention_scores"),
            ("jit(f)/jvp(M)/attention/softmax", "bf16[8,16,2048,2048]", "fusion.1 = fusion(a)",
             "forward", "attention_scores"),
            ("jit(f)/jvp(M)/mlp/dot_general", "bf16[8,2048,2048]", "fusion.1 = fusion(a)", "forward",
             "temporary"),
            ("jit(f)/jvp(M)/lm_head/dot_general", "f32[8,2048,32064]", "fusion.1 = fusion(a)", "forward",
             "logits"),
            (None, "f32[4096,128256]", "fusion.1 = fusion(a)", None, "logits"),
            ("jit(f)/jvp(while)/body/dynamic_update_slice", "bf16[48,8,1024,512]",
             "dynamic-update-slice.1 = dynamic-update-slice(a, b)", "forward", "residual"),
            ("jit(f)/transpose(jvp(while))/body/dynamic_update_slice", "f32[48,1024,512]",
             "dynamic-update-slice.1 = dynamic-update-slice(a, b)", "backward", "gradient"),
            ("jit(f)/transpose(jvp(M))/scan/broadcast_in_dim", "f32[48,1024,512]",
             "broadcast.1 = broadcast(constant.1)", "backward", "zero_stack"),
            (None, "bf16[64,8,4096,8192]",
             'custom-call.1 = custom-call(), custom_call_target="AllocateBuffer"', None, "residual"),
            ("jit(f)/gather/sharding_constraint", "bf16[57344,4096]", "all-gather.2 = all-gather(a)",
             "forward", "gathered_weight"),
            ("jit(f)/optimizer/adam/mul", "f32[4096,4096]", "fusion.1 = fusion(a)", None,
             "optimizer_state"),
            ("jit(f)/dropout/threefry2x32", "u32[8,4096]", "fusion.1 = fusion(a)", "forward", "rng"),
            ("jit(f)/M/convert_element_type", "f32[4096,4096]", "fusion.1 = fusion(a)", "forward",
             "f32_copy"),
            (None, "bf16[8,4096,2048]", "copy.57 = copy(a)", None, "layout_copy"),
            (None, None, None, None, "unknown"),
        ],
    )  # fmt: skip
    def test_a_class_has_a_reason(
        self, op_name: str | None, shape: str | None, label: str | None, phase: str | None,
        expected: str,
    ) -> None:  # fmt: skip
        entry = Entry(1, 1, amount("1.00G"))
        entry.op_name, entry.shape = op_name, shape
        if label is not None:
            entry.fill_label(label)
        found, reason = classify(entry, phase, "hbm")
        assert found == expected
        assert reason
        assert found in hlofast.Messages.CLASSES

    def test_sums_by_class_are_those_of_the_list(self) -> None:
        messages = hlofast.oom(message_texts.TPU_2019)
        rows = messages.tables["classes"].to_pylist()
        assert sum(row["bytes"] for row in rows) == sum(row["bytes"] for row in buffers(messages))
        assert sum(row["share"] for row in rows) == pytest.approx(1)


class TestWarnings:
    @pytest.mark.parametrize("name", ["warning_2025", "new_warning"])
    def test_both_wordings_name_instruction_shardings_and_line(self, name: str) -> None:
        messages = hlofast.oom(ALL[name], mesh="x=4,y=2")
        (row,) = messages.tables["warnings"].to_pylist()
        assert (row["name"], row["opcode"]) == ("multiply.4", "multiply")
        assert row["shape"] == "f32[16,64,32]{2,1,0}"
        assert row["from_sharding"] == "{devices=[2,1,4]<=[4,2]T(1,0)}"
        assert row["to_sharding"] == "{devices=[1,8,1]<=[8]}"
        assert (row["from_spec"], row["to_spec"]) == (
            "P('y', None, 'x')",
            "P(None, ('x', 'y'), None)",
        )
        assert row["whole_shape"] == "f32[32,64,128]"
        assert row["bytes"] == 32 * 64 * 128 * 4
        assert (row["source"], row["op_name"]) == ("train.py:42", "jit(join)/residual/mul")
        assert row["constraint"] == (
            "jax.lax.with_sharding_constraint(x, P(None, ('x', 'y'), None))"
        )
        assert facts(messages) == {"kind": "partitioner", "warnings": 1}

    def test_the_oldest_wording_has_no_instruction(self) -> None:
        messages = hlofast.oom(message_texts.OLD_WARNING * 3)
        (row,) = messages.tables["warnings"].to_pylist()
        assert (row["name"], row["bytes"], row["count"], row["line"]) == (None, None, 3, 1)
        assert row["from_spec"] is None
        assert "mesh" in {note.code for note in messages.notes}

    def test_the_mesh_of_a_module_names_axes(self) -> None:
        module = hlofast.loads(
            "HloModule m, num_partitions=8\n\nENTRY e {\n"
            "  ROOT multiply.4 = f32[16,64,32]{2,1,0} parameter(0)\n}\n",
            mesh="x=4,y=2",
        )
        messages = hlofast.oom(message_texts.NEW_WARNING, module)
        (row,) = messages.tables["warnings"].to_pylist()
        assert row["to_spec"] == "P(None, ('x', 'y'), None)"
        assert row["instruction"] == 0

    def test_a_mesh_that_does_not_fit_gives_no_spec(self) -> None:
        (row,) = hlofast.oom(message_texts.NEW_WARNING, mesh="x=3").tables["warnings"].to_pylist()
        assert row["from_spec"] is None
        assert "S = {devices=[1,8,1]<=[8]}" in row["constraint"]

    def test_messages_and_warnings_of_one_log(self) -> None:
        messages = hlofast.oom(message_texts.NEW_WARNING + message_texts.TEMPORARIES)
        assert (len(messages.messages), len(messages.warnings)) == (1, 1)
        assert "Warnings of the partitioner" not in str(hlofast.oom(message_texts.TEMPORARIES))
        assert "involuntary-rematerialization: 1,048,576 B" in str(messages)


class TestMemoryFiles:
    @pytest.mark.parametrize("backend", ["tpu", "cpu"])
    @pytest.mark.parametrize("kind", ["memory-usage-report", "buffer-assignment"])
    def test_files_are_read_without_their_module(self, backend: str, kind: str) -> None:
        (path,) = (FIXTURES / "dump_folders" / backend).glob(f"*{kind}.txt.gz")
        messages = hlofast.oom(path)
        module = hlofast.load(
            str(path).replace(f"-{kind}", "").replace("after_optimizations", "after_optimizations")
        )
        file = module.memory().file(gzip.decompress(path.read_bytes()))
        assert facts(messages)["kind"] == kind
        assert facts(messages)["total"] == file.default_bytes
        assert facts(messages)["memory_space"] == {"tpu": "hbm", "cpu": "host"}[backend]
        assert sorted(row["bytes"] for row in buffers(messages)) == sorted(
            file.table.values("bytes")
        )
        assert "ran_out" not in facts(messages)


@pytest.fixture(scope="module")
def module() -> hlofast.Module:
    """An optimised train step of a TPU."""
    (path,) = (FIXTURES / "dump_folders" / "tpu").glob("*.after_optimizations.txt.gz")
    return hlofast.load(path)


@pytest.fixture(scope="module")
def listed(module: hlofast.Module) -> str:
    """The message that a compiler would print for the values live at the module's peak."""
    lines = ["Ran out of memory in memory space hbm. Used 12.00M of 8.00M hbm.", ""]
    for number, row in enumerate(list(module.memory().live)[:8], 1):
        lines += [
            f"  {number}. Size: {written(row['bytes'])}",
            f"     Shape: {row['shape']}",
            f"     Unpadded size: {written(row['bytes'])}",
            f"     XLA label: {row['name']} = {row['opcode']}(a.1)",
            "     Allocation type: HLO temp",
            "     ==========================",
        ]
    return "\n".join(lines)


class TestModule:
    def test_allocations_are_joined_to_live_ranges(
        self, module: hlofast.Module, listed: str
    ) -> None:
        messages = hlofast.oom(listed, module)
        live = list(module.memory().live)[:8]
        rows = buffers(messages)
        assert [row["instruction"] for row in rows] == [row["instruction"] for row in live]
        assert [row["first_step"] for row in rows] == [row["first_step"] for row in live]
        assert [row["module_class"] for row in rows] == [row["class"] for row in live]
        assert {row["at_peak"] for row in rows} == {"yes"}
        told = facts(messages)
        assert told["joined"] == 8
        assert told["live_peak"] == module.memory().live_peak
        assert told["allocated_in_hbm"] == module.memory().allocated_in_hbm
        assert messages.tables["live"].values("name") == module.memory().live.values("name")

    def test_allocations_of_another_program_are_not_joined(self, module: hlofast.Module) -> None:
        messages = hlofast.oom(GIVEN / "easydel166.txt", module)
        assert facts(messages)["joined"] == 0
        assert buffers(messages)[0]["instruction"] is None

    def test_a_plan_is_given_where_it_lowers_the_peak(self) -> None:
        module = hlofast.load(FIXTURES / "sharded" / "mlp_scan_saved.txt.gz")
        plan = module.remat()
        assert plan.peak_after < plan.peak
        messages = hlofast.oom(
            "Ran out of memory in memory space hbm. Used 3.00G of 1.00M hbm", module
        )
        (own,) = (own for own in messages.advice if "hlofast remat --plan" in own.text)
        assert own.bytes == plan.peak - module.remat(hbm=MIB).peak_after


class TestFiles:
    @pytest.mark.parametrize(
        ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)]
    )
    def test_files_may_be_compressed(self, tmp_path: Path, suffix: str, pack: Any) -> None:
        path = tmp_path / f"job.log{suffix}"
        path.write_bytes(pack(message_texts.TPU_2019.encode()))
        assert hlofast.oom(str(path)).cause == "padding"
        assert hlofast.oom(path).title == str(path)

    def test_a_text_without_messages_is_an_error(self) -> None:
        for text in ("hello\nworld", b"\x00\xff", "Size: 3"):
            with pytest.raises(hlofast.ParseError, match="no out-of-memory message"):
                hlofast.oom(text)
        with pytest.raises(hlofast.ParseError, match="the input is empty"):
            hlofast.oom("")

    def test_a_missing_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="No such file"):
            hlofast.oom(tmp_path / "none.log")
        with pytest.raises(OSError, match="No such file"):
            hlofast.oom("none.log")

    def test_an_unknown_context_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="mesh"):
            hlofast.oom(message_texts.HOST, mesh="x=")
