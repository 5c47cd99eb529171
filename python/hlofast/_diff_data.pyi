"""The part of `hlofast._core` that compares modules; a stub only, the code is in `_core`."""

from typing import Final, final

from hlofast._core import Column, Field, Module, TextColumn

_Columns = list[tuple[Field, Column | TextColumn]]

def _diff(
    before: Module, after: Module, *, layouts: bool, backend_config: bool, schedule: bool
) -> DiffData:
    """Compares two modules."""

@final
class DiffData:
    """The differences between two modules."""

    compares_layouts: Final[bool]
    """Whether layouts count as differences."""
    same_schedule: Final[bool | None]
    """Whether both modules run in the same order; None if the order was not compared."""
    def changes(self, only_causes: bool) -> _Columns:
        """Fields and columns of the table of changes: all changes, or only changes that do not
        follow from others.
        """
    def pairs(self) -> _Columns:
        """Fields and columns of the table of pairs."""
