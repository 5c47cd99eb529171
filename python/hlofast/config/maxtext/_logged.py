"""FLOPs of a training step as MaxText prints them, which differ from those of the program.

The formulas are those of `calculate_tflops_training_per_device` in MaxText's `maxtext_utils.py`:
per device and step, backward counted as twice the forward pass, recomputation left out, experts
counted without dropped tokens, the attention square halved since pull request 1988. Operations
follow the order of MaxText's, so that sums of floating-point numbers agree to the last digit.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast.config._tree import Config

_MOE_WITH_DENSE = ("deepseek",)
_PATTERNS = {"gemma3": 6, "gpt_oss": 2}
"""Layers of which one has global attention."""
_REFUSED = ("llama4", "qwen3_next", "olmo3")
_TERA = 10**12


class LoggedFlops:
    """TFLOPs of a step per device, as MaxText's log prints them."""

    __slots__ = ("attention", "learnable_weight", "total")

    def __init__(self, total: float, learnable_weight: float, attention: float) -> None:
        self.total = total
        self.learnable_weight = learnable_weight
        """Matmuls with weights."""
        self.attention = attention
        """Matmuls of queries, keys and values."""

    def __repr__(self) -> str:
        return (
            f"<LoggedFlops: {self.total:.2f} TFLOPs per device, "
            f"{100 * self.learnable_weight / self.total:.2f}% learnable weight flops, "
            f"{100 * self.attention / self.total:.2f}% attention flops>"
        )


def logged(config: Config, *, causal: bool) -> LoggedFlops:
    """The FLOPs that MaxText logs for this config."""
    block = config.get("decoder_block")
    if block in _REFUSED or config.get("use_multimodal") or config.get("mtp_num_layers"):
        what = block if block in _REFUSED else "use_multimodal or mtp_num_layers"
        raise ValueError(f"the FLOPs that MaxText logs for {what} are not modelled")
    own = _Sizes(config)
    ffn = _ffn(own)
    if own.text("attention_type") == "mla":
        qkv, square, projection = _latent(own)
    else:
        heads = own.size("num_query_heads")
        depth = own.size("head_dim")
        qkv = (
            2 * own.batch * own.length * own.width * (heads + 2 * own.size("num_kv_heads")) * depth
        )
        square = 4 * own.batch * own.length**2 * heads * depth
        projection = 2 * own.batch * own.length * own.width * heads * depth
    share = 2 if causal else 1
    embedding = 2 * own.batch * own.length * own.width * own.size("vocab_size")
    layers = own.size("num_decoder_layers")
    if block == "gemma2":
        attention = (square + _local(own)) / share * layers * 3 / _TERA
        weights = ((ffn + qkv + projection) * layers * 2 + embedding) * 3 / _TERA
    elif block in _PATTERNS:
        of_all = layers // _PATTERNS[block]
        both = of_all * square + (layers - of_all) * _local(own)
        attention = both / share * 3 / _TERA
        weights = ((ffn + qkv + projection) * layers + embedding) * 3 / _TERA
    elif block in _MOE_WITH_DENSE:
        weights = (ffn + (qkv + projection) * layers + embedding) * 3 / _TERA
        attention = square / share * layers * 3 / _TERA
    else:
        weights = ((ffn + qkv + projection) * layers + embedding) * 3 / _TERA
        attention = square / share * layers * 3 / _TERA
    steps = own.size("gradient_accumulation_steps")
    weights, attention = weights * steps, attention * steps
    reference = 0.0
    if config.get("use_dpo"):
        # The reference model runs forward once.
        reference = weights / 3
        attention = attention + attention / 3
    return LoggedFlops(weights + attention + reference, weights, attention)


class _Sizes:
    """Checked values of a config."""

    def __init__(self, config: Config) -> None:
        self._config = config
        batch: Any = config.get("per_device_batch_size")
        if isinstance(batch, bool) or not isinstance(batch, (int, float)) or not 0 < batch < 1e9:
            raise ValueError(f"per_device_batch_size is {batch!r}")
        self.batch = batch
        self.length = self.size("max_target_length")
        self.width = self.size("emb_dim")

    def size(self, key: str, least: int = 1) -> int:
        value = self._config.get(key)
        if type(value) is not int or not least <= value < 1 << 40:
            raise ValueError(f"{key} is {value!r}")
        return value

    def text(self, key: str) -> str:
        return str(self._config.get(key))

    def count(self, key: str) -> int:
        value = self._config.get(key)
        return len(value) if isinstance(value, tuple) else 1


def _ffn(own: _Sizes) -> float:
    if own.size("num_experts") == 1:
        return _mlp(own, own.size("mlp_dim"))
    gate = 2 * own.batch * own.length * own.width * own.size("num_experts")
    chosen = own.size("num_experts_per_tok")
    if own.text("decoder_block") not in _MOE_WITH_DENSE:
        return gate + _mlp(own, own.size("mlp_dim")) * chosen
    dense = own.size("first_num_dense_layers", 0)
    inner = own.size("moe_mlp_dim")
    shared = _mlp(own, inner) * own.size("shared_experts", 0)
    of_dense = _mlp(own, own.size("mlp_dim")) * dense
    of_experts = gate + shared + _mlp(own, inner) * chosen
    return of_dense + of_experts * (own.size("num_decoder_layers") - dense)


def _mlp(own: _Sizes, inner: int) -> float:
    first = 2 * own.batch * own.length * inner * own.width * own.count("mlp_activations")
    second = 2 * own.batch * own.length * inner * own.width
    return first + second


def _local(own: _Sizes) -> float:
    """Attention of a layer with a sliding window, all pairs inside the window."""
    window = min(own.size("sliding_window_size", 0), own.length)
    depth = own.size("head_dim")
    return 4 * own.batch * own.length * window * own.size("num_query_heads") * depth


def _latent(own: _Sizes) -> tuple[float, float, float]:
    """Latent attention: queries, keys and values; the square; the output projection."""
    tokens = own.batch * own.length
    heads, rank = own.size("num_query_heads"), own.size("q_lora_rank", 0)
    depth = own.size("qk_nope_head_dim") + own.size("qk_rope_head_dim")
    values, latent = own.size("v_head_dim"), own.size("kv_lora_rank")
    if rank == 0:
        queries = 2 * tokens * own.width * heads * depth
    else:
        queries = 2 * tokens * (own.width * rank + rank * heads * depth)
    inner = own.size("qk_nope_head_dim") + values
    down = own.width * (latent + own.size("qk_rope_head_dim"))
    keys = 2 * tokens * (down + latent * heads * inner)
    square = 2 * tokens * own.length * heads * (depth + values)
    return queries + keys, square, 2 * tokens * own.width * heads * values
