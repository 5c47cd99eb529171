"""Compares a declaration (mesh, shardings, policy, limits) with the compiled program."""

from __future__ import annotations

from hlofast.cli import FINDINGS, UNREADABLE, USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._check import Declaration, Expectations
    from hlofast.config import EffectiveConfig

EXAMPLES = """\
examples:
  hlofast check mesh.toml module_0042.jit_train_step.after_optimizations.txt
  hlofast check --expect limits.toml step.txt                     limits only
  hlofast check fuji-70B.txt step.txt --instance tpu-v6e-256-4     an AXLearn golden config
  hlofast check run.yml step.txt --instance v5p-128               a MaxText config
  hlofast check mesh.toml step.txt --fail-on warning
  hlofast check --json mesh.toml step.txt | jq '.results[].tables.findings[] | [.severity, .code]'

CONFIG is an AXLearn golden config or a MaxText config, with --instance for its mesh, or a TOML
description of the intended program. Anything the description leaves out is not compared:

  [mesh]
  axes = { data = 4, fsdp = 64, model = 4 }      # in order, the last axis varies fastest
  batch_axes = ["data", "fsdp"]
  [model]
  layers = 80
  accumulation_steps = 4
  batch = 1024                                   # sequences of a step on all devices
  sequence = 4096                                # tokens of a sequence
  dtype = "bf16"                                 # of activations
  donates = true                                 # the new state takes the memory of the old
  [[parameters]]
  name = ".*/layers/query"                       # regular expression for the whole path
  spec = ["", "fsdp", "model"]                   # per dimension: an axis, a list, or ""
  [[kept]]                                       # a value that the checkpoint policy keeps
  name = "query"
  shape = "bf16[1,2048,2048]"                    # of one layer on one device, or bytes = ...
  place = "host"
  [predicted]                                    # per device and step: state_bytes, flops,
  gathered_bytes = 273804165120                  # offloaded_bytes, gathered_bytes, peak_bytes
  [limits]
  hbm = "31.25GiB"

The --expect file holds limits: peak.max = "15.5GiB", flops.max = 2e15,
collectives.fsdp.all-gather.max_bytes = "1.6GiB", lint.forbid = ["missed-reduce-scatter"].
Exit code 1 if there are errors.
"""
SAMPLE = 1 << 16
"""Bytes read from a file to tell its format."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="the declaration: a TOML description or a trainer config",
    )
    results.add_usual(parser, several=False)
    inputs.add_instance(parser)
    parser.add_argument("--expect", metavar="FILE.toml", help="limits that the program must meet")
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "note"),
        default="error",
        metavar="SEVERITY",
        help="exit with code 1 at this severity or worse: error (default), warning, note",
    )
    parser.add_argument("--all", action="store_true", help="also list comparisons that agree")


def run(arguments: argparse.Namespace) -> int:
    """Compares the declaration with every module of the file."""
    if arguments.config is None and arguments.expect is None:
        inputs.complain("nothing to compare with: give CONFIG or --expect FILE.toml")
        return USAGE
    context = inputs.read_context(arguments)
    read = _read(arguments)
    if isinstance(read, int):
        return read
    declaration, expected = read
    import hlofast

    reader = inputs.Reader(arguments, context)
    shower = results.Shower(hlofast.Check, arguments)
    severities = hlofast.Check.SEVERITIES
    grave = severities[: severities.index(arguments.fail_on) + 1]
    failed = False
    for loaded in reader:
        try:
            check = hlofast.check(declaration, loaded.module, expected)
        except (ValueError, OverflowError) as error:
            reader.failed(loaded.path, error)
            continue
        failed |= any(finding.severity in grave for finding in check.found())
        shower.show(check, check.sections(agreeing=arguments.all or arguments.json), loaded)
    shower.end(reader.errors)
    return reader.exit_code() or (FINDINGS if failed else 0)


def _read(
    arguments: argparse.Namespace,
) -> tuple[Declaration | EffectiveConfig, Expectations | None] | int:
    """Returns declaration and limits; prints an error and returns the exit code on failure."""
    import hlofast

    path, expected = arguments.config, None
    try:
        declaration = read_declaration(path, arguments.instance, arguments.device_count)
        if arguments.expect is not None:
            path = arguments.expect
            expected = hlofast.Expectations.load(path)
    except UsageError as error:
        inputs.complain(f"{arguments.config}: {error}")
        return USAGE
    except (OSError, ValueError, hlofast.ParseError) as error:
        failures = inputs.Failures()
        if not isinstance(error, (OSError, hlofast.ParseError)):
            error = ValueError(str(error).removeprefix(f"{path}: "))
        failures.failed(path, error)
        results.Shower(hlofast.Check, arguments).end(failures.errors)
        return UNREADABLE
    return declaration, expected


def read_declaration(
    path: str | None, instance: str | None, devices: int | None
) -> Declaration | EffectiveConfig:
    """Returns the declaration in a file; a trainer config needs an `instance`.

    Raises `UsageError` for contradictory arguments, and the errors of reading the file.
    """
    import hlofast
    from hlofast import config

    if path is None:
        return hlofast.Declaration()
    with open(path, "rb") as file:
        start = file.read(SAMPLE)
    if path.endswith(".toml") or not config.is_config(start, path=path):
        if instance is not None:
            raise UsageError("--instance needs a trainer config, and this is a TOML description")
        return hlofast.Declaration.load(path)
    if instance is None:
        raise UsageError("a trainer config needs --instance, which gives its mesh")
    return config.load(path).select(instance, devices)


class UsageError(ValueError):
    """Contradictory arguments."""
