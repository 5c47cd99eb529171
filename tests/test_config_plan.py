"""Plans: the fastest mesh, batch, accumulation and checkpoint policy of a config that fit."""

import ast
import math
import subprocess
import sys
from pathlib import Path

import pytest

import hlofast
from browser import Browser
from hlofast._verdict_figures import seconds
from hlofast.config import Config, _plan
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
    ],
)
def test_a_run_with_the_written_arguments_has_the_promised_step(
    overrides, instance, arguments
) -> None:
    plan = run(*overrides).plan(instance, **arguments)
    best = plan.best
    verdict = run(*overrides, *plan.lines).select(instance).verdict()
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
            for mesh in _plan._plan_space.meshes(searched.axes, 16, 1)
            if _plan._plan_space.first_gap(searched.implied(mesh)) is None
            and _plan._plan_space.uneven(searched.implied(mesh)) is None
            for own in searched.of_mesh(mesh)
        ]
        fastest = min(own.seconds for own in fitting)
        limit = fastest * (1 + _plan.TIE) * (1 + _plan.SAME)
        assert fastest <= small.best["step_seconds"] <= limit
        for row in small.ranked:
            own = [
                one.seconds
                for one in fitting
                if _plan.shown_mesh(one.candidate.mesh) == row["mesh"]
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
        spread = _plan._plan_space.spread
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
        assert "since 0.2" in why["sequence"] and why["sequence"].endswith("not modelled")
        assert "twice as much" in why["tensor_transpose"] and "tensor" in why["tensor_transpose"]
        assert why["tensor_sequence"] == "it does the same as tensor here"
        assert why["context_autoregressive"] == "it shards neither weights nor tokens"
        assert "decoding" in why["autoregressive"]
        (note,) = (note for note in plan.notes if note.code == "mesh")
        assert "tensor" not in note.text and "autoregressive" not in note.text

    def test_a_choice_along_such_an_axis_has_no_figures(self) -> None:
        likened = run(*SEVEN).plan("v5e-16").like({"fsdp": 4, "sequence": 4})
        (note,) = likened.notes
        assert note.text.startswith("it has no figures: sequence is not modelled: versions")

    def test_a_config_keeps_its_own_axis_of_two_that_do_the_same(self) -> None:
        plan = run(*SEVEN, "ici_tensor_sequence_parallelism=4").plan("v5e-16")
        why = {row["axis"]: row["why"] for row in plan.tables["unused"]}
        assert why["tensor"] == "it does the same as tensor_sequence here"
        assert "tensor_sequence" not in why

    def test_many_devices(self) -> None:
        # 6,720 divisors.
        plan = run(*SEVEN).plan("v5e-16", devices=963_761_198_400, sequences=0)
        assert plan.best is None


class TestNothingFits:
    def test_the_reason_is_told(self) -> None:
        plan = run("model_name=llama3.1-405b").plan("v5e-16")
        assert plan.best is None
        assert plan.lines == ()
        assert "the state exceeds the memory" in plan.notes[0].text
        with pytest.raises(ValueError, match="nothing fits"):
            plan.like({"fsdp": 16})
        own = plan.like({"own": 1})
        assert not own.is_fitting

    def test_exit_code(self) -> None:
        done = hlofast_command("plan", "model_name=llama3.1-405b", "--instance", "v5e-16")
        assert done.returncode == 1
        assert "no choice fits" in done.stdout


def test_types_without_a_step_time_are_not_ranked() -> None:
    config = run("model_name=llama3.1-8b", "dtype=float32")
    plan = config.plan("v5p-128")
    why = "no step time for elements of 4 bytes: peaks are for bfloat16"
    assert plan.best is None and plan.notes[0].text.endswith(why)
    verdict = config.select("v5p-128").verdict()
    assert verdict.step_seconds is None and why in verdict.statements


class TestLike:
    def test_the_config_itself(self, eight) -> None:
        own = eight.like({"own": 1})
        verdict = run(*EIGHT).select("v5p-512").verdict()
        facts = {fact.name: fact.value for fact in own.facts}
        assert facts["step_seconds"] == pytest.approx(verdict.step_seconds)
        assert facts["peak_bytes"] == verdict.expected_peak_bytes
        assert facts["slower_seconds"] == pytest.approx(
            verdict.step_seconds - eight.best["step_seconds"]
        )
        assert sum(own.tables["step"]["more"]) == pytest.approx(facts["slower_seconds"])
        assert sum(own.tables["peak"]["this"]) == verdict.expected_peak_bytes
        assert facts["policy"] == "full (the config's)"

    @pytest.mark.parametrize("sequences", [512, 4096])
    def test_the_config_with_another_batch(self, sequences: int) -> None:
        plan = run(*EIGHT).plan("v5p-512", sequences=sequences)
        same = run(*EIGHT, f"per_device_batch_size={sequences / 256:g}")
        verdict = same.select("v5p-512").verdict()
        facts = {fact.name: fact.value for fact in plan.facts}
        assert facts["own_sequences"] == sequences
        assert facts["own_step_seconds"] == pytest.approx(verdict.step_seconds)
        assert facts["own_status"] == verdict.status
        own = {fact.name: fact.value for fact in plan.like({"own": 1}).facts}
        assert own["step_seconds"] == facts["own_step_seconds"]

    def test_the_config_keeps_its_batch_where_the_plan_chooses_one(self) -> None:
        plan = run(*EIGHT).plan("v5p-512", sequences=0)
        verdict = run(*EIGHT).select("v5p-512").verdict()
        facts = {fact.name: fact.value for fact in plan.facts}
        assert facts["own_step_seconds"] == pytest.approx(verdict.step_seconds)
        assert facts["own_sequences"] == 1024 != facts["sequences"]
        # A step of the plan's choice is longer, but for more sequences.
        each = facts["own_step_seconds"] / 1024 * facts["sequences"]
        (finding,) = plan.report(plots=False).tables["findings"]
        assert f"{facts['sequences']:,} sequences" in finding["text"]
        assert finding["stake"] == f"{seconds(each - facts['step_seconds'])} per step"

    def test_the_config_on_a_batch_that_it_cannot_run(self) -> None:
        plan = run(*EIGHT).plan("v5p-512", sequences=1000)
        facts = {fact.name: fact.value for fact in plan.facts}
        assert facts["own_step_seconds"] is None and facts["own_status"] is None
        (note,) = (note for note in plan.notes if note.code == "own-choice")
        assert "1,000 sequences do not divide into 256 shards" in note.text

    def test_the_best_loses_nothing(self, eight) -> None:
        again = eight.like({})
        facts = {fact.name: fact.value for fact in again.facts}
        assert facts["slower_seconds"] == 0 and facts["fits"]
        assert len(again.tables["different"]) == 0
        assert eight.like(again.to_choice()).facts[0].value == facts["mesh"]

    def test_a_choice_loses_where_it_differs(self, eight) -> None:
        other = eight.like({"fsdp": 64, "tensor": 4, "policy": "minimal"})
        most = next(iter(other.tables["step"]))
        assert most["part"] == "reductions of activations" and most["best"] == 0
        different = {row["choice"] for row in other.tables["different"]}
        assert different == {"mesh", "policy", "batch/device"} or different == {"mesh", "policy"}

    @pytest.mark.parametrize(
        ("choice", "why"),
        [
            ({"fsdp": 128}, "128 devices, not 256"),
            ({"fsdp": 16, "tensor": 16}, "does not divide 8"),
            ({"accumulation": 3}, "do not divide into"),
            ({"data": 2, "context": 128}, "context"),
        ],
    )
    def test_what_the_trainer_cannot_run(self, eight, choice, why) -> None:
        other = eight.like(choice)
        assert why in other.notes[0].text
        assert not other.is_fitting

    @pytest.mark.parametrize(
        ("choice", "why"),
        [
            ({"rows": 4}, "'rows' is not a choice"),
            ({"policy": "best"}, "policy 'best' is not known"),
            ({"policy": "minimal_flsh"}, "did you mean minimal_flash"),
            ({"fdsp": 16}, "'fdsp' is not a choice; did you mean fsdp"),
            ({"state": "narrow"}, "state 'narrow' is not known; known: own"),
            ({"fsdp": 0}, "fsdp has a size"),
            ({"batch": "many"}, "batch is not 'many'"),
            ({"own": 0}, "own is a whole choice: give it alone"),
            ({"own": 1, "policy": "full"}, "own is a whole choice: give it alone"),
            ({"batch": 3}, "batch=3 on 256 devices does not make the 1,024 sequences"),
            ({"batch": 2, "accumulation": 3}, "batch=2 on 256 devices and accumulation=3 does not"),
        ],
    )
    def test_what_is_no_choice(self, eight, choice, why) -> None:
        with pytest.raises(ValueError, match=why):
            eight.like(choice)

    @pytest.mark.parametrize("batch", [1e-7, 0.3])
    def test_a_batch_of_no_whole_sequences(self, batch: float) -> None:
        plan = run("model_name=llama3.1-8b").plan("v5p-128", sequences=0)
        with pytest.raises(ValueError, match="does not make a whole number of sequences"):
            plan.like({"batch": batch})

    def test_what_the_model_does_not_tell_from_the_best(self, eight) -> None:
        (note,) = eight.like({"data": 2, "fsdp": 128}).notes
        assert note.code == "tied" and 0 < note.figures["slower"] < 0.095
        assert not eight.like({"own": 1}).notes and not eight.like({}).notes

    def test_what_does_not_fit(self) -> None:
        plan = run(*SEVEN).plan("v5e-16")
        other = plan.like({"policy": "minimal_flash", "accumulation": 1})
        assert not other.is_fitting
        assert "exceeds the usable memory by" in other.notes[0].text


class TestPage:
    def test_figures_are_those_of_the_library(self, eight, tmp_path: Path) -> None:
        page = eight.report(tmp_path / "plan.html", plots=False)
        assert page.path == str(tmp_path / "plan.html")
        assert (tmp_path / "plan.html").read_text() == page.html
        best = eight.best
        assert page.verdict == {
            "step": best["step_seconds"],
            "mfu": best["mfu"],
            "peak": best["peak_bytes"],
            "exposed": best["exposed_seconds"],
        }
        (finding,) = page.tables["findings"]
        assert "takes 6.6" in finding["text"] and best["policy"] in finding["remedy"]

    def test_nothing_fits(self) -> None:
        page = run("model_name=llama3.1-405b").plan("v5e-16").report()
        assert page.verdict == {"step": None}
        assert "no choice fits" in page.html

    def test_in_a_browser(self, browser: Browser, eight, tmp_path: Path) -> None:
        pytest.importorskip("bokeh")
        eight.report(tmp_path / "plan.html")
        opened = browser.open(tmp_path / "plan.html")
        assert not opened.errors and len(opened.requests) == 1
        assert "fsdp=256" in opened.text("#meshes")
        assert "Memory against time" in opened.text("#frontier")
        assert opened.text("#choice pre") == "\n".join(eight.lines)

    def test_machines_in_a_browser(self, browser: Browser, tmp_path: Path) -> None:
        pytest.importorskip("bokeh")
        page = tmp_path / "machines.html"
        given = ("model_name=llama2-7b", "--device", "v5e", "--device", "v5p", "--chips", "16")
        assert hlofast_command("plan", *given, "--tokens", "1e12", "-o", page).returncode == 0
        opened = browser.open(page)
        assert not opened.errors and len(opened.requests) == 1
        (first, second) = document("plan", *given, "--tokens", "1e12")["results"][-1]["tables"][
            "machines"
        ]
        shown = opened.text("#machines")
        for row in (first, second):
            assert f"{row['chip_hours']:,.0f}" in shown
            assert f"{row['tokens_per_second']:,.0f}" in shown
        assert "To paste" in opened.text("#plan0") and "fsdp=16" in opened.text("#plan1")

    def test_of_the_command(self, tmp_path: Path) -> None:
        page = tmp_path / "plan.html"
        given = ("plan", "model_name=llama2-7b", "--instance", "v5e-16", "-o", page)
        assert hlofast_command(*given).returncode == 0
        assert page.read_text().startswith("<!DOCTYPE html>")
        assert hlofast_command(*given, "--like", "own").returncode == 2
        done = hlofast_command(*given[:-1], tmp_path / "none" / "plan.html")
        said = f"hlofast: {tmp_path / 'none'}: No such file or directory\n"
        assert (done.returncode, done.stdout, done.stderr) == (3, "", said)
        done = hlofast_command(*given[:-1], "-")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("<!DOCTYPE html>") and done.stdout.endswith("</html>\n")
        config = tmp_path / "run.yml"
        config.write_text("model_name: llama2-7b\n")
        done = hlofast_command("plan", config, "--instance", "v5e-16", "-o", config)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"hlofast: {config}: an input, which would be overwritten\n"
        assert config.read_text() == "model_name: llama2-7b\n"


class TestCommand:
    def test_text_and_json_are_those_of_the_library(self) -> None:
        arguments = ("model_name=llama2-7b", "--instance", "v5e-16", "--tokens", "1e9")
        plan = run("model_name=llama2-7b").plan("v5e-16", tokens=1e9)
        assert str(plan) in hlofast_command("plan", *arguments).stdout
        (shown,) = document("plan", *arguments)["results"]
        assert shown["facts"]["step_seconds"]["value"] == plan.best["step_seconds"]
        assert shown["tables"]["ranked"][0]["mesh"] == plan.best["mesh"]

    def test_machines(self) -> None:
        several = ("--device", "v5e", "--device", "v6e", "--chips", "64", "--slices", "2")
        results = document("plan", "model_name=llama2-7b", *several)["results"]
        assert [own["name"] for own in results] == [
            "tpu-v5litepod-32-2",
            "tpu-v6e-32-2",
            "tpu-v5litepod-32-2 and tpu-v6e-32-2",
        ]

    def test_a_reader_may_stop_reading(self) -> None:
        command = [sys.executable, "-P", "-m", "hlofast", "plan", "model_name=llama2-7b"]
        with subprocess.Popen(
            [*command, "--instance", "v5e-64"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""

    def test_overrides_between_options(self) -> None:
        apart = ("--instance", "v5e-16", "model_name=llama2-7b", "--no-offload")
        (shown,) = document("plan", *apart, "per_device_batch_size=2")["results"]
        assert shown["facts"]["sequences"]["value"] == 32

    def test_like(self) -> None:
        given = ("model_name=llama3.1-8b", "--instance", "v5p-512", "--like")
        (other,) = document("plan", *given, "fsdp=64,tensor=4,policy=minimal")["results"]
        assert other["facts"]["mesh"]["value"] == "fsdp=64,tensor=4"
        assert hlofast_command("plan", *given, "own").returncode == 0
        assert hlofast_command("plan", *given, "fsdp=128").returncode == 1
        done = hlofast_command("plan", *given, "pace=3")
        assert done.returncode == 3 and "is not a choice" in done.stderr
        for text in (
            "fsdp=64,fsdp=32",
            "own,own",
            "own=0",
            "own=1,policy=full",
            "",
            "=3",
            "batch=5",
        ):
            done = hlofast_command("plan", *given, text)
            assert done.returncode == 3
            assert done.stderr.startswith("hlofast: ") and done.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("--instance", "v5e-16", "--device", "v5e", "--chips", "16"),
            ("--device", "v5e"),
            ("--instance", "v5e-16", "--slices", "2"),
            ("--device", "v5e", "--chips", "16", "--slices", "0"),
            ("--instance", "v5e-16", "--state-dtype", "int8"),
            ("--instance", "v5e-16", "--margin", "1"),
            ("--instance", "v5e-16", "--tokens", "0"),
        ],
    )
    def test_usage(self, arguments) -> None:
        assert hlofast_command("plan", "model_name=llama2-7b", *arguments).returncode == 2

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("--batch", "-1"), "--batch: not a whole number from 0: '-1'"),
            (("--margin", "-1"), "--margin: not a number from 0: '-1'"),
            (("--margin", "nan"), "--margin: not a number from 0: 'nan'"),
        ],
    )
    def test_numbers_that_are_none(self, arguments, why) -> None:
        done = hlofast_command("plan", "model_name=llama2-7b", "--instance", "v5e-16", *arguments)
        assert done.returncode == 2 and why in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("--device", "v9", "--chips", "16"), "v9"),
            (("--device", "v100", "--chips", "16"), "no instance name is known"),
            (("--device", "v5e", "--chips", "16", "--slices", "3"), "do not divide"),
            (("--instance", "somewhere"), "kind of device is not known"),
            (("--instance", "v5p-7"), "number of devices is not known"),
        ],
    )
    def test_machines_that_are_not_known(self, arguments, why) -> None:
        done = hlofast_command("plan", "model_name=llama2-7b", *arguments)
        assert done.returncode == 3
        assert why in done.stderr
        assert "Traceback" not in done.stderr


def test_ten_thousand_candidates_need_few_models() -> None:
    plan = run(*EIGHT).plan("v5p-512")
    facts = {fact.name: fact.value for fact in plan.facts}
    assert facts["candidates"] > 10_000
    assert facts["modelled"] < facts["candidates"] / 20
    assert math.isclose(plan.ranked["slower_seconds"][0], 0)
