"""Shows a step with another batch, sequence, number of layers, mesh or checkpoint policy."""

from __future__ import annotations

from hlofast._context import MeshMisfitError
from hlofast._files import replacing
from hlofast._what_if import WhatIf
from hlofast.cli import DONE, UNREADABLE, inputs, pages, policies, results
from hlofast.errors import FragmentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from hlofast._result import Result

EXAMPLES = """\
examples:
  hlofast what-if --batch 2x step.txt
  hlofast what-if --batch 64 --sequence 8192 --device tpu-v5p step.txt
  hlofast what-if --layers 40 --mesh data=2,model=4 --mesh-to data=4,model=4 step.txt
  hlofast what-if --sequence tokens=4096 step.txt            one of several inputs
  hlofast what-if --sequence 128:256 step.txt                dimensions of inputs with 128 elements
  hlofast what-if --policy nothing_saveable step.txt
  hlofast what-if --save model.py:88 --offload mlp/dot_general step.txt
  hlofast what-if --batch 2x -o larger.txt step.txt && hlofast memory larger.txt
  hlofast what-if --batch 2x --json step.txt | jq '.results[].tables.wire_bytes'

Every dimension of the compiled module is traced back to a dimension of an entry parameter and to
mesh axes: batch and sequence are dimensions of the inputs, layers the dimension that a loop slices.
The module is rewritten with the new sizes and analysed like any other. Instructions, fusions,
layouts and the schedule stay as compiled. Sizes are global, over all devices; axes that --mesh-to
leaves out keep their sizes. Without a change, the command shows the roles of dimensions. -o writes
the changed module: a text to measure, not a program to run.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    change = parser.add_argument_group("change")
    for role, what in (
        ("batch", "sequences of a step on all devices"),
        ("sequence", "positions of a sequence"),
        ("layers", "layers of the loop over layers"),
    ):
        change.add_argument(
            f"--{role}",
            type=sizes,
            metavar="SIZE",
            help=f"new number of {what}: 64, 2x, OLD:NEW for what has OLD elements, "
            "or NAME=SIZE for the parameter with NAME",
        )
    change.add_argument(
        "--mesh-to", metavar="data=4", help="new sizes of mesh axes, such as data=4,model=2"
    )
    policies.add_policy(change)
    change.add_argument("-o", "--output", metavar="OUT", help="write the changed module to OUT")


def sizes(text: str) -> str | Mapping[str, str]:
    """Reads `64`, `2x`, `OLD:NEW` or `NAME=SIZE,NAME=SIZE`."""
    if "=" not in text:
        return text
    pairs = [part.partition("=") for part in text.split(",")]
    if any(not name.strip() or not size.strip() for name, _, size in pairs):
        raise ValueError(text)
    return {name.strip(): size.strip() for name, _, size in pairs}


def run(arguments: argparse.Namespace) -> int:
    """Reports on every module."""
    written: list[str] = []
    out = arguments.output
    if out is not None and (code := pages.check_place(out, arguments.files)) != DONE:
        return code

    def analyse(loaded: inputs.Found) -> tuple[Result, None]:
        try:
            result = loaded.module.what_if(
                batch=arguments.batch,
                sequence=arguments.sequence,
                layers=arguments.layers,
                mesh=arguments.mesh_to,
                policy=arguments.policy,
                save=arguments.save or (),
                offload=arguments.offload or (),
            )
            result.facts  # noqa: B018 - raises where sizes exceed 64 bits, before anything is shown.
        except FragmentError:
            raise  # Not a wrong option: it ends with code 3, as from other verbs.
        except (ValueError, OverflowError) as error:
            message = f"{loaded.path}: {loaded.module.name}: {error}"
            raise results.UnusableError(message) from None
        if arguments.output is not None:
            if written:
                raise results.UnusableError("-o takes one module: choose it with --module NAME")
            written.append(loaded.path)
            with replacing(arguments.output) as file:
                file.write(result.changed.text.encode("utf-8", "surrogateescape"))
            results.note_to_measure(arguments.output, "the module with other sizes")
            if result.policy is not None:
                inputs.complain("note: the checkpoint policy is not applied to it")
        return result, None

    try:
        return results.run_modules(WhatIf, arguments, analyse)
    except MeshMisfitError as error:
        text = (
            f"{error}; --mesh is what the module was compiled for: for the step on another mesh, "
            f"give --mesh-to {arguments.mesh}"
        )
        raise MeshMisfitError(text if arguments.mesh_to is None else str(error)) from None
    except OSError as error:
        if not written:
            raise
        inputs.complain(f"{arguments.output}: {error.strerror or error}")
        return UNREADABLE
