"""Plans: the fastest mesh, batch, accumulation and checkpoint policy of a config that fit."""

import ast
import cProfile
import math
import re
import shlex

import pytest

import hlofast
from conftest import FIXTURES
from hlofast.config import Config, _plan, _plan_meshes, _plan_space
from test_cli import document, hlofast_command

EIGHT = ("model_name=llama3.1-8b", "per_device_batch_size=4", "max_target_length=8192")
SEVEN = ("model_name=llama2-7b", "per_device_batch_size=4", "max_target_length=2048")
SPARSE = ("model_name=mixtral-8x7b", "per_device_batch_size=4", "max_target_length=4096")


def run(*overrides: str) -> Config:
    return hlofast.config.loads("", path="run.yml", overrides=overrides)


@pytest.mark.parametrize(
    ("overrides", "instance", "arguments"),
    [
        (EIGHT, "v5p-512", {}),
        (EIGHT, "v6e-256", {"offloads": False}),
        (SEVEN, "v5e-64", {}),
        (SEVEN, "tpu-v5litepod-256-4", {}),
        (SEVEN, "v4-128", {"sequences": 512}),
        (SPARSE, "v5p-256", {}),
        (SEVEN, "gpu-p5.48xlarge-64", {"sequences": 0}),
        ((*SEVEN, "custom_mesh=hybrid_ring_32x8"), "tpu-v5litepod-256-2", {}),
    ],
)
def test_a_run_with_the_written_arguments_has_the_promised_step(
    overrides, instance, arguments
) -> None:
    plan = run(*overrides).plan(instance, **arguments)
    best = plan.best
    given = shlex.split(" ".join(plan.lines))
    verdict = run(*overrides, *given).select(instance).verdict()
    assert verdict.step_seconds == pytest.approx(best["step_seconds"], rel=1e-12)
    assert verdict.expected_peak_bytes == best["peak_bytes"] <= verdict.capacity_bytes * 0.95
    assert verdict.host_bytes == best["host_bytes"]
    assert verdict.mfu == pytest.approx(best["mfu"])
    if not arguments.get("offloads", True):
        assert best["host_bytes"] == 0


@pytest.fixture(scope="module")
def of_rules(decoder_70b: Config):
    return decoder_70b.plan("tpu-v5p-1024")


@pytest.fixture(scope="module")
def small():
    return run(*SEVEN).plan("v5e-16")


@pytest.fixture(scope="module")
def eight():
    return run(*EIGHT).plan("v5p-512")


