"""What devices send each other: every collective, its mesh axes, bytes, tensors, how often."""

from __future__ import annotations

from hlofast._collectives import KEYS, Collectives
from hlofast.cli import results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._result import Result, Section
    from hlofast.cli import inputs

EXAMPLES = """\
examples:
  hlofast collectives module_0042.jit_train_step.after_optimizations.txt
  hlofast collectives --mesh data=2,model=4 step.txt
  hlofast collectives --mesh data=4,model=256 --slices 4 --by network step.txt
  hlofast collectives --by source --top 20 step.txt  which lines send most
  hlofast collectives --pieces step.txt              the arrays inside combined collectives
  hlofast collectives --alpa step.txt                Alpa's counters and costs
  hlofast collectives --json step.txt | jq '.results[].tables.groups'

A collective is one however it is written: at once, as start and done, in an asynchronous
computation, in a fusion or in several. Axes are those of --mesh, otherwise of the mesh that the
text speaks of. Payload is the whole array, of an all-gather the result; wire bytes are what each
device sends around a ring of the group: 2(n-1)/n of the payload in an all-reduce, all of it in a
permute or a transfer, (n-1)/n in others.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    parser.add_argument(
        "--by", choices=list(KEYS), help="totals by this only (default by axis, then each one)"
    )
    parser.add_argument(
        "--pieces", action="store_true", help="list the arrays that collectives put together"
    )
    parser.add_argument(
        "--alpa", action="store_true", help="Alpa's counters, costs and gradient channels"
    )


def run(arguments: argparse.Namespace) -> int:
    """List the collectives of every module."""

    def analyse(found: inputs.Found) -> tuple[Result, tuple[Section, ...]]:
        sent = found.module.collectives()
        return sent, sent.sections(arguments.by, pieces=arguments.pieces, alpa=arguments.alpa)

    return results.run_modules(Collectives, arguments, analyse)
