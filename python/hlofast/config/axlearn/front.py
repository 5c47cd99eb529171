"""The front for AXLearn: golden configs, their mesh rules and their models."""

from __future__ import annotations

import math

from hlofast.config._front import Batch, Model, Sources, Space
from hlofast.config._parts import LARGEST_SIZE, FailsError
from hlofast.config._policies import UnknownPolicyError
from hlofast.config._tree import Config
from hlofast.config.axlearn import _modifiers, _written
from hlofast.config.axlearn._builder import compute_size, parts_of
from hlofast.config.axlearn._learner import learner_of, moments_of
from hlofast.config.axlearn._policies import CHOSEN, named, policy_of, these_names
from hlofast.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from hlofast.config._front import Values
    from hlofast.config._plan_space import Candidate
    from hlofast.config._policies import Policy
    from hlofast.config._select import EffectiveConfig
    from hlofast.config.axlearn._builder import ModelParts
    from hlofast.devices import Device
    from hlofast.table import Table

_ACCUMULATION = "learner.forward_fn_transformation"


class Axlearn:
    """Golden configs of AXLearn."""

    name = "AXLearn"
    split = (
        "axes of the mesh split axes of the torus: JAX refuses this, AXLearn then takes the order "
        "of device numbers, and collectives may be slower than modelled"
    )

    def is_config(self, text: str) -> bool:
        """Whether the first lines are paths with values."""
        from hlofast.config.axlearn._text import is_config

        return is_config(text)

    def is_named(self, path: str) -> bool:
        """No: golden configs are text files."""
        del path
        return False

    def loads(self, text: str | bytes, path: str | None, sources: Sources) -> Config:
        """Reads a golden config, which has no settings beside its text."""
        from hlofast.config.axlearn._text import loads

        if sources:
            where = "" if path is None else f"{path}: "
            message = "overrides and base files apply to MaxText configs; this is not YAML"
            raise ConfigError(f"{where}{message}", path=path, kind="no-overrides")
        return loads(text, path=path)

    def model(self, config: Config, mesh: Mapping[str, int], *, steps: int | None) -> Model:
        """The model of a trainer's config, or of a model's config."""
        parts = parts_of(config)
        batch = _batch(config, is_of_images=parts.is_of_images)
        gaps = [
            (gap.path, f"{gap.klass}: {gap.why}" if gap.klass else gap.why) for gap in parts.gaps
        ]
        untimed = [(gap.path, f"{gap.klass}: {gap.why}") for gap in parts.missing]
        unexchanged = _unexchanged(parts, mesh)
        fails = [own for own, gap in zip(gaps, parts.gaps, strict=True) if gap.fails]
        gaps += [*untimed, *_unrouted(parts, mesh), *unexchanged]
        masks = [(mask.path, f"{mask.klass}: {mask.why}") for mask in parts.masks]
        itemsize = compute_size(config)
        if itemsize is None:
            why = f"the type {config.get('train_dtype')!r} is not modelled"
            gaps.append(("train_dtype", why))
        if not _is_divisible(batch, steps, gaps, fails):
            steps = None
        if batch.tokens is None:
            why = "the config has no numeric global batch size or sequence length"
            gaps.append(("input", why))
        elif not batch.is_placed:
            gaps.append(("input", "the config does not say which mesh axes shard the batch"))
        # Without known values of layers, and their places, no bytes of activations are known.
        batch.is_placed = batch.is_placed and not parts.missing and not unexchanged
        policies: dict[str, Policy | None] = {}
        refused = []
        for path, spec in parts.specs.items():
            try:
                policies[path] = policy_of(spec)
            except UnknownPolicyError as error:
                policies[path] = None
                refused.append((f"{path}.remat_spec", str(error)))
        return Model(
            parts,
            learner_of(config),
            batch,
            policies,
            itemsize=itemsize,
            steps=steps,
            gaps=[*gaps, *refused],
            masks=masks,
            refused=refused,
            fails=fails,
            untimed=untimed,
        )

    def steps(self, config: Config) -> int | None:
        """Gradient accumulation steps of the learner's `forward_fn_transformation`."""
        transformation = config.get(_ACCUMULATION)
        if transformation is None:
            return 1
        if not isinstance(transformation, Config):
            return None
        steps = transformation.get("steps")
        is_known = transformation.get("fn") == _modifiers.ACCUMULATION
        return steps if is_known and type(steps) is int and steps > 0 else None

    def logged(self, config: Config) -> tuple[float, float, float] | None:
        """None: AXLearn logs no FLOPs."""
        del config
        return None

    def rules(self, config: Config) -> Table:
        """The mesh rules."""
        from hlofast.config.axlearn._rules import rule_table

        return rule_table(config)

    def select(self, config: Config, instance: str, devices: int | None) -> EffectiveConfig:
        """The config under the first mesh rule that matches."""
        from hlofast.config.axlearn._rules import select

        return select(config, instance, devices)

    def select_all(self, config: Config, devices: int | None) -> list[EffectiveConfig]:
        """The config under every mesh rule."""
        from hlofast.config.axlearn._rules import select_all

        return select_all(config, devices)

    def space(self, config: Config) -> Space:
        """The mesh axes, policies of JAX and AXLearn, and policies by checkpoint names."""
        return Space(
            _written.axes(config),
            {name: named(path) for name, path in CHOSEN.items()},
            usual=("data", "fsdp", "model"),
            offloads=True,
            offloads_inputs=False,
        )

    def states(self, config: Config, dtype: str) -> list[tuple[str, Values]]:
        """`mu_dtype` of the optimizers, and the type of the model's weights."""
        named, moments = f"jax.numpy.{dtype}", moments_of(config)
        found: list[tuple[str, Values]] = []
        is_whole = isinstance(config.get("model"), Config)  # Not the config of a model alone.
        if is_whole and config.get("model.dtype", "jax.numpy.float32") != named:
            if moments:
                values = {f"{path}.mu_dtype": named for path in moments}
                found.append((f"first moments {dtype}", values))
            found.append((f"weights and moments {dtype}", {"model.dtype": named}))
        return found

    def failing(self, config: Config, device: Device) -> str | None:
        """Golden configs come from trainers that were built."""
        del config, device
        return None

    def fails_on(self, config: Config, device: Device) -> list[tuple[str, str]]:
        """None that is known."""
        del config, device
        return []

    def matmul_type(self, config: Config) -> str | None:
        """Layers that quantise are not read."""
        del config
        return None

    def fuses_attention(self, config: Config) -> bool | None:
        """`FlashAttention` computes with matmuls where its kernels do not apply."""
        del config
        return None

    def own_policy(self, config: Config) -> str:
        """Policies of AXLearn have no names of their own."""
        del config
        return "the config's own"

    def policy(
        self, saved: Sequence[str], offloaded: Sequence[str], *, offloads_inputs: bool
    ) -> Policy:
        """A policy by checkpoint names."""
        del offloads_inputs
        return these_names(saved, offloaded)

    def written(self, config: Config, candidate: Candidate, instance: str) -> list[str]:
        """A mesh rule."""
        return _written.rule(config, candidate, instance)


