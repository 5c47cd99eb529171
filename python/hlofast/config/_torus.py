"""How JAX lays a mesh on the torus of a TPU slice.

`jax.experimental.mesh_utils.create_device_mesh` gives each axis of a mesh, the last one first, the
largest set of free torus axes whose sizes multiply to its size. Where there is none, it refuses the
mesh unless `allow_split_physical_axes` is set.
"""

from __future__ import annotations

import math
from itertools import combinations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PLANES = {
    4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16),
}  # fmt: skip
"""Chips along both axes of slices of TPU v5e and v6e (Google Cloud documentation)."""
_SMALL = {4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4)}
"""Slices of TPU v4 and v5p below one cube of 4 by 4 by 4 chips."""
_CUBE = 4
_MOST_CHIPS = 1 << 14
_LARGEST = {"tpu-v4": 4096, "tpu-v5e": 256, "tpu-v5p": 6144, "tpu-v6e": 256}
"""Chips of the largest slice of each kind (Google Cloud documentation, TPU versions)."""
_MOST_TRIED = 1 << 10
"""Limit on the numbers of slices that are tried for an advice."""
_PLANAR, _CUBIC = ("tpu-v5e", "tpu-v6e"), ("tpu-v4", "tpu-v5p")


def shape(device: str, chips: int) -> tuple[int, ...] | None:
    """Chips along the axes of a slice's torus; None if the slice is not known."""
    if device in _PLANAR:
        return _PLANES.get(chips)
    if device not in _CUBIC or chips > _MOST_CHIPS:
        return None
    if chips in _SMALL:
        return _SMALL[chips]
    cubes = chips // _CUBE**3
    if chips % _CUBE**3:
        return None
    # The most cubic arrangement of whole cubes, which is the default of each size.
    arranged = [
        (one, other, cubes // (one * other))
        for one in range(1, cubes + 1)
        if cubes % one == 0
        for other in range(one, cubes // one + 1)
        if cubes // one % other == 0 and cubes // (one * other) >= other
    ]
    if not arranged:
        return None
    return tuple(_CUBE * own for own in min(arranged, key=lambda own: (own[2] - own[0], own[2])))


def largest(device: str) -> int | None:
    """Chips of the largest slice of a kind of device; None if it is not known."""
    return _LARGEST.get(device)


def no_slice(device: str, chips: int) -> str | None:
    """The reason if no slice of a device has this many chips; None if one may."""
    most = _LARGEST.get(device)
    if most is None or chips < min(_PLANES):
        return None
    if chips > most:
        return f"a slice of {device} has at most {most:,} chips, not {chips:,}"
    if shape(device, chips) is not None:
        return None
    less, more = _nearest(device, chips)
    return f"slices of {device} have {less:,} or {more:,} chips, not {chips:,}"


def _nearest(device: str, chips: int) -> tuple[int, int]:
    """The largest slice with fewer chips, and the smallest with more."""
    most = _LARGEST[device]
    less, more = (
        next(own for own in range(chips, chips + step * most, step) if shape(device, own))
        for step in (-1, 1)
    )
    return less, more


def check_slices(device: str, chips: int, slices: int = 1) -> None:
    """Raises `ValueError` if slices of a kind of device do not make up so many chips.

    The error names what they make up. Whether the slices divide the chips is not checked.
    """
    each = chips // slices
    if chips % slices or (why := no_slice(device, each)) is None:
        return
    most = _LARGEST[device]
    if each <= most:
        less, more = (own * slices for own in _nearest(device, each))
        raise ValueError(f"{why}: give --chips {less} or {more}")
    needed = -(-chips // most)
    counts = range(needed, needed + _MOST_TRIED)
    count = next((own for own in counts if chips % own == 0 and shape(device, chips // own)), None)
    raise ValueError(why if count is None else f"{why}: give --slices {count}")


def is_laid(torus: tuple[int, ...], sizes: Iterable[int]) -> bool:
    """Whether JAX lays a mesh with these axes on a torus without splitting the torus' axes."""
    free = list(torus)
    for size in reversed(list(sizes)):
        if size == 1:
            continue
        places = (
            places
            for count in range(len(free), 0, -1)
            for places in combinations(range(len(free)), count)
            if math.prod(free[own] for own in places) == size
        )
        taken = next(places, None)
        if taken is None:
            return False
        for own in taken:
            free[own] = 0
    return True