class TestAxlearn:
    def test_the_rule_is_python(self, of_rules) -> None:
        (rule,) = ast.parse(f"[{''.join(of_rules.lines)}]").body[0].value.elts
        assert rule.elts[0].value == "tpu-v5p-1024"
        names = {own.id for own in ast.walk(rule) if isinstance(own, ast.Name)}
        assert {"ChainConfigModifier", "MeshShapeModifier", "RematSpecModifier"} <= names

    def test_the_config_under_the_rule_has_the_promised_step(self, of_rules, decoder_70b) -> None:
        (rule,) = ast.parse(f"[{''.join(of_rules.lines)}]").body[0].value.elts
        given = {
            own.arg: ast.literal_eval(own.value)
            for own in ast.walk(rule)
            if isinstance(own, ast.keyword)
            and own.arg.startswith(("mesh_shape", "names_which", "grad_acc"))
        }
        policy = Config.of(
            fn="axlearn.common.utils.save_and_offload_only_these_names_regex",
            names_which_can_be_saved=given["names_which_can_be_saved"],
            names_which_can_be_offloaded=given["names_which_can_be_offloaded"],
        )
        path = "model.decoder.transformer.layer.remat_spec['policy']"
        applied = decoder_70b.without("mesh_rules").with_value(path, policy)
        applied = applied.with_value("mesh_shape", list(given["mesh_shape"]))
        verdict = applied.select("tpu-v5p-1024").verdict()
        assert of_rules.best["accumulation_steps"] == 1
        assert verdict.step_seconds == pytest.approx(of_rules.best["step_seconds"], rel=1e-12)
        assert verdict.expected_peak_bytes == of_rules.best["peak_bytes"]

    def test_slices_along_two_axes_are_a_hybrid_mesh(self, decoder_70b: Config) -> None:
        plan = decoder_70b.plan("tpu-v6e-256-4")
        two = next(
            own for own in plan._searched.best if own.candidate.axes == {"data": 2, "fsdp": 512}
        )
        lines = plan._searched.front.written(decoder_70b, two.candidate, "tpu-v6e-256-4")
        shape = "HybridMeshShape(ici_mesh_shape=(1, 1, 1, 256, 1, 1,), dcn_mesh_shape=(1, 2, 1, 2, 1, 1,))"
        assert any(shape in line for line in lines)
        hybrid = {"ici_mesh_shape": [1, 1, 1, 256, 1, 1], "dcn_mesh_shape": [1, 2, 1, 2, 1, 1]}
        applied = decoder_70b.without("mesh_rules").with_value("mesh_shape", Config.of(**hybrid))
        mesh = applied.select("tpu-v6e-256-4").mesh
        assert {axis: size for axis, size in mesh.shape.items() if size > 1} == two.candidate.axes

    @pytest.mark.parametrize(
        ("name", "printed"),
        [
            ("nothing_saveable", "jax.checkpoint_policies.nothing_saveable"),
            (
                "offload_dots_saveable_policy",
                "axlearn.experiments.text.gpt.fuji.offload_dots_saveable_policy",
            ),
            (
                "save_or_offload_flash_attention_policy",
                "axlearn.common.flash_attention.remat.policy",
            ),
        ],
    )
    def test_policies_with_a_name(self, of_rules, decoder_70b: Config, name, printed) -> None:
        liked = of_rules.like({"fsdp": 512, "policy": name})
        candidate, own = liked._this
        lines = of_rules._searched.front.written(decoder_70b, candidate, "tpu-v5p-1024")
        (line,) = (line for line in lines if "policy=" in line)
        assert name in line and (line.endswith("(),") == printed.endswith("remat.policy"))
        path = "model.decoder.transformer.layer.remat_spec['policy']"
        applied = decoder_70b.without("mesh_rules").with_value(path, printed)
        applied = applied.with_value("mesh_shape", [1, 1, 1, 512, 1, 1])
        verdict = applied.select("tpu-v5p-1024").verdict()
        assert verdict.step_seconds == pytest.approx(own.seconds, rel=1e-12)
        assert verdict.expected_peak_bytes == own.peak

    def test_accumulation_is_a_modifier(self, decoder_70b: Config) -> None:
        plan = decoder_70b.plan("tpu-v6e-256", offloads=False)
        steps = plan.best["accumulation_steps"]
        assert steps > 1
        assert f"grad_acc_steps={steps}" in "".join(plan.lines)


