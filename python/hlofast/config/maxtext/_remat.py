"""Checkpoint policies of MaxText: `remat_policy`, and `custom` with one choice per tensor."""

from __future__ import annotations

from hlofast._names import meant
from hlofast.config._policies import OFFLOADED, SAVED, Policy, UnknownPolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hlofast.config._tree import Config

_QKV = ("query_proj", "key_proj", "value_proj", "qkv_proj")
_MINIMAL = (*_QKV, "out_proj", "mlpwi_0", "mlpwi_1", "mlpwi", "mlpwo")
_SAVED = {
    "full": (),
    # MaxText rematerialises layers under every policy; with this one it keeps nothing either.
    "none": (),
    "minimal": _MINIMAL,
    "minimal_with_context": (*_MINIMAL, "context"),
    # The former name, of which MaxText warns. Plans take the first of two names.
    "minimal_flash": (*_MINIMAL, "context"),
    "save_dot_with_context_except_mlp": (*_QKV, "context", "out_proj"),
    "save_dot_except_mlpwi": (*_QKV, "out_proj", "mlpwo"),
    "save_dot_except_mlp": (*_QKV, "out_proj"),
    "save_qkv_proj": _QKV,
    "save_out_proj": ("out_proj",),
}
"""Names that a policy saves on the device (`get_remat_policy` of MaxText's `decoders.py`)."""
_OFFLOADED = {
    "qkv_proj_offloaded": ("query_proj", "key_proj", "value_proj"),
    "minimal_offloaded": _MINIMAL,
}
"""Names that a policy keeps in host memory."""
_QUANTIZED = {
    "minimal_with_quantization": "minimal",
    "minimal_with_context_and_quantization": "minimal_with_context",
}
"""Policies that also save quantised values, with those that save the same where there are none."""
TENSORS = (
    "context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "query_proj", "key_proj", "value_proj",
    "qkv_proj", "out_proj", "mla_q", "mla_kv", "moe_mlpwi_1",
)  # fmt: skip
"""Keys of the policy `custom`; each is also the checkpoint name of the tensor."""
INPUT = "decoder_layer_input"


NAMED = (*_SAVED, *_OFFLOADED)
"""The policies that have a name."""


def policy_of(config: Config) -> Policy:
    """The policy of a run; raises `UnknownPolicyError` if it is not modelled."""
    name = config.get("remat_policy")
    if name == "custom":
        return _custom(config)
    if name in _QUANTIZED:
        if config.get("quantization"):
            raise UnknownPolicyError(f"the quantised values that {name} saves are not modelled")
        name = _QUANTIZED[name]
    if isinstance(name, str) and name in NAMED:
        return named(name)
    known = (*NAMED, "custom")
    near = meant(str(name), known) or ";"
    message = f"remat_policy {name!r} is not modelled{near} known: {', '.join(known)}"
    raise UnknownPolicyError(message)


def named(name: str) -> Policy:
    """The policy that `remat_policy` names, one of `NAMED`."""
    return policy(_SAVED.get(name, ()), _OFFLOADED.get(name, ()))


def _custom(config: Config) -> Policy:
    kept: dict[str, list[str]] = {"device": [], "offload": []}
    for tensor in (INPUT, *TENSORS):
        choice = config.get(tensor, "remat")
        if choice not in ("device", "offload", "remat"):
            raise UnknownPolicyError(f"{tensor} is {choice!r}: it must be device, offload or remat")
        if tensor == INPUT:
            if choice == "remat":
                raise UnknownPolicyError(f"MaxText fails here: {INPUT} cannot be rematerialised")
            continue
        if choice != "remat":
            kept[choice].append(tensor)
    return policy(kept["device"], kept["offload"], offloads_inputs=config.get(INPUT) == "offload")


def policy(
    saved: Sequence[str], offloaded: Sequence[str], *, offloads_inputs: bool = False
) -> Policy:
    """The policy that saves and offloads the values with these names."""
    words = [
        f"{', '.join(names)} {fate}"
        for names, fate in ((saved, SAVED), (offloaded, OFFLOADED))
        if names
    ]
    return Policy(
        "; ".join(words) or "nothing is kept",
        saved="|".join(saved) or None,
        offloaded="|".join(offloaded) or None,
        offloads_inputs=offloads_inputs,
    )
