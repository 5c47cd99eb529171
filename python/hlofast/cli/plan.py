"""Plans a run: the fastest choices of a trainer config that fit on a kind of machine."""

from __future__ import annotations

from hlofast import _files, _text, _units
from hlofast.cli import DONE, FINDINGS, UNREADABLE, USAGE, configs, inputs, pages, results, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast.config import Config
    from hlofast.config._plan_like import Likened
    from hlofast.config._plan_results import Plan
    from hlofast.devices import Device

EXAMPLES = """\
examples:
  hlofast plan model_name=llama3.1-8b --device v5p --chips 128
  hlofast plan run.yml --instance v6e-256 --tokens 15T           chip hours for 15 * 10^12 tokens
  hlofast plan fuji-70B.txt --device v5e --device v6e --chips 256 --slices 4
  hlofast plan run.yml --device v5p --chips 512 --batch 0        let the plan choose the batch
  hlofast plan run.yml --instance v5p-512 --state-dtype bfloat16  narrower moments and weights too
  hlofast plan run.yml --instance v5p-512 --like own             the config's own choice
  hlofast plan run.yml --instance v5p-512 --like fsdp=64,tensor=4,policy=full
  hlofast plan run.yml --instance v5p-512 -o plan.html           a page with charts
  hlofast plan --json run.yml --instance v5p-512 | jq '.results[].tables.ranked[0]'

A choice consists of a mesh, the sequences per device, gradient accumulation steps and a checkpoint
policy (one of the trainer's, or a set of named values to save or offload). The global batch is that
of the config, or --batch. Choices whose peak exceeds the memory are dropped; the others are ranked
by modelled step time. Without --instance and --device, the machine is that of the config
(compile_topology in MaxText). With several --device or --instance options, the machines are
compared by chip hours. Exit code 1: nothing fits, or the choice of --like does not fit.
"""
IS_MIXED = True
"""Whether files and overrides may stand between options."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    configs.add_files(parser)
    inputs.add_instance(parser, several=True)
    inputs.add_device(parser, several=True)
    parser.add_argument("--chips", type=values.count, metavar="N", help="chips in all")
    inputs.add_slices(parser)
    parser.add_argument(
        "--batch",
        type=_text.natural,
        metavar="N",
        help="global batch in sequences; 0: the plan chooses (default: the config's)",
    )
    parser.add_argument(
        "--tokens", type=_tokens, metavar="N", help="token budget for chip hours, such as 15T"
    )
    parser.add_argument(
        "--margin",
        type=_share,
        metavar="X",
        help="share of the memory to leave free (default: the error of modelled peaks)",
    )
    parser.add_argument(
        "--state-dtype",
        choices=("bfloat16", "float16", "float32"),
        metavar="TYPE",
        help="also try first moments, or weights and moments, of this type, such as bfloat16",
    )
    parser.add_argument("--no-offload", action="store_true", help="keep nothing in host memory")
    parser.add_argument(
        "--like",
        metavar="CHOICE",
        help="compare a choice with the best: own, or AXIS=N, policy=NAME, state=NAME, batch=N, "
        "accumulation=N, joined by commas",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PAGE",
        help='also write an HTML page about the plan to PAGE; "-" writes the page alone, to '
        "standard output",
    )
    results.add_json(parser)
    _text.add_top(parser)


def run(arguments: argparse.Namespace) -> int:
    """Plans every config on every machine."""
    configs.split(arguments)
    problem = _misuse(arguments)
    if problem:
        inputs.complain(problem)
        return USAGE
    to_stdout = False
    if (out := arguments.output) is not None:
        to_stdout = _files.is_standard_output(out)
        if (code := pages.check(out, arguments.files, is_json=arguments.json)) != DONE:
            return code
    from hlofast.config._plan_choice import ChoiceError
    from hlofast.config._plan_like import Likened
    from hlofast.config._plan_machines import Machines
    from hlofast.config._plan_results import Plan

    failures = inputs.Failures()
    shower = results.Shower(Plan if arguments.like is None else Likened, arguments)
    is_fitting, is_misused, unwritten = True, False, DONE
    for path in arguments.files:
        config = configs.read(path, arguments, failures)
        if config is None:
            continue
        made: list[Plan | Likened | Machines] = []
        whole: Plan | Machines | None
        try:
            machines = _machines(config, arguments)
            if not machines:
                inputs.complain(f"{_MACHINE}, or a MaxText config with compile_topology")
                return USAGE
            if arguments.like is not None:
                _checked(arguments.like)
            for name, count, device in machines:
                try:
                    plan = _plan(config, arguments, name, count, device)
                except ValueError as error:
                    if len(machines) == 1:
                        raise
                    # The others can be planned.
                    failures.failed(
                        configs.named(path, arguments.base), ValueError(f"{name}: {error}")
                    )
                    continue
                if arguments.like is None:
                    is_fitting = is_fitting and plan.best is not None
                    made.append(plan)
                else:
                    liked = _liked(plan, arguments.like)
                    is_fitting = is_fitting and liked.is_fitting
                    made.append(liked)
            plans = [own for own in made if isinstance(own, Plan)]
            whole = plans[0] if plans else None
            if len(plans) > 1:
                made.append(whole := Machines(plans, arguments.tokens))
            if out is not None and whole is not None:
                # A reader of the tables that stops early must not keep the page from being written.
                page = whole.report()
                try:
                    page.save(out)
                except OSError as error:
                    unwritten = pages.refused(out, error)
            for result in () if to_stdout else made:
                shower.show(result)
        except BrokenPipeError:
            raise  # The reader closed the pipe.
        except (OSError, ValueError) as error:
            is_misused = is_misused or isinstance(error, ChoiceError)
            failures.failed(configs.named(path, arguments.base), error)
    if not to_stdout:
        shower.end(failures.errors)
    if unwritten != DONE:
        return unwritten
    if failures.errors:
        return USAGE if is_misused else UNREADABLE
    return DONE if is_fitting else FINDINGS


def _machines(
    config: Config, arguments: argparse.Namespace
) -> list[tuple[str, int | None, Device | None]]:
    """Instances with the number of their devices and their kind, where given.

    Without options, the instance that the config names; none if it names none.
    """
    from hlofast import devices
    from hlofast.config import _instances

    if not arguments.instance and not arguments.device:
        own = configs.own_instance(config, arguments.device_count)
        return [] if own is None else [(own.instance.name, arguments.device_count, None)]
    names: list[tuple[str, int | None, devices.Device | None]] = []
    names += [(name, arguments.device_count, None) for name in arguments.instance]
    for kind in arguments.device:
        device = devices.get(kind)
        count = int(arguments.chips * int(device.value("jax_devices") or 1))
        names.append((_instances.named(device.name, count, arguments.slices or 1), count, device))
    return names


def _plan(
    config: Config,
    arguments: argparse.Namespace,
    name: str,
    count: int | None,
    device: Device | None,
) -> Plan:
    """The plan of a config on a machine."""
    if device is not None:
        from hlofast.config import _torus

        _torus.check_slices(device.name, arguments.chips, arguments.slices or 1)
    return config.plan(
        name,
        count,
        device=device,
        sequences=arguments.batch,
        tokens=arguments.tokens,
        margin=arguments.margin,
        offloads=not arguments.no_offload,
        state_dtype=arguments.state_dtype,
    )


def _checked(text: str) -> None:
    """Raises `ChoiceError` for text that no plan takes, which need not be made then."""
    from hlofast.config._plan_choice import ChoiceError, read_choice

    try:
        read_choice(text)
    except ChoiceError as error:
        raise ChoiceError(f"--like: {error}") from None


def _liked(plan: Plan, text: str) -> Likened:
    """The comparison with a choice; errors name the option."""
    try:
        return plan.like(text)
    except ValueError as error:
        raise type(error)(f"--like: {error}") from None


_MACHINE = "give --instance NAME, or --device NAME with --chips N"


def _misuse(arguments: argparse.Namespace) -> str | None:
    if arguments.instance and arguments.device:
        return f"machines are given by --instance or by --device, not by both: {_MACHINE}"
    if bool(arguments.device) != (arguments.chips is not None):
        return "--device and --chips belong together"
    if arguments.device_count is not None and arguments.device:
        return "--device-count belongs to --instance; --chips gives the devices of --device"
    if arguments.slices is not None and not arguments.device:
        return "--slices belongs to --chips; an instance name has its own, as v5litepod-256-4"
    if arguments.output is not None and (arguments.like or len(arguments.files) > 1):
        return "-o writes the page of one config: give one config, and no --like"
    if arguments.like is not None and arguments.tokens is not None:
        return "--tokens is the budget of a plan's chip hours, which --like does not compare"
    if arguments.files.count("-") > 1:
        return "standard input can be read only once"
    return None


def _number(text: str) -> float:
    from argparse import ArgumentTypeError

    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"not a number: {text!r}") from None
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"not a number from 0: {text!r}")
    return value


def _tokens(text: str) -> float:
    """Reads a token budget such as 15T."""
    from argparse import ArgumentTypeError

    try:
        value = _units.read_count(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if value < 1:
        raise ArgumentTypeError(f"not a number of tokens: {text!r}; give one such as 1e12")
    return value


def _share(text: str) -> float:
    """Reads a share of the memory."""
    from argparse import ArgumentTypeError

    value = _number(text)
    if value >= 1:
        raise ArgumentTypeError(f"not a share below 1: {text!r}; give one such as 0.05")
    return value
