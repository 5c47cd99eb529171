"""`Likened`: one choice of a run against the fastest one."""

from __future__ import annotations

import math

from hlofast._core import Field
from hlofast._names import nearest
from hlofast._result import Fact, Note, Result, Section
from hlofast._text import counted
from hlofast.config import _plan_meshes, _plan_space
from hlofast.config._memory import kept_of
from hlofast.config._plan import JUDGED_APART, Modelled, Searched
from hlofast.config._plan_choice import EXAMPLE, NUMBERS, OWN, ChoiceError, checked
from hlofast.config._plan_meshes import shown_mesh
from hlofast.config._plan_notes import overridden
from hlofast.config._plan_space import Candidate, Obstacle
from hlofast.config._verdict import TOO_LARGE, UNKNOWN
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hlofast.config._front import Model
    from hlofast.config._implied import Implied
    from hlofast.config._plan_space import Option, State
    from hlofast.config._select import EffectiveConfig
    from hlofast.table import Table

_EXACT = 1e-6
"""Relative error of a number of sequences that counts as whole."""
FILE = Field("name", "file", "The file of the config.", nullable=True)
_DIFFERENT = (
    Field("word", "choice", "The part of the choice."),
    Field("text", "this", "Its value in this choice."),
    Field("text", "best", "The fastest choice that fits."),
)


def _compared(kind: str, first: str, unit: str) -> tuple[Field, ...]:
    return (
        Field("word", first, "The part."),
        Field(kind, "this", f"{unit} of this choice."),
        Field(kind, "best", f"{unit} of the fastest choice that fits.", nullable=True),
        Field(
            kind,
            "more",
            f"{unit} by which this choice exceeds the fastest one.",
            signed=True,
            nullable=True,
        ),
    )


_PARTS = _compared("seconds", "part", "Seconds")
_TERMS = _compared("bytes", "term", "Bytes per device")


def own_batch(effective: EffectiveConfig) -> int | None:
    """Sequences of the config's own step; None if it does not tell them."""
    return _own_model(effective).batch.sequences


def no_batch(effective: EffectiveConfig) -> str:
    """Why the config does not tell the sequences of its own step."""
    model = _own_model(effective)
    why = [why for path, why in model.refused if path not in ("", "remat_policy")]
    return why[0] if why else "the config does not tell the sequences of a step"


def _own_model(effective: EffectiveConfig) -> Model:
    # The batch of some trainers follows from the number of devices.
    mesh = {"data": effective.devices or 1} if effective.mesh is None else effective.mesh.shape
    front = effective.config.front
    steps = front.steps(effective.config)
    return front.model(effective.config, dict(mesh), steps=steps)


