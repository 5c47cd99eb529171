"""`ProfileVerdict`: the measured step of a profile's main program, and contents of the profile."""

from __future__ import annotations

from hlofast import _text, _verdict_measured
from hlofast._core import Field
from hlofast._profile_summary import ProfileSummary
from hlofast._result import Fact, Note, Result, Section
from hlofast._time import Time
from hlofast._verdict import COMMANDS, DETAILS, MEASURED_FIRST, shell
from hlofast._verdict_figures import FIGURES
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hlofast._core import Module
    from hlofast._profile import Measured
    from hlofast._profiles import Profile

SHOWN = 3
"""Default number of instructions, sources and programs shown as text."""
_FIELDS = {field.name: field for field in (*FIGURES.values(), *DETAILS)}
_MODELLED = ("bound", "mfu", "hfu", "exposed", "exposed_share", "exposed_axes")
_OWN = (
    Field("name", "program", "The program with the most device time whose module is known."),
    Field("seconds", "modelled_step", "Modelled time of the step.", label="step time"),
    Field("name", "device", "The chip of MFU and modelled figures."),
    Field("text", "mesh", "The mesh whose axes are named."),
    Field("text", "slowest_device", "The device with the longest median run.",
          label="slowest device"),
    Field("ratio", "joined_share",
          "Share of device time in events that name an instruction of the module.",
          label="matched to module"),
)  # fmt: skip
_PAIRS = _verdict_measured.MODELLED | {"measured_step": "modelled_step"}
_INSTRUCTIONS = ("instruction", "measured_seconds", "share", "phase", "source")


