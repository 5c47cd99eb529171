"""The part of `hlofast._core` that compares modules; a stub only, the code is in `_core`."""

from typing import final

from hlofast._core import Column, Field, Module, TextColumn

_Columns = list[tuple[Field, Column | TextColumn]]

def _diff(
    before: Module, after: Module, *, layouts: bool, backend_config: bool, schedule: bool
) -> DiffData: ...

@final
class DiffData:
    @property
    def compares_layouts(self) -> bool: ...
    @property
    def same_schedule(self) -> bool | None: ...
    def changes(self, only_causes: bool) -> _Columns: ...
    def pairs(self) -> _Columns: ...
