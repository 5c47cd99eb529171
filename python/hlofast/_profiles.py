"""`Profile`: what ran on devices, from the files that profilers write."""

from __future__ import annotations

import os

from hlofast import _core
from hlofast._files import is_folder
from hlofast.table import Table

TYPE_CHECKING = False  # Verbs read profiles; importing typing would slow their start.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hlofast._core import Column, Field, ProfileData, ProfilePlane, TextColumn
    from hlofast._module import Module
    from hlofast._profile_summary import ProfileSummary

    _Source = str | os.PathLike[str] | bytes


_HEAD = 1 << 16
"""Bytes at the start of a file that show whether it is a profile."""


def load_profile(
    source: _Source | Iterable[_Source],
    *,
    run: str | None = None,
    max_bytes: int | None = None,
) -> Profile:
    """Reads a profile of `jax.profiler` or TensorBoard: an `*.xplane.pb`, plain or compressed.

    `source` is a path, the bytes of a file, or several of them, one per host. A folder may be that
    of a run, `plugins/profile/RUN`, with one file per host, or any folder above it; of several runs
    the newest is read, or the one named `run`. `max_bytes` limits the size of a file after
    decompression, by default 1 GiB. A `*.trace.json.gz`, Chrome's trace format, is read too; it
    holds at most a million events, no modules, and no asynchronous operations of TPUs. Archives,
    folders and traces of nsys-jax are read too, Parquet files with pyarrow (`hlofast[datasets]`).

    Raises `ParseError` with the place for a damaged file and for one that is not a profile,
    `OSError` for a file that cannot be read, `ValueError` for a folder without profiles and for an
    unknown run.
    """
    if isinstance(source, str | bytes | os.PathLike):
        from hlofast import _nsys

        if not isinstance(source, bytes) and _nsys.is_archive(path := os.fspath(source)):
            return Profile(_nsys.read(path), source=path)
        source = [source]
    source = list(source)
    files: list[tuple[str | bytes, str | None]] = []
    chosen = None
    for given in source:
        if isinstance(given, bytes):
            files.append((given, None))
            continue
        path = os.fspath(given)
        if "://" in path:
            from hlofast import _remote

            files.append((_remote.read(path), path))
        elif is_folder(path):
            chosen, paths = _run(path, run)
            files += [(own, own) for own in paths]
        else:
            files.append((path, path))
    profile = Profile(_core._load_profile(files, max_bytes=max_bytes), chosen)
    if len(source) == 1 and not isinstance(source[0], bytes):
        profile.source = os.fspath(source[0])
    return profile


def files_of(path: str) -> list[str]:
    """Returns the files that `load_profile` would read; raises `ValueError` if there are none."""
    from hlofast import _nsys

    if not is_folder(path):
        return [path]
    return _nsys.members_of_folder(path) or _run(path, None)[1]


def _run(folder: str, wanted: str | None) -> tuple[str, list[str]]:
    """Returns the name and the files of the newest run below `folder`, or of the run `wanted`."""
    runs = _core._profile_runs(folder)
    if not runs:
        raise ValueError(
            f"{folder}: no profile here; jax.profiler.trace writes plugins/profile/RUN/*.xplane.pb"
        )
    if wanted is not None:
        named = [own for own in runs if wanted in (own[0], os.fspath(own[1]))]
        if not named:
            from hlofast._names import meant

            names = [own[0] for own in runs]
            raise ValueError(f"{folder}: no run {wanted!r}{meant(wanted, names)}")
        runs = named
    name, _, paths = runs[-1]
    return name, list(map(os.fspath, paths))


def runs(folder: str) -> list[str]:
    """Returns the names of the runs below a folder, the oldest first; empty for other folders."""
    return [] if "://" in folder else [own[0] for own in _core._profile_runs(folder)]


def is_profile(path: str) -> bool:
    """Whether a file is a profile; False for one that cannot be read."""
    try:
        if "://" in path:
            from hlofast import _remote

            return _core._is_profile(_remote.read(path, most=_HEAD))
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not loaded.
            return _core._is_profile(file.read(_HEAD))
    except (OSError, ValueError):
        return False


