"""The modelled step of a config: its parts, its bound, and what changes it."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlofast
from hlofast.config import Config, Verdict
from test_config_implied import LAYER, decoder, decoder_configs, on

POLICIES = "jax._src.ad_checkpoint."
DEVICES = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7", "a100", "h100", "h200", "b200")


def seven(**changes: Any) -> Config:
    """A decoder with 7 billion parameters, unless `changes` say otherwise."""
    sizes = {"layers": 32, "dim": 4096, "heads": 32, "hidden": 11008, "vocabulary": 32768}
    sizes |= {"qkv": "fused", "sequence": 2048, "batch": 2048}
    return decoder(**{**sizes, **changes})


def step(verdict: Verdict) -> float:
    assert verdict.step_seconds is not None
    return verdict.step_seconds


def part(verdict: Verdict, name: str) -> float:
    assert verdict.time is not None
    return dict(verdict.time.parts).get(name, 0.0)


class TestStep:
    @settings(deadline=None, max_examples=40)
    @given(st.data())
    def test_is_no_shorter_than_its_bound(self, data: st.DataObject) -> None:
        config = decoder(
            layers=data.draw(st.integers(1, 8)),
            dim=data.draw(st.sampled_from([64, 512, 4096])),
            vocabulary=data.draw(st.sampled_from([100, 300_000])),
            sequence=data.draw(st.sampled_from([32, 2048])),
            batch=data.draw(st.sampled_from([1, 16, 48])),
            attention=data.draw(st.sampled_from(["flash", "plain"])),
            tied=data.draw(st.booleans()),
        )
        axes = {name: data.draw(st.sampled_from([1, 2, 8])) for name in ("data", "fsdp", "model")}
        device = data.draw(st.sampled_from(DEVICES))
        verdict = on(config, **axes).verdict(device)
        if verdict.communication_seconds is None:
            return  # The device has no network between hosts.
        assert verdict.step_bound_seconds is not None and verdict.compute_seconds is not None
        assert 0 < verdict.compute_seconds <= verdict.step_bound_seconds <= step(verdict)
        assert verdict.step_low_seconds < step(verdict) < verdict.step_high_seconds
        assert verdict.mfu is not None and verdict.mfu_bound is not None
        assert 0 < verdict.mfu <= verdict.mfu_bound <= 1

    def test_parts_add_up(self) -> None:
        time = on(seven(), data=32, fsdp=16).verdict("tpu-v4").time
        assert time is not None
        assert time.table.values("part") == [name for name, _ in time.parts]
        assert math.isclose(sum(time.table.values("seconds")), time.seconds)
        assert min(time.table.values("seconds")) > 0
        assert set(time.table.values("provenance")) == {"modelled"}

    def test_matmuls_of_a_single_device(self) -> None:
        """One device moves nothing; its products run below the peak."""
        verdict = on(seven(batch=2)).verdict("tpu-v5e")
        flops = verdict.flops
        peak = (flops.matmul + flops.recomputed_matmul) / 197e12
        assert peak < part(verdict, "matmuls") < 1.2 * peak
        names = {"matmuls", "attention", "element-wise", "optimizer", "between steps"}
        assert verdict.time is not None and {name for name, _ in verdict.time.parts} == names

    @pytest.mark.parametrize("device", ["tpu-v5e", "tpu-v5p"])
    def test_more_devices_of_a_slice_are_no_slower(self, device: str) -> None:
        counts = (4, 8, 16, 32, 64, 128, 256)
        times = [step(on(seven(), fsdp=count).verdict(device)) for count in counts]
        assert times == sorted(times, reverse=True)
        bounds = [on(seven(), fsdp=count).verdict(device).step_bound_seconds for count in counts]
        assert bounds == sorted(bounds, reverse=True)

    def test_more_hosts_are_no_slower(self) -> None:
        config = seven(batch=4096)
        times = [step(on(config, data=size, fsdp=8).verdict("h100")) for size in (2, 4, 8, 16, 32)]
        assert times == sorted(times, reverse=True)

    def test_recomputing_takes_time(self) -> None:
        verdicts = [
            on(seven(policy=f"{POLICIES}{name}"), fsdp=256).verdict("tpu-v5e")
            for name in ("everything_saveable", "nothing_saveable")
        ]
        less, more = (part(verdict, "matmuls") for verdict in verdicts)
        # Backward is twice forward; the last product of a layer is not recomputed.
        assert 1.2 * less < more < 4 / 3 * less
        assert step(verdicts[0]) < step(verdicts[1])
        assert verdicts[0].mfu > verdicts[1].mfu

    def test_keeping_values_takes_memory_bandwidth(self) -> None:
        own = ["model_name=llama2-7b", "per_device_batch_size=2", "max_target_length=4096"]
        values = []
        for policy in ("full", "save_out_proj"):
            given = [*own, "attention=flash", f"remat_policy={policy}"]
            run = hlofast.config.loads("", path="run.yml", overrides=given)
            values.append(part(run.select("v5p-32").verdict(), "element-wise"))
        # 32 layers of two sequences, six times to and from memory.
        saved = 32 * 2 * 4096 * 4096 * 2
        seconds = 6 * saved / hlofast.devices.get("tpu-v5p").per_jax_device("hbm_bandwidth")
        assert values[1] - values[0] == pytest.approx(seconds)

    @pytest.mark.parametrize(("device", "axes"), [("tpu-v5e", 16), ("h100", 8)])
    def test_a_flash_kernel_is_faster(self, device: str, axes: int) -> None:
        flash, plain = (
            on(seven(attention=kind, batch=64), fsdp=axes).verdict(device)
            for kind in ("flash", "plain")
        )
        assert step(flash) < step(plain)
        assert part(flash, "matmuls") == part(plain, "matmuls")
        assert part(flash, "attention") < part(plain, "attention")

    def test_narrow_heads_waste_the_kernel(self) -> None:
        wide, narrow = (on(seven(heads=heads), fsdp=256).verdict("tpu-v5e") for heads in (32, 64))
        assert math.isclose(part(narrow, "attention"), 2 * part(wide, "attention"))

    def test_scores_grow_with_the_sequence(self) -> None:
        """At the same number of tokens, attention without a kernel moves more."""
        short, long = (
            on(seven(attention="plain", sequence=size, batch=2**22 // size), fsdp=256).verdict(
                "h100"
            )
            for size in (2048, 4096)
        )
        assert math.isclose(part(long, "attention"), 2 * part(short, "attention"))
        assert part(long, "matmuls") == part(short, "matmuls")


class TestCollectives:
    def test_gathers_overlap_on_tpus_only(self) -> None:
        config = seven()
        assert part(on(config, fsdp=16).verdict("tpu-v5e"), "gathers of weights") == 0
        assert part(on(config, fsdp=8).verdict("h100"), "gathers of weights") > 0

    def test_gathers_of_maxtext_run_alone_on_v6e(self) -> None:
        own = ["model_name=llama2-7b", "per_device_batch_size=2", "max_target_length=4096"]
        run = hlofast.config.loads("", path="run.yml", overrides=[*own, "attention=flash"])
        five, six = (run.select(f"{name}-256").verdict() for name in ("v5e", "v6e"))
        assert part(five, "gathers of weights") == 0
        assert six.time is not None
        assert part(six, "gathers of weights") == pytest.approx(six.time.demand.gathers)

    def test_gathers_longer_than_the_work_are_exposed(self) -> None:
        small = on(seven(sequence=128, batch=256), fsdp=256).verdict("tpu-v5e")
        assert part(small, "gathers of weights") > 0
        assert step(small) > small.step_bound_seconds > small.compute_seconds

    def test_activations_over_a_tensor_axis_are_exposed(self) -> None:
        one, two = (on(seven(batch=64), fsdp=8, model=size).verdict("tpu-v5p") for size in (1, 2))
        assert part(one, "reductions of activations") == 0 < part(two, "reductions of activations")
        assert part(two, "matmuls") == pytest.approx(part(one, "matmuls") / 2)

    @pytest.mark.parametrize("slices", [2, 4, 8])
    def test_slices_cost_a_tenth_at_most(self, slices: int) -> None:
        """At the same batch per slice, which published runs keep."""
        rules = (("tpu-v5litepod-256.*", (1, -1, 1, 256, 1, 1)),)
        one = seven(rules=rules, batch=2048).select("tpu-v5litepod-256").verdict()
        name = f"tpu-v5litepod-256-{slices}"
        more = seven(rules=rules, batch=2048 * slices).select(name).verdict()
        assert part(one, "network") == part(one, "waiting for slices") == 0
        assert part(more, "network") > 0 < part(more, "waiting for slices")
        assert 1 < step(more) / step(one) < 1.1
        # The wait is that of dumps: one device figure.
        own = step(more) - part(more, "network") - part(more, "waiting for slices")
        own -= part(more, "between steps")
        wait = hlofast.devices.get("tpu-v5e").require("slice_wait") * math.log2(slices)
        assert part(more, "waiting for slices") == pytest.approx(own * math.expm1(wait))

    def test_hosts_of_gpus(self) -> None:
        inside, across = (on(seven(), fsdp=size).verdict("h100") for size in (8, 16))
        assert part(inside, "network") == 0 < part(across, "network")

    def test_accumulation_repeats_collectives(self) -> None:
        accumulate = decoder_configs.accumulate(4)
        chain = decoder_configs.chain(decoder_configs.mesh(1, 1, 1, 256, 1, 1), accumulate)
        config = seven(rules=(("tpu-v5e-256", chain),))
        plain = on(seven(), fsdp=256).verdict("tpu-v5e")
        summed = config.select("tpu-v5e-256").verdict()
        assert summed.sequences_per_device == 2 and plain.sequences_per_device == 8
        name = "reductions of gradients"
        assert part(summed, name) == pytest.approx(4 * part(plain, name))
        assert part(summed, "optimizer") > part(plain, "optimizer")
        assert part(summed, "matmuls") == pytest.approx(part(plain, "matmuls"))
        assert step(summed) > step(plain)

    def test_offloading_that_work_does_not_hide(self, decoder_70b: Config) -> None:
        rules = (("tpu-v5litepod-256", decoder_configs.chain(
            decoder_configs.mesh(1, 1, 1, 256, 1, 1),
            decoder_configs.remat(decoder_configs.OFFLOAD_DOTS),
        )),)  # fmt: skip
        # Narrow products: many bytes for few operations.
        narrow = seven(dim=256, heads=4, hidden=512, layers=8, rules=rules)
        verdict = narrow.select("tpu-v5litepod-256").verdict("tpu-v6e")
        assert part(verdict, "host memory") > 0
        rows = verdict.time.table.to_pylist()
        how = {row["part"]: row["provenance"] for row in rows}
        assert how.pop("host memory") == "assumed"
        assert set(how.values()) == {"modelled"}
        wide = decoder_70b.select("tpu-v5litepod-256-4").verdict()
        assert wide.host_bytes and part(wide, "host memory") == 0


class TestUnknown:
    def test_collectives(self) -> None:
        verdict = on(decoder(), fsdp=2, seq=2).verdict("tpu-v5e")
        assert verdict.communication_seconds is None
        assert verdict.step_bound_seconds == verdict.compute_seconds
        assert step(verdict) > verdict.compute_seconds
        assert verdict.step_low_seconds is None and verdict.step_high_seconds is None

    def test_memory_bandwidth(self) -> None:
        chip = hlofast.devices.get("h100").replace(hbm_bandwidth=None)
        verdict = on(seven(), fsdp=8).verdict(chip)
        assert verdict.time is None and verdict.step_seconds is None and verdict.mfu is None
        assert verdict.step_bound_seconds == verdict.compute_seconds
        assert verdict.mfu_bound is not None and 0 < verdict.mfu_bound <= 1

    def test_devices_that_were_not_judged(self) -> None:
        text = "the model was not evaluated on"
        for device, is_told in (("h100", False), ("tpu-v6e", False), ("b200", True)):
            statements = on(seven(), fsdp=8).verdict(device).statements
            assert any(text in told for told in statements) == is_told


class TestPublished:
    """Steps of 70B that AXLearn published; those on TPU v6e are in no fit."""

    @pytest.mark.parametrize(
        ("instance", "seconds", "error"),
        [
            ("tpu-v6e-256-4", 4.9, 0.1),
            ("tpu-v6e-256", 19.5, 0.1),
            ("tpu-v5litepod-256-4", 14.3736, 0.15),
            ("gpu-p5.48xlarge-512", 12.9, 0.15),
        ],
    )
    def test_70b(self, decoder_70b: Config, instance: str, seconds: float, error: float) -> None:
        verdict = decoder_70b.select(instance).verdict()
        assert step(verdict) == pytest.approx(seconds, rel=error)
        assert verdict.step_low_seconds < seconds < verdict.step_high_seconds
        assert verdict.step_bound_seconds < seconds


def test_jax_policy_by_names() -> None:
    listed = {"fn": f"{POLICIES}save_only_these_names",
              "names_which_can_be_saved": ["FlashAttention.o_proj"]}  # fmt: skip
    by_names = seven(policy=listed)
    pattern = seven(policy=decoder_configs.names(r"FlashAttention\.o_proj"))
    assert by_names.flops().recomputed == pattern.flops().recomputed
    table = on(by_names, fsdp=2).memory().activations
    saved = {
        name for name, fate in zip(table["name"], table["fate"], strict=True) if fate == "saved"
    }
    assert saved == {"FlashAttention.o_proj"}
    assert f"{LAYER}.remat_spec" not in {path for path, _ in on(by_names, fsdp=2).verdict().gaps}


def test_combined_policies() -> None:
    """AXLearn's policy of 7B on TPU v5p: flash kernels and all matmuls are saved."""
    combined = {
        "combine_fn": "axlearn.common.utils.combine_fn",
        "fn": "axlearn.common.utils.combine_remat_policies",
        "policy_1": "axlearn.common.flash_attention.remat.policy",
        "policy_2": f"{POLICIES}dots_saveable",
    }
    both = on(seven(policy=combined), fsdp=64).verdict("tpu-v5p")
    alone = on(seven(policy=f"{POLICIES}dots_saveable"), fsdp=64).verdict("tpu-v5p")
    assert both.flops.recomputed == 0 and both.gaps == ()
    # Without the first policy, backward runs the kernel of forward again.
    assert alone.flops.recomputed == alone.flops.recomputed_attention > 0
    assert step(both) < step(alone)
    assert both.memory.saved_bytes > alone.memory.saved_bytes
    deep: Any = f"{POLICIES}dots_saveable"
    for _ in range(20):
        deep = {**combined, "policy_2": deep}
    for change, problem in (
        ({**combined, "policy_1": "my.policy"}, "my.policy is not modelled"),
        ({**combined, "policy_2": decoder_configs.OFFLOAD_DOTS}, "a policy that saves and one"),
        (deep, "more than 8 times"),
    ):
        gaps = on(seven(policy=change), fsdp=64).verdict("tpu-v5p").gaps
        assert any(problem in why for _, why in gaps)
