"""How XLA's partitioner splits lookups of rows in a table, and sums of gradients of such rows.

This models `xla/service/spmd/gather_scatter_handler.cc`: of the ways to split a gather or a scatter
the partitioner takes the one whose largest instruction needs the least memory, and of those with as
little the one with the least traffic. Both follow from sizes and tilings alone.
"""

from __future__ import annotations

from math import prod

from hlofast._partition import tiling as tl
from hlofast._partition.reshard import COLLECTIVES, Graph, Placed, UnsureError, Value, reached
from hlofast._partition.tiling import WHOLE, Tiling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Way = Callable[["Splitter", "Lookup"], Value | None]

_ROWS, _WIDTH = 0, 1
"""Dimensions of a table."""
_NONE = (2**63 - 1, 2**63 - 1)
"""The cost of a way that is not possible."""


class Lookup:
    """A gather of rows, or a scatter of their gradients, within each of several groups of devices.

    Positions have a last dimension of one element, as JAX writes them; rows have the width there.
    """

    __slots__ = ("positions", "rows", "shape", "table", "tiling", "width")

    def __init__(
        self,
        table: Placed,
        positions: Placed,
        rows: Placed | None,
        shape: tuple[int, ...],
        wanted: Tiling,
        width: int,
    ) -> None:
        self.table = table
        self.positions = positions
        self.rows = rows
        """What a scatter adds; None in a gather."""
        self.shape = shape
        """The size of the result, and how it is wanted to be tiled."""
        self.tiling = wanted
        self.width = width
        """The part of a row that a group takes."""

    @property
    def rank(self) -> int:
        """Dimensions of positions."""
        return len(self.positions.base)

    @property
    def along(self) -> list[int]:
        """Dimensions along which positions are looked up apart from each other."""
        return list(range(self.rank - 1))

    @property
    def is_gather(self) -> bool:
        """Whether rows are looked up; otherwise their gradients are summed."""
        return self.rows is None

    def of_groups(
        self,
        table: Placed,
        positions: Placed,
        row_groups: tl.Grouped,
        table_groups: tl.Grouped,
        width: int,
    ) -> Lookup:
        """Returns the lookup within each group, of what it has of the table and of positions."""
        rows = None if self.rows is None else self.rows.within(row_groups)
        result = row_groups if self.is_gather else table_groups
        return Lookup(table, positions, rows, result.base(self.shape), result.tiling, width)

    @property
    def of_rows(self) -> Tiling:
        """How rows are tiled, of a gather as they are wanted."""
        return self.tiling if self.rows is None else self.rows.tiling