class Profile:
    """What ran on the devices of one run, created by `hlofast.load_profile`.

    Times are seconds on the clock of each host; what hosts share is the number of a launch or step.
    The tables have one row per event, launch, step, device, program, module or line. `planes` are
    the contents of the files as they are, for what the tables leave out.
    """

    __slots__ = ("_data", "_tables", "run", "source")

    def __init__(
        self, data: ProfileData, run: str | None = None, source: str | None = None
    ) -> None:
        self._data = data
        self.source = source
        """The file or folder that was read; None for bytes and for several files."""
        self.run = run
        """The name of the run in its folder; None for files."""
        self._tables: dict[str, Table] = {}

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts."""
        return tuple(self._data.hosts)

    @property
    def paths(self) -> tuple[str | None, ...]:
        """Paths of the files; None for bytes."""
        return tuple(self._data.paths)

    @property
    def errors(self) -> tuple[tuple[str, str], ...]:
        """What went wrong while the profile was recorded: pairs of host and message."""
        return tuple(self._data.errors)

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """What the profiler warns of: pairs of host and message."""
        return tuple(self._data.warnings)

    @property
    def seconds(self) -> float | None:
        """Seconds from the first begin to the last end on devices; None without events."""
        span = self._data.span
        return None if span is None else (span[1] - span[0]) / 1e12

    @property
    def planes(self) -> tuple[ProfilePlane, ...]:
        """The planes of the files, with their lines, events and stats, each decoded on access."""
        return tuple(self._data.planes)

    @property
    def events(self) -> Table:
        """The events of devices, by track and begin.

        Columns: `host`, `device`, `track` (stream, thread or line), `program` (the module's name),
        `instruction` (None for an event of no instruction), `label` (the kernel's name, or the
        instruction's), `start` and `duration` in seconds.
        """
        return self._table("events", self._data.events)

    @property
    def devices(self) -> Table:
        """The devices: host, kind, chip, events, busy seconds, and the figures in the profile."""
        return self._table("devices", self._data.devices)

    @property
    def programs(self) -> Table:
        """The programs that ran: launches, seconds, events, and whether their module is here."""
        return self._table("programs", self._data.programs)

    @property
    def launches(self) -> Table:
        """The executions of programs on devices that the profile marks."""
        return self._table("launches", self._data.launches)

    @property
    def steps(self) -> Table:
        """The steps that the training loop or the profiler marked."""
        return self._table("steps", self._data.steps)

    @property
    def lines(self) -> Table:
        """The planes and lines of the files: events, seconds, and what each line is read as."""
        return self._table("lines", self._data.lines)

    @property
    def module_table(self) -> Table:
        """The modules in the profile: host, name, number, bytes."""
        return self._table("modules", self._data.modules)

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules of the programs that ran, as far as the profile holds them.

        Raises `ParseError` if one of them cannot be read; `module` reads a single one.
        """
        return tuple(map(self.module, range(len(self.module_table))))

    def module(self, name: str | int) -> Module:
        """Returns the module called `name`, as `jit_step` or `jit_step(12)`, or its number from 0.

        Raises `KeyError` for an unknown name, `ValueError` for the name of several modules.
        """
        from hlofast._module import loads

        table = self.module_table
        if isinstance(name, int):
            text, path = self._data.module_text(name)
            return loads(text, path=path)
        labels, names = table.values("label"), table.values("module")
        places = [at for at, label in enumerate(labels) if label == name]
        places = places or [at for at, own in enumerate(names) if own == name]
        if not places:
            from hlofast._names import unknown

            raise unknown("module", name, labels)
        if len(places) > 1:
            several = ", ".join(labels[at] for at in places[:4])
            raise ValueError(f"{len(places)} modules are called {name!r}: {several}")
        return self.module(places[0])

    def summary(self, path: str = "") -> ProfileSummary:
        """Summarises the profile; `path` is its title. See `hlofast.ProfileSummary`."""
        from hlofast._profile_summary import ProfileSummary

        return ProfileSummary(self, path or next(filter(None, self.paths), ""))

    def _table(
        self, name: str, made: Callable[[], list[tuple[Field, Column | TextColumn]]]
    ) -> Table:
        if name not in self._tables:
            self._tables[name] = Table(made())
        return self._tables[name]

    def __repr__(self) -> str:
        counts = (
            (len(self.hosts), "host"),
            (len(self.devices), "device"),
            (len(self.programs), "program"),
            (self._data.event_count, "event"),
        )
        words = ", ".join(f"{count:,} {word}{'' if count == 1 else 's'}" for count, word in counts)
        return f"<Profile of {words}>"
