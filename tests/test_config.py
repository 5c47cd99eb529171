"""Configs: what is read, how it is looked up, edited and compared."""

import ast
import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds
from hlofast.config import Config, Enumeration, Opaque, PartitionSpec

CONFIGS = sorted((FIXTURES / "configs").glob("*.txt"))

SMALL = """\
klass: 'trainer.Trainer'
mesh_axis_names[0]: 'data'
mesh_axis_names[1]: 'model'
model.decoder.dim: 64
model.decoder.klass: 'models.Decoder'
model.decoder.layer.remat_spec['policy'].fn: 'remat.save_names'
model.decoder.layer.remat_spec['prevent_cse']: False
specs[(None, 2)]: PartitionSpec(('data', 'fsdp'), 'seq')
"""


def loads(text: str | bytes) -> Config:
    return hlofast.config.loads(text)


@pytest.fixture
def small() -> Config:
    return loads(SMALL)


def named(name: str) -> Config:
    return hlofast.config.load(FIXTURES / "configs" / f"{name}.txt")


class TestReading:
    @pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
    def test_prints_the_bytes_it_read(self, path: Path) -> None:
        assert hlofast.config.load(path).to_text().encode() == path.read_bytes()

    def test_the_fixtures_are_of_many_shapes(self) -> None:
        assert len(CONFIGS) >= 25

    @pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
    def test_literals_are_what_python_reads(self, path: Path) -> None:
        config = hlofast.config.load(path)
        compared = 0
        for line in path.read_bytes().decode().replace("\r\n", "\n").split("\n"):
            key, _, text = line.partition(": ")
            try:
                expected = ast.literal_eval(text)
                value = config[key]
            except (ValueError, SyntaxError, KeyError):
                continue
            assert value == expected and type(value) is type(expected), line
            compared += 1
        others = {"tuple_keys", "library_values", "partition_specs", "enumerations", "functions"}
        assert compared or path.stem in others

    def test_scalars_have_their_types(self) -> None:
        config = named("scalars")
        assert config["absent"] is None
        assert config["big"] == 2**127 - 1
        assert config["flag"] is True and config["off"] is False
        assert config["fraction"] == 1e-08
        assert config["infinite"] == math.inf and config["negative"] == -math.inf
        assert math.isnan(config["missing"])
        assert math.copysign(1, config["zero"]) == -1

    def test_partition_specs(self) -> None:
        config = named("partition_specs")
        several = config["several"]
        assert several.dimensions == (("data", "expert", "fsdp"), None, ("seq", "model"), None)
        assert several.axes == ("data", "expert", "fsdp", "seq", "model")
        assert (len(several), several[0], several[1]) == (4, ("data", "expert", "fsdp"), None)
        assert config["one"] == PartitionSpec(("data",)) == PartitionSpec("data")
        assert config["free"][0] == hlofast.config.UNCONSTRAINED
        assert config["free"].axes == ("model",)
        assert config["default"].dimensions == ()
        assert config["reduced"] == Opaque("PartitionSpec('x', unreduced={'y'})")

    def test_a_spec_printed_as_a_tuple_is_one_too(self) -> None:
        layer = named("spec_as_list")["layer"]
        assert layer.partition_spec("param_partition_spec") == PartitionSpec(None, "model")
        expected = PartitionSpec(("data", "fsdp"), None, "model")
        assert layer.partition_spec("output_partition_spec") == expected
        assert layer.partition_spec("input_partition_spec") is None
        with pytest.raises(TypeError, match="klass is not a partition spec"):
            layer.partition_spec("klass")

    def test_enumerations(self) -> None:
        config = named("enumerations")
        member = config["backend"]
        assert member == Enumeration("GMMBackend", "TOKAMAX", "TOKAMAX")
        assert (member.class_name, member.name, member.value) == (
            "GMMBackend",
            "TOKAMAX",
            "TOKAMAX",
        )
        assert config["by_kind"][Enumeration("Kind", "B", (2, "b"))] == "b"
        assert config["flags"].name == "READ|WRITE"
        assert config["nested"].value == Opaque("<object object at 0x7f0d1c0>")

    def test_other_objects_are_kept_as_they_are_written(self) -> None:
        functions = named("functions")
        assert functions["activation"] == "jax.nn.silu"
        assert functions["callback"] == Opaque("<function <lambda> at 0x7f3a2c1d5e40>")
        assert functions["required"].text == "REQUIRED"
        assert functions["partial"].text.startswith("functools.partial(<function scale")
        arrays = named("array_literals")
        assert arrays["bias"].text.count("\n") == 1
        assert arrays["scale"] == 2.0
        assert (arrays.line("mask"), arrays.line("scale")) == (3, 4)

    def test_keys_of_all_kinds(self) -> None:
        specs = named("tuple_keys")["input.rank_to_spec"]
        assert specs[(None, 2)] == PartitionSpec(("data", "fsdp"), "seq")
        assert specs[("a, b", (1, (2,)), "): ")] is None
        assert list(specs)[:2] == [(None, 1), (None, 2)]
        rules = named("dotted_keys")["rules"]
        assert rules["model.decoder.layer"]["remat.spec"] == "x"
        assert rules["it's"]['["'] == 3
        assert rules["\n"]["\\"] == 4
        table = named("scalar_keys")["table"]
        keys = [None, True, -7, 0.5, b"k", "None"]
        assert list(table) == keys and [type(key) for key in table] == list(map(type, keys))

    def test_lines_of_a_part_may_be_scattered(self) -> None:
        config = named("scattered")
        assert list(config["model"]) == ["dim", "layers", "name"]
        assert [path for path, _ in config.leaves()][1] == "name"
        assert config.with_value("model.heads", 4).to_text() == (
            "model.dim: 64\nmodel.heads: 4\nname: 'edited by hand'\nmodel.layers: 2\n"
            "input.batch: 8\nmodel.name: 'late'\n"
        )

    def test_text_and_bytes_and_nothing_at_all(self) -> None:
        assert loads(SMALL.encode()) == loads(SMALL)
        assert loads("").to_text() == "" and len(loads(b"")) == 0

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            hlofast.config.load(tmp_path / "none.txt")

    @pytest.mark.parametrize("text", [None, 3, Path("run.txt")])
    def test_what_is_no_text(self, text: Any) -> None:
        with pytest.raises(TypeError, match=r"a config must be text or bytes, not .*; load"):
            loads(text)

    def test_a_config_differs_from_configs_alone(self, small: Config) -> None:
        other: Any = "run.txt"
        with pytest.raises(TypeError, match="a config differs from another Config, not from"):
            small.diff(other)


