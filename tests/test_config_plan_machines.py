"""Plans: types of the state, several machines, and how JAX lays meshes on the torus of a slice."""

import math

import pytest

import hlofast
from hlofast.config import Config, _torus
from test_cli import document, hlofast_command
from test_config_plan import SEVEN, run


@pytest.fixture(scope="module")
def small():
    return run(*SEVEN).plan("v5e-16")


class TestStateTypes:
    def test_narrower_moments_and_weights_are_choices(self) -> None:
        wide = run(*SEVEN, "ici_data_parallelism=1").plan("v5e-16")
        plan = run(*SEVEN).plan("v5e-16", state_dtype="bfloat16")
        assert wide.best["state_types"] == "the config's own"
        assert plan.best["step_seconds"] <= wide.best["step_seconds"]
        names = [own.name for own in plan._searched.states]
        assert names == [
            "the config's own",
            "first moments bfloat16",
            "weights and moments bfloat16",
        ]
        facts = {fact.name: fact.value for fact in plan.facts}
        dropped = sum(plan.tables["excluded"]["candidates"])
        assert facts["candidates"] == facts["modelled"] + dropped

    @pytest.mark.parametrize("state", ["first moments bfloat16", "weights and moments bfloat16"])
    def test_a_run_with_the_written_arguments_has_the_promised_state(self, state) -> None:
        plan = run(*SEVEN).plan("v5e-16", state_dtype="bfloat16")
        other = plan.like({"fsdp": 16, "batch": 1, "policy": "full", "state": state})
        candidate, own = other._this
        lines = plan._searched.front.written(plan._searched.config, candidate, "")
        key = "mu_dtype" if "first" in state else "weight_dtype"
        assert f"{key}=bfloat16" in lines
        verdict = run(*SEVEN, *lines).select("v5e-16").verdict()
        assert verdict.memory.state_bytes == own.state
        assert verdict.expected_peak_bytes == own.peak
        assert verdict.step_seconds == pytest.approx(own.seconds, rel=1e-12)
        # Four bytes of a weight, and of each of its two moments.
        share = 10 / 12 if "first" in state else 1 / 2
        whole = run(*SEVEN, *lines, f"{key}=float32").select("v5e-16").verdict()
        assert own.state == pytest.approx(whole.memory.state_bytes * share, rel=1e-6)

    def test_a_note_on_rounding(self) -> None:
        device = hlofast.devices.get("tpu-v5e").replace(hbm_usable_bytes=4.6e9)
        plan = run(*SEVEN).plan("v5e-16", device=device, state_dtype="bfloat16")
        assert plan.best["state_types"] == "weights and moments bfloat16"
        assert any(note.code == "state-types" for note in plan.notes)
        assert run(*SEVEN).plan("v5e-16", device=device).best is None

    def test_of_axlearn(self, decoder_70b: Config) -> None:
        plan = decoder_70b.plan("tpu-v6e-256", state_dtype="bfloat16", offloads=False)
        names = [own.name for own in plan._searched.states[1:]]
        assert names == ["first moments bfloat16", "weights and moments bfloat16"]
        candidate = plan._searched.best[0].candidate
        for state, share in zip(plan._searched.states[1:], (10 / 12, 1 / 2), strict=True):
            candidate.state = state
            lines = plan._searched.front.written(decoder_70b, candidate, "tpu-v6e-256")
            (path, value) = next(iter(state.values.items()))
            assert lines[0] == f"# In the trainer's config: {path} = jnp.bfloat16"
            assert value == "jax.numpy.bfloat16"
            own, narrow = (
                config.without("mesh_rules").select("tpu-v6e-256").memory().state_bytes
                for config in (decoder_70b, state.config)
            )
            assert narrow == pytest.approx(own * share, rel=1e-6)

    def test_the_batch_of_axlearn(self, decoder_70b: Config) -> None:
        """No modifier sets it."""
        own = decoder_70b.plan("tpu-v6e-256", offloads=False)
        assert not any("batch_size" in line for line in own.lines)
        other = decoder_70b.plan("tpu-v6e-256", sequences=2048, offloads=False)
        path = "input.input_dispatcher.global_logical_batch_size"
        if decoder_70b.get(path) is None:
            path = "input.batcher.global_batch_size"
        assert decoder_70b.get(path) != 2048
        assert other.lines[0] == f"# In the trainer's config: {path} = 2048"
        assert other.lines[1].startswith('("tpu-v6e-256", ChainConfigModifier')
        pasted = decoder_70b.with_value(path, 2048).plan("tpu-v6e-256", offloads=False)
        assert pasted.best["sequences"] == 2048 and pasted.lines == other.lines[1:]

    def test_the_config_of_a_model_alone_has_no_types_of_weights(self, decoder_70b) -> None:
        model = decoder_70b["model"].plan("tpu-v6e-256", sequences=256, state_dtype="bfloat16")
        assert model.best is None and "no choice can be planned" in model.notes[0].text

    def test_types_of_no_weights(self) -> None:
        with pytest.raises(ValueError, match="state_dtype is not a type of weights: 'int3'"):
            run(*SEVEN).plan("v5e-16", state_dtype="int3")


