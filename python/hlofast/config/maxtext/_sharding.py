"""Meshes and shardings of MaxText: `ici_*` and `dcn_*` sizes, and logical axis rules."""

from __future__ import annotations

import math
from functools import cache, lru_cache

from hlofast.config import _mesh
from hlofast.config._parts import UnmodelledError
from hlofast.config._tree import Config
from hlofast.config.maxtext import _versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hlofast._core import Mesh
    from hlofast.config._parts import Axes, Spec

_LATER_NAMES = {
    "activation_length_no_exp": "activation_length",
    "activation_batch_no_exp": "activation_batch_moe",
    "embed_no_exp": "embed_moe",
}
"""Logical axes that later versions of MaxText call otherwise."""
_ONCE = {
    "activation_length_attn": "activation_length_no_exp",
    "activation_length_moe": "activation_length_no_exp",
    "activation_mlp_moe": "activation_mlp",
    "embed_vocab": "embed",
    "mlp_moe": "mlp",
    "embed_attn": "embed",
    "embed_router": "embed",
}
"""Logical axes of MaxText 0.2.5 with the wider ones that arrays had before: the first five since
0.2.2, the last two since 0.2.5 (`logical_axis_rules` of each `base.yml`)."""
_NEWEST = ("embed_attn", "embed_router")
"""Those of 0.2.5."""
_DROPS = "custom_mesh_and_rule"
"""A key of the versions that drop mesh axes which the mesh lacks, since 0.2.1; before, they fail at
a partition spec that names them."""
_PARALLELISMS = {"stage": "pipeline"}
"""Names in the keys `ici_*_parallelism` that differ from those of the mesh axes."""


def resolve(config: Config, devices: int | None, slices: int, hosts: int | None = None) -> Mesh:
    """The mesh of a run; raises `MeshError` if there is none.

    `hosts` are those of GPUs, if the run takes each for a slice.
    """
    axes = config.get("mesh_axes")
    if not isinstance(axes, tuple) or not all(isinstance(axis, str) for axis in axes):
        raise _mesh.MeshError("mesh_axes must be a list of names")
    names = list(axes)
    inner, outer = (_sizes(config, names, part) for part in ("ici", "dcn"))
    if "stage" in names:
        at = names.index("stage")
        if inner[at] != 1 or outer[at] != 1:
            # Under pipeline parallelism, MaxText puts this axis first.
            names.insert(0, names.pop(at))
            inner.insert(0, inner.pop(at))
            outer.insert(0, outer.pop(at))
    shape = {"ici_mesh_shape": inner, "dcn_mesh_shape": outer}
    return _mesh.resolve(names, shape, devices, slices=slices, hosts=hosts)


def inner(config: Config, mesh: Mesh, slices: int) -> list[int]:
    """The sizes of the mesh's axes inside a slice."""
    names = list(mesh.shape)
    outer = _sizes(config, names, "dcn")
    rest = slices // math.prod(size for size in outer if size != -1)
    across = [rest if size == -1 else size for size in outer] if slices > 1 else [1] * len(outer)
    return [size // own for size, own in zip(mesh.shape.values(), across, strict=True)]


def _sizes(config: Config, names: list[str], part: str) -> list[int]:
    sizes = []
    for name in names:
        key = parallelism(part, name)
        size = config.get(key, 1)
        if type(size) is not int:
            raise _mesh.MeshError(f"{key} must be an integer, not {size!r}")
        sizes.append(size)
    return sizes


def parallelism(part: str, axis: str) -> str:
    """The key of an axis' size inside slices (`ici`) or across them (`dcn`)."""
    return f"{part}_{_PARALLELISMS.get(axis, axis)}_parallelism"


class Rules:
    """The logical axis rules of a run: which mesh axes shard an array's dimensions."""

    __slots__ = ("_names", "_rules", "_spec", "is_later")

    def __init__(self, config: Config) -> None:
        self._rules: list[tuple[str, Axes]] = []
        rules = config.get("logical_axis_rules", ())
        entries = rules.to_python() if isinstance(rules, Config) else rules
        if not isinstance(entries, (list, tuple)):
            raise UnmodelledError("logical_axis_rules must be a list of pairs")
        for own in entries:
            if not isinstance(own, (list, tuple)) or len(own) != 2 or not isinstance(own[0], str):
                raise UnmodelledError("logical_axis_rules must be a list of pairs")
            self._rules.append((own[0], _axes(own[1])))
        known = {name for name, _ in self._rules}
        self.is_later = "activation_batch_moe" in known
        """Whether the batch of experts has a rule of its own, as in versions since 0.2."""
        self._names = {old: new for old, new in _LATER_NAMES.items() if old not in known}
        for name, before in _ONCE.items():
            # In a version that has the axis, no rule for it leaves it whole.
            if known.isdisjoint(_NEWEST if name in _NEWEST else _ONCE):
                self._names[name] = self._names.get(before, before)
        axes = config.get("mesh_axes") if _versions.has(config, _DROPS) else None
        present = frozenset(map(str, axes)) if isinstance(axes, tuple) else None
        self._spec = _spec_of(tuple(self._rules), present)

    def spec(self, names: tuple[str | None, ...]) -> Spec:
        """The mesh axes that shard the dimensions of an array with these logical axes.

        As in Flax: the first rule for a name applies unless the array uses one of its mesh axes
        already; then the next rule for that name is tried. Axes that the mesh lacks are dropped
        (`remove_size_one_mesh_axis` of MaxText's `sharding.py`).
        """
        return self._spec(tuple(self._names.get(name, name) if name else None for name in names))


@lru_cache(maxsize=16)
def _spec_of(
    rules: tuple[tuple[str, Axes], ...], present: frozenset[str] | None
) -> Callable[[tuple[str | None, ...]], Spec]:
    """`spec` by these rules, on a mesh with the axes `present`; None keeps axes that it lacks.

    It is shared, since a plan reads a run once for each mesh.
    """

    @cache
    def spec(names: tuple[str | None, ...]) -> Spec:
        chosen: list[Axes | None] = [None] * len(names)
        used: set[str] = set()
        for name, axes in rules:
            if name not in names:
                continue
            at = names.index(name)
            if chosen[at] is None and used.isdisjoint(axes):
                chosen[at] = axes
                used.update(axes)
        if present is None:
            return tuple(axes or () for axes in chosen)
        return tuple(tuple(axis for axis in axes or () if axis in present) for axes in chosen)

    return spec


def _axes(value: Any) -> Axes:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, (tuple, list)) or not all(isinstance(axis, str) for axis in value):
        raise UnmodelledError("logical_axis_rules must be a list of pairs")
    return tuple(value)
