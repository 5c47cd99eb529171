"""From a mesh shape as configs give it to the sizes of the axes, as AXLearn finds them."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._core import Mesh

MOST_ORDERED = 1 << 20
"""Devices whose order on a mesh is written out, where it is not that of their numbers."""


class MeshError(ValueError):
    """Why a mesh shape gives no mesh."""


def resolve(
    names: Any, shape: Any, devices: int | None, *, slices: int = 1, hosts: int | None = None
) -> Mesh:
    """The mesh of `shape` on `devices` devices; a `MeshError` says why there is none.

    `shape` is a list with a size for each of `names`, one of them perhaps -1 (the rest), or a
    dictionary of two such lists, `ici_mesh_shape` in each slice (of GPUs: host) and
    `dcn_mesh_shape` across them.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise MeshError("the config has no mesh_axis_names that are names")
    if isinstance(shape, dict):
        return _hybrid(names, shape, devices, slices, hosts)
    sizes = _sizes(names, shape, "mesh_shape")
    sizes = _inferred(names, sizes, devices, "devices")
    total = math.prod(sizes)
    if devices is not None and total != devices:
        raise MeshError(f"the mesh {_shown(names, sizes)} has {total:,} devices, not {devices:,}")
    for name, size in zip(names, sizes, strict=True):
        if size % slices == 0:
            # The leading axis that is cut at all is spread over the slices.
            break
        if size != 1:
            raise MeshError(f"{slices:,} slices do not divide {name}={size:,}, the first axis cut")
    else:
        raise MeshError(f"{slices:,} slices divide no axis of {_shown(names, sizes)}")
    return _mesh(names, sizes, slices, hosts)


def _hybrid(
    names: list[str], shape: dict[Any, Any], devices: int | None, slices: int, hosts: int | None
) -> Mesh:
    if set(shape) != {"ici_mesh_shape", "dcn_mesh_shape"}:
        raise MeshError(f"a mesh shape of {', '.join(map(str, shape))} is not known")
    blocks, word = (slices, "slices") if slices > 1 or hosts is None else (hosts, "hosts")
    inner = _sizes(names, shape["ici_mesh_shape"], "ici_mesh_shape")
    outer = _sizes(names, shape["dcn_mesh_shape"], "dcn_mesh_shape")
    if devices is not None and devices % blocks:
        raise MeshError(f"{devices:,} devices cannot be spread evenly over {blocks:,} {word}")
    each = None if devices is None else devices // blocks
    inner = _inferred(names, inner, each, f"devices of each of {blocks:,} {word}")
    # Without the number of devices the shape alone says how many there are.
    across = None if devices is None and -1 not in outer else blocks
    outer = _inferred(names, outer, across, word)
    for sizes, count, what in ((inner, each, "ici_mesh_shape"), (outer, across, "dcn_mesh_shape")):
        if count is not None and math.prod(sizes) != count:
            counted = f"{count:,} {word}" if what[0] == "d" else f"{count:,} devices each"
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
    """The device at each place of the mesh, where blocks of devices lie side by side."""
    each = math.prod(inner)
    total = each * math.prod(outer)
    if total > MOST_ORDERED:
        raise MeshError(f"the order of {total:,} devices is not written out")
    order = [0]
    block_stride, inner_stride = total, each
    # From the major axis on, each place is followed by those along the next axis.
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
        raise MeshError(f"a {what} of {shape!r} is not known")
    if len(shape) != len(names):
        raise MeshError(f"{what} has {len(shape)} sizes for {len(names)} axes")
    if any(size < 1 and size != -1 for size in shape):
        raise MeshError(f"{what} has a size that is neither positive nor -1: {shape}")
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
        raise MeshError(f"{axis}=-1: {count:,} {what} are no multiple of {rest:,}")
    return [count // rest if size == -1 else size for size in sizes]


def _shown(names: list[str], sizes: list[int]) -> str:
    return ",".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))


def _mesh(
    names: list[str],
    sizes: list[int],
    slices: int,
    hosts: int | None,
    order: list[int] | None = None,
) -> Mesh:
    from hlofast._core import Mesh

    axes = list(zip(names, sizes, strict=True))
    given = {"hosts": hosts} if hosts else {}
    if slices > 1:
        given["slices"] = slices
    try:
        return Mesh(axes, device_order=order, **given)
    except (ValueError, OverflowError) as error:
        raise MeshError(str(error)) from None
