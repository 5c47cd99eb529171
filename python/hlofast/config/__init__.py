"""Trainer configs: AXLearn's golden configs and MaxText's YAML files.

`load(path)` and `loads(text)` return a `Config`, a tree of typed values:

    cfg = hlofast.config.load("fuji-70B.txt")
    cfg["model.decoder.dim"]                       # 8192
    cfg["mesh_axis_names"].to_python()             # ['pipeline', 'data', …]
    cfg["input.input_partitioner.path_rank_to_partition"][(None, 2)]   # PartitionSpec(…)
    cfg.with_value("model.decoder.dim", 4096).to_text()

`cfg.select("tpu-v6e-256-4")` returns the `EffectiveConfig` that a trainer uses on an instance:

    effective.rule, effective.mesh, effective.changes, effective.notes, effective.config

A MaxText run is a file and its arguments; `settings` says where each value comes from:

    cfg = hlofast.config.load("run.yml", overrides=["per_device_batch_size=4"])
    cfg["emb_dim"], cfg.settings(), cfg.logged_flops(), cfg.select("v5p-128")

Both compute what the config implies, for modelled classes (`register_module` adds more):

    cfg.parameter_count(), cfg.parameters(), cfg.flops()
    effective.memory(), effective.traffic(), effective.verdict()

Nothing in a config is ever evaluated.
"""

from __future__ import annotations

from hlofast.config._flops import StepFlops
from hlofast.config._instances import Instance
from hlofast.config._load import is_config, load, loads
from hlofast.config._memory import StepMemory
from hlofast.config._select import EffectiveConfig
from hlofast.config._time import StepTime
from hlofast.config._traffic import StepTraffic
from hlofast.config._tree import Config
from hlofast.config._values import UNCONSTRAINED, Enumeration, Opaque, PartitionSpec
from hlofast.config._verdict import Verdict
from hlofast.config.axlearn._builder import Builder, register_module
from hlofast.config.maxtext._config import MaxTextConfig
from hlofast.config.maxtext._logged import LoggedFlops
from hlofast.errors import ConfigError

__all__ = [
    "UNCONSTRAINED", "Builder", "Config", "ConfigError", "EffectiveConfig", "Enumeration",
    "Instance", "LoggedFlops", "MaxTextConfig", "Opaque", "PartitionSpec", "StepFlops",
    "StepMemory", "StepTime", "StepTraffic", "Verdict", "is_config", "load", "loads",
    "register_module",
]  # fmt: skip
