"""The choices of a plan: candidates with their checkpoint policies and types."""

from __future__ import annotations

import math
from typing import NamedTuple

from hlofast.config._flops import StepFlops
from hlofast.config._policies import KEEP_EVERYTHING, OFFLOADED, Policy
from hlofast.config._time import too_wide
from hlofast.config._traffic import StepTraffic, unmodelled_traffic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from hlofast.config._front import Front, Space
    from hlofast.config._implied import Implied
    from hlofast.config._tree import Config

IDLE = "it shards neither weights nor tokens"
"""Why a plan leaves an axis at 1 that the model does not use."""
MOST_NAMES = 10
"""Limit on the checkpoint names whose subsets are searched; the values that cost most to recompute
are kept."""
MOST_CHOSEN = 16
"""Limit on the subsets of names that become policies, of those that no other subset beats."""
_SAME = 0.001
"""Share by which axes that do the same may differ: norms, for example, lie along one of them."""


class Option:
    """A checkpoint policy of a plan, with the fate of every value."""

    __slots__ = (
        "attention", "fates", "is_named", "key", "matmul", "name", "offloaded", "offloads_inputs",
        "policies", "saved",
    )  # fmt: skip

    def __init__(
        self,
        implied: Implied,
        name: str,
        policies: Mapping[str, Policy | None],
        saved: tuple[str, ...] = (),
        offloaded: tuple[str, ...] = (),
        *,
        is_named: bool = False,
    ) -> None:
        self.name = name
        """The trainer's name, or what the policy keeps."""
        self.policies = dict(policies)
        """By path of a checkpointed module."""
        self.is_named = is_named
        """Whether the trainer has a name for it."""
        self.saved = saved
        """For a policy without a name: checkpoint names that it saves."""
        self.offloaded = offloaded
        self.fates: dict[str, str | None] = {}
        known: dict[tuple[object, ...], str | None] = {}
        for value in implied.parts.values:
            # What `Policy.fate` reads of a value: layers of a cycle have equal values.
            key = (value.remat, value.name, value.is_product, value.is_batched, value.is_whole)
            if key not in known:
                policy = KEEP_EVERYTHING if value.remat is None else self.policies[value.remat]
                known[key] = None if policy is None else policy.fate(value)
            self.fates[value.key] = known[key]
        self.offloads_inputs = any(
            own is not None and own.offloads_inputs for own in self.policies.values()
        )
        """Whether it keeps layer inputs in host memory."""
        self.key = (self.offloads_inputs, *self.fates.values())
        """Equal for policies that keep the same."""
        own = implied.variant(implied.batch, implied.steps, self.policies, self.fates)
        flops = StepFlops(own)
        sequences = implied.batch.sequences or 1
        self.matmul = (flops.recomputed_matmul or 0) / sequences
        """Operations per sequence that backward recomputes: matmuls with weights, attention."""
        self.attention = (flops.recomputed_attention or 0) / sequences

    @property
    def recomputed(self) -> float:
        """All operations per sequence that backward recomputes."""
        return self.matmul + self.attention

    @property
    def offloads(self) -> bool:
        """Whether it keeps anything in host memory."""
        return self.offloads_inputs or OFFLOADED in self.fates.values()


class State:
    """The types of weights and moments: a name, the config, and the values that set them."""

    __slots__ = ("config", "name", "values")

    def __init__(self, name: str, config: Config, values: Mapping[str, Any]) -> None:
        self.name = name
        self.config = config
        self.values = dict(values)
        """Empty for the config's own types."""


OWN_STATE = "the config's own"
"""The name of the types that the config has."""


