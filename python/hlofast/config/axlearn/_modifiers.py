"""AXLearn's config modifiers, one function per class.

The classes come from AXLearn's `common/trainer_config_modifier.py` (with their earlier names),
`common/flash_attention/layer.py` and `experiments/trainer_config_utils.py`.
"""

from __future__ import annotations

from hlofast.config import _paths
from hlofast.config._difference import differences
from hlofast.config._tree import Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Modifier: TypeAlias = "Callable[[Config, Config, Report], Config]"

FLASH_ATTENTION = "axlearn.common.flash_attention.layer.FlashAttention"
ACCUMULATION = "axlearn.common.gradient_accumulation.with_minibatch_steps"
MOST_MODIFIERS = 1000
"""Limit on the modifiers of one rule, because chains may contain chains."""

_LAYER_FIELDS = frozenset(
    "name vlog dtype param_init param_partition_spec param_noise remat_spec tensor_stats".split()
)
_STACK = frozenset({"layer", "num_layers", "peak_stochastic_depth_rate"})
_QKV = frozenset("query_dim key_dim value_dim num_heads per_head_dim cache_dtype layer".split())
_FIELDS: dict[str, frozenset[str]] = {
    "StackedTransformerLayer": _STACK,
    "RepeatedTransformerLayer": _STACK | {"repeat"},
    "PipelinedTransformerLayer": _STACK | {"num_stages", "num_microbatches", "pipeline", "stage"},
    "QKVLinear": _QKV,
    "FusedQKVLinear": _QKV,
    "GroupedQKVLinear": _QKV | {"num_kv_heads"},
    "FusedGroupedQKVLinear": _QKV | {"num_kv_heads"},
    "RoFormerQKVLinear": (_QKV - {"layer"})
    | {"input_linear", "rope_pos_emb_layer", "rotary_value"},
}
"""The fields of classes with which modifiers replace other classes, as AXLearn declares them.

A config does not print None and empty fields, so it does not show all fields of a class.
"""


class Report:
    """The changes that modifiers made, and notes about them."""

    def __init__(self, rule: int | None = None) -> None:
        self.rule = rule
        self.changes: list[tuple[str, str | None, str | None, str]] = []
        self.notes: list[tuple[str, str | None, str]] = []
        self.applied = 0

    def note(self, kind: str, path: str | None, text: str) -> None:
        """Adds a note."""
        self.notes.append((kind, path, text))

    def changed(self, before: Config, after: Config, by: str | None = None) -> None:
        """Records the values that a step changed."""
        why = f"rule {self.rule}" + (f", {by}" if by else "")
        for keys, was, now in differences(before, after):
            self.changes.append((_paths.write(keys), was, now, why))


def apply(config: Config, modifier: Config, report: Report) -> Config:
    """Returns `config` as `modifier` changes it."""
    klass, name = modifier.klass or "a config without klass", modifier.class_name
    function = MODIFIERS.get(name or "") if klass.startswith("axlearn.") else None
    if function is None:
        text = f"{klass} is not modelled: its changes to the config are not known"
        report.note("not-modelled", modifier.path, text)
        return config
    report.applied += 1
    if report.applied > MOST_MODIFIERS:
        if report.applied == MOST_MODIFIERS + 1:
            text = f"only the first {MOST_MODIFIERS:,} modifiers are applied"
            report.note("not-modelled", modifier.path, text)
        return config
    changed = function(config, modifier, report)
    if function is not _chain:
        report.changed(config, changed, name)
    return changed


def _entries(modifier: Config, field: str) -> list[tuple[Any, Any]]:
    """The items of a field that is a list or a dictionary."""
    items = modifier.get(field)
    return list(items.items()) if isinstance(items, Config) else []


def _chain(config: Config, modifier: Config, report: Report) -> Config:
    for _, inner in _entries(modifier, "config_modifiers"):
        if isinstance(inner, Config):
            config = apply(config, inner, report)
        else:
            text = f"a modifier that is not a config is not modelled: {inner!r}"
            report.note("not-modelled", modifier.path, text)
    return config


