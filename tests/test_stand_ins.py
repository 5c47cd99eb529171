"""Programs compiled for configs, beside what the configs imply."""

import json
import lzma
import math
import re
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds
from hlofast.config import Config, EffectiveConfig

FOLDER = FIXTURES / "stand_ins"
RECORDS: dict[str, Any] = json.loads((FOLDER / "stand_ins.json").read_text())
FAITHFUL = [name for name, record in RECORDS.items() if record["mistake"] is None]
COMPILED = [name for name in FAITHFUL if "memory_analysis" in RECORDS[name]]
UNKNOWN = ["v5p_2048_split"]
"""What the compiler refuses and the model does not cover."""
REFUSED = [name for name in FAITHFUL if "refused" in RECORDS[name] and name not in UNKNOWN]
MISTAKEN = [name for name in RECORDS if name not in FAITHFUL]
GIB = 2**30


def config_of(record: dict[str, Any]) -> Config:
    return hlofast.config.load(FIXTURES / "configs" / f"{record['config']}.txt")


def effective(name: str) -> EffectiveConfig:
    selected = config_of(RECORDS[name]).select(RECORDS[name]["instance"])
    assert selected.mesh is not None and dict(selected.mesh.shape) == RECORDS[name]["mesh"]
    assert selected.devices == RECORDS[name]["devices"]
    return selected


def module(name: str) -> hlofast.Module:
    with lzma.open(FOLDER / f"{name}.txt.xz") as file:
        return hlofast.loads(file.read())


def path_of(name: str | None) -> str | None:
    """The path of the parameter that a name in the text means."""
    match = re.fullmatch(r"state\.model((?:\['\w+'\])+)", name or "")
    return "/".join(re.findall(r"'(\w+)'", match[1])) if match else None


def gibibytes(record: dict[str, Any]) -> tuple[float, float]:
    """What the compiler that refused needs, and what there is, in GiB."""
    text = " ".join(record["refused"])
    numbers = re.findall(r"(\d+\.\d+)G", text)
    assert "RESOURCE_EXHAUSTED" in text and len(numbers) >= 2, text
    return float(numbers[0]), float(numbers[1])


def test_the_catalogue() -> None:
    large = {"v6e_256", "v6e_256_4", "v5p_2048", "v5p_1024", "v5e_256_4_sharded_tables"}
    split = {f"{name}_split" for name in ("v6e_256", "v5e_256_4", "v5p_1024", "small")}
    assert set(COMPILED) == large | split | {"small"}
    assert [*REFUSED, *UNKNOWN] == ["v5e_256_4", "v5p_2048_split"]
    assert set(MISTAKEN) == {"small_unconstrained", "small_misnamed", "small_replicated_table"}


