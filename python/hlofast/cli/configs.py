"""Arguments that name trainer configs: files, and overrides of MaxText's values."""

from __future__ import annotations

import re

from hlofast._maxtext import DEFAULTS
from hlofast.cli import inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from hlofast.config import Config, EffectiveConfig

_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")


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
    """Separates files from overrides; None stands for MaxText's defaults, without files."""
    arguments.files, arguments.overrides = separated(arguments.files)
    if not arguments.files:
        arguments.files = [None]


def separated(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files and the overrides among arguments."""
    import os

    overrides = [each for each in given if _OVERRIDE.match(each) and not os.path.exists(each)]
    return [each for each in given if each not in overrides], overrides


def named(path: str | None, base: str | None = None) -> str:
    """What messages call a FILE argument; without one, the base or MaxText's defaults."""
    return (base or DEFAULTS) if path is None else path


def loaded(path: str | None, overrides: Sequence[str] = (), base: str | None = None) -> Config:
    """The config in a FILE argument under overrides and the process' environment.

    Without a path, it is MaxText's defaults.

    Raises `OSError` and `ConfigError`.
    """
    import os

    from hlofast import config

    variables = {key: text for key, text in os.environ.items() if key.startswith("M_")}
    if path is None:
        return config.load(overrides=overrides, base=base, environment=variables)
    return config.loads(
        inputs.read(path),
        path="<stdin>" if path == "-" else path,
        overrides=overrides,
        base=base,
        environment=variables,
    )


def own_instance(config: Config, devices: int | None) -> EffectiveConfig | None:
    """The config on the instance that it names (compile_topology in MaxText), if it names one."""
    found = config.select_all(devices)
    return found[0] if len(found) == 1 and found[0].instance.device is not None else None


def read(
    path: str | None, arguments: argparse.Namespace, failures: inputs.Failures
) -> Config | None:
    """Returns the config in a FILE argument; prints an error and returns None if there is none."""
    name = named(path, arguments.base)
    return _read(name, failures, lambda: loaded(path, arguments.overrides, arguments.base))


def read_other(
    path: str, arguments: argparse.Namespace, failures: inputs.Failures
) -> Config | None:
    """Like `read`, without the overrides, which belong to FILE."""
    return _read(path, failures, lambda: loaded(path, (), arguments.base))


def _read(name: str, failures: inputs.Failures, reader: Callable[[], Config]) -> Config | None:
    from hlofast import config

    try:
        return reader()
    except (OSError, ModuleNotFoundError, config.ConfigError) as error:
        # It may be that of another file, such as the base.
        own = "<stdin>" if name == "-" else name
        failures.failed(getattr(error, "filename", None) or own, error)
        return None
