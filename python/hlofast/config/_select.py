"""Mesh rules: the rule that an instance selects, and the config that it produces."""

from __future__ import annotations

from hlofast._core import Field
from hlofast.config import _instances, _mesh, _modifiers
from hlofast.config._modifiers import Report
from hlofast.config._patterns import Pattern, PatternError
from hlofast.config._tree import Config, Modelled
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    from hlofast._core import Mesh
    from hlofast.config._implied import Implied
    from hlofast.config._instances import Instance
    from hlofast.config._memory import StepMemory
    from hlofast.config._traffic import StepTraffic
    from hlofast.config._verdict import Verdict
    from hlofast.devices import Device

MOST_EXAMPLES = 64
"""Limit on the instance names that are listed for one selector."""
MOST_RULES = 1000
"""Limit on the rules of a config that are read."""
_CLOSE = 4
"""A selector is reported as close if it fits at least this many characters of the name."""

_RULE = Field("index", "rule", "The number of the rule, from 0.")
_SELECTOR = Field("text", "selector", "The regular expression of the rule.", nullable=True)
_RULES = (
    _RULE,
    _SELECTOR,
    Field("text", "mesh_shape", "The mesh shape under the rule.", nullable=True),
    Field("text", "modifiers", "The classes of its modifiers, in order, joined by `,`."),
    Field("text", "instances",
          "The names that match, joined by `,`; absent if there are too many to list.",
          nullable=True),
)  # fmt: skip
_CHANGES = (
    Field("path", "path", "The value in the config."),
    Field("text", "before", "The value before, as printed; absent if there was none.",
          nullable=True),
    Field("text", "after", "The value after, as printed; absent if there is none.", nullable=True),
    Field("text", "why", "The rule and the modifier that changed it."),
)  # fmt: skip
_NOTES = (
    Field("word", "kind", "The kind of note."),
    Field("path", "path", "The place in the config; absent if it concerns the whole config.",
          nullable=True),
    Field("text", "text", "The note."),
)  # fmt: skip
_NEAR = (
    _RULE,
    _SELECTOR,
    Field("text", "fits", "The start of the instance's name that fits the selector."),
    Field("text", "expected", "What the selector expects after the part that fits."),
)


class EffectiveConfig(Modelled):
    """The config that a trainer uses on an instance, after the mesh rule that its name selects.

    Returned by `Config.select`; immutable.
    """

    __slots__ = (
        "changes", "config", "devices", "instance", "mesh", "near", "notes", "rule", "selector",
        "source",
    )  # fmt: skip

    source: Config
    """The config before the rule."""
    config: Config
    """The config after the rule's modifiers."""
    instance: Instance
    """The instance, read from its name: `name`, `device`, `devices`, `slices`, `why`."""
    devices: int | None
    """Number of devices: given, or from the instance's name, or from the mesh shape."""
    rule: int | None
    """The number of the rule, from 0; None if no rule matches."""
    selector: str | None
    """The regular expression of the rule."""
    mesh: Mesh | None
    """The mesh with the sizes of all axes; None if they are not known (see `notes`)."""
    changes: Table
    """The changes of the rule, in order: `path`, `before`, `after` (as printed), `why`."""
    notes: Table
    """Parts that are not modelled, fail, have no effect or are not known: `kind`, `path`, `text`.

    Kinds: `selector` (a rule whose pattern is not supported), `no-rule`, `not-modelled`, `fails`
    (AXLearn would stop), `dead-values`, `no-effect`, `not-known`, `devices`, `mesh`.
    """
    near: Table
    """If no rule matches, all rules, closest first: `rule`, `selector`, `fits` (the start of the
    name that fits), `expected` (the continuation that the selector expects)."""

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def accumulation_steps(self) -> int | None:
        """Gradient accumulation steps; 1 without accumulation.

        None if the learner's `forward_fn_transformation` is not modelled.
        """
        transformation = self.config.get("learner.forward_fn_transformation")
        if transformation is None:
            return 1
        if not isinstance(transformation, Config):
            return None
        steps = transformation.get("steps")
        is_known = transformation.get("fn") == _modifiers.ACCUMULATION
        return steps if is_known and type(steps) is int and steps > 0 else None

    def parameter_count(self) -> int | None:
        """See `Config.parameter_count`."""
        return self.config.parameter_count()

    def memory(self) -> StepMemory:
        """The memory of a training step on one device; unknown without a mesh."""
        from hlofast.config._memory import StepMemory

        return StepMemory(self._implied())

    def traffic(self) -> StepTraffic:
        """The collectives of a training step; unknown without a mesh."""
        from hlofast.config._traffic import StepTraffic

        return StepTraffic(self._implied())

    def verdict(self, device: str | Device | None = None) -> Verdict:
        """Whether a step fits in device memory, its largest term, and its modelled time.

        The status is `unknown` if a modifier is not modelled or AXLearn would fail at it. `device`
        is a name or a `Device`; it defaults to the instance's kind of device. Raises
        `UnknownDeviceError` for an unknown name.
        """
        from hlofast import devices
        from hlofast.config._verdict import Verdict

        kind = self.instance.device if device is None else device
        target = None if kind is None else devices.get(kind)
        # With a note of these kinds, neither the effective config nor its figures are certain.
        problems = tuple(
            (row["path"] or "", row["text"])
            for row in self.notes
            if row["kind"] in ("not-modelled", "fails")
        )
        return Verdict(self._implied(), target, self.devices, problems)

    def _implied(self) -> Implied:
        from hlofast.config._implied import Implied

        mesh = None if self.mesh is None else dict(self.mesh.shape)
        slices = self.instance.slices
        return Implied(self.config, mesh, steps=self.accumulation_steps, slices=slices)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("an EffectiveConfig is immutable")

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, ({name: getattr(self, name) for name in EffectiveConfig.__slots__},)

    def __repr__(self) -> str:
        rule = "no rule" if self.rule is None else f"rule {self.rule}"
        shape = dict(self.mesh.shape) if self.mesh else "unknown mesh"
        return f"<EffectiveConfig for {self.instance.name}: {rule}, {shape}>"


def _restored(fields: dict[str, Any]) -> EffectiveConfig:
    return EffectiveConfig(**fields)


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
            self.problem = "a rule has to be a pair of a regular expression and a mesh"
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
    return of_rows(_RULES, rows)


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
    _check_devices(devices)
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
    _check_devices(devices)
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


def _check_devices(devices: int | None) -> None:
    if devices is not None and not 1 <= devices <= _instances.MOST_DEVICES:
        raise ValueError(
            f"devices has to be between 1 and {_instances.MOST_DEVICES:,}, not {devices}"
        )


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
    mesh = _resolved(effective, instance, count, report, is_given=devices is not None)
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
        changes=of_rows(_CHANGES, report.changes),
        notes=of_rows(_NOTES, report.notes),
        near=of_rows(
            _NEAR,
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


def _resolved(
    config: Config, instance: Instance, count: int | None, report: Report, *, is_given: bool
) -> Mesh | None:
    """The mesh of the config on the instance; None, with a note, if there is none."""
    if is_given and instance.devices is not None and instance.devices != count:
        text = f"{count:,} devices are given, but the name says {instance.devices:,}"
        report.note("devices", None, f"{text} ({instance.why})")
    elif count is None:
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
