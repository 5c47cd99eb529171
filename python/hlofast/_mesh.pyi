"""Meshes, shardings and groups: a part of `hlofast._core`; a stub only, the code is in `_core`."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, final

from hlofast._core import Instruction

def _restore_mesh(parts: tuple[Any, ...]) -> Mesh:
    """Restores a mesh from the result of `Mesh.__reduce__`."""

@final
class Mesh:
    """Devices with coordinates along named axes; the last axis varies fastest.

    `axes` is a mapping of axis names to sizes or an iterable of such pairs, major first; the
    `shape` of a JAX mesh works too. Devices have the numbers that HLO text uses: positions in the
    program's device assignment, which for JAX are row-major positions in its mesh. `device_order`
    lists the devices in mesh order if that is not 0, 1, 2, ... `hosts` and `slices` are counts;
    each host and each slice has equally many consecutive devices.

    Raises `ValueError` for an impossible mesh and says why.
    """

    def __new__(
        cls,
        axes: Mapping[str, int] | Iterable[tuple[str, int]],
        *,
        device_order: Iterable[int] | None = None,
        hosts: int | None = None,
        slices: int | None = None,
    ) -> Mesh: ...
    @staticmethod
    def parse(text: str, /, *, hosts: int | None = None, slices: int | None = None) -> Mesh:
        """Reads a mesh from text such as `data=2,model=4`.

        Raises `ValueError` if the text or the counts are invalid.
        """
    def placed(self, *, hosts: int | None = None, slices: int | None = None) -> Mesh:
        """Returns the same mesh on another number of hosts and slices; an omitted count is kept.

        Raises `ValueError` if the counts do not fit the mesh.
        """
    axis_names: Final[tuple[str, ...]]
    """The names of the axes, major first."""
    shape: Final[dict[str, int]]
    """Axis sizes by name, major first."""
    device_count: Final[int]
    """Number of devices."""
    hosts: Final[int | None]
    """Number of hosts; None if not given."""
    slices: Final[int | None]
    """Number of slices; None if not given."""
    source: Final[str | None]
    """The source of a derived mesh: `shardy_meshes`, `named_shardings`, `entry_shardings`,
    `shardings` or `replica_groups`; None for a given mesh.
    """
    invented_names: Final[bool]
    """Whether the axis names are not in the text, or were invented by the compiler."""
    evidence: Final[int]
    """Number of attributes in the text that support a derived mesh; 0 for a given mesh."""
    ignored: Final[int]
    """Number of attributes of that kind that do not fit a derived mesh; 0 for a given mesh."""
    def devices(self, limit: int = 4194304) -> tuple[int, ...]:
        """Returns the device numbers in mesh order; the last axis varies fastest.

        Raises `ValueError` if the mesh has more than `limit` devices.
        """
    def coordinates(self, device: int) -> dict[str, int]:
        """Returns the coordinates of `device`, by axis name.

        Raises `ValueError` for a device that is not in the mesh.
        """
    def axes_of(self, instruction: Instruction) -> AxisMatch:
        """Returns the mesh axes of the collective `instruction`.

        Raises `ValueError` for instructions without groups and source-target pairs, `ParseError` if
        they cannot be read.
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __copy__(self) -> Mesh: ...
    def __deepcopy__(self, _memo: object) -> Mesh: ...

@final
class AxisMatch:
    """The mesh axes of a collective."""

    axes: Final[tuple[str, ...]]
    """Axes in mesh order. A part of an axis is written `model:(2)4`: 4 is its size, 2 the product
    of the sizes before it within the axis. Empty for groups of one device, and if `reason` is
    set.
    """
    is_everything: Final[bool]
    """Whether the axes make up the whole mesh."""
    reason: Final[str | None]
    """Why the groups do not follow mesh axes; None if they do."""
    groups: Final[str | None]
    """The groups as canonical text: equal sets give equal text. None for permutes."""
    shift: Final[int | None]
    """The shift of a permute along its axes; None for groups and for pairs with different
    shifts.
    """
    wraps: Final[bool | None]
    """Whether the shift wraps around the ends of the axes; None if `shift` is."""

_Dimension = str | tuple[str, ...] | None

@final
class PartitionSpec:
    """The placement of an array on a mesh: the axes that divide each dimension."""

    dimensions: Final[tuple[_Dimension, ...]]
    """For each dimension, None, the name of an axis or a tuple of names, major first."""
    unreduced: Final[tuple[str, ...]]
    """Axes along which devices hold partial results."""
    manual: Final[tuple[str, ...]]
    """Axes that the program itself manages (manual sharding)."""
    reduction: Final[str | None]
    """How partial results are combined: `sum`, `max` or `min`; None without partial results."""
    reason: Final[str | None]
    """Why the sharding cannot be expressed on the mesh; None if it can."""
    def __len__(self) -> int: ...
    def __getitem__(self, key: int, /) -> _Dimension: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Sharding:
    """The placement of arrays on devices: one sharding, or one per leaf of a tuple."""

    kind: Final[str]
    """`replicated`, `manual`, `unknown`, `unreduced`, `maximal`, `tiled`, `named` or `tuple`."""
    leaves: Final[tuple[Sharding, ...]]
    """The shardings as written: one, or one per leaf of a tuple."""
    is_replicated: Final[bool]
    """Whether every device holds the whole array."""
    tile_dimensions: Final[tuple[int, ...] | None]
    """Number of tiles along each dimension of the array; None if it is not divided."""
    device_count: Final[int | None]
    """Number of devices named by the sharding; None if it names none."""
    def devices(self, limit: int = 4194304) -> tuple[int, ...] | None:
        """Returns the devices in row-major order of the tile grid; None if the sharding names none.

        Raises `ValueError` for more than `limit` devices.
        """
    def spec(self, mesh: Mesh) -> PartitionSpec:
        """Returns the sharding in terms of the axes of `mesh`: the same tiles on the same devices.

        If this is impossible, the result shows the sharding as written, and `reason` explains why.
        Raises `ValueError` for several leaves: each has a spec of its own.
        """
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ReplicaGroups:
    """The device groups of a collective; expanded on demand."""

    kind: Final[str]
    """`everyone`, `lists`, `iota` or `mesh`."""
    group_count: Final[int | None]
    """Number of groups; None for a single group of all devices."""
    group_size: Final[int | None]
    """Devices per group; None if the groups differ in size or the text does not list them."""
    def expand(self, limit: int = 4194304) -> tuple[tuple[int, ...], ...] | None:
        """Returns all groups as tuples; None for a single group of all devices.

        Raises `ValueError` for more than `limit` devices.
        """
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __getitem__(self, key: int, /) -> tuple[int, ...]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
