"""Mesh rules: the rule that an instance selects, and the config that it produces."""

from __future__ import annotations

from hlofast.config import _instances, _mesh
from hlofast.config._patterns import Pattern, PatternError
from hlofast.config._select import (
    CHANGES,
    NEAR,
    NOTES,
    RULES,
    EffectiveConfig,
    slice_notes,
)
from hlofast.config._tree import Config
from hlofast.config.axlearn import _modifiers
from hlofast.config.axlearn._modifiers import Report
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._core import Mesh
    from hlofast.config._instances import Instance

MOST_EXAMPLES = 64
"""Limit on the instance names that are listed for one selector."""
MOST_RULES = 1000
"""Limit on the rules of a config that are read."""
_CLOSE = 4
"""A selector is reported as close if it fits at least this many characters of the name."""


class Rule:
    """A mesh rule of a config; `problem` tells why it cannot be read."""

    __slots__ = ("index", "pattern", "problem", "selector", "value")

    def __init__(self, index: int, entry: Any) -> None:
        self.index = index
        self.selector: str | None = None
        self.pattern: Pattern | None = None
        self.problem: str | None = None
        self.value: Any = None
        if not isinstance(entry, Config) or not isinstance(entry.get(0), str):
            self.problem = "a rule must be a pair of a regular expression and a mesh"
            return
        self.selector = entry[0]
        self.value = entry.get(1)
        try:
            self.pattern = Pattern(entry[0])
        except PatternError as error:
            self.problem = str(error)

    @property
    def modifiers(self) -> list[str]:
        """Class names of the modifiers, in order, with chains expanded."""
        names: list[str] = []
        waiting = [self.value]
        while waiting:
            part = waiting.pop()
            if not isinstance(part, Config) or part.klass is None:
                continue
            if part.class_name != "ChainConfigModifier":
                names.append(part.class_name or part.klass)
            elif isinstance(inner := part.get("config_modifiers"), Config):
                waiting.extend(reversed(list(inner.values())))
        return names

    @property
    def examples(self) -> list[str] | None:
        """The instance names that match; None if there are too many to list."""
        return self.pattern.examples(MOST_EXAMPLES) if self.pattern else None


def rules(config: Config, report: Report | None = None) -> Iterator[Rule]:
    """Yields the mesh rules of a config, and reads each rule lazily."""
    entries = config.get("mesh_rules")
    if not isinstance(entries, Config):
        return
    for index, entry in enumerate(entries.values()):
        if index == MOST_RULES:
            if report is not None:
                text = f"only the first {MOST_RULES:,} of {len(entries):,} rules are read"
                report.note("selector", "mesh_rules", text)
            return
        yield Rule(index, entry)


def rule_table(config: Config) -> Table:
    """The table of `Config.rules`."""
    rows = []
    for rule in rules(config):
        shape = _declared(_with_rule(config, rule, Report()))
        names = rule.examples
        instances = ",".join(names) if names else None
        rows.append((rule.index, rule.selector, shape, ",".join(rule.modifiers), instances))
    return of_rows(RULES, rows)


def _declared(config: Config) -> str | None:
    """The mesh shape with the names of its axes."""
    names, shape = _plain(config, "mesh_axis_names"), _plain(config, "mesh_shape")
    if isinstance(shape, list) and isinstance(names, list) and len(names) == len(shape):
        return ",".join(f"{name}={size}" for name, size in zip(names, shape, strict=True))
    return None if shape is None else str(shape)


def _plain(config: Config, path: str) -> Any:
    value = config.get(path)
    return value.to_python() if isinstance(value, Config) else value


def _with_rule(config: Config, rule: Rule, report: Report) -> Config:
    """Returns `config` with `rule` applied."""
    value = rule.value
    if isinstance(value, Config) and value.klass is not None:
        return _modifiers.apply(config, value, report)
    if value is None or (
        isinstance(value, Config) and (value.is_sequence or "ici_mesh_shape" in value)
    ):
        changed = config.with_value("mesh_shape", value)
        report.changed(config, changed)
        return changed
    where = value.path if isinstance(value, Config) else f"mesh_rules[{rule.index}][1]"
    report.note("not-modelled", where, "the value is neither a mesh shape nor a modifier")
    return config


