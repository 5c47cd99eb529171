"""`Verdict`: the key figures of a module, what to change and where to look next.

The head of the report page shows the same figures and findings.
"""

from __future__ import annotations

from hlofast import _text as output
from hlofast import _verdict_measured
from hlofast._collectives import MESH_SOURCES
from hlofast._collectives_notes import contradiction
from hlofast._context import device_for, told_in
from hlofast._core import Field
from hlofast._cost_facts import assumed_flops
from hlofast._device_notes import about_backend, assumed_device
from hlofast._memory import quiet
from hlofast._memory_account import hbm_of
from hlofast._profile import measured_with
from hlofast._result import Fact, Note, Result, Section
from hlofast._shares import labelled, refusal, shares
from hlofast._verdict_figures import (
    FIGURES,
    UNKNOWN_DEVICE,
    UNKNOWN_MESH,
    Figure,
    figures,
)
from hlofast._verdict_statements import Statement, has_unknown_policies, statements_of
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hlofast._context import MeshLike
    from hlofast._core import Mesh
    from hlofast._memory import Memory
    from hlofast._module import Module
    from hlofast._profile import Measured
    from hlofast._time import Time
    from hlofast.devices import Device

SHOWN = 3
"""Default number of findings shown as text."""

_ABOUT = (
    Field("word", "status", "The compilation stage."),
    Field("word", "backend", "The backend that the module is compiled for."),
    Field("count", "instructions", "Instructions in the text, each counted once."),
    Field("name", "device", "The device that the module is timed on."),
    Field("text", "mesh", "The mesh whose axes are named, and its source."),
)
DETAILS = (
    Field("text", "bound", "The resource that takes most of the step.", label="bound by"),
    Field("ratio", "hfu",
          "Hardware FLOPs utilisation: MFU with recomputation and copied matmuls.", label="HFU"),
    Field("text", "measured_bound", "The largest part of the measured step.",
          label="measured bound"),
    Field("ratio", "measured_hfu", "HFU of the measured step.", label="measured HFU"),
    Field("ratio", "measured_exposed_share",
          "Measured exposed communication divided by the measured step time.",
          label="measured exposed share"),
    Field("text", "measured_exposed_axes", "Measured exposed communication by mesh axis.",
          label="measured exposed by axis"),
    Field("ratio", "measured_idle_share", "Idle time divided by the measured step time.",
          label="idle share"),
    Field("bytes", "hbm", "Memory that a program may use on a device.", label="HBM"),
    Field("ratio", "hbm_share", "The peak divided by the device's memory.", label="peak / HBM"),
    Field("bytes", "fast_peak", "The peak in fast on-chip memory.", label="fast memory peak"),
    Field("bytes", "host_peak", "The peak in the host's memory.", label="host memory peak"),
    Field(
        "ratio",
        "exposed_share",
        "Exposed communication divided by the step time.",
        label="exposed share",
    ),
    Field("text", "exposed_axes", "Exposed communication by mesh axis.", label="exposed by axis"),
)  # fmt: skip
OF_MODULE = (
    *("measured_step", "measured_mfu", "measured_exposed", "measured_idle"),
    *("step", "mfu", "peak", "exposed", "flops", "bytes"),
)
"""The keys of the figures of a module."""
MEASURED_FIRST = (
    *("measured_step", "measured_bound", "measured_mfu", "measured_hfu"),
    *("measured_exposed", "measured_exposed_share", "measured_exposed_axes"),
    *("measured_idle", "measured_idle_share"),
)
"""The measured facts in their order."""
_FINDINGS = (
    Field("word", "code", "The kind of finding."),
    Field("text", "stake", "Cost of the finding in a step.", nullable=True),
    Field("text", "found", "What was found."),
    Field("text", "remedy", "What to change.", nullable=True),
    Field("path", "place", "Source file and line.", nullable=True),
    Field("text", "command", "The command that shows more."),
)
COMMANDS = (
    Field("text", "question", "What the command shows."),
    Field("text", "command", "The command."),
)
_FURTHER: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("time by source line", "time", ("--by", "source")),
    ("memory at the peak by scope", "memory", ("--by", "scope")),
    ("collectives by mesh axis", "collectives", ()),
    ("all results as an HTML page", "report", ("-o", "report.html")),
)


