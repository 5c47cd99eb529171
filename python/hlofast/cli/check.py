"""What was declared beside what was compiled: mesh, shardings, policy, loops, bytes, FLOPs."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import FINDINGS, UNREADABLE, USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._check import Check, Comparison, Declaration, Expectations
    from hlofast.config import EffectiveConfig

EXAMPLES = """\
examples:
  hlofast check mesh.toml module_0042.jit_train_step.after_optimizations.txt
  hlofast check --expect limits.toml step.txt                     demands alone
  hlofast check fuji-70B.txt step.txt --instance tpu-v6e-256-4     an AXLearn golden config
  hlofast check mesh.toml step.txt --fail-on warning
  hlofast check --json mesh.toml step.txt | jq '.modules[].comparisons[] | [.severity, .code]'

CONFIG is an AXLearn golden config, of which --instance selects a mesh rule, or a TOML description
of what the program is meant to be; what is left out is not compared:

  [mesh]
  axes = { data = 4, fsdp = 64, model = 4 }      # in order, the last one fastest
  batch_axes = ["data", "fsdp"]
  [model]
  layers = 80
  accumulation_steps = 4
  [[parameters]]
  name = ".*/layers/query"                       # regular expression for the path
  spec = ["", "fsdp", "model"]                   # per dimension: an axis, a list, or none
  [[kept]]                                       # what the checkpoint policy keeps
  name = "query"
  shape = "bf16[1,2048,2048]"                    # of one layer on one device, or bytes = ...
  place = "host"
  [predicted]                                    # state_bytes, offloaded_bytes, gathered_bytes,
  gathered_bytes = 273804165120                  # flops, peak_bytes: of a step on one device
  [limits]
  hbm = "31.25GiB"

--expect takes limits: peak.max = "15.5GiB", collectives.fsdp.all-gather.max_bytes = "1.6GiB",
flops.max = 2e15, lint.forbid = ["missed-reduce-scatter"]. Exit code 1 if anything is an error.
"""
VERSION = 1
SAMPLE = 1 << 16
"""Bytes of a file that show what it is."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="what was declared: a TOML description or a golden config",
    )
    inputs.add_files(parser, several=False)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    output.add_top(parser)
    parser.add_argument("--instance", metavar="NAME", help="the instance, of a golden config")
    parser.add_argument(
        "--devices", type=output.natural, metavar="N", help="how many, where its name does not say"
    )
    parser.add_argument("--expect", metavar="FILE.toml", help="limits that the program must keep")
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "note"),
        default="error",
        metavar="SEVERITY",
        help="exit with code 1 from this severity on: error (default), warning, note",
    )
    parser.add_argument("--all", action="store_true", help="also list what agrees")


def run(arguments: argparse.Namespace) -> int:
    """Compare what was declared with every module of the file."""
    if arguments.config is None and arguments.expect is None:
        inputs.complain("there is nothing to compare with: CONFIG or --expect is missing")
        return USAGE
    read = _read(arguments)
    if isinstance(read, int):
        return read
    declaration, expected = read
    import hlofast

    reader = inputs.Reader(arguments)
    printer = None if arguments.json else output.Printer()
    documents = []
    failed = False
    severities = hlofast.Check.SEVERITIES
    grave = severities[: severities.index(arguments.fail_on) + 1]
    for found in reader:
        try:
            check = hlofast.check(declaration, found.module, expected)
        except (ValueError, OverflowError) as error:
            reader.failed(found.path, error)
            continue
        failed |= any(one.severity in grave for one in check.found())
        document = found.describe() | _describe(check)
        documents.append(document)
        if printer is not None:
            _print(printer, document, arguments)
    if printer is None:
        contents = {"modules": documents, "failed": failed, "errors": reader.errors}
        output.print_json("check", VERSION, contents)
    return reader.exit_code() or (FINDINGS if failed else 0)


