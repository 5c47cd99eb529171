"""`Trace`: the simulated schedule of a module, as a file for timeline viewers."""

from __future__ import annotations

import os

from hlofast import _core, _text, _time, devices
from hlofast._core import Field
from hlofast._files import replacing
from hlofast._result import Fact, Note, Result, Section
from hlofast._shares import labelled
from hlofast._units import read_seconds
from hlofast.table import Table, of_rows

TYPE_CHECKING = False  # The command line writes traces; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hlofast._measurements import Measurements
    from hlofast._module import Module
    from hlofast._time import Time
    from hlofast._trace_measured import Timeline

PROCESS = "measured"
"""The process of the measured tracks."""
_MEASURED_TRACKS = (
    Field("name", "track", "The profiler's track, prefixed with the device if there are several."),
    Field("count", "slices", "Events of the run of median length.", adds_up=True),
    Field("seconds", "seconds", "Seconds of the outermost events."),
)
FORMATS = ("json", "pftrace")
"""Chrome's Trace Event Format, and Perfetto's protobuf."""


def format_of(path: str) -> tuple[str, bool]:
    """Returns format and compression from a file name; raises `ValueError` for unknown endings."""
    is_compressed = path.endswith(".gz")
    name = path.removesuffix(".gz")
    for form in FORMATS:
        if name.endswith(f".{form}"):
            return form, is_compressed
    raise ValueError(
        f"{path}: the name of a trace must end in .json, .pftrace, .json.gz or .pftrace.gz"
    )


