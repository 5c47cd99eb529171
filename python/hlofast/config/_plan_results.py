"""`Plan`: the fastest choices of a run that fit, and what binds each."""

from __future__ import annotations

from sys import float_info

from hlofast._core import Field
from hlofast._numbers import is_number, is_whole
from hlofast._result import Fact, Note, Result, Section
from hlofast._text import Whole
from hlofast._verdict_figures import seconds, short_bytes
from hlofast.config import _plan_meshes
from hlofast.config._parts import ITEM_SIZES, LARGEST_SIZE
from hlofast.config._plan import JUDGED_APART, MARGIN, Modelled, Searched
from hlofast.config._plan_choice import OWN
from hlofast.config._plan_like import FILE, Likened, no_batch, own_batch
from hlofast.config._plan_meshes import shown_mesh
from hlofast.config._plan_notes import notes_of
from hlofast.config._time import EXPOSED, HIGH, LOW, PARTS
from hlofast.config._traffic import StepTraffic
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike
    from typing import Any

    from hlofast._report import Report
    from hlofast.config._select import EffectiveConfig
    from hlofast.config._verdict import Verdict
    from hlofast.devices import Device
    from hlofast.table import Table

_SECONDS_PER_HOUR = 3600

_CHOICE = (
    Field("text", "mesh", "Mesh axes with more than one device."),
    Field("number", "per_device_batch", "Sequences per device and accumulation step.",
          label="batch/device"),
    Field("count", "accumulation_steps", "Gradient accumulation steps.", label="accumulation"),
    Field("name", "policy", "The checkpoint policy: its name in the trainer, or the values that it "
                            "keeps."),
    Field("name", "state_types", "The types of weights and moments.", label="state types"),
)  # fmt: skip
_FIGURES = (
    Field("count", "sequences", "Sequences of a step on all devices."),
    Field("seconds", "step_seconds", "The modelled time of a step.", label="step", nullable=True),
    Field("seconds", "slower_seconds", "Extra seconds per step over the best choice, for the same "
          "number of sequences.", label="slower by", signed=True, nullable=True),
    Field("flag", "is_tied", "Whether the difference to the fastest step is within the model's "
          "error on published steps; no if times are unknown.", label="tied"),
    Field("flag", "is_split", "Whether axes of the mesh split axes of the slice's torus, which JAX "
          "refuses by default.", label="splits torus"),
    Field("ratio", "mfu", "Model FLOPs utilisation of the modelled step.", label="MFU",
          nullable=True),
    Field("number", "tokens_per_second", "Tokens per second and device.", label="tokens/s/device",
          nullable=True),
    Field("bytes", "peak_bytes", "The expected peak when memory is tight.", label="peak"),
    Field("bytes", "state_bytes", "Parameters and optimizer state.", label="state"),
    Field("bytes", "kept_bytes", "Layer inputs and saved values.", label="kept"),
    Field("bytes", "host_bytes", "Host memory per device.", label="host"),
    Field("seconds", "exposed_seconds", "Exposed communication: time of collectives that no work "
                                        "hides.",
          label="exposed", nullable=True),
    Field("text", "traffic", "Payload of collectives per step and device, by mesh axes."),
    Field("word", "time_binds", "The largest part of the step.",
          label="largest time part", nullable=True),
    Field("word", "memory_binds", "The largest term of the peak.", label="largest memory term"),
    Field("number", "chip_hours", "Chip hours for the tokens of the budget.", label="chip hours",
          nullable=True),
)  # fmt: skip
_SHOWN = (
    "mesh", "per_device_batch", "accumulation_steps", "policy", "step_seconds", "is_tied",
    "is_split", "mfu", "state_bytes", "peak_bytes", "exposed_seconds", "traffic", "time_binds",
    "memory_binds",
)  # fmt: skip
_OF_BEST = {"slower_seconds", "is_tied"}
"""Figures of other choices against the best."""
_OF_TIME = (
    "step_seconds", "slower_seconds", "mfu", "tokens_per_second", "exposed_seconds", "time_binds",
    "chip_hours",
)  # fmt: skip
"""Figures that a step without a modelled time has not."""
_FRONTIER = (
    "peak_bytes", "step_seconds", "slower_seconds", "mesh", "per_device_batch",
    "accumulation_steps", "policy",
)  # fmt: skip
_LINES = (Field("index", "number", "The line's number."), Field("text", "code", "A line."))
_EXCLUDED = (
    Field("text", "reason", "Why the candidates were dropped."),
    Field("count", "candidates", "Candidates dropped for this reason.", adds_up=True),
    Field("text", "example", "The first mesh dropped for this reason."),
)
_SIZES = (
    Field("name", "axis", "The mesh axis."),
    Field("text", "sizes", "The sizes that the plan does not search."),
    Field("text", "why", "What these sizes do not divide.", label="do not divide"),
)
_UNUSED = (
    Field("name", "axis", "The mesh axis."),
    Field("text", "why", "Why the plan leaves its size at 1."),
)
_AXES = (
    Field("axes", "axes", "The mesh axes of the collectives' groups."),
    Field("bytes", "payload", "Bytes of the whole arrays of a step, per device.", adds_up=True),
)
_TERMS = (
    Field("word", "term", "What the memory holds."),
    Field("bytes", "bytes", "Bytes per device at the peak when memory is tight.", adds_up=True),
)


