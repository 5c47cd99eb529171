"""Fronts: what hlofast needs to know about the configs of one trainer.

A front is a folder of this package with a module `front` that holds an object `FRONT` of the
protocol `Front`. It reads configs, and describes the model that a config trains as a `Model`:
parameters, matmuls and values of its layers, checkpoint policies, optimizer state and batch. All
figures (parameters, FLOPs, memory, traffic, time, verdict) follow from `Model`, so a new trainer
needs a new folder and nothing else.
"""

from __future__ import annotations

from typing import Protocol

from hlofast.config._policies import OFFLOADED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, BinaryIO

    from hlofast.config._parts import Parts
    from hlofast.config._plan_space import Candidate
    from hlofast.config._policies import Policy
    from hlofast.config._select import EffectiveConfig
    from hlofast.config._tree import Config
    from hlofast.devices import Device
    from hlofast.table import Table

    Values = dict[str, Any]


class Learner:
    """The state of a learner: names of parameter-sized arrays, and the unmodelled parts."""

    __slots__ = ("averages", "dtypes", "gaps", "is_partial", "moments")

    def __init__(self) -> None:
        self.moments: list[str] = []
        """Arrays of the optimizer."""
        self.averages: list[str] = []
        """Moving averages of the parameters."""
        self.dtypes: dict[str, str] = {}
        """The types of arrays that differ from those of their parameters."""
        self.is_partial = False
        """Whether some parameters may lack gradients and optimizer state."""
        self.gaps: list[tuple[str, str]] = []
        """Paths of unmodelled parts, each with the reason."""


class Batch:
    """The tokens of a step: sequences, their length, and the mesh axes that shard them."""

    __slots__ = ("axes", "is_placed", "length", "sequence_axes", "sequences")

    def __init__(
        self,
        sequences: int | None,
        length: int | None,
        axes: tuple[str, ...],
        sequence_axes: tuple[str, ...],
        *,
        is_placed: bool,
    ) -> None:
        self.is_placed = is_placed
        """Whether the config names the axes that shard the batch."""
        self.sequences = sequences
        self.length = length
        self.axes = axes
        self.sequence_axes = sequence_axes

    @property
    def tokens(self) -> int | None:
        """Tokens per step; None if the config does not tell."""
        return (
            None if self.sequences is None or self.length is None else self.sequences * self.length
        )


