"""Fits the achieved rates of a machine on a profile, and writes them as a device file."""

from __future__ import annotations

from hlofast._calibration import Calibration
from hlofast.cli import DONE, UNREADABLE, inputs, pages, results
from hlofast.cli.profile import add_recording, read_measured

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast calibrate --device v5p profiles/ -o machine.toml
  hlofast calibrate --device a100 report.zip dump/ -o machine.toml
  hlofast time --devices machine.toml other_step.txt

Fits the achieved HBM bandwidth and, on GPUs, the achieved share of the matmul peak, the launch
time, and the latency and bandwidth of collectives. One half of the instructions of the profile's
main program is used for the fit; the other half gives the error to expect.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    add_recording(parser)
    parser.add_argument("-o", "--output", metavar="FILE.toml", help="device file to write")
    parser.add_argument(
        "--name", metavar="NAME", help="name of the fitted device (default: that of --device)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Fits, shows the figures and their errors, and writes the file."""
    out = arguments.output
    if out is not None and (code := pages.refuse_standard_output(out)) != DONE:
        return code
    failures = inputs.Failures()
    shower = results.Shower(Calibration, arguments)
    measured = read_measured(arguments, failures)
    if measured is not None:
        calibration = measured.calibrate()
        # A reader of the output that stops early must not keep the file from being written.
        if arguments.output is not None:
            try:
                calibration.save(arguments.output, arguments.name)
            except (OSError, ValueError) as error:
                failures.failed(arguments.output, error)
        shower.show(calibration)
    shower.end(failures.errors)
    return UNREADABLE if failures.errors else 0
