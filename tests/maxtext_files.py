"""A base.yml with the keys and rules of MaxText 0.2.5 that tests need, and files beside it."""

import json
from pathlib import Path

from hlofast.config.maxtext._tables import defaults

SHARDS = ["fsdp", "fsdp_transpose", "context", "expert"]
BATCH = ["data", "fsdp", "fsdp_transpose", "expert"]
WIDE = ["tensor", "tensor_sequence"]
RULES = [
    ["activation_embed_and_logits_batch", ["data", "stage", "fsdp", "fsdp_transpose", "expert"]],
    ["activation_vocab", WIDE],
    ["vocab", [*WIDE, "autoregressive"]],
    ["embed_vocab", SHARDS],
    ["activation_heads", [*WIDE, "autoregressive"]],
    ["activation_kv_heads", WIDE],
    ["activation_length_attn", ["context"]],
    ["activation_kv_batch", BATCH],
    ["heads", [*WIDE, "autoregressive"]],
    ["q_heads", [*WIDE, "autoregressive"]],
    ["kv_heads", [*WIDE, "autoregressive"]],
    ["q_lora", SHARDS],
    ["kv_lora", SHARDS],
    ["embed_attn", SHARDS],
    ["activation_batch_moe", BATCH],
    ["activation_length_moe", ["context"]],
    ["activation_mlp_moe", WIDE],
    ["activation_exp", ["expert"]],
    ["exp", "expert"],
    ["mlp_moe", ["fsdp_transpose", *WIDE, "autoregressive"]],
    ["embed_moe", ["fsdp", "fsdp_transpose", "context"]],
    ["embed_moe", ["fsdp", "context"]],
    ["embed_router", ["fsdp", "fsdp_transpose", "context"]],
    ["activation_mlp", WIDE],
    ["activation_batch", BATCH],
    ["activation_length", ["context"]],
    ["activation_norm_length", ["tensor_sequence", "context"]],
    ["activation_embed", ["tensor"]],
    ["mlp", ["fsdp_transpose", *WIDE, "autoregressive"]],
    ["embed", SHARDS],
    ["embed", ["fsdp", "context", "expert"]],
    ["norm", ["tensor"]],
    ["layers", "stage"],
]
"""Rules of its `base.yml`, without the axes that only decoding has."""
AXES = [
    "diloco", "data", "stage", "fsdp", "fsdp_transpose", "context", "tensor", "tensor_sequence",
    "expert", "autoregressive",
]  # fmt: skip
NEWER = {
    "attention_out": "remat", "custom_mesh_and_rule": "", "engram": "remat", "engram_layers": [],
    "global_head_dim": 0, "indexer_cutoff_threshold": "remat", "indexer_head_dim": 128,
    "indexer_n_heads": 64, "indexer_topk": 2048, "kv_proj": "remat", "kv_wa_proj": "remat",
    "mhc_expansion_rate": 1, "moe_dispatch_no_expert_sharding": False, "moe_mlpwi_0": "remat",
    "moe_mlpwi_1": "remat", "moe_mlpwo": "remat", "moe_routing_maps": "remat",
    "moe_x_sorted": "remat", "query_wa_proj": "remat", "share_kv_projections": False,
    "use_indexer": False, "dropout_rate": 0.0, "enable_diloco": False, "first_num_hash_layers": 0,
}  # fmt: skip
"""Keys that the defaults of hlofast lack."""
OLDER = ("use_sparse_indexer", "expert_shard_attention_option")
"""Keys that 0.2.5 lacks."""


def newest(folder: Path, **changes: object) -> Path:
    """Writes the base.yml."""
    values = {key: value for key, value in defaults().items() if key not in OLDER}
    values |= NEWER | {"logical_axis_rules": RULES, "mesh_axes": AXES} | changes
    return written(folder / "base.yml", values)


def written(path: Path, values: dict[str, object]) -> Path:
    """Writes a file of these values, one a line."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()))
    return path
