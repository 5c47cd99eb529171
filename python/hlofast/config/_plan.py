"""Searches the choices of a run for the fastest step that fits.

Idea. For every mesh, batch on a device and accumulation, two bounds of a policy cost next to
nothing: the state and the values that it keeps (exact), and the modelled step without the
collectives that it repeats. What exceeds the memory is dropped by the first bound. The others are
modelled in the order of the second bound, until the fastest one that fits is faster than the bound
of the next. So only a small part of all candidates is modelled, and the best candidate of each mesh
is the same as if all were.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from itertools import islice

from hlofast.config import _plan_meshes, _plan_space, _torus
from hlofast.config._flops import StepFlops
from hlofast.config._front import Batch
from hlofast.config._implied import Implied
from hlofast.config._memory import activations, held, kept_of, state
from hlofast.config._peak import expected_peak
from hlofast.config._plan_space import IDLE, OWN_STATE, Candidate, Option, State, Vocabulary
from hlofast.config._policies import KEEP_EVERYTHING, SAVED
from hlofast.config._time import GATHERS, LOW, NETWORK, Demand, StepTime, rates_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hlofast.config._plan_meshes import Indivisible, Undivided
    from hlofast.config._select import EffectiveConfig
    from hlofast.config._time import Rates
    from hlofast.devices import Device

    Why = str | Indivisible | Undivided
    """Why candidates are dropped, without the size of an axis, if it tells one."""
    Sized = tuple[Indivisible | Undivided, int]
    """A reason with that size."""

HOST_SHARE = 0.75
"""Share of the host memory that offloaded values may take; an assumption: checkpoints and input
take the rest."""
MARGIN = 0.05
"""Share of the memory that a plan leaves free, because peaks are modelled. XLA refused no compiled
config whose needed terms leave as much; those of refused ones were up to 3 % too low
(`benches/config_peaks.py`)."""
TIE = 0.005
"""Steps that differ by less count as equal, far less than the error of modelled steps. Of equal
choices, those without offloading come first, then those with the least memory."""
JUDGED_APART = -LOW
"""Share by which a step must be slower for a plan to tell choices apart: the model's error."""
SAME = 0.002
"""Steps of meshes that differ by less count as equal. Of equal meshes, those that JAX lays on the
torus come first, then those with the least traffic between slices or hosts."""
MOST_ROWS = 1 << 10
"""Limit on the sequences of a shard at a time."""
WORTH = 1.5
"""Meshes whose best choice is slower than the best of all by this factor are not ranked."""
STATE = "the state exceeds the memory"
_KEPT = "state, layer inputs and saved values exceed the usable memory"
_PEAK = "the peak exceeds the usable memory"
_HOST = "offloaded values exceed the usable host memory"
_SLOWER = "a bound of the step is slower than the best of the mesh"
_FAR = f"a bound of the step is {WORTH - 1:.0%} slower than the best choice"


class Excluded:
    """Candidates that a plan dropped for one reason."""

    __slots__ = ("candidates", "example", "least", "sizes", "why")

    def __init__(self, why: Why, example: str) -> None:
        self.why = why
        """The key of `Searched.excluded`."""
        self.sizes: set[int] = set()
        """The sizes for which it holds; empty if it tells none."""
        self.example = example
        """The first mesh dropped for this reason."""
        self.candidates = 0
        self.least: tuple[int, str] | None = None
        """The fewest bytes that one of them takes at least, and its mesh; None if unknown."""

    @property
    def reason(self) -> str:
        """Why they were dropped."""
        return self.why if isinstance(self.why, str) else self.why.told(self.sizes)


