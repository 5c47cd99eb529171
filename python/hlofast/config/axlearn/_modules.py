"""The parts of AXLearn's decoder modules: parameters, matmuls, and values with checkpoint names.

Paths and shapes of parameters follow AXLearn's `*_init.txt` files. Checkpoint names are the names
that AXLearn's layers give (`BaseLayer._remat_name`: the class, a dot, the name). Backward needs the
values that the transposed operations read.
"""

from __future__ import annotations

from hlofast.config._parts import LARGEST_SIZE, FailsError, UnmodelledError, checked_size
from hlofast.config._tree import Config
from hlofast.config.axlearn._builder import register_module, sharding_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hlofast.config._parts import Axes
    from hlofast.config.axlearn._builder import Builder, Module

_COMMON = "axlearn.common."

WITHOUT_PARAMETERS = frozenset(
    _COMMON + name
    for name in """
    attention.ALiBiAttentionLogitBiasLayer attention.AttentionLogitBiasLayer
    attention.CausalAttentionLogitBiasLayer attention.FullAttentionLogitBiasLayer
    attention.RoFormerSinusoidalPositionalEmbedding attention.ScaleKey attention.ScaleQuery
    attention.SinusoidalPositionalEmbedding attention._TransformerRepeat
    attention_bias.CausalAttentionBias attention_bias.SlidingWindowAttentionBias
    causal_lm.AuxLossMetrics causal_lm.CompositeLossMetrics causal_lm.CrossEntropyLossMetrics
    conformer.ConformerRepeat decoder.DecodingLayer kv_cache.kv_cache.KVCache
    layers.ClassificationMetric layers.Dropout layers.StochasticDepth layers.VariationalNoise
    mixture_of_experts.Top2Gating mixture_of_experts.TopKDropFreeGating
    param_init.ConstantInitializer param_init.DefaultInitializer param_init.GaussianInitializer
    param_init.WeightInitializer
    """.split()
)
"""Classes in configs of models that do not add to the counts."""

_CAUSAL = frozenset(
    "ALiBiAttentionLogitBiasLayer CausalAttentionBias CausalAttentionLogitBiasLayer "
    "causal_mask".split()
)
"""Masks that let each token attend to itself and all earlier tokens."""
_RANK = 4
"""Dimensions of queries: sequences, tokens, heads and what is in a head."""
_LANES = 128
"""Lanes of a TPU vector register."""
_STRUCTURES: dict[str, tuple[str, ...]] = {
    "prenorm": ("norm",),
    "postnorm": ("norm",),
    "hybridnorm": ("prenorm", "postnorm"),
    "nonorm": (),
}
"""Names of the norms of half a layer, by its `structure`."""


def axlearn(*names: str) -> Callable[[Module], Module]:
    """Registers the decorated function for these classes below `axlearn.common`."""

    def register(function: Module) -> Module:
        for name in names:
            register_module(_COMMON + name)(function)
        return function

    return register


@axlearn("causal_lm.Model")
def _model(builder: Builder) -> None:
    builder.child("decoder")


@axlearn("decoder.Decoder")
def _decoder(builder: Builder) -> None:
    width = builder.size("dim")
    vocabulary = builder.size("vocab_size")
    mask = builder.config.get("attention_mask")
    masks = {"mask": mask.class_name if isinstance(mask, Config) else mask}
    settings = {"vocabulary": vocabulary}
    if "emb" not in builder.config:
        raise UnmodelledError("emb is not set")
    builder.child("emb", width=width, settings=settings)
    builder.child("transformer", width=width, settings=masks)
    builder.child("output_norm", width=width)
    head = f"{builder.path}/emb/token_emb/weight"
    if isinstance(builder.config.get("lm_head"), Config):
        builder.child("lm_head", width=width, settings=settings)
        head = f"{builder.path}/lm_head/weight"
    logits = builder.sharding("logits_partition_spec") or ()
    builder.head(head, width, vocabulary, logits[2] if len(logits) > 2 else ())


@axlearn("embedding.TransformerTextEmbeddings")
def _embeddings(builder: Builder) -> None:
    # The vocabulary sizes the token table only; the other tables give their own sizes.
    builder.child("token_emb", settings={"rows": builder.setting("vocabulary")})
    for key in ("type_emb", "pos_emb", "norm"):
        builder.child(key)