class TestSearch:
    def test_no_choice_is_faster(self, small) -> None:
        """All candidates, without bounds."""
        searched = small._searched
        fitting = [
            own
            for mesh in _plan_meshes.meshes(
                dict.fromkeys(searched.axes, _plan_meshes.divisors(16)), 16, 1
            )
            if not list(_plan_space.gaps_of(searched.implied(mesh)))
            and _plan_meshes.uneven(searched.implied(mesh)) is None
            for own in searched.of_mesh(mesh)
        ]
        fastest = min(own.seconds for own in fitting)
        limit = fastest * (1 + _plan.TIE) * (1 + _plan.SAME)
        assert fastest <= small.best["step_seconds"] <= limit
        for row in small.ranked:
            own = [
                one.seconds
                for one in fitting
                if _plan_meshes.shown_mesh(one.candidate.mesh) == row["mesh"]
            ]
            assert row["step_seconds"] <= min(own) * (1 + _plan.TIE)

    def test_every_candidate_is_counted_once(self, small) -> None:
        facts = {fact.name: fact.value for fact in small.facts}
        dropped = sum(small.tables["excluded"]["candidates"])
        assert facts["candidates"] == facts["modelled"] + dropped
        assert facts["candidates"] > 5_000

    def test_the_frontier_falls(self, small) -> None:
        rows = list(small.frontier)
        peaks = [row["peak_bytes"] for row in rows]
        seconds = [row["step_seconds"] for row in rows]
        assert peaks == sorted(peaks)
        assert seconds == sorted(seconds, reverse=True)
        assert seconds[-1] <= small.best["step_seconds"]

    def test_figures_are_those_of_their_parts(self, small) -> None:
        best = small.best
        assert sum(small.tables["parts"]["seconds"]) == pytest.approx(best["step_seconds"])
        assert sum(small.tables["terms"]["bytes"]) == best["peak_bytes"]
        rate = best["sequences"] * 2048 / best["step_seconds"] / 16
        assert best["tokens_per_second"] == pytest.approx(rate)

    def test_chip_hours(self) -> None:
        best = run(*SEVEN).plan("v5e-16", tokens=1e9).best
        hours = 1e9 / best["tokens_per_second"] / 3600
        assert best["chip_hours"] == pytest.approx(hours)

    def test_slices_fill_the_outermost_axes(self) -> None:
        spread = _plan_space.spread
        assert spread((1, 4, 64), 4) == [1, 4, 1]
        assert spread((8, 32), 4) == [4, 1]
        assert spread((2, 128), 4) == [2, 2]
        assert spread((1, 2, 2, 64), 4) == [1, 2, 2, 1]
        assert spread((6, 64), 4) is None and spread((3, 1), 4) is None
        plan = run(*SEVEN).plan("tpu-v5litepod-64-4")
        for mesh in plan.ranked["mesh"]:
            sizes = [int(part.partition("=")[2]) for part in mesh.split(",")]
            assert spread(sizes, 4) is not None
        meshes = set(plan.ranked["mesh"])
        assert {"data=4,fsdp=64", "data=2,fsdp=128", "fsdp=256"} <= meshes

    def test_of_equally_fast_meshes_the_usual_one_comes_first(self, decoder_70b: Config) -> None:
        plan = decoder_70b.plan("tpu-v6e-256-4")
        first, second, *_ = plan._searched.best
        assert first.candidate.axes == {"data": 4, "fsdp": 256}
        assert first.seconds <= second.seconds * (1 + _plan.SAME)
        assert first.time.demand.network < second.time.demand.network

    def test_slices_along_two_axes_are_those_of_the_written_arguments(self) -> None:
        plan = run(*SEVEN).plan("tpu-v5litepod-64-4")
        (own,) = (
            one for one in plan._searched.best if one.candidate.axes == {"data": 2, "fsdp": 128}
        )
        lines = plan._searched.front.written(plan._searched.config, own.candidate, "")
        assert {
            "dcn_data_parallelism=2",
            "dcn_fsdp_parallelism=2",
            "ici_fsdp_parallelism=64",
        } <= set(lines)
        verdict = run(*SEVEN, *lines).select("tpu-v5litepod-64-4").verdict()
        assert verdict.step_seconds == pytest.approx(own.seconds, rel=1e-12)

    def test_more_memory_is_never_slower(self) -> None:
        device = hlofast.devices.get("tpu-v5e")
        larger = device.replace(hbm_usable_bytes=64e9)
        few, many = (
            run(*SEVEN).plan("v5e-16", device=own, offloads=False).best for own in (device, larger)
        )
        assert many["step_seconds"] < few["step_seconds"]
        assert few["peak_bytes"] < 16e9 < many["peak_bytes"]

    def test_host_memory_is_a_limit(self) -> None:
        device = hlofast.devices.get("tpu-v5e").replace(host_memory_bytes=8e9)
        plan = run(*SEVEN).plan("v5e-16", device=device)
        assert max(plan.ranked["host_bytes"]) <= 750_000_000
        assert any("host memory" in reason for reason in plan.tables["excluded"]["reason"])

    def test_traffic_of_each_choice(self, eight) -> None:
        best = eight.best
        (row,) = eight.tables["traffic"]
        assert best["traffic"] == f"fsdp {row['payload'] / 2**30:.2f} GiB"
        other = next(row for row in eight.ranked if row["mesh"] == "data=2,fsdp=128")
        assert "fsdp" in other["traffic"] and "data" in other["traffic"]

    def test_choices_that_the_model_does_not_tell_apart(self, eight) -> None:
        rows = list(eight.ranked)
        for row in rows:
            is_near = row["slower_seconds"] <= 0.095 * rows[0]["step_seconds"] * (1 + 1e-9)
            assert row["is_tied"] == is_near
        assert rows[1]["is_tied"] and not rows[-1]["is_tied"]
        (note,) = (note for note in eight.notes if note.code == "tied")
        assert note.figures["meshes"] == sum(row["is_tied"] for row in rows) - 1
        simple = eight.simplest
        assert simple["step_seconds"] <= 1.095 * rows[0]["step_seconds"]
        assert simple["host_bytes"] == 0 and simple["mesh"] == "fsdp=256"
        assert simple["mesh"] in note.text and simple["policy"] in note.text

    def test_slices_that_are_too_large_are_told(self) -> None:
        plan = run(*SEVEN).plan("tpu-v5litepod-512")
        (note,) = (note for note in plan.notes if note.code == "slice")
        assert "at most 256 chips" in note.text and "--slices 2" in note.text
        smaller = run(*SEVEN).plan("tpu-v5litepod-256-2")
        assert not any(note.code == "slice" for note in smaller.notes)

    def test_collectives_between_slices_hide_behind_no_more_than_the_step(self) -> None:
        slow = hlofast.devices.get("tpu-v5e").replace(network_bandwidth=1e7)
        verdict = run(*SEVEN).select("tpu-v5litepod-64-4").verdict(slow)
        demand, parts = verdict.time.demand, dict(verdict.time.parts)
        work = sum(parts[name] for name in ("matmuls", "attention", "element-wise"))
        assert parts["network"] == pytest.approx(demand.network - work)
        assert parts["network"] > 0.5 * demand.network

    def test_axes_that_are_not_modelled_are_named(self) -> None:
        plan = run(*SPARSE).plan("v5p-128")
        why = {row["axis"]: row["why"] for row in plan.tables["unused"]}
        assert "four stages" in why["stage"] and why["stage"].endswith("not modelled")
        assert why["fsdp_transpose"] == "it does the same as fsdp here"
        (note,) = (note for note in plan.notes if note.code == "mesh")
        assert "stage" in note.text and "expert" not in note.text

    def test_axes_that_another_one_beats_are_never_sized(self) -> None:
        plan = run(*SEVEN).plan("v5e-16")
        why = {row["axis"]: row["why"] for row in plan.tables["unused"]}
        assert "0.2 and later" in why["sequence"] and why["sequence"].endswith("not modelled")
        assert "twice as much" in why["tensor_transpose"] and "tensor" in why["tensor_transpose"]
        assert why["tensor_sequence"] == "it does the same as tensor here"
        assert why["context_autoregressive"] == "it shards neither weights nor tokens"
        assert "decoding" in why["autoregressive"]
        (note,) = (note for note in plan.notes if note.code == "mesh")
        assert "tensor" not in note.text and "autoregressive" not in note.text

    def test_a_choice_along_such_an_axis_has_no_figures(self) -> None:
        likened = run(*SEVEN).plan("v5e-16").like({"fsdp": 4, "sequence": 4})
        (note,) = likened.notes
        assert note.text.startswith("it has no figures: sequence is not modelled: MaxText 0.2")

    def test_a_config_keeps_its_own_axis_of_two_that_do_the_same(self) -> None:
        plan = run(*SEVEN, "ici_tensor_sequence_parallelism=4").plan("v5e-16")
        why = {row["axis"]: row["why"] for row in plan.tables["unused"]}
        assert why["tensor"] == "it does the same as tensor_sequence here"
        assert "tensor_sequence" not in why

    @pytest.mark.parametrize(
        ("overrides", "instance", "mesh"),
        [
            (("model_name=llama3.1-8b",), "v5p-10080", {"data": 315, "fsdp": 16}),
            (("model_name=deepseek3-671b",), "v5p-4608", {"data": 9, "fsdp": 256}),
        ],
    )
    def test_devices_with_many_divisors(self, overrides, instance, mesh) -> None:
        """These have tens of thousands of meshes, most of which do not divide the weights."""
        plan = run(*overrides, "per_device_batch_size=1").plan(instance)
        assert plan.best is not None and not any(note.code == "mesh" and "searched" in note.text
                                                 for note in plan.notes)  # fmt: skip
        likened = plan.like({**mesh, "policy": "full"})
        assert likened.is_fitting
        assert plan.best["step_seconds"] <= likened.choice[1].seconds * (1 + _plan.TIE)

    def test_sizes_that_do_not_divide_what_they_shard(self) -> None:
        """Every mesh that is left out has such a size, and none that is searched has one."""
        plan = run("model_name=llama3.1-8b", "per_device_batch_size=0.5").plan("v5e-24")
        dropped = {(axis, size) for axis, sizes, _ in plan._searched.sizes.dropped
                   for size in sizes}  # fmt: skip
        assert {("fsdp", 3), ("tensor", 24), ("data", 8)} <= dropped
        assert ("data", 3) not in dropped and ("fsdp", 4) not in dropped
        every = dict.fromkeys(plan._searched.axes, _plan_meshes.divisors(24))
        searched = list(_plan_meshes.meshes(plan._searched.sizes.axes, 24, 1))
        for mesh in _plan_meshes.meshes(every, 24, 1):
            implied = plan._searched.implied(mesh)
            runs = _plan_meshes.uneven(implied) is None and plan._searched.groups(implied)
            assert (mesh in searched) == dropped.isdisjoint(mesh.items())
            assert mesh in searched or not runs
        shown = {(row["axis"], row["sizes"]): row["why"] for row in plan.tables["sizes"]}
        assert shown["data", "8, 24"] == "12 sequences of a step"
        assert shown["fsdp", "3, 6, 12, 24"].startswith("4,096 of ")

    def test_sizes_that_do_not_divide_together_share_a_line(self) -> None:
        plan = run("model_name=gpt-oss-20b", "per_device_batch_size=4").plan("v5p-512")
        reasons = plan.tables["excluded"]["reason"]
        told = [own for own in reasons if "divide 2,880 of" in own]
        assert len(told) == len({own.partition(" = ")[0] for own in told})
        assert any("do not divide" in own for own in told)

    @pytest.mark.parametrize(
        ("axis", "rest"), [("context", "2,048 tokens into blocks of 512"), ("seq", "8 heads; ")]
    )
    def test_sizes_that_a_trainer_refuses_share_a_line(self, axis: str, rest: str) -> None:
        cfg = run(*SEVEN)
        if axis == "seq":
            cfg = hlofast.config.load(FIXTURES / "configs" / "decoder_70b_split.txt")
        plan = cfg.plan("tpu-v5p-128")
        (told,) = (row for row in plan.tables["excluded"] if f"divide {rest}" in row["reason"])
        found = re.search(rf"\b{axis} = ([\d, ]+) do not divide ", told["reason"])
        assert found is not None
        sizes = [int(size) for size in found[1].split(", ")]
        assert len(sizes) > 1 and sizes == sorted(set(sizes))
        # The search met each of them, and all its candidates are counted once.
        likened = [plan.like({axis: size, "fsdp": 64 // size}) for size in sizes]
        assert all(f"{axis} = {size} does not divide {rest}" in own.notes[0].text
                   for size, own in zip(sizes, likened, strict=True))  # fmt: skip
        facts = {fact.name: fact.value for fact in plan.facts}
        dropped = sum(plan.tables["excluded"]["candidates"])
        assert facts["candidates"] == facts["modelled"] + dropped

    def test_text_says_why_axes_are_left_at_one(self) -> None:
        text = str(run(*SEVEN).plan("v5e-16"))
        _, _, left = text.partition("\nAxes left at 1\n")
        assert "\nsequence " in left and "0.2 and later do not have this axis" in left
        assert re.search(r"\nexpert +it does the same as fsdp here\n", left)

    def test_many_devices(self) -> None:
        # 6,720 divisors.
        devices = 963_761_198_400
        plan = run(*SEVEN).plan("v5e-16", devices=devices, sequences=0)
        sizes = re.findall(r"=(\d+)", plan.best["mesh"])
        assert math.prod(map(int, sizes)) == devices


class TestOwnChoice:
    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ("per_device_batch_size=0", "MaxText fails here: per_device_batch_size is 0.0: give"),
            ("per_device_batch_size=1e30", "per_device_batch_size is 1e+30: give sequences"),
            ("per_device_batch_size=0.001", "0.001 makes 0 sequences: give sequences"),
            ("gradient_accumulation_steps=0", "gradient_accumulation_steps is 0: give sequences"),
        ],
    )
    def test_a_config_without_a_batch_names_the_key(self, given, words) -> None:
        cfg = run("model_name=llama2-7b", given)
        with pytest.raises(ValueError, match=re.escape(words)):
            cfg.plan("v5e-16")
        assert cfg.plan("v5e-16", sequences=64).best["sequences"] == 64

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ("remat_policy=junk", "remat_policy 'junk' is not modelled"),
            ("ici_tensor_parallelism=3", "are not divisible by 3"),
            ("ici_fsdp_parallelism=0", "a size that is neither positive nor -1"),
            ("ici_pipeline_parallelism=4", "stage is not modelled"),
        ],
    )
    def test_why_it_has_no_figures(self, given, words) -> None:
        plan = run(*SEVEN, given).plan("v6e-64")
        (note,) = (note for note in plan.notes if note.code == "own-choice")
        assert words in note.text and plan.best is not None

    def test_a_step_of_computation_alone_is_not_shown(self) -> None:
        # Tokens of a sequence that lie on two devices: dense matmuls of experts have no traffic.
        dense = ("sparse_matmul=false", "capacity_factor=1.25", "ici_context_parallelism=2")
        plan = run("model_name=mixtral-8x7b", "per_device_batch_size=1", *dense).plan("v5p-128")
        facts = {fact.name: fact.value for fact in plan.facts}
        assert facts["own_status"] == "fits" and facts["own_step_seconds"] is None

    def test_a_run_that_fails_on_every_mesh_has_no_plan(self) -> None:
        cfg = run("model_name=llama3.1-8b", "per_device_batch_size=4", "global_parameter_scale=3")
        with pytest.raises(ValueError, match="not a power of two: MaxText fails here"):
            cfg.plan("v6e-64")

    def test_a_batch_that_the_trainer_pads_has_its_memory(self) -> None:
        path = FIXTURES / "configs" / "decoder_small.txt"
        liked = hlofast.config.load(path).plan("tpu-v5p-512").like({"own": 1})
        assert liked.is_fitting and liked.refusal is not None and not liked.refusal.fails

    def test_one_that_the_trainer_cannot_run_has_no_step(self) -> None:
        plan = run("model_name=llama3.1-8b", "per_device_batch_size=2").plan("v5p-384")
        facts = {fact.name: fact.value for fact in plan.facts}
        assert facts["own_step_seconds"] is None and plan.best is not None
        (note,) = (note for note in plan.notes if note.code == "own-choice")
        assert "fsdp = 192 does not divide 4,096" in note.text


