"""The implications of a config on a mesh: the bytes and the work of each device."""

from __future__ import annotations

from functools import wraps

from hlofast.config._parts import item_size
from hlofast.config._policies import KEEP_EVERYTHING, RECOMPUTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, TypeVar

    from hlofast.config._front import Batch, Learner, Model
    from hlofast.config._parts import Parameter, Parts, Product, Value
    from hlofast.config._policies import Policy

    F = TypeVar("F", bound=Callable[..., Any])

_UNKNOWN_ITEMSIZE = 4
"""Bytes per element where the type is not known; figures that depend on it are unknown then."""


def _once(slot: str) -> Callable[[F], F]:
    """Keeps the results of a function of an `Implied` in the dictionary of this name."""

    def decorated(function: F) -> F:
        # A name, as wrapped functions cannot be pickled, and results may go to other processes.
        name = f"{function.__module__}.{function.__qualname__}"

        @wraps(function)
        def shared(implied: Implied, *arguments: Any) -> Any:
            known = getattr(implied, slot)
            key = (name, *arguments) if arguments else name
            try:
                return known[key]
            except KeyError:
                known[key] = found = function(implied, *arguments)
                return found

        # mypy cannot tell that `shared` takes and returns what `function` does.
        return shared  # type: ignore[return-value]

    return decorated


per_mesh = _once("of_mesh")
"""For functions that depend on the mesh and the length of sequences alone: not on the number of
sequences, accumulation or policies. All variants share what they return."""
per_steps = _once("of_steps")
"""For functions that depend on accumulation as well."""
per_policy = _once("of_policies")
"""For functions that depend on policies as well, but not on accumulation."""