@axlearn("layers.Embedding", "embedding.Embedding")
def _embedding(builder: Builder) -> None:
    rows = builder.size("num_embeddings", builder.settings.get("rows"))
    builder.parameter("weight", (rows, builder.size("dim", builder.width)), builder.sharding())


@axlearn("decoder.LmHead")
def _head(builder: Builder) -> None:
    shape = (builder.setting("vocabulary"), builder.width)
    builder.parameter("weight", shape, builder.sharding())


@axlearn("layers.RMSNorm")
def _rms_norm(builder: Builder) -> None:
    builder.parameter("scale", (builder.width,), builder.sharding())


@axlearn("layers.LayerNorm")
def _layer_norm(builder: Builder) -> None:
    for name in ("scale", "bias"):
        builder.parameter(name, (builder.width,), builder.sharding())


@axlearn("layers.LayerNormStateless", "layers.RMSNormStateless")
def nothing(builder: Builder) -> None:
    """A module that does not add to the counts."""
    del builder


@axlearn("attention.RepeatedTransformerLayer")
def _repeated(builder: Builder) -> None:
    builder.child("layer", "repeat/layer", layers=builder.size("num_layers"), stacked=True)


@axlearn("attention.StackedTransformerLayer")
def _stacked(builder: Builder) -> None:
    layers = builder.size("num_layers")
    layer = builder.part("layer")
    if layer.is_sequence:
        if len(layer) != layers:
            raise UnmodelledError(f"{len(layer)} layers where num_layers is {layers}")
        for index, sublayer in layer.items():
            if not isinstance(sublayer, Config):
                raise UnmodelledError(f"layer[{index}] is {sublayer!r}")
            builder.enter(sublayer, f"layer{index}")
        return
    builder.enter(layer, "layer*", layers=layers, numbered=True)


@axlearn("attention.PipelinedTransformerLayer")
def _pipelined(builder: Builder) -> None:
    """Stages whose weights are stacked along the mesh axis `pipeline`."""
    layers, stages = builder.size("num_layers"), builder.size("num_stages")
    if layers % stages:
        raise FailsError("AXLearn", f"{stages} stages do not divide {layers} layers")
    stage, layer = builder.part("stage"), builder.part("layer")
    own = (stages, ("pipeline",))
    inner, path = layers // stages, "pipeline/layer"
    if layer.is_sequence:
        raise UnmodelledError("stages of different layers are not modelled")
    if stage.class_name == "RepeatedTransformerLayer":
        builder.enter(layer, f"{path}/repeat/layer", layers=inner, stacked=True, stages=own)
    elif stage.class_name == "StackedTransformerLayer":
        builder.enter(layer, f"{path}/layer*", layers=inner, numbered=True, stages=own)
    else:
        raise UnmodelledError(f"the stage {stage.klass} is not modelled")
    builder.covered(stage)
    builder.missing(
        f"activations and time of {stages} pipeline stages with {builder.get('num_microbatches')} "
        "micro-batches are not modelled; weights, state and FLOPs are modelled"
    )


@axlearn("attention.TransformerLayer")
def _layer(builder: Builder) -> None:
    for key in ("self_attention", "cross_attention", "feed_forward"):
        builder.child(key)


def norms(builder: Builder) -> str:
    """Adds the norms of half a layer, its input and its result; returns its structure."""
    structure = builder.get("structure", "prenorm")
    if not isinstance(structure, str) or structure not in _STRUCTURES:
        raise UnmodelledError(f"structure {structure!r} is not modelled")
    for name in _STRUCTURES[structure]:
        builder.enter(builder.part("norm"), name)
    builder.value("input", ((builder.width, ()),))
    if structure in ("prenorm", "hybridnorm"):
        builder.value("normalised", ((builder.width, ()),))
    return structure


@axlearn("attention.TransformerAttentionLayer")
def _attention_layer(builder: Builder) -> None:
    if builder.path.endswith("cross_attention"):
        raise UnmodelledError("cross-attention is not modelled")
    norms(builder)
    builder.child("attention")