def _set(
    config: Config, module: Any, field: Any, value: Any, modifier: Config, report: Report
) -> Config:
    """Sets a field of a module; notes that AXLearn fails if there is no such module."""
    try:
        keys = config._resolve(module) if module else ()
        part = config[module] if module else config
        if not isinstance(part, Config) or (module and part.klass is None):
            raise KeyError(module)
        if value is None and field not in part:
            # A field that is not printed has its default, None.
            return config
        return config._with((*keys, field), value)
    except (KeyError, TypeError):
        where = f"{module}.{field}" if module else field
        report.note("fails", modifier.path, f"AXLearn fails here: {where} cannot be set")
        return config


def _mesh_shape(config: Config, modifier: Config, report: Report) -> Config:
    return _set(config, "", "mesh_shape", modifier.get("mesh_shape"), modifier, report)


def _remat_spec(config: Config, modifier: Config, report: Report) -> Config:
    for module, spec in _entries(modifier, "remat_policies"):
        config = _set(config, module, "remat_spec", spec, modifier, report)
    return config


def _partition_spec(config: Config, modifier: Config, report: Report) -> Config:
    for module, specs in _entries(modifier, "partition_specs"):
        for field, spec in specs.items() if isinstance(specs, Config) else ():
            config = _set(config, module, field, spec, modifier, report)
    return config


def _accumulation(config: Config, modifier: Config, report: Report) -> Config:
    steps = modifier.get("grad_acc_steps")
    if steps is None:
        return config
    fields = {"fn": ACCUMULATION, "steps": steps}
    if "metric_accumulator" in modifier:
        fields["metric_accumulator"] = modifier["metric_accumulator"]
    value = Config.of(**fields)
    return _set(config, "learner", "forward_fn_transformation", value, modifier, report)


def _module(config: Config, modifier: Config, report: Report) -> Config:
    target, modification = modifier.get("target_config"), modifier.get("modification")
    return _replaced(config, target, modification, modifier, report)


def _modules(config: Config, modifier: Config, report: Report) -> Config:
    modifications = _entries(modifier, "model_cfg_modifications")
    # Outer modules come before the modules inside them.
    for target, modification in sorted(modifications, key=lambda item: len(str(item[0]))):
        config = _replaced(config, target, modification, modifier, report)
    return config


def _layers(config: Config, modifier: Config, report: Report) -> Config:
    """Gives every layer of one class the fields `exclude_keys` of another config.

    All other fields are copied from the layer.
    """
    target, source = modifier.get("target_cls"), modifier.get("source_config")
    if not isinstance(source, Config) or source.klass != target:
        text = f"{target} is replaced by another class, which is not modelled"
        report.note("not-modelled", modifier.path, text)
        return config
    paths = [part.path for part in config.configs() if part.klass == target]
    if not paths:
        report.note("no-effect", modifier.path, f"the config has no {target} to change")
    for _, key in _entries(modifier, "exclude_keys"):
        for path in paths:
            config = _set(config, path, key, source.get(key), modifier, report)
    return config


def _replaced(
    config: Config, target: Any, modification: Any, modifier: Config, report: Report
) -> Config:
    """Replaces a module by a module of another class, as ModuleConfigModifier does.

    Fields that both classes have keep the value of the old module; only fields that the old class
    lacks take their value from the modification.
    """
    replaced = config.get(target) if isinstance(target, str) else None
    if not (isinstance(replaced, Config) and isinstance(modification, Config) and replaced.klass):
        text = f"AXLearn fails here: the config has no module {target}"
        report.note("fails", modifier.path, text)
        return config
    new, old = _fields_of(modification), _fields_of(replaced)
    merged: dict[str, Any] = {}
    dead, unknown = [], []
    for name, value in modification.items():
        if name == "klass":
            merged[name] = value
        elif name in replaced:
            merged[name] = replaced[name]
            dead.append(name)
        elif old is not None and name in old:
            # The module has the field, but it is None and therefore not printed.
            dead.append(name)
        else:
            merged[name] = value
            if old is None:
                unknown.append(f"whether {replaced.class_name} has {name}")
    for name, value in replaced.items():
        if name in merged:
            continue
        if new is None:
            unknown.append(f"whether {modification.class_name} has {name}")
        if new is None or name in new:
            merged[name] = value
    if dead:
        count = sum(map(_count, (modification[name] for name in dead)))
        text = (
            f"{count} values of the modification, in {', '.join(dead)}, have no effect: "
            f"ModuleConfigModifier keeps what {target} had"
        )
        report.note("dead-values", modification.path, text)
    if unknown:
        text = f"not known: {', '.join(unknown)}; the values are kept"
        report.note("not-known", modification.path, text)
    return config.with_value(target, Config.of(**merged))