class Candidate:
    """One choice of a plan: a mesh, a batch on each device, accumulation, a policy and types."""

    __slots__ = (
        "devices", "is_split", "mesh", "option", "rows", "sequences", "slices", "state", "steps",
    )  # fmt: skip

    def __init__(
        self, mesh: dict[str, int], slices: int, sequences: int, rows: int, steps: int,
        option: Option, state: State,
    ) -> None:  # fmt: skip
        self.state = state
        self.is_split = False
        """Whether axes of the mesh split axes of the torus: see `_torus.is_laid`."""
        self.mesh = mesh
        """The size of each axis that a plan chooses, outermost first; the others have size 1."""
        self.slices = slices
        """Slices, which lie along the outermost axes: see `spread`."""
        self.devices = math.prod(mesh.values())
        self.sequences = sequences
        """Sequences of a step on all devices."""
        self.rows = rows
        """Sequences of each shard of the batch at a time."""
        self.steps = steps
        """Gradient accumulation steps."""
        self.option = option

    @property
    def per_device(self) -> float:
        """Sequences per device and accumulation step."""
        return self.sequences / (self.devices * self.steps)

    @property
    def axes(self) -> dict[str, int]:
        """The axes with more than one device."""
        return {axis: size for axis, size in self.mesh.items() if size > 1}

    @property
    def inner(self) -> list[int]:
        """The size of each axis within a slice."""
        return [self.mesh[axis] // across for axis, across in self.outer.items()]

    @property
    def outer(self) -> dict[str, int]:
        """The number of slices along each axis."""
        across = spread(self.mesh.values(), self.slices) or [1] * len(self.mesh)
        return dict(zip(self.mesh, across, strict=True))


class Vocabulary:
    """The checkpoint policies of a plan: the trainer's own, and sets of named values."""

    def __init__(self, front: Front, space: Space, implied: Implied) -> None:
        self._front = front
        self._space = space
        self._known: dict[tuple[object, ...], Option] = {}
        self.named = [
            Option(implied, name, dict.fromkeys(implied.policies, policy), is_named=True)
            for name, policy in space.policies.items()
        ]
        sizes = _sizes(implied)
        names = sorted(name for name, size in sizes.items() if size)
        if len(names) > MOST_NAMES:
            alone = {
                name: self._kept(implied, (name,), ()).recomputed / sizes[name] for name in names
            }
            names = sorted(sorted(names, key=alone.__getitem__)[:MOST_NAMES])
        self._names = names
        self._subsets = []
        for bits in range(1 << len(names)):
            chosen = tuple(name for at, name in enumerate(names) if bits >> at & 1)
            self._subsets.append((chosen, self._kept(implied, chosen, ()).recomputed))

    def options(self, implied: Implied) -> list[Option]:
        """The policies that the trainer names, and those that no other beats on this mesh.

        Sets of values are compared by the bytes that they keep on one device, and the operations
        that are recomputed without them.
        """
        found: dict[tuple[object, ...], Option] = {}
        for option in self.named:
            found.setdefault(option.key, option)
        sizes = _sizes(implied)
        totals = [0]
        for name in self._names:
            totals += [total + sizes[name] for total in totals]
        costs = sorted(
            (total, flops, chosen)
            for total, (chosen, flops) in zip(totals, self._subsets, strict=True)
        )
        best: list[tuple[float, tuple[str, ...]]] = []
        for _, flops, chosen in costs:
            if not best or flops < best[-1][0]:
                best.append((flops, chosen))
        if len(best) > MOST_CHOSEN:
            best = [best[at * (len(best) - 1) // (MOST_CHOSEN - 1)] for at in range(MOST_CHOSEN)]
        for _, chosen in best:
            for saved, offloaded in self._splits(sorted(chosen, key=lambda own: (sizes[own], own))):
                for inputs in (False, True) if self._space.offloads_inputs else (False,):
                    option = self._kept(implied, saved, offloaded, offloads_inputs=inputs)
                    found.setdefault(option.key, option)
        return list(found.values())

    def _splits(self, names: list[str]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """All of them saved; and the larger ones offloaded, if the trainer can."""
        for at in range(len(names) + 1 if self._space.offloads else 1):
            cut = len(names) - at
            yield tuple(sorted(names[:cut])), tuple(sorted(names[cut:]))

    def _kept(
        self,
        implied: Implied,
        saved: tuple[str, ...],
        offloaded: tuple[str, ...],
        *,
        offloads_inputs: bool = False,
    ) -> Option:
        key = (saved, offloaded, offloads_inputs)
        if key not in self._known:
            policy = self._front.policy(saved, offloaded, offloads_inputs=offloads_inputs)
            words = [
                f"{fate} {' '.join(names)}"
                for fate, names in (("save", saved), ("offload", offloaded))
                if names
            ]
            words += ["offload layer inputs"] * offloads_inputs
            name = ", ".join(words) or "save nothing"
            policies = dict.fromkeys(implied.policies, policy)
            self._known[key] = Option(implied, name, policies, saved, offloaded)
        return self._known[key]


def _sizes(implied: Implied) -> dict[str, int]:
    """Bytes on one device of the values with each checkpoint name, over all layers."""
    sizes: dict[str, int] = {}
    for value in implied.parts.values:
        if value.name is not None and value.remat is not None:
            # A value that backward does not read costs nothing, and saves nothing.
            size = implied.activation_bytes(value.features, value.itemsize, padded=True)
            own = value.layers * size if value.is_needed else 0
            sizes[value.name] = sizes.get(value.name, 0) + own
    return sizes


def spread(sizes: Iterable[int], slices: int) -> list[int] | None:
    """The number of slices along each axis, outermost first; None if slices do not divide them.

    Slices fill the outermost axes: all but the last axis that has slices lie across slices whole.
    """
    across = []
    for size in sizes:
        own = math.gcd(size, slices)
        if own not in (size, slices):
            return None
        across.append(own)
        slices //= own
    return across if slices == 1 else None


def footprint(implied: Implied) -> tuple[float, ...]:
    """What devices hold, compute and send on a mesh, in totals."""
    transfers = StepTraffic(implied).transfers
    return (
        sum(implied.held_of(each) for each in implied.parts.parameters),
        implied.rows()[0] / implied.rows()[1],
        sum(
            value.layers * implied.activation_bytes(value.features, value.itemsize, padded=True)
            for value in implied.parts.values
        ),
        *(
            sum(own.payload * own.count for own in transfers if own.tensor_kind == kind)
            for kind in ("weights", "gradients", "activations")
        ),
    )


def is_same(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two footprints differ by less than a plan can tell."""
    return all(math.isclose(own, like, rel_tol=_SAME) for own, like in zip(one, other, strict=True))


class Obstacle(NamedTuple):
    """Why a choice has no figures."""

    text: str
    fails: bool
    """Whether the trainer cannot run it; otherwise hlofast does not model it."""
    has_memory: bool = False
    """Whether the bytes are modelled all the same, so that the step time alone is missing."""


def gaps_of(implied: Implied) -> Iterator[Obstacle]:
    """The reasons why bytes or seconds are not known on a mesh."""
    # First, because it holds on every mesh; last where parts of the model are not known at all.
    wide = too_wide(implied)
    if wide is not None and implied.has_activations:
        yield Obstacle(wide, fails=False, has_memory=True)
    told = (*implied.gaps, *implied.learner.gaps, *implied.masks, *unmodelled_traffic(implied))
    for gap in told:
        path, why = gap
        has_memory = implied.has_activations and gap in implied.untimed
        text = f"{path or 'the config'}: {why}"
        yield Obstacle(text, fails=gap in implied.fails, has_memory=has_memory)
    if wide is not None and not implied.has_activations:
        yield Obstacle(wide, fails=False)
