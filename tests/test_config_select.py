"""Mesh rules: which one an instance selects, what its modifiers do, which mesh comes out."""

import pickle
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hlofast
from conftest import FIXTURES, Seeds
from hlofast.config import Config, ConfigError, EffectiveConfig, Instance, PartitionSpec

LAYER = "model.decoder.transformer.layer"
ATTENTION = f"{LAYER}.self_attention.attention"
PATH = FIXTURES / "configs" / "trainer_rules.txt"


@pytest.fixture(scope="module")
def trainer() -> Config:
    return hlofast.config.load(PATH)


def notes(effective: EffectiveConfig, kind: str) -> list[str]:
    return [row["text"] for row in effective.notes if row["kind"] == kind]


def shape(effective: EffectiveConfig) -> dict[str, int]:
    assert effective.mesh is not None
    return {name: size for name, size in effective.mesh.shape.items() if size > 1}


def read(name: str) -> Instance:
    return Config.of().select(name).instance


def resolved(names: list[str], sizes: Any, devices: int | None, slices: int) -> EffectiveConfig:
    """A config with this mesh on TPU slices."""
    config = Config.of(mesh_axis_names=names, mesh_shape=sizes)
    return config.select(f"tpu-v6e-1-{slices}" if devices else "tpu-any", devices)


class TestRules:
    def test_table(self, trainer: Config) -> None:
        rows = trainer.rules().to_pylist()
        assert [row["rule"] for row in rows] == list(range(11))
        assert rows[2] == {
            "rule": 2,
            "selector": "tpu-v6e-16-(2|4)",
            "mesh_shape": "pipeline=1,data=-1,fsdp=16,model=1",
            "modifiers": "MeshShapeModifier,V6eFlashConfigModifier",
            "instances": "tpu-v6e-16-2,tpu-v6e-16-4",
        }
        assert rows[1]["instances"] is None  # `.*` matches anything.
        assert rows[3]["modifiers"] == (
            "GradientAccumulationModifier,MeshShapeModifier,MeshShapeModifier"
        )
        assert len(rows[4]["instances"].split(",")) == 4 and rows[4]["modifiers"] == ""
        assert rows[6]["mesh_shape"] is None

    def test_configs_without_rules(self) -> None:
        for text in ("a: 1", "mesh_rules: None"):
            config = hlofast.config.loads(text)
            assert len(config.rules()) == 0
            assert config.select("tpu-v6e-16").rule is None

    @pytest.mark.parametrize(
        ("instance", "rule"),
        [
            ("tpu-v5litepod-16-2", 0),
            ("tpu-v5p-8", 1),
            ("tpu-v5p-", 1),
            ("tpu-v6e-16-2", 2),
            ("tpu-v6e-16-4", 2),
            ("tpu-v6e-16", 3),
            ("tpu-v6e-16-8", None),
            ("tpu-v6e-16-", None),
            ("xtpu-v6e-16", None),
            ("gpu-p5.48xlarge-16", 4),
            ("gpu-p5x48xlarge-16", 4),  # A dot in a selector is any character.
            ("gpu-p5.48xlarge-64", None),
            ("neuron-trn2n.48xlarge-8", 7),
        ],
    )
    def test_the_first_rule_that_matches_the_whole_name(
        self, trainer: Config, instance: str, rule: int | None
    ) -> None:
        effective = trainer.select(instance)
        assert effective.rule == rule
        rows = trainer.rules().to_pylist()
        assert effective.selector == (None if rule is None else rows[rule]["selector"])
        assert effective.source is trainer

    def test_no_rule_says_which_are_close(self, trainer: Config) -> None:
        effective = trainer.select("tpu-v6e-16-8")
        assert effective.config == trainer and len(effective.changes) == 0
        assert notes(effective, "no-rule") == [
            "no rule matches 'tpu-v6e-16-8': the config is used unchanged",
            "rule 2, 'tpu-v6e-16-(2|4)', is close: after 'tpu-v6e-16-' it expects '2' or '4', "
            "not '8'",
            "rule 3, 'tpu-v6e-16', is close: after 'tpu-v6e-16' it expects the end, not '-8'",
        ]
        assert effective.near.row(0) == {
            "rule": 2,
            "selector": "tpu-v6e-16-(2|4)",
            "fits": "tpu-v6e-16-",
            "expected": "'2' or '4'",
        }
        assert shape(effective) == {"fsdp": 128}
        short = notes(trainer.select("gpu-p5.48xlarge-"), "no-rule")
        assert short[1].endswith("it expects '16' or '32', where the name ends")

    def test_no_more_rules_than_anybody_writes_are_read(self) -> None:
        text = "".join(
            f"mesh_rules[{index}][0]: 'tpu-v6e-(a{{{index % 9}}})'\nmesh_rules[{index}][1]: None\n"
            for index in range(1010)
        )
        config = hlofast.config.loads(text)
        assert len(config.rules()) == 1000
        effective = config.select("tpu-v6e-8")
        assert notes(effective, "selector") == ["only the first 1,000 of 1,010 rules are read"]

    def test_patterns_that_are_not_supported_are_named(self, trainer: Config) -> None:
        effective = trainer.select("tpu-v3-8-8")
        assert effective.rule is None
        assert (
            "rule 9 is treated as not matching: unsupported back-reference"
            in notes(effective, "selector")[0]
        )

    def test_a_hostile_pattern_takes_no_time(self, trainer: Config) -> None:
        effective = trainer.select("tpu-v2-" + "8" * 5000)
        assert effective.rule is None
        assert trainer.select("tpu-v2-" + "8" * 5000 + "-1").rule == 10


