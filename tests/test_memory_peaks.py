"""Memory of TPU programs against what XLA told when it compiled them: `fixtures/peaks`, `sharded`.

HBM, host memory and fast memory are three figures, and only HBM is compared with HBM.
"""

import gzip
import json
import lzma
from pathlib import Path

import pytest

import hlofast
from conftest import FIXTURES
from shown import codes, figures
from test_benches import bench_module
from test_cli import document, hlofast_command

memory_accuracy = bench_module("memory_accuracy")
PROGRAMS = {record["name"]: record for record in memory_accuracy.programs()}
pytestmark = pytest.mark.filterwarnings("ignore:some arrays have no layout")
MEMORIES = ("hbm_peak", "fast_peak", "host_peak")

# A value of 64 MiB waits in host memory while 4 MiB are in use in HBM.
OFFLOADED = """\
HloModule offloaded, is_scheduled=true

ENTRY e {
  p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  a = f32[16,1024,1024]{2,1,0:T(8,128)S(5)} broadcast(p), dimensions={1,2}
  b = f32[1024,1024]{1,0:T(8,128)} negate(p)
  c = f32[16]{0:T(128)S(5)} slice-of(a, b)
  ROOT r = f32[1024,1024]{1,0:T(8,128)} exponential(b)
}
""".replace("f32[16]{0:T(128)S(5)} slice-of(a, b)", "f32[1]{0:T(128)S(5)} custom-call(a, b), "
            'custom_call_target="Keep"')  # fmt: skip


def program(name: str) -> hlofast.Module:
    """A program of the fixtures on the chip that it was compiled for."""
    chip = PROGRAMS[name]["chips"].split(":")[0]
    module = hlofast.loads(memory_accuracy.text_of(name))
    return module.with_context(device=f"tpu-{chip}")


def written(folder: Path, name: str, beside: bool = False) -> Path:
    """The text of a program as a file of a dump folder, with its buffer assignment if `beside`."""
    path = folder / f"{name}.after_optimizations.txt"
    path.write_bytes(memory_accuracy.text_of(name))
    if beside:
        file = memory_accuracy.FIXTURES / f"{name}.buffers.txt.xz"
        near = path.with_name(path.name.removesuffix(".txt") + "-buffer-assignment.txt")
        near.write_bytes(lzma.decompress(file.read_bytes()))
    return path


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return [memory_accuracy.row_of(record) for record in PROGRAMS.values()]


class TestAccuracy:
    @pytest.mark.parametrize("half", ["all", "fitted", "held out"])
    def test_measures(self, rows: list[dict], half: str) -> None:
        measured = memory_accuracy.halves(rows)[half]
        assert measured["peak_median"] <= 1e-5
        assert measured["peak_within_0.1_percent"] >= 0.95
        assert measured["peak_worst"] <= 0.01
        assert measured["exact_parts"] == 1
        assert measured["allocated_median"] <= 1e-4
        assert measured["verdicts_right"] >= 0.9

    def test_numbers_of_programs(self, rows: list[dict]) -> None:
        assert len(rows) >= 60
        assert sum(row["is_near_limit"] for row in rows) >= 20
        chips = {row["chip"] for row in rows}
        assert chips == {"v4", "v5e", "v5p", "v6e"}
        assert 25 <= sum(row["held_out"] for row in rows) <= len(rows) - 25