class Model:
    """What a config trains, as a front describes it; `gaps` names what the front cannot describe.

    Gaps are pairs of a path in the config and the reason.
    """

    __slots__ = (
        "batch", "casts_in_layers", "fails", "gaps", "itemsize", "learner", "masks", "parts",
        "policies", "rates", "refused", "steps", "untimed",
    )  # fmt: skip

    def __init__(
        self,
        parts: Parts,
        learner: Learner,
        batch: Batch,
        policies: dict[str, Policy | None],
        *,
        itemsize: int | None,
        steps: int | None,
        gaps: list[tuple[str, str]],
        masks: list[tuple[str, str]],
        untimed: list[tuple[str, str]] | None = None,
        refused: list[tuple[str, str]] | None = None,
        fails: list[tuple[str, str]] | None = None,
        casts_in_layers: bool = False,
        rates: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self.rates = rates or {}
        """Rates of steps that differ for the trainer, by backend or device: see `_time.Rates`."""
        self.casts_in_layers = casts_in_layers
        """Whether each layer casts its weights, so that gradients have the parameters' type.

        Otherwise the trainer casts all weights before the layers.
        """
        self.untimed = untimed or []
        """Parts of `gaps` without which the step has no modelled time."""
        self.refused = refused or []
        """Parts of `gaps` that a plan replaces: policies, batch and accumulation."""
        self.fails = fails or []
        """Parts of `gaps` that the trainer itself cannot run."""
        self.parts = parts
        self.learner = learner
        self.batch = batch
        self.policies = policies
        """The checkpoint policy of each unit of `parts`, by path; None if it is not modelled."""
        self.itemsize = itemsize
        """Bytes per element of activations; None if the type of the computation is not modelled."""
        self.steps = steps
        """Parts into which the batch is split; None if the config's value is not usable."""
        self.gaps = gaps
        self.masks = masks
        """Masks of attention that are not modelled; only attention's FLOPs need masks."""


def _opened(path: str) -> BinaryIO:
    return open(path, "rb")  # noqa: PTH123 - pathlib would slow the start; callers close it.


class Sources:
    """Settings beside the text of a config that change its effective values."""

    __slots__ = ("base", "environment", "opened", "overrides")

    def __init__(
        self,
        overrides: Sequence[str] = (),
        base: str | None = None,
        environment: Mapping[str, str] | None = None,
        opened: Callable[[str], BinaryIO] = _opened,
    ) -> None:
        self.overrides = tuple(overrides)
        """Arguments of the command line, such as `key=value`."""
        self.base = base
        """The file of defaults, if the text does not name it."""
        self.environment = dict(environment or {})
        """Environment variables of the run."""
        self.opened = opened
        """Opens a file that the config needs; every file is opened by it, so it may refuse some."""

    def __bool__(self) -> bool:
        return bool(self.overrides or self.base)


class Space:
    """The choices that a trainer leaves to a plan."""

    __slots__ = (
        "axes", "offloads", "offloads_inputs", "policies", "unmodelled", "usual", "worse",
    )  # fmt: skip

    def __init__(
        self,
        axes: Sequence[str],
        policies: Mapping[str, Policy],
        *,
        usual: Sequence[str],
        offloads: bool,
        offloads_inputs: bool,
        worse: Mapping[str, str] | None = None,
        unmodelled: Mapping[str, str] | None = None,
    ) -> None:
        self.worse = dict(worse or {})
        """The axes that are never sized because another one does better, with the reason."""
        self.unmodelled = dict(unmodelled or {})
        """The axes that are never sized because steps along them are not modelled, with the
        reason."""
        self.axes = tuple(axes)
        """The mesh axes, outermost first."""
        self.usual = [axis for axis in usual if axis in self.axes]
        """The axes that are taken where others do the same."""
        self.policies = dict(policies)
        """The checkpoint policies that have a name."""
        self.offloads = offloads
        """Whether a policy may keep named values in host memory."""
        self.offloads_inputs = offloads_inputs
        """Whether a policy may keep layer inputs in host memory."""

    def on_device(self) -> Space:
        """The choices that keep nothing in host memory."""
        policies = {
            name: policy
            for name, policy in self.policies.items()
            if OFFLOADED not in policy.kept and not policy.offloads_inputs
        }
        return Space(
            self.axes, policies, usual=self.usual, offloads=False, offloads_inputs=False,
            worse=self.worse, unmodelled=self.unmodelled,
        )  # fmt: skip


class Front(Protocol):
    """The configs of one trainer."""

    name: str
    """The trainer's name."""
    split: str
    """What the trainer does with a mesh that splits axes of the torus, as a sentence."""

    def is_config(self, text: str) -> bool:
        """Whether the start of a text looks like one of the trainer's configs."""

    def is_named(self, path: str) -> bool:
        """Whether only this trainer's configs have such a file name."""

    def loads(self, text: str | bytes, path: str | None, sources: Sources) -> Config:
        """Reads a config; raises `ConfigError` with the place of the first fault."""

    def model(self, config: Config, mesh: Mapping[str, int], *, steps: int | None) -> Model:
        """The model of a config on a mesh (empty if unknown) in this many parts of the batch."""

    def steps(self, config: Config) -> int | None:
        """Gradient accumulation steps; None if they are not modelled."""

    def logged(self, config: Config) -> tuple[float, float, float] | None:
        """TFLOPs per device and step as the trainer logs them: all, matmuls, attention.

        None if the trainer logs none, or the config does not tell.
        """

    def rules(self, config: Config) -> Table:
        """The table of `Config.rules`."""

    def select(self, config: Config, instance: str, devices: int | None) -> EffectiveConfig:
        """See `Config.select`."""

    def select_all(self, config: Config, devices: int | None) -> list[EffectiveConfig]:
        """See `Config.select_all`."""

    def space(self, config: Config) -> Space:
        """The mesh axes and policies that a plan may choose for a config."""

    def states(self, config: Config, dtype: str) -> list[tuple[str, Values]]:
        """The ways to keep weights and moments in a type: a name, and the values that do it."""

    def failing(self, config: Config, device: Device) -> str | None:
        """Why the trainer fails at a config on every mesh of these devices; None if it may run."""

    def fails_on(self, config: Config, device: Device) -> list[tuple[str, str]]:
        """Paths of values at which the trainer fails on this kind of device, each with why."""

    def matmul_type(self, config: Config) -> str | None:
        """The type that quantised matmuls multiply, empty without; None if unknown."""

    def fuses_attention(self, config: Config) -> bool | None:
        """Whether attention is a kernel; None if the config does not tell."""

    def own_policy(self, config: Config) -> str:
        """What a plan calls the config's own policy."""

    def policy(
        self, saved: Sequence[str], offloaded: Sequence[str], *, offloads_inputs: bool
    ) -> Policy:
        """The policy that keeps the values with these checkpoint names."""

    def written(self, config: Config, candidate: Candidate, instance: str) -> list[str]:
        """The lines that change a config to a candidate of a plan."""


DEFAULT = "axlearn"
"""The front of configs that were built in Python, and of texts that no front recognises."""


def front(name: str) -> Front:
    """The front in this folder."""
    from importlib import import_module

    found: Front = import_module(f"hlofast.config.{name}.front").FRONT
    return found


def names() -> list[str]:
    """The folders of all fronts; the default comes last."""
    from pkgutil import iter_modules

    import hlofast.config

    folders = [each.name for each in iter_modules(hlofast.config.__path__) if each.ispkg]
    return sorted(folders, key=lambda name: (name == DEFAULT, name))
