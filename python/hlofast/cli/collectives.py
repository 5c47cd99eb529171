"""Lists every collective: mesh axes, payload and wire bytes, tensor kinds, call count, source."""

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
  hlofast collectives --by source --top 20 step.txt  source lines that send most
  hlofast collectives --pieces step.txt              arrays inside combined collectives
  hlofast collectives --alpa step.txt                Alpa's counters and costs
  hlofast collectives --json step.txt | jq '.results[].tables.groups'

A collective counts once, however it is written: as one instruction, as a start/done pair, in an
asynchronous computation, or in one or several fusions. Axes are those of --mesh, otherwise of the
mesh in the text. Payload is the size of the full array (for an all-gather, its result). Wire bytes
are the bytes that each device sends in a ring over its group of n: 2(n-1)/n of the payload for an
all-reduce, the whole payload for a permute or a transfer, (n-1)/n of the payload for other kinds.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    parser.add_argument(
        "--by",
        choices=list(KEYS),
        help="totals by this key (default: by axis, then each collective)",
    )
    parser.add_argument(
        "--pieces", action="store_true", help="list the arrays inside combined collectives"
    )
    parser.add_argument(
        "--alpa", action="store_true", help="show Alpa's counters, costs and gradient channels"
    )


def run(arguments: argparse.Namespace) -> int:
    """Lists the collectives of every module."""

    def analyse(loaded: inputs.Found) -> tuple[Result, tuple[Section, ...]]:
        sent = loaded.module.collectives()
        return sent, sent.sections(arguments.by, pieces=arguments.pieces, alpa=arguments.alpa)

    return results.run_modules(Collectives, arguments, analyse)
