"""Implications of a config for a step: operations, traffic, whether it fits, and the command."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlofast
from conftest import FIXTURES, LONG
from decoders import LAYER, TOKENS, decoder, decoder_configs, on
from hlofast.config import Config, StepMemory
from test_cli import document, hlofast_command


class TestFlops:
    def test_seventy_billion(self, decoder_70b: Config) -> None:
        flops = decoder_70b.flops()
        assert flops.tokens == TOKENS
        assert flops.six_n_t == 1_736_170_847_858_589_696
        assert flops.matmul == 1_729_382_256_910_270_464
        assert flops.full_attention == 135_107_988_821_114_880
        assert flops.attention == 67_553_994_410_557_440
        assert flops.model == flops.matmul + flops.attention
        assert sum(flops.table["forward"]) * 3 == flops.model

    def test_recomputed(self, decoder_70b: Config) -> None:
        matrix = 2 * TOKENS * 80
        attention = 67_553_994_410_557_440 // 3
        dots = decoder_70b.select("tpu-v5litepod-256-4").flops()
        assert dots.recomputed_matmul == 0 and dots.recomputed_attention == attention
        names = decoder_70b.select("tpu-v5p-1024").flops()
        assert names.recomputed_matmul == matrix * 234_881_024
        assert names.recomputed_attention == 0
        default = decoder_70b.select("gpu-p5.48xlarge-512").flops()
        assert default.recomputed_matmul == 2 * matrix * 234_881_024
        nothing = decoder(policy="jax._src.ad_checkpoint.nothing_saveable").flops()
        # All but the second product of the feed-forward layer and the head.
        layer = 64 * 12 * 8 + 64 * 64 + 2 * 64 * 96
        assert nothing.recomputed_matmul == 2 * 512 * 3 * layer

    @pytest.mark.parametrize(
        ("device", "devices", "seconds", "percent"),
        [
            ("tpu-v5e", 1024, 14.3736, 59.88),
            ("tpu-v6e", 1024, 4.9, 37.69),
            ("tpu-v6e", 256, 19.5, 37.89),
            ("h100", 512, 12.9, 26.58),
        ],
    )
    def test_mfu_of_published_steps(
        self, decoder_70b: Config, device: str, devices: int, seconds: float, percent: float
    ) -> None:
        chip = hlofast.devices.get(device)
        mfu = decoder_70b.flops().mfu(seconds, devices, chip)
        assert 100 * mfu == pytest.approx(percent, abs=0.02)

    def test_mfu_refuses(self, decoder_70b: Config) -> None:
        chip = hlofast.devices.get("tpu-v5e")
        for seconds, devices in ((0.0, 4), (-1.0, 4), (math.nan, 4), (1.0, 0)):
            with pytest.raises(ValueError):
                decoder_70b.flops().mfu(seconds, devices, chip)
        with pytest.raises(ValueError, match="not known"):
            hlofast.config.loads("a: 1\n").flops().mfu(1.0, 1, chip)


class TestTraffic:
    def test_gathers(self, decoder_70b: Config) -> None:
        traffic = decoder_70b.select("tpu-v6e-256-4").traffic()
        assert traffic.gathered_bytes == 273_804_165_120
        assert traffic.gathered_bytes_per_layer == 1_711_276_032
        layer = [each for each in traffic.transfers if each.kind == "all-gather"]
        assert sorted(each.payload for each in layer if each.phase == "forward") == sorted(
            [167_772_160, 134_217_728, 469_762_048, 469_762_048, 469_762_048]
        )
        accumulated = decoder_70b.select("tpu-v6e-256").traffic()
        assert accumulated.gathered_bytes == 4 * 273_804_165_120

    def test_gradients(self, decoder_70b: Config) -> None:
        traffic = decoder_70b.select("tpu-v6e-256-4").traffic()
        scattered = traffic.total("reduce-scatter", "gradients", "fsdp")
        assert scattered == 80 * 1_711_276_032
        # The parts of each device, then summed over slices.
        parts = traffic.total("all-reduce", "gradients", "data") - traffic.total(
            "all-reduce", "gradients", "fsdp"
        )
        assert parts == 80 * 1_711_276_032 // 256
        tables = [
            each
            for each in traffic.transfers
            if each.tensor.endswith(("emb/weight", "head/weight"))
        ]
        assert {(each.kind, each.axes, each.payload) for each in tables} == {
            ("all-reduce", ("data", "fsdp"), 536_870_912)
        }

    def test_tensor_parallel(self) -> None:
        nothing = decoder(policy="jax._src.ad_checkpoint.nothing_saveable")
        traffic = on(nothing, data=2, model=4).traffic()
        rows = [each for each in traffic.transfers if each.tensor_kind == "activations"]
        assert {each.axes for each in rows} == {("model",)}
        logits = [each for each in rows if "head" in each.tensor]
        assert [(each.phase, each.payload) for each in logits] == [("forward", 16 // 2 * 32 * 200)]
        rows = [each for each in rows if "transformer" in each.tensor]
        size = 16 // 2 * 32 * 64 * 2
        assert {each.payload for each in rows} == {size}
        by_phase = dict.fromkeys(("forward", "recomputed", "backward"), 0)
        for each in rows:
            by_phase[each.phase] += each.count
        # Forward and backward two for each layer; again that of attention's output.
        assert by_phase == {"forward": 6, "recomputed": 3, "backward": 6}
        assert traffic.total("all-gather") == 0

    def test_sharded_tables(self) -> None:
        traffic = on(decoder(table=decoder_configs.SHARDED_TABLE), fsdp=4).traffic()
        tables = [each for each in traffic.transfers if "transformer" not in each.tensor]
        gathers = [(each.tensor, each.phase) for each in tables if each.kind == "all-gather"]
        assert gathers == [
            ("decoder/emb/token_emb/weight", "forward"),
            ("decoder/lm_head/weight", "forward"),
            ("decoder/lm_head/weight", "backward"),
        ]

    def test_axes_that_are_none(self) -> None:
        config = decoder(table=("rows", None))
        why = on(config, fsdp=2).memory().gaps[0][1]
        assert why == "its partition spec names 'rows', which is not a mesh axis"
        assert on(config, fsdp=2).memory().state_bytes is not None

    def test_what_is_not_modelled(self) -> None:
        traffic = on(decoder(), seq=2).traffic()
        assert traffic.total() is None and traffic.gathered_bytes is not None
        whys = [why for _, why in on(decoder(), seq=2).traffic().gaps]
        assert any("seq" in why for why in whys)


class TestVerdict:
    @pytest.mark.parametrize(
        ("instance", "status"),
        [
            ("tpu-v5litepod-256-4", "does not fit"),
            ("tpu-v5p-512", "does not fit"),
            ("tpu-v5p-1024", "tight"),
            ("tpu-v5p-2048", "fits"),
            ("tpu-v6e-256-4", "fits"),
            ("tpu-v6e-256", "fits"),
            ("gpu-p5.48xlarge-512", "fits"),
            ("gpu-a4-highgpu-8g-256", "fits"),
        ],
    )
    def test_rules(self, decoder_70b: Config, instance: str, status: str) -> None:
        verdict = decoder_70b.select(instance).verdict()
        assert verdict.status == status
        assert (verdict.excess_bytes > 0) == (status == "does not fit")

    @pytest.mark.seeds
    @pytest.mark.parametrize(
        ("instance", "devices", "status", "binding"),
        [
            ("tpu-v5litepod-256-4", None, "does not fit", "optimizer state"),
            ("tpu-v5p-1024", None, "tight", "saved"),
            ("tpu-v5p-512", None, "does not fit", "saved"),
            ("tpu-v6e-256-4", None, "fits", "optimizer state"),
            ("tpu-v6e-256", None, "fits", "optimizer state"),
            ("gpu-p5.48xlarge-512", None, "fits", "saved"),
            ("gpu-a3-highgpu-8g-256", None, "does not fit", "saved"),
            ("gpu-a3-ultragpu-8g-256", None, "fits", "saved"),
            ("gpu-a3-highgpu-8g-512", None, "fits", "saved"),
            ("gpu-a4-highgpu-8g-256", None, "fits", "saved"),
            ("neuron-trn2.48xlarge-64", 4096, "fits", "saved"),
        ],
    )
    def test_rules_of_the_seed(
        self, seed_config: Config, instance: str, devices: int | None, status: str, binding: str
    ) -> None:
        verdict = seed_config.select(instance, devices=devices).verdict()
        assert (verdict.status, verdict.binding_term) == (status, binding)
        assert verdict.step_seconds is not None and 0 < verdict.mfu < 1

    def test_time(self, decoder_70b: Config) -> None:
        effective = decoder_70b.select("tpu-v6e-256-4")
        verdict = effective.verdict()
        flops = effective.flops()
        assert verdict.compute_seconds == pytest.approx(flops.executed / (1024 * 918e12))
        assert verdict.step_bound_seconds == verdict.compute_seconds
        assert verdict.step_seconds == verdict.time.seconds
        chip = hlofast.devices.get("tpu-v6e")
        assert verdict.mfu == flops.mfu(verdict.step_seconds, 1024, chip)
        assert verdict.mfu_bound == flops.mfu(verdict.step_bound_seconds, 1024, chip)
        # Measured steps take longer than the bound.
        assert verdict.step_bound_seconds < 4.9 < verdict.step_high_seconds

    def test_layer_inputs_along_the_model_axis(self) -> None:
        effective = on(decoder(), data=2, model=4)
        size = effective.memory().layer_input_bytes
        text = f"sharding the sequence would save {3 * size // 4:,} bytes"
        assert any(text in statement for statement in effective.verdict("tpu-v5e").statements)

    def test_other_devices(self, decoder_70b: Config) -> None:
        effective = decoder_70b.select("tpu-v5litepod-256-4")
        assert effective.verdict("tpu-v6e").status == "fits"
        small = hlofast.devices.get("tpu-v6e").replace(hbm_usable_bytes=8e9)
        assert effective.verdict(small).status == "does not fit"
        with pytest.raises(hlofast.devices.UnknownDeviceError):
            effective.verdict("tpu-v99")
        assert on(decoder(), fsdp=2).verdict().status == "unknown"


class TestCommand:
    """`hlofast config` shows what is implied."""

    PATH = FIXTURES / "configs" / "decoder_70b.txt"

    def test_json_is_the_python_objects(self, decoder_70b: Config) -> None:
        described, selected = document("config", self.PATH, "--instance", "tpu-v6e-256-8")[
            "results"
        ]
        effective = decoder_70b.select("tpu-v6e-256-8")
        implied = {name: fact["value"] for name, fact in selected["facts"].items()}
        tables = selected["tables"]
        (row,) = described["tables"]["implied"]
        assert {name: row[name] for name in implied if name in row} == {
            name: implied[name] for name in implied if name in row
        }
        verdict, memory, flops = effective.verdict(), effective.memory(), effective.flops()
        assert implied["parameters"] == 68_989_231_104
        assert described["facts"]["parameters"]["value"] == 68_989_231_104
        assert implied["status"] == verdict.status == "fits"
        assert implied["state_bytes"] == memory.state_bytes
        assert implied["hbm_lower_bound"] == memory.hbm_lower_bound
        assert implied["expected_peak_bytes"] == memory.expected_peak_bytes
        assert implied["relaxed_peak_bytes"] == memory.relaxed_peak_bytes
        assert tables["memory"] == memory.table.to_pylist()
        assert tables["peak_terms"] == memory.expected_terms.to_pylist()
        assert tables["replicated"] == memory.replicated.to_pylist()
        for name in ("executed", "recomputed", "model", "attention", "six_n_t"):
            assert implied[name] == getattr(flops, name)
        traffic = effective.traffic().table.sort_by("total_payload", descending=True)
        assert tables["traffic"] == traffic.to_pylist()
        assert implied["gathered_bytes"] == effective.traffic().gathered_bytes
        for name in ("step_seconds", "step_low_seconds", "step_high_seconds", "step_bound_seconds"):
            assert implied[name] == getattr(verdict, name)
        assert implied["mfu"] == verdict.mfu and implied["mfu_bound"] == verdict.mfu_bound
        assert selected["facts"]["step_bound_seconds"]["provenance"] == "bound"
        assert tables["time"] == verdict.time.table.to_pylist()
        assert implied["sequences_per_device"] == 0.5
        told = [note["text"] for note in selected["notes"] if note["code"] == "statement"]
        assert told == list(verdict.statements)

    def test_one_instance_for_people(self) -> None:
        done = hlofast_command("config", self.PATH, "--instance", "tpu-v5litepod-256-4")
        assert done.returncode == 0 and done.stderr == ""
        for shown in (
            "parameters  68,989,231,104",
            "\nverdict              does not fit\n",
            "\nexcess               910,262,272 B",
            "\nstate                9,666,920,448 B",
            "\nhost                 49,660,559,360 B",
            "\ngathered             273,804,165,120 B",
            "note: decoder/emb/token_emb/weight is not sharded along fsdp: 3,221,225,472 bytes",
        ):
            assert shown in done.stdout, shown

    def test_all_rules_for_people(self) -> None:
        done = hlofast_command("config", self.PATH)
        lines = done.stdout.splitlines()
        start = lines.index("Implied figures, per device")
        heads = ["rule", "instance", "state B", "bound B", "peak B", "memory B"]
        assert [part.strip() for part in lines[start + 1].split("  ") if part][:6] == heads
        row = next(line for line in lines[start:] if "tpu-v5litepod-256-4" in line)
        sizes = [int(part.replace(",", "")) for part in row.split() if part.count(",") == 3]
        assert [round(size / 2**30, 2) for size in sizes[1:4]] == [15.5, 16.6, 15.75]
        assert "does not fit" in row
        assert any("1,024 sequences are not divisible by 2,048 shards" in line for line in lines)

    def test_what_is_not_known(self, tmp_path: Path) -> None:
        path = tmp_path / "other.txt"
        path.write_text(decoder().with_value(f"{LAYER}.klass", "my.Layer").to_text())
        described, selected = document("config", path, "--instance", "tpu-v5e-8")["results"]
        assert described["facts"]["parameters"] == {
            "value": None,
            "unit": None,
            "provenance": "unknown",
        }
        assert selected["facts"]["status"]["value"] == "unknown"
        assert "parameters" not in selected["facts"]
        assert selected["tables"]["unmodelled"][0]["path"] == LAYER
        assert {row["bytes"] for row in selected["tables"]["memory"]} == {None}
        done = hlofast_command("config", path, "--instance", "tpu-v5e-8")
        assert f"note: not modelled: {LAYER}: my.Layer" in done.stdout


class TestHostile:
    @settings(max_examples=300 if LONG else 50)
    @given(st.data())
    def test_any_value_anywhere(self, data: st.DataObject) -> None:
        config = decoder(
            rules=decoder_configs.large_rules(),
            stack=data.draw(st.sampled_from(["repeated", "stacked"])),
        )
        leaves = [path for path, _ in config.leaves() if not path.startswith("mesh_rules")]
        for path in data.draw(st.lists(st.sampled_from(leaves), min_size=1, max_size=4)):
            value = data.draw(
                st.none()
                | st.booleans()
                | st.integers(-(2**70), 2**70)
                | st.floats()
                | st.sampled_from(
                    ["", "model", "fsdp", "(", ".*" * 40, "axlearn.common.layers.Linear"]
                )
                | st.just((1, 2))
            )
            if path in config:
                config = config.with_value(path, value)
        count = config.parameter_count()
        assert count is None or count >= 0
        effective = config.select("tpu-v5p-64")
        assert isinstance(effective.memory(), StepMemory)
        assert repr(effective.verdict()) and repr(effective.traffic()) and repr(effective.flops())
        assert len(effective.parameters()) == len(config.parameters())

    def test_sizes_beyond_any_machine(self) -> None:
        config = decoder(stack="stacked").with_value("model.decoder.transformer.num_layers", 2**39)
        assert config.parameter_count() is not None
        assert on(config, fsdp=4).memory().hbm_lower_bound > 2**56
        assert decoder().with_value("model.decoder.dim", 2**41).parameter_count() is None
        assert decoder().with_value("model.decoder.dim", -8).parameter_count() is None
        assert decoder().with_value("model.decoder.dim", True).parameter_count() is None