class TestMapping:
    def test_paths_and_keys(self, small: Config) -> None:
        assert small["model.decoder.dim"] == small["model"]["decoder"]["dim"] == 64
        assert small["specs[(None, 2)]"] == small["specs"][(None, 2)]
        policy = small["model.decoder.layer.remat_spec['policy']"]
        assert policy["fn"] == "remat.save_names"
        assert policy.path == "model.decoder.layer.remat_spec['policy']"
        assert small["model"]["decoder"]["layer"]["remat_spec"]["policy"].path == policy.path

    def test_in_get_and_iteration(self, small: Config) -> None:
        assert "model.decoder.dim" in small and "model.decoder.width" not in small
        assert (None, 2) in small["specs"] and [] not in small["specs"]
        assert small.get("model.decoder.width", 7) == 7
        assert small.get("model.decoder.dim") == 64
        assert list(small) == ["klass", "mesh_axis_names", "model", "specs"]
        assert list(small["model.decoder"].keys()) == ["dim", "klass", "layer"]
        assert len(small["model.decoder"]) == 3
        assert dict(small["mesh_axis_names"].items()) == {0: "data", 1: "model"}
        paths = [path for path, _ in small.leaves()]
        assert [line.partition(": ")[0] for line in SMALL.splitlines()] == paths

    def test_what_is_missing_is_said(self, small: Config) -> None:
        with pytest.raises(KeyError, match=r"model.decoder has no 'dmi'; did you mean dim\?"):
            small["model.decoder.dmi"]
        with pytest.raises(KeyError, match=r"model.decoder.dim is a value, not a config"):
            small["model.decoder.dim.x"]
        with pytest.raises(KeyError, match=r"expected a name, found '\.' at character 7"):
            small["model..decoder"]
        with pytest.raises(KeyError, match="mesh_axis_names has no 5"):
            small["mesh_axis_names"][5]

    def test_plain_python(self, small: Config) -> None:
        assert small["mesh_axis_names"].to_python() == ["data", "model"]
        assert small["mesh_axis_names"].is_sequence and not small["model"].is_sequence
        assert small["model"].to_python()["decoder"]["layer"] == {
            "remat_spec": {"policy": {"fn": "remat.save_names"}, "prevent_cse": False}
        }

    def test_classes_and_parts(self, small: Config) -> None:
        assert small["model.decoder"].klass == "models.Decoder"
        assert small["model.decoder"].class_name == "Decoder"
        assert small["model"].klass is None and small["model"].class_name is None
        parts = [config.path for config in small.configs()]
        assert parts[:4] == ["", "mesh_axis_names", "model", "model.decoder"]
        assert small.line("model") == 4 and small.line("specs") == 8
        assert repr(small["model.decoder"]) == "<Config model.decoder of models.Decoder, 4 values>"

    def test_a_part_prints_paths_from_itself(self, small: Config) -> None:
        layer = small["model.decoder.layer"]
        assert layer.to_text() == (
            "remat_spec['policy'].fn: 'remat.save_names'\nremat_spec['prevent_cse']: False\n"
        )
        assert loads(layer.to_text()) == layer

    def test_values_cannot_be_changed_through_what_is_handed_out(self) -> None:
        config = named("python_containers")
        config["ranges"].append(1)
        assert config["ranges"] == [(0, 10), (10, 20)]
        spec = named("partition_specs")["several"]
        for value in (spec, Opaque("x"), Enumeration("A", "B", 1)):
            with pytest.raises(AttributeError):
                value.text = "y"

    def test_copies(self, small: Config) -> None:
        for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
            assert other == small and other.to_text() == SMALL
        for value in (PartitionSpec("a"), Opaque("x"), Enumeration("A", "B", (1,))):
            assert pickle.loads(pickle.dumps(value)) == value
            assert hash(copy.copy(value)) == hash(value)


