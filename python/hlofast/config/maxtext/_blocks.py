"""Decoders of MaxText: which layers a `decoder_block` has, and how scans stack them."""

from __future__ import annotations

from hlofast.config._parts import FailsError, Unit, UnmodelledError
from hlofast.config.maxtext import _layers, _unmodelled
from hlofast.config.maxtext._builder import Builder, Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Layer = Callable[[Builder, bool], None]

_PRE, _POST = "pre_self_attention_layer_norm", "post_self_attention_layer_norm"
_GEMMA3_CYCLE, _GPT_OSS_CYCLE = 6, 2
"""Layers of a cycle, the last of which has global attention (MaxText: the attention patterns)."""


def build(run: Run) -> None:
    """Adds the parts of the model of a run."""
    if run.block not in _BLOCKS:
        known = ", ".join(_BLOCKS)
        raise UnmodelledError(f"decoder_block {run.block!r} is not modelled; known: {known}")
    for own in _unmodelled.found(run.config):
        if own.effect == _unmodelled.PARAMETERS:
            raise UnmodelledError(own.why)
    width, vocabulary = run.width[0], run.size("vocab_size")
    whole = Builder(run, "decoder")
    table = Builder(run, "token_embedder").weights(
        "embedding", (vocabulary, width), ("vocab", "embed_vocab")
    )
    positions = run.get("trainable_position_size")
    if isinstance(positions, int) and positions > 0:
        whole.weights("position_embedder/embedding", (positions, width), ("vocab", "embed_vocab"))
    _BLOCKS[run.block](run)
    whole.norm(
        "decoder_norm", width, "float32" if run.block == "gpt3" else None, bias=run.block == "gpt3"
    )
    contracted = (1,)
    if not run.flag("logits_via_embedding"):
        table = whole.weights("logits_dense/kernel", (width, vocabulary), ("embed_vocab", "vocab"))
        contracted = (0,)
    whole.product("logits", table, width * vocabulary, contracted=contracted)
    axes = run.axes(
        "activation_embed_and_logits_batch", "activation_length_no_exp", "activation_vocab"
    )
    run.parts.head = (vocabulary, axes)
    run.parts.head_tiles = run.size("num_vocab_tiling")


def _stacked(
    run: Run, name: str, layers: int, layer: Layer, *, cycle: int = 1, has_cycle: bool = False
) -> None:
    """Adds `layers` layers in cycles of `cycle` layers, scanned or one by one.

    `layer` adds one layer; its flag tells whether the layer is the last of its cycle. A checkpoint
    covers a whole cycle in a scan, else one layer.
    """
    if run.flag("scan_layers") or run.parts.is_staged:
        # Pipelines stack the weights of layers in any case.
        rounds = layers // cycle
        _cycle(run, f"decoder/{name}", rounds, layer, cycle, name, is_named=has_cycle)
        # MaxText scans what is left over as one shorter cycle (Gemma 3).
        if layers % cycle:
            path = f"decoder/{name}_remainder"
            _cycle(run, path, 1, layer, layers % cycle, None, is_named=True, whole=cycle)
        return
    for at in range(cycle):
        count = (layers - at + cycle - 1) // cycle
        if count:
            path = f"decoder/{name}_*"
            unit = f"{path}[{at}]" if cycle > 1 else path
            run.parts.units[unit] = Unit(unit, count, run.width)
            layer(Builder(run, path, layers=count, remat=unit), at == cycle - 1)


def _cycle(
    run: Run,
    path: str,
    rounds: int,
    layer: Layer,
    count: int,
    stack: str | None,
    *,
    is_named: bool,
    whole: int | None = None,
) -> None:
    """Adds one scan over `rounds` rounds of `count` layers."""
    if rounds == 0:
        return
    run.parts.units[path] = Unit(path, rounds, run.width)
    for at in range(count):
        own = f"{path}/layers_{at}" if is_named else path
        builder = Builder(run, own, layers=rounds, stack=stack, remat=path)
        layer(builder, at == (count if whole is None else whole) - 1)


def _half(builder: Builder, norm: str, dtype: str | None = None, *, bias: bool = False) -> None:
    """Adds the norm before half of a layer, its input and its result."""
    builder.norm(norm, builder.run.width[0], dtype, bias=bias)
    for name in (f"{norm}:input", f"{norm}:normalised"):
        builder.value(name, builder.run.width)


def _dense(*, before: str = _PRE, after: str = _POST, norms: bool = False) -> Callable[[Run], None]:
    """Blocks of attention and a dense layer, each after a norm."""

    def build(run: Run) -> None:
        has_norms = norms and run.flag("use_qk_norm")

        def layer(builder: Builder, _: bool) -> None:
            _half(builder, before)
            _layers.attention(builder.inner("self_attention"), norms=has_norms)
            _half(builder, after)
            _layers.mlp(builder.inner("mlp"), run.size("mlp_dim"))

        _stacked(run, "layers", run.size("num_decoder_layers"), layer)

    return build


def _sparse(name: str, *, norms: bool = False) -> Callable[[Run], None]:
    """Blocks of attention and routed experts."""

    def build(run: Run) -> None:
        has_norms = norms and run.flag("use_qk_norm")

        def layer(builder: Builder, _: bool) -> None:
            _half(builder, _PRE)
            _layers.attention(builder.inner("self_attention"), norms=has_norms)
            _half(builder, _POST)
            key = "moe_mlp_dim" if norms else "mlp_dim"
            _layers.experts(builder.inner(name), run.size(key))

        _stacked(run, "layers", run.size("num_decoder_layers"), layer)

    return build


