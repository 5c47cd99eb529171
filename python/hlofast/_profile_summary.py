"""`ProfileSummary`: what a profile holds."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._result import Fact, Note, Result, Section
from hlofast.table import Table, of_rows

TYPE_CHECKING = False  # The command line summarises; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hlofast._profiles import Profile

_MESSAGES = (
    Field("name", "host", "The host."),
    Field("word", "kind", "Severity: error or warning."),
    Field("text", "message", "The profiler's message."),
)
_SHOWN = {
    "devices": ("device", "host", "chip", "events", "busy"),
    "program_times": (
        "program",
        "program_id",
        "launches",
        "launched",
        "events",
        "busy",
        "has_module",
    ),
    "profile_modules": ("label", "host", "bytes"),
    "lines": ("plane", "line", "host", "events", "duration", "read_as"),
}


class ProfileSummary(Result):
    """What a profile holds: hosts, devices, programs, steps, modules, lines, messages.

    Shown by `hlofast summary PROFILE` and `hlofast PROFILE`.
    """

    __slots__ = ("_path", "profile")

    VERB = "summary"
    FACTS = (
        Field("text", "kind", "The kind of file or folder."),
        Field("text", "run", "The recording in the folder that was read.", nullable=True),
        Field("count", "hosts", "Hosts with a file."),
        Field("count", "devices", "Devices that ran instructions."),
        Field("text", "chips", "The chips as the profiler names them.", nullable=True),
        Field("seconds", "duration", "Time from the first start to the last end on devices.",
              nullable=True),
        Field("count", "steps", "Number of marked steps."),
        Field("seconds", "median_step", "Median length of a marked step.", label="median step",
              nullable=True),
        Field("count", "programs", "Programs that ran."),
        Field("count", "launches", "Marked executions of programs on devices."),
        Field("count", "events", "Events of instructions, kernels and copies on devices."),
        Field("count", "modules", "HLO modules in the files."),
        Field("count", "all_events", "Events of all planes.", label="events in the files"),
        Field("count", "errors", "Errors of the recording."),
        Field("count", "warnings", "Warnings of the profiler."),
    )  # fmt: skip

    def __init__(self, profile: Profile, path: str = "") -> None:
        self.profile = profile
        """The profile."""
        self._path = path

    @property
    def title(self) -> str:
        """The file or folder, or else the first host."""
        return self._path or ", ".join(self.profile.hosts[:1]) or "profile"

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Counts of hosts, devices, programs, steps and modules; lengths of time."""
        profile = self.profile
        chips = {chip for chip in profile.devices.values("chip") if chip is not None}
        numbers, step = _steps(profile)
        values = {
            "kind": "profile",
            "run": profile.run,
            "hosts": len(profile.hosts),
            "devices": len(profile.devices),
            "chips": ", ".join(sorted(chips)) or None,
            "duration": profile.seconds,
            "steps": numbers,
            "median_step": step,
            "programs": len(profile.programs),
            "launches": len(profile.launches),
            "events": sum(profile.devices.values("events")),
            "modules": len(profile.module_table),
            "all_events": sum(profile.lines.values("events")),
            "errors": len(profile.errors),
            "warnings": len(profile.warnings),
        }
        fields = {field.name: field for field in self.FACTS}
        shown = [
            name for name, value in values.items()
            if value is not None and (value or name not in ("errors", "warnings"))
        ]  # fmt: skip
        return tuple(Fact(fields[name], values[name]) for name in shown)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What is missing in the profile."""
        notes = []
        profile = self.profile
        if not len(profile.devices):
            notes.append(Note("no-events", "the profile holds no event of an instruction"))
        lacking = [
            row["program"] for row in profile.programs if row["events"] and not row["has_module"]
        ]
        if lacking:
            names = ", ".join(str(name) for name in lacking[:3])
            more = f" and {len(lacking) - 3:,} more" if len(lacking) > 3 else ""
            notes.append(
                Note(
                    "no-module",
                    f"the modules of {names}{more} are not in the profile; give the dump of the "
                    "program as well",
                    programs=len(lacking),
                )
            )
        return tuple(notes)

    def sections(self) -> tuple[Section, ...]:
        """Devices, programs by busy time, modules by size, lines by events, messages."""
        profile = self.profile
        messages = [(host, "error", text) for host, text in profile.errors]
        messages += [(host, "warning", text) for host, text in profile.warnings]
        tables: Sequence[tuple[str, str, Table]] = (
            ("devices", "Devices", profile.devices),
            ("program_times", "Programs by busy time", _sorted(profile.programs, "busy")),
            ("profile_modules", "Modules in the profile", _sorted(profile.module_table, "bytes")),
            ("lines", "Lines by events", _sorted(profile.lines, "events")),
            ("messages", "Messages of the profiler", of_rows(_MESSAGES, messages)),
        )
        return tuple(Section(name, title, table, _SHOWN.get(name)) for name, title, table in tables)

    def __repr__(self) -> str:
        return f"<ProfileSummary of {self.title}: {self.profile!r}>"


def _sorted(table: Table, name: str) -> Table:
    return table.sort_by(name, descending=True)


def _steps(profile: Profile) -> tuple[int, float | None]:
    """Returns how many steps are marked, and the median length of a step on one device.

    The steps of devices count if there are any: those of the host may end before the device does.
    """
    rows = list(profile.steps)
    own = [row for row in rows if row["device"] is not None] or rows
    lengths = sorted(row["duration"] for row in own)
    numbers = {row["number"] for row in own}
    count = len(numbers - {None}) or len(own)
    if not lengths:
        return count, None
    middle = len(lengths) // 2
    return count, (lengths[middle] + lengths[-1 - middle]) / 2