class Implied:
    """The model of a config, on a mesh if there is one."""

    __slots__ = (
        "_held", "_shards", "_sizes", "_steps", "batch", "casts_in_layers", "fails", "fates",
        "gaps", "has_activations", "has_type", "itemsize", "learner", "masks", "mesh",
        "of_mesh", "of_policies", "of_steps", "parts", "policies", "rates", "slices", "steps",
        "untimed",
    )  # fmt: skip

    def __init__(
        self, model: Model, mesh: Mapping[str, int] | None = None, *, slices: int = 1
    ) -> None:
        self.mesh: dict[str, int] = dict(mesh or {})
        self._shards: dict[tuple[str, ...], int] = {}
        self._held: dict[tuple[tuple[int, ...], tuple[tuple[str, ...], ...]], int] = {}
        self._sizes: dict[tuple[object, ...], int] = {}
        self.steps = model.steps or 1
        """Gradient accumulation steps: the number of parts into which the batch is split."""
        self.of_mesh: dict[object, Any] = {}
        """Results of `per_mesh` functions."""
        self.of_steps: dict[object, Any] = {}
        """Results of `per_steps` functions."""
        self._steps = {self.steps: self.of_steps}
        self.of_policies: dict[object, Any] = {}
        """Results of `per_policy` functions."""
        self.slices = slices
        self.parts: Parts = model.parts
        self.learner: Learner = model.learner
        self.itemsize: int = model.itemsize or _UNKNOWN_ITEMSIZE
        """Bytes per element of activations, and of weights in the type of the computation."""
        self.has_type = model.itemsize is not None
        """Whether `itemsize` is known."""
        self.batch: Batch = model.batch
        self.gaps: list[tuple[str, str]] = [*model.gaps]
        """Paths of unmodelled parts of the config, each with the reason."""
        self.fails = model.fails
        """Parts of `gaps` that the trainer itself cannot run."""
        self.untimed = model.untimed
        self.rates = model.rates
        self.casts_in_layers = model.casts_in_layers
        self.masks: list[tuple[str, str]] = model.masks
        """Paths of unmodelled masks, each with the reason; only attention's FLOPs need masks."""
        has_batch = self.batch.tokens is not None and self.batch.is_placed
        has_axes = bool(self.mesh) and all(axis in self.mesh for axis in self.token_axes)
        is_known = model.steps is not None and model.itemsize is not None
        self.has_activations = has_axes and has_batch and is_known
        """Whether the bytes of a layer's values on a device are known."""
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
        self.policies: dict[str, Policy | None] = model.policies
        self.fates: dict[str, str | None] = {
            value.key: self.fate(value) for value in self.parts.values
        }

    def variant(
        self,
        batch: Batch,
        steps: int,
        policies: dict[str, Policy | None] | None = None,
        fates: dict[str, str | None] | None = None,
    ) -> Implied:
        """The same model and mesh with another batch, accumulation and policies.

        `fates` are those of all values under the policies, which must be modelled. Gaps are
        taken over: they must be free of those of the former policies.
        """
        other = Implied.__new__(Implied)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.batch, other.steps = batch, steps
        other.of_steps = self._steps.setdefault(steps, {})
        if policies is not None and fates is not None:
            other.policies, other.fates = policies, fates
            other.of_policies = {}
        return other

    def shards(self, axes: Iterable[str]) -> int:
        """Number of shards that these axes divide a dimension into."""
        axes = tuple(axes)
        found = self._shards.get(axes)
        if found is None:
            found = 1
            for axis in axes:
                found *= self.mesh.get(axis, 1)
            self._shards[axes] = found
        return found

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
        found = self._held.get((shape, sharding))
        if found is None:
            found = 1
            for size, axes in zip(shape, sharding, strict=True):
                found *= -(-size // self.shards(axes))
            self._held[shape, sharding] = found
        return found

    def held_of(self, parameter: Parameter) -> int:
        """Elements of all copies of a parameter on one device."""
        return parameter.copies * self.held(parameter.shape, parameter.sharding)

    def state_bytes(self, parameter: Parameter, arrays: Iterable[str]) -> int:
        """Bytes on one device of these arrays of the optimizer for a parameter."""
        held, own = self.held_of(parameter), parameter.dtype
        dtypes = self.learner.dtypes
        return sum(held * item_size(dtypes.get(name, own), name) for name in arrays)

    def fate(self, value: Value) -> str | None:
        """`saved`, `offloaded` or `recomputed`; None if the policy is not modelled."""
        policy = KEEP_EVERYTHING if value.remat is None else self.policies[value.remat]
        return None if policy is None else policy.fate(value)

    def is_recomputed(self, product: Product) -> bool | None:
        """Whether backward recomputes a matmul; None if its policy is not modelled."""
        return product.is_needed and self.is_again(product.remat, product.kept_by)

    def is_again(self, remat: str | None, kept_by: tuple[tuple[str, ...], ...]) -> bool | None:
        """Whether backward repeats what the kept values spare; None if the policy is unknown."""
        if remat is None:
            return False
        if self.policies[remat] is None:
            return None
        return not any(
            all(self.fates.get(key) not in (RECOMPUTED, None) for key in keys) for keys in kept_by
        )

    def gathered_axes(self, parameter: Parameter) -> tuple[str, ...]:
        """The axes along which weights are gathered: those that shard the tokens too."""
        apart, tokens = parameter.apart, self.token_axes
        return tuple(
            axis
            for axis in parameter.axes
            if axis in tokens and axis not in apart and self.mesh.get(axis, 1) > 1
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
        return -(-count * self.row_bytes(features, itemsize) // parts)

    def row_bytes(self, features: tuple[tuple[int, tuple[str, ...]], ...], itemsize: int) -> int:
        """Bytes on one device of a value with these features per token, of one sequence."""
        key = (features, itemsize)
        found = self._sizes.get(key)
        if found is None:
            length = -(-(self.batch.length or 0) // self.shards(self.batch.sequence_axes))
            sizes, axes = tuple(size for size, _ in features), tuple(own for _, own in features)
            self._sizes[key] = found = length * self.held(sizes, axes) * itemsize
        return found


@per_mesh
def needed_values(implied: Implied) -> list[tuple[str, int, int]]:
    """The values that backward needs: key, layers, and bytes of one sequence on a device."""
    return [
        (value.key, value.layers, implied.row_bytes(value.features, value.itemsize))
        for value in implied.parts.values
        if value.is_needed
    ]