class Trace(Result):
    """The simulated schedule of a module: `Module.trace()`.

    Tracks are `program` (nested loops, iterations and calls); `compute`, `memory` (with waiting
    for copies) and `other`, which share the one compute unit; `exposed` by mesh axes (waiting for
    collectives); `links` by mesh axes (collectives in flight); and `copies`. Seconds of `compute`,
    `memory`, `other` and `exposed` add up to the step time. A counter shows live bytes, as counted
    by `Module.memory()`.

    The first iterations of each loop are shown one by one, as many as fit. The remaining iterations
    are one slice per track with their total duration, so that every track adds up to the seconds of
    `time`.

    With a profile of the module, a second process, `measured`, has the events of the run of median
    length on each device, one track per track of the profiler; overlapping events take further
    tracks.
    """

    __slots__ = ("_data", "_measured", "_written", "live_bytes_unknown", "module", "time")

    VERB = "trace"
    FACTS = (
        Field("path", "written", "The file that was written last."),
        Field("word", "format", "Format of the file: json (Chrome) or pftrace (Perfetto)."),
        Field("flag", "is_compressed", "Whether the file is compressed.", label="compressed"),
        *(
            field
            for field in _time.Time.FACTS
            if field.name in ("device", "mesh", "step_seconds", "bound")
        ),
        Field("bytes", "live_peak", "Maximum of live bytes over the schedule."),
        Field("count", "not_played", "Calls shown as one slice to limit the size of the trace.",
              label="collapsed calls"),
    )  # fmt: skip

    def __init__(self, time: Time, data: _core.TraceData, live_bytes_unknown: str | None) -> None:
        self.time = time
        """The modelled time that the trace shows."""
        self.module = time.module
        """The module."""
        self._written: tuple[str, str, bool] | None = None
        self._data = data
        self.live_bytes_unknown = live_bytes_unknown
        """Why the counter of live bytes is missing; None if the trace has the counter."""
        self._measured: Timeline | None = None

    @property
    def measured(self) -> Timeline | None:
        """The measured tracks; None without a profile of the module."""
        profile = self.module.context.profile
        if self._measured is None and profile is not None:
            from hlofast._profile import measured_with
            from hlofast._trace_measured import Timeline

            measured = measured_with(self.module, None)
            if measured is not None:
                self._measured = Timeline(measured, profile)
        return self._measured

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The file, the device and step time, the live peak."""
        known = [field.name for field in self.FACTS]
        names = ("written", "format", "is_compressed")
        file = [] if self._written is None else zip(names, self._written, strict=True)
        return (
            *self._facts((name, value, "exact") for name, value in file),
            *(fact for fact in self.time.facts if fact.name in known),
            *labelled(self.module, self._facts([("live_peak", self.peak, "modelled")]), ("bytes",)),
            *self._facts([("not_played", self.not_played, "exact")]),
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of `time`, and the parts that the trace leaves out."""
        return (*self.time.notes, *self._own_notes())

    def _own_notes(self) -> Iterator[Note]:
        short = [row["name"] for row in self.loops if row["shown"] < (row["trip_count"] or 1)]
        if short:
            yield Note(
                "iterations",
                f"the first iterations of {_text.names(short)} are shown one by one; the others "
                "are one slice per track",
                loops=len(short),
            )
        if self.not_played:
            calls = _text.counted(self.not_played, "call")
            yield Note(
                "calls",
                f"{calls} shown as one slice per track; another call of each computation is shown "
                "in full",
                calls=self.not_played,
            )
        left_out = sum(row["left_out"] for row in self.tracks)
        if left_out:
            seconds = sum(
                row["left_out_seconds"] for row in self.tracks if row["track"] != "program"
            )
            slices = _text.counted(left_out, "slice")
            yield Note(
                "left-out",
                f"{slices} left out, {_text.seconds(seconds)} in total",
                slices=left_out,
                seconds=seconds,
            )
        if self.measured is not None and self.measured.tracks:
            yield Note(
                "measured",
                f"the process {PROCESS} has the run of median length on each device, from its "
                "begin",
            )
        if self.measured is not None and self.measured.left_out:
            left = self.measured.left_out
            text = f"the measured events of {_text.names(left)} are left out"
            yield Note("measured-left-out", text, devices=len(left))
        if self.measured is not None and self.measured.events_left_out:
            count = self.measured.events_left_out
            text = f"{_text.counted(count, 'measured event')} left out"
            yield Note("measured-left-out", text, events=count)
        if self.live_bytes_unknown is not None:
            yield Note("live-bytes", f"live bytes unknown: {self.live_bytes_unknown}")

    def sections(self) -> tuple[Section, ...]:
        """Tracks, loops, and figures unknown to the time model."""
        unknown = of_rows(_time.FIGURE, [(name,) for name in self.time.unknown])
        return (
            Section("tracks", "Tracks", self.tracks, ("track", "slices", "seconds"), is_whole=True),
            Section("measured_tracks", "Measured tracks", self._measured_tracks()),
            Section("loops", "Loops", self.loops, ("name", "trip_count", "shown")),
            Section("unknown", "Unknown figures", unknown, ()),
        )

    def _measured_tracks(self) -> Table:
        tracks = () if self.measured is None else self.measured.tracks
        rows = [(track.name, len(track.slices), track.seconds) for track in tracks]
        return of_rows(_MEASURED_TRACKS, rows)

    @property
    def tracks(self) -> Table:
        """One row per track; `fields` describes the columns."""
        return Table(self._data.tracks())

    @property
    def loops(self) -> Table:
        """One row per loop: its trip count, and the number of iterations shown."""
        return Table(self._data.loops())

    @property
    def peak(self) -> int | None:
        """The live peak in bytes; None if it cannot be counted (`live_bytes_unknown`)."""
        return self._data.peak

    @property
    def not_played(self) -> int:
        """Number of calls shown as one slice to limit the size of the trace."""
        return self._data.not_played

    def write(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        """Writes the trace to `path` atomically.

        `form` is `json` (Chrome's Trace Event Format) or `pftrace` (Perfetto's protobuf); both
        hold the same events, and Perfetto opens both. By default the ending of the name selects the
        format; raises `ValueError` for unknown endings. Names that end in `.gz` are compressed.
        """
        name = os.fspath(path)
        if form is None:
            form, is_compressed = format_of(name)
        elif form in FORMATS:
            is_compressed = name.endswith(".gz")
        else:
            raise ValueError(f"form must be one of {', '.join(FORMATS)}, not {form!r}")

        def put(write: Callable[[bytes], object]) -> None:
            if self.measured is None:
                self._data.write(form, self._told(), write)
                return
            from hlofast._trace_measured import appended

            take, end = appended(self.measured, form, write)
            self._data.write(form, self._told(), take)
            end()

        with replacing(name) as file:
            if is_compressed:
                import gzip

                # The compressed file has no name and no timestamp inside, so that equal traces are
                # equal files.
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                    put(packed.write)
            else:
                put(file.write)
        self._written = (name, form, is_compressed)

    def _told(self) -> list[tuple[str, str]]:
        """Metadata of the trace."""
        time = self.time
        facts = {
            "provenance": "simulated schedule of a time model; "
            + ("nothing" if self.measured is None else f"only the process {PROCESS}")
            + " was measured",
            "device": time.device.name,
            "estimates": time.estimates,
            "mesh": time.mesh or "unknown",
            "unknown_figures": ", ".join(time.unknown),
            "live_bytes": self.live_bytes_unknown and f"unknown: {self.live_bytes_unknown}",
            "hlofast": _core._version,
        }
        return [(name, text) for name, text in facts.items() if text]

    def __repr__(self) -> str:
        slices = sum(row["slices"] for row in self.tracks)
        return (
            f"<Trace of {self.time.module.name} on {self.time.device.name}: {slices} slices in "
            f"{self.time.step_seconds:.6g} s>"
        )


def of_time(time: Time, iterations: int | None, min_duration: float | str) -> Trace:
    """Returns the trace of a timed module."""
    if iterations is not None and not 1 <= iterations < 1 << 64:
        raise ValueError(f"iterations must be at least 1, not {iterations}")
    shortest = read_seconds(min_duration, least=0)
    unknown = memory = None
    try:
        memory = _core._memory(
            time.module,
            rule="in_place",
            sizes="device",
            constants="last_use",
            space=0,
            schedule="text",
        )
    except (ValueError, OverflowError) as error:
        unknown = str(error)
    data = _core._trace(time._data, memory, iterations=iterations, min_seconds=shortest)
    return Trace(time, data, unknown)


def trace(
    module: Module,
    path: str | os.PathLike[str] | None,
    device: devices.Device,
    mesh: _core.Mesh | None,
    estimates: str,
    collectives: str | Measurements | None,
    iterations: int | None,
    min_duration: float | str,
) -> Trace:
    """`Module.trace`."""
    if path is not None:
        format_of(os.fspath(path))
    time = _time.time(module, device, mesh, estimates, collectives)
    result = of_time(time, iterations, min_duration)
    if path is not None:
        result.write(path)
    return result