class Modelled:
    """A candidate with its bytes and seconds."""

    __slots__ = (
        "_searched", "_time", "candidate", "fits", "host", "implied", "kept", "peak", "state",
    )  # fmt: skip

    def __init__(self, searched: Searched, candidate: Candidate, implied: Implied) -> None:
        self.candidate = candidate
        self.implied = implied
        own = held(implied)
        terms = expected_peak(implied, own)
        self.peak = sum(size for _, size, is_needed in terms if is_needed)
        self.state = own.state
        self.kept = own.inputs + own.saved + own.padding
        """Layer inputs and saved values."""
        self.host = activations(implied, padded=True)[2]
        """Bytes in host memory."""
        self.fits = self.peak <= searched.usable and self.host <= searched.host
        self._searched = searched
        self._time: StepTime | None = None

    @property
    def time(self) -> StepTime:
        """The modelled step with its parts."""
        if self._time is None:
            self._time = self._searched.time(self.implied)
        return self._time

    @property
    def seconds(self) -> float:
        """The modelled step."""
        return self.time.seconds

    @property
    def terms(self) -> list[tuple[str, int]]:
        """The needed terms of the peak."""
        terms = expected_peak(self.implied, held(self.implied))
        return [(name, size) for name, size, is_needed in terms if is_needed]

    @property
    def seconds_per_sequence(self) -> float:
        """What candidates are ranked by: their batches may differ."""
        return self.time.seconds / self.candidate.sequences


