"""A choice of a plan as arguments of MaxText's command line."""

from __future__ import annotations

from hlofast.config.maxtext import _refused, _remat
from hlofast.config.maxtext._sharding import parallelism

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast.config._plan_space import Candidate, Option
    from hlofast.config._tree import Config

_EMPTY = "'\"\"'"
"""An empty text in a shell's quotes."""


def arguments(config: Config, candidate: Candidate, instance: str) -> list[str]:
    """`KEY=VALUE` for values in which the run differs from the candidate, quoted for a shell."""
    wanted: dict[str, Any] = {}
    axes = config.get("mesh_axes")
    inner = []
    for axis in axes if isinstance(axes, tuple) else ():
        across = candidate.outer.get(axis, 1)
        inner.append(candidate.mesh.get(axis, 1) // across)
        wanted[parallelism("dcn", axis)] = across
        wanted[parallelism("ici", axis)] = inner[-1]
    if not _refused.fits_ring(config, inner):
        wanted["custom_mesh"] = ""
    if instance.startswith("gpu-"):
        # Otherwise each node is a slice, and axes have to lie inside nodes or across them.
        wanted["num_slices"] = 1
    each = candidate.per_device
    wanted["per_device_batch_size"] = int(each) if each.is_integer() else each
    wanted["gradient_accumulation_steps"] = candidate.steps
    wanted |= _policy(candidate.option)
    wanted |= candidate.state.values
    if candidate.is_split:
        wanted["allow_split_physical_axes"] = True
    defaults = {_remat.INPUT: "device"} | dict.fromkeys(_remat.TENSORS, "remat")
    return [
        # YAML reads nothing as null, which is not a text.
        f"{key}={_EMPTY if value == '' else value}"
        for key, value in wanted.items()
        if config.get(key, defaults.get(key, 1)) != value
    ]


def _policy(option: Option) -> dict[str, str]:
    if option.is_named:
        return {"remat_policy": option.name}
    tensors = dict.fromkeys(option.saved, "device") | dict.fromkeys(option.offloaded, "offload")
    values = {"remat_policy": "custom"}
    values[_remat.INPUT] = "offload" if option.offloads_inputs else "device"
    return values | {name: tensors.get(name, "remat") for name in _remat.TENSORS}