class Plan(Result):
    """The fastest choices of a run on one kind of machine that fit in memory.

    A choice is a mesh, the sequences of a device, gradient accumulation and a checkpoint policy.
    For every mesh whose step is at most half as long again as the fastest, `ranked` has the
    fastest choice that fits, and of choices within 0.5 % of it the one without offloading and with
    the least memory; `frontier` has the choices of the fastest mesh that no other beats in both
    memory and time. Seconds and bytes are modelled as in `EffectiveConfig.verdict`. Returned
    by `Config.plan`.
    """

    __slots__ = ("_fitting", "_own", "_refusal", "_searched", "tokens")

    VERB = "plan"
    FACTS = (
        FILE,
        Field("name", "instance", "The name of the instance."),
        Field("name", "device", "The kind of device."),
        Field("count", "devices", "JAX devices."),
        Field("count", "slices", "Slices of the instance."),
        Field("bytes", "capacity_bytes", "Memory of a device.", label="memory"),
        Field("bytes", "usable_bytes", "Memory that a choice may use: a share is left free, "
              "because peaks are modelled.", label="usable"),
        Field("count", "candidates", "Choices on the meshes that are searched."),
        Field("count", "modelled", "Choices whose step was modelled, because no bound excluded "
                                   "them."),
        *(field.replace(nullable=True) for field in _CHOICE),
        Field("seconds", "step_low_seconds", "10th percentile of the expected step, from the "
              "model's errors on published steps.", label="step p10", nullable=True),
        Field("seconds", "step_high_seconds", "90th percentile of the expected step.",
              label="step p90", nullable=True),
        *(field.replace(nullable=True) for field in _FIGURES if field.name not in _OF_BEST),
        Field("text", "own_choice", "The config's own choice.", label="config's own",
              nullable=True),
        Field("word", "own_status", "Whether the config's own choice fits.",
              label="own choice fits",
              nullable=True),
        Field("count", "own_sequences", "Sequences of a step of the config's own choice.",
              label="own sequences", nullable=True),
        Field("seconds", "own_step_seconds", "The modelled step of the config's own choice.",
              label="own step", nullable=True),
    )  # fmt: skip

    def __init__(self, searched: Searched, tokens: float | None = None) -> None:
        self._searched = searched
        self.tokens = tokens
        """The token budget of `chip_hours`; None without one."""
        self._own, self._refusal = _own_choice(searched)
        self._fitting: list[Modelled] | None = None

    @property
    def title(self) -> str:
        """The name of the instance."""
        return self._searched.effective.instance.name

    @property
    def file(self) -> str | None:
        """The file of the config; None if it has none."""
        return self._searched.config.file

    @property
    def devices_per_chip(self) -> float:
        """JAX devices of a chip."""
        return self._searched.devices_per_chip

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The figures of the fastest choice, by column of `ranked`; None if nothing fits."""
        best = self._searched.best
        return self._row(best[0]) if best else None

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines to paste for the fastest choice: AXLearn's mesh rule, MaxText's arguments.

        Arguments are written as a shell takes them: `shlex.split` gives their values.
        """
        searched = self._searched
        if not searched.best:
            return ()
        candidate = searched.best[0].candidate
        name = searched.effective.instance.name
        return tuple(searched.front.written(searched.effective.config, candidate, name))

    @property
    def ranked(self) -> Table:
        """The fastest choice of every mesh, fastest first; far slower meshes are left out."""
        return self._table(self._searched.best)

    @property
    def frontier(self) -> Table:
        """Choices of the fastest mesh that no other beats in both memory and time."""
        kept = list[Modelled]()
        for own in sorted(self._of_best(), key=lambda own: (own.peak, own.seconds_per_sequence)):
            if not kept or own.seconds_per_sequence < kept[-1].seconds_per_sequence:
                kept.append(own)
        return self._table(kept)

    def _of_best(self) -> list[Modelled]:
        """All choices of the fastest mesh that fit."""
        searched = self._searched
        if self._fitting is None:
            best = searched.best[0].candidate if searched.best else None
            self._fitting = [] if best is None else searched.of_mesh(best.mesh, best.state)
        return self._fitting

    def _is_tied(self, own: Modelled) -> bool:
        if self._searched.untimed is not None:
            return False
        best = self._searched.best[0] if self._searched.best else own
        return own.seconds_per_sequence <= best.seconds_per_sequence * (1 + JUDGED_APART)

    @property
    def simplest(self) -> Mapping[str, Any] | None:
        """The figures of the simplest choice that is tied with the fastest.

        None if nothing fits or steps have no times.

        Simple are, in this order, the config's own types, no offloading, a mesh that JAX lays on
        the torus, little traffic between slices or hosts, few mesh axes, no accumulation, and a
        policy that the trainer names.
        """
        searched = self._searched
        tied = [own for own in (*searched.best, *self._of_best()) if self._is_tied(own)]
        if not tied:
            return None
        return self._row(
            min(
                tied,
                key=lambda own: (
                    bool(own.candidate.state.values),
                    own.host > 0,
                    own.candidate.is_split,
                    own.time.demand.network,
                    len(own.candidate.axes),
                    own.candidate.steps > 1,
                    not own.candidate.option.is_named,
                    own.seconds_per_sequence,
                ),
            )
        )

    def _row(self, own: Modelled) -> dict[str, Any]:
        searched, candidate = self._searched, own.candidate
        best = searched.best[0] if searched.best else own
        length = own.implied.batch.length or 0
        rate = candidate.sequences * length / own.seconds / candidate.devices
        parts = dict(own.time.parts)
        hours = None
        if self.tokens is not None:
            hours = self.tokens / rate / _SECONDS_PER_HOUR / searched.devices_per_chip
        slower = own.seconds_per_sequence - best.seconds_per_sequence
        values = (
            shown_mesh(candidate.mesh),
            candidate.per_device,
            candidate.steps,
            candidate.option.name,
            candidate.state.name,
            candidate.sequences,
            own.seconds,
            slower * best.candidate.sequences,
            self._is_tied(own),
            candidate.is_split,
            searched.mfu(own),
            rate,
            own.peak,
            own.state,
            own.kept,
            own.host,
            sum(parts.get(name, 0.0) for name in EXPOSED),
            "; ".join(f"{axes} {short_bytes(size)}" for axes, size in _payloads([own])) or "none",
            max(parts, key=parts.__getitem__),
            max(own.terms, key=lambda term: term[1])[0],
            hours,
        )
        row = dict(zip((field.name for field in (*_CHOICE, *_FIGURES)), values, strict=True))
        return row if searched.untimed is None else {**row, **dict.fromkeys(_OF_TIME)}

    def _shown(self) -> tuple[str, ...]:
        """Columns of the ranking in text; the types of the state where they may differ."""
        if len(self._searched.states) == 1:
            return _SHOWN
        at = _SHOWN.index("step_seconds")
        return (*_SHOWN[:at], "state_types", *_SHOWN[at:])

    def _table(self, modelled: Iterable[Modelled]) -> Table:
        return of_rows((*_CHOICE, *_FIGURES), [tuple(self._row(own).values()) for own in modelled])

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The machine, the fastest choice that fits, and the config's own choice."""
        searched, best, own = self._searched, self.best, self._own
        instance = searched.effective.instance
        facts = [
            *self._facts(
                (
                    ("file", self.file, "configuration"),
                    ("instance", instance.name, "configuration"),
                    ("device", searched.device.name, "configuration"),
                    ("devices", searched.devices, "configuration"),
                    ("slices", searched.slices, "configuration"),
                    ("capacity_bytes", searched.capacity, "exact"),
                    ("usable_bytes", searched.usable, "configuration"),
                    ("candidates", searched.candidates, "exact"),
                    ("modelled", searched.modelled, "exact"),
                )
            )
        ]
        if best is not None:
            known = dict(best)
            if (seconds := best["step_seconds"]) is not None:
                known["step_low_seconds"] = seconds * (1 + LOW)
                known["step_high_seconds"] = seconds * (1 + HIGH)
            chosen = {field.name for field in _CHOICE} | {"sequences"}
            facts += [
                Fact(field, known[field.name], "exact" if field.name in chosen else "modelled")
                for field in self.FACTS
                if known.get(field.name) is not None
            ]
        mesh = searched.effective.mesh
        facts += self._facts(
            (
                ("own_choice", None if mesh is None else shown_mesh(dict(mesh.shape)),
                 "configuration"),
                ("own_status", None if own is None else own[1].status, "modelled"),
                ("own_sequences", None if own is None else own[0], "configuration"),
                ("own_step_seconds", _step(own), "modelled"),
            )
        )  # fmt: skip
        return tuple(facts)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Why nothing fits, and what limits the plan."""
        return notes_of(self._searched, self._refusal, self._ties())

    def _ties(self) -> list[Note]:
        """The choices that the model's error does not tell from the fastest."""
        searched, simplest = self._searched, self.simplest
        if simplest is None:
            return []
        count = sum(map(self._is_tied, searched.best[1:]))
        same = {field.name for field in _CHOICE}
        best = self.best or {}
        others = f"those of {count:,} other mesh{'es' if count != 1 else ''}"
        if not count:
            others = "others of its mesh"
        text = (
            f"the model's error on published steps ({JUDGED_APART:.1%}) does not tell the fastest "
        )
        if any(simplest[name] != best[name] for name in same):
            steps = simplest["accumulation_steps"]
            parts = f", accumulation {steps:,}" if steps > 1 else ""
            text += (
                f"choice from {others}; the simplest tied choice is {simplest['mesh']}, "
                f"policy {simplest['policy']}{parts}: {simplest['sequences']:,} sequences in "
                f"{seconds(simplest['step_seconds'])}, {short_bytes(simplest['peak_bytes'])}"
            )
        elif count:
            text += f"choice from {others}; it is the simplest of them"
        else:
            return []
        return [Note("tied", text, meshes=count, seconds=simplest["step_seconds"])]

    def sections(self) -> tuple[Section, ...]:
        """What to paste, the fastest choice of each mesh, memory against time, what was dropped."""
        searched, best = self._searched, self._searched.best
        is_timed = bool(best) and searched.untimed is None
        parts = best[0].time.table if is_timed else of_rows(PARTS, ())
        terms = of_rows(_TERMS, best[0].terms if best else ())
        rows = sorted(searched.excluded.values(), key=lambda own: -own.candidates)
        # Paragraphs keep lines whole, so that they can be pasted.
        pasted = [("To paste", [("", Whole(line)) for line in self.lines])] if self.lines else []
        return (
            Section("lines", "To paste", of_rows(_LINES, enumerate(self.lines, 1)),
                    paragraphs=pasted, is_whole=True),
            Section("ranked", "The fastest choice of each mesh", self.ranked, self._shown()),
            Section("frontier", "Memory against time on the fastest mesh", self.frontier,
                    _FRONTIER, is_whole=True),
            Section("parts", "Parts of the fastest step", parts, is_whole=True),
            Section("terms", "Its peak", terms, is_whole=True),
            Section("traffic", "Its traffic by mesh axis", traffic_of(best[:1]), is_whole=True),
            Section("excluded", "Dropped candidates", of_rows(
                _EXCLUDED, [(own.reason, own.candidates, own.example) for own in rows])),
            Section("sizes", "Sizes that are not searched", of_rows(
                _SIZES, [(axis, _plan_meshes.shown(sizes), f"{own.size:,} {own.of}")
                         for axis, sizes, own in searched.sizes.dropped])),
            Section("unused", "Axes left at 1", of_rows(_UNUSED, searched.unused), is_whole=True),
        )  # fmt: skip

    def like(self, choice: Mapping[str, float | str] | str) -> Likened:
        """Compares another choice with the fastest one that fits.

        `choice` has sizes of mesh axes (all, or none; also together, as `mesh`), `policy` (a name
        of the trainer's, or `own`), `state`, `batch` (sequences per device and accumulation step)
        and `accumulation`, or is the text that `--like` takes. What it leaves out is taken from the
        fastest choice, or from the config if nothing fits. `{"own": 1}` is the config's own choice.
        Raises `ValueError` for a choice that the plan does not know, and `TypeError` for what is
        neither a mapping nor text.
        """
        return Likened(self._searched, choice)

    def report(self, path: str | PathLike[str] | None = None, *, plots: bool = True) -> Report:
        """An HTML page about the plan, written to `path` if given; charts need bokeh.

        Raises `OSError` if it cannot be written.
        """
        from hlofast._report import Report
        from hlofast._report.plans import contents

        page = Report(contents(self), plots=plots)
        if path is not None:
            page.save(path)
        return page

    def __repr__(self) -> str:
        best = self.best
        if best is None:
            return f"<Plan on {self.title}: nothing fits>"
        step = "no step time"
        if best["step_seconds"] is not None:
            step = f"{best['step_seconds']:.4g} s"
        return f"<Plan on {self.title}: {best['mesh']}, {best['policy']}, {step}>"


