"""Writes the simulated schedule of a step as a trace for timeline viewers such as Perfetto."""

from __future__ import annotations

from hlofast import _trace
from hlofast._trace import Trace
from hlofast.cli import UNREADABLE, USAGE, inputs, results, time, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast trace --device tpu-v5p --mesh data=2,model=4 step.txt -o step.pftrace
  hlofast trace --device h100 step.txt -o step.json.gz
  hlofast trace --device v6e --iterations 2 --min-duration 1us step.txt -o step.pftrace

The trace is the schedule that `hlofast time` simulates. Tracks show computing, moving data, waiting
for collectives, links by mesh axis, copies, and the enclosing loops and calls; a counter shows live
bytes. With --profile, the process "measured" adds the run of median length on each device. The file
name selects the format: .json is Chrome's Trace Event Format, .pftrace is Perfetto's protobuf; an
additional .gz compresses. Both formats hold the same events. The first iterations of a loop are
shown one by one, as many as fit; the others form one slice per track, so that each track adds up to
the figures of `hlofast time`.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser, several=False)
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        required=True,
        help="write to PATH atomically: .json or .pftrace, optionally followed by .gz",
    )
    time.add_timing(parser)
    parser.add_argument(
        "--iterations",
        type=_iterations,
        metavar="N",
        help="loop iterations to show one by one (default: as many as fit)",
    )
    parser.add_argument(
        "--min-duration",
        type=values.seconds_or_none,
        default=0.0,
        metavar="T",
        help="leave out slices shorter than T, such as 500ns or 1us",
    )


def _iterations(text: str) -> int:
    """Reads a number of iterations, at least 1."""
    is_number = text.isascii() and text.isdigit() and len(text) <= 19
    if not is_number or not int(text):
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"not a number of iterations: {text!r}; give 1 or more")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Writes the trace of the module in the file."""
    try:
        _trace.format_of(arguments.output)
    except ValueError as error:
        inputs.complain(str(error))
        return USAGE
    timing = time.read_timing(arguments)
    if timing is None:
        return USAGE
    reader = inputs.Reader(arguments, inputs.read_context(arguments))
    shower = results.Shower(Trace, arguments)
    loaded = inputs.only(reader)
    code = 0 if loaded is not None else USAGE
    if loaded is not None:
        time.require_device(loaded, arguments)
        played = loaded.module.time(**timing)
        try:
            trace = _trace.of_time(played, arguments.iterations, arguments.min_duration)
            trace.write(arguments.output)
        except ValueError as error:
            reader.failed(loaded.path, error)
        except OSError as error:
            inputs.complain(f"{arguments.output}: {error.strerror or error}")
            return UNREADABLE
        else:
            shower.show(trace, at=loaded)
    shower.end(reader.errors)
    return reader.exit_code() or code
