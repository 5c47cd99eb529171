"""What a module computes again, what it keeps instead, what becomes of gathers, what to change."""

from __future__ import annotations

from hlofast._memory import RULES
from hlofast._remat import Remat
from hlofast.cli import FINDINGS, UNREADABLE, USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast remat module_0042.jit_train_step.after_optimizations.txt
  hlofast remat --mesh data=2,model=4 step.txt
  hlofast remat --top 0 step.txt                 everything that is kept
  hlofast remat --plan step.txt                  what to compute again to need less memory
  hlofast remat --hbm 16GiB --device tpu-v5e step.txt
  hlofast remat --hbm 16GiB --apply -o less.txt step.txt
  hlofast remat --json step.txt | jq '.results[].tables.statements[] | {code, advice}'

Residuals are what forward code makes and backward code reads. Recomputed is what jax.checkpoint,
or the compiler, has executed again instead: operation names tell, else earlier instructions that
compute the same. A gather's result is kept where it, or a copy of it, is a residual.

A plan tries what could be computed again in modules of their own, and counts what they need at the
peak: by default what compiled.memory_analysis() reports of scheduled TPU programs (rule xla), and
what is alive of others (rule in_place), as `hlofast memory` has both. --apply writes the module in
which all of it is computed again.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    plan = parser.add_argument_group("what to compute again; --hbm and --device ask for it too")
    plan.add_argument("--plan", action="store_true", help="so that less memory is needed")
    plan.add_argument("--rule", choices=RULES, help="how the peak is counted (see hlofast memory)")
    plan.add_argument("--apply", action="store_true", help="write the new module; goes with -o")
    plan.add_argument("-o", "--output", metavar="OUT", help="file for the new module")


def run(arguments: argparse.Namespace) -> int:
    """Report on the modules of every file."""
    if arguments.apply != (arguments.output is not None):
        inputs.complain("--apply and -o go together")
        return USAGE
    given = (arguments.hbm, arguments.device, arguments.rule)
    is_plan = arguments.plan or arguments.apply or any(one is not None for one in given)
    reader = inputs.Reader(arguments, inputs.read_context(arguments))
    shower = results.Shower(Remat, arguments)
    code = 0
    modules = list(reader) if arguments.apply else reader
    if isinstance(modules, list) and len(modules) > 1:
        inputs.complain("--apply takes one module; --module NAME selects it")
        return USAGE
    for found in modules:
        remat = found.module.remat(rule=arguments.rule)
        sections = remat.sections()
        if is_plan:
            try:
                sections = remat.sections(plan=True)
            except ValueError as error:
                inputs.complain(f"{found.path}: {found.module.name}: {error}")
                code = USAGE
        if arguments.apply:
            try:
                code = code if _apply(remat, arguments.output) else FINDINGS
            except OSError as error:
                inputs.complain(f"{arguments.output}: {error.strerror or error}")
                code = UNREADABLE
        shower.show(remat, sections, found)
    shower.end(reader.errors)
    return reader.exit_code() or code


def _apply(remat: Remat, path: str) -> bool:
    """Write the new module beside `path` and move it there; False if there is none to write.

    An `OSError` if it cannot be written.
    """
    from hlofast._files import replacing

    try:
        text = remat.apply().to_text()
    except ValueError as error:
        inputs.complain(f"{error}; nothing is written")
        return False
    with replacing(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))
    return True
