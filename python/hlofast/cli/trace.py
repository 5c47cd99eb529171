"""The simulated schedule of a step as a trace for timeline viewers such as Perfetto."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import UNREADABLE, USAGE, inputs, time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._trace import Trace

EXAMPLES = """\
examples:
  hlofast trace --device tpu-v5p --mesh data=2,model=4 step.txt -o step.pftrace
  hlofast trace --device h100 step.txt -o step.json.gz
  hlofast trace --device v6e --iterations 2 --min-duration 1us step.txt -o step.pftrace

The trace is the schedule that `hlofast time` plays; nothing is measured. Tracks show computing,
moving data, waiting for collectives, links by axes of the mesh, copies, and the loops and calls
around them; a counter shows the bytes alive. The name of the file says the format: .json is
Chrome's Trace Event Format, .pftrace Perfetto's protobuf, .gz behind it compresses. Both hold the
same events. Of each loop as many iterations are shown one by one as fit; the rest is one slice per
track, so that each track adds up to what `hlofast time` says.
"""
VERSION = 1
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser, several=False)
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        required=True,
        help="where to write, all or nothing: .json or .pftrace, or either with .gz",
    )
    time.add_timing(parser)
    parser.add_argument(
        "--iterations",
        type=_iterations,
        metavar="N",
        help="iterations of a loop that are shown one by one (default as many as fit)",
    )
    parser.add_argument(
        "--min-duration",
        type=_duration,
        default=0.0,
        metavar="T",
        help="leave out slices that take less, as 500ns or 1us",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _iterations(text: str) -> int:
    """The number in an argument; at least 1."""
    is_number = text.isascii() and text.isdigit() and len(text) <= 19
    if not is_number or not int(text):
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is no number of iterations")
    return int(text)


def _duration(text: str) -> float:
    """Seconds of an argument such as 1.5us."""
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    try:
        seconds = float(text.removesuffix(unit)) * UNITS[unit]
    except (ValueError, KeyError):
        seconds = -1.0
    if 0 <= seconds < float("inf"):
        return seconds
    from argparse import ArgumentTypeError

    raise ArgumentTypeError(f"{text!r} is no duration such as 500ns, 1us, 2ms or 1s")


def run(arguments: argparse.Namespace) -> int:
    """Write the trace of the module in the file."""
    from hlofast import _trace

    try:
        form, is_compressed = _trace.format_of(arguments.output)
    except ValueError as error:
        inputs.complain(str(error))
        return USAGE
    timing = time.read_timing(arguments)
    if timing is None:
        return USAGE
    reader = inputs.Reader(arguments)
    found = inputs.only(reader)
    documents = []
    if found is not None:
        inputs.note_misfit(found.module, found.path, timing["mesh"])
        try:
            trace = _trace.of_time(
                found.module.time(**timing), arguments.iterations, arguments.min_duration
            )
            trace.write(arguments.output)
        except ValueError as error:
            reader.failed(found.path, error)
        except OSError as error:
            inputs.complain(f"{arguments.output}: {error.strerror or error}")
            return UNREADABLE
        else:
            written = {"output": arguments.output, "format": form, "is_compressed": is_compressed}
            documents.append(found.describe() | written | _describe(trace, arguments))
    if arguments.json:
        output.print_json("trace", VERSION, {"modules": documents, "errors": reader.errors})
    elif documents:
        _print(output.Printer(), documents[0])
    return reader.exit_code() or (0 if documents else USAGE)


def _describe(trace: Trace, arguments: argparse.Namespace) -> dict[str, Any]:
    """The JSON form of what was written."""
    loops = trace.loops.to_pylist()
    for row in loops:
        row["trip_count"] = output.known(row["trip_count"])
    return {
        "device": trace.time.device.name,
        "mesh": trace.time.mesh,
        "step": time.describe_step(trace.time),
        "tracks": trace.tracks.to_pylist(),
        "loops": loops,
        "calls_as_a_whole": trace.not_played,
        "live_peak": trace.peak,
        "unknown_figures": list(trace.time.unknown),
        "notes": _notes(trace, arguments, loops),
    }


def _notes(
    trace: Trace, arguments: argparse.Namespace, loops: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    notes = time.notes(trace.time, time.has_levels(arguments))

    def note(kind: str, text: str) -> None:
        notes.append({"kind": kind, "text": text})

    short = [row["name"] for row in loops if row["shown"] < (row["trip_count"] or 1)]
    if short:
        note(
            "iterations",
            f"not all iterations of {output.names(short)} are shown one by one; the rest of each "
            f"is one slice per track",
        )
    if trace.not_played:
        calls = output.counted(trace.not_played, "call")
        note("calls", f"{calls} of computations shown elsewhere: one slice per track")
    left_out = sum(row["left_out"] for row in trace.tracks)
    if left_out:
        seconds = sum(row["left_out_seconds"] for row in trace.tracks if row["track"] != "program")
        slices = output.counted(left_out, "slice")
        note("left-out", f"{slices} of {time.seconds(seconds)} in all left out")
    if trace.live_bytes_unknown is not None:
        note("live-bytes", f"bytes alive are not known: {trace.live_bytes_unknown}")
    return notes


def _print(printer: output.Printer, document: dict[str, Any]) -> None:
    step = document["step"]
    least = "at least " if step["is_lower_bound"] else ""
    packed = ", compressed" if document["is_compressed"] else ""
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    printer.heading(document["name"])
    printer.facts(
        [
            ("file", f"{document['path']}{line}"),
            ("written", f"{document['output']} ({document['format']}{packed})"),
            ("device", document["device"]),
            ("mesh", document["mesh"] or "unknown"),
            ("step", f"{least}{time.seconds(step['seconds'])}, bound by {step['bound']}"),
            ("live peak", output.size(document["live_peak"])),
        ]
    )
    rows = [
        [row["track"], row["slices"], output.Figure(time.seconds(row["seconds"]))]
        for row in document["tracks"]
    ]
    printer.table("Tracks", ["track", "slices", "time"], rows, len(rows))
    if document["unknown_figures"]:
        printer.line()
        words = ", ".join(document["unknown_figures"])
        printer.paragraph("unknown: ", f"{words}; what needs them counts as 0 s")
    printer.notes(document["notes"])