def _read(
    arguments: argparse.Namespace,
) -> tuple[Declaration | EffectiveConfig, Expectations | None] | int:
    """What was declared and what is expected; the exit code, with a reason said, without them."""
    import hlofast

    path, expected = arguments.config, None
    try:
        declaration = read_declaration(path, arguments.instance, arguments.devices)
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
        if arguments.json:
            contents = {"modules": [], "failed": False, "errors": failures.errors}
            output.print_json("check", VERSION, contents)
        return UNREADABLE
    return declaration, expected


def read_declaration(
    path: str | None, instance: str | None, devices: int | None
) -> Declaration | EffectiveConfig:
    """What was declared in a file, of a golden config on an instance.

    A `UsageError` where the arguments do not go together; what reading raises besides.
    """
    import hlofast
    from hlofast import config

    if path is None:
        return hlofast.Declaration()
    with open(path, "rb") as file:
        start = file.read(SAMPLE)
    if path.endswith(".toml") or not config.is_config(start):
        if instance is not None:
            raise UsageError("--instance goes with a golden config, which this is not")
        return hlofast.Declaration.load(path)
    if instance is None:
        raise UsageError("a golden config needs --instance, which selects its mesh rule")
    return config.load(path).select(instance, devices)


class UsageError(ValueError):
    """Arguments that do not go together."""


def _describe(check: Check) -> dict[str, Any]:
    """The JSON form of one module's comparisons."""
    mesh = check.declaration.mesh
    return {
        "declared_by": check.declaration.source,
        "mesh": None if mesh is None else mesh.shape,
        "counts": check.counts(),
        "comparisons": [_comparison(check, one) for one in check],
    }


def _comparison(check: Check, one: Comparison) -> dict[str, Any]:
    row = one.instruction
    texts = ("code", "severity", "subject", "declared", "compiled", "message", "bytes")
    return {
        **{name: getattr(one, name) for name in texts},
        "instruction": row,
        "name": None if row is None else check.module[row].name,
        "provenance": one.provenance,
    }


def _print(printer: output.Printer, document: dict[str, Any], arguments: Any) -> None:
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    counts = document["counts"]
    mesh = document["mesh"]
    said = [f"{counts[severity]:,} {severity}" for severity in counts if counts[severity]]
    printer.heading(document["name"])
    printer.facts(
        [
            ("file", f"{document['path']}{line}"),
            ("declared by", document["declared_by"]),
            ("mesh", "" if mesh is None else ",".join(f"{name}={mesh[name]}" for name in mesh)),
            ("compared", ", ".join(said) or "nothing"),
        ]
    )
    found = [one for one in document["comparisons"] if one["severity"] != "agrees"]
    order = list(counts)
    found.sort(key=lambda one: (order.index(one["severity"]), -(one["bytes"] or 0)))
    for one in found[: arguments.top or None]:
        printer.line()
        stake = "" if not one["bytes"] else f": {output.size(one['bytes'])}"
        printer.heading(f"{one['severity']}: {one['code']}{stake}")
        printer.paragraph("  subject:  ", one["subject"])
        printer.paragraph("  declared: ", one["declared"])
        printer.paragraph("  compiled: ", one["compiled"])
        printer.paragraph("  that is:  ", one["message"])
        if one["name"]:
            printer.paragraph("  shown by: ", one["name"])
    if arguments.top and len(found) > arguments.top:
        printer.line()
        printer.line(f"{len(found) - arguments.top:,} more (--top 0 shows all)")
    agreeing = [one for one in document["comparisons"] if one["severity"] == "agrees"]
    if arguments.all:
        rows = [[one["code"], one["subject"], one["compiled"], one["message"]] for one in agreeing]
        printer.table("As declared", ["what", "subject", "compiled", "that is"], rows, len(rows))
    else:
        axes = [one for one in agreeing if one["code"] == "collective-axes"]
        rows = [[one["subject"], one["bytes"], one["message"]] for one in axes]
        printer.table("Collectives by axes", ["what", "B in a step", "that is"], rows, len(rows))
    printer.line()
