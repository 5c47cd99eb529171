"""Where the devices of a mesh axis lie in a slice: an assumption.

A mesh does not say it. Its devices are taken as those of the usual slice with as many chips
(`config/_torus.py`), in the order of JAX's topologies (`jax.experimental.topologies`).
"""

from __future__ import annotations

from math import prod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hlofast._core import Mesh
    from hlofast._module import Module

    Place = tuple[str, bool | None]

_HOST = 2
"""Chips of a host along the first two sides of a slice."""


def sides_filled(module: Module, axis: str, mesh: Mesh) -> int | None:
    """How many whole sides of the slice the devices of an axis fill; None if it is not known.

    None counts if the devices are a part of a side, or do not fill the box that they span.
    """
    from hlofast.config import _torus

    device = module.context.device
    torus = device and _torus.shape(device.name, prod(mesh.shape.values()))
    if not torus or axis not in mesh.shape:
        return None
    names = list(mesh.shape)
    step = prod(mesh.shape[name] for name in names[names.index(axis) + 1 :])
    places = [_place(at * step, torus) for at in range(mesh.shape[axis])]
    along = [len(set(own)) for own in zip(*places, strict=True)]
    whole = [own for own, side in zip(along, torus, strict=True) if own == side > 1]
    return len(whole) if prod(whole) == len(places) else 0


def place_of(module: Module, axis: str | None, mesh: Mesh) -> Place:
    """The chip of a module, and whether the devices of an axis fill several sides of the slice."""
    sides = None if axis is None else sides_filled(module, axis, mesh)
    return chip_of(module), None if sides is None else sides > 1


def chip_of(module: Module) -> str:
    """The chip of a module, such as v5e; empty if it is not known."""
    device = module.context.device
    return "" if device is None else device.name.removeprefix("tpu-")


def _place(number: int, torus: Sequence[int]) -> list[int]:
    """The coordinates of a device: JAX counts hosts, of 2 by 2 chips, and chips within each."""
    hosts = [min(side, _HOST) if at < 2 else 1 for at, side in enumerate(torus)]
    place = []
    for side in hosts:
        number, own = divmod(number, side)
        place.append(own)
    for at, side in enumerate(torus):
        number, own = divmod(number, side // hosts[at])
        place[at] += own * hosts[at]
    return place
