"""Shows a module at a glance: compilation status, signature, opcodes, shapes and fusions.

Of a profile it shows hosts, devices, programs, steps, modules and lines.
"""

from __future__ import annotations

from hlofast._summary import Summary
from hlofast.cli import inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast summary module_0042.jit_train_step.after_optimizations.txt
  hlofast summary --top 0 step.txt               every row of every table
  hlofast summary --json step.txt | jq '.results[].tables.opcodes'
  hlofast summary host.xplane.pb                 what a profile holds
  hlofast summary --module jit_step host.xplane.pb
  gsutil cat gs://bucket/step.txt.gz | hlofast summary -

The status is the compilation stage: unoptimised (as the framework wrote it), annotated (with
shardings), partitioned (one device's program), optimised (with fusions or library calls), scheduled
(text order is the order of execution). Sizes are unpadded.

A profile is an *.xplane.pb or *.trace.json.gz of jax.profiler, or a folder with recordings, of
which the newest is read. --module NAME summarises a module inside the profile.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)


def run(arguments: argparse.Namespace) -> int:
    """Summarises every module."""
    return results.run_modules(
        Summary,
        arguments,
        lambda loaded: (loaded.module.summary(), None),
        lambda path: inputs.profile(path, arguments.module),
        shows_messages=True,
    )
