"""What devices send each other: every collective, its mesh axes, bytes, tensors, how often."""

from __future__ import annotations

from hlofast._collectives import KEYS, Collectives
from hlofast._text import add_top
from hlofast.cli import USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._result import Result, Section

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
    inputs.add_files(parser)
    results.add_json(parser)
    inputs.add_mesh(parser)
    parser.add_argument(
        "--by", choices=list(KEYS), help="totals by this only (default by axis, then each one)"
    )
    add_top(parser)
    parser.add_argument(
        "--pieces", action="store_true", help="list the arrays that collectives put together"
    )
    parser.add_argument(
        "--alpa", action="store_true", help="Alpa's counters, costs and gradient channels"
    )
    inputs.add_rules(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the collectives of every module."""
    given = inputs.read_mesh_and_rules(arguments)
    if given is None:
        return USAGE
    mesh, rules = given

    def analyse(found: inputs.Found) -> tuple[Result, tuple[Section, ...]]:
        inputs.note_misfit(found.module, found.path, mesh)
        sent = found.module.collectives(mesh, rules=rules)
        return sent, sent.sections(arguments.by, pieces=arguments.pieces, alpa=arguments.alpa)

    return results.run_modules(Collectives, arguments, analyse)