class TestNothingFits:
    def test_the_reason_is_told(self) -> None:
        plan = run("model_name=llama3.1-405b").plan("v5e-16")
        assert plan.best is None
        assert plan.lines == ()
        assert "the state exceeds the memory" in plan.notes[0].text
        own = plan.like({"own": 1})
        assert not own.is_fitting

    def test_the_least_that_is_needed_is_told(self) -> None:
        """53 devices or more hold the state; on 64, what steps keep is too large."""
        few, many = (run("model_name=llama3-70b").plan(f"v5e-{count}") for count in (4, 64))
        usable = 0.95 * 15.75
        per_device, _, rest = few.notes[0].text.partition("The state takes ")[2].partition(" GiB")
        assert math.ceil(4 * float(per_device) / usable) == 53
        assert rest == " or more per device (tensor=4): 53 or more such devices could hold it"
        # The state fits on some meshes of 8 devices, and not on others.
        long = run("model_name=llama2-7b", "per_device_batch_size=3", "max_target_length=65536")
        assert "A device needs " in long.plan("v5e-8").notes[0].text
        needed = many.notes[0].text.partition("A device needs ")[2]
        assert "more devices or shorter sequences need less" in needed
        assert usable < float(needed.partition(" GiB")[0]) < float(per_device)

    def test_more_devices_do_not_hold_what_no_axis_divides(self) -> None:
        odd = ("override_model_config=true", "base_emb_dim=7777")
        plan = run("model_name=llama3.1-8b", "per_device_batch_size=4", *odd).plan("v6e-64")
        (note,) = (note for note in plan.notes if note.code == "nothing-fits")
        assert "no size of an axis that divides the weights shards it further" in note.text

    @pytest.mark.parametrize(("chips", "is_whole"), [(12, False), (4, True), (16, True)])
    def test_gpus_fill_nodes(self, chips: int, is_whole: bool) -> None:
        cfg = run(*SEVEN)
        told = [note.text for note in cfg.plan(f"gpu-p5.48xlarge-{chips}").notes]
        assert ("12 devices are not a whole number of nodes of 8" in told) != is_whole

    @pytest.mark.parametrize(
        ("overrides", "instance"),
        [
            (("model_name=llama2-7b", "per_device_batch_size=1"), "v5e-4"),
            (("model_name=llama3.1-405b", "per_device_batch_size=1"), "v5e-256"),
            (("model_name=llama3.1-405b", "per_device_batch_size=1"), "v5e-64"),
        ],
    )
    def test_narrower_types_are_named_where_they_fit(self, overrides, instance) -> None:
        config = run(*overrides)
        plan = config.plan(instance)
        assert plan.best is None
        narrow = config.plan(instance, state_dtype="bfloat16")
        told = "would fit (--state-dtype bfloat16)"
        assert (told in plan.notes[0].text) == (narrow.best is not None)
        if narrow.best is not None:
            assert f"; {narrow.best['state_types']} {told}" in plan.notes[0].text
        assert told not in narrow.notes[0].text

    def test_batches_that_every_mesh_divides_are_named(self) -> None:
        config = run("model_name=llama2-7b")
        plan = config.plan("v5e-256", sequences=7)
        (note,) = (own for own in plan.notes if own.code == "batch")
        assert note.text == (
            "7 sequences of a step do not divide on all meshes of 256 devices; 256 do (--batch)"
        )
        assert config.plan("v5e-256", sequences=256).best is not None
        large = run("model_name=llama3.1-405b").plan("v5e-64", sequences=1000)
        (note,) = (own for own in large.notes if own.code == "batch")
        assert "; 960 or 1,024 do" in note.text
        # No axis has a size that divides both the weights and the batch.
        odd = config.plan("v5e-7", sequences=5)
        assert odd.notes[0].text == (
            "no choice can be planned; no mesh of 7 devices divides the weights and the batch"
        )

    def test_a_search_that_is_cut_says_which_meshes_it_saw(self, monkeypatch) -> None:
        monkeypatch.setattr(_plan_meshes, "MOST_MESHES", 4)
        few = run("model_name=llama3.1-405b").plan("v5e-16")
        assert "no choice fits among the 4 meshes that are searched; " in few.notes[0].text
        plan = run(*SEVEN).plan("v5e-16")
        (note,) = (own for own in plan.notes if own.text.startswith("only"))
        assert note.text == (
            "only 4 meshes are searched: all with fewer than 2 axes above 1, and not all with 2"
        )
        assert all("," not in mesh for mesh in plan.ranked["mesh"])

    def test_parts_without_a_model_are_told_before_their_type(self) -> None:
        cfg = hlofast.config.load(FIXTURES / "configs" / "hybrid_mesh.txt")
        (first, *others) = cfg.plan("tpu-v5p-128", sequences=8).notes
        assert first.text == "no choice can be planned; the config: the class is not modelled"
        assert not any(note.code == "batch" for note in others)

    def test_exit_code(self) -> None:
        done = hlofast_command("plan", "model_name=llama3.1-405b", "--instance", "v5e-16")
        assert done.returncode == 1
        assert "no choice fits" in done.stdout


