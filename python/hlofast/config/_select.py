"""`EffectiveConfig`: a config as a trainer uses it on an instance, and what it implies there."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._numbers import is_whole
from hlofast.config import _instances, _torus
from hlofast.config._tree import Config, Modelled
from hlofast.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from hlofast._core import Mesh
    from hlofast.config._implied import Implied
    from hlofast.config._instances import Instance
    from hlofast.config._memory import StepMemory
    from hlofast.config._traffic import StepTraffic
    from hlofast.config._verdict import Verdict
    from hlofast.devices import Device

RULE = Field("index", "rule", "The number of the rule, from 0.")
SELECTOR = Field("text", "selector", "The regular expression of the rule.", nullable=True)
RULES = (
    RULE,
    SELECTOR,
    Field("text", "mesh_shape", "The mesh shape under the rule.", nullable=True),
    Field("text", "modifiers", "The classes of its modifiers, in order, joined by `,`."),
    Field("text", "instances",
          "The names that match, joined by `,`; absent if there are too many to list.",
          nullable=True),
)  # fmt: skip
CHANGES = (
    Field("path", "path", "The value in the config."),
    Field("text", "before", "The value before, as printed; absent if there was none.",
          nullable=True),
    Field("text", "after", "The value after, as printed; absent if there is none.", nullable=True),
    Field("text", "why", "The rule and the modifier that changed it."),
)  # fmt: skip
NOTES = (
    Field("word", "kind", "The kind of note."),
    Field("path", "path", "The place in the config; absent if it concerns the whole config.",
          nullable=True),
    Field("text", "text", "The note."),
)  # fmt: skip
NEAR = (
    RULE,
    SELECTOR,
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
        """Gradient accumulation steps; 1 without accumulation, None if they are not modelled."""
        return self.config.front.steps(self.config)

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
        problems, runs = self._problems(target), not self._fails(target)
        return Verdict(self._implied(), target, self.devices, problems, runs=runs)

    def _fails(self, device: Device | None) -> bool:
        """Whether the trainer itself stops at the config on a kind of device: see `notes`."""
        return any(kind == "fails" for kind, _, _ in self._notes_on(device))

    def _problems(self, device: Device | None) -> tuple[tuple[str, str], ...]:
        """Paths and reasons why neither the effective config nor its figures are certain."""
        known = self._notes_on(device)
        return tuple((path, why) for kind, path, why in known if kind in ("not-modelled", "fails"))

    def _notes_on(self, device: Device | None) -> list[tuple[str, str, str]]:
        """Kind, path and text of the notes, of this kind of device in place of the instance's."""
        from hlofast import devices

        known = [(row["kind"], row["path"] or "", row["text"]) for row in self.notes]
        own = self.instance.device
        if device is None or device.name == own:
            return known
        front, config = self.config.front, self.config
        others = set() if own is None else {*front.fails_on(config, devices.get(own))}
        kept = [note for note in known if note[1:] not in others]
        return [*kept, *(("fails", path, why) for path, why in front.fails_on(config, device))]

    def _implied(self) -> Implied:
        from hlofast.config._implied import Implied

        mesh = {} if self.mesh is None else dict(self.mesh.shape)
        model = self.config.front.model(self.config, mesh, steps=self.accumulation_steps)
        return Implied(model, mesh, slices=self.instance.slices)

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


def slice_notes(instance: Instance, devices: int | None) -> list[tuple[str, str | None, str]]:
    """Notes on devices that are not as many as the name says, or not whole nodes or slices."""
    texts = [_instances.overridden(instance, devices)]
    if instance.device is not None and devices is not None:
        text = _instances.broken_nodes(instance, devices)
        texts.append(text or _torus.no_slice(instance.device, devices // instance.slices))
    return [("devices", None, text) for text in texts if text is not None]


def check_instance(instance: object) -> None:
    if not isinstance(instance, str):
        raise TypeError(f"instance must be a name such as tpu-v5p-128, not {instance!r}")


def check_devices(devices: int | None) -> int | None:
    """The number of devices as Python's integer, which it may not be."""
    if devices is None:
        return None
    if not is_whole(devices):
        raise TypeError(f"devices must be a whole number, not {devices!r}")
    if not 1 <= devices <= _instances.MOST_DEVICES:
        raise ValueError(
            f"devices must be between 1 and {_instances.MOST_DEVICES:,}, not {devices}"
        )
    return int(devices)