def _step(own: tuple[int, Verdict] | None) -> float | None:
    """The step of the config's own choice; None where it covers computation only."""
    if own is None or own[1].communication_seconds is None:
        return None
    return own[1].step_seconds


def _own_choice(searched: Searched) -> tuple[tuple[int, Verdict] | None, str | None]:
    """The sequences and the verdict of the config's own choice, or why the trainer refuses it.

    Neither where the config is not modelled or has no mesh.
    """
    from hlofast.config._verdict import Verdict

    effective = searched.effective
    # Without a mesh, the reason for that is told first.
    kinds = ("mesh", "fails") if effective.mesh is None else ("fails",)
    told = [row["text"] for kind in kinds for row in effective.notes if row["kind"] == kind]
    try:
        liked = Likened(searched, {OWN: 1})
    except ValueError as error:
        liked = None
        told.append(str(error))
    candidate, own = (None, None) if liked is None else liked.choice
    if own is None or candidate is None:
        if liked is not None and liked.refusal is not None:
            told.append(liked.refusal.text)
        # The verdict of the config pads an uneven batch; for another batch it says nothing.
        if searched.sequences in (None, own_batch(effective)):
            verdict = effective.verdict(searched.device)
            told += [f"{path}: {why}" if path else why for path, why in verdict.gaps]
            return (own_batch(effective) or 0, verdict), next(iter(told), None)
        return None, next(iter(told), None)
    problems, runs = effective._problems(searched.device), not effective._fails(searched.device)
    verdict = Verdict(own.implied, searched.device, effective.devices, problems, runs=runs)
    return (candidate.sequences, verdict), None