class TestMeshes:
    @pytest.mark.parametrize(
        ("instance", "devices", "expected"),
        [
            ("tpu-v5litepod-16-2", 32, {"data": 2, "fsdp": 16}),
            ("tpu-v5p-64", 32, {"fsdp": 16, "model": 2}),
            ("tpu-v6e-16-4", 64, {"data": 4, "fsdp": 16}),
            ("tpu-v6e-16", 16, {"fsdp": 16}),
            ("gpu-p4de.24xlarge-32", 32, {"data": 4, "fsdp": 8}),
            ("tpu-v4-64-4", 128, {"data": 2, "fsdp": 16, "model": 4}),
        ],
    )
    def test_the_rest_is_inferred(
        self, trainer: Config, instance: str, devices: int, expected: dict[str, int]
    ) -> None:
        effective = trainer.select(instance)
        assert effective.devices == devices
        assert shape(effective) == expected
        assert effective.mesh is not None and effective.mesh.device_count == devices
        assert effective.mesh.axis_names == ("pipeline", "data", "fsdp", "model")

    def test_slices_and_hosts(self, trainer: Config) -> None:
        mesh = trainer.select("tpu-v6e-16-4").mesh
        assert mesh is not None and (mesh.slices, mesh.hosts) == (4, None)
        mesh = trainer.select("gpu-p5.48xlarge-32").mesh
        assert mesh is not None and (mesh.slices, mesh.hosts) == (None, 4)

    def test_blocks_of_a_hybrid_mesh_lie_on_one_slice(self, trainer: Config) -> None:
        mesh = trainer.select("tpu-v4-64-4").mesh
        assert mesh is not None and mesh.slices == 4
        # Slices 0 to 3 are (data, fsdp) blocks in this order; each is 8 x 4 devices.
        for device in range(128):
            place, within = mesh.coordinates(device), device % 32
            assert place["data"] * 2 + place["fsdp"] // 8 == device // 32
            assert (place["fsdp"] % 8, place["model"]) == (within // 4, within % 4)

    def test_ambiguous_names_need_the_number_of_devices(self, trainer: Config) -> None:
        effective = trainer.select("neuron-trn2n.48xlarge-8")
        assert effective.mesh is None and effective.devices is None
        assert "8 devices or 8 machines of 64 devices" in notes(effective, "devices")[0]
        assert notes(effective, "mesh") == [
            "fsdp=-1 needs the number of devices, which is not known"
        ]
        assert shape(trainer.select("neuron-trn2n.48xlarge-8", 512)) == {"fsdp": 128, "model": 4}
        assert trainer.select("neuron-trn2n.48xlarge-8", devices=8).devices == 8

    def test_a_number_that_contradicts_the_name(self, trainer: Config) -> None:
        effective = trainer.select("tpu-v6e-16", 32)
        assert shape(effective) == {"fsdp": 32}
        assert "32 devices are given, but the name says 16" in notes(effective, "devices")[0]

    def test_a_mesh_shape_that_is_none(self, trainer: Config) -> None:
        effective = trainer.select("tpu-v4-64")
        assert effective.mesh is None and effective.config["mesh_shape"] is None
        assert notes(effective, "mesh") == ["the config has no mesh_shape"]

    @pytest.mark.parametrize(
        ("sizes", "devices", "slices", "message"),
        [
            ([-1, -1, 2], 8, 1, "only one axis can be -1: a=-1,b=-1,c=2"),
            ([-1, 3, 1], 8, 1, "a=-1: 8 devices are not divisible by 3"),
            ([2, 2, 1], 8, 1, "the mesh a=2,b=2 has 4 devices, not 8"),
            ([2, 2], 4, 1, "mesh_shape has 2 sizes for 3 axes"),
            ([0, 2, 1], 4, 1, "neither positive nor -1"),
            ([1, 3, 4], 12, 4, "4 slices do not divide b=3, the first axis"),
            ([1, 1, 1], 1, 4, "no axis of a=1,b=1,c=1 is divisible by 4 slices"),
            ([1, "x", 1], 1, 1, "must be a list of integers"),
            (None, 1, 1, "the config has no mesh_shape"),
            ([-1, 1, 1], None, 1, "a=-1 needs the number of devices, which is not known"),
            ([2**40, 2**40, 1], None, 1, "b=1099511627776 has more than 1,099,511,627,776 devices"),
            ([int(1e308), 1, 1], None, 1, "mesh_shape has a size above 1,099,511,627,776"),
            ({"ici_mesh_shape": [1, 1, 1]}, 1, 1, "dcn_mesh_shape, not ici_mesh_shape"),
            (
                {"ici_mesh_shape": [1, 2, 1], "dcn_mesh_shape": [4, 1, 1]},
                8,
                1,
                "ici_mesh_shape b=2 makes 2, not 8 devices",
            ),
            (
                {"ici_mesh_shape": [1, 2, -1], "dcn_mesh_shape": [4, 1, 1]},
                8,
                2,
                "dcn_mesh_shape a=4 makes 4, not 2 slices",
            ),
            (
                {"ici_mesh_shape": [1, 2, -1], "dcn_mesh_shape": [1, 1, 1]},
                None,
                1,
                "c=-1 needs the number of devices, which is not known",
            ),
            (
                {"ici_mesh_shape": [1, 2, -1], "dcn_mesh_shape": [4, 1, 1]},
                9,
                4,
                "9 devices cannot be spread evenly over 4 slices",
            ),
        ],
    )
    def test_shapes_that_give_no_mesh(
        self, sizes: Any, devices: int | None, slices: int, message: str
    ) -> None:
        effective = resolved(["a", "b", "c"], sizes, devices, slices)
        assert effective.mesh is None
        (note,) = notes(effective, "mesh")
        assert message in note

    @given(
        st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4),
        st.data(),
    )
    def test_hybrid_meshes_put_each_block_on_one_slice(
        self, sizes: list[tuple[int, int]], data: st.DataObject
    ) -> None:
        inner, outer = [pair[0] for pair in sizes], [pair[1] for pair in sizes]
        names = [f"axis{index}" for index in range(len(sizes))]
        each = slices = 1
        for size, count in sizes:
            each, slices = each * size, slices * count
        given_inner = list(inner)
        if data.draw(st.booleans()):
            given_inner[data.draw(st.integers(0, len(sizes) - 1))] = -1
        both = {"ici_mesh_shape": given_inner, "dcn_mesh_shape": outer}
        mesh = resolved(names, both, each * slices, slices).mesh
        assert mesh is not None
        assert list(mesh.shape.values()) == [size * count for size, count in sizes]
        for device in range(each * slices):
            block = place = 0
            for (size, count), at in zip(sizes, mesh.coordinates(device).values()):
                block = block * count + at // size
                place = place * size + at % size
            assert (block, place) == divmod(device, each)


