"""The part of `hlofast._core` that joins profiles with modules; a stub only."""

from collections.abc import Sequence
from typing import Any, Final, final

from hlofast._core import Column, Field, Mesh, Module, ProfileData, TextColumn

_Columns = list[tuple[Field, Column | TextColumn]]

def _profile_of_columns(
    hosts: Sequence[str],
    devices: Sequence[tuple[int, str, str]],
    tracks: Sequence[tuple[int, str, str]],
    programs: Sequence[tuple[str, int | None]],
    names: Sequence[str],
    columns: Sequence[Any],
    launches: Sequence[tuple[int, int, int, int]],
) -> ProfileData:
    """Builds a profile from columns that Python read, as those of Parquet files.

    `devices` are host number, name and kind; `tracks` device number, name and kind; `programs` name
    and number; `columns` are track, program, instruction name, label (-1 for none), start and
    length in picoseconds, each a buffer of 64-bit integers; `launches` are device, program, start
    and length in picoseconds. Raises `ValueError` for numbers out of range.
    """

def _measure(
    module: Module,
    profile: ProfileData,
    *,
    mesh: Mesh | None = None,
    program: int | None = None,
) -> MeasuredData | None:
    """Measures `module` in `profile`; None if no event names an instruction of the module."""

@final
class MeasuredData:
    """What a profile measured of a module, computed by `Module.profile`."""

    program: Final[tuple[str, int | None]]
    """Name and number of the program."""
    def step(self) -> tuple[float, float, float, float, float, float, float]:
        """Seconds of the step: all, computing, communicating, exposed, copies, other, idle."""
    def axes(self) -> list[tuple[str, float, float]]:
        """Mesh axes, seconds of communication along them, exposed seconds."""
    def joined(self) -> tuple[float, float, float]:
        """Seconds of device time: in events that name an instruction, in all events, in events
        outside whole runs.
        """
    def collective_seconds(self) -> list[tuple[float, float]]:
        """Seconds in the step of each collective of the module, once each, and the exposed part;
        NaN for those without an event.
        """
    def collectives(self) -> _Columns:
        """Returns a table with one row per collective."""
    def column(self, name: str) -> Column:
        """The per-instruction column `name`."""
    def runs(self) -> _Columns:
        """Returns a table with one row per run and device."""
    def unjoined(self) -> _Columns:
        """Returns a table of the events that name no instruction."""