class ProfileVerdict(Result):
    """The measured step of a profile's main program, and contents of the profile.

    Shown by `hlofast PROFILE`.
    """

    VERB = "verdict"
    FACTS = (
        *_OWN,
        *(_FIELDS[name] for name in (*MEASURED_FIRST, *_MODELLED)),
        *ProfileSummary.FACTS,
    )

    def __init__(
        self,
        profile: Profile,
        measured: Measured | None,
        *,
        path: str = "",
        options: Sequence[str] = (),
        reason: str = "",
    ) -> None:
        self.profile = profile
        """The profile."""
        self.measured = measured
        """What was measured of the main program; None without a module of it."""
        self._summary = profile.summary(path)
        self._path = path or profile.source or "PROFILE"
        self._options = tuple(options)
        self._reason = reason

    @property
    def title(self) -> str:
        """The file or folder, or else the first host."""
        return self._summary.title

    @property
    def _module(self) -> Module | None:
        return None if self.measured is None else self.measured.module

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Program, step time, parts, utilization; then contents of the profile."""
        return (*self._measured_facts(), *self._summary.facts)

    def _measured_facts(self) -> Iterator[Fact]:
        measured = self.measured
        if measured is None:
            return
        own = {field.name: field for field in _OWN}
        known = {fact.name: fact for fact in measured.facts}
        yield known["program"]
        if "device" in known:
            yield known["device"]
        mesh = measured.module.context.mesh
        yield Fact(own["mesh"], None if mesh is None else str(mesh))
        figures = {figure.key: figure for figure in _verdict_measured.figures(measured)}
        facts = {key: figure.fact_of(_FIELDS[key]) for key, figure in figures.items()}
        facts |= {fact.name: fact for fact in _verdict_measured.details(measured, _FIELDS)}
        yield from (facts[name] for name in MEASURED_FIRST if name in facts)
        if measured.modelled is not None:
            yield from _modelled(measured.modelled)
        yield from (known[name] for name in ("slowest_device", "joined_share") if name in known)

    @property
    def shown_facts(self) -> tuple[tuple[str, str], ...]:
        """The facts as text: measured and modelled on one line, the contents of the profile too."""
        facts = [fact for fact in self._measured_facts() if fact.value is not None]
        held = {fact.name: fact.value for fact in self._summary.facts}
        nouns = ("host", "device", "program", "launch", "step", "event", "module")
        plurals = {noun: f"{noun}es" if noun.endswith("ch") else f"{noun}s" for noun in nouns}
        parts = [
            _text.counted(held[plural], noun, plural)
            for noun, plural in plurals.items()
            if held.get(plural)
        ]
        if held.get("duration") is not None:
            parts.append(_text.seconds(held["duration"]))
        shown = [
            *_verdict_measured.beside(facts, self.FACTS, _PAIRS),
            ("profile", ", ".join(parts)),
        ]
        for name in ("run", "chips"):
            if held.get(name):
                shown.append((name, str(held[name])))
        return tuple(shown)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Gaps of the profile, and why nothing is measured if so."""
        own = () if self.measured is None else self.measured.notes
        ran = bool(len(self.profile.programs))
        unread = (Note("no-module", self._reason),) if self._reason and ran else ()
        rest = tuple(note for note in self._summary.notes if note.code != "no-module")
        return (*unread, *own, *rest)

    def sections(self) -> tuple[Section, ...]:
        """Instructions and source lines with the most time, or programs; further commands."""
        sections = [own for own in self.every_section() if len(own.table)]
        if self.measured is not None:
            sections = [own for own in sections if own.name != "program_times"]
        return tuple(sections)

    def every_section(self) -> tuple[Section, ...]:
        """All tables."""
        named = {section.name: section for section in self._summary.every_section()}
        lines = [(what, _text.Whole(line)) for what, line in self._commands()]
        return (
            *self._longest(),
            named["program_times"],
            named["messages"],
            Section(
                "commands",
                "Further commands",
                of_rows(COMMANDS, self._commands()),
                paragraphs=[("Further commands", lines)],
            ),
        )

    def _longest(self) -> Iterator[Section]:
        if self.measured is None:
            return
        table = self.measured.table()
        title = "Instructions by measured time"
        yield Section("instructions", title, table, _INSTRUCTIONS, figure="measured_seconds")
        table = self.measured.by("source")
        shown = ["source", "instructions", "measured_seconds"]
        if self.measured.modelled is not None:
            shown += ["modelled_seconds", "ratio"]
        yield Section("sources", "Source lines by measured time", table, shown)

    def _commands(self) -> list[tuple[str, str]]:
        path, options = self._path, self._options
        dump = [] if self.measured is not None else ["DUMP"]
        commands = [
            ("all measured figures", shell("hlofast", "profile", path, *dump, *options)),
            ("contents of the profile", shell("hlofast", "summary", path)),
        ]
        beside = "measured and modelled figures, and what to change"
        if self.measured is None or not len(self.profile.module_table):
            words = ("hlofast", "--profile", path, *options, "DUMP")
        else:
            words = ("hlofast", path, "--module", self.measured.module.name, *options)
        commands.insert(1, (beside, shell(*words)))
        return commands

    def __repr__(self) -> str:
        return f"<ProfileVerdict of {self.title}: {self.measured or 'nothing measured'}>"


def _modelled(time: Time) -> Iterator[Fact]:
    """The modelled figures that stand beside measured ones."""
    known = {fact.name: fact for fact in time.facts}
    field = next(field for field in _OWN if field.name == "modelled_step")
    yield Fact(field, time.step_seconds, known["step_seconds"].provenance)
    for name in ("bound", "mfu", "hfu"):
        if name in known:
            yield Fact(_FIELDS[name], known[name].value, known[name].provenance)
    waits = sum(time.exposed.values())
    yield Fact(_FIELDS["exposed"], waits, "modelled")
    if waits and time.step_seconds:
        yield Fact(_FIELDS["exposed_share"], waits / time.step_seconds, "modelled")
        axes = [f"{axes} {_text.seconds(own)}" for axes, own in time.exposed.items() if own]
        yield Fact(_FIELDS["exposed_axes"], ", ".join(axes), "modelled")
