"""The tables of a scan, by name."""

from __future__ import annotations

from _collections_abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._scan import Scan
    from hlofast.table import Table


class Tables(Mapping[str, "Table"]):
    """The tables of a scan that have rows; each is built on first use."""

    __slots__ = ("_names", "_scan")

    def __init__(self, scan: Scan, names: tuple[str, ...]) -> None:
        self._scan = scan
        self._names = names

    def __getitem__(self, name: str) -> Table:
        if name not in self._names:
            raise KeyError(name)
        return self._scan[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<Tables: {', '.join(self._names)}>"