def _default(run: Run) -> None:
    """Attention and a dense layer side by side."""

    def layer(builder: Builder, _: bool) -> None:
        _half(builder, "pre_self_attention_norm")
        _layers.attention(builder.inner("self_attention"))
        _layers.mlp(builder.inner("mlp"), run.size("mlp_dim"))

    _stacked(run, "layers", run.size("num_decoder_layers"), layer)


def _gpt3(run: Run) -> None:
    if run.size("num_query_heads") != run.size("num_kv_heads"):
        raise FailsError("MaxText", "gpt3 has as many heads of keys as of queries")

    def layer(builder: Builder, _: bool) -> None:
        _half(builder, "pre_self_attention_norm", "float32", bias=True)
        _layers.attention(builder.inner("self_attention"), bias=True)
        for name in ("input", "normalised"):
            builder.value(f"mlp:{name}", run.width)
        _layers.mlp(builder.inner("mlp"), run.size("mlp_dim"), bias=True, pre_norm=True)

    _stacked(run, "layers", run.size("num_decoder_layers"), layer)


def _gemma2(run: Run) -> None:
    """A layer with a sliding window and one without, which MaxText counts as one layer."""
    width, window = run.width[0], run.size("sliding_window_size")

    def layer(builder: Builder, _: bool) -> None:
        for part, own in (("local", window), ("global", None)):
            _half(builder, f"pre_self_attention_norm_{part}")
            _layers.attention(builder.inner(f"self_attention_{part}"), window=own)
            builder.norm(f"post_self_attention_norm_{part}", width)
            _half(builder, f"pre_ffw_norm_{part}")
            _layers.mlp(builder.inner(f"mlp_{part}"), run.size("mlp_dim"), is_last=False)
            builder.norm(f"post_ffw_norm_{part}", width)

    _stacked(run, "layers", run.size("num_decoder_layers"), layer)


def _gemma3(run: Run) -> None:
    width, window = run.width[0], run.size("sliding_window_size")

    def layer(builder: Builder, is_last: bool) -> None:
        _half(builder, "pre_self_attention_norm")
        attention = builder.inner("self_attention")
        _layers.attention(attention, norms=True, window=None if is_last else window)
        if run.flag("use_post_attn_norm"):
            builder.norm("post_self_attention_norm", width)
        _half(builder, "pre_ffw_norm")
        is_read = run.flag("use_post_ffw_norm") or not is_last
        _layers.mlp(builder.inner("mlp"), run.size("mlp_dim"), is_last=not is_read)
        if run.flag("use_post_ffw_norm"):
            builder.norm("post_ffw_norm", width)

    layers = run.size("num_decoder_layers")
    _stacked(run, "layers", layers, layer, cycle=_GEMMA3_CYCLE, has_cycle=True)


def _gpt_oss(run: Run) -> None:
    window, layers = run.size("sliding_window_size"), run.size("num_decoder_layers")
    cycle = run.size("inhomogeneous_layer_cycle_interval")
    if cycle % _GPT_OSS_CYCLE or layers % cycle:
        raise UnmodelledError(f"cycles of {cycle} layers are not modelled for {layers} layers")

    def layer(builder: Builder, is_last: bool) -> None:
        _half(builder, _PRE, "float32")
        attention = builder.inner("GptOssAttention")
        own = None if is_last else window
        _layers.attention(attention, bias=run.flag("attention_bias"), window=own)
        _half(builder, _POST, "float32")
        _layers.experts(builder.inner("GptOssMlp"), run.size("mlp_dim"))

    _stacked(run, "layers", layers, layer, cycle=_GPT_OSS_CYCLE, has_cycle=True)


def _deepseek(run: Run) -> None:
    layers, dense = run.size("num_decoder_layers"), run.size("first_num_dense_layers", 0)
    if dense > layers:
        raise UnmodelledError(f"{dense} dense layers of {layers}")

    def first(builder: Builder, _: bool) -> None:
        _half(builder, _PRE)
        _layers.attention(builder.inner("self_attention"))
        _half(builder, _POST)
        _layers.mlp(builder.inner("mlp"), run.size("mlp_dim"))

    def routed(builder: Builder, _: bool) -> None:
        _half(builder, _PRE)
        _layers.attention(builder.inner("self_attention"))
        _half(builder, _POST)
        block = builder.inner("DeepSeekMoeBlock_0")
        inner = run.size("moe_mlp_dim")
        _layers.experts(block.inner("MoeBlock_0"), inner, router="embed_router")
        shared = run.size("shared_experts", 0)
        if shared:
            _layers.mlp(block.inner("shared_experts"), shared * inner)

    if dense:
        _stacked(run, "dense_layers", dense, first)
    if layers > dense:
        _stacked(run, "moe_layers", layers - dense, routed)


_BLOCKS: dict[str, Callable[[Run], None]] = {
    "default": _default,
    "llama2": _dense(),
    "mistral": _dense(),
    "mixtral": _sparse("MoeBlock_0"),
    "gemma": _dense(before="pre_self_attention_norm", after="pre_ffw_norm"),
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "qwen3": _dense(norms=True),
    "qwen3_moe": _sparse("moe_block", norms=True),
    "deepseek": _deepseek,
    "gpt_oss": _gpt_oss,
    "gpt3": _gpt3,
}