class Likened(Result):
    """A choice of a run against the fastest one that fits: what it loses, and where.

    Returned by `Plan.like`.
    """

    __slots__ = (
        "_best", "_completed", "_is_own", "_searched", "_this", "_untimed", "refusal",
    )  # fmt: skip

    VERB = "plan"
    FACTS = (
        FILE,
        Field("text", "mesh", "Mesh axes with more than one device."),
        Field("text", "policy", "The checkpoint policy."),
        Field("number", "per_device_batch", "Sequences per device and accumulation step.",
              label="batch/device"),
        Field("count", "accumulation_steps", "Gradient accumulation steps.", label="accumulation"),
        Field("flag", "fits", "Whether the choice fits.", nullable=True),
        Field("bytes", "peak_bytes", "The expected peak when memory is tight.", label="peak",
              nullable=True),
        Field("bytes", "usable_bytes", "Memory that a choice may use.", label="usable"),
        Field("seconds", "step_seconds", "The modelled time of a step.", label="step",
              nullable=True),
        Field("seconds", "slower_seconds", "Extra seconds per step over the fastest choice, for "
              "the same number of sequences.", label="slower by", nullable=True, signed=True),
        Field("ratio", "slower", "Extra time as a share of the fastest step.", nullable=True,
              signed=True),
    )  # fmt: skip

    def __init__(self, searched: Searched, given: object) -> None:
        self._searched = searched
        self._best = searched.best[0] if searched.best else None
        self.refusal: Obstacle | None = None
        """Why the trainer cannot run the choice, or why it has no figures; None if it has."""
        choice = checked(given, searched.space.axes, searched.devices)
        self._is_own = OWN in choice
        self._completed: list[str] = []
        self._untimed: str | None = None
        self._this = self._modelled(choice)

    @property
    def title(self) -> str:
        """The name of the instance."""
        return self._searched.effective.instance.name

    @property
    def choice(self) -> tuple[Candidate, Modelled | None]:
        """The choice, and its figures; None if the trainer cannot run it."""
        return self._this

    @property
    def is_fitting(self) -> bool:
        """Whether the trainer can run the choice and it fits."""
        return bool(self._fits[0])

    @property
    def _fits(self) -> tuple[bool | None, int | None]:
        """Whether the choice fits, and its peak; None if unknown."""
        own = self._this[1]
        if own is not None:
            return own.fits, own.peak
        searched = self._searched
        is_known = self._is_own and self.refusal is not None and not self.refusal.fails
        # The verdict of the config is that of its own batch.
        if not is_known or searched.sequences not in (None, own_batch(searched.effective)):
            return None, None
        # The memory of a step can have a model whose time has none.
        verdict = searched.effective.verdict(searched.device)
        if verdict.status == UNKNOWN or verdict.expected_peak_bytes is None:
            return None, None
        return verdict.status != TOO_LARGE, verdict.expected_peak_bytes

    def _modelled(self, choice: dict[str, float | str]) -> tuple[Candidate, Modelled | None]:
        searched, is_own = self._searched, OWN in choice
        mesh = self._mesh(choice, is_own=is_own)
        kept = self._state(choice, is_own=is_own)
        implied = searched.implied(mesh, kept)
        option = self._option(implied, OWN if is_own else choice.get("policy"))
        shards = implied.shards(implied.batch.axes)
        sequences, rows, steps = self._batch(choice, mesh, shards, is_own=is_own)
        candidate = Candidate(mesh, searched.slices, sequences, rows, steps, option, kept)
        if self._best is None and not is_own:
            self._completed = self._completing(choice, candidate)
        self.refusal = self._refused(implied, candidate, shards)
        if self.refusal is not None:
            return candidate, None
        return candidate, searched.model(implied, candidate)

    def _completing(self, choice: dict[str, float | str], candidate: Candidate) -> list[str]:
        """The parts of a candidate that a choice leaves out."""
        parts = []
        if choice.keys().isdisjoint(self._searched.space.axes):
            parts.append(shown_mesh(candidate.mesh))
        if "policy" not in choice:
            parts.append(f"policy={candidate.option.name}")
        if choice.keys().isdisjoint(NUMBERS):
            parts.append(f"batch={candidate.per_device:g},accumulation={candidate.steps}")
        return parts

    def _batch(
        self, choice: dict[str, float | str], mesh: dict[str, int], shards: int, *, is_own: bool
    ) -> tuple[int, int, int]:
        """Sequences of a step, sequences of a shard at a time, and accumulation."""
        searched = self._searched
        best = None if self._best is None else self._best.candidate
        each = _number(choice, "batch")
        steps = int(_number(choice, "accumulation") or 0)
        devices = math.prod(mesh.values())
        sequences = searched.sequences
        if is_own:
            steps = searched.effective.accumulation_steps or 1
            sequences = sequences or own_batch(searched.effective)
        if sequences is None:
            steps = steps or 1
            each = each or (best.per_device if best else 1)
            sequences = _whole(each * devices) * steps
            if not sequences:
                raise ValueError(
                    f"batch={each:g} does not make a whole number of sequences on the mesh"
                )
        elif each is not None:
            steps = steps or _whole(sequences / (each * devices))
            if not steps or _whole(each * devices * steps) != sequences:
                parts = f"batch={each:g} on {devices:,} devices"
                if "accumulation" in choice:
                    parts += f" and accumulation={steps:,}"
                raise ValueError(f"{parts} does not make the {sequences:,} sequences of a step")
        # Without a best choice, that of the least memory: one sequence of a shard at a time.
        fewest = 1 if sequences % shards else sequences // shards
        steps = steps or (best.steps if best else fewest)
        return sequences, sequences // (shards * steps), steps

    def _refused(self, implied: Implied, candidate: Candidate, shards: int) -> Obstacle | None:
        why = self._failing(candidate, shards)
        if why is not None:
            return Obstacle(why, fails=not self._pads)
        space = self._searched.space
        for axis, why in (*space.worse.items(), *space.unmodelled.items()):
            if candidate.mesh.get(axis, 1) > 1:
                return Obstacle(f"{axis} is not modelled: {why}", fails=False)
        gaps = list(_plan_space.gaps_of(implied))
        self._untimed = next((gap.text for gap in gaps if gap.has_memory), None)
        gaps = [gap for gap in gaps if not gap.has_memory]
        failing = next((gap for gap in gaps if gap.fails), None)
        if failing is None and (uneven := _plan_meshes.uneven(implied)) is not None:
            failing = Obstacle(uneven[0].told([uneven[1]]), fails=True)
        return failing or (gaps[0] if gaps else None)

    @property
    def _pads(self) -> bool:
        """Whether it is the config's own choice, which the trainer runs, with a padded batch."""
        effective = self._searched.effective
        return self._is_own and effective.verdict(self._searched.device).status != UNKNOWN

    def _failing(self, candidate: Candidate, shards: int) -> str | None:
        """Why the trainer cannot run a choice, whatever it trains."""
        searched = self._searched
        if candidate.devices != searched.devices:
            return f"the mesh has {counted(candidate.devices, 'device')}, not {searched.devices:,}"
        if _plan_space.spread(candidate.mesh.values(), searched.slices) is None:
            return f"{searched.slices:,} slices do not divide the outermost axes of the mesh"
        parts = candidate.steps * shards
        if candidate.sequences % parts:
            steps = f" and {counted(candidate.steps, 'accumulation step')}" * (candidate.steps > 1)
            return (
                f"{counted(candidate.sequences, 'sequence')} do not divide into "
                f"{counted(shards, 'shard')}{steps}"
            )
        return None

    def _mesh(self, choice: dict[str, float | str], *, is_own: bool) -> dict[str, int]:
        searched = self._searched
        axes = {axis: size for axis, size in choice.items() if axis in searched.space.axes}
        if is_own:
            mesh = searched.effective.mesh
            if mesh is None:
                raise ValueError("the config has no mesh on this instance")
            return dict(mesh.shape)
        best = self._best.candidate.mesh if self._best else None
        if not axes and best is None:
            if searched.effective.mesh is None:
                raise ValueError(f"nothing fits: give the mesh of the choice too, as {EXAMPLE}")
            best = dict(searched.effective.mesh.shape)
        return {axis: int(axes.get(axis, 1)) for axis in searched.axes} | {
            axis: int(size) for axis, size in axes.items()
        } if axes else dict(best or {})  # fmt: skip

    def _state(self, choice: dict[str, float | str], *, is_own: bool) -> State:
        """The types of weights and moments."""
        searched = self._searched
        name = choice.get("state")
        if name is None:
            is_known = self._best is not None and not is_own
            return self._best.candidate.state if is_known and self._best else searched.states[0]
        for own in searched.states:
            if name in (own.name, OWN if own is searched.states[0] else own.name):
                return own
        names = ", ".join(own.name for own in searched.states[1:])
        raise ChoiceError(
            f"state {name!r} is not known; known: {OWN}{', ' if names else ''}{names}"
        )

    def _option(self, implied: Implied, name: float | str | None) -> Option:
        searched = self._searched
        if name is None and self._best is not None:
            return self._best.candidate.option
        if name is None:
            return self._own_or_least(implied)
        if name == OWN:
            return searched.own_option()
        options = [*searched.options(implied), *searched.named_options(implied)]
        for option in options:
            if option.name == name:
                return option
        known = list(dict.fromkeys(option.name for option in options if option.is_named))
        # Names have commas.
        close = " or ".join(map(repr, nearest(str(name), [option.name for option in options])))
        near = f"; did you mean {close}?" if close else ";"
        raise ChoiceError(
            f"policy {name!r} is not known{near} known: {', '.join(known)}, {OWN}, and the sets "
            "of values that the plan lists"
        )

    def _own_or_least(self, implied: Implied) -> Option:
        """The config's own policy; if it is not modelled, the one that keeps least."""
        try:
            return self._searched.own_option()
        except ValueError:
            options = self._searched.options(implied)
            return min(options, key=lambda own: sum(kept_of(implied, own.policies, own.fates)[:2]))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The choice, whether it fits, and what it loses."""
        candidate, own = self._this
        best, searched = self._best, self._searched
        fits, peak = self._fits
        has_time = own is not None and self._untimed is None
        seconds = own.seconds if own is not None and has_time else None
        slower = None
        if own is not None and best is not None and has_time:
            slower = own.seconds_per_sequence - best.seconds_per_sequence
            slower *= best.candidate.sequences
        facts = [
            ("file", searched.config.file, "configuration"),
            ("mesh", shown_mesh(candidate.mesh), "configuration"),
            ("policy", candidate.option.name, "configuration"),
            ("per_device_batch", candidate.per_device, "configuration"),
            ("accumulation_steps", candidate.steps, "configuration"),
            ("fits", fits, "modelled"),
            ("peak_bytes", peak, "modelled"),
            ("usable_bytes", searched.usable, "configuration"),
            ("step_seconds", seconds, "modelled"),
            ("slower_seconds", slower, "modelled"),
            ("slower", slower / best.seconds if best and slower is not None else None, "modelled"),
        ]
        if self.refusal is not None and self.refusal.fails:
            # What cannot run has no figures; the note says why.
            facts = [own for own in facts if own[1] is not None]
        return self._facts(facts)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Why the choice is not taken, and what completes it."""
        notes = [*self._told(), *overridden(self._searched)]
        if self._completed:
            text = f"nothing fits, so defaults complete the choice: {','.join(self._completed)}"
            notes.append(Note("completed", text))
        return tuple(notes)

    def _told(self) -> tuple[Note, ...]:
        _, own = self._this
        if self.refusal is not None:
            head = "it has no figures" if self._fits[0] is None else "only its memory is modelled"
            if self.refusal.fails:
                head = "the trainer cannot run it"
            return (Note("refused", f"{head}: {self.refusal.text}"),)
        if own is not None and not own.fits:
            over = own.peak - self._searched.usable
            text = f"its peak exceeds the usable memory by {over:,} B"
            if over <= 0:
                over = own.host - self._searched.host
                text = f"its offloaded values exceed the usable host memory by {over:,} B"
            text = f"it does not fit: {text}"
            return (Note("does-not-fit", text), *self._timeless())
        best = self._best
        if self._untimed is not None or own is None or best is None or not self._different():
            return self._timeless()
        slower = own.seconds_per_sequence / best.seconds_per_sequence - 1
        if abs(slower) > JUDGED_APART:
            return ()
        text = (
            f"the model's error on published steps ({JUDGED_APART:.1%}) covers the difference to "
            "the fastest"
        )
        return (Note("tied", text, slower=slower),)

    def _timeless(self) -> tuple[Note, ...]:
        """Why the choice has no step time."""
        if self._untimed is None:
            return ()
        return (Note("untimed", f"only its memory is modelled: {self._untimed}"),)

    def sections(self) -> tuple[Section, ...]:
        """What differs: the choices, the parts of the step, the terms of the peak."""
        _, own = self._this
        best = self._best
        parts = terms = None
        if own is not None:
            share = best.candidate.sequences / own.candidate.sequences if best else 1
            if self._untimed is None:
                parts = _beside(
                    {name: seconds * share for name, seconds in own.time.parts},
                    dict(best.time.parts) if best else None,
                )
            terms = _beside(dict(own.terms), dict(best.terms) if best else None)
        return (
            Section("different", "What differs", self._different(), is_whole=True),
            Section("step", "Parts of the step (same number of "
                            "sequences)", of_rows(_PARTS, parts or ()),
                    is_whole=True),
            Section("peak", "Terms of the peak", of_rows(_TERMS, terms or ()), is_whole=True),
        )  # fmt: skip

    def _different(self) -> Table:
        candidate, best = self._this[0], self._best
        show: dict[str, Callable[[Candidate], str]] = {
            "mesh": lambda own: shown_mesh(own.mesh),
            "batch/device": lambda own: f"{own.per_device:g}",
            "accumulation": lambda own: f"{own.steps:,}",
            "policy": lambda own: own.option.name,
            "types of the state": lambda own: own.state.name,
        }
        rows: list[tuple[str, str, str]] = []
        for name, text in show.items():
            this, other = text(candidate), text(best.candidate) if best else "-"
            if this != other:
                rows.append((name, this, other))
        return of_rows(_DIFFERENT, rows)

    def to_choice(self) -> dict[str, Any]:
        """The whole choice, as `Plan.like` takes it."""
        candidate = self._this[0]
        numbers = {"batch": candidate.per_device, "accumulation": candidate.steps}
        types = {"state": candidate.state.name} if candidate.state.values else {}
        return {**candidate.axes, "policy": candidate.option.name, **numbers, **types}

    def __repr__(self) -> str:
        return f"<Likened {shown_mesh(self._this[0].mesh)}, {self._this[0].option.name}>"


def _number(choice: dict[str, float | str], name: str) -> float | None:
    value = choice.get(name)
    return None if value is None else float(value) if name == "batch" else int(value)


def _whole(value: float) -> int:
    """The integer that a value is, but for rounding; 0 if it is none."""
    nearest = round(value)
    return nearest if math.isclose(value, nearest, rel_tol=_EXACT) else 0


def _beside(
    this: dict[str, float], best: dict[str, float] | None
) -> list[tuple[str, float, float | None, float | None]]:
    """Both figures of every name, the largest loss first; the figures alone without a best."""
    if best is None:
        return [(name, this[name], None, None) for name in sorted(this, key=lambda own: -this[own])]
    rows = [
        (name, this.get(name, 0), best.get(name, 0), this.get(name, 0) - best.get(name, 0))
        for name in dict.fromkeys((*best, *this))
    ]
    return [*sorted(rows, key=lambda row: -row[3])]