class TestEditing:
    def test_a_value_is_replaced_in_its_place(self, small: Config) -> None:
        edited = small.with_value("model.decoder.dim", 128)
        assert edited.to_text() == SMALL.replace("dim: 64", "dim: 128")
        assert small.to_text() == SMALL

    def test_new_attributes_stand_where_axlearn_prints_them(self, small: Config) -> None:
        edited = small.with_value("model.decoder.eps", 1e-6)
        assert list(edited["model.decoder"]) == ["dim", "eps", "klass", "layer"]
        edited = small.with_value("model.decoder.zeta", None)
        assert list(edited["model.decoder"])[-1] == "zeta"

    def test_parts(self, small: Config) -> None:
        policy = Config.of(names=["q", "k"], fn="remat.offload")
        edited = small.with_value("model.decoder.layer.remat_spec['policy']", policy)
        part = "model.decoder.layer.remat_spec['policy']"
        expected = f"{part}.fn: 'remat.offload'\n{part}.names[0]: 'q'\n{part}.names[1]: 'k'\n"
        assert edited.to_text() == SMALL.replace(f"{part}.fn: 'remat.save_names'\n", expected)
        assert loads(edited.to_text()) == edited

    def test_lists_dictionaries_and_empty_ones(self, small: Config) -> None:
        edited = small.replace({"mesh_axis_names": ("a", "b", "c"), "specs": {"x": {"y": 1}}})
        assert edited["mesh_axis_names"].to_python() == ["a", "b", "c"]
        assert edited.to_text().endswith("specs['x']['y']: 1\n")
        assert "specs" not in small.with_value("specs", {})
        assert "new" not in small.with_value("new", [[], {}])

    def test_new_keys_of_dictionaries_go_into_brackets(self, small: Config) -> None:
        specs = small["specs"].with_value(("tokens", 3), PartitionSpec("data"))
        assert specs.to_text().endswith("[('tokens', 3)]: PartitionSpec('data',)\n")
        layer = small["model.decoder.layer.remat_spec"].with_value("static", True)
        assert layer.to_text().endswith("\n['static']: True\n")

    def test_without(self, small: Config) -> None:
        edited = small.without("klass", "model.decoder.layer", "specs")
        assert [path for path, _ in edited.leaves()][2:] == [
            "model.decoder.dim",
            "model.decoder.klass",
        ]
        assert "mesh_axis_names" not in small.without("mesh_axis_names[0]", "mesh_axis_names[1]")
        with pytest.raises(KeyError, match="has no 'klas'"):
            small.without("klas")

    def test_what_no_config_can_hold(self, small: Config) -> None:
        with pytest.raises(TypeError, match="a config cannot show a value of class object"):
            small.with_value("x", object())  # type: ignore[arg-type]
        with pytest.raises(KeyError, match="the config has no 'modle'"):
            small.with_value("modle.decoder.dim", 1)
        with pytest.raises(KeyError, match="is a value, not a config"):
            small.with_value("klass.x", 1)
        with pytest.raises(KeyError, match="has names, not keys in brackets"):
            small.with_value((1, 2), 1)
        endless: list[Any] = []
        endless.append(endless)
        with pytest.raises(TypeError):
            small.with_value("x", endless)
        with pytest.raises(TypeError):
            small.with_value("x", {"y": (endless,)})

    def test_line_ends_are_kept(self) -> None:
        config = named("windows_line_ends").with_value("model.dim", 65)
        assert config.to_text() == "model.dim: 65\r\nname: 'a\\r\\nb'\r\n"
        assert not named("no_final_newline").with_value("model.dim", 65).to_text().endswith("\n")


