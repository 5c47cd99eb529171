"""Arguments that name trainer configs: files, and overrides of MaxText's values."""

from __future__ import annotations

import re

from hlofast.cli import inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from hlofast.config import Config

_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")
DEFAULTS = "MaxText's defaults"
"""What messages name in place of a FILE, where only overrides are given; told by its identity."""


def add_files(parser: argparse.ArgumentParser) -> None:
    """Declares FILE and KEY=VALUE arguments."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE|KEY=VALUE", help='config; "-" is standard input'
    )
    add_base(parser)


def add_base(parser: argparse.ArgumentParser) -> None:
    """Declares the file of MaxText's defaults."""
    parser.add_argument("--base", metavar="FILE", help="base.yml for MaxText configs")


def split(arguments: argparse.Namespace) -> None:
    """Separates files from overrides; overrides alone apply to MaxText's defaults."""
    arguments.files, arguments.overrides = separated(arguments.files)
    if not arguments.files:
        arguments.files = [DEFAULTS]


def separated(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files and the overrides among arguments."""
    import os

    overrides = [each for each in given if _OVERRIDE.match(each) and not os.path.exists(each)]
    return [each for each in given if each not in overrides], overrides


def loaded(path: str, overrides: Sequence[str] = (), base: str | None = None) -> Config:
    """The config in a FILE argument under overrides and the process' environment.

    Raises `OSError` and `ConfigError`.
    """
    import os

    from hlofast import config

    variables = {key: text for key, text in os.environ.items() if key.startswith("M_")}
    if path is DEFAULTS:
        return config.load(overrides=overrides, base=base, environment=variables)
    return config.loads(
        inputs.read(path),
        path="<stdin>" if path == "-" else path,
        overrides=overrides,
        base=base,
        environment=variables,
    )


def read(
    path: str, arguments: argparse.Namespace | None, failures: inputs.Failures
) -> Config | None:
    """Returns the config in a FILE argument; prints an error and returns None if there is none.

    Without `arguments`, the file is read as written.
    """
    from hlofast import config

    name = "<stdin>" if path == "-" else path
    try:
        if arguments is None:
            return config.loads(inputs.read(path), path=name)
        return loaded(path, arguments.overrides, arguments.base)
    except (OSError, ModuleNotFoundError, config.ConfigError) as error:
        # It may be that of another file, such as the base.
        failures.failed(getattr(error, "filename", None) or name, error)
        return None
