"""`Trace`: the simulated schedule of a module as a file for timeline viewers."""

from __future__ import annotations

import os

from hlofast import _core, _text, _time, devices
from hlofast._core import Field
from hlofast._files import replacing
from hlofast._result import Fact, Note, Result, Section
from hlofast._units import read_seconds
from hlofast.table import Table, of_rows

TYPE_CHECKING = False  # The command line writes traces; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hlofast._measurements import Measurements
    from hlofast._module import Module
    from hlofast._time import Time

FORMATS = ("json", "pftrace")
"""Chrome's Trace Event Format, and Perfetto's protobuf."""


def format_of(path: str) -> tuple[str, bool]:
    """Which format the name of a file asks for, and whether compressed; a `ValueError` if none."""
    is_compressed = path.endswith(".gz")
    name = path.removesuffix(".gz")
    for form in FORMATS:
        if name.endswith(f".{form}"):
            return form, is_compressed
    raise ValueError(
        f"{path}: the name of a trace ends in .json or .pftrace, and in .gz if it is compressed"
    )


class Trace(Result):
    """The simulated schedule of a module: `Module.trace()`.

    Tracks are `program` (loops, iterations and calls around what they contain), `compute`,
    `memory` (with waiting for copies) and `other`, which share the one compute unit; `exposed` by
    axes of the mesh (waiting for collectives), `links` by axes (collectives under way) and
    `copies`. Seconds of `compute`, `memory`, `other` and `exposed` add up to the step. A counter
    holds the bytes alive, as `Module.memory()` counts them.

    Of each loop the first iterations are shown one by one, as many as fit; the rest is one slice
    per track, as long as all of it together, so that every track adds up to what `time` says.
    """

    __slots__ = ("_data", "_written", "live_bytes_unknown", "module", "time")

    VERB = "trace"
    FACTS = (
        Field("path", "written", "The file that was written last."),
        Field("word", "format", "Its format: json (Chrome's) or pftrace (Perfetto's)."),
        Field("flag", "is_compressed", "Whether it is compressed.", label="compressed"),
        *(
            field
            for field in _time.Time.FACTS
            if field.name in ("device", "mesh", "step_seconds", "bound")
        ),
        Field("bytes", "live_peak", "The most bytes alive at once."),
        Field("count", "not_played",
              "Calls that are shown as a whole, since the trace would be too large otherwise.",
              label="calls as a whole"),
    )  # fmt: skip

    def __init__(self, time: Time, data: _core.TraceData, live_bytes_unknown: str | None) -> None:
        self.time = time
        """The time model's figures."""
        self.module = time.module
        """The module."""
        self._written: tuple[str, str, bool] | None = None
        self._data = data
        self.live_bytes_unknown = live_bytes_unknown
        """Why there is no counter of bytes alive; None if there is one."""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What was written, what is played, the most bytes alive."""
        known = [field.name for field in self.FACTS]
        names = ("written", "format", "is_compressed")
        file = [] if self._written is None else zip(names, self._written, strict=True)
        return (
            *self._facts((name, value, "exact") for name, value in file),
            *(fact for fact in self.time.facts if fact.name in known),
            *self._facts([("live_peak", self.peak, "modelled")]),
            *self._facts([("not_played", self.not_played, "exact")]),
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """What to keep in mind about the time, and what the trace leaves out."""
        return (*self.time.notes, *self._own_notes())

    def _own_notes(self) -> Iterator[Note]:
        short = [row["name"] for row in self.loops if row["shown"] < (row["trip_count"] or 1)]
        if short:
            yield Note(
                "iterations",
                f"not all iterations of {_text.names(short)} are shown one by one; the rest of "
                "each is one slice per track",
                loops=len(short),
            )
        if self.not_played:
            calls = _text.counted(self.not_played, "call")
            yield Note(
                "calls",
                f"{calls} of computations shown elsewhere: one slice per track",
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
                f"{slices} of {_text.seconds(seconds)} in all left out",
                slices=left_out,
                seconds=seconds,
            )
        if self.live_bytes_unknown is not None:
            yield Note("live-bytes", f"bytes alive are not known: {self.live_bytes_unknown}")

    def sections(self) -> tuple[Section, ...]:
        """The tracks and the loops; figures that the time model lacks."""
        unknown = of_rows(_time.FIGURE, [(name,) for name in self.time.unknown])
        return (
            Section("tracks", "Tracks", self.tracks, ("track", "slices", "seconds"), is_whole=True),
            Section("loops", "Loops", self.loops, ("name", "trip_count", "shown")),
            Section("unknown", "Unknown figures", unknown, ()),
        )

    @property
    def tracks(self) -> Table:
        """One row per track; `fields` says what the columns are."""
        return Table(self._data.tracks())

    @property
    def loops(self) -> Table:
        """One row per loop: its iterations, and how many of them are shown."""
        return Table(self._data.loops())

    @property
    def peak(self) -> int | None:
        """The most bytes alive; None if they could not be counted (`live_bytes_unknown`)."""
        return self._data.peak

    @property
    def not_played(self) -> int:
        """Calls that are shown as a whole, since the trace would be too large otherwise."""
        return self._data.not_played

    def write(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        """Write the trace to `path`, all or nothing.

        `form` is `json` (Chrome's Trace Event Format) or `pftrace` (Perfetto's protobuf); both
        hold the same events, and Perfetto opens both. By default the name says which; names that
        end in `.gz` are compressed. A `ValueError` for other names.
        """
        name = os.fspath(path)
        if form is None:
            form, is_compressed = format_of(name)
        elif form in FORMATS:
            is_compressed = name.endswith(".gz")
        else:
            raise ValueError(f"form is one of {', '.join(FORMATS)}, not {form!r}")

        def put(write: Callable[[bytes], object]) -> None:
            self._data.write(form, self._told(), write)

        with replacing(name) as file:
            if is_compressed:
                import gzip

                # Without a name and a time in it, equal traces are equal files.
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                    put(packed.write)
            else:
                put(file.write)
        self._written = (name, form, is_compressed)

    def _told(self) -> list[tuple[str, str]]:
        """What is told of the module as a whole."""
        time = self.time
        facts = {
            "provenance": "simulated schedule of a time model; nothing was measured",
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
    """The trace of a module that has been timed."""
    if iterations is not None and not 1 <= iterations < 1 << 64:
        raise ValueError(f"iterations is a number from 1 on, not {iterations}")
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