def _fields_of(module: Config) -> frozenset[str] | None:
    """The fields of a module's class; None if they are not known."""
    fields = _FIELDS.get(module.class_name or "")
    return None if fields is None else fields | _LAYER_FIELDS


def _count(value: Any) -> int:
    """Number of values in a part; 1 for a single value."""
    return sum(1 for _ in value.leaves()) if isinstance(value, Config) else 1


def _flash_attentions(config: Config, modifier: Config, report: Report) -> list[str]:
    """The paths of all configs of FlashAttention."""
    paths: list[str] = []
    for part in config.configs():
        if part.klass == FLASH_ATTENTION:
            if not any(part.path.startswith((f"{outer}.", f"{outer}[")) for outer in paths):
                paths.append(part.path)
        elif part.class_name and "FlashAttention" in part.class_name:
            text = f"{part.klass} may be a FlashAttention, which is not known: it is left unchanged"
            report.note("not-known", part.path, text)
    if not paths:
        report.note("no-effect", modifier.path, "the config has no FlashAttention to change")
    return paths


def _block_sizes(default: int) -> Modifier:
    def modify(config: Config, modifier: Config, report: Report) -> Config:
        sizes = {
            "tpu_block_size": modifier.get("tpu_block_size", default),
            "gpu_block_size": modifier.get("gpu_block_size"),
        }
        for path in _flash_attentions(config, modifier, report):
            for field, size in sizes.items():
                config = _set(config, path, field, size, modifier, report)
        return config

    return modify


def _backend(config: Config, modifier: Config, report: Report) -> Config:
    return _overridden(config, dict(_entries(modifier, "backend_overrides")), modifier, report)


def _splash(config: Config, modifier: Config, report: Report) -> Config:
    given = {name: size for name, size in modifier.items() if str(name).startswith("splash_")}
    return _overridden(config, given, modifier, report)


def _overridden(config: Config, given: dict[Any, Any], by: Config, report: Report) -> Config:
    for path in _flash_attentions(config, by, report):
        merged = dict(_entries(config[path], "backend_overrides"))
        merged |= {name: value for name, value in given.items() if value}
        if merged:
            config = _set(config, path, "backend_overrides", merged, by, report)
    return config


MODIFIERS: dict[str, Modifier] = {
    "ChainConfigModifier": _chain,
    "MeshShapeModifier": _mesh_shape,
    "RematSpecModifier": _remat_spec,
    "PartitionSpecModifier": _partition_spec,
    "GradientAccumulationModifier": _accumulation,
    "ModuleConfigModifier": _module,
    "ReplaceLayerConfigModifier": _layers,
    "FlashBlockSizeModifier": _block_sizes(512),
    "V6eFlashConfigModifier": _block_sizes(1024),
    "V7xFlashConfigModifier": _block_sizes(2048),
    "BackendOverrideModifier": _backend,
    "SplashAttentionConfigModifier": _splash,
    # Earlier names of these classes.
    "MeshShapeUpdate": _mesh_shape,
    "RematPolicies": _remat_spec,
    "GradientAccumulation": _accumulation,
    "ModelConfigModifier": _modules,
}
"""Modifiers by class name; the class must be in a module of AXLearn."""
