"""Models the step time on a device: computing, moving data, exposed collectives by mesh axis."""

from __future__ import annotations

from hlofast import _context, _time
from hlofast._time import Time
from hlofast.cli import UNREADABLE, USAGE, inputs, results
from hlofast.errors import ContextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._result import Result, Section
    from hlofast.devices import Device

EXAMPLES = """\
examples:
  hlofast time module_0042.jit_train_step.after_optimizations.txt
  hlofast time --device tpu-v5p --mesh data=2,model=4 --by phase step.txt
  hlofast time --device h100 --mesh data=2,model=8 --hosts 2 step.txt
  hlofast time --device mine --devices mine.toml --estimates roofline step.txt
  hlofast time --device v6e --json step.txt | jq '.results[].facts.step_seconds'

The device is --device, or the one that the dump folder names. The schedule of the dump is simulated
on one device: asynchronous collectives and copies overlap with the instructions scheduled before
their done instruction; the time that remains is exposed. --estimates selects the source of
instruction times: model (on TPUs, windows, tiles and systolic arrays as the compiler estimates
them; elsewhere the roofline), roofline, or compiler (the estimated_cycles in the dump).
--collectives selects the source of collective times: the topology's latencies and bandwidths, XLA's
speed-of-light model for GPU hosts, Alpa's costs, or a file of measurements (.csv, .json, .pkl).
"step p10" and "step p90" are the 10th and 90th percentile of the step time, from the model's errors
on measured steps.
"""


def add_timing(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments that select the time model."""
    parser.add_argument(
        "--estimates",
        choices=("model", "roofline", "compiler"),
        default="model",
        help="source of instruction times (default model)",
    )
    parser.add_argument(
        "--collectives",
        metavar="MODEL",
        default="topology",
        help=f"source of collective times: {', '.join(_time.MODELS)} or a file of measurements"
        " (default topology)",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    add_timing(parser)
    parser.add_argument(
        "--calibrate",
        metavar="PROFILE",
        help="use the rates of the machine that recorded this profile, which may be of another "
        "program; hlofast calibrate shows the rates and writes them to a file",
    )
    parser.add_argument(
        "--by", choices=_time.KEYS, default="bound", help="key of the rows (default bound)"
    )


def read_timing(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Returns arguments of `Module.time`; prints an error and returns None if they are invalid."""
    collectives = arguments.collectives
    if collectives not in _time.MODELS:
        from hlofast import devices

        try:
            collectives = devices.read_measurements(collectives)
        except OSError as error:
            inputs.complain(f"{collectives}: {error.strerror or error}")
            return None
        except ValueError as error:
            inputs.complain(str(error))
            return None
    return {"estimates": arguments.estimates, "collectives": collectives}


def require_device(loaded: inputs.Found, arguments: argparse.Namespace) -> None:
    """Raises `ContextError`, which ends with exit code 2, if the module's device is unknown."""
    try:
        _context.required_device(loaded.module, None)
    except ContextError as error:
        from hlofast import devices

        known = devices.load(arguments.devices) if arguments.devices else devices.built_in()
        text = f"{loaded.path}: {error}; known devices: {', '.join(known)}"
        raise ContextError(text) from None


def _machine(arguments: argparse.Namespace) -> Device | None:
    """The device with the rates of `--calibrate`; prints an error and returns None without one."""
    from hlofast._profile_modules import measured_in

    path = arguments.calibrate
    # The mesh and the step are those of the program to time.
    context = inputs.read_context(arguments).replace(
        mesh=None, profile=None, step_seconds=None, hosts=None, slices=None
    )
    try:
        calibration = measured_in(path, None, None, context).calibrate()
        if not calibration.fitted:
            inputs.complain(f"{path}: note: nothing fitted: too few instructions show a rate")
        return calibration.device
    except ContextError as error:
        raise ContextError(f"{path}: {error}") from None
    except (OSError, ValueError, ModuleNotFoundError) as error:
        inputs.Failures().failed(path, error)
        return None


def run(arguments: argparse.Namespace) -> int:
    """Times every module."""
    timing = read_timing(arguments)
    if timing is None:
        return USAGE

    machine = None
    if arguments.calibrate is not None:
        machine = _machine(arguments)
        if machine is None:
            return UNREADABLE

    def analyse(loaded: inputs.Found) -> tuple[Result, tuple[Section, ...]]:
        if machine is None:
            require_device(loaded, arguments)
        time = loaded.module.time(machine, **timing)
        return time, time.sections(arguments.by)

    return results.run_modules(Time, arguments, analyse)
