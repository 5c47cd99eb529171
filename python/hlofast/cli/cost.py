"""What a module costs: FLOPs, transcendentals and bytes, loops counted, and who causes them."""

from __future__ import annotations

from hlofast import _text
from hlofast._cost import Cost
from hlofast._cost_sections import KEYS
from hlofast.cli import USAGE, inputs, results
from hlofast.errors import ContextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._result import Result, Section

EXAMPLES = """\
examples:
  hlofast cost module_0042.jit_train_step.after_optimizations.txt
  hlofast cost --by scope --depth 4 --top 20 step.txt
  hlofast cost --explain step.txt                where and why XLA's own figures differ
  hlofast cost --xla step.txt                    what XLA's HloCostAnalysis says
  hlofast cost --step-time 310ms --device tpu-v5e step.txt
  hlofast cost --step-time 310ms --peak-flops 197T step.txt
  hlofast cost --json step.txt | jq '.results[].facts.flops.value'

As executed (the default), loops count as often as they run, and library calls and kernels as far
as they are known. Every table adds up to the module. FLOPs of a fusion belong to the instructions
inside it, its bytes to the fusion; "not exact" is the share of a row's FLOPs that is modelled,
stated by a kernel's author, or inside a loop of unknown trip count. HFU counts recomputation, MFU
does not; the peak is that of --device for 16-bit floats, or --peak-flops. --rules names a TOML
file of phases for names that are not JAX's:

  [[rule]]
  pattern = "optimizer/.*"                       a regular expression for parts of op_name
  phase = "optimizer"
"""
BACKENDS = ("cpu", "gpu", "tpu")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    parser.add_argument("--by", choices=KEYS, default="phase", help="rows (default phase)")
    parser.add_argument(
        "--depth",
        type=_text.natural,
        default=3,
        metavar="N",
        help="components of a scope, with --by scope (default 3)",
    )
    parser.add_argument("--backend", choices=BACKENDS, help="whose sizes (default the module's)")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--xla", action="store_true", help="count as XLA does: loops once")
    way.add_argument("--explain", action="store_true", help="show how XLA's figures differ")
    parser.add_argument(
        "--peak-flops",
        type=inputs.rate,
        metavar="197T",
        help="peak of one device in FLOP/s, with --step-time (default the device's)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Count what the modules of every file cost."""
    if arguments.step_seconds is None and arguments.peak_flops is not None:
        inputs.complain("--peak-flops goes with --step-time")
        return USAGE
    if arguments.xla and arguments.step_seconds is not None:
        inputs.complain("utilization is counted as executed, not with --xla")
        return USAGE

    def analyse(found: inputs.Found) -> tuple[Result, tuple[Section, ...]]:
        cost = found.module.cost(
            xla=arguments.xla, backend=arguments.backend, peak_flops=arguments.peak_flops
        )
        if arguments.step_seconds is not None and cost.peak_flops is None:
            raise ContextError(f"{found.path}: --step-time needs --device or --peak-flops")
        by, depth = arguments.by, arguments.depth
        return cost, cost.sections(by, depth=depth, explain=arguments.explain)

    return results.run_modules(Cost, arguments, analyse)
