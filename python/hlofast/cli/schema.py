"""Prints the JSON Schema of a verb's `--json` output."""

from __future__ import annotations

import os
import sys

from hlofast.cli import DONE, USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast schema                   verbs that have a schema
  hlofast schema collectives       the schema of one verb
  hlofast schema cost | jq '.properties.results.items.properties.facts.properties | keys'

Every document names its schema and version: {"schema": "hlofast.VERB", "version": N, ...}.
"""
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "schemas")
_ENDING = ".json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "verb", nargs="?", metavar="VERB", help="verb (default: list verbs with a schema)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints a schema, or the names of all schemas."""
    names = sorted(
        name.removesuffix(_ENDING) for name in os.listdir(_FOLDER) if name.endswith(_ENDING)
    )
    if arguments.verb is None:
        sys.stdout.write("".join(f"{name}\n" for name in names))
        return DONE
    if arguments.verb not in names:
        from hlofast._names import meant

        hint = meant(arguments.verb, names)
        inputs.complain(f"no schema {arguments.verb!r}; choose one of {', '.join(names)}{hint}")
        return USAGE
    with open(os.path.join(_FOLDER, arguments.verb + _ENDING), encoding="utf-8") as file:
        sys.stdout.write(file.read())
    return DONE