class Verdict(Result):
    """Step time, MFU, peak memory and exposed communication of a module, and what to change.

    Made by `Module.verdict`. `path` and `options` are the file and the context options in suggested
    commands.
    """

    VERB = "verdict"
    FACTS = (
        *_ABOUT,
        *(FIGURES[name] for name in OF_MODULE),
        *DETAILS,
    )

    def __init__(
        self,
        module: Module,
        *,
        path: str | None = None,
        options: Sequence[str] | None = None,
    ) -> None:
        self.module = module
        """The module."""
        self._command = (path or module.path or "FILE", options)
        self.summary = module.summary()
        self.cost = module.cost()
        self.collectives = module.collectives()
        self.shares = shares(module)
        """The share of one device; None if shapes already are the shapes of one device."""
        self.time: Time | None = None
        """The time model.

        None if the device is unknown, or if shapes cover all devices together.
        """
        self.no_time = UNKNOWN_DEVICE
        if self.shares is not None:
            self.no_time = refusal(module)
        elif module.context.device is not None:
            self.time = module.time()
        self.findings = module.lint()
        self.remat = module.remat()
        self.memory: Memory | None = None
        """The live ranges; None if memory cannot be analysed, with the reason in `no_memory`."""
        self.no_memory = ""
        try:
            self.memory = quiet(module)
            self.memory.xla  # noqa: B018 - raises where memory cannot be analysed.
        except (ValueError, OverflowError) as error:
            self.memory = None
            self.no_memory = str(error)
        self.measured: Measured | None = measured_with(module, self.time)
        """What the context's profile measured; None without one that has the module."""
        self.figures: tuple[Figure, ...] = tuple(figures(self))
        """The figures that come first; measured ones before modelled ones."""
        if self.measured is not None:
            modelled = _verdict_measured.renamed(self.figures)
            self.figures = (*_verdict_measured.figures(self.measured), *modelled)

    @property
    def hbm(self) -> float | None:
        """Bytes of memory that a program may use on the device; None if unknown."""
        known = self._hbm()
        return None if known is None else known[0]

    def _hbm(self) -> tuple[int, str] | None:
        return hbm_of(self.module, device_for(self.module, None))

    @property
    def mesh(self) -> Mesh | None:
        """The mesh whose axes are named; None if unknown."""
        return self.collectives.mesh

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What to change: a peak that does not fit, findings of `lint`, advice from `remat`.

        Those with seconds at stake come first, largest first.
        """
        return statements_of(self)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Facts about the module, then the figures with their details."""
        device, mesh = self.module.context.device, self.mesh
        source = self.collectives.mesh_source or "given"
        origin = MESH_SOURCES[source] if source == "given" else f"from {MESH_SOURCES[source]}"
        values = {
            "status": self.summary.status,
            "backend": self.summary.backend,
            "instructions": self.summary.values["instructions"],
            "device": None if device is None else device.name,
            "mesh": None if mesh is None else f"{mesh} ({origin})",
        }
        known = {figure.key: figure.fact_of(FIGURES[figure.key]) for figure in self.figures}
        facts = labelled(self.module, tuple(known.values()), ("flops", "bytes"), ("peak",))
        figures = dict(zip(known, facts, strict=True))
        details = {fact.name: fact for fact in self._details(figures)}
        order = (
            *(MEASURED_FIRST if self.measured is not None else ()),
            *("step", "bound", "mfu", "hfu"),
            *(("measured_step", "measured_mfu") if self.measured is None else ()),
            *("peak", "hbm", "hbm_share", "fast_peak", "host_peak"),
            *("exposed", "exposed_share", "exposed_axes"),
            *("flops", "bytes"),
        )
        every = {**figures, **details}
        return (
            *(Fact(field, values[field.name]) for field in _ABOUT),
            *(every[name] for name in order if name in every),
        )

    def _details(self, figures: dict[str, Fact]) -> Iterator[Fact]:
        fields = {field.name: field for field in DETAILS}
        time = self.time
        if time is not None:
            yield Fact(fields["bound"], time.bound, "modelled")
            if figures["mfu"].value is not None:
                yield Fact(fields["hfu"], time.utilization.hfu, figures["mfu"].provenance)
            waits = [
                f"{axes} {output.seconds(value)}" for axes, value in time.exposed.items() if value
            ]
            if waits:
                part = time.step_seconds and sum(time.exposed.values()) / time.step_seconds
                yield Fact(fields["exposed_share"], part, "modelled")
                yield Fact(fields["exposed_axes"], ", ".join(waits), "modelled")
        told = self.cost.step_seconds
        if self.measured is not None:
            yield from _verdict_measured.details(self.measured, fields)
        elif told is not None:
            yield Fact(FIGURES["measured_step"], told, "configuration")
            if self.cost.peak_flops is not None:
                used = self.cost.mfu()
                how = "bound" if used.is_lower_bound else "modelled"
                yield Fact(FIGURES["measured_mfu"], used.mfu, how)
        known, peak = self._hbm(), figures["peak"].value
        if known is not None:
            hbm, how = known
            yield Fact(fields["hbm"], hbm, how)
            if peak is not None and hbm:
                yield Fact(fields["hbm_share"], peak / hbm, "modelled")
        memories = () if self.memory is None else self.memory.facts
        for fact in memories:
            if fact.name in ("fast_peak", "host_peak"):
                yield Fact(fields[fact.name], fact.value, fact.provenance)

    @property
    def shown_facts(self) -> tuple[tuple[str, str], ...]:
        """The facts as text: measured and modelled figures on one line each."""
        return _verdict_measured.beside(self.facts, self.FACTS)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Unknown figures, and the option that each needs; gaps of the profile."""
        reasons: dict[str, list[str]] = {}
        for figure in self.figures:
            if figure.value is None:
                label = FIGURES[figure.key].label
                if self.measured is not None and figure.key in ("step", "exposed"):
                    label = f"modelled {label}"
                reasons.setdefault(figure.note, []).append(label)
        if self.mesh is None and len(self.collectives):
            reasons.setdefault(UNKNOWN_MESH, []).append("mesh axes")
        if self.hbm is None and self.module.context.device is not None:
            reasons.setdefault("the device has no memory figure: give --hbm 16GiB", []).append(
                "HBM"
            )
        has_step = self.cost.step_seconds is not None and self.measured is None
        if has_step and self.cost.peak_flops is None:
            reasons.setdefault(UNKNOWN_DEVICE, []).append("measured MFU")
        measured = next((fact.value for fact in self.facts if fact.name == "measured_mfu"), None)
        wrong: tuple[Note, ...] = ()
        if measured is not None and measured > 1:
            text = "the measured MFU is above 100 %: the step time or the device is wrong"
            wrong = (Note("above-peak", text),)
        if (against := contradiction(self.collectives)) is not None:
            wrong = (*wrong, against)
        context = self.module.context
        wrong = (*wrong, *assumed_device(context), *about_backend(self.module, context.device))
        wrong = (*wrong, *self._unfused(), *assumed_flops(self.cost))
        if (no_names := self.module.summary()._no_names) is not None:
            wrong = (*wrong, Note("no-op-names", no_names))
        if self.measured is not None:
            wrong += tuple(_verdict_measured.notes(self.measured))
        if self.memory is not None and (before := self.memory.peak_before) is not None:
            from hlofast._policy_fields import error_of

            wrong = (*wrong, Note("policy-error", error_of(before)))
        return wrong + tuple(
            Note("unknown", f"unknown: {', '.join(labels)}; {reason}")
            for reason, labels in reasons.items()
        )

    def _unfused(self) -> Iterator[Note]:
        """A note on what HBM traffic and times before fusion are worth."""
        summary = self.module.summary()
        if summary.is_unfused:
            timed = "" if self.time is None else ", so its step is shorter and its MFU higher"
            yield Note("unfused", f"{summary._fewer_bytes}{timed}")

    def sections(self, top: int | None = SHOWN) -> tuple[Section, ...]:
        """The first findings, each with a command that shows more, then further commands."""
        rows = [
            (
                statement.code,
                statement.stake or None,
                statement.text,
                statement.remedy or None,
                statement.place or None,
                self.command(
                    statement.verb,
                    *(("--only", statement.code) if statement.verb == "lint" else ()),
                ),
            )
            for statement in self.statements
        ]
        shown = rows[:top]
        lines = []
        for code, stake, text, remedy, _, command in shown:
            lines += [
                (code + (f" ({stake})" if stake else ""), remedy or text),
                ("  more", output.Whole(command)),
            ]
        more = "" if len(shown) == len(rows) else f" ({len(shown)} of {len(rows):,})"
        missing = () if self.module.context.device is not None else ("--device", "NAME")
        further = [
            (what, self.command(verb, *(missing if verb == "time" else ()), *rest))
            for what, verb, rest in _FURTHER
        ]
        if self.measured is not None:
            further.insert(0, ("all measured figures", self._profile_command()))
        whole = [(what, output.Whole(line)) for what, line in further]
        return (
            Section(
                "findings",
                "What to change",
                of_rows(_FINDINGS, rows),
                paragraphs=[(f"What to change{more}", lines or [("", self.nothing)])],
            ),
            Section(
                "commands",
                "Further commands",
                of_rows(COMMANDS, further),
                paragraphs=[("Further commands", whole)],
            ),
        )

    @property
    def nothing(self) -> str:
        """What was judged where there is nothing to change."""
        if self.module.context.device is None:
            return "no findings; without a device, times and memory are not evaluated"
        if not self.module.is_scheduled:
            return (
                "no findings; whether another checkpoint policy is faster is evaluated on the text "
                "after optimisation only"
            )
        if has_unknown_policies(self):
            return (
                "no findings; whether a checkpoint policy would help is not known, since those of "
                "this step are not modelled: hlofast remat says why"
            )
        return "nothing to change: no lint findings, and no known policy would help"

    def command(self, verb: str, *rest: str) -> str:
        """Returns the command that runs `verb` on this module in the same context."""
        return shell("hlofast", verb, self._command[0], *self._options(), *rest)

    def _options(self) -> Sequence[str]:
        """The options that describe the context."""
        options = self._command[1]
        return _options(self.module) if options is None else options

    def _profile_command(self) -> str:
        """Returns the command that shows what was measured."""
        words = list(self._options())
        at = words.index("--profile") if "--profile" in words else -1
        recording = "PROFILE" if at < 0 else words[at + 1]
        rest = words if at < 0 else words[:at] + words[at + 2 :]
        return shell("hlofast", "profile", recording, self._command[0], *rest)

    def __reduce__(self) -> tuple[object, ...]:
        from functools import partial

        path, options = self._command
        return partial(type(self), path=path, options=options), (self.module,)

    def __repr__(self) -> str:
        return (
            f"<Verdict of {self.title}: {', '.join(f'{f.label} {f.text}' for f in self.figures)}>"
        )


def shell(*words: str) -> str:
    """Returns the words as a shell command, quoted where a shell needs it."""
    plain = frozenset("%+,-./:=@_…")
    return " ".join(
        word if word and all(c.isalnum() or c in plain for c in word) else _quoted(word)
        for word in words
    )


def _quoted(word: str) -> str:
    # The same as shlex.quote, whose import takes longer than reading a small dump.
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _options(module: Module) -> list[str]:
    """Returns the context that was given for the module, as options."""
    told = told_in(module)
    values: dict[str, object] = {}
    if told is not None:
        values = {
            "--mesh": told.mesh,
            "--hosts": told.hosts,
            "--slices": told.slices,
            "--device": None if told.device is None else told.device.name,
            "--hbm": told.hbm,
            "--step-time": told.step_seconds,
            "--frame": told.frame,
            "--profile": None if told.profile is None else told.profile.source,
        }
    pairs = [(name, str(value)) for name, value in values.items() if value is not None]
    if told is not None:
        pairs += [("--library", name) for name in told.libraries or ()]
    merged = ["--merge-layers"] if told is not None and told.merge_layers else []
    return [word for pair in pairs for word in pair] + merged


def verdict(module: Module, device: str | Device | None, mesh: MeshLike | None) -> Verdict:
    """`Module.verdict`."""
    if device is not None or mesh is not None:
        module = module.with_context(device=device, mesh=mesh)
    return Verdict(module)