def test_sharded_programs() -> None:
    lines = gzip.decompress((FIXTURES / "sharded" / "truth.jsonl.gz").read_bytes()).splitlines()
    errors = []
    for record in map(json.loads, lines):
        truth = record.get("memory_analysis")
        if truth is None or not record["chips"].startswith("v"):
            continue
        module = hlofast.load(FIXTURES / "sharded" / f"{record['name']}.txt.gz")
        memory = module.memory(device="tpu-" + record["chips"].split(":")[0])
        for part in memory_accuracy.PARTS:
            key = memory_accuracy.key(part)
            assert memory.xla[key] == truth[key], (record["name"], part)
        errors.append(abs(memory.xla_peak / truth["peak_memory_in_bytes"] - 1))
    assert len(errors) >= 20
    errors.sort()
    assert errors[len(errors) // 2] <= 1e-5
    assert errors[-1] <= 0.01


class TestOnlyHbmIsComparedWithHbm:
    @pytest.mark.parametrize(
        ("name", "device"), [("offload_v5e_16", "tpu-v5e"), ("offload_v6e_256", "tpu-v6e")]
    )
    def test_what_is_offloaded(self, name: str, device: str) -> None:
        module = hlofast.load(FIXTURES / "sharded" / f"{name}.txt.gz")
        module = module.with_context(device=device)
        memory = module.memory()
        assert memory.host_peak == memory.xla["host_temp_size_in_bytes"] > 2**30
        assert memory.allocated_in_hbm is not None
        assert (
            memory.hbm_peak
            <= memory.allocated_in_hbm
            < hlofast.devices.get(device).value("hbm_usable_bytes")
        )
        facts = {fact.name: fact.value for fact in memory.facts}
        assert facts["fits"] is True
        codes = [statement.code for statement in module.verdict().statements]
        assert "does-not-fit" not in codes

    def test_a_host_heap_above_hbm(self) -> None:
        """XLA's peak is larger than the budget; what lies in HBM is not."""
        module = hlofast.loads(OFFLOADED).with_context(hbm="32MiB")
        memory = module.memory()
        assert memory.xla["heap_memory_space"] == 5
        assert memory.xla_peak > 64 * 2**20 > memory.host_peak - 2**16
        assert memory.host_peak >= 64 * 2**20
        facts = {fact.name: fact.value for fact in memory.facts}
        assert (facts["fits"], facts["hbm"]) == (True, 32 * 2**20)
        assert facts["hbm_left"] == facts["hbm"] - facts["allocated_in_hbm"] > 0
        assert "other-heap" in [note.code for note in memory.notes]
        verdict = module.verdict()
        shown = {fact.name: fact.value for fact in verdict.facts}
        assert shown["peak"] == memory.allocated_in_hbm < 32 * 2**20
        assert shown["host_peak"] == memory.host_peak
        assert "does-not-fit" not in [statement.code for statement in verdict.statements]
        assert module.remat("32MiB").fits is True

    def test_a_fast_heap_above_that_of_hbm(self) -> None:
        """In decode steps the largest heap is often the one in fast memory."""
        memory = program("cached_short_v6e").memory()
        assert memory.xla["heap_memory_space"] == 1
        assert memory.fast_peak == memory.xla["heap_size_in_bytes"]
        assert memory.hbm_peak < memory.xla_peak

    def test_common_memory_of_v4(self) -> None:
        memory = program("mlp_sgd_v4").memory()
        assert memory.xla["heap_memory_space"] == 3
        assert memory.fast_peak == memory.xla["heap_size_in_bytes"] > 2**25
        assert memory.hbm_peak < memory.xla_peak


class TestWhatDoesNotFit:
    NAME = "limit_embedding_v5e_6"

    def test_facts_and_verdict(self) -> None:
        assert "refused" in PROGRAMS[self.NAME]
        module = program(self.NAME)
        facts = {fact.name: fact for fact in module.memory().facts}
        assert facts["fits"].value is False
        assert facts["hbm_left"].value < 0
        assert facts["hbm"].provenance == "exact"
        assert facts["fragmentation"].provenance == "modelled"
        (statement,) = (s for s in module.verdict().statements if s.code == "does-not-fit")
        assert "over" in statement.stake

    def test_command(self, tmp_path: Path) -> None:
        path = written(tmp_path, self.NAME)
        (result,) = document("memory", path, "--device", "tpu-v5e")["results"]
        values = figures(result)
        assert values["fits"] is False
        assert all(values[name] is not None for name in MEMORIES)
        (result,) = document("memory", path, "--hbm", "95GiB")["results"]
        assert figures(result)["fits"] is True
        (result,) = document("memory", path)["results"]
        assert "fits" not in figures(result)
        assert "allocated_in_hbm" in figures(result)
        assert "fits" in hlofast_command("memory", path, "--device", "tpu-v5e").stdout

    def test_fragmentation_decides(self) -> None:
        """Live values alone would fit; placed in a heap with gaps they do not."""
        memory = program("mlp_dots_v5e").memory()
        allocated, gaps = memory.allocated_in_hbm, memory.fragmentation
        assert allocated is not None
        assert gaps is not None
        assert gaps > 2**20
        tight = program("mlp_dots_v5e").with_context(hbm=allocated - gaps // 2)
        assert memory.hbm_peak < allocated - gaps // 2
        facts = {fact.name: fact.value for fact in tight.memory().facts}
        assert facts["fits"] is False


class TestWhatWasAllocated:
    NAME = "decoder_undonated_v5e"

    def test_command(self, tmp_path: Path) -> None:
        path = written(tmp_path, self.NAME, beside=True)
        (result,) = document("memory", path, "--device", "tpu-v5e")["results"]
        values = figures(result)
        assigned = PROGRAMS[self.NAME]["assigned"]
        assert values["allocated_in_hbm"] == assigned["0"]
        assert values["allocated"] == sum(assigned.values())
        assert values["fragmentation"] == assigned["0"] - values["hbm_peak"]
        assert next(iter(values)) == "allocated_in_hbm"
        assert "fragmentation" not in codes(result)

    def test_everywhere(self, tmp_path: Path) -> None:
        module = hlofast.load(written(tmp_path, self.NAME, beside=True))
        module = module.with_context(device="tpu-v5e")
        assigned = PROGRAMS[self.NAME]["assigned"]["0"]
        assert module.memory().needed == (assigned, "exact")
        shown = {fact.name: fact for fact in module.verdict().facts}
        assert (shown["peak"].value, shown["peak"].provenance) == (assigned, "exact")

    def test_file_of_another_module(self, tmp_path: Path) -> None:
        path = written(tmp_path, self.NAME, beside=True)
        path.write_bytes(memory_accuracy.text_of("mlp_sgd_v4"))
        memory = hlofast.load(path).memory()
        assert memory.allocated is None
        (note,) = (note for note in memory.notes if note.code == "unusable-file")
        assert "another module" in str(note)

    def test_usage_report(self, tmp_path: Path) -> None:
        folder = FIXTURES / "dump_folders" / "tpu"
        name = "module_0000.jit_train_step.cl_933746096.after_optimizations"
        path = tmp_path / f"{name}.txt"
        for end in (".txt", "-memory-usage-report.txt"):
            packed = folder / f"{name}{end}.gz"
            (tmp_path / f"{name}{end}").write_bytes(gzip.decompress(packed.read_bytes()))
        (result,) = document("memory", path)["results"]
        values = figures(result)
        assert values["allocated_in_hbm"] == 9988096
        assert values["allocation_file"].endswith("-memory-usage-report.txt")


def test_files_of_programs_with_asynchronous_slices() -> None:
    """The file names the slice inside of `slice-start`, the text does not."""
    files = sorted(memory_accuracy.FIXTURES.glob("*.buffers.txt.xz"))
    assert len(files) >= 30
    for path in files:
        name = path.name.removesuffix(".buffers.txt.xz")
        memory = hlofast.loads(memory_accuracy.text_of(name)).memory()
        file = memory.file(lzma.decompress(path.read_bytes()))
        assert file.default_bytes == PROGRAMS[name]["assigned"]["0"]
        assert file.total_bytes == sum(PROGRAMS[name]["assigned"].values())


def test_account_has_all_of_memory_analysis() -> None:
    memory = program("host_state_v6e").memory()
    (section,) = (section for section in memory.sections() if section.name == "xla")
    rows = {row["part"]: row for row in section.table.to_pylist()}
    truth = PROGRAMS["host_state_v6e"]["memory_analysis"]
    for name, value in truth.items():
        part = name.removesuffix("_in_bytes").removesuffix("_size").removesuffix("_memory")
        assert rows[part]["made_of"]
        if "generated_code" in part:
            assert rows[part]["bytes"] is None
        elif part == "temp":
            assert abs(rows[part]["bytes"] - value) <= 0.01 * value
        else:
            assert rows[part]["bytes"] == value, part


def test_megacore_of_v4() -> None:
    facts = {fact.name: fact for fact in program("limit_lstm_v4_2").memory().facts}
    assert (facts["hbm"].value, facts["hbm"].provenance) == (30.75 * 2**30, "exact")


def test_scan(tmp_path: Path) -> None:
    names = ("host_state_v6e", "decoder_undonated_v5e")
    for name in names:
        written(tmp_path, name, beside=name == names[1])
    rows = hlofast.scan(tmp_path).tables["modules"].to_pylist()
    assert len(rows) == 2
    for row in rows:
        name = next(name for name in names if name in row["path"])
        memory = hlofast.loads(memory_accuracy.text_of(name)).memory()
        assert [row[peak] for peak in MEMORIES] == [getattr(memory, peak) for peak in MEMORIES]
        is_beside = name == names[1]
        assigned = PROGRAMS[name]["assigned"]["0"] if is_beside else None
        assert row["allocated_hbm_bytes"] == assigned
