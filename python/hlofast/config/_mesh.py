"""Resolves the mesh shape of a config to the sizes of its axes, as AXLearn does."""

from __future__ import annotations

import math

from hlofast.config._instances import MOST_DEVICES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._core import Mesh

MOST_ORDERED = 1 << 20
"""Limit on the devices whose order is written out, if it differs from the order of their numbers.
"""


class MeshError(ValueError):
    """A mesh shape is invalid; `str()` gives the reason."""


def resolve(
    names: Any, shape: Any, devices: int | None, *, slices: int = 1, hosts: int | None = None
) -> Mesh:
    """Returns the mesh of `shape` on `devices` devices; raises `MeshError` if there is none.

    `shape` is a list with one size for each of `names`, one of which may be -1 (the rest), or a
    dictionary of two such lists: `ici_mesh_shape` within each slice (GPUs: host) and
    `dcn_mesh_shape` across them.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise MeshError("mesh_axis_names must be a list of names")
    if isinstance(shape, dict):
        return _hybrid(names, shape, devices, slices, hosts)
    sizes = _sizes(names, shape, "mesh_shape")
    sizes = _inferred(names, sizes, devices, "devices")
    total = math.prod(sizes)
    if devices is not None and total != devices:
        raise MeshError(f"the mesh {_shown(names, sizes)} has {total:,} devices, not {devices:,}")
    for name, size in zip(names, sizes, strict=True):
        if size % slices == 0:
            # The leading axis with more than one device spans the slices.
            break
        if size != 1:
            raise MeshError(f"{slices:,} slices do not divide {name}={size:,}, the first axis")
    else:
        raise MeshError(f"no axis of {_shown(names, sizes)} is divisible by {slices:,} slices")
    return _mesh(names, sizes, slices, hosts)


def _hybrid(
    names: list[str], shape: dict[Any, Any], devices: int | None, slices: int, hosts: int | None
) -> Mesh:
    if set(shape) != {"ici_mesh_shape", "dcn_mesh_shape"}:
        given = ", ".join(map(str, shape))
        raise MeshError(f"a mesh shape needs ici_mesh_shape and dcn_mesh_shape, not {given}")
    blocks, word = (slices, "slices") if slices > 1 or hosts is None else (hosts, "hosts")
    inner = _sizes(names, shape["ici_mesh_shape"], "ici_mesh_shape")
    outer = _sizes(names, shape["dcn_mesh_shape"], "dcn_mesh_shape")
    if devices is not None and devices % blocks:
        raise MeshError(f"{devices:,} devices cannot be spread evenly over {blocks:,} {word}")
    each = None if devices is None else devices // blocks
    of_each = f" of each of {blocks:,} {word}" if blocks > 1 else ""
    inner = _inferred(names, inner, each, f"devices{of_each}")
    # If the number of devices is not given, the shape determines it.
    across = None if devices is None and -1 not in outer else blocks
    outer = _inferred(names, outer, across, word)
    for sizes, count, what in ((inner, each, "ici_mesh_shape"), (outer, across, "dcn_mesh_shape")):
        if count is not None and math.prod(sizes) != count:
            each_of = " each" if blocks > 1 else ""
            counted = f"{count:,} {word}" if what[0] == "d" else f"{count:,} devices{each_of}"
            message = f"{what} {_shown(names, sizes)} makes {math.prod(sizes):,}, not {counted}"
            raise MeshError(message)
    sizes = [size * count for size, count in zip(inner, outer, strict=True)]
    if slices == 1 and word == "slices":
        slices = math.prod(outer)
    first_inner = next((at for at, size in enumerate(inner) if size > 1), len(names))
    last_outer = max((at for at, count in enumerate(outer) if count > 1), default=0)
    if last_outer <= first_inner:
        return _mesh(names, sizes, slices, hosts)
    return _mesh(names, sizes, slices, hosts, _order(inner, outer))


def _order(inner: list[int], outer: list[int]) -> list[int]:
    """The device at each position of a mesh that consists of blocks of devices."""
    each = math.prod(inner)
    total = each * math.prod(outer)
    if total > MOST_ORDERED:
        raise MeshError(f"{total:,} devices; an order is written out for {MOST_ORDERED:,} at most")
    order = [0]
    block_stride, inner_stride = total, each
    # Each round extends every position along the next axis, major axis first.
    for size, count in zip(inner, outer, strict=True):
        block_stride //= count
        inner_stride //= size
        steps = [
            block * block_stride + place * inner_stride
            for block in range(count)
            for place in range(size)
        ]
        order = [device + step for device in order for step in steps]
    return order


def _sizes(names: list[str], shape: Any, what: str) -> list[int]:
    if shape is None:
        raise MeshError(f"the config has no {what}")
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise MeshError(f"{what} must be a list of integers, not {shape!r}")
    if len(shape) != len(names):
        raise MeshError(f"{what} has {len(shape)} sizes for {len(names)} axes")
    if any(size < 1 and size != -1 for size in shape):
        raise MeshError(f"{what} has a size that is neither positive nor -1: {shape}")
    if any(size > MOST_DEVICES for size in shape):
        raise MeshError(f"{what} has a size above {MOST_DEVICES:,}")
    return shape


def _inferred(names: list[str], sizes: list[int], count: int | None, what: str) -> list[int]:
    if -1 not in sizes:
        return sizes
    if sizes.count(-1) > 1:
        raise MeshError(f"only one axis can be -1: {_shown(names, sizes)}")
    rest = math.prod(size for size in sizes if size != -1)
    axis = names[sizes.index(-1)]
    if count is None:
        raise MeshError(f"{axis}=-1 needs the number of {what}, which is not known")
    if count % rest:
        raise MeshError(f"{axis}=-1: {count:,} {what} are not divisible by {rest:,}")
    return [count // rest if size == -1 else size for size in sizes]


def _shown(names: list[str], sizes: list[int]) -> str:
    """The axes that are not 1; all axes if all are."""
    is_single = all(size == 1 for size in sizes)
    pairs = zip(names, sizes, strict=True)
    return ",".join(f"{name}={size}" for name, size in pairs if size != 1 or is_single)


def _mesh(
    names: list[str],
    sizes: list[int],
    slices: int,
    hosts: int | None,
    order: list[int] | None = None,
) -> Mesh:
    from hlofast._core import Mesh

    if math.prod(sizes) > MOST_DEVICES:
        raise MeshError(f"the mesh {_shown(names, sizes)} has more than {MOST_DEVICES:,} devices")
    axes = list(zip(names, sizes, strict=True))
    given = {"hosts": hosts} if hosts else {}
    if slices > 1:
        given["slices"] = slices
    try:
        return Mesh(axes, device_order=order, **given)
    except (ValueError, OverflowError) as error:
        raise MeshError(str(error)) from None