def select(config: Config, name: str, devices: int | None = None) -> EffectiveConfig:
    """See `Config.select`."""
    report = Report()
    near: list[tuple[Rule, int, list[str]]] = []
    for rule in rules(config, report):
        if rule.pattern is None:
            text = f"rule {rule.index} is treated as not matching: {rule.problem}"
            report.note("selector", f"mesh_rules[{rule.index}]", text)
        elif rule.pattern.fullmatch(name):
            return _effective(config, rule, _instances.read(name), devices, report, [])
        else:
            near.append((rule, *rule.pattern.fits(name)))
    near.sort(key=lambda miss: -miss[1])
    _say_nothing_matches(name, near, report)
    return _effective(config, None, _instances.read(name), devices, report, near)


def select_all(config: Config, devices: int | None = None) -> list[EffectiveConfig]:
    """See `Config.select_all`."""
    configs: list[EffectiveConfig] = []
    taken: set[str] = set()
    for rule in rules(config):
        names = rule.examples
        for name in names or [rule.selector or f"rule {rule.index}"]:
            report = Report()
            if name in taken:
                text = f"rule {rule.index} never applies to {name!r}: an earlier rule matches"
                report.note("selector", f"mesh_rules[{rule.index}]", text)
            elif rule.problem is not None:
                text = f"rule {rule.index} is treated as not matching: {rule.problem}"
                report.note("selector", f"mesh_rules[{rule.index}]", text)
            taken.add(name)
            instance = _instances.read(name)
            if not names:
                why = "the selector matches names with any number of devices"
                instance = _instances.Instance(name, why, device=instance.device)
            if instance.devices is not None:
                configs.append(_effective(config, rule, instance, None, report, []))
                continue
            for count, words in instance.readings if devices is None else ():
                read = Report()
                read.note("devices", None, f"the name is ambiguous; this reading assumes {words}")
                configs.append(_effective(config, rule, instance, count, read, []))
            if devices is not None or not instance.readings:
                configs.append(_effective(config, rule, instance, devices, report, []))
    default = _instances.Instance("other instances", "the number of devices depends on the name")
    configs.append(_effective(config, None, default, devices, Report(), []))
    return configs


def _effective(
    config: Config,
    rule: Rule | None,
    instance: Instance,
    devices: int | None,
    report: Report,
    near: list[tuple[Rule, int, list[str]]],
) -> EffectiveConfig:
    """Applies `rule` to `config` and resolves the mesh on `instance`."""
    effective = config
    if rule is not None:
        report.rule = rule.index
        effective = _with_rule(config, rule, report)
    count = devices if devices is not None else instance.devices
    for note in slice_notes(instance, count):
        report.note(*note)
    mesh = _resolved(effective, instance, count, report)
    if count is None and mesh is not None:
        count = mesh.device_count
    return EffectiveConfig(
        source=config,
        config=effective,
        instance=instance,
        devices=count,
        rule=rule.index if rule else None,
        selector=rule.selector if rule else None,
        mesh=mesh,
        changes=of_rows(CHANGES, report.changes),
        notes=of_rows(NOTES, report.notes),
        near=of_rows(
            NEAR,
            [
                (rule.index, rule.selector, instance.name[:length], " or ".join(words))
                for rule, length, words in near
            ],
        ),
    )


def _say_nothing_matches(
    name: str, near: list[tuple[Rule, int, list[str]]], report: Report
) -> None:
    text = f"no rule matches {name!r}: the config is used unchanged"
    report.note("no-rule", None, text)
    best = near[0][1] if near else 0
    for rule, length, expected in near:
        if length < max(best - 1, _CLOSE):
            continue
        wanted = " or ".join(expected)
        rest = f"not {name[length:]!r}" if length < len(name) else "where the name ends"
        text = (
            f"rule {rule.index}, {rule.selector!r}, is close: after {name[:length]!r} it expects "
        )
        report.note("no-rule", f"mesh_rules[{rule.index}]", f"{text}{wanted}, {rest}")


def _resolved(config: Config, instance: Instance, count: int | None, report: Report) -> Mesh | None:
    """The mesh of the config on the instance; None, with a note, if there is none."""
    if count is None:
        report.note("devices", None, instance.why)
    hosts = None
    each = instance.devices_per_host
    if each is not None and count is not None and count % each == 0:
        hosts = count // each
    names, shape = _plain(config, "mesh_axis_names"), _plain(config, "mesh_shape")
    try:
        return _mesh.resolve(names, shape, count, slices=instance.slices, hosts=hosts)
    except _mesh.MeshError as error:
        report.note("mesh", "mesh_shape", str(error))
        return None
