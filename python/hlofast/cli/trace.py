"""The simulated schedule of a step as a trace for timeline viewers such as Perfetto."""

from __future__ import annotations

from hlofast import _trace
from hlofast._trace import Trace
from hlofast.cli import UNREADABLE, USAGE, inputs, results, time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

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


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser, several=False)
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
        type=inputs.seconds_or_none,
        default=0.0,
        metavar="T",
        help="leave out slices that take less, as 500ns or 1us",
    )


def _iterations(text: str) -> int:
    """The number in an argument; at least 1."""
    is_number = text.isascii() and text.isdigit() and len(text) <= 19
    if not is_number or not int(text):
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text!r} is no number of iterations")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Write the trace of the module in the file."""
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
    found = inputs.only(reader)
    code = 0 if found is not None else USAGE
    if found is not None:
        time.require_device(found, arguments)
        played = found.module.time(**timing)
        try:
            trace = _trace.of_time(played, arguments.iterations, arguments.min_duration)
            trace.write(arguments.output)
        except ValueError as error:
            reader.failed(found.path, error)
        except OSError as error:
            inputs.complain(f"{arguments.output}: {error.strerror or error}")
            return UNREADABLE
        else:
            shower.show(trace, at=found)
    shower.end(reader.errors)
    return reader.exit_code() or code
