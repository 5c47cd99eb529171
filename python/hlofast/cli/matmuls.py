"""Lists every matmul (dot, convolution, GEMM call): M, N, K, types, FLOPs, call count, source."""

from __future__ import annotations

from hlofast import _text
from hlofast._matmuls import KEYS, Matmuls
from hlofast.cli import results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._result import Result, Section
    from hlofast.cli import inputs

EXAMPLES = """\
examples:
  hlofast matmuls module_0042.jit_train_step.after_optimizations.txt
  hlofast matmuls --by phase step.txt
  hlofast matmuls --by scope --depth 4 step.txt
  hlofast matmuls --by source --top 20 step.txt  source lines with the most FLOPs
  hlofast matmuls --json step.txt | jq '.results[].tables.matmuls[] | select(.k < 128)'

FLOPs are 2 * batch * M * N * K times the call count; convolutions do not count taps on padding.
Types are those of the operands, the result and the accumulator.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    parser.add_argument(
        "--by", choices=list(KEYS), help="totals by this key (default: each matmul)"
    )
    parser.add_argument(
        "--depth",
        type=_text.natural,
        metavar="N",
        help="scope components to keep, with --by scope (default: all)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Lists the matmuls of every module."""

    def analyse(loaded: inputs.Found) -> tuple[Result, tuple[Section, ...]]:
        products = loaded.module.matmuls()
        return products, products.sections(arguments.by, arguments.depth)

    return results.run_modules(Matmuls, arguments, analyse)
