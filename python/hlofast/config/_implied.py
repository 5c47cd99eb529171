"""The implications of a config on a mesh: the bytes and the work of each device."""

from __future__ import annotations

from hlofast.config import _parts, _policies
from hlofast.config._learner import learner_of
from hlofast.config._policies import RECOMPUTED, UnknownPolicyError
from hlofast.config._tree import Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from hlofast.config._learner import Learner
    from hlofast.config._parts import Parameter, Parts, Product, Value
    from hlofast.config._policies import Policy

_BATCH_SIZES = (
    "input.input_dispatcher.global_logical_batch_size",
    "input.batcher.global_batch_size",
)


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


class Implied:
    """A config with the parts of its model, on a mesh if there is one."""

    __slots__ = (
        "batch", "config", "fates", "gaps", "has_activations", "itemsize", "learner", "masks",
        "mesh", "parts", "policies", "slices", "steps",
    )  # fmt: skip

    def __init__(
        self,
        config: Config,
        mesh: Mapping[str, int] | None = None,
        *,
        steps: int | None = 1,
        slices: int = 1,
    ) -> None:
        self.config = config
        self.mesh: dict[str, int] = dict(mesh or {})
        self.steps = steps or 1
        """Gradient accumulation steps: the number of parts into which the batch is split."""
        self.slices = slices
        self.parts: Parts = _parts.parts_of(config)
        self.learner: Learner = learner_of(config)
        itemsize = _parts.compute_size(config)
        self.itemsize: int = itemsize or _parts.ITEM_SIZES[_parts.DEFAULT_DTYPE]
        """Bytes per element of activations, and of weights in the type of the computation."""
        self.batch = _batch(config)
        self.gaps: list[tuple[str, str]] = [
            (gap.path, f"{gap.klass or 'this part'}: {gap.why}") for gap in self.parts.gaps
        ]
        """Paths of unmodelled parts of the config, each with the reason."""
        self.masks: list[tuple[str, str]] = [
            (mask.path, f"{mask.klass}: {mask.why}") for mask in self.parts.masks
        ]
        """Paths of unmodelled masks, each with the reason; only attention's FLOPs need masks."""
        if itemsize is None:
            why = f"the type {config.get('train_dtype')!r} is not modelled"
            self.gaps.append(("train_dtype", why))
        has_parts = self._has_parts(steps)
        has_batch = self.batch.tokens is not None and self.batch.is_placed
        has_axes = bool(self.mesh) and all(axis in self.mesh for axis in self.token_axes)
        self.has_activations = has_axes and has_batch and has_parts and itemsize is not None
        """Whether the bytes of a layer's values on a device are known."""
        if self.batch.tokens is None:
            why = "the config has no numeric global batch size or sequence length"
            self.gaps.append(("input", why))
        elif not self.batch.is_placed:
            self.gaps.append(("input", "the config does not say which mesh axes shard the batch"))
        if self.mesh:
            named = {
                axis: parameter for parameter in self.parts.parameters for axis in parameter.axes
            }
            for axis, parameter in named.items():
                if axis not in self.mesh:
                    why = f"its partition spec names {axis!r}, which is not a mesh axis"
                    self.gaps.append((parameter.module, why))
            for axis in self.token_axes:
                if axis not in self.mesh:
                    why = f"the batch is sharded along {axis!r}, which is not a mesh axis"
                    self.gaps.append(("input", why))
        self.policies: dict[str, Policy | None] = {}
        for path, unit in self.parts.units.items():
            try:
                self.policies[path] = _policies.policy_of(unit.spec)
            except UnknownPolicyError as error:
                self.policies[path] = None
                self.gaps.append((f"{path}.remat_spec", str(error)))
        self.fates: dict[str, str | None] = {
            value.key: self.fate(value) for value in self.parts.values
        }

    def _has_parts(self, steps: int | None) -> bool:
        """Whether the batch splits evenly into a known number of accumulation steps."""
        path = "learner.forward_fn_transformation"
        if steps is None:
            self.gaps.append((path, "the number of gradient accumulation steps is not known"))
            return False
        sequences = self.batch.sequences or 0
        if sequences % steps:
            why = f"AXLearn fails here: {steps:,} steps do not divide {sequences:,} sequences"
            self.gaps.append((f"{path}.steps", why))
            return False
        return True

    def shards(self, axes: Iterable[str]) -> int:
        """Number of shards that these axes divide a dimension into."""
        total = 1
        for axis in axes:
            total *= self.mesh.get(axis, 1)
        return total

    @property
    def idle_axes(self) -> tuple[str, ...]:
        """The axes along which devices have the same weights and the same tokens."""
        used = {axis for parameter in self.parts.parameters for axis in parameter.axes}
        used.update(self.token_axes)
        return tuple(axis for axis, size in self.mesh.items() if size > 1 and axis not in used)

    @property
    def token_axes(self) -> tuple[str, ...]:
        """The axes along which devices have different tokens."""
        return self.batch.axes + self.batch.sequence_axes

    def held(self, shape: tuple[int, ...], sharding: tuple[tuple[str, ...], ...]) -> int:
        """Elements of an array on one device, including the padding of uneven shards."""
        total = 1
        for size, axes in zip(shape, sharding, strict=True):
            total *= -(-size // self.shards(axes))
        return total

    def held_of(self, parameter: Parameter) -> int:
        """Elements of all copies of a parameter on one device."""
        return parameter.copies * self.held(parameter.shape, parameter.sharding)

    def fate(self, value: Value) -> str | None:
        """`saved`, `offloaded` or `recomputed`; None if the policy is not modelled."""
        policy = _policies.KEEP_EVERYTHING if value.remat is None else self.policies[value.remat]
        return None if policy is None else policy.fate(value)

    def is_recomputed(self, product: Product) -> bool | None:
        """Whether backward recomputes a matmul; None if its policy is not modelled."""
        if product.remat is None or not product.is_needed:
            return False
        if self.policies[product.remat] is None:
            return None
        return not any(
            all(self.fates.get(key) not in (RECOMPUTED, None) for key in keys)
            for keys in product.kept_by
        )

    def rows(self, *, padded: bool = False) -> tuple[int, int]:
        """Sequences on a device at a time, as numerator and denominator; `padded` rounds up."""
        sequences, shards = self.batch.sequences or 0, self.shards(self.batch.axes) * self.steps
        return (-(-sequences // shards), 1) if padded else (sequences, shards)

    def activation_bytes(
        self, features: tuple[tuple[int, tuple[str, ...]], ...], itemsize: int, *, padded: bool
    ) -> int:
        """Bytes on one device of a value with these features per token."""
        count, parts = self.rows(padded=padded)
        length = -(-(self.batch.length or 0) // self.shards(self.batch.sequence_axes))
        each = self.held(tuple(size for size, _ in features), tuple(axes for _, axes in features))
        return -(-count * length * each * itemsize // parts)


def _batch(config: Config) -> Batch:
    sequences = None
    for path in _BATCH_SIZES:
        size = config.get(path)
        if type(size) is int and 0 < size <= _parts.LARGEST_SIZE:
            sequences = size
            break
    length = config.get("input.source.max_sequence_length")
    if type(length) is not int or not 0 < length <= _parts.LARGEST_SIZE:
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
