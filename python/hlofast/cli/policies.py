"""The arguments that name a checkpoint policy."""

from __future__ import annotations

from hlofast._policy import BUILT_IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def add_policy(group: argparse._ArgumentGroup) -> None:
    """Declares `--policy`, `--save` and `--offload`."""
    group.add_argument(
        "--policy",
        choices=tuple(BUILT_IN),
        help="checkpoint policy of the layers",
    )
    group.add_argument(
        "--save", action="append", metavar="VALUE", help="a value that the policy saves; repeatable"
    )
    group.add_argument(
        "--offload",
        action="append",
        metavar="VALUE",
        help="a value that the policy moves to host memory; repeatable",
    )