@axlearn(
    "attention.MultiheadAttention",
    "attention.GroupedQueryAttention",
    "attention.SigmoidAttention",
    "flash_attention.layer.FlashAttention",
)
def _attention(builder: Builder) -> None:
    heads = builder.size("num_heads")
    hidden = builder.size("hidden_dim", builder.width)
    if hidden % heads:
        raise UnmodelledError(f"{heads} heads do not divide {hidden}")
    depth = hidden // heads
    scales(builder, depth)
    _mask(builder)
    axes = _output_axes(builder.part("output_linear"))
    _mixed(builder, heads, depth, axes)
    along = _exchanged(builder, axes)
    if along:
        builder.exchanges("content", along, ((heads, axes), (depth, ())))
    else:
        builder.has_whole()
    projected(builder, heads, depth, along)


def _exchanged(builder: Builder, axes: Axes) -> Axes:
    """The axes that shard heads in an attention kernel, and tokens elsewhere.

    Projections compute the heads of their tokens; all-to-alls exchange tokens for heads and back.
    """
    specs = builder.config.get("mha_dim_to_partition_spec")
    if builder.config.class_name != "FlashAttention" or not isinstance(specs, Config):
        return ()
    spec = sharding_of(specs, "btnh") or ()
    if len(spec) < _RANK or spec[1]:
        return ()
    return tuple(axis for axis in spec[2] if axis not in axes)


def projected(builder: Builder, heads: int, depth: int, along: Axes = ()) -> None:
    """Adds the projections of an attention layer's input and of its result.

    `along` are the axes along which queries, keys and values are exchanged.
    """
    owner = builder.config.class_name or ""
    settings = {"heads": heads, "depth": depth, "along": along}
    builder.child("input_linear", "i_proj", owner=owner, settings=settings)
    width = builder.size("output_dim", builder.width)
    output = builder.part("output_linear")
    builder.enter(output, "o_proj", owner=owner, settings={**settings, "outputs": width})


def scales(builder: Builder, depth: int) -> None:
    """Adds the weights that scale queries and keys, over heads of this depth."""
    for key in ("query_scale", "key_scale"):
        scale = builder.config.get(key)
        if isinstance(scale, Config):
            _scale(builder, scale, "scale_" + key.partition("_")[0], depth)


def _output_axes(output: Config) -> tuple[str, ...]:
    """The axes that shard the heads in the output projection."""
    spec = sharding_of(output, "param_partition_spec") or ()
    return spec[1] if len(spec) > 1 else ()


def _mask(builder: Builder) -> None:
    """Notes a mask that is not causal or not modelled."""
    mask = builder.config.get("mask")
    if isinstance(mask, Config):
        mask = mask.klass or mask.get("fn")
    if mask is None and builder.get("causal") is not True:
        # A layer without its own mask uses the decoder's.
        mask = builder.settings.get("mask")
        if mask is None:
            builder.unknown_mask("the config has no mask")
            return
    if mask is not None and str(mask).rpartition(".")[2] not in _CAUSAL:
        builder.unknown_mask(f"the mask {mask} is not modelled")


def _mixed(builder: Builder, heads: int, depth: int, axes: tuple[str, ...]) -> None:
    """Adds queries times keys and probabilities times values."""
    pairs = heads * depth
    content = ((heads, axes), (depth, ()))
    if builder.config.class_name == "FlashAttention":
        # The TPU kernel gives its residuals this name; AXLearn's other kernels are not
        # distinguished here.
        name = "tpu_attention.flash_residuals"
        builder.value("content", content, name=name)
        # The sum and the maximum of each softmax row.
        builder.value("statistics", ((heads, axes), (2, ())), name=name, itemsize=4)
        # The TPU backward kernels hold row sums as wide as a block, and statistics as wide as a
        # vector register.
        block = builder.size("tpu_block_size", 512)
        builder.scratch(((heads, axes), (block + 2 * _LANES, ())), 4)
        kept = ((builder.key("content"), builder.key("statistics")),)
        builder.product("attention", None, 2 * pairs, kept_by=kept, is_attention=True)
        return
    if builder.sequence is None:
        raise UnmodelledError("the sequence length is not known")
    square = ((heads, axes), (builder.sequence, ()))
    builder.value("logits", square, is_product=True, is_batched=True)
    builder.value("probabilities", square)
    name = f"{builder.config.class_name}.context"
    builder.value("context", content, name=name, is_product=True, is_batched=True)
    # The backward pass of softmax reads its result.
    logits = ((builder.key("logits"),), (builder.key("probabilities"),))
    builder.product("logits", None, pairs, kept_by=logits, is_attention=True)
    context = ((builder.key("context"),),)
    builder.product("context", None, pairs, kept_by=context, is_attention=True)


