"""Padding of reduce-scatters on TPUs: their bytes on another mesh.

XLA makes a reduce-scatter of rows as a fusion of an all-reduce and a slice, and works through the
shard of a device in equal windows of whole tiles. Rows that the windows do not cover evenly are
padded, and a transfer puts the rows of padded shards back in their places. Neither the windows nor
their size are public: `_LARGEST` holds those that explain reduce-scatters compiled apart. Sums that
are scattered along columns, of several arrays, or of arrays of more dimensions are not padded in
any fitted program of `what_if_models.py`.
"""

from __future__ import annotations

from hlofast._what_if_places import place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._core import Instruction, Shape
    from hlofast._module import Module
    from hlofast._what_if import WhatIf
    from hlofast._what_if_places import Place

_TILE = 8
"""Rows of a tile."""
_LANES = 128
"""Columns of a tile. Matrices with other columns and whole tiles of rows are laid out by columns,
as the head's gradient of 8,000 columns is in `dense_v5e`: shards are then columns of memory."""
_LARGEST = {
    ("v5e", 2): (1, 1_246_000),
    ("v5e", 4): (1, 930_000),
    ("v5p", 2): (1, 1_246_000),
    ("v5p", 4): (1, 930_000),
    ("v6e", 2): (1, 2_500_000),
    ("v6e", 4): (1, 1_950_000),
}
"""By chip and devices: in how many parts a shard is worked through, and bytes of a window at most.
Fitted to reduce-scatters of 17 or 18 sizes each, compiled apart. Those of four devices on v5e and
v5p come from the texts of `what_if_models.py`: any from 917,504 to 964,607 bytes gives the same."""
_SQUARE = {("v5p", 4): (2, 467_000)}
"""The same where the devices fill a square of the slice; fitted to 18 sizes compiled apart."""
_MOST_WINDOWS = 8
"""Shards of a matrix that is laid out by columns are not padded: windows of whole tiles have to
cover all columns evenly, and at most so many times as many of them as largest windows would need.
Otherwise XLA sums the matrix as a whole. Explains all of 158 sums compiled apart on v5e, v5p and
v6e, along two and four devices (`tests/fixtures/columns.csv`), 52 of them of random sizes."""
_WINDOW = 4096
"""Windows are a multiple of so many bytes, and of a tile: of `_LANES` columns, 16 rows."""
_WIDE = 16_384
"""Bytes of rows above which no text has padded shards."""
_MANY = 4
"""Devices whose windows more devices have too, in the four texts that show them."""
_SHARDS = 256
"""Sums are scattered along the minor dimension if shards have a multiple of so many elements of it:
256, 512, 768, 1,024 and 1,280 are, 192, 320, 384, 448, 640 and 896 are not. Otherwise they are
summed as a whole."""
_COLUMNS = frozenset(("v5p",))
"""The chips on which that is known of matrices that are laid out by rows. One program for v5e does
the same; elsewhere such sums are modelled so, and undecided."""
_SURE = 2
"""Devices whose places do not matter: four may lie in a line or in a square."""


