"""Arguments that name trainer configs: files, and overrides of MaxText's values."""

from __future__ import annotations

import re

from hlofast.cli import inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast.config import Config

_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")
_DEFAULTS = "defaults.yml"
"""The name of MaxText's defaults, where only overrides are given."""


def add_files(parser: argparse.ArgumentParser) -> None:
    """Declares FILE and KEY=VALUE arguments."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE|KEY=VALUE", help='config; "-" is standard input'
    )
    parser.add_argument("--base", metavar="FILE", help="base.yml for MaxText configs")


def split(arguments: argparse.Namespace) -> None:
    """Separates files from overrides; overrides alone apply to MaxText's defaults."""
    import os

    given = arguments.files
    overrides = [each for each in given if _OVERRIDE.match(each) and not os.path.exists(each)]
    arguments.overrides = overrides
    arguments.files = [each for each in given if each not in overrides]
    if not arguments.files:
        arguments.files = [_DEFAULTS]


def read(
    path: str, arguments: argparse.Namespace | None, failures: inputs.Failures
) -> Config | None:
    """Returns the config in a FILE argument; prints an error and returns None if there is none.

    Without `arguments`, the file is read as written.
    """
    import os

    from hlofast import config

    name = "<stdin>" if path == "-" else path
    overrides = () if arguments is None else arguments.overrides
    base = None if arguments is None else arguments.base
    environment = {key: text for key, text in os.environ.items() if key.startswith("M_")}
    try:
        text = "" if path == _DEFAULTS else inputs.read(path)
        return config.loads(
            text,
            path=name,
            overrides=overrides,
            base=base,
            environment=None if arguments is None else environment,
        )
    except (OSError, ModuleNotFoundError, config.ConfigError) as error:
        failures.failed(name, error)
        return None
