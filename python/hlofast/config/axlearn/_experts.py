"""The parts of AXLearn's layers of routed experts (`axlearn.common.mixture_of_experts`).

Weights have the names, shapes and specs (`dim_to_mesh_axis_map`) of that file. A layer without
dropped tokens runs grouped matmuls over as many rows as experts are chosen for a token; a layer
with a capacity runs its experts on all their slots.
"""

from __future__ import annotations

import math

from hlofast.config._parts import FailsError, UnmodelledError
from hlofast.config._tree import Config
from hlofast.config.axlearn._builder import sharding_of
from hlofast.config.axlearn._modules import axlearn, hidden_width, norms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._parts import Axes, Spec
    from hlofast.config.axlearn._builder import Builder

_MODULE = "mixture_of_experts."
_COUNTED = 4
"""Bytes of an expert's number."""
_UNROUTED = {
    axis: f"traffic of experts along mesh axis {axis!r} is not modelled"
    for axis in ("expert", "model")
}
_NEVER = {
    **_UNROUTED,
    "expert": "TransformerFeedForwardDropFreeMoE sends no tokens along 'expert', to the devices of "
    "other experts; AXLearn's ApproximateTokenDropFreeMoE does",
}
"""Reasons for experts without dropped tokens, whose kernels compute the experts of one device."""


@axlearn(f"{_MODULE}TransformerFeedForwardDropFreeMoE")
def _drop_free(builder: Builder) -> None:
    """Experts that compute the rows of their tokens in kernels for grouped matmuls."""
    gating = _gating(builder, "TopKDropFreeGating")
    chosen = gating.get("num_experts_per_token")
    if type(chosen) is not int or not 0 < chosen <= builder.size("num_experts"):
        raise UnmodelledError(f"num_experts_per_token is {chosen!r}")
    norms(builder)
    _gate(builder)
    owner = builder.config.class_name
    # `RematRegexSavePatterns.MOE_GATING` keeps these two.
    builder.value("gate_weights", ((chosen, ()),), name=f"{owner}.gate_weights")
    builder.value(
        "gate_assignment", ((chosen, ()),), name=f"{owner}.gate_assignment", itemsize=_COUNTED
    )
    _matmuls(builder, float(chosen), is_kernel=True)
    builder.routed(_NEVER)


@axlearn(f"{_MODULE}TransformerFeedForwardMoE")
def _with_capacity(builder: Builder) -> None:
    """Experts with a number of slots, which masks of tokens by slots fill and empty."""
    capacity = _gating(builder, "Top2Gating").get("train_capacity_factor")
    if isinstance(capacity, bool) or not isinstance(capacity, (int, float)) or capacity <= 0:
        raise UnmodelledError(f"train_capacity_factor is {capacity!r}")
    norms(builder)
    _gate(builder)
    _matmuls(builder, min(float(capacity), float(builder.size("num_experts"))), is_kernel=False)
    builder.missing(
        "the dispatch and combine masks of Top2Gating (tokens of a group by slots of all experts) "
        "are not modelled, so activations and step are unknown; weights and the matmuls of the "
        "experts are modelled"
    )
    builder.routed(_UNROUTED)


def _gating(builder: Builder, known: str) -> Config:
    gating = builder.part("gating")
    if gating.class_name != known:
        raise UnmodelledError(f"the gating {gating.klass} is not modelled; known: {known}")
    return gating


def _spec(builder: Builder, name: str) -> Spec:
    """The axes that shard weights with these dimensions."""
    return sharding_of(builder.part("dim_to_mesh_axis_map"), name) or ()


def _gate(builder: Builder) -> None:
    count = builder.size("num_experts")
    weight = builder.parameter("gate_weight", (builder.width, count), _spec(builder, "me"))
    builder.value("gate", ((count, ()),), is_product=True)
    kept = ((builder.key("gate"),),)
    joint = builder.key("input")
    builder.product("gate", weight, builder.width * count, kept, joint=joint)


def _matmuls(builder: Builder, rows: float, *, is_kernel: bool) -> None:
    """Adds the matmuls of the experts, over this many rows per token."""
    width, count, hidden = builder.width, builder.size("num_experts"), hidden_width(builder)
    owner = builder.config.class_name
    activation = builder.get("activation", "nn.relu")
    gates = len(activation) if isinstance(activation, Config) else 0
    if is_kernel and gates != 2:
        raise FailsError("AXLearn", "experts without dropped tokens have two gates")
    names = [(f"wi_{at}_weight", f"linear1_{at}") for at in range(gates)]
    inner, outer = _spec(builder, "emh"), _spec(builder, "ehm")
    axes: Axes = inner[2] if len(inner) > 2 else ()
    slots = math.ceil(rows * hidden)
    builder.value("sorted", ((math.ceil(rows * width), ()),))
    for path, name in names or [("wi_weight", "linear1_0")]:
        weight = builder.parameter(path, (count, width, hidden), inner)
        builder.value(name, ((slots, axes),), name=f"{owner}.{name}", is_product=not is_kernel)
        kept = ((builder.key(name),),)
        joint = builder.key("sorted")
        builder.product(name, weight, width * slots, kept, contracted=(1,), joint=joint)
    builder.value("hidden", ((slots, axes),))
    weight = builder.parameter("wo_weight", (count, hidden, width), outer)
    # The gradient of the routing weights reads the results of the experts.
    result = ((math.ceil(rows * width), ()),)
    builder.value("linear2", result, name=f"{owner}.linear2", is_product=not is_kernel)
    kept = ((builder.key("linear2"),),)
    builder.product("linear2", weight, width * slots, kept, contracted=(1,))
