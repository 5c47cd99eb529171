"""The part of `hlofast._core` that changes sizes of modules; a stub, the code is in `_core`."""

from typing import final

from hlofast import _module
from hlofast._core import Mesh, Module

_Symbol = tuple[tuple[str, str], int, int, list[tuple[str, int]], list[str], int, int]
_Work = tuple[list[tuple[int, float]], list[int]]

def _scale(module: Module, mesh: Mesh | None = None) -> ScaleData:
    """Attributes the dimensions of `module` on `mesh`, by default the mesh of its text."""

@final
class ScaleData:
    """What the dimensions of a module are made of."""

    def symbols(self) -> list[_Symbol]:
        """The symbols, those with a role first.

        Raises `ValueError` if the module has too many dimensions.
        """
    def choices(self) -> tuple[list[int], list[int], list[tuple[int, list[str]]], bool]:
        """Rows of collectives whose size is not followed from parameters; of these, rows of those
        whose size is not assumed to follow either; by lookup in a table, the table's rows and the
        axes that divide its other dimension; whether arrays of positions by positions are in
        memory.
        """
    def coverage(self) -> tuple[int, int, int, int, int, list[int], int]:
        """Dimensions larger than 1: all, followed, assumed, constant; instructions that contradict
        each other, and the first of them; entry parameters without a known sharding.
        """
    def apply(
        self, symbols: list[tuple[int, int]], mesh: Mesh | None = None
    ) -> tuple[_module.Module, int, list[int], list[int], _Work]:
        """The module with new sizes of symbols, by their number, and another mesh.

        Raises `ValueError` if the change is impossible, with the reason.
        """