def traffic_of(modelled: list[Modelled]) -> Table:
    """Payload by mesh axes."""
    return of_rows(_AXES, _payloads(modelled))


def _payloads(modelled: list[Modelled]) -> list[tuple[str, int]]:
    """Mesh axes with the payload of their collectives, the largest first."""
    sums: dict[str, int] = {}
    for own in modelled:
        for each in StepTraffic(own.implied).transfers:
            axes = ",".join(each.axes)
            sums[axes] = sums.get(axes, 0) + each.payload * each.count
    return sorted(sums.items(), key=lambda pair: -pair[1])


def planned(
    effective: EffectiveConfig,
    device: str | Device | None = None,
    *,
    sequences: int | None = None,
    tokens: float | None = None,
    margin: float | None = None,
    offloads: bool = True,
    state_dtype: str | None = None,
) -> Plan:
    """See `Config.plan`."""
    from hlofast import devices
    from hlofast.config._verdict import capacity

    kind = effective.instance.device if device is None else device
    if kind is None:
        raise ValueError(f"the kind of device is not known: {effective.instance.why}")
    target = devices.get(kind)
    if effective.devices is None:
        raise ValueError(f"the number of devices is not known: {effective.instance.why}")
    if capacity(target) is None:
        raise ValueError(f"the memory of {target.name} is not known")
    target.require("flops.bf16")
    if (failing := effective.config.front.failing(effective.config, target)) is not None:
        raise ValueError(failing)
    if tokens is not None and (not is_number(tokens) or not 0 < tokens <= float_info.max):
        raise ValueError(f"tokens must be a positive number, not {tokens!r}")
    if state_dtype is not None and state_dtype not in ITEM_SIZES:
        known = ", ".join(ITEM_SIZES)
        raise ValueError(f"state_dtype is not a type of weights: {state_dtype!r}; known: {known}")
    if margin is not None and (not is_number(margin) or not 0 <= margin < 1):
        raise ValueError(f"margin must be a number from 0 and below 1, not {margin!r}")
    if sequences is None:
        sequences = own_batch(effective)
        if sequences is None:
            raise ValueError(f"{no_batch(effective)}: give sequences (--batch)")
    elif not is_whole(sequences) or not 0 <= sequences <= LARGEST_SIZE:
        message = f"sequences must be a whole number from 0 to {LARGEST_SIZE:,}"
        raise ValueError(f"{message}, not {sequences!r}")
    searched = Searched(
        effective, target, effective.devices, sequences=int(sequences) or None,
        margin=MARGIN if margin is None else float(margin), offloads=offloads,
        state_dtype=state_dtype,
    )  # fmt: skip
    if tokens is not None:
        tokens = int(tokens) if is_whole(tokens) else float(tokens)
    return Plan(searched, tokens)
