"""Finds what to change in the model or its sharding, with the evidence and the cost at stake."""

from __future__ import annotations

from hlofast._lint import OPTIONS, RULES, Findings
from hlofast._names import meant
from hlofast.cli import FINDINGS, USAGE, inputs, results, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._result import Result, Section

_WIDTH = max(map(len, RULES))
_CODES = "\n".join(f"  {code:<{_WIDTH}}  {what}" for code, what in RULES.items())
EXAMPLES = f"""\
examples:
  hlofast lint module_0042.jit_train_step.after_optimizations.txt
  hlofast lint --mesh data=2,model=4 step.txt
  hlofast lint --fail-on missed-reduce-scatter,one-hot-matmul step.txt  exit code 1 if found
  hlofast lint --fail-on any --min-share 0.05 step.txt
  hlofast lint --json step.txt | jq '.results[].tables.findings[] | [.code, .bytes, .flops]'

codes:
{_CODES}

Findings are ordered by their cost per step and device, over all calls: by modelled seconds if the
device is known. Findings about memory have no seconds; they come last, or first if the step does
not fit the device. Instructions of one source line form one finding. Wire bytes assume ring
algorithms.
"""
ANY = "any"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    parser.add_argument(
        "--fail-on",
        metavar="CODE,...",
        help=f'exit with code 1 if one of these is found; "{ANY}" stands for every code',
    )
    parser.add_argument(
        "--only", metavar="CODE,...", help="show only these findings; --fail-on still sees all"
    )
    parser.add_argument(
        "--min-share",
        type=values.threshold,
        default=OPTIONS["min_share"],
        metavar="X",
        help="smallest share of all collective bytes or matmul FLOPs for a finding"
        " (default %(default)s)",
    )
    parser.add_argument(
        "--min-replicated-share",
        type=values.threshold,
        default=OPTIONS["min_replicated_share"],
        metavar="X",
        help="smallest share of the parameter bytes that sharding saves, and of the peak that"
        " recomputed masks save (default %(default)s)",
    )
    parser.add_argument(
        "--min-undonated-bytes",
        type=values.size,
        default=OPTIONS["min_undonated_bytes"],
        metavar="SIZE",
        help="smallest state that is reported as not donated (default %(default)s)",
    )
    parser.add_argument(
        "--overlap-flops-per-byte",
        type=values.threshold,
        default=OPTIONS["overlap_flops_per_byte"],
        metavar="X",
        help="FLOPs per sent byte, between start and done, that count as overlap"
        " (default %(default)s)",
    )


def _wanted(option: str, text: str | None) -> set[str] | None:
    """Returns the codes in an option; prints an error and returns None for an unknown code."""
    codes = {code.strip() for code in (text or "").split(",") if code.strip()}
    if text is not None and not codes:
        # An unset variable in a script would otherwise switch the check off.
        inputs.complain(f"{option} {text!r} names no code; give one of {', '.join(RULES)}, {ANY}")
        return None
    if ANY in codes:
        return set(RULES)
    unknown = sorted(codes - set(RULES))
    if unknown:
        hint = meant(unknown[0], RULES) or ";"
        known = f"known codes: {', '.join(RULES)}, {ANY}"
        inputs.complain(f"{option}: unknown code {unknown[0]!r}{hint} {known}")
        return None
    return codes


def run(arguments: argparse.Namespace) -> int:
    """Lists the findings of every module."""
    wanted = _wanted("--fail-on", arguments.fail_on)
    only = _wanted("--only", ANY if arguments.only is None else arguments.only)
    if wanted is None or only is None:
        return USAGE
    options = {
        "min_share": arguments.min_share,
        "min_replicated_share": arguments.min_replicated_share,
        "min_undonated_bytes": arguments.min_undonated_bytes,
        "overlap_flops_per_byte": arguments.overlap_flops_per_byte,
    }
    failed: set[str] = set()

    def analyse(loaded: inputs.Found) -> tuple[Result, tuple[Section, ...]]:
        findings = loaded.module.lint(**options)
        failed.update(wanted & set(findings.counts()))
        return findings, findings.sections(only)

    code = results.run_modules(Findings, arguments, analyse)
    if failed:
        inputs.complain(f"found: {', '.join(sorted(failed))}")
    return code or (FINDINGS if failed else 0)