class TestDifference:
    def test_rows(self, small: Config) -> None:
        other = small.replace({"model.decoder.dim": 65, "model.decoder.eps": 1e-6}).without("specs")
        assert small.diff(other).to_pylist() == [
            {"path": "model.decoder.dim", "change": "changed", "before": "64", "after": "65"},
            {"path": "model.decoder.eps", "change": "added", "before": None, "after": "1e-06"},
            {
                "path": "specs[(None, 2)]",
                "change": "removed",
                "before": "PartitionSpec(('data', 'fsdp'), 'seq')",
                "after": None,
            },
        ]
        assert len(small.diff(small)) == 0 and small == loads(SMALL)
        assert small != other

    def test_the_order_of_keys_means_nothing(self) -> None:
        before, after = "a: 1\nb['x']: 1\nb['y']: 2\n", "b['y']: 2\nb['x']: 1\na: 1\n"
        assert len(loads(before).diff(loads(after))) == 0 and loads(before) == loads(after)

    def test_the_order_of_items_does(self) -> None:
        (row,) = loads("a[0]: 1\na[1]: 2").diff(loads("a[0]: 2\na[1]: 1"))
        assert (row["path"], row["before"], row["after"]) == ("a", "(1, 2)", "(2, 1)")

    def test_of_long_tuples_the_items_that_differ(self) -> None:
        before = "".join(f"a[{index}]: {index}\n" for index in range(40))
        after = before.replace("a[7]: 7", "a[7]: -7") + "a[40]: 40\n"
        rows = loads(before).diff(loads(after)).to_pylist()
        assert [(row["path"], row["before"], row["after"]) for row in rows] == [
            ("a[7]", "7", "-7"),
            ("a[40]", None, "40"),
        ]

    def test_partition_specs_printed_in_both_ways(self) -> None:
        before = loads("p[0]: None\np[1][0]: 'data'\np[1][1]: 'fsdp'\n")
        same = loads("p: PartitionSpec(None, ('data', 'fsdp'))")
        other = loads("p: PartitionSpec(None, ('fsdp', 'data'))")
        assert len(before.diff(same)) == len(same.diff(before)) == 0
        (row,) = before.diff(other)
        assert (row["before"], row["after"]) == ("(None, ('data', 'fsdp'))", other.to_text()[3:])

    def test_a_value_that_becomes_a_part(self) -> None:
        rows = loads("a: 'policy'").diff(loads("a.fn: 'f'\na.names: None")).to_pylist()
        assert [(row["path"], row["change"]) for row in rows] == [
            ("a", "removed"),
            ("a.fn", "added"),
            ("a.names", "added"),
        ]

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("1", "1.0"),
            ("{'a', 'b'}", "{'b', 'a'}"),
            ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1.0}"),
            ("(1, 2)", "[1, 2]"),
            ("nan", "nan"),
            ("'it\\'s'", '"it\'s"'),
            ("PartitionSpec('data',)", "PartitionSpec(('data',), None)"),
            ("1e3", "1000.0"),
        ],
    )
    def test_values_that_mean_the_same(self, before: str, after: str) -> None:
        assert len(loads(f"x: {before}").diff(loads(f"x: {after}"))) == 0

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("1", "True"),
            ("0", "False"),
            ("None", "'None'"),
            ("'1'", "1"),
            ("b'a'", "'a'"),
            ("(1, 2)", "(2, 1)"),
            ("PartitionSpec(None, 'data')", "PartitionSpec('data',)"),
            ("<A.B: 1>", "<A.B: 2>"),
            ("REQUIRED", "'REQUIRED'"),
        ],
    )
    def test_values_that_do_not(self, before: str, after: str) -> None:
        assert len(loads(f"x: {before}").diff(loads(f"x: {after}"))) == 1

    def test_renamed_keys_are_not_guessed(self) -> None:
        table = loads("model.dim: 8").diff(loads("model.width: 8"))
        assert [row["change"] for row in table] == ["added", "removed"] or [
            row["change"] for row in table
        ] == ["removed", "added"]