class TestInstances:
    @pytest.mark.parametrize(
        ("name", "devices", "slices", "device"),
        [
            ("tpu-v5litepod-256-4", 1024, 4, "tpu-v5e"),
            ("tpu-v5litepod-256", 256, 1, "tpu-v5e"),
            ("tpu-v6e-256-8", 2048, 8, "tpu-v6e"),
            ("tpu-v5p-1024", 512, 1, "tpu-v5p"),
            ("tpu-v5p-1024-2", 1024, 2, "tpu-v5p"),
            ("tpu-v4-8", 4, 1, "tpu-v4"),
            ("tpu-v3-8", 8, 1, None),
            ("tpu-7x-128", 128, 1, "tpu-v7"),
            ("gpu-p5.48xlarge-256", 256, 1, "h100"),
            ("gpu-a3-ultragpu-8g-512", 512, 1, "h200"),
            ("gpu-a4-highgpu-8g-256", 256, 1, "b200"),
            ("gpu-rack-4", 4, 1, None),
        ],
    )
    def test_names(self, name: str, devices: int, slices: int, device: str | None) -> None:
        instance = read(name)
        assert (instance.devices, instance.slices, instance.device) == (devices, slices, device)
        assert instance.name == name and instance.why

    def test_devices_are_in_the_table(self) -> None:
        names = ("tpu-v4-8", "tpu-v5e-8", "tpu-v5p-8", "tpu-v6e-8", "tpu-7x-8", "neuron-trn2.x-8")
        for name in (*names, "gpu-p4de.24xlarge-8", "gpu-p5en.48xlarge-8"):
            device = read(name).device
            assert device is not None and device in hlofast.devices.names()

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "tpu",
            "tpu-v5p",
            "tpu-v5p-7",
            "tpu-v5p-8-2-2",
            "tpu-v5p-x",
            "tpu-v6e-0",
            "tpu-v6e-8-0",
            "tpu-v9-8",
            "tpu-v6e-٣",
            "tpu-v6e-" + "9" * 30,
            "tpu-v6e-999999999999-999999999999",
            "gpu-8",
            "gpu-p5.48xlarge",
            "neuron-8",
            "cpu-4",
        ],
    )
    def test_names_that_do_not_say(self, name: str) -> None:
        instance = read(name)
        assert instance.devices is None and instance.why

    def test_both_readings_of_neuron_names(self) -> None:
        counts = [count for count, _ in read("neuron-trn2.48xlarge-64").readings]
        assert counts == [64, 4096]

    @pytest.mark.parametrize("devices", [0, -1, 1 << 60])
    def test_numbers_of_devices_that_are_none(self, trainer: Config, devices: int) -> None:
        with pytest.raises(ValueError, match="devices must be between 1 and"):
            trainer.select("tpu-v6e-16", devices)


