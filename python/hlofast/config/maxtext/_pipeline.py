"""Pipelines of MaxText: how stages share the layers of a model."""

from __future__ import annotations

from hlofast.config._parts import FailsError, Pipeline, UnmodelledError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config.maxtext._builder import Run

AXIS = "stage"
_OFF = {
    "pipeline_delay_activation_forwarding": False, "pipeline_fsdp_ag_once": False,
    "pipeline_fsdp_ag_per_repeat": False, "scan_pipeline_repeats": False,
    "scan_layers_per_stage": False, "set_remat_policy_on_layers_per_stage": False,
    "scan_pipeline_iterations": True, "set_remat_policy_on_pipeline_iterations": True,
    "dcn_pipeline_parallelism": 1, "gradient_accumulation_steps": 1,
}  # fmt: skip
"""Keys with the values that compiled steps have."""
_BLOCK = "llama2"
"""The decoder block of compiled steps."""
_SHARDS = "fsdp"
"""The axis that compiled steps have beside stages."""
_FEWEST, _MOST = 4, 32
"""Its sizes in compiled steps."""
_OFFLOADS = ("offload", "custom")
"""Words in the names of policies that no compiled step has."""


def of(run: Run) -> Pipeline | None:
    """The pipeline of a run whose parts are known; None without stages.

    Raises `FailsError` where MaxText refuses it, and `UnmodelledError` for what no compiled step
    has judged.
    """
    if not run.parts.is_staged:
        return None
    stages = run.mesh[AXIS]
    if run.block != _BLOCK or len(run.parts.units) != 1:
        raise UnmodelledError(f"stages of the decoder block {run.block} are not modelled")
    layers = next(iter(run.parts.units.values())).layers
    if _least(run, "pipeline_parallel_layers", layers) != layers:
        raise UnmodelledError("layers outside of the pipeline are not modelled")
    each = _least(run, "num_layers_per_pipeline_stage", 1)
    repeats, rest = divmod(layers, stages * each)
    if rest:
        why = f"{stages} stages of {each} layers do not divide {layers} layers"
        raise FailsError("MaxText", why)
    if (given := _least(run, "num_pipeline_repeats", repeats)) != repeats:
        why = f"num_pipeline_repeats is {given}, and {layers} layers make {repeats}"
        raise FailsError("MaxText", why)
    parts = _least(run, "num_pipeline_microbatches", stages)
    if parts % stages:
        raise FailsError("MaxText", f"{stages} stages do not divide {parts} micro-batches")
    for key, value in _OFF.items():
        own = run.get(key)
        if own is not None and own != value:
            raise UnmodelledError(f"stages with {key}={own} are not modelled")
    policy = str(run.get("remat_policy"))
    if any(word in policy for word in _OFFLOADS):
        raise UnmodelledError(f"stages under the policy {policy} are not modelled")
    others = [axis for axis, size in run.mesh.items() if size > 1 and axis not in (AXIS, _SHARDS)]
    if others:
        raise UnmodelledError(f"stages combined with {', '.join(others)} are not modelled")
    shards = run.mesh.get(_SHARDS, 1)
    if not _FEWEST <= shards <= _MOST:
        raise UnmodelledError(f"stages combined with {_SHARDS} = {shards} are not modelled")
    return Pipeline(AXIS, stages, repeats, each, parts)


def _least(run: Run, key: str, default: int) -> int:
    """A number of at least 1; MaxText takes the default for -1."""
    value = run.get(key)
    return default if value in (None, -1) else run.size(key)