def _scale(builder: Builder, config: Config, name: str, depth: int) -> None:
    """Adds the optional norm of queries or keys, over heads of this depth."""
    if config.klass not in WITHOUT_PARAMETERS:
        builder.gap("the class is not modelled", config)
        return
    norm, each = config.get("norm"), config.get("per_dim_scale")
    if isinstance(norm, Config):
        builder.enter(norm, f"{name}/norm", width=depth)
    if isinstance(each, Config):
        builder.enter(each, f"{name}/per_dim_scale", width=depth)


@axlearn("attention.PerDimScale")
def _per_dimension(builder: Builder) -> None:
    builder.parameter("param", (builder.width,))


@axlearn("attention.RoFormerQKVLinear")
def _rotated(builder: Builder) -> None:
    builder.child("input_linear", "i_proj")


def _projections(builder: Builder, parts: list[tuple[str, int]]) -> None:
    """Adds queries, keys and values with their checkpoint names."""
    depth = builder.setting("depth")
    axes = _output_axes(builder.config["layer"]) if "layer" in builder.config else ()
    along = builder.settings.get("along", ())
    for name, heads in parts:
        named, features = f"{builder.owner}.{name}", ((heads, axes), (depth, ()))
        builder.value(name, features, name=named)
        if along:
            # XLA keeps queries as they lie on devices after the exchange, others as before it.
            kept = ((builder.key(name),),) if name == "q_proj" else ()
            builder.exchanges(name, along, features, kept)


def _groups(builder: Builder) -> int:
    heads = builder.setting("heads")
    groups = builder.size("num_kv_heads", heads)
    if heads % groups:
        raise UnmodelledError(f"{groups} heads of keys and values do not divide {heads} heads")
    return groups


@axlearn("attention.QKVLinear", "attention.GroupedQKVLinear")
def _separate(builder: Builder) -> None:
    heads, groups = builder.setting("heads"), builder.setting("heads")
    if builder.config.class_name == "GroupedQKVLinear":
        groups = _groups(builder)
    parts = [("q_proj", heads), ("k_proj", groups), ("v_proj", groups)]
    for name, count in parts:
        kept = ((builder.key(name),), (builder.key(f"{name}/product"),))
        settings = {"shape": (count,), "name": name, "kept_by": kept, "key": f"{name}/product"}
        _input_linear(builder, name, settings)
    _projections(builder, parts)


@axlearn("attention.FusedQKVLinear", "attention.FusedGroupedQKVLinear")
def _fused(builder: Builder) -> None:
    heads = groups = builder.setting("heads")
    shape: tuple[int, ...] = (heads,)
    leading: tuple[int, ...] = (3,)
    if builder.config.class_name == "FusedGroupedQKVLinear":
        groups = _groups(builder)
        shape, leading = (heads + 2 * groups,), ()
    parts = [("q_proj", heads), ("k_proj", groups), ("v_proj", groups)]
    kept = (tuple(builder.key(name) for name, _ in parts), (builder.key("qkv_proj/product"),))
    settings = {"shape": shape, "leading": leading, "name": "qkv_proj", "kept_by": kept}
    _input_linear(builder, "qkv_proj", {**settings, "key": "qkv_proj/product"})
    _projections(builder, parts)


def _input_linear(builder: Builder, name: str, settings: dict[str, Any]) -> None:
    """Adds the projection `name` of the module `layer`, and its whole result."""
    layer = builder.part("layer")
    builder.enter(layer, name, settings={**settings, "joint": builder.key("input")})
    (heads,), leading = settings["shape"], settings.get("leading", ())
    features = ((heads * (leading[0] if leading else 1), _output_axes(layer)),)
    builder.value(
        settings["key"], (*features, (builder.setting("depth"), ())), is_product=True, is_whole=True
    )


@axlearn("attention.MultiheadInputLinear")
def _multihead_input(builder: Builder) -> None:
    heads, depth = builder.setting("shape"), builder.setting("depth")
    shape = (builder.width, *heads, depth)
    leading = builder.settings.get("leading", ())
    spec = builder.sharding() or ()
    weight = builder.parameter("weight", leading + shape, ((),) * len(leading) + spec)
    if builder.flag("bias", True):
        builder.parameter("bias", leading + shape[1:], ((),) * len(leading) + spec[1:])
    total = heads[0] * depth * (leading[0] if leading else 1)
    builder.product(
        builder.setting("name"),
        weight,
        builder.width * total,
        kept_by=builder.setting("kept_by"),
        contracted=(len(leading),),
        joint=builder.setting("joint"),
    )


