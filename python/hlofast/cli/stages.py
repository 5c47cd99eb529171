"""Pipeline stages as Alpa marks them: sections, what stays, what is sent, what else would fit."""

from __future__ import annotations

from hlofast._stages import Stages
from hlofast.cli import inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._result import Result

EXAMPLES = """\
examples:
  hlofast stages mesh_1.hlo.txt
  hlofast stages --hbm 16GiB mesh_1.hlo.txt                 how many stages may follow
  hlofast stages --device a100 --device-count 4 mesh_1.hlo.txt
  hlofast stages --json mesh_1.hlo.txt | jq '.results[].tables.stash[] | [.kind, .bytes, .name]'

Sections lie between pairs of markers, which are found through the calls that wrap them. What stays
from a forward section to its backward section does so for each micro-batch in flight. A boundary is
cheaper where fewer bytes cross it; looked for among what depends on what the stage receives, as
long as at most half of the forward FLOPs (--most-moved) go to the stage before.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    parser.add_argument(
        "--device-count",
        type=inputs.count,
        default=1,
        metavar="N",
        help="devices that share the stage evenly (default 1)",
    )
    parser.add_argument(
        "--most-moved",
        type=share,
        metavar="X",
        help="largest share of the forward FLOPs that a cheaper cut may move (default 0.5)",
    )


def share(text: str) -> float:
    """The share in an argument."""
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def run(arguments: argparse.Namespace) -> int:
    """Report on the stages of every module."""

    def analyse(found: inputs.Found) -> tuple[Result, None]:
        devices, most_moved = arguments.device_count, arguments.most_moved
        return found.module.stages(devices=devices, most_moved=most_moved), None

    return results.run_modules(Stages, arguments, analyse)
