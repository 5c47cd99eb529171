"""Keys of MaxText that change a figure and have no model: what is unknown where one is set.

The table follows `base.yml` of MaxText 0.2.5, key by key, for the decoders that are modelled. Keys
of other decoders, of images and sound, of evaluation, decoding, data and logs are not in it.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast.config._parts import Parts
    from hlofast.config._tree import Config

PARAMETERS, STATE, ACTIVATIONS, EXPERTS, TIME, NOTED = range(6)
"""What is unknown: everything; state of the optimizer, activations and time; activations and time;
these in models with experts; the time; nothing, since the change is small or of a kernel."""
_OFF: dict[str, tuple[int, tuple[Any, ...]]] = {
    "use_multimodal": (PARAMETERS, (False,)),
    "use_audio": (PARAMETERS, (False,)),
    "mtp_num_layers": (PARAMETERS, (0,)),
    "mhc_expansion_rate": (PARAMETERS, (0, 1)),
    "engram_layers": (PARAMETERS, ((),)),
    "share_kv_projections": (PARAMETERS, (False,)),
    "attention_output_dim": (PARAMETERS, (-1, 0)),
    "moe_expert_input_dim": (PARAMETERS, (-1, 0)),
    "qk_norm_with_scale": (PARAMETERS, (True,)),
    "weight_sparsity_n": (PARAMETERS, (0,)),
    "unquantized_modules": (PARAMETERS, ((),)),
    "weight_block_size": (PARAMETERS, (0,)),
    "training_objective": (PARAMETERS, ("causal_lm",)),
    "enable_lora": (PARAMETERS, (False,)),
    "lora_rank": (PARAMETERS, (0,)),
    "learn_to_init_mode": (PARAMETERS, (False,)),
    "use_dpo": (STATE, (False,)),
    "enable_diloco": (STATE, (False,)),
    "trainable_parameters_mask": (STATE, ((), "")),
    "activations_in_float32": (ACTIVATIONS, (False,)),
    "dropout_rate": (ACTIVATIONS, (0, 0.0)),
    "cast_logits_to_fp32": (ACTIVATIONS, (True,)),
    "logits_dot_in_fp32": (ACTIVATIONS, (False,)),
    "use_tunix_gradient_accumulation": (ACTIVATIONS, (False,)),
    "use_qk_clip": (ACTIVATIONS, (False,)),
    "use_mla_absorbed_mqa": (ACTIVATIONS, (False,)),
    "mla_qk_head_chunk_size": (ACTIVATIONS, (0,)),
    "vocab_tiling_ag_once": (ACTIVATIONS, (False,)),
    "use_batch_split_schedule": (EXPERTS, (False,)),
    "te_moe_block": (EXPERTS, (False,)),
    "num_moe_token_chunks": (EXPERTS, (0, 1)),
    "num_moe_emb_chunks": (EXPERTS, (0,)),
    "merge_gating_gmm": (EXPERTS, (False,)),
    "moe_quantize_token_all_gather": (EXPERTS, (False,)),
    "moe_use_direct_token_gather": (EXPERTS, (False,)),
    "moe_fsdp_use_two_stage_all_gather": (EXPERTS, (False,)),
    "shard_embed_moe_on_fsdp": (EXPERTS, (False,)),
    "moe_dropless_fallback": (EXPERTS, ("", "none", "None")),
    "use_iota_embed": (TIME, (False,)),
    "dense_fsdp_use_two_stage_all_gather": (TIME, (False,)),
    "optimize_mesh_for_tpu_v6e": (TIME, (False,)),
    "te_comm_gemm_overlap": (TIME, ("disabled",)),
    "use_sliced_mla_proj": (TIME, (False,)),
    "compile_xla_flags": (NOTED, ("",)),
    "enable_rampup_batch_size": (NOTED, (False,)),
    "float32_gate_logits": (NOTED, (False,)),
    "float32_qk_product": (NOTED, (False,)),
    "float32_logits": (NOTED, (False,)),
    "sa_use_fused_bwd_kernel": (NOTED, (False,)),
    "shard_mode": (NOTED, ("auto",)),
    "use_ragged_sort": (NOTED, (False,)),
    "use_tokamax_gmm": (NOTED, (False,)),
    "use_tokamax_splash": (NOTED, (False,)),
}
"""Keys with what is unknown, and the values that turn them off, of which null is always one."""
_MEANINGS = {
    "use_dpo": "the reference model, its forward pass and the pairs of sequences are not modelled",
    "cast_logits_to_fp32": "the loss is modelled with logits in float32",
    "logits_dot_in_fp32": "the operands and gradients of the head in float32 are not modelled",
    "use_iota_embed": "the embedding is a matmul by a one-hot matrix, which FLOPs and times do "
    "not count",
    "lora_rank": "adapters are not modelled, nor which weights they leave frozen",
    "enable_lora": "adapters are not modelled, nor which weights they leave frozen",
    "use_tunix_gradient_accumulation": "the batch is not split as without it",
    "enable_diloco": "the replicas of DiLoCo and their outer optimizer are not modelled",
    "trainable_parameters_mask": "frozen parameters have no gradient and no optimizer state",
}
"""What a key adds, where its name does not tell."""
_JUDGED_SHARE = 0.15
"""Largest share that matmuls by masks of a router add to those by weights in a published step:
`mixtral-8x7b` of `benches/maxtext_accuracy.py`. Its modelled step is 9.5 % too long without them,
18.7 % with them, so the time of a step leaves them out; with a larger share it is unknown."""
KEYS = frozenset(_OFF)
"""The keys of the table."""
_SIZE = re.compile(r"(ici|dcn)_(\w+)_parallelism")
_AXES = {"pipeline": "stage"}
"""Names in keys of sizes that differ from those of mesh axes."""


class Unmodelled:
    """A key that is set: its name, what is unknown, and why."""

    __slots__ = ("effect", "key", "why")

    def __init__(self, key: str, effect: int, why: str) -> None:
        self.key = key
        self.effect = effect
        self.why = why


def found(config: Config) -> list[Unmodelled]:
    """The keys of the table that a run sets."""
    has_experts = (config.get("num_experts") or 1) != 1
    told = []
    for key, (effect, off) in _OFF.items():
        value = config.get(key)
        if value is None or value in off or (effect == EXPERTS and not has_experts):
            continue
        why = f"{key}={value} is not modelled"
        if key in _MEANINGS:
            why = f"{key}={value}: {_MEANINGS[key]}"
        elif effect == NOTED:
            why += ": figures are those without it"
        told.append(Unmodelled(key, ACTIVATIONS if effect == EXPERTS else effect, why))
    return told


def routing(parts: Parts) -> tuple[bool, tuple[str, str]] | None:
    """Whether matmuls by masks of a router leave a time, and key and text of a note on them."""
    sums = {False: 0, True: 0}
    for own in parts.products:
        if not own.is_attention:
            runs = 1 + (own.mask_gradients or 2)
            sums[own.mask_gradients > 0] += own.multiplications * own.layers * runs
    if not sums[True]:
        return None
    share = sums[True] / sums[False]
    text = (
        f"matmuls by the masks of dispatch and combine add {share:.0%} to those by weights: "
        "executed FLOPs count them, and the time of a step leaves them out"
    )
    if share > _JUDGED_SHARE:
        text = (
            f"matmuls by the masks of dispatch and combine add {share:.0%} to those by weights, "
            f"and no published step tells their time above {_JUDGED_SHARE:.0%}"
        )
    return share <= _JUDGED_SHARE, ("capacity_factor", text)


def notes(config: Config) -> list[tuple[str, str, str]]:
    """Kind, key and text of notes on keys that leave figures as they are."""
    told = [("not-checked", own.key, own.why) for own in found(config) if own.effect == NOTED]
    axes = config.get("mesh_axes")
    for key in config if isinstance(axes, tuple) else ():
        size, named = config.get(key), _SIZE.fullmatch(key)
        if named is None or type(size) is not int or size in (-1, 1):
            continue
        axis = _AXES.get(named[2], named[2])
        if axis not in axes:
            text = f"{key}={size}: the mesh has no axis {axis!r}, so MaxText does not read it"
            told.append(("no-effect", key, text))
    return told