class Splitter:
    """Splits lookups in one table."""

    __slots__ = ("full", "graph", "splits_again")

    def __init__(self, graph: Graph, full: int, splits_again: bool = True) -> None:
        self.graph = graph
        self.full = full
        """The width of the table on all devices together."""
        self.splits_again = splits_again
        """Whether what a group looks up is split in turn."""

    def split(self, own: Lookup) -> Value:
        """Returns the value of a lookup, split in the cheapest way on each level."""
        ways = (Splitter._by_width, Splitter._by_table, Splitter._by_positions)
        # XLA prefers an earlier way to one that costs as much.
        for way in sorted(ways, key=lambda one: self._cost(one, own)):
            found = way(self, own)
            if found is not None:
                return found
        return self._plain(own)

    def _cost(self, way: Way, own: Lookup) -> tuple[int, int]:
        """The largest memory of an instruction, and the traffic, if a lookup is split only once."""
        graph = Graph(self.graph.merges)

        def fake(placed: Placed, name: str) -> Placed:
            value = graph.add(name, (), placed.value.shape, placed.value.width)
            return Placed(graph, value, placed.tiling, placed.base, placed.teams)

        table, positions = fake(own.table, "table"), fake(own.positions, "positions")
        rows = None if own.rows is None else fake(own.rows, "rows")
        copy = Lookup(table, positions, rows, own.shape, own.tiling, own.width)
        root = way(Splitter(graph, self.full, splits_again=False), copy)
        if root is None:
            return _NONE
        memory = traffic = 0
        for value in reached([root]):
            if value.op in COLLECTIVES:
                traffic += value.traffic
            if value.op in COLLECTIVES or value.op in ("gather", "scatter"):
                memory = max(memory, value.memory)
        return (memory, traffic) if memory else _NONE

    def _inner(self, own: Lookup) -> Value:
        return self.split(own) if self.splits_again else self._plain(own)

    def _plain(self, own: Lookup) -> Value:
        """A lookup that is not split: each device of a group has all operands."""
        operands = [own.table.whole().value, own.positions.whole().value]
        if own.rows is not None:
            operands.append(own.rows.whole().value)
        op = "gather" if own.is_gather else "scatter"
        value = self.graph.add(op, tuple(operands), own.shape, own.table.value.width)
        return self._as_wanted(own, value, WHOLE)

    def _as_wanted(self, own: Lookup, value: Value, tiled: Tiling) -> Value:
        return Placed(self.graph, value, tiled, own.shape, own.table.teams).to(own.tiling).value

    def _by_width(self, own: Lookup) -> Value | None:
        """Each group has a part of the width."""
        table, rank = own.table, own.rank
        if table.tiling.is_whole or table.base[_WIDTH] != own.width:
            return None
        tiled_rows = tl.propagated(table.tiling, [_WIDTH], [rank - 1], rank)
        if tiled_rows.is_whole:
            return None
        if own.width != self.full:
            raise UnsureError("a width that is divided twice")
        tiled_rows = tl.merged(own.of_rows, tiled_rows) or tiled_rows
        row_groups = tl.grouped(tiled_rows, [rank - 1])
        table_groups = tl.grouped(table.tiling, [_WIDTH]).aligned(row_groups)
        count, devices = table.tiling.along(_WIDTH), len(table.tiling.devices)
        position_groups = tl.grouped_by_copies(
            own.positions.tiling, count, devices, rank, _order_of_positions(rank)
        ).aligned(row_groups)
        inner = own.of_groups(
            table.within(table_groups),
            own.positions.within(position_groups),
            row_groups,
            table_groups,
            table.value.shape[_WIDTH],
        )
        result = tiled_rows if own.is_gather else table_groups.ungrouped()
        return self._as_wanted(own, self._inner(inner), result)

    def _by_table(self, own: Lookup) -> Value | None:
        """Each group has some rows of the table, and looks up those that lie there."""
        table, rank, along = own.table, own.rank, own.along
        count, devices = table.tiling.along(_ROWS), len(table.tiling.devices)
        if count == 1:
            return None
        table_groups = tl.grouped(table.tiling, [_ROWS])
        order, dims = _order_of_positions(rank), list(range(rank))
        position_groups = tl.grouped_by_copies(own.positions.tiling, count, devices, rank, order)
        position_groups = position_groups.aligned(table_groups)
        row_groups = tl.grouped_by_copies(own.of_rows, count, devices, rank, dims)
        row_groups = row_groups.aligned(table_groups)
        if not position_groups.tiling.is_whole and row_groups.tiling.is_whole:
            spread = tl.propagated(own.positions.tiling, along, along, rank)
            # XLA takes the rank of the table here in a scatter.
            data_rank = rank if own.is_gather else len(table.base)
            row_groups = tl.grouped_by_copies(spread, count, devices, data_rank, dims)
            row_groups = row_groups.aligned(table_groups)
        if position_groups.tiling.is_whole and not row_groups.tiling.is_whole:
            spread = tl.propagated(own.of_rows, along, along, rank)
            position_groups = tl.grouped_by_copies(spread, count, devices, rank, order)
            position_groups = position_groups.aligned(table_groups)
        moved = own.positions.to(position_groups.ungrouped())
        if own.is_gather:
            moved = moved.renamed("clamp")
        where = table.tiling, table.teams
        inner = own.of_groups(
            table.within(table_groups),
            moved.renamed("shift", where).within(position_groups),
            row_groups,
            table_groups,
            own.width,
        )
        value = self._inner(inner)
        if not own.is_gather:
            return self._as_wanted(own, value, table_groups.ungrouped())
        # Rows that lie in other groups are zeros, and all groups are summed.
        result = row_groups.ungrouped()
        found = self.graph.add("mask", (moved.value,), moved.value.shape, 1, what=where)
        mask = Placed(self.graph, found, moved.tiling, moved.base, moved.teams)
        mask = mask.to(tl.propagated(result, along, along, rank))
        kept = self.graph.add("select", (value, mask.value), value.shape, value.width)
        part = Placed(self.graph, kept, result, own.shape, table.teams)
        return self._as_wanted(own, part.summed(table.tiling, [_ROWS]), result)

    def _by_positions(self, own: Lookup) -> Value | None:
        """Each group has some positions, and looks them up in all of the table."""
        rank, along, positions = own.rank, own.along, own.positions
        if own.is_gather and positions.tiling.is_whole:
            return None
        finer = tl.merged(tl.propagated(own.of_rows, along, along, rank), positions.tiling)
        if finer is not None:
            positions = positions.to(finer)
        tiled = positions.tiling
        tiled_rows = tl.propagated(tiled, along, along, rank)
        if tiled_rows.is_whole:
            return None
        tiled_rows = tl.merged(own.of_rows, tiled_rows) or tiled_rows
        row_groups = tl.grouped(tiled_rows, along)
        position_groups = tl.grouped(tiled, along).aligned(row_groups)
        table_groups = tl.grouped_by_copies(
            own.table.tiling,
            prod(tiled.along(dim) for dim in along),
            len(tiled.devices),
            len(own.table.base),
            self._order_of_table(own),
        ).aligned(row_groups)
        table = own.table.within(table_groups)
        if not own.is_gather:
            table = table.renamed("select")
        placed = positions.within(position_groups)
        inner = own.of_groups(table, placed, row_groups, table_groups, own.width)
        value = self._inner(inner)
        if own.is_gather:
            return self._as_wanted(own, value, tiled_rows)
        # Each group has summed some gradients of all rows.
        result = table_groups.ungrouped()
        part = Placed(self.graph, value, result, own.shape, own.table.teams)
        return self._as_wanted(own, part.summed(tiled, along), result)

    def _order_of_table(self, own: Lookup) -> list[int]:
        """Dimensions of the table in the order in which they are replicated if need be."""
        rows = [_ROWS] if own.table.tiling.along(_ROWS) > 1 else []
        return [*rows, _WIDTH] if own.width == self.full else rows


def _order_of_positions(rank: int) -> list[int]:
    """Dimensions of positions in the order in which they are replicated if need be."""
    return [rank - 1, *range(rank - 1)]