@axlearn("attention.MultiheadOutputLinear")
def _multihead_output(builder: Builder) -> None:
    width, heads, depth = (builder.setting(key) for key in ("outputs", "heads", "depth"))
    spec = builder.sharding() or ()
    weight = builder.parameter("weight", (width, heads, depth), spec)
    if builder.flag("bias", True):
        builder.parameter("bias", (width,), spec[:1])
    kept = ((builder.key("output"),),)
    multiplications = width * heads * depth
    builder.product("o_proj", weight, multiplications, kept_by=kept, contracted=(1, 2))
    name = f"{builder.owner}.o_proj"
    # The input of the second half of the layer is computed from this value.
    builder.value("output", ((width, ()),), name=name, is_product=True)


def hidden_width(builder: Builder) -> int:
    """The inner width: a number, or a function of the width."""
    given = builder.get("hidden_dim")
    if not isinstance(given, Config):
        return checked_size(given, "hidden_dim")
    scale, function = given.get("scale"), str(given.get("fn"))
    is_scale = function.startswith("axlearn.") and function.endswith(".scale_fn")
    if not is_scale or not isinstance(scale, (int, float)):
        raise UnmodelledError(f"hidden_dim by {function} is not modelled")
    # The bound keeps the result of an absurd scale finite.
    hidden = builder.width * min(max(float(scale), 0.0), float(LARGEST_SIZE))
    multiple = given.get("round_up_to_multiples_of")
    if multiple is None:
        return checked_size(round(hidden), "hidden_dim")
    multiple = checked_size(multiple, "round_up_to_multiples_of")
    return checked_size(-int(-hidden // multiple) * multiple, "hidden_dim")


@axlearn("attention.TransformerFeedForwardLayer")
def _feed_forward(builder: Builder) -> None:
    owner = builder.config.class_name or ""
    hidden = hidden_width(builder)
    structure = norms(builder)
    activation = builder.get("activation", "nn.relu")
    gates = list(activation) if isinstance(activation, Config) else [None]
    linear1, linear2 = builder.config.get("linear1"), builder.config.get("linear2")
    if not isinstance(linear1, Config) or not isinstance(linear2, Config):
        raise UnmodelledError("linear1 or linear2 is not set")
    for index, gate in enumerate(gates):
        name = "linear1" if gate is None else f"linear1_{index}"
        settings = {"outputs": hidden, "name": f"linear1_{index}", "is_needed": True}
        settings["joint"] = builder.key("input")
        builder.enter(linear1, name, owner=owner, settings=settings)
    builder.value("hidden", ((hidden, _last_axes(linear1)),))
    # The last matmul feeds an addition, whose transpose does not read values; a norm, however,
    # reads its input.
    is_needed = structure in ("postnorm", "hybridnorm")
    settings = {"outputs": builder.width, "name": "linear2", "is_needed": is_needed}
    settings["joint"] = None
    builder.enter(linear2, "linear2", width=hidden, owner=owner, settings=settings)


def _last_axes(linear: Config) -> tuple[str, ...]:
    """The axes that shard the output features of a linear layer."""
    for key, index in (("output_partition_spec", 2), ("param_partition_spec", 1)):
        spec = sharding_of(linear, key) or ()
        if len(spec) > index:
            return spec[index]
    return ()


@axlearn("layers.Linear")
def _linear(builder: Builder) -> None:
    outputs = builder.size("output_dim", builder.settings.get("outputs"))
    spec = builder.sharding() or ()
    weight = builder.parameter("weight", (builder.width, outputs), spec)
    if builder.flag("bias", True):
        builder.parameter("bias", (outputs,), spec[1:])
    name, is_needed = builder.setting("name"), builder.setting("is_needed")
    kept = ((builder.key("output"),),)
    builder.product(
        name,
        weight,
        builder.width * outputs,
        kept_by=kept,
        is_needed=is_needed,
        joint=builder.setting("joint"),
    )
    builder.value(
        "output",
        ((outputs, _last_axes(builder.config)),),
        name=f"{builder.owner}.{name}",
        is_product=True,
        is_needed=is_needed,
    )
