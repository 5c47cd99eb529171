"""Meshes, shardings and groups: a part of `hlofast._core`; a stub only, the code is in `_core`."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, final

from hlofast._core import Instruction

def _restore_mesh(parts: tuple[Any, ...]) -> Mesh:
    """Makes a mesh again from what `Mesh.__reduce__` gave."""

@final
class Mesh:
    """Devices with coordinates along named axes, the last axis varying fastest.

    `axes` maps names to sizes, or is pairs of them, major first; the `shape` of a JAX mesh will do.
    Device numbers are those that HLO text uses: positions in the program's device assignment, for
    JAX the row-major positions in its mesh. `device_order` lists them in the order of the mesh
    where that is not 0, 1, 2, ... `hosts` and `slices` are how many there are; each has equally
    many consecutive devices. A ValueError says why a mesh cannot be.
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
        """Reads `data=2,model=4`."""
    def placed(self, *, hosts: int | None = None, slices: int | None = None) -> Mesh:
        """The same mesh on so many hosts and slices; what is not given stays as it is. A ValueError
        says why that cannot be.
        """
    axis_names: Final[tuple[str, ...]]
    """The names of the axes, major first."""
    shape: Final[dict[str, int]]
    """Sizes by name, major first."""
    device_count: Final[int]
    """Number of devices."""
    hosts: Final[int | None]
    """Number of hosts, where it was given."""
    slices: Final[int | None]
    """Number of slices, where it was given."""
    source: Final[str | None]
    """Where a derived mesh comes from: `shardy_meshes`, `named_shardings`, `entry_shardings`,
    `shardings` or `replica_groups`; None for a mesh that was given.
    """
    invented_names: Final[bool]
    """Whether the names of the axes are not in the text, or were made up by the compiler."""
    evidence: Final[int]
    """Attributes of the text that speak for a derived mesh; 0 for one that was given."""
    ignored: Final[int]
    """Attributes of the same kind that do not fit a derived mesh; 0 for one that was given."""
    def devices(self, limit: int = 4194304) -> tuple[int, ...]:
        """The devices in the order of the mesh, the last axis varying fastest. A ValueError beyond
        `limit` devices.
        """
    def coordinates(self, device: int) -> dict[str, int]:
        """The coordinate of each axis at which `device` stands, by axis name. A ValueError for a
        device that the mesh does not have.
        """
    def axes_of(self, instruction: Instruction) -> AxisMatch:
        """The axes along which the collective `instruction` goes. A ValueError for instructions
        that have neither groups nor source-target pairs, a `ParseError` if these cannot be read.
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __copy__(self) -> Mesh: ...
    def __deepcopy__(self, _memo: object) -> Mesh: ...

@final
class AxisMatch:
    """The axes along which a collective goes."""

    axes: Final[tuple[str, ...]]
    """Axes in the order of the mesh; `model:(2)4` is a part of one: the sizes in front of it, and
    its own. Empty for groups of one device, and where `reason` says why there are none.
    """
    is_everything: Final[bool]
    """Whether that is the whole mesh."""
    reason: Final[str | None]
    """Why the groups go along no axes; None where they do."""
    groups: Final[str | None]
    """The groups, equal sets in equal words; None for permutes."""
    shift: Final[int | None]
    """How far a permute goes along its axes; None for groups, and where pairs differ in that."""
    wraps: Final[bool | None]
    """Whether it goes around the ends of the axes; None where `shift` is."""

_Dimension = str | tuple[str, ...] | None

@final
class PartitionSpec:
    """How an array lies on a mesh: for each dimension the axes that cut it."""

    dimensions: Final[tuple[_Dimension, ...]]
    """For each dimension None, the name of an axis, or a tuple of names, major first."""
    unreduced: Final[tuple[str, ...]]
    """Axes along which devices hold partial results."""
    manual: Final[tuple[str, ...]]
    """Axes that the program itself takes care of."""
    reduction: Final[str | None]
    """How partial results are combined: `sum`, `max` or `min`; None without any."""
    reason: Final[str | None]
    """Why the sharding cannot be put in terms of the mesh; None where it can."""
    def __len__(self) -> int: ...
    def __getitem__(self, key: int, /) -> _Dimension: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Sharding:
    """How arrays lie on devices: one sharding, or one per leaf of a tuple."""

    kind: Final[str]
    """`replicated`, `manual`, `unknown`, `unreduced`, `maximal`, `tiled`, `named` or `tuple`."""
    leaves: Final[tuple[Sharding, ...]]
    """The shardings that are written: one, or one per leaf of a tuple."""
    is_replicated: Final[bool]
    """Whether every device holds everything."""
    tile_dimensions: Final[tuple[int, ...] | None]
    """Number of tiles along each dimension of the array; None where nothing is cut."""
    device_count: Final[int | None]
    """Number of devices that the sharding names; None if it names none."""
    def devices(self, limit: int = 4194304) -> tuple[int, ...] | None:
        """The devices in row-major order of the tile grid; None if the sharding names none. A
        ValueError beyond `limit` devices.
        """
    def spec(self, mesh: Mesh) -> PartitionSpec:
        """The sharding in terms of the axes of `mesh`: the same tiles on the same devices. Where
        there is none the result shows the sharding as written, and its `reason` says why. A
        ValueError for several leaves: each has a spec of its own.
        """
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ReplicaGroups:
    """Which devices take part together in a collective; expanded on demand."""

    kind: Final[str]
    """`everyone`, `lists`, `iota` or `mesh`."""
    group_count: Final[int | None]
    """Number of groups; None for one group of everyone."""
    group_size: Final[int | None]
    """Devices per group; None if they differ or are not written."""
    def expand(self, limit: int = 4194304) -> tuple[tuple[int, ...], ...] | None:
        """All groups as tuples; None for one group of everyone. A ValueError beyond `limit`
        devices.
        """
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __getitem__(self, key: int, /) -> tuple[int, ...]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
