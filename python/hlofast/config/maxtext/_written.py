"""A choice of a plan as arguments of MaxText's command line."""

from __future__ import annotations

from hlofast.config.maxtext import _remat
from hlofast.config.maxtext._sharding import parallelism

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast.config._plan_space import Candidate, Option
    from hlofast.config._tree import Config


def arguments(config: Config, candidate: Candidate) -> list[str]:
    """`KEY=VALUE` for all values in which the run differs from the candidate."""
    wanted: dict[str, Any] = {}
    axes = config.get("mesh_axes")
    for axis in axes if isinstance(axes, tuple) else ():
        across = candidate.outer.get(axis, 1)
        wanted[parallelism("dcn", axis)] = across
        wanted[parallelism("ici", axis)] = candidate.mesh.get(axis, 1) // across
    each = candidate.per_device
    wanted["per_device_batch_size"] = int(each) if each.is_integer() else each
    wanted["gradient_accumulation_steps"] = candidate.steps
    wanted |= _policy(candidate.option)
    wanted |= candidate.state.values
    if candidate.is_split:
        wanted["allow_split_physical_axes"] = True
    defaults = {_remat.INPUT: "device"} | dict.fromkeys(_remat.TENSORS, "remat")
    return [
        f"{key}={value}"
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