class TestWithoutTimes:
    """Runs whose memory is modelled and whose step time is not."""

    @pytest.mark.parametrize(
        ("override", "why"),
        [
            ("dtype=float32", "no step time for elements of 4 bytes: peaks are for bfloat16"),
            (
                "quantization=int8",
                "quantization: the rate of matmuls under quantization 'int8' is not modelled; "
                "memory is that of unquantised values, without copies that only quantised steps "
                "hold",
            ),
        ],
    )
    def test_choices_that_fit_have_no_times(self, override: str, why: str) -> None:
        config = run(*SEVEN, override)
        plan = config.plan("v5e-16", tokens=1e9)
        (note,) = (own for own in plan.notes if own.code == "untimed")
        text = f"step times are not modelled: {why}; choices are ranked without it, as if matmuls ran at the "
        assert note.text == f"{text}rate of bfloat16"
        (note,) = (own for own in plan.like({"own": 1}).notes if own.code == "untimed")
        assert note.text == f"only its memory is modelled: {why}"
        times = (
            "step_seconds", "slower_seconds", "mfu", "tokens_per_second", "exposed_seconds",
            "time_binds", "chip_hours",
        )  # fmt: skip
        for table in (plan.ranked, plan.frontier):
            assert len(table)
            assert all(row[name] is None for row in table for name in times)
            assert not any(row["is_tied"] for row in table)
        assert not len(plan.tables["parts"])
        assert not {"step_seconds", "step_low_seconds", "mfu"} & {
            fact.name for fact in plan.facts if fact.value is not None
        }
        verdict = run(*SEVEN, override, *plan.lines).select("v5e-16").verdict()
        assert verdict.expected_peak_bytes == plan.best["peak_bytes"]
        assert verdict.step_seconds is None and any(why in own for own in verdict.statements)

    def test_they_rank_as_without_the_reason(self) -> None:
        plan, plain = (run(*SEVEN, *more).plan("v5p-32") for more in (("quantization=int8",), ()))
        for name in ("mesh", "policy"):
            assert list(plan.ranked[name]) == list(plain.ranked[name])

    def test_machines_without_times_are_not_compared(self) -> None:
        given = ("model_name=llama2-7b", "quantization=int8", "--device", "v5e", "--device", "v5p")
        results = document("plan", *given, "--chips", "16")["results"]
        for row in results[-1]["tables"]["machines"]:
            assert row["chip_hours"] is None and "step times are not modelled" in row["why"]


def test_ten_thousand_candidates_need_few_models() -> None:
    """Of each candidate that a plan drops, it computes next to nothing."""
    config = run(*EIGHT)
    with cProfile.Profile() as profiler:
        plan = config.plan("v5p-512")
    facts = {fact.name: fact.value for fact in plan.facts}
    assert facts["candidates"] > 10_000
    assert facts["modelled"] < facts["candidates"] / 20
    assert math.isclose(plan.ranked["slower_seconds"][0], 0)
    calls = sum(entry.callcount for entry in profiler.getstats())
    assert calls < 60 * facts["candidates"]
