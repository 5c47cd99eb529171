"""Finds the module of a profile's main program, and measures it."""

from __future__ import annotations

import re
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

from hlofast import _core, _files, _text
from hlofast._profiles import load_profile
from hlofast.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._context import Context
    from hlofast._module import Module
    from hlofast._profile import Measured
    from hlofast._profiles import Profile

_MOST_CANDIDATES = 16
"""Programs with the most device time whose modules are tried."""


def measured_in(path: str, dump: str | None, name: str | None, context: Context) -> Measured:
    """Returns what the profile at `path` measured of the program with the most device time.

    Its module comes from `dump`, a file or a dump directory, by default from the profile itself.
    `name` chooses a module by name. Raises `ValueError` if no module of a program is found.
    """
    return measured_of(load_profile(path), path, dump, name, context)


def measured_of(
    profile: Profile, path: str, dump: str | None, name: str | None, context: Context
) -> Measured:
    """`measured_in` for a profile that was read from `path`."""
    told = context.replace(profile=profile)
    best: tuple[float, Module] | None = None
    tried = []
    with modules_of(profile, path, dump, name=name, most=_MOST_CANDIDATES) as modules:
        for label, module in modules:
            if isinstance(module, ParseError):
                continue  # Another module may be the one that ran.
            tried.append(module.name)
            if name is not None and name not in (module.name, label):
                continue
            data = _core._measure(module, profile._data)
            joined = 0.0 if data is None else data.joined()[0]
            if joined > 0 and (best is None or joined > best[0]):
                best = joined, module
        if best is not None:
            return best[1].with_context(told).profile()
    seconds = _seconds(profile)
    names = _text.names(sorted(seconds, key=lambda program: -seconds[program]))
    found = f"found {_text.names(sorted(set(tried)))}" if tried else "found no module"
    raise ValueError(
        f"{dump or path}: {found}; a module is needed of one of the programs in the profile: "
        f"{names}" + ("" if dump else "; give its dump too: hlofast profile PROFILE DUMP")
    )


@contextmanager
def modules_of(
    profile: Profile,
    path: str,
    dump: str | None = None,
    *,
    name: str | None = None,
    most: int | None = None,
) -> Iterator[Iterator[tuple[str | None, Module | ParseError]]]:
    """Gives the labels and modules of programs that ran, those with the most device time first.

    They come from `dump`, by default from the profile, which was read from `path`, else from the
    files beside it. Labels tell modules of one name in a profile apart. The files beside a module,
    which describe its device, may be temporary. `name` leaves out modules of other names, `most`
    limits their number. A module of the profile that cannot be read is an error in its place.
    """
    seconds = _seconds(profile)
    if dump is None and Path(path).is_file() and zipfile.is_zipfile(path):
        with tempfile.TemporaryDirectory() as folder, _files.noted(folder):
            _unpacked(path, folder, seconds)
            yield _modules(path, folder, profile, seconds, name, most)
    else:
        yield _modules(path, dump, profile, seconds, name, most)


def _seconds(profile: Profile) -> dict[str, float]:
    """Device time by the plain names of programs."""
    seconds = dict[str, float]()
    ran = profile.programs
    for program, own in zip(ran.values("program"), ran.values("busy"), strict=True):
        seconds[_plain(program)] = seconds.get(_plain(program), 0.0) + own
    return seconds


def _plain(name: str) -> str:
    """Returns a program's name without the number that XLA or a profiler appends."""
    name = name.partition("(")[0]
    base, dot, number = name.rpartition(".")
    return base if dot and number.isdecimal() else name


def _modules(
    path: str,
    dump: str | None,
    profile: Profile,
    seconds: dict[str, float],
    name: str | None,
    most: int | None,
) -> Iterator[tuple[str | None, Module | ParseError]]:
    """Yields labels and modules that may belong to the programs in `seconds`."""
    from hlofast._module import find_modules

    if dump is not None and not Path(dump).is_dir():
        from hlofast import _remote

        for found in find_modules(_remote.read(dump, None), path=dump):
            if found.module is not None:
                yield found.label, found.module
        return
    if dump is None and len(profile.module_table):
        table = profile.module_table
        names, labels = list(map(_plain, table.values("module"))), table.values("label")
        order = sorted(range(len(names)), key=lambda at: -seconds.get(names[at], 0.0))
        if name is not None:
            order = [at for at in order if _plain(name) == names[at] or name == labels[at]]
        for number in order[:most]:
            try:
                yield labels[number], profile.module(number)
            except ParseError as error:
                yield labels[number], error
        return
    folder = dump
    if folder is None:
        folder = path if Path(path).is_dir() else str(Path(path).parent)
    from hlofast._programs import listed, whole

    candidates = [
        (seconds[_plain(program.name)], program)
        for program in listed(folder)[0]
        if _plain(program.name) in seconds and program.files
    ]
    candidates.sort(key=lambda pair: -pair[0])
    for _, program in candidates[:most]:
        try:
            yield None, whole(program.files[0].path)
        except (OSError, ParseError):
            continue


_FILE = re.compile(
    r"(?:^|/)(module_\d+\.(.+?)\.(?:[^/]*after_optimizations|gpu_target_config)\.[^/]+)$"
)
"""The files of a dump in an archive that are needed: modules after optimisation, and the device."""
_MOST_BYTES = 1 << 30
"""Of all files taken from an archive."""


def _unpacked(path: str, folder: str, seconds: dict[str, float]) -> None:
    """Writes the modules of the programs in `seconds`, and their devices, from a zip file."""
    left = _MOST_BYTES
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            found = _FILE.search(member.filename)
            if found is None or _plain(found[2]) not in seconds or member.file_size > left:
                continue
            left -= member.file_size
            try:
                content = archive.read(member)
            except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError):
                continue  # Other files may be readable.
            (Path(folder) / found[1]).write_bytes(content)