@pytest.mark.parametrize("name", COMPILED)
class TestCompiled:
    def test_state(self, name: str) -> None:
        config = effective(name)
        state = config.memory().state_bytes
        assert state is not None
        record = RECORDS[name]
        tokens = config.config["input.input_dispatcher.global_logical_batch_size"]
        length = config.config["input.source.max_sequence_length"]
        # Tokens of sequences are split, and the targets are one token behind.
        shards = math.prod(record["mesh"].get(axis, 1) for axis in ("data", "fsdp", "seq"))
        rest = record["memory_analysis"]["argument_size_in_bytes"] - state
        # The batch, and a counter and a key that take a tile each.
        assert rest - 4 * tokens * length // shards in (512, 1024)

    def test_offloaded(self, name: str) -> None:
        config = effective(name)
        offloaded = RECORDS[name]["memory_analysis"]["host_temp_size_in_bytes"]
        assert config.memory().offloaded_bytes == offloaded

    def test_parameters(self, name: str) -> None:
        compiled = {
            path: parameter.shape.bytes
            for parameter in module(name).entry.parameters
            if (path := path_of(parameter.metadata.op_name))
        }
        rows = effective(name).parameters()
        assert compiled == dict(zip(rows["path"], rows["bytes_per_device"].tolist()))

    @pytest.mark.filterwarnings("ignore:some arrays have no layout")
    def test_peak(self, name: str) -> None:
        verdict = effective(name).verdict()
        assert verdict.status in ("fits", "tight")
        # The compiler's own peak takes the larger of device and host memory for the heap.
        peak = module(name).memory().live_peak
        analysis = RECORDS[name]["memory_analysis"]
        assert peak <= 1.001 * analysis["peak_memory_in_bytes"]
        assert verdict.expected_peak_bytes is not None and verdict.relaxed_peak_bytes is not None
        assert 0.95 * verdict.expected_peak_bytes < peak < 1.05 * verdict.relaxed_peak_bytes
        assert verdict.hbm_lower_bound is not None
        assert verdict.hbm_lower_bound <= min(peak, verdict.expected_peak_bytes)

    def test_gathers(self, name: str) -> None:
        expected = {
            (each.tensor, each.phase == "forward"): (each.payload, each.count)
            for each in effective(name).traffic().transfers
            if each.kind == "all-gather" and each.layers > 1
        }
        gathers: dict[tuple[str, bool], tuple[int, int]] = {}
        for row in module(name).collectives():
            path = path_of(row["tensor"])
            if row["kind"] == "all-gather" and (path, True) in expected:
                key = str(path), row["phase"] == "forward"
                count = gathers.get(key, (0, 0))[1] + row["multiplicity"]
                gathers[key] = row["payload"], count
        assert gathers == expected

    @pytest.mark.filterwarnings("ignore:some arrays have no layout")
    def test_products(self, name: str) -> None:
        config = effective(name)
        products = [row for row in module(name).matmuls() if row["kind"] != "fused_attention"]
        flops, devices = config.flops(), RECORDS[name]["devices"]
        assert flops.matmul is not None and flops.recomputed_matmul is not None
        assert (
            sum(row["flops"] for row in products) * devices
            == flops.matmul + flops.recomputed_matmul
        )
        again = [row["flops"] for row in products if row["phase"] == "recompute"]
        assert sum(again) * devices == flops.recomputed_matmul


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_model_does_not_cover_is_unknown(name: str) -> None:
    needed, available = gibibytes(RECORDS[name])
    assert needed > available
    selected = effective(name)
    assert selected.verdict().status == "unknown"
    assert any("not modelled" in str(row) for row in selected.unmodelled())


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    needed, available = gibibytes(RECORDS[name])
    verdict = effective(name).verdict()
    assert verdict.status == "does not fit"
    assert verdict.capacity_bytes == available * GIB
    assert verdict.expected_peak_bytes is not None and verdict.excess_bytes is not None
    assert verdict.expected_peak_bytes == pytest.approx(needed * GIB, rel=0.01)
    assert verdict.excess_bytes == verdict.expected_peak_bytes - verdict.capacity_bytes
    assert verdict.hbm_lower_bound is not None
    assert verdict.hbm_lower_bound <= min(needed * GIB, verdict.expected_peak_bytes)
    assert verdict.excess_bytes == pytest.approx((needed - available) * GIB, rel=0.1)


def test_what_makes_it_fit() -> None:
    whole, divided = effective("v5e_256_4"), effective("v5e_256_4_sharded_tables")
    assert (whole.verdict().status, divided.verdict().status) == ("does not fit", "fits")
    saved = sum(row["bytes_saved"] for row in whole.memory().replicated)
    before, after = whole.memory().state_bytes, divided.memory().state_bytes
    assert before is not None and after is not None and before - after == saved
    assert whole.verdict().excess_bytes < saved


@pytest.mark.seeds
@pytest.mark.parametrize(
    "name", [name for name in FAITHFUL if RECORDS[name]["config"] == "decoder_70b"]
)
def test_the_seed_implies_the_same(name: str, seeds: Seeds) -> None:
    ours = effective(name)
    theirs = hlofast.config.load(seeds.path("004")).select(RECORDS[name]["instance"])
    assert theirs.parameters() == ours.parameters()
    assert theirs.memory().table == ours.memory().table
    assert theirs.traffic().table == ours.traffic().table
    assert theirs.verdict().expected_peak_bytes == ours.verdict().expected_peak_bytes