class Searched:
    """The search of one kind of machine."""

    def __init__(
        self,
        effective: EffectiveConfig,
        device: Device,
        devices: int,
        *,
        sequences: int | None,
        margin: float = MARGIN,
        offloads: bool = True,
        state_dtype: str | None = None,
    ) -> None:
        from hlofast.config._verdict import capacity

        self.effective = effective
        self.config = effective.config
        self.front = effective.config.front
        self.device = device
        self.devices = devices
        self.slices = effective.instance.slices
        self.capacity: int = capacity(device) or 0
        self.usable = int(self.capacity * (1 - margin))
        host = device.host_memory
        self.host = sys.maxsize if host is None else int(host * HOST_SHARE)
        """Host memory per device that a choice may use."""
        self.sequences = sequences
        """Sequences of a step; None where the plan chooses them."""
        self.space = self.front.space(self.config)
        if not offloads:
            self.space = self.space.on_device()
        self.states = [State(OWN_STATE, self.config, {})]
        """The types of weights and moments, the config's own first."""
        if state_dtype is not None:
            for name, values in self.front.states(self.config, state_dtype):
                self.states.append(State(name, self.config.replace(values), values))
        self.excluded: dict[Why, Excluded] = {}
        self._splits: dict[tuple[int, ...], bool] = {}
        self.unmodelled: set[Why] = set()
        """Reasons of `excluded` that the config is not modelled on a mesh."""
        self.untimed: str | None = None
        """Why the step has no modelled time; choices are then ranked by the time of the same step
        without the reason. None if it has one."""
        self.gap: str | None = None
        """Why the config is not modelled without a mesh."""
        self.axes: list[str] = []
        """The axes that the plan sizes."""
        self.unused: list[tuple[str, str]] = []
        """The axes that it leaves at 1, with the reason."""
        self.unmodelled_axes: list[str] = []
        """Those of them along which steps are not modelled."""
        self.candidates = 0
        self.modelled = 0
        self.best: list[Modelled] = []
        """The fastest candidate of every mesh that has one that fits and is near, fastest first.

        Of meshes that are as fast as the fastest, the usual one comes first.
        """
        self._vocabularies: dict[int, Vocabulary] = {}
        """The policies, by the number of values: on some meshes, layers have further ones."""
        self._far = float("inf")
        """Seconds per sequence from which on a choice is not worth its search."""
        self.rates: Rates = rates_of(device, self.implied({}).rates)
        self._choose_axes()
        self.sizes = _plan_meshes.Sizes(self.implied({}), self.axes, devices, sequences)
        """The sizes of axes that are searched."""
        self._narrowing: dict[str, str | None] = {}
        meshes = self._meshes()
        # The fewer axes a mesh has, the likelier it is fast: later ones are then dropped early.
        for mesh in islice(meshes, _plan_meshes.MOST_MESHES):
            found = [self._search(mesh, own) for own in self.states]
            best = self._leading([own for own in found if own is not None])
            if best is not None:
                self.best.append(best)
        further = next(meshes, None)
        self.cut_at = None if further is None else sum(size > 1 for size in further.values())
        """The axes above 1 of the first mesh beyond those that a plan searches; None if it searches
        all."""
        self.best = [own for own in self.best if own.seconds_per_sequence <= self._far]
        self.best.sort(key=lambda own: own.seconds_per_sequence)
        self._order_equal()

    def _order_equal(self) -> None:
        """Puts the meshes first that people would choose of those as fast as the fastest."""
        if not self.best:
            return
        limit = self.best[0].seconds_per_sequence * (1 + SAME)
        equal = [own for own in self.best if own.seconds_per_sequence <= limit]
        equal.sort(key=lambda own: (own.candidate.is_split, own.time.demand.network))
        self.best[: len(equal)] = equal

    def implied(self, mesh: dict[str, int], kept: State | None = None) -> Implied:
        """The model on a mesh, without the reasons why the config's own policy is unknown."""
        config = self.config if kept is None else kept.config
        model = self.front.model(config, mesh, steps=1)
        implied = Implied(model, self._whole(mesh), slices=self.slices)
        implied.gaps = [gap for gap in implied.gaps if gap not in model.refused]
        return implied

    def _whole(self, mesh: dict[str, int]) -> dict[str, int]:
        """The mesh with the axes that have one device."""
        return {axis: mesh.get(axis, 1) for axis in self.space.axes}

    def _choose_axes(self) -> None:
        """Drops axes along which nothing is modelled, or that do the same as an earlier one."""
        prime = next((own for own in _plan_meshes.divisors(self.devices) if own > 1), 1)
        plain = list(_plan_space.gaps_of(self.implied({})))
        self.gap = plain[0].text if plain else None
        known: dict[str, tuple[float, ...]] = {}
        mesh = self.effective.mesh
        used = [] if mesh is None else [axis for axis, size in mesh.shape.items() if size > 1]
        axes = dict.fromkeys((*used, *self.space.usual, *self.space.axes))
        never = {**self.space.worse, **self.space.unmodelled}
        self.unused += [(axis, why) for axis, why in never.items() if axis in axes]
        self.unmodelled_axes += [axis for axis in self.space.unmodelled if axis in axes]
        each = {axis: self.implied({axis: prime}) for axis in axes if axis not in never}
        gaps = {axis: list(_plan_space.gaps_of(implied)) for axis, implied in each.items()}
        # What holds for all axes says nothing of one: so few devices may have no whole sequence.
        each_told = [{own.text for own in told} for told in gaps.values()]
        common = {own.text for own in plain}.union(set.intersection(*each_told) if gaps else ())
        for axis, implied in each.items():
            gap = next((own for own in gaps[axis] if own.text not in common), None)
            if implied.batch.sequences is None:
                implied.batch = _batch(implied.batch, self.sequences or self.devices)
            if gap is not None:
                self.unused.append((axis, gap.text))
                if not gap.fails:
                    self.unmodelled_axes.append(axis)
                continue
            if prime > 1 and axis in implied.idle_axes:
                self.unused.append((axis, IDLE))
                continue
            own = _plan_space.footprint(implied)
            same = next((name for name in known if _plan_space.is_same(known[name], own)), None)
            if same is None:
                known[axis] = own
            else:
                self.unused.append((axis, f"it does the same as {same} here"))
        self.axes = [axis for axis in self.space.axes if axis in known]
        if prime == 1:
            self.unused, self.unmodelled_axes = [], []  # One device leaves nothing to size.

    def _exclude(
        self,
        why: str | Sized,
        mesh: dict[str, int],
        count: int,
        needed: int | None = None,
    ) -> None:
        """Drops `count` candidates of a mesh, each of which takes `needed` bytes or more."""
        if not count:
            return
        reason, size = (why, None) if isinstance(why, str) else why
        found = self.excluded.setdefault(reason, Excluded(reason, _plan_meshes.shown_mesh(mesh)))
        if size is not None:
            found.sizes.add(size)
        found.candidates += count
        self.candidates += count
        if needed is not None and (found.least is None or needed < found.least[0]):
            found.least = needed, _plan_meshes.shown_mesh(mesh)

    def groups(self, implied: Implied) -> list[tuple[int, int, int]]:
        """Sequences of a step, sequences of a shard at a time, and accumulation."""
        shards = implied.shards(implied.batch.axes)
        if self.sequences is None:
            counts = (own for at in range(MOST_ROWS.bit_length()) for own in (2 << at, 3 << at))
            return [(rows * shards, rows, 1) for rows in sorted({1, *counts}) if rows <= MOST_ROWS]
        if self.sequences % shards:
            return []
        total = self.sequences // shards
        return [
            (self.sequences, rows, total // rows)
            for rows in range(1, min(total, MOST_ROWS) + 1)
            if total % rows == 0
        ]

    def _search(self, mesh: dict[str, int], kept: State) -> Modelled | None:
        implied = self.implied(mesh, kept)
        gaps = list(_plan_space.gaps_of(implied))
        gap = next((own for own in gaps if not own.has_memory), None)
        if gap is None and gaps:
            self.untimed = gaps[0].text
        options = [] if gap is not None else self.options(implied)
        groups = self.groups(implied)
        count = max(1, len(options)) * max(1, len(groups))
        reason: str | Sized | None
        reason = _plan_meshes.uneven(implied) if gap is None else _plan_meshes.sized(gap.text, mesh)
        if reason is None and not groups and self.sequences is not None:
            axes = tuple(axis for axis in implied.batch.axes if mesh.get(axis, 1) > 1)
            reason = _plan_meshes.of_batch(axes, self.sequences), implied.shards(axes)
        needed = None
        if reason is None and (held_always := sum(state(implied)[:3])) > self.capacity:
            reason, needed = STATE, held_always
        if reason is not None:
            self._exclude(reason, mesh, count, needed)
            if gap is not None:
                self.unmodelled.add(reason if isinstance(reason, str) else reason[0])
            return None
        return self._fastest(mesh, implied, options, kept)

    @staticmethod
    def _leading(known: list[Modelled]) -> Modelled | None:
        """The best of a mesh: of equally fast choices, the one that takes least."""
        fastest = min((own.seconds_per_sequence for own in known), default=0.0)
        equal = [own for own in known if own.seconds_per_sequence <= fastest * (1 + TIE)]
        return min(
            equal,
            key=lambda own: (bool(own.candidate.state.values), own.host > 0, own.peak),
            default=None,
        )

    def _fastest(
        self,
        mesh: dict[str, int],
        implied: Implied,
        options: list[Option],
        chosen: State,
    ) -> Modelled | None:
        shards = implied.shards(implied.batch.axes)
        offers = self._offers(implied, options)
        sizes = sorted(offer.kept for offer in offers)
        least = min(offers, key=lambda offer: offer.kept)
        held_always = sum(state(implied)[:3])
        room = self.usable - held_always
        everything = implied.variant(
            _batch(implied.batch, shards), 1, dict.fromkeys(implied.policies, KEEP_EVERYTHING),
            dict.fromkeys(implied.fates, SAVED),
        )  # fmt: skip

        def modelled(offer: _Offer, group: tuple[int, int, int]) -> Modelled:
            candidate = Candidate(mesh, self.slices, *group, offer.option, chosen)
            candidate.is_split = self._is_split(candidate)
            batch = _batch(implied.batch, candidate.sequences)
            if offer.implied is None:
                option = offer.option
                offer.implied = implied.variant(batch, 1, option.policies, option.fates)
            return Modelled(self, candidate, offer.implied.variant(batch, candidate.steps))

        waiting: list[tuple[float, _Offer, tuple[int, int, int]]] = []
        for group in self.groups(implied):
            sequences, rows, steps = group
            # What is kept is proportional to the sequences of a shard.
            fitting = bisect_right(sizes, room // rows)
            needed = held_always + rows * sizes[0]
            self._exclude(_KEPT, mesh, len(offers) - fitting, None if fitting else needed)
            if not fitting:
                continue
            least_seconds, of_offer = self._bounds(everything, sequences, steps)
            near = []
            if least_seconds <= self._far:
                bounds = (
                    (of_offer(offer), offer, group) for offer in offers if rows * offer.kept <= room
                )
                near = [own for own in bounds if own[0] <= self._far]
            self._exclude(_FAR, mesh, fitting - len(near))
            if not near:
                continue
            # Where the peak is too large with the policy that keeps least, it is with all others.
            if (peak := modelled(least, group).peak) > self.usable:
                self._exclude(_PEAK, mesh, len(near), peak)
                continue
            waiting += near
        waiting.sort(key=lambda own: own[0])
        fastest = float("inf")
        known: list[Modelled] = []
        for at, (bound, offer, group) in enumerate(waiting):
            if bound > min(fastest * (1 + TIE), self._far):
                reason = _FAR if bound > self._far else _SLOWER
                self._exclude(reason, mesh, len(waiting) - at)
                break
            own = modelled(offer, group)
            if not own.fits:
                self._exclude(_PEAK if own.peak > self.usable else _HOST, mesh, 1)
                continue
            self.candidates += 1
            self.modelled += 1
            known.append(own)
            fastest = min(fastest, own.seconds_per_sequence)
            self._far = min(self._far, fastest * WORTH)
        return self._leading(known)

    def _offers(self, implied: Implied, options: list[Option]) -> list[_Offer]:
        """The policies with what they keep of one sequence of each shard."""
        shards, offers = implied.shards(implied.batch.axes), []
        for option in options:
            inputs, saved, offloaded = kept_of(implied, option.policies, option.fates)
            stored = self._storing(saved + offloaded) / shards
            offers.append(_Offer(option, inputs + saved, stored))
        return offers

    def options(self, implied: Implied) -> list[Option]:
        """The policies for a mesh that is modelled; of names for the same policy, the first."""
        return self._vocabulary(implied).options(implied)

    def named_options(self, implied: Implied) -> list[Option]:
        """The policies that the trainer names, under all of their names."""
        return self._vocabulary(implied).named

    def _vocabulary(self, implied: Implied) -> Vocabulary:
        count = len(implied.parts.values)
        if count not in self._vocabularies:
            self._vocabularies[count] = Vocabulary(self.front, self.space, implied)
        return self._vocabularies[count]

    def of_mesh(self, mesh: dict[str, int], kept: State | None = None) -> list[Modelled]:
        """All choices of a mesh that fit, with the config's own types or others."""
        chosen = self.states[0] if kept is None else kept
        implied = self.implied(mesh, chosen)
        candidates = (
            Candidate(mesh, self.slices, sequences, rows, steps, option, chosen)
            for sequences, rows, steps in self.groups(implied)
            for option in self.options(implied)
        )
        return [own for each in candidates if (own := self.model(implied, each)).fits]

    def narrowing(self, dtype: str) -> str | None:
        """The types of the state, narrowed to `dtype`, with which a choice fits."""
        if dtype not in self._narrowing:
            self._narrowing[dtype] = next(
                (
                    name
                    for name, values in self.front.states(self.config, dtype)
                    if self._can_fit(State(name, self.config.replace(values), values))
                ),
                None,
            )
        return self._narrowing[dtype]

    def _can_fit(self, chosen: State) -> bool:
        """Whether a choice with these types fits on a mesh."""
        for mesh in self._meshes():
            implied = self.implied(mesh, chosen)
            if sum(state(implied)[:3]) > self.usable or _plan_meshes.uneven(implied) is not None:
                continue
            if not all(gap.has_memory for gap in _plan_space.gaps_of(implied)):
                continue
            options = self.options(implied)
            on_device = [option for option in options if not option.offloads]
            # Few sequences at a time take little, but accumulation takes sums of gradients.
            groups = self.groups(implied)
            for group in dict.fromkeys((*groups[:1], *groups[-1:])):
                for among in (options, on_device):
                    least = min(self._offers(implied, among), key=lambda offer: offer.kept)
                    each = Candidate(mesh, self.slices, *group, least.option, chosen)
                    if self.model(implied, each).fits:
                        return True
        return False

    def _meshes(self) -> Iterator[dict[str, int]]:
        """The meshes that are searched, and one more if there are more."""
        meshes = _plan_meshes.meshes(self.sizes.axes, self.devices, self.slices)
        return islice(meshes, _plan_meshes.MOST_MESHES + 1)

    def own_option(self) -> Option:
        """The config's own policy; raises `ValueError` if it is not modelled."""
        mesh = self.effective.mesh
        shape = {} if mesh is None else dict(mesh.shape)
        model = self.front.model(self.config, shape, steps=self.effective.accumulation_steps)
        for _, why in model.refused:
            raise ValueError(why)
        return Option(
            Implied(model, shape, slices=self.slices),
            self.front.own_policy(self.config),
            model.policies,
        )

    def _is_split(self, candidate: Candidate) -> bool:
        """Whether JAX has to split axes of the torus; no if the torus is not known."""
        key = tuple(candidate.mesh.values())
        if key not in self._splits:
            torus = None
            if self.devices_per_chip == 1:
                torus = _torus.shape(self.device.name, self.devices // self.slices)
            self._splits[key] = torus is not None and not _torus.is_laid(torus, candidate.inner)
        return self._splits[key]

    def mfu(self, own: Modelled) -> float:
        """Model FLOPs utilisation of a step, as `Verdict.mfu`."""
        peak = self.device.per_jax_device("flops.bf16")
        return StepFlops(own.implied).useful / (own.seconds * self.devices * peak)

    @property
    def devices_per_chip(self) -> float:
        """JAX devices of a chip."""
        return float(self.device.value("jax_devices") or 1)

    def _variant(self, implied: Implied, candidate: Candidate) -> Implied:
        """The model of a candidate."""
        option = candidate.option
        candidate.is_split = self._is_split(candidate)
        batch = _batch(implied.batch, candidate.sequences)
        return implied.variant(batch, candidate.steps, option.policies, option.fates)

    def model(self, implied: Implied, candidate: Candidate) -> Modelled:
        """Bytes and seconds of a candidate."""
        return Modelled(self, candidate, self._variant(implied, candidate))

    def time(self, implied: Implied) -> StepTime:
        """The modelled step."""
        demand = Demand(implied, StepFlops(implied), self.device, self.devices)
        return StepTime(demand, self.rates)

    def _storing(self, size: int) -> float:
        """Seconds in which kept values of so many bytes pass through memory."""
        return size * self.rates.kept_passes / self.device.per_jax_device("hbm_bandwidth")

    def _bounds(
        self, everything: Implied, sequences: int, steps: int
    ) -> tuple[float, Callable[[_Offer], float]]:
        """A lower bound of the seconds per sequence, and a function to that of a policy.

        They are those of a step that recomputes and stores nothing, of the operations that are
        recomputed, and of what is stored; repeated collectives, and moves to host memory, are left
        out.
        """
        implied = everything.variant(_batch(everything.batch, sequences), steps)
        flops, rates = StepFlops(implied), self.rates
        demand = Demand(implied, flops, self.device, self.devices)
        demand.kept = 0.0
        time = StepTime(demand, rates)
        # More work hides more of the gathers, and of collectives between slices.
        always = demand.gathers / rates.links * rates.gathers_exposed
        always += demand.network / rates.network * rates.network_exposed
        exposed = (
            sum(seconds for name, seconds in time.parts if name in (GATHERS, NETWORK)) - always
        )
        of_matmul = demand.at_peak / rates.matmul
        kernels = demand.kernels / rates.attention + demand.scores / rates.matmul
        of_attention = kernels / flops.attention if flops.attention else 0.0
        seconds = time.seconds

        def of_offer(offer: _Offer) -> float:
            option = offer.option
            again = (option.matmul * of_matmul + option.attention * of_attention) * sequences
            again += offer.stored * sequences
            return (seconds + max(0.0, again - exposed)) / sequences

        return seconds / sequences, of_offer


class _Offer:
    """A policy on a mesh, with what it keeps of one sequence of each shard."""

    __slots__ = ("implied", "kept", "option", "stored")

    def __init__(self, option: Option, kept: int, stored: float) -> None:
        self.option = option
        self.implied: Implied | None = None
        """The model under the policy, once a candidate with it is modelled."""
        self.kept = kept
        """Bytes of layer inputs and saved values on a device."""
        self.stored = stored
        """Seconds per sequence in which saved and offloaded values pass through memory."""


def _batch(batch: Batch, sequences: int) -> Batch:
    return Batch(
        sequences, batch.length, batch.axes, batch.sequence_axes, is_placed=batch.is_placed
    )
