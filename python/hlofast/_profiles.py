"""Reads profiles, whatever wrote them, and finds the modules of their programs."""

from __future__ import annotations

import os

from hlofast import _core, _text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._context import Context
    from hlofast._module import Module
    from hlofast._profile import Measured

_MOST_CANDIDATES = 16
"""Programs with the most device time whose modules are tried."""


def load_profile(path: str | os.PathLike[str]) -> _core.ProfileData:
    """Reads the profile in a file or folder.

    Archives and folders of nsys-jax need pyarrow (`hlofast[datasets]`) for their Parquet files.
    Raises `OSError` if the file cannot be read, and `ValueError` if it is not a profile.
    """
    from hlofast import _nsys

    return _nsys.read(os.fspath(path))


def measured_in(path: str, dump: str | None, name: str | None, context: Context) -> Measured:
    """Returns what the profile at `path` measured of the program with the most device time.

    Its module comes from `dump`, a file or a dump directory, by default from the profile itself.
    `name` chooses a module by name. Raises `ValueError` if no module of a program is found.
    """
    profile = load_profile(path)
    seconds = dict[str, float]()
    for program, _, _, own in profile.programs:
        seconds[_plain(program)] = seconds.get(_plain(program), 0.0) + own
    told = context.replace(profile=profile)
    best: tuple[float, Module] | None = None
    tried = []
    for module in _modules(path, dump, seconds):
        tried.append(module.name)
        if name is not None and module.name != name:
            continue
        data = _core._measure(module, profile)
        joined = 0.0 if data is None else data.joined()[0]
        if joined > 0 and (best is None or joined > best[0]):
            best = joined, module
    if best is None:
        ran = _text.names(sorted(seconds, key=lambda program: -seconds[program]))
        found = f"found {_text.names(sorted(set(tried)))}" if tried else "found no module"
        raise ValueError(
            f"{dump or path}: {found}; a module is needed of one of the programs in the profile: "
            f"{ran}"
        )
    return best[1].with_context(told).profile()


def _plain(name: str) -> str:
    """Returns a program's name without the number that XLA or a profiler appends."""
    name = name.partition("(")[0]
    base, dot, number = name.rpartition(".")
    return base if dot and number.isdecimal() else name


def _modules(path: str, dump: str | None, seconds: dict[str, float]) -> Iterator[Module]:
    """Yields modules that may belong to the programs in `seconds`."""
    from hlofast._module import find_modules
    from hlofast.errors import ParseError

    if dump is not None and not os.path.isdir(dump):
        from hlofast import _remote

        for found in find_modules(_remote.read(dump, None), path=dump):
            if found.module is not None:
                yield found.module
        return
    folder = dump
    if folder is None:
        folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    from hlofast._programs import listed, whole

    candidates = [
        (seconds[_plain(program.name)], program)
        for program in listed(folder)[0]
        if _plain(program.name) in seconds and program.files
    ]
    candidates.sort(key=lambda pair: -pair[0])
    for _, program in candidates[:_MOST_CANDIDATES]:
        try:
            yield whole(program.files[0].path)
        except (OSError, ParseError):
            continue
