"""Reads a config of any trainer: finds the front that the text or its name belongs to."""

from __future__ import annotations

from hlofast.config._front import DEFAULT, Sources, front, names

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from hlofast.config._front import Front
    from hlofast.config._tree import Config

MOST_BYTES = 64 << 20
"""Limit on the bytes that are read; fronts have smaller limits of their own."""
_SAMPLE = 64 << 10
"""Characters of a text that fronts look at to recognise it."""


def loads(
    text: str | bytes,
    *,
    path: str | None = None,
    overrides: Sequence[str] | Mapping[str, object] = (),
    base: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Reads a trainer config (UTF-8 if given as bytes).

    AXLearn: the text of `debug_string`. MaxText: YAML; `overrides` are its arguments
    (`["per_device_batch_size=4"]` or `{"per_device_batch_size": 4}`), `base` is the `base.yml` if
    the text names none and none lies beside it, `environment` holds its variables (`M_KEY`). Errors
    use `path` as the name of the text. Raises `ConfigError` with the place of the first fault.
    """
    if not isinstance(text, (str, bytes)):
        raise TypeError(f"a config must be text or bytes, not {text!r}; load reads files")
    return read(text, path, _sources(overrides, base, environment))


def _sources(
    overrides: Sequence[str] | Mapping[str, object],
    base: str | os.PathLike[str] | None,
    environment: Mapping[str, str] | None,
) -> Sources:
    from collections.abc import Mapping, Sequence
    from os import fspath

    if isinstance(overrides, Mapping):
        from json import dumps

        # YAML reads what JSON writes.
        overrides = [f"{key}={dumps(value)}" for key, value in overrides.items()]
    if isinstance(overrides, str):
        raise TypeError(f"overrides must be a list such as [{overrides!r}] or a mapping")
    if not isinstance(overrides, Sequence) or not all(isinstance(own, str) for own in overrides):
        message = "overrides must be a list such as ['per_device_batch_size=4'] or a mapping"
        raise TypeError(f"{message}, not {overrides!r}")
    return Sources(overrides, None if base is None else fspath(base), environment)


def read(text: str | bytes, path: str | None, sources: Sources) -> Config:
    """Reads a trainer config with the sources of its values: see `loads`."""
    return _front_of(text, path).loads(text, path, sources)


def defaults(sources: Sources) -> Config:
    """MaxText's defaults with overrides; no file is looked up."""
    return front("maxtext").loads("", None, sources)


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    overrides: Sequence[str] | Mapping[str, object] = (),
    base: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Reads the config in a file: see `loads`; without a path, MaxText's defaults.

    Raises `ConfigError`, and `OSError` if the file cannot be read.
    """
    from os import fspath

    if path is None:
        return defaults(_sources(overrides, base, environment))
    name = fspath(path)
    with open(name, "rb") as file:  # noqa: PTH123 - pathlib would slow the start of the verb
        text = file.read(MOST_BYTES + 1)
    return loads(text, path=name, overrides=overrides, base=base, environment=environment)


def is_config(text: str | bytes, *, path: str | None = None) -> bool:
    """Whether `text` looks like a trainer config, or only trainer configs have the name `path`."""
    sample = _sample(text)
    fronts = map(front, names())
    return any((path and own.is_named(path)) or own.is_config(sample) for own in fronts)


def is_program(text: str) -> bool:
    """Whether a text that is not a config has a module of HLO."""
    return any(line.startswith("HloModule ") for line in text.splitlines())


def _front_of(text: str | bytes, path: str | None) -> Front:
    """The front that reads a text: by its file name, else by its first lines."""
    fronts = [front(name) for name in names()]
    for each in fronts:
        if path is not None and each.is_named(path):
            return each
    sample = _sample(text)
    found = next((each for each in fronts if each.is_config(sample)), None)
    if found is None and is_program(sample):
        from hlofast.config._faults import refused

        message = "this is an HLO module, not a trainer config; `hlofast FILE` reads it"
        raise refused(message, path, "program")
    return front(DEFAULT) if found is None else found


def _sample(text: str | bytes) -> str:
    """The start of a text."""
    start = text[:_SAMPLE]
    return start.decode("utf-8", "replace") if isinstance(start, bytes) else start
