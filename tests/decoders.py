"""Decoder configs that tests vary."""

import importlib.util
import math
from typing import Any

import hlofast
from conftest import FIXTURES
from hlofast.config import Config, EffectiveConfig

_spec = importlib.util.spec_from_file_location("decoder_configs", FIXTURES / "decoder_configs.py")
assert _spec is not None and _spec.loader is not None
decoder_configs: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(decoder_configs)

LAYER = "model.decoder.transformer.layer"
TOKENS = 1024 * 4096
GB = 10**9


def decoder(**changes: Any) -> Config:
    """A small decoder, other than usual in what `changes` says."""
    sizes = {"layers": 3, "dim": 64, "heads": 8, "kv_heads": 2, "vocabulary": 100}
    sizes |= {"sequence": 32, "batch": 16, "hidden": 96}
    text = decoder_configs.text(**{**sizes, **changes})
    config = hlofast.config.loads(text)
    assert config.to_text() == text
    return config


def on(config: Config, **axes: int) -> EffectiveConfig:
    """The config on a mesh of these axes."""
    names = ("pipeline", "data", "expert", "fsdp", "seq", "model")
    shape = [axes.get(name, 1) for name in names]
    return config.with_value("mesh_shape", shape).select("local", devices=math.prod(shape))


def paths(config: Config) -> dict[str, int]:
    return {row["path"]: row["elements"] for row in config.parameters()}
