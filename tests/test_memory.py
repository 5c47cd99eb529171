"""`Module.memory` and `hlofast memory`: peaks, live values, XLA's files, bad input."""

import gzip
import json
import warnings
from pathlib import Path

import numpy
import pytest

import hlofast
from conftest import FIXTURES, Seeds
from shown import check_one_source, codes, figures
from test_cli import document, hlofast_command

LIVE_RANGES = FIXTURES / "live_ranges"
CHAIN = """\
HloModule m, is_scheduled=true

ENTRY e {
  p = f32[100] parameter(0), metadata={op_name="params['w']"}
  c = f32[] constant(2)
  a = f32[100] negate(p), metadata={op_name="jit(f)/jvp(M)/neg" source_file="m.py" source_line=3}
  b = f32[100] exponential(a), metadata={op_name="jit(f)/jvp(M)/exp"}
  d = f32[50] slice(b), slice={[0:50]}
  ROOT r = f32[50] broadcast(c), dimensions={}
}
"""


def unpacked(program: str, file: str) -> str:
    return gzip.decompress((LIVE_RANGES / program / f"{file}.txt.gz").read_bytes()).decode()


def texts(memory: hlofast.Memory) -> list[str]:
    return list(map(str, memory.notes))


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.txt"
    path.write_text(CHAIN)
    return path


def test_seed_with_known_figures(seeds: Seeds) -> None:
    module = hlofast.load(seeds.path("003"))
    logical = {"sizes": "logical", "constants": "program", "space": "all"}
    values = module.memory(rule="values", **logical)
    assert (values.live_peak, values.at and values.at.name) == (23_072_812, "all-reduce")
    in_place = module.memory(**logical)
    assert (in_place.live_peak, in_place.at and in_place.at.name) == (18_878_510, "fusion")
    assert module.memory(rule="values").live_peak == 23_073_792
    gathered = [row for row in in_place.live if row["class"] == "gathered_weight"]
    assert sorted(row["name"] for row in gathered) == ["all-gather", "all-gather.1"]


def test_figures_and_tables() -> None:
    memory = hlofast.loads(CHAIN).memory()
    assert memory.live_peak == 1004
    assert memory.at is not None
    assert memory.at.name == "d"
    assert memory.timeline.tolist() == [400, 404, 804, 804, 1004, 604]
    assert memory.timeline.dtype == numpy.int64
    assert not memory.timeline.flags.writeable
    steps = memory.steps()
    assert steps["bytes"].tolist() == memory.timeline.tolist()
    assert [memory._module[int(row)].name for row in steps["instruction"]] == list("pcabdr")
    live = memory.live.to_pylist()
    assert [(row["name"], row["bytes"], row["class"]) for row in live] == [
        ("p", 400, "parameter"),
        ("b", 400, "temporary"),
        ("d", 200, "temporary"),
        ("c", 4, "constant"),
    ]
    assert sum(row["bytes"] for row in live) == memory.live_peak
    assert memory.by("class").to_pylist()[0] == {
        "class": "temporary",
        "rows": 2,
        "bytes": 600,
        "byte_steps": 1000,
    }
    assert memory.without_largest() == {
        "instruction": 0,
        "index": "{}",
        "bytes": 400,
        "live_peak": 604,
        "at": 4,
    }
    assert memory.live_at("a").to_pylist()[0]["name"] == "p"
    assert memory.values()["name"].tolist() == list("pcabdr")
    assert isinstance(memory, hlofast.Memory)
    assert "1,004 B at d" in repr(memory)


def test_the_usual_way_to_count_is_counted_once() -> None:
    module = hlofast.loads(CHAIN)
    first, again = module.memory(), module.memory(rule="in_place", schedule="text")
    assert numpy.shares_memory(first.timeline, again.timeline)
    assert not numpy.shares_memory(first.timeline, module.memory(schedule="post_order").timeline)


