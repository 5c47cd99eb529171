"""The state that AXLearn's optimizers keep for each parameter."""

from __future__ import annotations

from hlofast.config._front import Learner
from hlofast.config._parts import UnmodelledError, item_size
from hlofast.config._tree import Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OPTIMIZERS = "axlearn.common.optimizers."
_MOMENTS: dict[str, tuple[str, ...]] = {
    "adam_optimizer": ("mu", "nu"),
    "adamw_optimizer": ("mu", "nu"),
    "adamw_decoupled_optimizer": ("mu", "nu"),
    "lion_optimizer": ("mu",),
    "sgd_optimizer": ("trace",),
    "add_decayed_weights": (),
    "clip_by_block_rms": (),
    "clip_by_global_norm": (),
    "drop_norm_by_grad_norm_ema": (),
    "drop_norm_by_grad_norm_stddev": (),
    "scale": (),
    "scale_by_schedule": (),
    "scale_by_trust_ratio": (),
    "scale_update_per_param": (),
}
"""State arrays with the shape and spec of the parameters, by AXLearn optimizer function.

Scalars (counts, norms) are left out. Functions that are missing here are not modelled.
"""
_WRAPPERS = {"chain": "args", "named_chain": None, "skip_and_clip_by_global_norm": "inner"}
_MOST_NESTED = 20


def learner_of(config: Config) -> Learner:
    """The state that the learner of a trainer's config keeps."""
    learner = Learner()
    node = config.get("learner")
    if not isinstance(node, Config):
        learner.gaps.append(("learner", "there is no learner"))
        return learner
    if node.klass != "axlearn.common.learner.Learner":
        learner.gaps.append(("learner", f"the learner {node.klass} is not modelled"))
        return learner
    if node.get("update_rules") is not None:
        learner.is_partial = True
        why = "update_rules may leave parameters without gradients, which is not modelled"
        learner.gaps.append(("learner.update_rules", why))
    _collect(node.get("optimizer"), "learner.optimizer", learner, 0)
    average = node.get("ema")
    # Without a decay, the function does not keep an average.
    if isinstance(average, Config) and average.get("decay") is not None:
        learner.averages.append("ema")
    return learner


def moments_of(config: Config) -> list[str]:
    """The paths of all optimizers that keep first moments."""
    learner = config.get("learner")
    names = {f"{_OPTIMIZERS}{name}" for name, kept in _MOMENTS.items() if "mu" in kept}
    parts = learner.configs() if isinstance(learner, Config) else ()
    return [part.path for part in parts if part.get("fn") in names]


def _collect(node: Any, path: str, learner: Learner, depth: int) -> None:
    function = node.get("fn") if isinstance(node, Config) else None
    name = function.removeprefix(_OPTIMIZERS) if isinstance(function, str) else None
    if not isinstance(node, Config) or name is None or depth > _MOST_NESTED:
        learner.gaps.append((path, "the optimizer is not modelled"))
    elif name in _MOMENTS:
        learner.moments += _MOMENTS[name]
        dtype = node.get("mu_dtype")
        if dtype is not None and "mu" in _MOMENTS[name]:
            try:
                item_size(dtype, "mu_dtype")
                learner.dtypes["mu"] = str(dtype)
            except UnmodelledError as error:
                learner.gaps.append((f"{path}.mu_dtype", str(error)))
    elif name in _WRAPPERS:
        key = _WRAPPERS[name]
        inner = node if key is None else node.get(key)
        parts = {key: inner} if isinstance(inner, Config) and "fn" in inner and key else inner
        if not isinstance(parts, (Config, dict)):
            learner.gaps.append((path, f"{name} has no {key}"))
            return
        for part_key, part in parts.items():
            if part_key != "fn" and isinstance(part, Config):
                _collect(part, part.path, learner, depth + 1)
    else:
        learner.gaps.append((path, f"the optimizer {function} is not modelled"))
