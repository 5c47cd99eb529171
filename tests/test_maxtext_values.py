"""Effective values of MaxText runs: sources, their order, their places, and files nobody should trust."""

import ast
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hlofast import config
from hlofast.config import ConfigError, maxtext
from test_cli import document, hlofast_command

BASE = """\
model_name: "default"
override_model_config: False
decoder_block: "llama2"
global_parameter_scale: 1
base_emb_dim: 2048
base_num_query_heads: 16
base_num_kv_heads: 16
base_mlp_dim: 7168
base_num_decoder_layers: 16
head_dim: 128
vocab_size: 32_000
per_device_batch_size: 12.0
steps: 10
remat_policy: 'full'
adam_eps: 1e-8
scan_layers: True
mesh_axes: ['data', 'fsdp']
logical_axis_rules: [['embed', ['fsdp']], ['norm', []], ['mlp', 'data']]
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "base.yml").write_text(BASE)
    return tmp_path


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def keys_read():
    """The keys that the front reads: constants in its calls, and keys of its tables `_OFF`."""
    keys = set()
    for path in Path(maxtext.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            given = []
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                receiver = ast.unparse(getattr(node.func, "value", node.func))
                if name == "_least":
                    given = node.args[1:2]
                elif name in ("get", "size", "flag", "text", "count"):
                    given = [] if receiver.endswith("mesh") else node.args[:1]
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_OFF":
                given = node.value.keys
            keys.update(str(getattr(own, "value", "")) for own in given)
    return set(filter(str.isidentifier, keys))


class TestSources:
    def test_values_have_the_types_of_yaml_as_maxtext_reads_it(self, files):
        cfg = config.load(files / "base.yml")
        assert cfg["vocab_size"] == 32000
        assert cfg["per_device_batch_size"] == 12.0
        assert cfg["adam_eps"] == 1e-8  # PyYAML alone reads a text.
        assert cfg["scan_layers"] is True
        assert cfg["mesh_axes"] == ("data", "fsdp")
        assert cfg["logical_axis_rules"][2] == ("mlp", "data")
        assert cfg.line("vocab_size") == 11

    def test_a_file_inherits_and_replaces(self, files):
        run_file = write(files, "run.yml", "base_config: base.yml\nsteps: 7\n")
        cfg = config.load(run_file)
        assert (cfg["steps"], cfg["base_emb_dim"]) == (7, 2048)
        assert cfg.origin("steps") == ("file", f"{run_file}:2")
        assert cfg.origin("base_emb_dim") == ("default", f"{files / 'base.yml'}:5")
        assert "base_config" not in cfg

    def test_without_its_base_a_file_has_the_defaults_that_hlofast_knows(self, tmp_path):
        cfg = config.load(write(tmp_path, "run.yml", "base_config: base.yml\nsteps: 7\n"))
        assert cfg["steps"] == 7 and cfg.origin("base_emb_dim")[0] == "default"
        effective = cfg.select("v5p-64")
        (text,) = (row["text"] for row in effective.notes if row["path"] == "base_config")
        assert "run.yml:1: base.yml was not found, so the defaults are those of MaxText" in text

    def test_a_run_that_sets_nothing_is_said_to_be_the_default(self, tmp_path):
        for text, is_told in (("", True), ("steps: 7\n", False)):
            notes = config.load(write(tmp_path, "run.yml", text)).select("v5p-64").notes
            told = [row["text"] for row in notes]
            assert ("nothing is set: this is the model of MaxText's defaults" in told) == is_told

    def test_the_rules_of_a_file_that_inherits_replace_all_rules(self, files):
        text = "base_config: base.yml\nlogical_axis_rules: [['norm', 'fsdp']]\n"
        cfg = config.load(write(files, "run.yml", text))
        assert len(cfg["logical_axis_rules"]) == 1

    def test_arguments_take_the_type_of_the_value_that_they_replace(self, files):
        given = ["per_device_batch_size=4", "steps=20", "scan_layers=false", "remat_policy=minimal"]
        cfg = config.load(files / "base.yml", overrides=given)
        assert cfg["per_device_batch_size"] == 4.0 and type(cfg["per_device_batch_size"]) is float
        assert (cfg["steps"], cfg["scan_layers"], cfg["remat_policy"]) == (20, False, "minimal")
        assert cfg.origin("steps") == ("override", "steps=20")

    def test_arguments_are_a_list_or_a_mapping(self, files):
        values = {"steps": 20, "scan_layers": False, "adam_eps": 1e-6, "mesh_axes": ("data",)}
        cfg = config.load(files / "base.yml", overrides=values)
        assert {key: cfg[key] for key in values} == values
        with pytest.raises(TypeError, match=r"a list such as \['steps=1'\]"):
            config.load(files / "base.yml", overrides="steps=1")

    def test_no_path_is_the_defaults(self):
        cfg = config.load(overrides={"model_name": "llama3.1-8b"})
        assert cfg.parameter_count() == 8_030_261_248
        assert cfg.select("v5p-64").verdict().status == "fits"

    def test_environment_variables(self, files):
        variables = {"M_STEPS": "30", "HOME": "/", "M_SCAN_LAYERS": "False"}
        cfg = config.load(files / "base.yml", environment=variables)
        assert (cfg["steps"], cfg["scan_layers"]) == (30, False)
        assert cfg.origin("steps") == ("environment", "M_STEPS")

    def test_the_model_beside_the_file_replaces_values_and_merges_rules(self, files):
        text = "base_emb_dim: 64\nlogical_axis_rules: [['norm', 'fsdp'], ['other', 'data']]\n"
        model = write(files / "models", "mine.yml", text)
        cfg = config.load(files / "base.yml", overrides=["model_name=mine"])
        assert cfg["base_emb_dim"] == 64
        assert cfg.origin("base_emb_dim") == ("model", f"{model}:1")
        rules = cfg["logical_axis_rules"].to_python()
        # A rule for an axis that the base does not have is dropped.
        assert rules == [("embed", ("fsdp",)), ("mlp", "data"), ("norm", "fsdp")]

    def test_a_known_model_needs_no_file(self, files):
        cfg = config.load(files / "base.yml", overrides=["model_name=llama2-7b"])
        assert cfg["base_mlp_dim"] == 11008
        assert cfg.origin("base_mlp_dim") == ("model", "model llama2-7b")

    def test_a_model_file_takes_the_base_above_it(self, files):
        model = write(files / "models", "mine.yml", "base_emb_dim: 64\nhead_dim: 32\n")
        cfg = config.load(model)
        assert (cfg["base_emb_dim"], cfg["base_mlp_dim"]) == (64, 7168)
        assert cfg.origin("base_mlp_dim") == ("default", f"{files / 'base.yml'}:8")

    def test_without_a_base_defaults_of_one_commit_apply(self, tmp_path):
        cfg = config.load(write(tmp_path, "run.yml", "per_device_batch_size: 3\n"))
        assert cfg["ici_fsdp_parallelism"] == -1
        assert cfg.origin("ici_fsdp_parallelism") == ("default", "MaxText 003b41698f6e")

    def test_the_given_base_applies(self, files, tmp_path):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        cfg = config.load(write(elsewhere, "run.yml", "steps: 3\n"), base=files / "base.yml")
        assert cfg.origin("vocab_size") == ("default", f"{files / 'base.yml'}:11")

    def test_the_scale_doubles_heads_then_width_then_layers(self, files):
        keys = ("emb_dim", "num_query_heads", "mlp_dim", "num_decoder_layers")
        sizes = {}
        for scale in (1, 2, 4, 8, 64):
            cfg = config.load(files / "base.yml", overrides=[f"global_parameter_scale={scale}"])
            sizes[scale] = tuple(cfg[key] for key in keys)
        assert sizes == {
            1: (2048, 16, 7168, 16),
            2: (2048, 32, 14336, 16),
            4: (4096, 32, 14336, 16),
            8: (4096, 32, 14336, 32),
            64: (8192, 64, 28672, 64),
        }
        assert cfg.origin("emb_dim") == ("derived", "base_emb_dim × 4")

    def test_settings_lists_every_value_with_its_place(self, files):
        cfg = config.load(files / "base.yml", overrides=["steps=2"])
        rows = {row["path"]: row for row in cfg.settings()}
        assert rows["steps"] == {
            "path": "steps", "value": "2", "origin": "override", "place": "steps=2",
        }  # fmt: skip
        assert set(rows) == set(cfg)
        assert rows["q_lora_rank"]["place"] == "MaxText 003b41698f6e"  # Older files lack it.

    def test_a_value_can_be_replaced_and_others_follow(self, files):
        cfg = config.load(files / "base.yml").with_value("base_emb_dim", 4096)
        assert cfg["emb_dim"] == 4096
        assert pickle.loads(pickle.dumps(cfg)) == cfg

    def test_the_text_reads_back(self, files):
        cfg = config.load(files / "base.yml", overrides=["adam_eps=1e-9", "model_name=llama2-7b"])
        again = config.loads(cfg.to_text(), path="again.yml", overrides=["model_name=default"])
        assert [row["path"] for row in cfg.diff(again)] == ["model_name"]

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"))
            | st.floats(allow_nan=False),
            lambda inner: st.lists(inner, max_size=3), max_leaves=5,
        )
    )  # fmt: skip
    @example("${")
    @example(["a\\${b}", "\\\\${"])
    def test_any_value_reads_back(self, value):
        cfg = config.loads("steps: 1\n", path="run.yml").with_value("prompt", value)
        again = config.loads(cfg.to_text(), path="again.yml")
        assert again.diff(cfg).values("path") == []

    def test_diff_names_the_values(self, files):
        before = config.load(files / "base.yml")
        after = config.load(files / "base.yml", overrides=["steps=2"])
        assert [(row["path"], row["before"], row["after"]) for row in before.diff(after)] == [
            ("steps", "10", "2")
        ]

    @pytest.mark.parametrize("overrides", [None, 3, [3], "steps=1"])
    def test_overrides_are_a_list_or_a_mapping(self, overrides):
        with pytest.raises(TypeError, match=r"overrides must be a list such as .* or a mapping"):
            config.load(overrides=overrides)

    def test_the_origin_of_no_value(self):
        with pytest.raises(KeyError, match="no 'base_emb_dm'; did you mean base_emb_dim"):
            config.load().origin("base_emb_dm")


class TestRefusals:
    def refused(self, *given, environment=None, path):
        with pytest.raises(ConfigError) as caught:
            config.load(path, overrides=given, environment=environment)
        return caught.value

    def test_a_key_set_by_the_model_and_by_an_argument(self, files):
        given = ("model_name=llama2-7b", "base_mlp_dim=1")
        error = self.refused(*given, path=files / "base.yml")
        assert error.kind == "set-twice" and "override_model_config=true" in str(error)
        cfg = config.load(
            files / "base.yml", overrides=[*given, "override_model_config=true"]
        )  # fmt: skip
        assert (cfg["base_mlp_dim"], cfg["base_emb_dim"]) == (1, 4096)

    def test_a_key_set_by_an_argument_and_a_variable(self, files):
        environment = {"M_STEPS": "1"}
        error = self.refused("steps=2", environment=environment, path=files / "base.yml")
        assert error.kind == "set-twice" and "M_STEPS" in str(error)

    @pytest.mark.parametrize(
        ("given", "kind", "words"),
        [
            ("stepz=2", "unknown-key", "did you mean steps?"),
            ("steps=two", "invalid-override", "steps=two: the value must be a whole number"),
            ("scan_layers=7", "invalid-override", "true or false"),
            ("a" + ".b" * 3000 + "=1", "invalid-override", "more than 20 nested keys"),
            ("steps", "invalid-override", "write key=value"),
            ("steps=[1", "invalid-yaml", "steps=[1"),
            ("model_name=lama2-7b", "unknown-model", "did you mean llama2-7b"),
            ("model_name=../secret", "unknown-model", "not the name of a model"),
            ("modelname=llama2-7b", "unknown-key", "did you mean model_name?"),
        ],
    )
    def test_an_argument(self, files, given, kind, words):
        error = self.refused(given, path=files / "base.yml")
        assert error.kind == kind and words in str(error)

    def test_misspelt_keys_of_files_are_noted_where_no_base_is_at_hand(self, tmp_path):
        text = "steps: 1\nici_fdsp_parallelism: 4\nzebra: 2\n"
        cfg = config.load(write(tmp_path, "run.yml", text))
        (note,) = (row for row in cfg.select("v5e-4").notes if row["kind"] == "not-checked")
        assert note["path"] == "ici_fdsp_parallelism"
        assert "run.yml:2" in note["text"] and "did you mean ici_fsdp_parallelism" in note["text"]

    def test_unknown_keys_are_noted_where_no_base_is_at_hand(self, tmp_path):
        cfg = config.load(write(tmp_path, "run.yml", "steps: 1\n"), overrides=["stepsize=2"])
        noted = {row["kind"]: row["path"] for row in cfg.select("v5e-4").notes}
        assert noted["not-checked"] == "stepsize"

    def test_unknown_variables_are_noted_where_no_base_is_at_hand(self, tmp_path):
        variables = {"M_REMAT_POLICYY": "minimal", "M_STEPS": "2"}
        cfg = config.load(write(tmp_path, "run.yml", "steps: 1\n"), environment=variables)
        noted = [row for row in cfg.select("v5e-4").notes if row["kind"] == "not-checked"]
        assert [row["path"] for row in noted] == ["remat_policyy"]
        assert "did you mean M_REMAT_POLICY?" in noted[0]["text"]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("steps: 1\ndecoder_block: {a: 1}\n", "run.yml:2: decoder_block must be a single"),
            ("opt_type: [[1], [2]]\n", "run.yml:1: opt_type must be a single value"),
            ("mesh_axes: {a: 1}\n", "run.yml:1: mesh_axes must be a list"),
            ("mlp_activations: [[silu]]\n", "mlp_activations must be a list of single values"),
            ("context_parallel_strategy: [a]\n", "context_parallel_strategy must be a single"),
        ],
    )
    def test_lists_in_place_of_values(self, tmp_path, text, words):
        error = self.refused(path=write(tmp_path, "run.yml", text))
        assert error.kind == "invalid-value" and words in str(error)

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("M_STEPZ", "M_STEPZ: no key 'stepz'; did you mean M_STEPS?"),
            ("M_steps", "M_steps: MaxText takes variables only in upper case: M_STEPS"),
        ],
    )
    def test_a_variable(self, files, name, words):
        error = self.refused(environment={name: "2"}, path=files / "base.yml")
        assert error.kind == "unknown-key" and words in str(error)

    def test_keys_that_figures_depend_on_are_known(self):
        plain = config.loads("", path="run.yml")
        keys = keys_read()
        assert {"num_pipeline_microbatches", "ragged_buffer_factor", "scan_layers"} <= keys
        given = [f"{key}=null" for key in sorted(keys) if key not in plain]
        assert given, "keys of other versions have no default"
        cfg = config.loads("", path="run.yml", overrides=given)
        notes = cfg.select("v5e-4").notes
        assert [row["path"] for row in notes if row["kind"] == "not-checked"] == []

    def test_a_key_without_its_underscores_is_refused(self, tmp_path):
        path = write(tmp_path, "run.yml", "steps: 1\n")
        with pytest.raises(ConfigError, match=r"no key 'modelname'; did you mean model_name\?"):
            config.load(path, overrides=["modelname=llama2-7b"])

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("base_config: gone.yml\n", "run.yml:1: base_config gone.yml: No such file"),
            ("base_config: run.yml\n", "inherits from itself"),
            ("base_config: ./run.yml\n", "inherits from itself"),
            ("base_config: /etc/passwd\n", "must name a .yml file"),
            ("base_config: [a]\n", "must name a .yml file"),
        ],
    )
    def test_inheritance(self, files, text, words):
        assert words in str(self.refused(path=write(files, "run.yml", text)))

    def test_a_long_chain(self, tmp_path):
        for number in range(30):
            write(tmp_path, f"{number}.yml", f"base_config: {number + 1}.yml\n")
        assert self.refused(path=tmp_path / "0.yml").kind == "too-deep"


HOSTILE = [
    ("a: !!python/object/apply:os.system ['x']\n", "tag", 1, 4),
    ("a: 1\na: 2\n", "duplicate-key", 2, 1),
    ("a: *b\n", "unknown-alias", 1, 4),
    ("a: &b [*b]\n", "unknown-alias", 1, 8),
    ("a: " + "[" * 100_000, "too-deep", 1, 24),
    ("a: " + "{b: " * 100_000, "too-deep", 1, 84),
    ("a: [" + "1," * 60_000 + "]\n", "too-large", 1, 100_001),
    ("a: 1\n---\nb: 2\n", "several-documents", 2, 1),
    ("- a\n", "not-a-mapping", 1, 1),
    ("a: b: c\n", "invalid-yaml", 1, 5),
    ("a: [1\n", "invalid-yaml", 2, 1),
    ("a: \x01\n", "invalid-yaml", 1, 4),
    ("? [a]\n: 1\n", "invalid-key", 1, 3),
    ("a: {<<: {b: 1}}\n", "merge-key", 1, 5),
    ("a: ${oc.env:HOME}\n", "interpolation", 1, 4),
    (b"a: \xff\n", "invalid-utf-8", 1, 4),
    ("a: " + "1" * (1 << 20), "too-large", 1, 1),
]


class TestHostileYaml:
    @pytest.mark.parametrize(("text", "kind", "line", "column"), HOSTILE)
    def test_is_refused_with_its_place(self, text, kind, line, column):
        with pytest.raises(ConfigError) as caught:
            config.loads(text, path="run.yml")
        error = caught.value
        assert (error.kind, error.line, error.column) == (kind, line, column)
        if len(text) <= 1 << 20:
            assert str(error).startswith(f"run.yml:{line}:{column}: error: ")

    def test_aliases_count_as_what_they_stand_for(self):
        lines = ["a0: &a0 [1, 1]"]
        lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
        with pytest.raises(ConfigError, match="more than 50,000 values"):
            config.loads("\n".join(lines), path="run.yml")

    def test_aliases_within_the_bound_are_values(self):
        cfg = config.loads("mesh_axes: &a [data, fsdp]\nother: *a\n", path="run.yml")
        assert cfg["other"] == ("data", "fsdp")

    @pytest.mark.parametrize("value", ["[]", "{}", "~", "x", "-1", "1e999", "9" * 300, "[[1]]"])
    @pytest.mark.parametrize(
        "key", ["base_emb_dim", "mesh_axes", "logical_axis_rules", "per_device_batch_size",
                "decoder_block", "remat_policy", "mlp_activations", "ici_fsdp_parallelism",
                "weight_dtype", "gradient_accumulation_steps", "capacity_factor"],
    )  # fmt: skip
    def test_absurd_values_leave_figures_unknown(self, key, value):
        text = f"{key}: {value}\nscan_layers: true\n"
        lists = {"mesh_axes": "[]", "mlp_activations": "[]", "logical_axis_rules": "[] [[1]]"}
        if value[0] in "[{" and value not in lists.get(key, "").split():
            with pytest.raises(ConfigError, match=f"run.yml:1: {key} must be"):
                config.loads(text, path="run.yml")
            return
        cfg = config.loads(text, path="run.yml")
        effective = cfg.select("v5e-256")
        effective.verdict()
        cfg.parameter_count()
        assert isinstance(repr(effective), str)

    @given(st.text("a:[]{}&*!|>-'\"#,?% \n1.~\t", max_size=60))
    def test_any_text_is_a_config_or_an_error(self, text):
        try:
            cfg = config.loads(text, path="run.yml")
        except ConfigError:
            return
        cfg.select("v5e-4").verdict()


class TestRecognition:
    def test_texts_without_a_name(self):
        assert config.is_config(BASE)
        assert config.loads(BASE)["steps"] == 10
        assert not config.is_config("a: 1\nb: 2\n- x\n")
        assert not config.is_config("HloModule m\n")

    def test_golden_configs_take_no_overrides(self):
        with pytest.raises(ConfigError, match="this is not YAML"):
            config.loads("model.klass: 'a.b'\n", overrides=["a=1"])


class TestCommandLine:
    def test_values_and_their_places(self, files):
        out = hlofast_command(
            "config", files / "base.yml", "per_device_batch_size=4", "model_name=llama2-7b"
        )
        assert re.search(r"parameters +6,738,415,616", out.stdout)
        assert re.search(
            r"per_device_batch_size +4.0 +override +per_device_batch_size=4", out.stdout
        )

    def test_overrides_alone_apply_to_the_defaults(self):
        out = hlofast_command("config", "model_name=llama3.1-8b", "--instance", "v5e-256")
        assert re.search(r"mesh +fsdp=256", out.stdout) and "8,030,261,248" in out.stdout

    def test_json_has_the_values_and_the_figures(self):
        given = ("model_name=llama3.1-8b", "per_device_batch_size=2", "--instance", "v5e-256")
        described, selected = document("config", *given)["results"]
        facts = {name: fact["value"] for name, fact in described["facts"].items()}
        assert (facts["trainer"], facts["parameters"]) == ("MaxText", 8_030_261_248)
        assert facts["logged_tflops"] == pytest.approx(191.0316, abs=1e-4)
        origins = {row["path"]: row["origin"] for row in described["tables"]["settings"]}
        assert (origins["per_device_batch_size"], origins["head_dim"]) == ("override", "model")
        assert selected["facts"]["mesh"]["value"] == "fsdp=256"

    def test_tables_of_memory_sum_to_the_figures(self):
        given = ("model_name=llama3.1-8b", "--instance", "v5e-64")
        _, selected = document("config", *given)["results"]
        facts = {name: fact["value"] for name, fact in selected["facts"].items()}
        terms = selected["tables"]["peak_terms"]
        assert (
            sum(row["bytes"] for row in terms if row["is_needed"]) == facts["expected_peak_bytes"]
        )
        assert sum(row["bytes"] for row in terms) == facts["relaxed_peak_bytes"]
        held = [row for row in selected["tables"]["memory"] if row["place"] == "device"]
        assert sum(row["bytes"] for row in held) == facts["hbm_lower_bound"]
        out = hlofast_command("config", *given).stdout
        peak = out.split("Terms of the peak")[1].split("\n\n")[0]
        sizes = re.findall(r"([\d,]+)  yes", peak)
        shown = re.search(r"\npeak +([\d,]+) B", out)[1]
        assert sum(int(size.replace(",", "")) for size in sizes) == int(shown.replace(",", ""))
        assert re.search(r"\nsequences/device +12\n", out)

    def test_environment(self, files, monkeypatch):
        monkeypatch.setenv("M_BASE_NUM_DECODER_LAYERS", "1")
        out = hlofast_command("config", files / "base.yml")
        assert re.search(r"base_num_decoder_layers +1 +environment", out.stdout)

    def test_diff(self, files):
        out = hlofast_command("config", files / "base.yml", "steps=3", "--diff", files / "base.yml")
        assert out.returncode == 1 and re.search(r"steps +3 +10", out.stdout)

    def test_the_text_has_the_values_of_the_run(self, files):
        out = hlofast_command("config", files / "base.yml", "steps=3", "--text")
        assert "steps: 3\n" in out.stdout

    def test_an_error_names_the_place(self, files):
        out = hlofast_command("config", write(files, "run.yml", "steps: [1\n"))
        assert out.returncode == 3 and "run.yml:2:1: error: " in out.stderr

    def test_an_error_names_the_file_that_is_not_there(self, files):
        path = write(files, "run.yml", "steps: 1\n")
        out = hlofast_command("config", path, "--base", files / "none.yml")
        none = files / "none.yml"
        assert (out.returncode, out.stderr) == (3, f"hlofast: {none}: No such file or directory\n")


def test_a_base_whose_path_is_no_path_is_an_error_with_its_place(files):
    path = write(files, "run.yml", 'base_config: "a\\0.yml"\nsteps: 10\n')
    with pytest.raises(ConfigError) as raised:
        config.load(path)
    assert raised.value.kind == "missing-base" and raised.value.line == 1
