"""FLOPs of a training step as MaxText prints them, which differ from those of the program.

The formulas are those of `calculate_tflops_training_per_device` in MaxText's `maxtext_utils.py`:
per device and step, backward counted as twice the forward pass, recomputation left out, experts
counted without dropped tokens, the attention square halved since pull request 1988. Operations
follow the order of MaxText's, so that sums of floating-point numbers agree to the last digit.

They are those of 0.2.5, which 0.2.2 to 0.2.5 share. A run whose `base.yml` is that of an earlier
version gets the formulas of 0.1.0 to 0.2.1, which differ in two places: layers with a sliding
window count half of all pairs of a token and the window, where later versions count those that a
causal window has; and attention that takes the keys as values counts both.
"""

from __future__ import annotations

from hlofast.config.maxtext import _versions
from hlofast.config.maxtext._layers import INDEXERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast.config._tree import Config

_MOE_WITH_DENSE = ("deepseek",)
_PATTERNS = {"gemma3": 6, "gpt_oss": 2}
"""Layers of which one has global attention."""
_PLAIN = (
    "default", "llama2", "mistral", "mixtral", "gemma", "qwen2", "qwen3", "qwen3_moe", "gpt3",
    "simple", "simple_mlp", "envy",
)  # fmt: skip
"""Blocks without a formula of their own."""
_KNOWN = (*_PLAIN, *_MOE_WITH_DENSE, "gemma2", *_PATTERNS)
_LATER = "global_head_dim"
"""A key of 0.2.2 and later versions."""
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
    if block not in _KNOWN or config.get("use_multimodal") or config.get("mtp_num_layers"):
        what = "use_multimodal or mtp_num_layers" if block in _KNOWN else block
        raise ValueError(f"the FLOPs that MaxText logs for {what} are not modelled")
    own = _Sizes(config)
    layers = own.size("num_decoder_layers")
    ffn = _ffn(own)
    ffn_of_all = ffn if block in _MOE_WITH_DENSE and own.size("num_experts") > 1 else ffn * layers
    share = 2 if causal else 1
    if own.text("attention_type") == "mla":
        qkv, pairs, projection = _latent(own, share)
    else:
        heads = own.size("num_query_heads")
        depth = own.size("head_dim")
        # Attention may take the keys as values; the log follows since 0.2.2.
        each = 1 if own.is_later and config.get("share_kv_projections") else 2
        qkv = 2 * own.batch * own.length * own.width * (heads + each * own.size("num_kv_heads"))
        qkv *= depth
        pairs = 4 * own.batch * own.length**2 * heads * depth / share
        projection = 2 * own.batch * own.length * own.width * heads * depth
    embedding = 2 * own.batch * own.length * own.width * own.size("vocab_size")
    if block == "gemma2":
        attention = (pairs + _local(own, share)) * layers * 3 / _TERA
        weights = ((ffn + qkv + projection) * layers * 2 + embedding) * 3 / _TERA
    else:
        whole = pairs * layers
        if block in _PATTERNS:
            of_all = layers // _PATTERNS[block]
            whole = of_all * pairs + (layers - of_all) * _local(own, share)
        attention = whole * 3 / _TERA
        weights = (ffn_of_all + (qkv + projection) * layers + embedding) * 3 / _TERA
    if engrams := own.count("engram_layers", 0):
        more, mixed = _engram(own)
        weights += engrams * more * 3 / _TERA
        attention += engrams * mixed * 3 / _TERA
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

    def count(self, key: str, default: int = 1) -> int:
        value = self._config.get(key)
        return len(value) if isinstance(value, tuple) else default

    def indexer(self) -> tuple[int, int, int] | None:
        """Heads, their size and the tokens that each query keeps; None if all are kept."""
        for key, start in INDEXERS.items():
            if self._config.get(key):
                heads, depth, kept = (
                    self.size(f"{start}{name}") for name in ("n_heads", "head_dim", "topk")
                )
                return (heads, depth, kept) if self.length > kept else None
        return None

    @property
    def is_later(self) -> bool:
        """Whether the version is 0.2.2 or later."""
        return _versions.has(self._config, _LATER)


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


def _local(own: _Sizes, share: int) -> float:
    """Attention of a layer with a sliding window."""
    window = min(own.size("sliding_window_size", 0), own.length)
    heads, depth = own.size("num_query_heads"), own.size("head_dim")
    if own.is_later and share > 1:
        return 4 * own.batch * (own.length * window - 0.5 * window**2) * heads * depth
    return 4 * own.batch * own.length * window * heads * depth / share


def _latent(own: _Sizes, share: int) -> tuple[float, float, float]:
    """Latent attention: queries, keys and values; pairs of tokens; the output projection."""
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
    qkv, pairs = queries + keys, 2 * tokens * own.length * heads * (depth + values)
    projection = 2 * tokens * own.width * heads * values
    indexer = own.indexer()
    if indexer is None:
        return qkv, pairs / share, projection
    # `calculate_indexer_tflops_per_device`, and the share of pairs that its mask leaves.
    count, size, kept = indexer
    qkv += (
        2 * tokens * rank * count * size
        + 2 * tokens * own.width * size
        + (2 * tokens * own.width * count)
    )
    scores = 2 * tokens * own.length * count * size + 2 * tokens * own.length * count
    ratio = float(kept) / float(own.length)
    return qkv, pairs * (ratio - (0.5 * ratio**2)) + scores / 2, projection


def _engram(own: _Sizes) -> tuple[float, float]:
    """`calculate_engram_tflops` of a layer, forward: weights, and keys times queries."""
    tokens, branches = own.batch * own.length, own.size("mhc_expansion_rate")
    orders = own.size("engram_max_ngram_size", 2) - 1
    inner = own.size("engram_num_heads") * own.size("engram_head_dim") * orders
    keys = 2 * tokens * inner * (branches * own.width)
    convolution = 2 * tokens * own.size("engram_kernel_size") * (branches * own.width)
    return keys + 2 * tokens * inner * own.width + convolution, 2 * tokens * branches * own.width
