"""Attention, dense and expert layers of MaxText: weights, matmuls, and values with their names.

Names and shapes of weights, their logical axes and the checkpoint names of values are those of
MaxText's `layers/attentions.py`, `attention_mla.py`, `linears.py` and `moe.py`. Values get their
checkpoint names after norms and rotary embeddings, so a saved query does not spare the matmul
before a norm of queries.
"""

from __future__ import annotations

import math

from hlofast.config._parts import FailsError, Gap, UnmodelledError
from hlofast.config._traffic import GATHER, RAGGED, REDUCE, SUM
from hlofast.config.maxtext import _remat
from hlofast.config.maxtext._refused import GPU_KERNELS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._parts import Axes, Feature
    from hlofast.config.maxtext._builder import Builder, Run

_KERNELS = ("flash", *GPU_KERNELS)
_SHORTEST_KERNEL = 128
"""Sequences below this length do not use a kernel when MaxText selects it."""
_STRATEGY = "all_gather"
"""The way of context parallelism that is modelled."""
_EXCHANGED = "moe_dispatch_no_expert_sharding"
INDEXERS = {"use_indexer": "indexer_", "use_sparse_indexer": "index_"}
"""Keys of DeepSeek V3.2's indexer, with the start of the keys of its sizes: since 0.2.1, before."""
_LANES = 128
"""Lanes of a TPU vector register."""
_TOKENS = ("activation_kv_batch", "activation_length_attn")


def _heads(run: Run, count: int, depth: int) -> tuple[Feature, Feature]:
    return (count, run.axes(*_TOKENS, "activation_kv_heads")), (depth, ())


def attention(
    builder: Builder, *, norms: bool = False, bias: bool = False, window: int | None = None
) -> None:
    """Adds attention; `norms` are those of queries and keys."""
    run = builder.run
    if run.get("attention_type") == "mla":
        _latent(builder)
        return
    width, depth = run.width[0], run.size("head_dim")
    heads, groups = run.size("num_query_heads"), run.size("num_kv_heads")
    if heads % groups:
        raise FailsError("MaxText", f"{groups} heads of keys for {heads} of queries")
    if run.flag("fused_qkv"):
        if heads != groups or norms:
            raise UnmodelledError(
                "fused_qkv needs as many heads of keys as of queries, and no norms"
            )
        weight = builder.weights(
            "qkv_proj/kernel", (width, 3, heads, depth), ("embed_attn", "qkv", "heads", "kv")
        )
        if bias:
            builder.weights("qkv_proj/bias", (3, heads, depth), ("qkv", "heads", "kv"))
        parts = tuple(builder.key(f"{name}_proj") for name in ("query", "key", "value"))
        kept = (parts, (builder.key("qkv_proj"),))
        builder.product("qkv_proj", weight, 3 * width * heads * depth, kept)
        builder.value(
            "qkv_proj", (3, ()), *_heads(run, heads, depth), saved_as="qkv_proj", is_product=True,
            is_needed=False,
        )  # fmt: skip
    for name, count, names in (
        ("query", heads, ("embed_attn", "q_heads", "kv")),
        ("key", groups, ("embed_attn", "kv_heads", "kv_head_dim")),
        ("value", groups, ("embed_attn", "kv_heads", "kv_head_dim")),
    ):
        own = _heads(run, count, depth)
        has_norm = norms and name != "value"
        builder.value(f"{name}_proj", *own, saved_as=f"{name}_proj", is_product=not has_norm)
        if run.flag("fused_qkv"):
            continue
        weight = builder.weights(f"{name}/kernel", (width, count, depth), names)
        if bias:
            builder.weights(f"{name}/bias", (count, depth), names[1:])
        # The backward pass of a norm reads the result of the matmul.
        result = f"{name}_result" if has_norm else f"{name}_proj"
        if has_norm:
            builder.value(result, *own, is_product=True)
        multiplications = width * count * depth
        joint = builder.key("normalised")
        builder.product(name, weight, multiplications, ((builder.key(result),),), joint=joint)
    if run.flag("attention_sink"):
        builder.weights("sinks", (heads,), (None,))
    if norms:
        builder.norm("query_norm", depth)
        builder.norm("key_norm", depth)
    _mixed(builder, (heads, groups), depth, depth, window)
    _output(builder, heads, depth, bias=bias)
    _backward(builder, heads, groups, depth, depth, rotated=0 if run.block == "gpt3" else depth)


