"""Shows pipeline stages marked by Alpa: sections, residuals, traffic, further micro-batches."""

from __future__ import annotations

from hlofast._stages import Stages
from hlofast.cli import inputs, results, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._result import Result

EXAMPLES = """\
examples:
  hlofast stages mesh_1.hlo.txt
  hlofast stages --hbm 16GiB mesh_1.hlo.txt                 how many stages may follow this one
  hlofast stages --device a100 --device-count 4 mesh_1.hlo.txt
  hlofast stages --json mesh_1.hlo.txt | jq '.results[].tables.stash[] | [.kind, .bytes, .name]'

A section is enclosed by a pair of markers, which may be inside calls. Residuals between a forward
section and its backward section are kept for each micro-batch in flight. A cheaper boundary sends
fewer bytes: it moves instructions that depend on received values to the previous stage, at most
half of the forward FLOPs (--most-moved).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    parser.add_argument(
        "--device-count",
        type=values.count,
        default=1,
        metavar="N",
        help="number of devices that share the stage evenly (default 1)",
    )
    parser.add_argument(
        "--most-moved",
        type=values.share,
        metavar="X",
        help="largest share of the forward FLOPs that a cheaper boundary may move (default 0.5)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Reports on the stages of every module."""

    def analyse(loaded: inputs.Found) -> tuple[Result, None]:
        devices, most_moved = arguments.device_count, arguments.most_moved
        return loaded.module.stages(devices=devices, most_moved=most_moved), None

    return results.run_modules(Stages, arguments, analyse)
