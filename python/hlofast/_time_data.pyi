"""The part of `hlofast._core` that times modules; a stub only, the code is in `_core`."""

from typing import final

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
) -> TimeData: ...
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
) -> tuple[float, float, float, float]: ...

@final
class TimeData:
    @property
    def unknown_figures(self) -> list[str]: ...
    @property
    def mesh(self) -> str | None: ...
    @property
    def mesh_source(self) -> str: ...
    def column(self, name: str) -> Column: ...
    def step(self) -> tuple[float, float, float, float, list[tuple[str, float]]]: ...
    def open_loops(self) -> list[int]: ...
    def branches(self) -> list[tuple[int, int]]: ...
    def collectives(self) -> _Columns: ...