def _backward(
    builder: Builder, heads: int, groups: int, depth: int, values: int, *, rotated: int
) -> None:
    """Adds the values that attention's backward pass holds at once.

    These are its result; the gradients of queries, keys and values that its kernel writes; those
    of queries and keys before the rotary embedding; and the parts of these that the embedding
    moves, padded to the lanes of a register: two halves, or in Llama 3.1 the shares of both
    neighbours, in two parts each.
    """
    run = builder.run
    is_shifted = any(
        str(run.get(key)).startswith("llama3.1") for key in ("model_name", "rope_type")
    )
    parts = [rotated] * 4 if is_shifted else [-(-rotated // 2 // _LANES) * _LANES] * 2
    sizes = [values, depth, depth, *(size for size in parts if size)]
    held: list[tuple[Feature, ...]]
    held = [_heads(run, count, size) for count in (heads, groups) for size in sizes]
    along = run.shards(_context(run))
    if along > 1:
        # The kernel reads the keys and values of whole sequences, and writes their gradients.
        held += [_heads(run, groups, along * size) for size in (depth, values)] * 2
    builder.attends(held)


def _context(run: Run) -> Axes:
    """The mesh axes that shard the tokens of a sequence within attention."""
    return run.cut(run.rules.spec((*_TOKENS, "activation_kv_heads"))[1])


def _gathered(builder: Builder, groups: int, depth: int, values: int) -> None:
    """Adds the gathers of keys and values of sequences that lie on several devices.

    Each device computes its queries with all earlier keys. Kernels of backward read the gathered
    keys and values again, whatever is kept.
    """
    run = builder.run
    axes = _context(run)
    strategy = run.get("context_parallel_strategy")
    if axes and strategy not in (None, _STRATEGY):
        raise UnmodelledError(f"context_parallel_strategy {strategy!r} is not modelled")
    length, parts = run.size("max_target_length"), run.shards(axes)
    block = min(run.size("sa_block_q"), length)
    if axes and length % (parts * block):
        cut = f"{','.join(axes)} = {parts:,} does not divide {length:,} tokens"
        raise FailsError("MaxText", f"{cut} into blocks of {block:,}")
    for name, size in (("key", depth), ("value", values)):
        builder.moves(
            name, GATHER, REDUCE, axes, *_heads(run, groups, size),
            itemsize=run.itemsize, whole=True,
        )  # fmt: skip
    run.parts.moved_axes.update(axes)
    if run.get("context_parallel_load_balance") is False:
        run.parts.causal_shards = parts


def _known(run: Run, name: str) -> str | None:
    """A checkpoint name that not all versions have: its key tells."""
    return None if run.get(name) is None else name


def _latent(builder: Builder) -> None:
    """Adds multi-head latent attention."""
    run = builder.run
    width, heads = run.width[0], run.size("num_query_heads")
    nope, rope = run.size("qk_nope_head_dim"), run.size("qk_rope_head_dim")
    values, latent, rank = (
        run.size("v_head_dim"), run.size("kv_lora_rank"), run.size("q_lora_rank", 0),
    )  # fmt: skip
    if run.size("head_dim") != values:
        raise FailsError("MaxText", "head_dim differs from v_head_dim")
    if run.size("num_kv_heads") != heads or run.flag("fused_qkv"):
        raise FailsError("MaxText", "mla needs equal numbers of heads, unfused")
    depth = nope + rope
    joint = builder.key("normalised")
    query = _heads(run, heads, depth)
    builder.value("query_proj", *query, saved_as="query_proj", is_product=True)
    kept = ((builder.key("query_proj"),),)
    if rank == 0:
        weight = builder.weights(
            "query/kernel", (width, heads, depth), ("embed_attn", "q_heads", "kv")
        )
        builder.product("query", weight, width * heads * depth, kept, joint=joint)
    else:
        weight = builder.weights("wq_a/kernel", (width, rank), ("embed_attn", "q_lora_up_proj"))
        builder.norm("q_norm", rank)
        builder.value("wq_a", (rank, ()), saved_as=_known(run, "query_wa_proj"), is_product=True)
        builder.value("mla_q", (rank, ()), saved_as="mla_q")
        builder.product("wq_a", weight, width * rank, ((builder.key("wq_a"),),), joint=joint)
        weight = builder.weights("wq_b/kernel", (rank, heads, depth), ("q_lora", "q_heads", "kv"))
        builder.product("wq_b", weight, rank * heads * depth, kept)
    weight = builder.weights(
        "wkv_a/kernel", (width, latent + rope), ("embed_attn", "kv_lora_up_proj")
    )
    builder.norm("kv_norm", latent)
    name = _known(run, "kv_wa_proj")
    builder.value("wkv_a", (latent + rope, ()), saved_as=name, is_product=True)
    builder.value("mla_kv", (latent, ()), saved_as="mla_kv")
    kept = ((builder.key("wkv_a"),),)
    builder.product("wkv_a", weight, width * (latent + rope), kept, joint=joint)
    names = ("kv_lora", "kv_heads", "kv_head_dim")
    weight = builder.weights("wkv_b/kernel", (latent, heads, nope + values), names)
    builder.value("key_proj", *query, saved_as="key_proj", is_product=True)
    builder.value("value_proj", *_heads(run, heads, values), saved_as="value_proj", is_product=True)
    both = ((builder.key("key_proj"), builder.key("value_proj")),)
    builder.product("wkv_b", weight, latent * heads * (nope + values), both)
    if run.flag("attention_sink"):
        # The constructor of `Attention`, from which `MLA` inherits, makes them.
        builder.weights("sinks", (heads,), (None,))
    _indexer(builder, rank)
    _mixed(builder, (heads, heads), depth, values, None)
    _output(builder, heads, values)
    _backward(builder, heads, heads, depth, values, rotated=rope)


def _indexer(builder: Builder, rank: int) -> None:
    """Adds the weights of DeepSeek V3.2's indexer (`Indexer` of `attention_mla.py`), if it is on.

    What its scores and masks hold has no model. Up to `topk` tokens it leaves attention whole, and
    nothing reads its weights.
    """
    run = builder.run
    for key, start in INDEXERS.items():
        if not run.flag(key):
            continue
        heads, depth, kept = (
            run.size(f"{start}{name}") for name in ("n_heads", "head_dim", "topk")
        )
        width, own = run.width[0], builder.inner("indexer")
        weights = [
            own.weights("wq_b/kernel", (rank, heads, depth), ("q_lora", "q_heads", "kv")),
            own.weights("wk/kernel", (width, depth), ("embed_attn", "kv")),
            own.weights(
                "weights_proj/kernel", (width, heads), ("embed_attn", "q_heads"), "float32"
            ),
        ]
        # Flax gives the norm float32 and no logical axes.
        for name in ("scale", "bias"):
            own.weights(f"k_norm/{name}", (depth,), (None,), "float32")
        note = (key, f"the scores and masks of the indexer ({key}) are not modelled")
        if note not in run.unmodelled:
            run.unmodelled.append(note)
        if run.size("max_target_length") > kept:
            sizes = (rank * heads * depth, width * depth, width * heads)
            for weight, size in zip(weights, sizes, strict=True):
                own.product(weight.rpartition("/")[0], weight, size, ())
            run.parts.masks.append(Gap(key, run.block, note[1]))


def _mixed(
    builder: Builder, counts: tuple[int, int], depth: int, values: int, window: int | None
) -> None:
    """Adds queries times keys, and probabilities times values; heads of queries, heads of keys."""
    run = builder.run
    heads, groups = counts
    kind, length = run.get("attention"), run.size("max_target_length")
    if run.flag("moba"):
        raise UnmodelledError("moba is not modelled")
    content = _heads(run, heads, values)
    if kind in _KERNELS or (kind == "autoselected" and length >= _SHORTEST_KERNEL):
        _gathered(builder, groups, depth, values)
        builder.value("content", *content, saved_as="context")
        # The sum of each softmax row; kernels give both residuals one name.
        builder.value("statistics", content[0], (2, ()), saved_as="context", itemsize=4)
        kept = ((builder.key("content"), builder.key("statistics")),)
        builder.product(
            "attention", None, heads * (depth + values), kept, is_attention=True, window=window
        )
        block = run.size("sa_block_q")
        run.parts.scratch.append(((content[0], (block + 2 * _LANES, ())), 4))
        return
    if kind not in ("dot_product", "autoselected"):
        raise UnmodelledError(f"attention {kind!r} is not modelled")
    square = (content[0], (length, ()))
    builder.value("logits", *square, is_product=True, is_batched=True)
    builder.value("probabilities", *square)
    builder.value("context", *content, is_product=True, is_batched=True)
    logits = ((builder.key("logits"),), (builder.key("probabilities"),))
    builder.product("logits", None, heads * depth, logits, is_attention=True)
    context = ((builder.key("context"),),)
    builder.product("context", None, heads * values, context, is_attention=True)


def _output(builder: Builder, heads: int, depth: int, *, bias: bool = False) -> None:
    """Adds the projection of attention's result."""
    width = builder.run.width[0]
    weight = builder.weights("out/kernel", (heads, depth, width), ("heads", "kv", "embed_attn"))
    if bias:
        builder.weights("out/bias", (width,), ("embed_attn",))
    builder.value("out_proj", builder.run.width, saved_as="out_proj", is_product=True)
    kept = ((builder.key("out_proj"),),)
    builder.product("out_proj", weight, width * heads * depth, kept, contracted=(0, 1))


def _activations(run: Run) -> int:
    activations = run.get("mlp_activations")
    if not isinstance(activations, tuple) or not 1 <= len(activations) <= 2:
        raise UnmodelledError(f"mlp_activations {activations!r} is not modelled")
    return len(activations)


def mlp(
    builder: Builder,
    inner: int,
    *,
    bias: bool = False,
    pre_norm: bool = False,
    is_last: bool = True,
) -> None:
    """Adds a dense layer; `is_last` unless a later value of the layer needs its result."""
    run = builder.run
    width, count = run.width[0], _activations(run)
    axes = run.axes("activation_batch", "activation_length_no_exp", "activation_mlp")
    if pre_norm:
        builder.norm("mlp_layer_norm", width, "float32", bias=bias)
    joint = builder.key("normalised")
    names = ["wi"] if count == 1 else [f"wi_{index}" for index in range(count)]
    if run.flag("fused_mlp"):
        weight = builder.weights(
            "wi/kernel", (width, count, inner), ("embed", "num_activations", "mlp")
        )
        kept = ((builder.key("wi"),),)
        builder.value("wi", (count, ()), (inner, axes), saved_as="mlpwi", is_product=True)
        builder.product("wi", weight, width * count * inner, kept, joint=joint)
        names = []
    for name in names:
        weight = builder.weights(f"{name}/kernel", (width, inner), ("embed", "mlp"))
        if bias:
            builder.weights(f"{name}/bias", (inner,), ("mlp",))
        builder.value(name, (inner, axes), saved_as=f"mlp{name}", is_product=True)
        kept = ((builder.key(name),),)
        builder.product(name, weight, width * inner, kept, joint=joint)
    builder.value("hidden", (inner, axes))
    weight = builder.weights("wo/kernel", (inner, width), ("mlp", "embed"))
    if bias:
        builder.weights("wo/bias", (width,), ("embed",))
    builder.value("wo", run.width, saved_as="mlpwo", is_product=True, is_needed=not is_last)
    kept = ((builder.key("wo"),),)
    builder.product("wo", weight, inner * width, kept, is_needed=not is_last)


def experts(builder: Builder, inner: int, *, router: str = "embed") -> None:
    """Adds a layer of routed experts; `router` is the logical axis of the router's input."""
    run = builder.run
    width, count, chosen = run.width[0], run.size("num_experts"), run.size("num_experts_per_tok")
    if _activations(run) != 2:
        raise UnmodelledError("experts have two activations")
    for flag in ("shard_exp_on_fsdp", "use_2d_fsdp_sharding", "fsdp_shard_on_exp"):
        if run.flag(flag):
            raise UnmodelledError(f"{flag} is not modelled")
    gate = builder.weights("gate/kernel", (width, count), (router, None))
    if run.flag("routed_bias"):
        builder.weights("gate/bias", (count,), (None,))
    builder.value("gate", (count, ()), is_product=True)
    joint = builder.key("normalised")
    builder.product("gate", gate, width * count, ((builder.key("gate"),),), joint=joint)
    layout = _Layout(run, count, chosen)
    routed, computed = layout.routed, layout.computed
    axes = run.axes("activation_batch", "activation_length_moe", "activation_mlp_moe")
    sent, rows = (_scaled(routed, width), layout.width), (_scaled(computed, width), layout.width)
    hidden = (_scaled(computed, inner), axes)
    multiplications = width * _scaled(routed, inner)
    # Rows are sorted by expert, and again where they come from several devices.
    builder.value("sorted", sent)
    masks = _slots(run, count, chosen)
    if masks:
        # Einsums of `dense_matmul` in `moe.py` of MaxText 0.2.5. The mask of dispatch is boolean,
        # so only its rows have a gradient; combine multiplies by routing weights, which have one.
        for name, gradients in (("dispatch", 1), ("combine", 2)):
            kept = ((builder.key("sorted"),),)
            builder.product(
                name, None, width * masks, kept, is_needed=name == "dispatch",
                is_routed=True, mask_gradients=gradients,
            )  # fmt: skip
    if layout.expert:
        builder.value("received", rows)
    for name in ("wi_0", "wi_1"):
        weight = builder.weights(
            name, (count, width, inner), ("exp", "embed_no_exp", "mlp_moe"), apart=layout.expert,
            last=layout.last,
        )  # fmt: skip
        own, also = _remat.names_of(run.config, name, is_sparse=layout.is_sparse)
        builder.value(name, hidden, saved_as=own, is_product=True, also=also)
        kept = ((builder.key(name),),)
        builder.product(
            name, weight, multiplications, kept, contracted=(1,), joint=builder.key("sorted"),
            is_routed=True,
        )  # fmt: skip
    builder.value("hidden", hidden)
    weight = builder.weights(
        "wo", (count, inner, width), ("exp", "mlp_moe", "embed_no_exp"), apart=layout.expert,
        last=layout.last,
    )  # fmt: skip
    # The gradient of the routing weights reads the results of the experts.
    own, also = _remat.names_of(run.config, "wo", is_sparse=layout.is_sparse)
    builder.value("wo", rows, saved_as=own, is_product=True, also=also)
    kept = ((builder.key("wo"),),)
    builder.product("wo", weight, multiplications, kept, contracted=(1,), is_routed=True)
    if run.flag("mlp_bias"):
        for name in ("wi_0_bias", "wi_1_bias"):
            builder.weights(name, (count, inner), ("exp", "activation_mlp"), apart=layout.expert)
        builder.weights("wo_bias", (count, width), ("exp", "activation_embed"), apart=layout.expert)
    _routes(builder, layout, sent[0], rows[0])


class _Layout:
    """How tokens and experts of a layer lie on devices."""

    def __init__(self, run: Run, count: int, chosen: int) -> None:
        self.is_sparse = run.flag("sparse_matmul")
        """Whether rows are sorted by expert and multiplied in groups."""
        self.routed = _runs(run, count, chosen)
        """Rows that the experts' matmuls compute per token."""
        self.computed = self.routed
        """Rows per token for which a device has memory."""
        self.width: Axes = run.width[1]
        """The mesh axes that shard the width of rows."""
        self.expert = run.expert_axes
        """The axes along which each device keeps its experts, and tokens travel."""
        self.last: Axes = ()
        """The axes along which weights are gathered last, and no tokens travel."""
        self.tensor = run.cut(run.axes(*_TOKENS, "activation_mlp_moe"))
        if not self.is_sparse and _context(run):
            # XLA gathers tokens and masks along the axis (`mixtral_context_v5p`).
            axes = ",".join(_context(run))
            run.parts.unmoved.add(
                f"dense matmuls of experts on tokens of a sequence along {axes!r} are not modelled"
            )
        if run.flag("use_ring_of_experts") and self.expert:
            raise UnmodelledError("use_ring_of_experts is not modelled")
        if self.is_sparse:
            # Buffers have room for all rows of all devices along the axes, unless a factor is set.
            most = min(chosen * run.shards(self.expert), count)
            factor = run.get("ragged_buffer_factor")
            is_set = isinstance(factor, (int, float)) and factor > 0
            self.computed = chosen * factor if is_set and self.expert else most
        elif self.expert and not _is_exchanged(run):
            self.expert, self.last = (), self.expert
        elif self.expert:
            # XLA gathers all rows in backward (`mixtral_alltoall_v5p` of the compiled steps).
            axes = ",".join(self.expert)
            run.parts.unmoved.add(
                f"rows that travel along {axes!r} to dense matmuls of experts are not modelled"
            )


def _is_exchanged(run: Run) -> bool:
    """Whether tokens of dense matmuls travel to their experts.

    Otherwise the rules give the axis of the experts to the batch: weights are gathered instead.
    Versions with such rules have a key that takes the axis from the batch.
    """
    own = run.get(_EXCHANGED)
    if own is not None and (own or not run.rules.is_later):
        return bool(own)
    return bool(run.rules.spec(("activation_exp", "activation_batch_no_exp"))[0])


def _routes(builder: Builder, layout: _Layout, sent: int, rows: int) -> None:
    """Adds the collectives of routed tokens: rows to their experts and back, and partial sums.

    `sent` and `rows` are elements per token. Backward reads the rows that came back from experts,
    so it repeats their way even if the results are kept, which lie with the experts.
    """
    run = builder.run
    kept = ((builder.key("wo"),),)
    size = run.itemsize
    for name in ("dispatch", "combine"):
        features = (sent, layout.width)
        builder.moves(name, RAGGED, RAGGED, layout.expert, features, itemsize=size)
    if layout.tensor:
        # The width lies along the axis between layers, the inner size of experts within them.
        width = run.width[0] if layout.is_sparse else rows
        builder.moves("input", GATHER, REDUCE, layout.tensor, (width, ()), itemsize=size)
        if not layout.is_sparse:
            # Both products have a gradient of their own; so have the weights of all slots.
            builder.moves("wi_1", None, REDUCE, layout.tensor, (width, ()), itemsize=size)
            slots = _scaled(layout.routed, run.size("max_target_length"))
            builder.moves("combine", None, SUM, layout.tensor, (slots, ()), itemsize=size)
        builder.moves("wo", REDUCE, GATHER, layout.tensor, (rows, ()), itemsize=size, kept_by=kept)


def _runs(run: Run, count: int, chosen: int) -> float:
    """Rows that the experts' matmuls compute per token."""
    capacity = run.get("capacity_factor")
    if run.flag("sparse_matmul"):
        return chosen
    if isinstance(capacity, bool) or not isinstance(capacity, (int, float)):
        raise UnmodelledError(f"capacity_factor is {capacity!r}")
    # Dense matmuls without dropped tokens compute every expert for every token.
    return count if capacity <= 0 else min(count, chosen * capacity)


def _slots(run: Run, count: int, chosen: int) -> int:
    """Slots of all experts for a sequence, each of which a mask multiplies with each token.

    `generate_masks` of `moe.py` of MaxText 0.2.5; 0 where no masks of slots are made.
    """
    capacity = run.get("capacity_factor")
    if run.flag("sparse_matmul") or capacity <= 0:
        return 0
    each = math.ceil(run.size("max_target_length") * chosen / count)
    return count * int(max(each * capacity, capacity))


def _scaled(runs: float, size: int) -> int:
    """Elements of `runs` rows of this size, rounded up."""
    return math.ceil(runs * size)
