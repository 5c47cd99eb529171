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
    """Seconds, wire bytes, seconds that do not depend on the size, and wire bytes per second of one
    collective. A missing figure is the message of the `ValueError`.
    """

@final
class TimeData:
    """The time of a module, as modelled by `Module.time`."""

    unknown_figures: Final[list[str]]
    """Figures that were needed and are not known."""
    mesh: Final[str | None]
    """The mesh as text."""
    mesh_source: Final[str]
    """Where the mesh comes from."""
    def column(self, name: str) -> Column:
        """The column over instructions called `name`."""
    def step(self) -> tuple[float, float, float, float, list[tuple[str, float]]]:
        """Seconds of the step: in all, computing, moving data, other; then waiting, by axes."""
    def open_loops(self) -> list[int]:
        """Rows of loops that count once since their trip count is not known."""
    def branches(self) -> list[tuple[int, int]]:
        """Rows of conditionals and the computations that count."""
    def collectives(self) -> _Columns:
        """One row per collective."""