class TestModifiers:
    def test_chains_run_in_order(self, trainer: Config) -> None:
        effective = trainer.select("tpu-v6e-16")
        rows = [row for row in effective.changes if row["path"] == "mesh_shape"]
        assert [(row["before"], row["after"]) for row in rows] == [
            ("(1, 1, -1, 1)", "(1, 2, -1, 1)"),
            ("(1, 2, -1, 1)", "(1, 1, -1, 1)"),
        ]
        assert {row["why"] for row in rows} == {"rule 3, MeshShapeModifier"}

    def test_a_remat_spec_is_replaced_whole(self, trainer: Config) -> None:
        effective = trainer.select("tpu-v5litepod-16-2")
        spec = effective.config[f"{LAYER}.remat_spec"]
        assert spec.to_python() == {
            "prevent_cse": True,
            "policy": "trainer.policies.offload_dots",
        }
        rows = {row["path"]: row for row in effective.changes}
        gone = rows[f"{LAYER}.remat_spec['policy'].offload_dst"]
        assert (gone["before"], gone["after"]) == ("'pinned_host'", None)
        assert gone["why"] == "rule 0, RematSpecModifier"

    def test_gradient_accumulation(self, trainer: Config) -> None:
        effective = trainer.select("tpu-v6e-16")
        assert effective.config["learner.forward_fn_transformation"].to_python() == {
            "fn": "axlearn.common.gradient_accumulation.with_minibatch_steps",
            "metric_accumulator": {"klass": "axlearn.common.metrics.MetricAccumulator"},
            "steps": 4,
        }
        assert effective.accumulation_steps == 4
        assert effective.config["input.global_batch_size"] == 64
        assert trainer.select("tpu-v6e-16-2").accumulation_steps == 1

    def test_both_block_sizes_are_set(self, trainer: Config) -> None:
        effective = trainer.select("tpu-v6e-16-2").config
        assert effective[f"{ATTENTION}.tpu_block_size"] == 1024
        assert "gpu_block_size" not in effective[ATTENTION]  # None, as it was.
        effective = trainer.select("gpu-a4-highgpu-8g-8").config
        assert effective[f"{ATTENTION}.gpu_block_size"] == 64
        assert effective[f"{ATTENTION}.tpu_block_size"] is None

    def test_a_module_of_another_class_keeps_the_values_that_were_found(
        self, trainer: Config
    ) -> None:
        effective = trainer.select("neuron-trn2.48xlarge-8")
        transformer = effective.config["model.decoder.transformer"]
        assert transformer.class_name == "StackedTransformerLayer"
        assert transformer["layer.feed_forward.linear1.bias"] is False
        assert transformer["layer.feed_forward.activation"].to_python() == ["nn.silu", "linear"]
        # A field that both classes have, though the modification does not print it.
        assert transformer["num_layers"] == 4
        # One that the new class has not.
        assert "repeat" not in transformer
        dead = notes(effective, "dead-values")
        assert dead[0].startswith("4 values of the modification, in layer, have no effect")

    def test_fields_of_classes_that_are_not_known_are_kept_and_named(self, trainer: Config) -> None:
        modifier = "mesh_rules[7][1].config_modifiers[1].modification.klass"
        changed = trainer.with_value(modifier, "trainer.layers.MyStack")
        effective = changed.select("neuron-trn2.48xlarge-8")
        assert effective.config["model.decoder.transformer.num_layers"] == 4
        assert notes(effective, "not-known") == [
            "not known: whether MyStack has num_layers, whether MyStack has repeat; the values are "
            "kept"
        ]

    def test_fields_that_the_old_module_has_at_none(self, trainer: Config) -> None:
        base = "mesh_rules[7][1].config_modifiers[1].modification"
        changed = trainer.replace(
            {f"{base}.peak_stochastic_depth_rate": 0.1, f"{base}.adapter": "a.b"}
        )
        effective = changed.select("neuron-trn2.48xlarge-8")
        transformer = effective.config["model.decoder.transformer"]
        assert "peak_stochastic_depth_rate" not in transformer  # None, as it was.
        assert transformer["adapter"] == "a.b"  # The old class has no such field.
        assert "layer, peak_stochastic_depth_rate, have" in notes(effective, "dead-values")[0]

    def test_partition_specs(self, trainer: Config) -> None:
        effective = trainer.select("neuron-trn2.48xlarge-8")
        embedding = effective.config["model.decoder.emb.token_emb"]
        expected = PartitionSpec("model", ("data", "fsdp"))
        assert embedding.partition_spec("param_partition_spec") == expected
        assert embedding.partition_spec("output_partition_spec") == PartitionSpec("data")
        rows = {row["path"]: row for row in effective.changes}
        row = rows["model.decoder.emb.token_emb.param_partition_spec"]
        assert (row["before"], row["after"]) == (
            "(None, 'model')",
            "('model', ('data', 'fsdp'))",
        )

    def test_other_modifiers_are_named(self, trainer: Config) -> None:
        effective = trainer.select("gpu-a4-highgpu-8g-8")
        assert notes(effective, "not-modelled") == [
            "trainer.modifiers.MeshShapeModifier is not modelled: its changes to the config are "
            "not known"
        ]

    @pytest.mark.parametrize("module", ["model.encoder", "klass", "a..b", "mesh_shape", ""])
    def test_targets_that_are_not_there(self, trainer: Config, module: str) -> None:
        base = "mesh_rules[7][1].config_modifiers"
        spec = {module or "x": {"param_partition_spec": ("data",)}}
        changed = trainer.with_value(f"{base}[2].partition_specs", spec)
        assert "cannot be set" in notes(changed.select("neuron-trn2.48xlarge-8"), "fails")[0]
        changed = trainer.with_value(f"{base}[1].target_config", module)
        failed = notes(changed.select("neuron-trn2.48xlarge-8"), "fails")
        assert failed[0].startswith("AXLearn fails here: the config has no module")

    def test_backend_overrides(self, trainer: Config) -> None:
        base = "mesh_rules[8][1].config_modifiers[1]"
        utilities = "axlearn.experiments.trainer_config_utils"
        splash = Config.of(
            klass=f"{utilities}.SplashAttentionConfigModifier",
            splash_block_q=512,
            splash_block_kv=None,
        )
        changed = trainer.with_value(base, splash)
        effective = changed.select("gpu-a4-highgpu-8g-8").config
        assert effective[f"{ATTENTION}.backend_overrides"].to_python() == {"splash_block_q": 512}

    def test_the_effective_config_is_a_config(self, trainer: Config) -> None:
        effective = trainer.select("neuron-trn2.48xlarge-8").config
        assert hlofast.config.loads(effective.to_text()) == effective
        assert repr(trainer.select("tpu-v6e-16")).startswith(
            "<EffectiveConfig for tpu-v6e-16: rule 3, {'pipeline': 1,"
        )

    def test_it_can_be_sent_around(self, trainer: Config) -> None:
        effective = trainer.select("tpu-v6e-16-2")
        again = pickle.loads(pickle.dumps(effective))
        assert again.config == effective.config and again.mesh == effective.mesh
        assert again.changes == effective.changes and again.instance == effective.instance
        with pytest.raises(AttributeError):
            again.rule = 3
        with pytest.raises(AttributeError):
            again.instance.devices = 3

    def test_chains_without_end_are_cut(self) -> None:
        chain = "axlearn.common.trainer_config_modifier.ChainConfigModifier"
        text = "mesh_rules[0][0]: 'x'\n" + "".join(
            f"mesh_rules[0][1].config_modifiers[{index}].klass: '{chain}'\n"
            for index in range(1010)
        )
        config = hlofast.config.loads(f"{text}mesh_rules[0][1].klass: '{chain}'\n")
        assert notes(config.select("x"), "not-modelled") == [
            "only the first 1,000 modifiers are applied"
        ]

    @settings(max_examples=60)
    @given(st.data())
    def test_damaged_rules_never_stop_it(self, data: st.DataObject) -> None:
        lines = PATH.read_text().splitlines()
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(lines) - 1))
            path, _, value = lines[at].partition(": ")
            other = data.draw(st.sampled_from(lines)).partition(": ")[2]
            new = data.draw(
                st.sampled_from(["None", "-1", "0", "'a.b'", "{'a': 1}", "(1, 2)", other, value])
            )
            lines[at] = f"{path}: {new}"
            if data.draw(st.booleans()):
                del lines[data.draw(st.integers(0, len(lines) - 1))]
        try:
            config = hlofast.config.loads("\n".join(lines))
        except ConfigError:
            assume(False)
        names = ["tpu-v5litepod-16-2", "tpu-v6e-16", "neuron-trn2.48xlarge-8", "tpu-v4-64-4"]
        for name in [*names, "gpu-a4-highgpu-8g-8", "gpu-p5.48xlarge-16"]:
            effective = config.select(name, data.draw(st.sampled_from([None, 8, 64])))
            assert effective.mesh is None or effective.mesh.device_count == effective.devices
        config.rules()


