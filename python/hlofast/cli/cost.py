"""Counts FLOPs, transcendentals and bytes, with loops, by phase, scope, source or opcode."""

from __future__ import annotations

from hlofast import _text
from hlofast._cost import Cost
from hlofast._cost_sections import KEYS
from hlofast.cli import USAGE, inputs, results, values
from hlofast.errors import ContextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._result import Result, Section

EXAMPLES = """\
examples:
  hlofast cost module_0042.jit_train_step.after_optimizations.txt
  hlofast cost --by scope --depth 4 --top 20 step.txt
  hlofast cost --explain step.txt                where and why XLA's figures differ
  hlofast cost --xla step.txt                    the figures of XLA's HloCostAnalysis
  hlofast cost --step-time 310ms --device tpu-v5e step.txt
  hlofast cost --step-time 310ms --peak-flops 197T step.txt
  hlofast cost --json step.txt | jq '.results[].facts.flops.value'

Counts are as executed by default: loop bodies are multiplied by the trip count, and library calls
and kernels are included where their cost is known. Every table adds up to the module. The FLOPs of
a fusion are attributed to the instructions inside it, its bytes to the fusion itself. "not exact"
is the share of a row's FLOPs that is modelled, stated by a kernel's author, or inside a loop of
unknown trip count. HFU includes recomputation and matmuls that the compiler copied into several
fusions, MFU does not; both are relative to --peak-flops, or to the 16-bit peak of --device. --rules
is a TOML file that assigns phases to operation names other than JAX's:

  [[rule]]
  pattern = "optimizer/.*"                       # regular expression for parts of op_name
  phase = "optimizer"
"""
BACKENDS = ("cpu", "gpu", "tpu")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    parser.add_argument(
        "--by", choices=KEYS, default="phase", help="key of the rows (default phase)"
    )
    parser.add_argument(
        "--depth",
        type=_text.natural,
        default=3,
        metavar="N",
        help="scope components to keep, with --by scope (default 3)",
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        help="backend whose shape sizes count (default: the module's)",
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--xla", action="store_true", help="count like XLA: loop bodies once")
    way.add_argument("--explain", action="store_true", help="explain how XLA's figures differ")
    parser.add_argument(
        "--peak-flops",
        type=values.rate,
        metavar="197T",
        help="peak FLOP/s of one device, with --step-time (default: the device's)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Counts the cost of every module."""
    if arguments.step_seconds is None and arguments.peak_flops is not None:
        inputs.complain("--peak-flops needs --step-time")
        return USAGE
    if arguments.xla and arguments.step_seconds is not None:
        inputs.complain("--step-time does not go with --xla: utilization needs counts as executed")
        return USAGE

    def analyse(loaded: inputs.Found) -> tuple[Result, tuple[Section, ...]]:
        cost = loaded.module.cost(
            xla=arguments.xla, backend=arguments.backend, peak_flops=arguments.peak_flops
        )
        if arguments.step_seconds is not None and cost.peak_flops is None:
            raise ContextError(f"{loaded.path}: --step-time needs --device or --peak-flops")
        by, depth = arguments.by, arguments.depth
        return cost, cost.sections(by, depth=depth, explain=arguments.explain)

    return results.run_modules(Cost, arguments, analyse)
