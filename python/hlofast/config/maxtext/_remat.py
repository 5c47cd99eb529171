"""Checkpoint policies of MaxText: `remat_policy`, and `custom` with one choice per tensor."""

from __future__ import annotations

from hlofast.config._policies import OFFLOADED, SAVED, Policy, UnknownPolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._tree import Config

_QKV = ("query_proj", "key_proj", "value_proj", "qkv_proj")
_MINIMAL = (*_QKV, "out_proj", "mlpwi_0", "mlpwi_1", "mlpwi", "mlpwo")
_SAVED = {
    "full": (),
    # MaxText rematerialises layers under every policy; with this one it keeps nothing either.
    "none": (),
    "minimal": _MINIMAL,
    "minimal_flash": (*_MINIMAL, "context"),
    "minimal_with_context": (*_MINIMAL, "context"),
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
TENSORS = (
    "context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "query_proj", "key_proj", "value_proj",
    "qkv_proj", "out_proj", "mla_q", "mla_kv",
)  # fmt: skip
"""Keys of the policy `custom`; each is also the checkpoint name of the tensor."""
INPUT = "decoder_layer_input"


def policy_of(config: Config) -> tuple[Policy, bool]:
    """The policy, and whether it keeps layer inputs in host memory.

    Raises `UnknownPolicyError` if the policy is not modelled.
    """
    name = config.get("remat_policy")
    if name == "custom":
        return _custom(config)
    if isinstance(name, str) and name in _SAVED:
        return _policy(_SAVED[name], ()), False
    if isinstance(name, str) and name in _OFFLOADED:
        return _policy((), _OFFLOADED[name]), False
    known = ", ".join((*_SAVED, *_OFFLOADED, "custom"))
    raise UnknownPolicyError(f"remat_policy {name!r} is not modelled; known: {known}")


def _custom(config: Config) -> tuple[Policy, bool]:
    kept: dict[str, list[str]] = {"device": [], "offload": []}
    for tensor in (INPUT, *TENSORS):
        choice = config.get(tensor, "remat")
        if choice not in ("device", "offload", "remat"):
            raise UnknownPolicyError(
                f"{tensor} is {choice!r}: it has to be device, offload or remat"
            )
        if tensor == INPUT:
            if choice == "remat":
                raise UnknownPolicyError(f"MaxText fails here: {INPUT} cannot be rematerialised")
            continue
        if choice != "remat":
            kept[choice].append(tensor)
    policy = _policy(tuple(kept["device"]), tuple(kept["offload"]))
    return policy, config.get(INPUT) == "offload"


def _policy(saved: tuple[str, ...], offloaded: tuple[str, ...]) -> Policy:
    words = [
        f"{', '.join(names)} {fate}"
        for names, fate in ((saved, SAVED), (offloaded, OFFLOADED))
        if names
    ]
    return Policy(
        "; ".join(words) or "nothing is kept",
        saved="|".join(saved) or None,
        offloaded="|".join(offloaded) or None,
    )
