"""The part of `hlofast._core` that times modules; a stub only, the code is in `_core`."""

from typing import Final, final

from hlofast._core import Column, Field, Mesh, Module, TextColumn

_Columns = list[tuple[Field, Column | TextColumn]]
_Device = tuple[str, str, str | None, list[tuple[str, float]], list[tuple[str, float]]]

def _time(
    module: Module,
    device: _Device,
    *,
    mesh: Mesh | None = None,
    estimates: str = "model",
    model: str = "topology",
    measured: list[tuple[int, float]] | None = None,
    custom_calls: list[tuple[int, int | None, int | None, int | None, int | None]] | None = None,
) -> TimeData:
    """Models the time of `module` on a device."""

def _collective_time(
    device: _Device,
    kind: str,
    payload: float,
    group_size: int,
    *,
    near: int | None = None,
    axes: int | None = None,
    model: str = "topology",
    communicators: int = 1,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> tuple[float, float, float, float]:
    """Returns seconds, wire bytes, seconds independent of the size, and wire bytes per second of
    one collective.

    Raises `ValueError` for a missing figure or an unknown kind.
    """

@final
class TimeData:
    """The modelled time of a module, computed by `Module.time`."""

    unknown_figures: Final[list[str]]
    """Unknown figures that the model needs."""
    mesh: Final[str | None]
    """The mesh as text; None without a mesh."""
    mesh_source: Final[str]
    """The source of the mesh."""
    def column(self, name: str) -> Column:
        """The per-instruction column `name`."""
    def step(self) -> tuple[float, float, float, float, list[tuple[str, float]]]:
        """Seconds of the step: total, computing, moving data and other; then exposed communication
        by axes.
        """
    def open_loops(self) -> list[int]:
        """Rows of loops that are counted once because their trip count is unknown."""
    def branches(self) -> list[tuple[int, int]]:
        """Rows of conditionals, each with the computation that is counted."""
    def collectives(self) -> _Columns:
        """Returns a table with one row per collective."""