@pytest.mark.parametrize("key", ["class", "phase", "scope", "source", "op_name", "shape"])
def test_groups_add_up(key: str) -> None:
    memory = hlofast.load(FIXTURES / "dumps" / "tpu_train_step_named.after.txt.gz").memory()
    table = memory.by(key)
    assert table["bytes"].sum() == memory.live_peak
    assert table["rows"].sum() == len(memory.live)
    assert sorted(table["bytes"], reverse=True) == table["bytes"].tolist()


def test_arrow() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    memory = hlofast.loads(CHAIN).memory()
    table = memory.steps().to_arrow()
    assert isinstance(table, pyarrow.Table)
    assert table["bytes"].to_pylist() == memory.timeline.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "best"}, 'rule must be one of "in_place", "values", "xla"'),
        ({"sizes": "small"}, "sizes must be one of"),
        ({"constants": "never"}, "constants must be one of"),
        ({"schedule": "fast"}, "schedule must be one of"),
        ({"space": "moon"}, "memory space"),
    ],
)
def test_options_are_checked(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hlofast.loads(CHAIN).memory(**options)  # type: ignore[arg-type]


def test_spaces() -> None:
    module = hlofast.load(FIXTURES / "dumps" / "tpu_host_state.after.txt.gz")
    peaks = {space: module.memory(space=space).live_peak for space in ("hbm", "vmem", "host")}
    assert peaks["host"] >= 2_097_152
    assert (
        module.memory(space=1).live_peak == peaks["vmem"] == module.memory(space="S(1)").live_peak
    )
    assert (
        max(peaks.values()) <= module.memory(space="all").live_peak <= sum(peaks.values()) + 2**17
    )


def test_account_of_a_tpu_program() -> None:
    name = "tpu_host_state.after"
    module = hlofast.load(FIXTURES / "dumps" / f"{name}.txt.gz")
    recorded = gzip.decompress((FIXTURES / "dumps" / f"{name}.xla.json.gz").read_bytes())
    figures = json.loads(recorded)["memory_analysis"]
    memory = module.memory()
    assert memory.xla_peak == figures["peak_memory_in_bytes"]
    for part, value in memory.xla.items():
        assert value == figures.get(part, value)


def test_what_is_doubtful_is_said() -> None:
    unscheduled = hlofast.loads(CHAIN.replace(", is_scheduled=true", ""))
    told = texts(unscheduled.memory())
    assert any("not marked as scheduled" in note for note in told)
    ordered = unscheduled.memory(schedule="post_order")
    assert any("operands before users" in note for note in texts(ordered))
    aliased = CHAIN.replace("true", "true, input_output_alias={ {}: (0, {}, may-alias) }", 1)
    with pytest.warns(UserWarning, match="input_output_alias"):
        memory = hlofast.loads(aliased).memory()
    assert memory.live_peak == 1004
    unknown = hlofast.loads(CHAIN.replace("f32[50] slice", "f32[?] slice"))
    assert any("1 result of unknown size, counted as 0 B: d" in n for n in texts(unknown.memory()))
    facts = {fact.name: fact for fact in unknown.memory().facts}
    assert facts["live_peak"].provenance == "bound"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert texts(hlofast.loads(CHAIN).memory()) == ["fragmentation is not modelled"]


def test_sizes_beyond_64_bits_are_an_error() -> None:
    text = CHAIN.replace("[100]", "[2000000000,1000000000]")
    with pytest.raises(OverflowError, match="64 bits"):
        hlofast.loads(text).memory()


def test_instruction_inside_a_fusion() -> None:
    text = (
        "HloModule m\n\nf {\n  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p)\n}\n\n"
        "ENTRY e {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] fusion(x), kind=kLoop, calls=f\n}\n"
    )
    memory = hlofast.loads(text).memory()
    with pytest.raises(ValueError, match="inside a fusion"):
        memory.live_at("n")
    with pytest.raises(KeyError):
        memory.live_at("nothing")


@pytest.mark.parametrize("program", ["momentum_step", "scan_gradient", "uneven_branches"])
def test_files_of_xla(program: str) -> None:
    memory = hlofast.loads(unpacked(program, "after_optimizations")).memory(
        rule="values", space="all"
    )
    ranges = memory.file(unpacked(program, "live-range"))
    assert (ranges.kind, ranges.peak_bytes) == ("live_range", memory.live_peak)
    peak = {
        (row["instruction"], row["index"], row["bytes"])
        for row in ranges.table
        if row["is_at_peak"]
    }
    assert peak == {(row["instruction"], row["index"], row["bytes"]) for row in memory.live}
    assignment = memory.file(unpacked(program, "buffer-assignment").encode())
    report = memory.file(unpacked(program, "memory-usage-report"))
    assert assignment.total_bytes == report.total_bytes
    assert set(assignment.table["kind"]) >= {"parameter"}


def test_file_of_another_module() -> None:
    memory = hlofast.loads(unpacked("momentum_step", "after_optimizations")).memory()
    for file in ("live-range", "buffer-assignment", "memory-usage-report"):
        with pytest.raises(ValueError, match="another module"):
            memory.file(unpacked("spectra", file))
    with pytest.raises(ValueError, match="not one of XLA"):
        memory.file("HloModule m")


class TestCommand:
    def test_document(self, chain: Path) -> None:
        (result,) = document("memory", chain)["results"]
        memory = hlofast.load(chain).memory()
        values, tables = figures(result), result["tables"]
        assert values["live_peak"] == memory.live_peak
        assert (values["at"], values["steps"]) == ("d", 6)
        assert values["xla_peak"] == memory.xla_peak
        parts = {row["part"]: row["bytes"] for row in tables["xla"]}
        assert parts["peak"] == memory.xla_peak
        assert parts["generated_code"] is None
        for part in ("argument", "output", "alias", "constant", "heap"):
            assert parts[part] == memory.xla[f"{part}_size_in_bytes"]
        spaces = {row["part"]: row["memory_space"] for row in tables["xla"]}
        assert spaces["heap"] == memory.xla["heap_memory_space"]
        assert [row["name"] for row in tables["live"]] == memory.live["name"].tolist()
        assert (values["largest"], values["largest_bytes"]) == ("p", 400)
        assert (values["next_peak"], values["next_peak_at"]) == (604, "d")
        assert sum(group["bytes"] for group in tables["groups"]) == values["live_peak"]
        assert "allocated" not in values
        rules = ("rule", "sizes", "backend", "memory_space", "constants", "schedule")
        counted = ["in_place", "device", "cpu", "0", "last_use", "text"]
        assert [values[name] for name in rules] == counted

    def test_one_source(self, chain: Path) -> None:
        done = hlofast_command("memory", chain)
        check_one_source(hlofast.load(chain).memory(), done.stdout)
        dump = FIXTURES / "train_step.after_optimizations.txt"
        check_one_source(hlofast.load(dump).memory(), hlofast_command("memory", dump).stdout)

    def test_hostile_names_in_notebooks(self) -> None:
        text = CHAIN.replace("params['w']", "<script>alert(1)</script>")
        html = hlofast.loads(text).memory()._repr_html_()
        assert "&lt;script&gt;" in html
        assert "<script" not in html
        assert "1,004 B" in html

    def test_an_empty_module_has_facts(self) -> None:
        memory = hlofast.loads("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }").memory()
        assert json.loads(memory.to_json())["results"][0]["facts"]["live_peak"]["value"] == 4

    def test_for_people(self, chain: Path) -> None:
        printed = hlofast_command("memory", chain, "--by", "scope", "--top", "2").stdout
        shown = [line.split() for line in printed.splitlines()]
        assert ["live", "peak", "1,004", "B"] in shown
        assert ["peak", "at", "d"] in shown
        assert ["steps", "6"] in shown
        assert ["rule", "in_place"] in shown
        assert ["memory", "space", "0"] in shown
        assert "(2 of 4)" in printed
        assert "note: fragmentation is not modelled" in printed

    def test_at_an_instruction(self, chain: Path) -> None:
        (result,) = document("memory", chain, "--at", "a")["results"]
        assert [row["name"] for row in result["tables"]["live"]] == ["p", "a", "c"]
        assert "\nLive at a\n" in hlofast_command("memory", chain, "--at", "a").stdout
        done = hlofast_command("memory", chain, "--at", "nothing")
        assert done.returncode == 2
        assert "nothing" in done.stderr

    def test_options(self, chain: Path) -> None:
        options = ["--rule", "values", "--constants", "program", "--space", "all"]
        (result,) = document("memory", chain, *options)["results"]
        # XLA's file takes what ended a step before as alive when it looks for the peak.
        values = figures(result)
        assert (values["live_peak"], values["at"], values["memory_space"]) == (1004, "d", "all")
        assert (values["rule"], values["constants"]) == ("values", "program")
        assert any("1,204 B, at b" in note["text"] for note in result["notes"])
        assert "higher-step" in codes(result)
        assert hlofast_command("memory", chain, "--space", "moon").returncode == 2

    def test_buffer_assignment_beside_the_module(self, tmp_path: Path) -> None:
        path = tmp_path / "module.cpu_after_optimizations.txt"
        path.write_text(unpacked("momentum_step", "after_optimizations"))
        beside = tmp_path / "module.cpu_after_optimizations-buffer-assignment.txt"
        beside.write_text(unpacked("momentum_step", "buffer-assignment"))
        (result,) = document("memory", path)["results"]
        values = figures(result)
        assert values["allocated"] >= values["live_peak"]
        assert values["fragmentation"] == values["allocated"] - values["xla_peak"]
        assert values["allocation_file"] == str(beside)
        assert "allocated" in hlofast_command("memory", path).stdout
        beside.write_text(unpacked("spectra", "buffer-assignment"))
        done = hlofast_command("memory", path)
        assert done.returncode == 3
        assert "another module" in done.stderr

    def test_a_module_that_is_too_large(self, tmp_path: Path) -> None:
        path = tmp_path / "large.txt"
        path.write_text(CHAIN.replace("[100]", "[2000000000,1000000000]"))
        done = hlofast_command("memory", path, "--json")
        assert done.returncode == 3
        (error,) = json.loads(done.stdout)["errors"]
        assert error["kind"] == "OverflowError"


def test_a_text_that_may_be_of_several_devices_says_so() -> None:
    """v6e rounds tables of tuples to 32 bytes, v5e to 512, and nothing in the text tells them."""
    module = hlofast.load(FIXTURES / "train_step.after_optimizations.txt")
    less = module.memory().xla_peak - module.memory(device="v6e").xla_peak
    assert less == 480
    (note,) = (note for note in texts(module.memory()) if "v6e" in note)
    shown, lower = note.split(f"{less:,} B lower on ")
    # v5p rounds them as v6e does: a text compiled for it is not called one of v5e or v6e.
    for device in ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e"):
        is_shown = module.memory(device=device).xla_peak == module.memory().xla_peak
        assert (device in shown) == is_shown != (device in lower)
    for device in ("v5e", "v6e"):
        assert not any("v6e" in note for note in texts(module.memory(device=device)))


def test_devices_go_by_all_their_names() -> None:
    module = hlofast.load(FIXTURES / "train_step.after_optimizations.txt")
    peak = module.memory(device="tpu-v6e").xla_peak
    for device in ("TPU v6 lite", "trillium", "tpu7x", "tpu-v7", hlofast.devices.get("v6e")):
        assert module.memory(device=device).xla_peak == peak
    with pytest.raises(hlofast.devices.UnknownDeviceError, match="'tpu-v9'; known devices: tpu-v4"):
        module.memory(device="tpu-v9")


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("tpu-v9", "unknown device 'tpu-v9'; known devices: tpu-v4"),
        # Verbs take one context: what it refuses, every verb refuses in the same words.
        ("h100", "(h100) is a gpu, the module is for tpu; give one such as tpu-v4, "),
    ],
)
def test_what_is_no_tpu_is_refused_on_the_command_line(device: str, reason: str) -> None:
    dump = FIXTURES / "train_step.after_optimizations.txt"
    done = hlofast_command("memory", "--device", device, dump)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
