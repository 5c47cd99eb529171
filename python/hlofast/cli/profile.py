"""Shows measured time: by instruction, phase, scope and mesh axis, beside the modelled time."""

from __future__ import annotations

from hlofast import _profile, _profile_modules
from hlofast._profile import Measured
from hlofast.cli import UNREADABLE, inputs, results
from hlofast.errors import ContextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast profile /tmp/profile
  hlofast profile host.xplane.pb module_0042.jit_train_step.after_optimizations.txt
  hlofast profile --by scope --mesh data=2,model=4 --device tpu-v5p host.xplane.pb
  hlofast profile nsys_jax.zip dump/
  hlofast profile --json host.xplane.pb | jq '.results[].facts.exposed_seconds'

PROFILE is a file or folder that jax.profiler or TensorBoard wrote (*.xplane.pb, *.trace.json.gz,
plugins/profile/<run>), or an archive or folder of nsys-jax. DUMP is a file with the module, or a
dump directory; by default the module inside the profile is used. The step is the run of median
length on each device, averaged over devices. Communication is exposed while a collective runs and
nothing computes on the device. With a device (--device, or the one that the dump folder names), the
output also has modelled times. Other verbs take the profile as --profile.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from hlofast import _text

    parser.epilog = EXAMPLES
    add_recording(parser)
    _text.add_top(parser, 10)
    parser.add_argument(
        "--by", choices=_profile.KEYS, default="phase", help="key of the sums (default phase)"
    )


def add_recording(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of a verb whose first argument is a profile."""
    parser.add_argument("recording", metavar="PROFILE", help="profile of jax.profiler or nsys-jax")
    parser.add_argument("dump", metavar="DUMP", nargs="?", help="module, or dump directory")
    parser.add_argument("--module", metavar="NAME", help="name of the module that ran")
    results.add_json(parser)
    inputs.add_context(parser, profile=False)


def read_measured(arguments: argparse.Namespace, failures: inputs.Failures) -> Measured | None:
    """Returns what the profile measured of a module; reports an error and returns None without.

    Raises `ContextError`, which ends the command with exit code 2.
    """
    context = inputs.read_context(arguments)
    try:
        return _profile_modules.measured_in(
            arguments.recording, arguments.dump, arguments.module, context
        )
    except ContextError:
        raise
    except (OSError, ValueError, ModuleNotFoundError) as error:
        # Of the two paths, the one that could not be read.
        is_dump = isinstance(error, OSError) and error.filename == arguments.dump is not None
        failures.failed(arguments.dump if is_dump else arguments.recording, error)
        return None


def run(arguments: argparse.Namespace) -> int:
    """Shows what the profile measured of a module."""
    failures = inputs.Failures()
    shower = results.Shower(Measured, arguments)
    measured = read_measured(arguments, failures)
    if measured is not None:
        shower.show(measured, measured.sections(arguments.by))
    shower.end(failures.errors)
    return UNREADABLE if failures.errors else 0