def padded_rows(rows: int, row_bytes: int, devices: int, where: Place) -> int | None:
    """Returns the rows of a shard with its padding; None if it is not known."""
    chip, is_square = where
    key = chip, min(devices, _MANY)
    if is_square is None and key in _SQUARE:
        return None
    parts, largest = (_SQUARE if is_square and key in _SQUARE else _LARGEST).get(key, (0, 0))
    if not parts or rows % parts or not row_bytes:
        return None
    tile = max(_TILE, _WINDOW // row_bytes)
    rows //= parts
    most = max(largest // row_bytes // tile * tile, tile)
    windows = -(-rows // most)
    window = -(-rows // windows)
    return parts * windows * (-(-window // tile) * tile)


def padded_shard(rows: int, columns: int, row_bytes: int, devices: int, where: Place) -> int | None:
    """Returns the rows of a shard of a matrix with its padding; None if it is not known."""
    if row_bytes > _WIDE or (columns % _LANES and not rows * devices % _LANES):
        return rows
    return padded_rows(rows, row_bytes, devices, where)


def has_windows(shape: Shape, devices: int, where: Place) -> bool | None:
    """Whether a sum of a matrix is scattered along its rows; None if it is not known."""
    rows, columns = (own or 0 for own in shape.dimensions)
    chip, is_square = where
    key = chip, min(devices, _MANY)
    if not columns % _LANES:
        return True  # It is laid out by rows: shards are padded.
    if not rows or rows % _LANES or (key in _SQUARE and is_square is None):
        return None
    parts, largest = (_SQUARE if is_square and key in _SQUARE else _LARGEST).get(key, (0, 0))
    if not parts:
        return None
    if rows % (devices * _SHARDS):
        return False
    size = (shape.bytes or 0) // (columns * devices * parts)
    tile = max(_TILE, _WINDOW // size)
    tiles, most = -(-columns // tile), largest // (size * tile)
    even = next((own for own in range(min(most, tiles), 0, -1) if tiles % own == 0), 0)
    least = -(-tiles * tile * size // largest)
    return even > 0 and tiles // even <= _MOST_WINDOWS * least


class _Scatter:
    """A reduce-scatter of rows: its sum without padding, and its shards with it."""

    __slots__ = ("columns", "devices", "is_by_rows", "row", "row_bytes", "rows", "shard")

    def __init__(self, row: dict[str, Any], whole: Instruction, shard: int) -> None:
        self.row = row
        self.devices: int = row["group_size"]
        self.rows, self.columns = (own or 0 for own in whole.shape.dimensions)
        self.row_bytes = (whole.shape.bytes or 0) // max(self.rows, 1)
        self.shard = shard
        layout = whole.shape.layout
        self.is_by_rows = layout is None or tuple(layout.minor_to_major) == (1, 0)

    def halo(self, shard: int) -> int:
        """Bytes of the transfer that puts rows of padded shards back in their places."""
        return (shard - self.rows // self.devices) * (self.devices - 1) * self.row_bytes

    def is_gradient(self, parameters: set[tuple[int | None, ...]]) -> bool:
        """Whether a parameter is as large as a shard without padding."""
        return (self.rows // self.devices, self.columns) in parameters

    def padded(self, where: Place) -> int | None:
        """The rows of a shard by the windows; None if they are not known."""
        if self.rows % self.devices:
            return None
        exact = self.rows // self.devices
        if not self.is_by_rows:
            return exact
        return padded_shard(exact, self.columns, self.row_bytes, self.devices, where)


class Padding:
    """What padding of reduce-scatters changes on another mesh."""

    __slots__ = ("halos", "known", "more", "open", "scattered")

    def __init__(self, result: WhatIf) -> None:
        self.scattered: set[str] = set()
        """Names of reduce-scatters whose shards may be padded."""
        self.known: set[str] = set()
        """Names of reduce-scatters whose shards are known after the change."""
        self.halos: dict[str, str] = {}
        """By transfer of rows of padded shards: the reduce-scatter that it belongs to."""
        self.more: dict[str, list[tuple[str | None, int]]] = {}
        """By reduce-scatter: mesh axes, and the wire bytes that the changed text lacks."""
        self.open: set[str] = set()
        """Names of sums of which it is not known whether they are scattered after the change."""
        module, old_mesh, new_mesh = result.module, result.mesh, result.new_mesh
        if old_mesh is None or new_mesh in (None, old_mesh):
            return
        old_rows = list(result.module.collectives()._ordered())
        changed = {row["name"]: row for row in result.changed.collectives()._ordered()}
        after = dict(_scatters(result.changed, list(changed.values())))
        halos = [row for row in old_rows if is_halo(row)]
        parameters = {
            tuple(own.shape.dimensions)[-2:]
            for own in result.changed.entry.parameters
            if own.shape.is_array
        }
        self.more |= dict(_shifted(result, old_rows, changed))
        (chip, _) = place_of(module, None, old_mesh)
        for name, own_more in _by_columns(result, old_rows, changed):
            self.more[name] = own_more
            if chip not in _COLUMNS:
                self.open.add(name)
        whole = set(_unpadded(module, old_rows, chip))
        self.known |= whole.intersection(_unpadded(result.changed, list(changed.values()), chip))
        for name, old in _scatters(result.module, old_rows):
            self.scattered.add(name)
            if (own := after.get(name)) is None:
                continue
            axes = old.row["axes"]
            if old.columns % _LANES and not own.columns % _LANES:
                own.is_by_rows = True
            shard = own.padded(place_of(module, axes, new_mesh))
            as_modelled = old.padded(place_of(module, axes, old_mesh))
            if shard is None or as_modelled not in (None, old.shard):
                continue  # Windows are not known, or not those of the text.
            is_as_compiled = own.devices == _SURE and as_modelled == old.shard
            if is_as_compiled and own.is_gradient(parameters):
                self.known.add(name)
            wire = shard * (own.devices - 1) * own.row_bytes + own.halo(shard)
            size = wire * (own.row["multiplicity"] or 1) - (own.row["total_wire_bytes"] or 0)
            self.more[name] = [(own.row["axes"], size)]
            sent = old.row["axes"], old.halo(old.shard)
            for row in halos:
                if sent == (row["axes"], row["payload"]) and row["name"] not in self.halos:
                    self.halos[row["name"]] = name
                    halo = changed[row["name"]]
                    self.more[name].append((halo["axes"], -(halo["total_wire_bytes"] or 0)))
                    break
        for name, axes, more in _by_windows(result, old_rows, changed):
            if more is None:
                self.open.add(name)
                self.known.discard(name)
            elif more:
                self.more.setdefault(name, []).append((axes, more))


def _shifted(
    result: WhatIf, rows: list[dict[str, Any]], changed: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, list[tuple[str | None, int]]]]:
    """By transfer of positions that a slice shifts by one: the bytes that the changed text lacks.

    Of n devices whose shards are one position too long, the last one needs n - 1 positions of
    another.
    """
    old, new = result.mesh, result.new_mesh
    for row in rows:
        axes = row["axes"]
        is_slice = (row["op_name"] or "").endswith("/slice")
        if old is None or new is None or not is_slice or row["kind"] != "collective-permute":
            continue
        if axes not in old.shape or row["name"] not in changed:
            continue
        shape = result.module.instructions[row["instruction"]].operands[0].shape
        if old.shape[axes] > 1 and shape.rank == 2 and shape.dimensions[1] == old.shape[axes] - 1:
            own = changed[row["name"]]
            wide = result.changed.instructions[row["name"]].operands[0].shape
            column = (wide.bytes or 0) // (wide.dimensions[1] or 1)
            size = column * (new.shape[axes] - 1) * (own["multiplicity"] or 1)
            yield row["name"], [(axes, size - (own["total_wire_bytes"] or 0))]


def _by_columns(
    result: WhatIf, rows: list[dict[str, Any]], changed: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, list[tuple[str | None, int]]]]:
    """By sum: the bytes that the changed text lacks, or has too many, of those cut by columns.

    A sum as a whole sends twice as much as a scattered one.
    """
    new = result.new_mesh
    for row in rows:
        axes, kind = row["axes"], row["kind"]
        is_sum = kind in ("all-reduce", "reduce-scatter") and row["tensor_kind"] == "gradient"
        if not is_sum or new is None or axes not in new.shape:
            continue
        if row["name"] not in changed or not (row["op_name"] or "").endswith("dot_general"):
            continue
        devices, total = new.shape[axes], 0
        own = result.changed.instructions[row["name"]]
        for place, operand in enumerate(result.module.instructions[row["instruction"]].operands):
            if not _is_cut(result.module.instructions[row["instruction"]], place, along=1):
                continue
            whole = own.operands[place].shape
            is_scattered = not (whole.dimensions[1] or 0) % (_SHARDS * devices)
            if operand.shape.rank == 2 and is_scattered != (kind == "reduce-scatter"):
                total += (whole.bytes or 0) * (devices - 1) // devices
        if total:
            sign = 1 if kind == "reduce-scatter" else -1
            yield row["name"], [(axes, sign * total * (changed[row["name"]]["multiplicity"] or 1))]


def _by_windows(
    result: WhatIf, rows: list[dict[str, Any]], changed: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, str, int | None]]:
    """By sum of matrices laid out by columns and cut along rows: axis, and bytes that are lacking.

    None if it is not known whether they are scattered.
    """
    module, old, new = result.module, result.mesh, result.new_mesh
    assert old is not None
    assert new is not None
    for row in rows:
        axes, kind = row["axes"], row["kind"]
        is_sum = kind in ("all-reduce", "reduce-scatter") and row["tensor_kind"] == "gradient"
        if not is_sum or row["name"] not in changed or new.shape.get(axes, 1) < 2:
            continue
        sizes = old.shape[axes], new.shape[axes]
        where = place_of(module, axes, old), place_of(module, axes, new)
        own, total, is_known, is_cut = module.instructions[row["instruction"]], 0, True, False
        for place, operand in enumerate(own.operands):
            if not _is_cut(own, place, along=0):
                continue
            whole = result.changed.instructions[row["name"]].operands[place].shape
            was = has_windows(operand.shape, sizes[0], where[0])
            now = has_windows(whole, sizes[1], where[1])
            is_cut = True
            if now is None or was is not (kind == "reduce-scatter"):
                is_known = False
            elif now != was:
                total += (whole.bytes or 0) * (sizes[1] - 1) // sizes[1]
        if is_cut:
            sign = 1 if kind == "reduce-scatter" else -1
            times = changed[row["name"]]["multiplicity"] or 1
            yield row["name"], axes, sign * total * times if is_known else None


def _is_cut(own: Instruction, place: int, *, along: int) -> bool:
    """Whether each device takes another part of a summed matrix along a dimension.

    The matrix is laid out by the other dimension: the part is one of each column or row in memory.
    """
    whole = own.operands[place].shape
    users = list(own.users)
    if not own.shape.is_array:
        parts = (user for user in users if user.opcode == "get-tuple-element")
        users = [one for part in parts if part.attributes["index"] == place for one in part.users]
    inner = (one for user in users if user.opcode == "fusion" for one in _inner(user))
    cuts = [one for one in (*users, *inner) if one.opcode == "dynamic-slice"]
    layout = whole.layout
    minor = (1, 0) if layout is None else tuple(layout.minor_to_major)
    if whole.rank != 2 or minor != (along, 1 - along):
        return False
    return any(
        one.shape.rank == 2
        and one.shape.dimensions[1 - along] == whole.dimensions[1 - along]
        and one.shape.dimensions[along] != whole.dimensions[along]
        and one.operands[0].shape.dimensions == whole.dimensions
        for one in cuts
    )


def _inner(fusion: Instruction) -> list[Instruction]:
    return [one for computation in fusion.called_computations for one in computation.instructions]


def is_halo(row: dict[str, Any]) -> bool:
    """Returns whether a transfer may put rows of padded shards back in their places."""
    return row["kind"] == "collective-permute" and not row["op_name"]


def _scatters(module: Module, rows: list[dict[str, Any]]) -> Iterator[tuple[str, _Scatter]]:
    """By name: the sums of one matrix that are scattered along its rows, row major."""
    for row in rows:
        if row["kind"] != "reduce-scatter" or (row["group_size"] or 0) < 2:
            continue
        own = module.instructions[row["instruction"]]
        users = [user for user in own.users if user.opcode == "dynamic-slice"]
        if len(own.operands) != 1 or len(users) != 1 or own.shape.rank != 2:
            continue
        (whole,) = own.operands
        if whole.opcode == "pad":
            whole = whole.operands[0]
        shard, columns = users[0].shape.dimensions
        if shard is not None and columns == own.shape.dimensions[1] and whole.shape.rank == 2:
            yield row["name"], _Scatter(row, whole, shard)


def _unpadded(module: Module, rows: list[dict[str, Any]], chip: str) -> Iterator[str]:
    """Names of sums that are not padded: along whole tiles of columns, or of several matrices."""
    for row in rows:
        devices = row["group_size"] or 0
        if row["kind"] != "reduce-scatter" or devices != _SURE:
            continue
        own = module.instructions[row["instruction"]]
        users = [user.users[0] if user.opcode == "get-tuple-element" and user.users else user
                 for user in own.users]  # fmt: skip
        slices = [user.shape for user in users if user.opcode == "dynamic-slice"]
        sums = [operand.shape for operand in own.operands if operand.opcode != "pad"]
        if len(slices) != len(own.operands) or len(sums) != len(slices):
            continue
        sizes = [sum(shape.bytes or 0 for shape in shapes) for shapes in (sums, slices)]
        if sizes[0] != devices * sizes[1] or any(shape.rank != 2 for shape in slices):
            continue
        is_along_columns = len(sums) == 1 and sums[0].dimensions[0] == slices[0].dimensions[0]
        if all(is_along_columns or _is_even(shape, devices, chip) for shape in slices) and (
            len(sums) > 1 or (is_along_columns and slices[0].dimensions[1] % _LANES == 0)
        ):
            yield row["name"]


def _is_even(shape: Any, devices: int, chip: str) -> bool:
    """Whether a shard has whole tiles of columns, and whole windows of rows."""
    rows, columns = (own or 0 for own in shape.dimensions)
    size = (shape.bytes or 0) // max(rows, 1)
    return not columns % _LANES and padded_rows(rows, size, devices, (chip, None)) == rows
