"""A trainer is a folder of `hlofast.config`: a third one needs nothing else."""

import pytest

import hlofast.config
from hlofast import config

FRONT = '''
"""A trainer whose configs have one number: the width of its only matmul."""

from hlofast.config import Config, _instances, _mesh
from hlofast.config._front import Batch, Learner, Model
from hlofast.config._parts import Parameter, Parts, Product
from hlofast.config._select import CHANGES, NEAR, NOTES, RULES, EffectiveConfig
from hlofast.config._tree import Leaf
from hlofast.config._paths import Attribute
from hlofast.table import of_rows


class TinyConfig(Config):
    __slots__ = ()
    _FRONT = "tiny"


class Tiny:
    name = "Tiny"

    def is_config(self, text):
        return text.startswith("tiny ")

    def is_named(self, path):
        return path.endswith(".tiny")

    def loads(self, text, path, sources):
        width = int(text.removeprefix("tiny "))
        return TinyConfig({Attribute("width"): Leaf(width, str(width), 1)}, path=path)

    def model(self, config, mesh, *, steps):
        parts, width = Parts(), config["width"]
        sharding = (("data",), ())
        parts.parameters.append(
            Parameter("w", "width", "Tiny", (width, width), sharding, "float32", 1, 1, ())
        )
        parts.products.append(
            Product("w", "w", width * width, layers=1, remat=None, kept_by=(), is_needed=True,
                    is_attention=False, contracted=(0,), joint="x")
        )
        batch = Batch(8, 16, ("data",), (), is_placed=True)
        return Model(parts, Learner(), batch, {}, itemsize=2, steps=steps, gaps=[], masks=[])

    def steps(self, config):
        return 1

    def logged(self, config):
        return None

    def rules(self, config):
        return of_rows(RULES, ())

    def select(self, config, instance, devices):
        found = _instances.read(instance)
        mesh = _mesh.resolve(["data"], [found.devices], found.devices)
        return EffectiveConfig(
            source=config, config=config, instance=found, devices=found.devices, rule=None,
            selector=None, mesh=mesh, changes=of_rows(CHANGES, ()), notes=of_rows(NOTES, ()),
            near=of_rows(NEAR, ()),
        )

    def select_all(self, config, devices):
        return [self.select(config, "tpu-v5e-4", devices)]


FRONT = Tiny()
'''


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "front.py").write_text(FRONT)
    monkeypatch.setattr(hlofast.config, "__path__", [*hlofast.config.__path__, str(tmp_path)])


@pytest.mark.usefixtures("tiny")
def test_a_third_trainer_needs_a_folder_only():
    cfg = config.loads("tiny 256")
    assert config.is_config("tiny 256") and cfg.front.name == "Tiny"
    assert cfg.parameter_count() == 256 * 256
    effective = cfg.select("tpu-v5e-4")
    assert effective.flops().matmul == 3 * 2 * 256 * 256 * 8 * 16
    assert effective.memory()["parameters"] == 256 * 256  # Four bytes on a quarter.
    kinds = {each.kind for each in effective.traffic().transfers}
    assert kinds == {"all-gather", "reduce-scatter"}
    assert effective.verdict().status == "fits"


@pytest.mark.usefixtures("tiny")
def test_other_trainers_are_still_found(tmp_path):
    path = tmp_path / "run.yml"
    path.write_text("base_emb_dim: 64\n")
    assert config.load(path).front.name == "MaxText"
    assert config.loads("model.klass: 'a.b'\n").front.name == "AXLearn"