class TestMachines:
    def test_chip_hours_side_by_side(self) -> None:
        given = ("model_name=llama3.1-8b", "--device", "v5e", "--device", "v5p", "--chips", "64")
        results = document("plan", *given, "--tokens", "1e10")["results"]
        assert [own["name"] for own in results] == [
            "tpu-v5litepod-64",
            "tpu-v5p-128",
            "tpu-v5litepod-64 and tpu-v5p-128",
        ]
        first, second = results[-1]["tables"]["machines"]
        assert first["instance"] == "tpu-v5p-128" and first["dearer"] == 0
        assert second["dearer"] == pytest.approx(second["chip_hours"] / first["chip_hours"] - 1)
        assert results[-1]["facts"]["tokens"] == {
            "value": 10**10, "unit": None, "provenance": "configuration",
        }  # fmt: skip
        assumed = document("plan", *given)["results"][-1]["facts"]["tokens"]
        assert (assumed["value"], assumed["provenance"]) == (10**9, "assumed")
        for row, own in ((first, results[1]), (second, results[0])):
            assert row["chip_hours"] == pytest.approx(own["facts"]["chip_hours"]["value"])
            assert row["hours"] == pytest.approx(row["chip_hours"] / 64)
        shown = hlofast_command("plan", *given).stdout
        assert "The fastest choice of each machine, for 1,000,000,000 tokens" in shown

    def test_machines_on_which_nothing_fits_come_last(self) -> None:
        given = ("model_name=llama2-70b", "--device", "v5e", "--device", "v5p", "--chips", "16")
        results = document("plan", *given)["results"]
        rows = results[-1]["tables"]["machines"]
        assert rows[-1]["instance"] == "tpu-v5litepod-16"
        assert rows[-1]["chip_hours"] is None and "no choice fits" in rows[-1]["why"]


LAID = {
    ("tpu-v5e", 256): [(16, 16), (1, 256)],
    ("tpu-v5e", 64): [(8, 8)],
    ("tpu-v6e", 256): [(16, 16)],
    ("tpu-v5p", 64): [(4, 16), (16, 4), (1, 64)],
    ("tpu-v5p", 128): [(4, 32), (8, 16), (16, 8), (32, 4)],
}
SPLIT = {
    ("tpu-v5e", 256): [(2, 128), (4, 64), (64, 4), (128, 2), (8, 32)],
    ("tpu-v5e", 64): [(2, 32), (4, 16)],
    ("tpu-v5e", 16): [(2, 8)],
    ("tpu-v6e", 256): [(2, 128), (4, 64)],
    ("tpu-v5p", 64): [(2, 32), (8, 8)],
    ("tpu-v5p", 128): [(2, 64)],
}


class TestTorus:
    """What `mesh_utils.create_device_mesh` of JAX 0.10.2 does with devices of libtpu's topologies."""

    @pytest.mark.parametrize(("known", "is_laid"), [(LAID, True), (SPLIT, False)])
    def test_meshes(self, known, is_laid) -> None:
        for (device, chips), meshes in known.items():
            torus = _torus.shape(device, chips)
            assert math.prod(torus) == chips
            for sizes in meshes:
                assert _torus.is_laid(torus, sizes) == is_laid, (device, chips, sizes)

    def test_shapes_of_slices(self) -> None:
        shapes = {128: (4, 4, 8), 256: (4, 8, 8), 512: (8, 8, 8), 1024: (8, 8, 16),
                  2048: (8, 16, 16), 6144: (16, 16, 24)}  # fmt: skip
        for chips, expected in shapes.items():
            assert _torus.shape("tpu-v5p", chips) == _torus.shape("tpu-v4", chips) == expected
        assert _torus.shape("tpu-v5e", 512) is _torus.shape("h100", 64) is None
        assert _torus.shape("tpu-v5p", 100) is _torus.shape("tpu-v5p", 1 << 40) is None

    def test_a_plan_says_which_meshes_split_the_torus(self, small) -> None:
        split = {row["mesh"]: row["is_split"] for row in small.ranked}
        for mesh, is_split in split.items():
            sizes = [int(part.partition("=")[2]) for part in mesh.split(",")]
            assert is_split == (not _torus.is_laid((4, 4), sizes))
        assert split["fsdp=16"] is False and True in split.values()
        lines = {
            own.candidate.is_split: small._searched.front.written(
                small._searched.config, own.candidate, ""
            )
            for own in small._searched.best
        }
        assert "allow_split_physical_axes=True" in lines[True]
        assert not any("split" in line for line in lines[False])

    def test_a_run_that_splits_the_torus_is_told(self) -> None:
        given = (*SEVEN, "ici_data_parallelism=2", "ici_fsdp_parallelism=8")
        texts = [row["text"] for row in run(*given).select("v5e-16").notes]
        assert any("fails here unless allow_split_physical_axes=true" in text for text in texts)
        for more in ((*given, "allow_split_physical_axes=true"), SEVEN):
            assert not any("split" in row["text"] for row in run(*more).select("v5e-16").notes)
