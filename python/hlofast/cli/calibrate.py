"""Fits the achieved rates of a machine on a profile, and writes them as a file of devices."""

from __future__ import annotations

from hlofast import _profile_modules
from hlofast._calibration import Calibration
from hlofast.cli import UNREADABLE, inputs, results
from hlofast.errors import ContextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast calibrate --device v5p profiles/ -o machine.toml
  hlofast calibrate --device a100 report.zip dump/ -o machine.toml
  hlofast time --device v5p --devices machine.toml other_step.txt

The figures are the achieved HBM bandwidth and, on GPUs, the achieved share of the matmul peak, the
time of a launch, and latency and bandwidth of collectives. They are fitted on one half of the
instructions of the profile's main program; the errors of the other half say what to expect of
predictions.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("recording", metavar="PROFILE", help="profile of jax.profiler or nsys-jax")
    parser.add_argument("dump", metavar="DUMP", nargs="?", help="module, or dump directory")
    parser.add_argument("--module", metavar="NAME", help="name of the module to fit on")
    parser.add_argument("-o", "--output", metavar="FILE.toml", help="file of devices to write")
    parser.add_argument(
        "--name", metavar="NAME", help="name of the fitted device (default: that of --device)"
    )
    results.add_json(parser)
    inputs.add_context(parser, profile=False)


def run(arguments: argparse.Namespace) -> int:
    """Fits, shows the figures and their errors, and writes the file."""
    context = inputs.read_context(arguments)
    failures = inputs.Failures()
    shower = results.Shower(Calibration, arguments)
    try:
        measured = _profile_modules.measured_in(
            arguments.recording, arguments.dump, arguments.module, context
        )
        calibration = measured.calibrate()
    except ContextError:
        raise
    except (OSError, ValueError, ModuleNotFoundError) as error:
        # Of the two paths, the one that could not be read.
        is_dump = isinstance(error, OSError) and error.filename == arguments.dump is not None
        failures.failed(arguments.dump if is_dump else arguments.recording, error)
    else:
        if arguments.output is not None:
            try:
                calibration.save(arguments.output, arguments.name)
            except (OSError, ValueError) as error:
                failures.failed(arguments.output, error)
        shower.show(calibration)
    shower.end(failures.errors)
    return UNREADABLE if failures.errors else 0
