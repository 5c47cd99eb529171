"""`Shares`: the share of one device in a module whose shapes cover all devices together."""

from __future__ import annotations

from hlofast import _core, _text
from hlofast._result import Fact, Note, Section
from hlofast.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._core import Field
    from hlofast._module import Module

_INSIDE = ", in shard_map of one"
TOGETHER = " of all devices"
"""Ends the labels of figures that cover all devices together."""
_ALONE = " of one device alone"
"""Ends the labels of times in which one device does the work of all devices."""


class Shares:
    """The share of one device, from the shardings that the module writes."""

    __slots__ = ("annotated", "devices", "is_written", "parameters", "products", "results")

    def __init__(self, record: dict[str, Any]) -> None:
        self.devices: int = record["devices"]
        """Number of devices that the shapes cover together.

        1 if they are the shapes of one device.
        """
        self.is_written: bool = record["is_written"]
        """Whether the module writes shardings."""
        self.parameters = Table(record["parameters"])
        self.results = Table(record["results"])
        self.annotated = Table(record["annotated"])
        self.products = Table(record["products"])

    def bytes_of(self, table: Table) -> tuple[int | None, str]:
        """Bytes of the arrays on one device, and their provenance; None if one is unknown."""
        ways = set(table.values("sharding"))
        if "unknown" in ways:
            return None, "unknown"
        how = "modelled" if "implied" in ways else "exact"
        return sum(table.values("device_bytes")), how

    @property
    def flops(self) -> tuple[int, int, int]:
        """FLOPs of matmuls: of all devices, the least and the most of one device."""
        whole, least, most = (sum(self.products.values(n)) for n in ("flops", "least", "most"))
        return whole, least, most

    @property
    def determined(self) -> float | None:
        """Share of the matmul FLOPs for which the shardings determine the FLOPs of one device."""
        pairs = zip(
            self.products.values("flops"), self.products.values("is_determined"), strict=True
        )
        known = sum(flops for flops, is_determined in pairs if is_determined)
        whole = self.flops[0]
        return known / whole if whole else None


def devices_together(module: Module) -> int:
    """Number of devices that the shapes cover together; 1 for the program of one device."""
    count: int = _core._devices_together(module)
    return count


def shares(module: Module) -> Shares | None:
    """The share of one device; None if shapes already are the shapes of one device."""
    return every(module) if devices_together(module) > 1 else None


def every(module: Module) -> Shares:
    """The share of one device.

    Tables without rows if shapes already are the shapes of one device.
    """
    return Shares(_core._shares(module))


def covering(field: Field) -> str:
    """Ends the label of a figure of shapes that cover all devices together.

    Seconds do not add up over devices: they are those of one device that does all the work.
    """
    return _ALONE if field.kind == "seconds" else TOGETHER


def labelled(
    module: Module, facts: tuple[Fact, ...], kinds: tuple[str, ...], others: tuple[str, ...] = ()
) -> tuple[Fact, ...]:
    """The facts.

    If shapes cover all devices, the labels say so (`covering`). This applies to figures of these
    `kinds`, except `others` and figures of one device.
    """
    if devices_together(module) == 1:
        return facts
    inside = _INSIDE if _enters_shard_map(module) else ""
    said = []
    for fact in facts:
        field = fact.field
        if field.kind in kinds and field.name not in others and "device_" not in field.name:
            label = field.label + covering(field) + inside
            fact = Fact(field.replace(label=label), fact.value, fact.provenance)
        said.append(fact)
    return tuple(said)


def refusal(module: Module) -> str:
    """Why a figure of one device is not given."""
    return _refusal(devices_together(module))


def _refusal(devices: int) -> str:
    return f"not partitioned yet: shapes are those of {devices:,} devices together"


def note(module: Module) -> Note | None:
    """A note that figures cover all devices together.

    None if they are the figures of one device.
    """
    own = shares(module)
    if own is None:
        return None
    said = "" if own.is_written else "; it writes no shardings, so the share of a device is unknown"
    text = f"not partitioned yet: figures cover all {own.devices:,} devices together"
    text += f"{except_inside(module)}{said}"
    return Note("global", text, num_partitions=own.devices)


def except_inside(module: Module) -> str:
    """Which part of an unpartitioned module has the shapes of one device, for notes."""
    if not _enters_shard_map(module):
        return ""
    return ", except inside shard_map, whose shapes are those of one device"


def _enters_shard_map(module: Module) -> bool:
    """Whether a part of the program is written for one device; with Shardy and without it."""
    text = module.text
    return '"xla.sdy.GlobalToLocalShape"' in text or '"SPMDFullToShardShape"' in text


def sections(own: Shares | None, names: tuple[str, ...]) -> tuple[Section, ...]:
    """The tables `names` of the share of one device; none without a share."""
    if own is None:
        return ()
    made = []
    for name in names:
        title, shown = _TITLES[name]
        table: Table = getattr(own, name)
        order = "least" if name == "products" else "device_bytes"
        ordered = table.sort_by(order, descending=True)
        made.append(Section(f"device_{name}", title, ordered, shown))
    return tuple(made)


_ARRAYS = ("name", "leaf", "shape", "bytes", "device_bytes", "least", "most", "sharding")
_TITLES = {
    "parameters": ("Parameters on one device", _ARRAYS),
    "results": ("Results on one device", _ARRAYS),
    "annotated": ("Annotated values on one device", _ARRAYS),
    "products": (
        "Matmuls on one device",
        ("name", "flops", "least", "most", "is_determined"),
    ),
}


def held_by_one(own: Shares) -> str:
    """A note on the bytes that one device holds at the start and at the end of a step."""
    parts = [_refusal(own.devices)]
    for name, table in (("parameters", own.parameters), ("results", own.results)):
        known, how = own.bytes_of(table)
        if known is not None:
            about = "" if how == "exact" else "about "
            parts.append(f"{name} on one device {about}{_text.size(known)}")
    return "; ".join(parts)


def flops_of_one(own: Shares) -> str:
    """A note on the matmul FLOPs of one device."""
    if not own.is_written:
        return "no shardings are written, so the matmul FLOPs of one device are unknown"
    _, least, most = own.flops
    counts = [_text.quantity(count, "FLOP").partition(" (")[0] for count in (least, most)]
    return f"matmuls on one device: {' to '.join(dict.fromkeys(counts))}"
