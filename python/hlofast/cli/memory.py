"""Shows live values at the memory peak, by class, scope and source, and XLA's own peak."""

from __future__ import annotations

from hlofast import _memory
from hlofast._memory import Memory
from hlofast._memory_account import FILES
from hlofast.cli import USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._result import Result, Section

EXAMPLES = """\
examples:
  hlofast memory module_0042.jit_train_step.after_optimizations.txt
  hlofast memory --by scope --top 20 step.txt    layers with the most live bytes at the peak
  hlofast memory --at fusion.12 step.txt         live values while fusion.12 runs
  hlofast memory --device tpu-v5e step.txt       whether the program fits the device
  hlofast memory --space vmem step.txt           fast on-chip memory of a TPU program
  hlofast memory --json step.txt | jq '.results[].tables.live[] | select(.class == "residual")'

--rule in_place lets a result reuse the buffer of an operand that is not used later; values counts
both buffers, as XLA's live-range file does; xla counts like libtpu, which keeps parameters,
constants and results live throughout the program. The XLA peak is the peak of
`compiled.memory_analysis()`, which counts the largest heap of any memory space. With --device or
--hbm, the bytes allocated in HBM are compared with HBM; they come from XLA's file if it is next to
FILE, otherwise from a model that includes fragmentation.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    parser.add_argument(
        "--at",
        metavar="INSTRUCTION",
        help="list live values while INSTRUCTION runs, instead of at the peak",
    )
    parser.add_argument(
        "--by",
        choices=_memory.KEYS,
        default="class",
        help="key of the sums at the peak (default class)",
    )
    parser.add_argument(
        "--space", metavar="SPACE", help="memory space: hbm (default), vmem, host, a number or all"
    )
    parser.add_argument(
        "--rule",
        choices=_memory.RULES,
        default="in_place",
        help="which values share memory, see below (default in_place)",
    )
    parser.add_argument(
        "--sizes",
        choices=("device", "logical"),
        default="device",
        help="device: sizes with tiling and padding; logical: without (default device)",
    )
    parser.add_argument(
        "--constants",
        choices=("last_use", "program"),
        default="last_use",
        help="constants stay live until their last use or for the whole program (default last_use)",
    )
    parser.add_argument(
        "--schedule",
        choices=tuple(_memory.ORDERS),
        help="order of execution (default: the order of the text)",
    )
    parser.add_argument(
        "--xla-file",
        metavar="FILE",
        help="XLA's buffer assignment or memory usage report (default: the file next to FILE)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Analyses every module."""
    try:
        _memory.space_number(arguments.space)
    except ValueError as error:
        inputs.complain(str(error))
        return USAGE

    def analyse(loaded: inputs.Found) -> tuple[Result, tuple[Section, ...]]:
        memory = _analysed(loaded, arguments)
        try:
            return memory, memory.sections(arguments.by, arguments.at)
        except (KeyError, ValueError) as error:
            raise results.UnusableError(f"{loaded.path}: {error.args[0]}") from None

    return results.run_modules(Memory, arguments, analyse, shows_messages=True)


def _analysed(loaded: inputs.Found, arguments: argparse.Namespace) -> Memory:
    memory = _memory.quiet(
        loaded.module,
        rule=arguments.rule,
        sizes=arguments.sizes,
        constants=arguments.constants,
        space=arguments.space,
        schedule=arguments.schedule,
    )
    memory.xla  # noqa: B018 - raises where XLA could not count.
    content, path = _allocation(loaded, arguments.xla_file)
    if content is not None:
        file = memory.file(content, path)
        memory.allocated = file if file.total_bytes is not None else None
    return memory


def _allocation(loaded: inputs.Found, named: str | None) -> tuple[bytes | str | None, str]:
    """Returns the content and path of the file with XLA's allocations, if there is one."""
    near = [loaded.path.removesuffix(".txt") + end for end in FILES]
    paths = near if loaded.path.endswith(".txt") else []
    for path in paths if named is None else [named]:
        try:
            return inputs.read(path), path
        except OSError as error:
            if named is not None or not isinstance(error, FileNotFoundError):
                raise results.UnusableError(f"{path}: {error.strerror or error}") from None
    return loaded.module.buffer_assignment, loaded.path
