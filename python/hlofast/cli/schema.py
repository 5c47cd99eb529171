"""The JSON Schema of what a verb prints with `--json`."""

from __future__ import annotations

import os
import sys

from hlofast.cli import DONE, USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast schema                   the verbs that have one
  hlofast schema collectives       one of them
  hlofast schema cost | jq '.properties.results.items.properties.facts.properties | keys'

A document says its schema and the schema's version: {"schema": "hlofast.VERB", "version": N, ...}.
"""
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "schemas")
_ENDING = ".json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("verb", nargs="?", metavar="VERB", help="the verb (default: list them)")


def run(arguments: argparse.Namespace) -> int:
    """Print a schema, or the names of all."""
    names = sorted(
        name.removesuffix(_ENDING) for name in os.listdir(_FOLDER) if name.endswith(_ENDING)
    )
    if arguments.verb is None:
        sys.stdout.write("".join(f"{name}\n" for name in names))
        return DONE
    if arguments.verb not in names:
        from hlofast._names import meant

        hint = meant(arguments.verb, names)
        inputs.complain(f"no schema {arguments.verb!r}; one of {', '.join(names)}{hint}")
        return USAGE
    with open(os.path.join(_FOLDER, arguments.verb + _ENDING), encoding="utf-8") as file:
        sys.stdout.write(file.read())
    return DONE