class TestSeed:
    @pytest.fixture
    def fuji(self, seeds: Seeds) -> Config:
        return hlofast.config.load(seeds.path("004"))

    def test_470_keys_and_the_same_bytes(self, fuji: Config, seeds: Seeds) -> None:
        leaves = list(fuji.leaves())
        assert len(leaves) == 470
        assert fuji.to_text().encode() == seeds.path("004").read_bytes()
        kinds = [type(value).__name__ for _, value in leaves]
        counts = {kind: kinds.count(kind) for kind in set(kinds)}
        assert counts == {
            "str": 274,
            "int": 104,
            "NoneType": 37,
            "bool": 25,
            "float": 23,
            "PartitionSpec": 7,
        }
        tops = [path.partition(".")[0].partition("[")[0] for path, _ in leaves]
        assert tops.count("mesh_rules") == 203 and tops.count("model") == 131
        assert sum(config.klass is not None for config in fuji.configs()) == 107

    def test_values(self, fuji: Config) -> None:
        assert fuji["model.decoder.dim"] == 8192
        partition = fuji["input.input_partitioner.path_rank_to_partition"]
        assert partition[(None, 2)] == PartitionSpec(("data", "expert", "fsdp"), "seq")
        assert fuji["mesh_axis_names"].to_python() == [
            "pipeline", "data", "expert", "fsdp", "seq", "model"
        ]  # fmt: skip
        assert fuji["evalers['train'].input.source.replace_newlines_with"] == "\n"
        spec = fuji.partition_spec("model.decoder.lm_head.param_partition_spec")
        assert spec == PartitionSpec(None, "model")

    def test_edits_touch_one_line(self, fuji: Config) -> None:
        edited = fuji.with_value("model.decoder.transformer.num_layers", 40)
        before, after = fuji.to_text().split("\n"), edited.to_text().split("\n")
        assert sum(old != new for old, new in zip(before, after, strict=True)) == 1
        assert len(fuji.diff(edited)) == 1
