"""Findings: what to change in the model or its sharding, with the evidence and what it saves."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import FINDINGS, USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._lint import Finding, Findings

EXAMPLES = """\
examples:
  hlofast lint module_0042.jit_train_step.after_optimizations.txt
  hlofast lint --mesh data=2,model=4 step.txt
  hlofast lint --fail-on missed-reduce-scatter,one-hot-matmul step.txt  exit code 1 if found
  hlofast lint --fail-on any --min-share 0.05 step.txt
  hlofast lint --json step.txt | jq '.modules[].findings[] | [.code, .bytes, .flops]'

codes:
  missed-reduce-scatter      an all-reduce of whose result each device uses only its part
  reduced-twice              arrays that are all-reduced apart and then added
  gathered-twice             a gather of what the devices hold already
  recomputed-collectives     collectives that recomputation repeats
  low-precision-in-f32       matrix products of 32-bit copies of 16-bit parameters
  one-hot-matmul             matrix products with a one-hot matrix
  replicated-parameter       parameters that several devices hold the same of
  not-overlapped             asynchronous collectives with nothing to do meanwhile
  full-rematerialisation     arrays gathered only to be cut again
  loop-invariant-collective  collectives in a loop that give the same in every iteration
  widened-weights-kept       copies of weights in a wider type, kept from forward to backward

Findings stand in the order of what they have at stake in a step: on one device, with all
executions. Places of one source line are one finding. Wire bytes are those of a ring.
"""
VERSION = 1
ANY = "any"
STATUS = {
    status: f"{status}: compilers may yet change some of what is found"
    for status in ("unoptimised", "annotated", "partitioned")
}
"""What to say of programs that the compiler has not finished."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from hlofast._lint import OPTIONS

    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    inputs.add_mesh(parser)
    parser.add_argument(
        "--fail-on",
        metavar="CODE,...",
        help=f'exit with code 1 if one of these is found; "{ANY}" for all',
    )
    parser.add_argument(
        "--min-share",
        type=share,
        default=OPTIONS["min_share"],
        metavar="X",
        help="least share of the collectives' bytes or the matrix products' FLOPs at stake"
        " (default %(default)s)",
    )
    parser.add_argument(
        "--min-replicated-share",
        type=share,
        default=OPTIONS["min_replicated_share"],
        metavar="X",
        help="least share of the parameters' bytes that sharding saves (default %(default)s)",
    )
    parser.add_argument(
        "--overlap-flops-per-byte",
        type=share,
        default=OPTIONS["overlap_flops_per_byte"],
        metavar="X",
        help="FLOPs between start and end, for each byte sent, that count as overlap"
        " (default %(default)s)",
    )
    inputs.add_rules(parser)


def share(text: str) -> float:
    """The share in an argument."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def _wanted(text: str | None) -> set[str] | None:
    """The codes of --fail-on; None, and said why, if there is no such code."""
    from hlofast._lint import CODES

    codes = {code.strip() for code in (text or "").split(",") if code.strip()}
    if ANY in codes:
        return set(CODES)
    unknown = sorted(codes - set(CODES))
    if unknown:
        inputs.complain(f"--fail-on: no code {unknown[0]!r}; one of {', '.join(CODES)}, {ANY}")
        return None
    return codes


def run(arguments: argparse.Namespace) -> int:
    """List the findings of every module."""
    given = inputs.read_mesh_and_rules(arguments)
    wanted = _wanted(arguments.fail_on)
    if given is None or wanted is None:
        return USAGE
    mesh, rules = given
    options = {
        "min_share": arguments.min_share,
        "min_replicated_share": arguments.min_replicated_share,
        "overlap_flops_per_byte": arguments.overlap_flops_per_byte,
    }
    reader = inputs.Reader(arguments)
    printer = None if arguments.json else output.Printer()
    documents = []
    failed: set[str] = set()
    for found in reader:
        inputs.note_misfit(found.module, found.path, mesh)
        findings = found.module.lint(mesh, rules=rules, **options)
        failed |= wanted & set(findings.counts())
        document = found.describe() | {
            "status": found.module.summary().status,
            "options": findings.options,
            "counts": findings.counts(),
            "findings": [_describe(finding) for finding in findings],
        }
        if printer is None:
            documents.append(document)
        else:
            _print(printer, document, findings)
    if printer is None:
        contents = {"modules": documents, "failed": sorted(failed), "errors": reader.errors}
        output.print_json("lint", VERSION, contents)
    elif failed:
        inputs.complain(f"found: {', '.join(sorted(failed))}")
    return reader.exit_code() or (FINDINGS if failed else 0)


def _describe(finding: Finding) -> dict[str, Any]:
    """The JSON form of a finding."""
    found = finding.to_dict()
    rows = zip(found.pop("instructions"), found.pop("names"), strict=True)
    found["instructions"] = [{"instruction": row, "name": name} for row, name in rows]
    found["phases"] = list(finding.phases)
    return found


def _at_stake(finding: Finding) -> str:
    least = "at least " if finding.is_lower_bound else ""
    if finding.bytes is not None:
        return f"{least}{output.size(finding.bytes)} {finding.bytes_are}"
    if finding.flops is not None:
        return least + output.quantity(finding.flops, "FLOP")
    return "unknown"


def _source(finding: Finding) -> str | None:
    if finding.source_file is None:
        return None
    return f"{finding.source_file}:{finding.source_line}"


def _print(printer: output.Printer, document: dict[str, Any], findings: Findings) -> None:
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    counts = ", ".join(f"{count} {code}" for code, count in findings.counts().items())
    printer.heading(document["name"])
    printer.facts(
        [
            ("file", f"{document['path']}{line}"),
            ("status", STATUS.get(document["status"], document["status"])),
            ("findings", counts or "none"),
            (
                "thresholds",
                ", ".join(
                    f"{name.replace('_', ' ')} {value:g}"
                    for name, value in findings.options.items()
                ),
            ),
        ]
    )
    for finding in findings:
        printer.line()
        printer.heading(f"{finding.code}: {_at_stake(finding)}")
        printer.paragraph("  found:  ", finding.message)
        printer.paragraph("  change: ", finding.remedy)
        printer.paragraph("  shown by: ", output.names(finding.names))
        where = [", ".join(finding.phases), _source(finding), finding.provenance]
        printer.paragraph("  where:  ", "; ".join(part for part in where if part))
    printer.line()
