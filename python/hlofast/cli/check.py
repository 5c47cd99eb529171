"""Compares a declaration (mesh, shardings, policy, limits) with the compiled program."""

from __future__ import annotations

from hlofast.cli import FINDINGS, UNREADABLE, USAGE, configs, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from hlofast._check import Check, Declaration, Expectations
    from hlofast.config import EffectiveConfig

EXAMPLES = """\
examples:
  hlofast check mesh.toml module_0042.jit_train_step.after_optimizations.txt
  hlofast check --expect limits.toml step.txt                     limits only
  hlofast check fuji-70B.txt step.txt --instance tpu-v6e-256-4     an AXLearn golden config
  hlofast check run.yml step.txt --instance v5p-128               a MaxText config
  hlofast check run.yml step.txt                                  on its compile_topology
  hlofast check run.yml per_device_batch_size=4 step.txt --instance v5p-128 --base base.yml
  hlofast check --expect limits.toml dump/ --markdown             the largest program of a folder
  hlofast check mesh.toml step.txt --fail-on warning
  hlofast check --json mesh.toml step.txt | jq '.results[].tables.findings[] | [.severity, .code]'

CONFIG is an AXLearn golden config or a MaxText config, with --instance for its mesh (default in
MaxText: compile_topology), or a TOML description of the intended program. KEY=VALUE, --base and
environment variables M_KEY apply to MaxText configs as in hlofast config. Anything the description
leaves out is not compared:

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
IS_MIXED = True
"""Whether files and overrides may stand between options."""
SAMPLE = 1 << 16
"""Bytes read from a file to tell its format."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "config",
        nargs="*",
        metavar="CONFIG|KEY=VALUE",
        help="the declaration: a TOML description or a trainer config, with values of MaxText",
    )
    results.add_usual(parser, several=False)
    inputs.add_instance(parser)
    configs.add_base(parser)
    parser.add_argument("--expect", metavar="FILE.toml", help="limits that the program must meet")
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "note"),
        default="error",
        metavar="SEVERITY",
        help="exit with code 1 at this severity or worse: error (default), warning, note",
    )
    parser.add_argument("--all", action="store_true", help="also list comparisons that agree")
    results.add_markdown(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compares the declaration with every module of the file."""
    if (problem := _sort(arguments)) is not None:
        inputs.complain(problem)
        return USAGE
    if arguments.json and arguments.markdown:
        inputs.complain("--json and --markdown exclude each other")
        return USAGE
    context = inputs.read_context(arguments)
    failures = inputs.Failures()
    if (file := _main_file(arguments.file, arguments.module, failures)) is None:
        results.Shower(_kind(), arguments).end(failures.errors)
        return UNREADABLE if failures.errors else USAGE
    if file != arguments.file:
        arguments.file, arguments.module = file, None
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
        if not arguments.markdown or not check.ok or arguments.all:
            sections = check.sections(agreeing=arguments.all or arguments.json)
            shower.show(check, sections[:1] if arguments.markdown else sections, loaded)
    shower.end(reader.errors)
    return reader.exit_code() or (FINDINGS if failed else 0)


def _sort(arguments: argparse.Namespace) -> str | None:
    """Tells overrides, CONFIG and FILE apart; returns what is wrong with them."""
    files, arguments.overrides = configs.separated([*arguments.config, arguments.file])
    if not files:
        return "give the FILE to compare with, a text or a directory of dumps"
    if len(files) > 2:
        return f"give one CONFIG and one FILE, not {', '.join(files)}"
    *declared, arguments.file = files
    arguments.config = declared[0] if declared else None
    if not declared and not arguments.overrides and arguments.expect is None:
        return "nothing to compare with: give CONFIG or --expect FILE.toml"
    return None


def _main_file(path: str, wanted: str | None, failures: inputs.Failures) -> str | None:
    """Returns the file that stands for a dump directory; other paths are returned as they are.

    That is the file of the largest program, or of the program `wanted`. Reports a directory without
    it and returns None.
    """
    from hlofast import _files, _kinds
    from hlofast._programs import listed

    try:
        if path == "-" or not _files.is_folder(path) or inputs.is_profile(path):
            return path
        programs = listed(path)[0]
        if not programs:
            raise ValueError(_kinds.NO_DUMPS)
    except (OSError, ValueError) as error:
        failures.failed(path, error)
        return None
    known = int(wanted) if wanted and wanted.isdecimal() and len(wanted) < 10 else wanted
    named = [program for program in programs if known is None or program.answers_to(known)]
    if not named:
        from hlofast._names import meant

        hint = meant(str(wanted), [program.name for program in programs])
        inputs.complain(f"{path}: no program {wanted!r}{hint}")
        return None
    return _kinds.by_size(named)[0].files[0].path


def _kind() -> type[Check]:
    import hlofast

    return hlofast.Check


def _read(
    arguments: argparse.Namespace,
) -> tuple[Declaration | EffectiveConfig, Expectations | None] | int:
    """Returns declaration and limits; prints an error and returns the exit code on failure."""
    import hlofast

    path, expected = configs.named(arguments.config, arguments.base), None
    try:
        declaration = read_declaration(
            arguments.config,
            arguments.instance,
            arguments.device_count,
            overrides=arguments.overrides,
            base=arguments.base,
        )
        if arguments.expect is not None:
            path = arguments.expect
            expected = hlofast.Expectations.load(path)
    except UsageError as error:
        inputs.complain(f"{path}: {error}")
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
    path: str | None,
    instance: str | None,
    devices: int | None,
    *,
    overrides: Sequence[str] = (),
    base: str | None = None,
) -> Declaration | EffectiveConfig:
    """Returns the declaration in a file; a trainer config needs an `instance`, or names its own.

    `overrides` and `base` are those of `configs.loaded`. Raises `UsageError` for contradictory
    arguments, and the errors of reading the file.
    """
    import hlofast
    from hlofast import config
    from hlofast.config._load import is_program

    if path is None and not overrides:
        return hlofast.Declaration()
    is_config = path is None
    if path is not None and not path.endswith(".toml"):
        with open(path, "rb") as file:
            sample = file.read(SAMPLE)
        is_config = config.is_config(sample, path=path)
        if not is_config and is_program(sample.decode("utf-8", "replace")):
            raise UsageError(
                "an HLO module, not a declaration; `hlofast diff` compares two programs"
            )
    if path is not None and not is_config:
        if overrides or base is not None:
            raise UsageError("KEY=VALUE and --base need a MaxText config")
        if instance is not None:
            raise UsageError("--instance needs a trainer config, and this is a TOML description")
        return hlofast.Declaration.load(path)
    read = configs.loaded(path, overrides, base)
    if instance is None:
        found = configs.own_instance(read, devices)
        if found is None:
            raise UsageError(
                "a trainer config needs --instance, which gives its mesh, or in MaxText "
                "compile_topology"
            )
    else:
        found = read.select(instance, devices)
    if found.mesh is None and found.instance.devices is None and devices is None:
        # Otherwise a misspelt name would switch the checks of the mesh off.
        name = found.instance.name
        raise UsageError(f"--instance {name}: {found.instance.why}; give --device-count too")
    return found


class UsageError(ValueError):
    """Contradictory arguments."""