FRONT = Axlearn()


def _is_divisible(
    batch: Batch,
    steps: int | None,
    gaps: list[tuple[str, str]],
    fails: list[tuple[str, str]],
) -> bool:
    """Whether the batch splits evenly into a known number of accumulation steps."""
    if steps is None:
        gaps.append((_ACCUMULATION, "the number of gradient accumulation steps is not known"))
        return False
    sequences = batch.sequences or 0
    if sequences % steps:
        fault = FailsError("AXLearn", f"{steps:,} steps do not divide {sequences:,} sequences")
        fails.append((f"{_ACCUMULATION}.steps", str(fault)))
        gaps.append(fails[-1])
        return False
    return True


def _unrouted(parts: ModelParts, mesh: Mapping[str, int]) -> list[tuple[str, str]]:
    """Traffic of routed experts that is not modelled."""
    if parts.experts is None:
        return []
    path, reasons = parts.experts
    return [(path, why) for axis, why in reasons.items() if mesh.get(axis, 1) > 1]


def _unexchanged(parts: ModelParts, mesh: Mapping[str, int]) -> list[tuple[str, str]]:
    """Exchanges of tokens for heads that are not modelled."""
    gaps = []
    for (along, axes), (path, heads) in parts.exchanged.items():
        sizes = {axis: mesh[axis] for axis in along if mesh.get(axis, 1) > 1}
        devices, names = math.prod(sizes.values()), ",".join(sizes)
        if parts.moved_axes.isdisjoint(sizes):
            continue
        if heads % devices:
            why = f"{names} = {devices:,} does not divide {heads:,} heads"
            gaps.append((path, f"{why}; heads that AXLearn repeats are not modelled"))
        others = ",".join(axis for axis in axes if mesh.get(axis, 1) > 1)
        if others:
            # XLA gathers all tokens and heads: `v5p_2048_split` of the compiled stand-ins.
            why = f"exchanges along {names} of heads that lie along {others} are not modelled"
            gaps.append((path, why))
    return gaps


def _batch(config: Config, *, is_of_images: bool) -> Batch:
    _, sequences = _written.batch(config)
    length = 1 if is_of_images else config.get("input.source.max_sequence_length")
    if type(length) is not int or not 0 < length <= LARGEST_SIZE:
        length = None
    axes = _token_axes(config)
    placed = axes or ((), ())
    return Batch(sequences, length, *placed, is_placed=axes is not None)


def _token_axes(config: Config) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The axes that shard the batch and the axes that shard sequences.

    None if the config does not name any.
    """
    rules = config.get("input.input_partitioner.path_rank_to_partition")
    if isinstance(rules, Config):
        for key in rules:
            # Inputs with two dimensions are token ids, whatever their path.
            if key == (None, 2):
                try:
                    spec = rules.partition_spec(key)
                except TypeError:
                    spec = None
                if spec is not None:
                    parts = [_axes(part) for part in spec.dimensions] + [(), ()]
                    return parts[0], parts[1]
    names = config.get("batch_axis_names")
    if names is None:
        return None
    axis_names = names.to_python() if isinstance(names, Config) else names
    batch = _axes(axis_names)
    # AXLearn's name for the axis that shards sequences.
    return tuple(axis for axis in batch if axis != "seq"), tuple(a for a in batch if a == "seq")


def _axes(part: Any) -> tuple[str, ...]:
    if isinstance(part, str):
        return (part,) if part != "UNCONSTRAINED" else ()
    if isinstance(part, (list, tuple)):
        return tuple(axis for axis in part if isinstance(axis, str))
    return ()
