"""Results of `hlofast config`: a config, a config on an instance, the differences of two."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._result import Fact, Note, Result, Section
from hlofast._text import finite, names
from hlofast.config._time import PARTS
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from hlofast.config._select import EffectiveConfig
    from hlofast.config._tree import Config

_INSTANCE = (
    Field("index", "rule", "The number of the mesh rule, from 0.", nullable=True),
    Field("name", "instance", "The name of the instance."),
    Field("text", "selector", "The regular expression of the rule.", nullable=True),
    Field("name", "device", "The kind of device.", nullable=True),
    Field("count", "devices", "Devices of the instance.", nullable=True),
    Field("count", "slices", "Slices of the instance."),
    Field("text", "mesh", "Mesh axes with more than one device.", nullable=True),
    Field("count", "accumulation_steps", "Gradient accumulation steps.",
          label="accumulation", nullable=True),
)  # fmt: skip
_IMPLIED = (
    Field("word", "status", "Whether the step fits in memory.", label="verdict"),
    Field("name", "binding_term", "The largest term of memory.",
          label="largest memory term", nullable=True),
    Field("bytes", "state_bytes", "Parameters and optimizer state.", label="state", nullable=True),
    Field("bytes", "hbm_lower_bound",
          "A lower bound of device memory, without short-lived values.",
          label="bound", nullable=True),
    Field("bytes", "expected_peak_bytes", "The expected peak when memory is tight.", label="peak",
          nullable=True),
    Field("bytes", "relaxed_peak_bytes", "The expected peak when memory is ample.",
          label="relaxed peak", nullable=True),
    Field("bytes", "capacity_bytes", "Memory of the device.", label="memory", nullable=True),
    Field("bytes", "excess_bytes", "Bytes by which the expected peak exceeds the memory.",
          label="excess", nullable=True),
    Field("bytes", "host_bytes", "Host memory per device.", label="host", nullable=True),
    Field("number", "sequences_per_device", "Sequences that a device holds at a time.",
          label="sequences/device", nullable=True),
    Field("count", "parameters", "Parameters of the model.", nullable=True),
    Field("flops", "executed", "FLOPs of a step on all devices.", label="executed FLOP",
          nullable=True),
    Field("flops", "recomputed", "Recomputed FLOPs.", label="recomputed FLOP",
          nullable=True),
    Field("flops", "model", "FLOPs without recomputation.", label="model FLOP",
          nullable=True),
    Field("flops", "attention", "FLOPs of attention.", label="attention FLOP", nullable=True),
    Field("flops", "six_n_t", "6 · parameters · tokens, the usual estimate.", label="6NT FLOP",
          nullable=True),
    Field("bytes", "gathered_bytes", "Weights gathered in a step.", label="gathered",
          nullable=True),
    Field("seconds", "compute_seconds", "Time of all FLOPs at the devices' peak.",
          label="compute at peak", nullable=True),
    Field("seconds", "communication_seconds", "The time of all collectives, one after another.",
          label="communication", nullable=True),
    Field("seconds", "step_bound_seconds",
          "A lower bound of the step: computation at the peak or collectives at line rate, "
          "whichever takes longer.",
          label="step bound", nullable=True),
    Field("seconds", "step_seconds", "The modelled time of a step.", label="step", nullable=True),
    Field("seconds", "step_low_seconds",
          "10th percentile of the expected step, from the model's errors on published steps.",
          label="step p10", nullable=True),
    Field("seconds", "step_high_seconds",
          "90th percentile of the expected step, from the model's errors on published steps.",
          label="step p90", nullable=True),
    Field("ratio", "mfu", "Model FLOPs utilisation of the modelled step.", label="MFU",
          nullable=True),
    Field("ratio", "mfu_bound", "Upper bound of the model FLOPs utilisation.",
          label="MFU at most", nullable=True),
)  # fmt: skip
_PROVENANCES = dict.fromkeys((field.name for field in _INSTANCE), "configuration") | {
    "capacity_bytes": "exact",
    "parameters": "exact",
    "compute_seconds": "bound",
    "step_bound_seconds": "bound",
}
_AXES = (Field("name", "axis", "An axis."), Field("count", "size", "Devices along it."))
_CHANGED = Field("count", "changes", "Values that the rule changes.")
_NOTED = Field("text", "noted", "Kinds of the notes on this config.", nullable=True)
_SHORT = (
    *("rule", "instance", "state_bytes", "hbm_lower_bound", "expected_peak_bytes"),
    *("capacity_bytes", "host_bytes", "status", "binding_term"),
    *("step_bound_seconds", "step_seconds", "mfu"),
)
_MEMORY = "Memory of one device, without short-lived values: the bound"
_PEAK = "Terms of the peak (those needed) and of the relaxed peak (all)"
_LISTED = ("rule", "instance", "devices", "mesh", "accumulation_steps", "changes", "noted")
_TRAFFIC = ("tensor_kind", "kind", "axes", "phase", "payload", "count", "total_payload", "tensor")
_DIFFERENCES = ("path", "before", "after", "change")


class Selected(Result):
    """A config on an instance: the changes of its mesh rule, and their implications."""

    __slots__ = ("_verdict", "effective")

    VERB = "config"
    FACTS = (*_INSTANCE, *_IMPLIED)

    def __init__(self, effective: EffectiveConfig) -> None:
        self.effective = effective
        """The config on the instance."""
        self._verdict = effective.verdict()

    @property
    def title(self) -> str:
        """The name of the instance."""
        return self.effective.instance.name

    def about(self) -> tuple[Any, ...]:
        """Values of the instance and of the selected rule."""
        own = self.effective
        mesh = None
        if own.mesh is not None:
            cut = [f"{axis}={size}" for axis, size in own.mesh.shape.items() if size > 1]
            mesh = ",".join(cut) or "one device"
        at = own.instance
        chosen = (own.rule, at.name, own.selector, at.device, own.devices, at.slices)
        return (*chosen, mesh, own.accumulation_steps)

    def implied(self) -> tuple[Any, ...]:
        """Values that the config implies on the instance."""
        verdict = self._verdict
        memory, flops = verdict.memory, verdict.flops
        values = (
            verdict.status,
            verdict.binding_term,
            memory.state_bytes,
            memory.hbm_lower_bound,
            memory.expected_peak_bytes,
            memory.relaxed_peak_bytes,
            verdict.capacity_bytes,
            verdict.excess_bytes,
            memory.host_bytes,
            verdict.sequences_per_device,
            flops.parameters,
            flops.executed,
            flops.recomputed,
            flops.model,
            flops.attention,
            flops.six_n_t,
            verdict.traffic.gathered_bytes,
            verdict.compute_seconds,
            verdict.communication_seconds,
            verdict.step_bound_seconds,
            verdict.step_seconds,
            verdict.step_low_seconds,
            verdict.step_high_seconds,
            verdict.mfu,
            verdict.mfu_bound,
        )
        return tuple(map(finite, values))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The instance, and the known values that the config implies on the instance."""
        values = (*self.about(), *self.implied())
        facts = []
        has_no_collectives = self._verdict.communication_seconds is None
        for field, value in zip(self.FACTS, values, strict=True):
            how = _PROVENANCES.get(field.name, "modelled")
            if field.name == "step_seconds" and has_no_collectives:
                how = "bound"
            if value is not None or field.name in ("devices", "mesh", "accumulation_steps"):
                facts.append(Fact(field, value, how))
        return tuple(facts)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes of the rule, then statements about the figures."""
        noted = [Note(row["kind"], row["text"]) for row in self.effective.notes]
        told = [Note("statement", text) for text in self._verdict.statements]
        return (*noted, *told)

    def sections(self) -> tuple[Section, ...]:
        """Changes of the rule, and the memory and traffic of one device."""
        verdict, changes = self._verdict, self.effective.changes
        memory = verdict.memory.table
        held = [row for row, size in enumerate(memory.values("bytes")) if size != 0]
        traffic = verdict.traffic.table.sort_by("total_payload", descending=True)
        shown = ("term", "place", "bytes", "provenance", "text")
        own = verdict.time
        time = of_rows(PARTS, ()) if own is None else own.table
        return (
            Section("changes", "Changes of the rule", changes, ("path", "before", "after", "why")),
            Section("memory", _MEMORY, memory.take(held), shown, is_whole=True),
            Section("peak_terms", _PEAK, verdict.memory.expected_terms, is_whole=True),
            Section("time", "Parts of the step", time, is_whole=True),
            Section("traffic", "Traffic of one device in a step", traffic, _TRAFFIC),
        )

    def every_section(self) -> tuple[Section, ...]:
        """All tables."""
        effective, memory = self.effective, self._verdict.memory
        shape = {} if effective.mesh is None else effective.mesh.shape
        shown = {own.name: own for own in self.sections()}
        # JSON includes terms of zero bytes.
        shown["memory"] = Section("memory", _MEMORY, memory.table)
        return (
            Section("mesh", "The mesh", of_rows(_AXES, shape.items())),
            *shown.values(),
            Section("replicated", "Large replicated parameters", memory.replicated),
            Section("unmodelled", "Not modelled", effective.unmodelled()),
            Section("noted", "Notes by value", effective.notes),
        )


class Described(Result):
    """A config, its mesh rules, and the config on several instances."""

    __slots__ = ("config", "selections")

    VERB = "config"
    FACTS = (
        Field("path", "file", "The file."),
        Field("count", "values", "Values in the config."),
        Field("text", "axes", "The names of the mesh axes, joined by `, `."),
        Field("count", "parameters", "Parameters of the model."),
        Field("count", "mesh_rules", "Mesh rules."),
        Field("name", "trainer", "The trainer that reads the config."),
        Field("number", "logged_tflops",
              "TFLOPs of a step per device, as the trainer logs them; absent if it logs none.",
              label="logged TFLOPs", nullable=True),
        Field("number", "logged_weight_tflops", "Logged TFLOPs of matmuls with weights.",
              label="logged weight TFLOPs", nullable=True),
        Field("number", "logged_attention_tflops", "Logged TFLOPs of attention.",
              label="logged attention TFLOPs", nullable=True),
    )  # fmt: skip

    def __init__(self, config: Config, selections: Iterable[Selected] = ()) -> None:
        self.config = config
        """The config."""
        self.selections = tuple(selections)
        """The config on instances."""

    @property
    def title(self) -> str:
        """The class, or the file."""
        return self.config.klass or self.config.file or "config"

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Basic facts about the config."""
        axes = self.config.get("mesh_axis_names")
        named = axes.to_python() if axes is not None and not isinstance(axes, (str, bytes)) else []
        values = (
            self.config.file,
            sum(1 for _ in self.config.leaves()),
            ", ".join(map(str, named if isinstance(named, list) else [])),
            self.config.parameter_count(),
            len(self.config.rules()),
            self.config.front.name,
            *(self.config.front.logged(self.config) or (None, None, None)),
        )
        facts = map(Fact, self.FACTS, values)
        return tuple(fact for fact in facts if fact.value is not None or not fact.field.nullable)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of all instances.

        Equal notes are merged into one note that lists its instances.
        """
        told: dict[tuple[bool, str, str], dict[str, None]] = {}
        for selection in self.selections:
            for note in selection.notes:
                key = (note.code == "statement", note.code, note.text)
                # An instance name that may mean several numbers of devices occurs several times.
                told.setdefault(key, {})[selection.title] = None
        ordered = sorted(told.items(), key=lambda own: own[0][0])
        return tuple(
            Note(code, f"{text} ({names(list(instances))})")
            for (_, code, text), instances in ordered
        )

    def sections(self) -> tuple[Section, ...]:
        """All instances, the values that the config implies on them, and the rules as written."""
        chosen = [
            (*own.about(), len(own.effective.changes), _kinds(own)) for own in self.selections
        ]
        implied = [(*own.about()[:2], *own.implied()) for own in self.selections]
        table = of_rows((*_INSTANCE, _CHANGED, _NOTED), chosen)
        figures = of_rows((*_INSTANCE[:2], *_IMPLIED), implied)
        title = "Implied figures, per device"
        rules = ("rule", "selector", "mesh_shape", "modifiers")
        settings = self.config.settings()
        origins = settings.values("origin")
        # Where all values stand in one file, their places say nothing.
        kept = [] if set(origins) <= {"file"} else [
            row
            for kind in ("override", "environment", "file", "model")
            for row, origin in enumerate(origins)
            if origin == kind
        ]  # fmt: skip
        return (
            Section("selections", "All rules", table, _LISTED, is_whole=True),
            Section("implied", title, figures, _SHORT, is_whole=True),
            Section("settings", "Values that are not defaults", settings.take(kept)),
            Section("rules", "Rules as written", self.config.rules(), rules),
        )


class Compared(Result):
    """The differences between two configs."""

    __slots__ = ("after", "before")

    VERB = "config"
    FACTS = (
        Field("count", "changed", "Values that differ between the two configs."),
        Field("count", "added", "Values that only the second has."),
        Field("count", "removed", "Values that only the first has."),
    )

    def __init__(self, before: Config, after: Config) -> None:
        self.before = before
        """The first config."""
        self.after = after
        """The second config."""

    @property
    def title(self) -> str:
        """The files."""
        return f"{self.before.file} and {self.after.file}"

    @property
    def is_empty(self) -> bool:
        """Whether there is no difference."""
        return not len(self.before.diff(self.after))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Numbers of values that differ."""
        kinds = self.before.diff(self.after).values("change")
        return tuple(Fact(field, kinds.count(field.name)) for field in self.FACTS)

    def sections(self) -> tuple[Section, ...]:
        """The values that differ."""
        differences = self.before.diff(self.after)
        return (Section("differences", "Differences", differences, _DIFFERENCES),)


def _kinds(selection: Selected) -> str | None:
    """The kinds of the notes, except `dead-values`."""
    kinds: Sequence[str] = selection.effective.notes.values("kind")
    return ", ".join(dict.fromkeys(kind for kind in kinds if kind != "dead-values")) or None