class TestSeed:
    @pytest.fixture
    def fuji(self, seeds: Seeds) -> Config:
        return hlofast.config.load(seeds.path("004"))

    @pytest.mark.parametrize(
        ("instance", "rule"),
        [
            ("tpu-v6e-256-4", 2),
            ("tpu-v6e-256", 3),
            ("tpu-v6e-256-2", None),
            ("tpu-v5p-1024", 1),
            ("gpu-p5.48xlarge-256", None),
            ("neuron-trn2n.48xlarge-64", 7),
            ("tpu-v5litepod-256-4", 0),
            ("gpu-p5x48xlarge-512", 4),
            ("gpu-a3-ultragpu-8g-1024", 5),
            ("gpu-a4-highgpu-8g-256", 6),
        ],
    )
    def test_rules(self, fuji: Config, instance: str, rule: int | None) -> None:
        assert fuji.select(instance).rule == rule

    @pytest.mark.parametrize(
        ("instance", "devices", "data", "fsdp", "model"),
        [
            ("tpu-v5litepod-256-4", None, 4, 256, 1),
            ("tpu-v5p-1024", None, 1, 512, 1),
            ("tpu-v5p-512", None, 1, 256, 1),
            ("tpu-v6e-256-4", None, 4, 256, 1),
            ("tpu-v6e-256-8", None, 8, 256, 1),
            ("tpu-v6e-256", None, 1, 256, 1),
            ("tpu-v6e-256-2", None, 1, 512, 1),
            ("gpu-p5.48xlarge-512", None, 4, 128, 1),
            ("gpu-a3-highgpu-8g-256", None, 4, 64, 1),
            ("gpu-a4-highgpu-8g-256", None, 16, 16, 1),
            ("neuron-trn2n.48xlarge-64", 64, 1, 16, 4),
            ("neuron-trn2n.48xlarge-64", 4096, 1, 1024, 4),
        ],
    )
    def test_meshes(
        self, fuji: Config, instance: str, devices: int | None, data: int, fsdp: int, model: int
    ) -> None:
        mesh = fuji.select(instance, devices=devices).mesh
        assert mesh is not None
        shape = mesh.shape
        assert (shape["data"], shape["fsdp"], shape["model"]) == (data, fsdp, model)
        assert shape["pipeline"] == shape["expert"] == shape["seq"] == 1

    def test_what_naive_readers_get_wrong(self, fuji: Config) -> None:
        effective = fuji.select("neuron-trn2n.48xlarge-64").config
        transformer = effective["model.decoder.transformer"]
        assert transformer.class_name == "StackedTransformerLayer"
        assert transformer["num_layers"] == 80
        assert transformer["layer.feed_forward.linear1.bias"] is False
        assert transformer["layer.feed_forward.norm"].class_name == "RMSNorm"
        assert transformer["layer.feed_forward.activation"].to_python() == ["nn.silu", "linear"]
        inputs = transformer["layer.self_attention.attention.input_linear.input_linear"]
        assert inputs.class_name == "GroupedQKVLinear" and inputs["num_kv_heads"] == 8
        for table in ("emb.token_emb", "lm_head"):
            spec = effective.partition_spec(f"model.decoder.{table}.param_partition_spec")
            assert spec == PartitionSpec("model", ("expert", "fsdp", "seq"))
        assert fuji.select("tpu-v6e-256").accumulation_steps == 4
        assert fuji.select("tpu-v6e-256-4").config[f"{ATTENTION}.tpu_block_size"] == 1024


def test_what_a_config_implies_goes_to_other_processes() -> None:
    path = FIXTURES / "configs" / "maxtext_run.yml"
    on = hlofast.config.load(path, overrides=["per_device_batch_size=4"]).select("v5p-128")
    for result in (on.memory(), on.traffic(), on.flops(), on.verdict()):
        said = str(result)
        assert str(pickle.loads(pickle.dumps(result))) == said
