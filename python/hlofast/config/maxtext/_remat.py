"""Checkpoint policies of MaxText: `remat_policy`, and `custom` with one choice per tensor."""

from __future__ import annotations

from hlofast._names import meant
from hlofast.config._policies import OFFLOADED, SAVED, Policy, UnknownPolicyError
from hlofast.config.maxtext import _versions

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
    "qkv_proj", "out_proj", "mla_q", "mla_kv", "moe_mlpwi_1", "moe_mlpwi_0", "moe_mlpwo",
    "query_wa_proj", "kv_wa_proj", "attention_out", "moe_x_sorted", "moe_routing_maps",
    "indexer_cutoff_threshold", "kv_proj",
)  # fmt: skip
"""Keys of the policy `custom`; each is also the checkpoint name of the tensor. The list is that of
`set_derived_and_validate_values` of MaxText 0.2.5's `types.py`."""
_UNSIZED = {
    "attention_out": "a second layout of the result of attention",
    "moe_x_sorted": "rows sorted by expert with their routing",
    "moe_routing_maps": "integers of the routing",
    "indexer_cutoff_threshold": "a threshold of the indexer",
}
"""Keys whose values have no model, with what they keep."""
_UNREAD = {
    "engram": "the policy custom of MaxText 0.2.5 does not read engram",
    "kv_proj": "only compressed attention has a value kv_proj",
}
"""Keys without effect on the decoders that are modelled, with the reason."""
_MOE = "moe_mlpwi_1"
"""A key of the versions in which values of experts have names of their own, since 0.2.2."""
_BOTH = "first_num_hash_layers"
"""A key of the versions in which they have the former names too, since 0.2.3."""
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


def names_of(config: Config, name: str, *, is_sparse: bool) -> tuple[str, tuple[str, ...]]:
    """The checkpoint names of the result of a matmul of experts: the usual one, and others.

    `checkpoint_name` of `moe.py` in the wheels of MaxText 0.2.1 to 0.2.5: 0.2.2 renames all three
    results, and later versions give the former name too, but for `wi_1` of grouped matmuls.
    """
    former, own = f"mlp{name}", f"moe_mlp{name}"
    if config.get(_MOE) is None and config.get(own) is None:
        return former, ()
    is_renamed = not _versions.has(config, _BOTH) or (is_sparse and name == "wi_1")
    return (own, ()) if is_renamed else (former, (own,))


def notes(config: Config) -> list[tuple[str, str, str]]:
    """Kind, key and text of notes on keys of the policy `custom` that have no effect."""
    if config.get("remat_policy") != "custom":
        return []
    return [
        ("no-effect", key, f"{key}={config.get(key)}: {why}")
        for key, why in _UNREAD.items()
        if config.get(key, "remat") != "remat"
    ]


def _check_pairs(config: Config) -> None:
    """Raises `UnknownPolicyError` for two fates of one value."""
    is_sparse = config.get("sparse_matmul") is True
    for name in ("wi_0", "wi_1", "wo"):
        first, others = names_of(config, name, is_sparse=is_sparse)
        fates = {key: config.get(key, "remat") for key in (first, *others)}
        if {"device", "offload"} <= set(fates.values()):
            shown = " and ".join(f"{key} is {fate}" for key, fate in fates.items())
            raise UnknownPolicyError(f"{shown}, which name one value: its copies are not modelled")


def _custom(config: Config) -> Policy:
    if (config.get("num_experts") or 1) != 1:
        _check_pairs(config)
    kept: dict[str, list[str]] = {"device": [], "offload": []}
    for tensor in (INPUT, *TENSORS):
        choice = config.get(tensor, "remat")
        if choice not in ("device", "offload", "remat"):
            raise UnknownPolicyError(f"{tensor} is {choice!r}: it must be device, offload or remat")
        if tensor == INPUT:
            if choice == "remat":
                raise UnknownPolicyError(f"MaxText fails here: {INPUT} cannot be rematerialised")
            continue
        if choice != "remat" and tensor in _UNSIZED:
            why = f"what {tensor}={choice} keeps ({_UNSIZED[tensor]}) is not modelled"
            raise UnknownPolicyError(why)
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
