"""What to change, with the bytes that each change concerns."""

from __future__ import annotations

import re

from hlofast._messages.amounts import written
from hlofast._messages.cause import padding_of
from hlofast._messages.classes import dimensions
from hlofast._messages.message import ON_CHIP, SCALAR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hlofast._messages.entries import Entry
    from hlofast._messages.message import Message

_LAYOUT = re.compile(r"\{([\d,]*):T\((\d+)(?:,(\d+))?\)")
_SHOWN = 3
_LEAST_SHARE = 0.05
"""Share of what is missing, or of the listed bytes, from which advice is given."""
_SCOPED_FLAG = "LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=KIB"


class Advice:
    """A change, the bytes it concerns, and the allocation or account they come from."""

    __slots__ = ("bytes", "code", "is_listed", "text")

    def __init__(self, code: str, text: str, size: int | None, *, is_listed: bool = False) -> None:
        self.code = code
        """The cause that the change removes, a word of `hlofast._messages.cause.CAUSES` or more."""
        self.text = text
        """What to change."""
        self.bytes = size
        """Bytes that the change affects: an upper bound of what it saves. None if unknown."""
        self.is_listed = is_listed
        """Whether the bytes are those of listed allocations alone, so that more may be saved."""


def advise(
    message: Message, classes: Sequence[tuple[str, str]], sums: Mapping[str, int], why: str
) -> list[Advice]:
    """Returns what to change, the advice for the cause `why` first."""
    found = [
        *_of_kind(message, why),
        *_of_classes(message, classes, sums),
        *_of_accounts(message, why),
    ]
    kept: list[Advice] = []
    for own in found:
        if all((own.code, own.text) != (other.code, other.text) for other in kept):
            kept.append(own)
    kept.sort(key=lambda own: own.code != why)
    return kept


def _of_kind(message: Message, why: str) -> Iterator[Advice]:
    missing = message.exceeded
    if message.where in ("SparseCore program", "embedding table"):
        yield Advice(
            "smem" if message.space in SCALAR else "vmem" if message.space in ON_CHIP else why,
            "give each SparseCore less work: a smaller batch, and max_ids_per_partition and "
            "max_unique_ids_per_partition no larger than the data needs; smaller scratch_shapes of "
            "a Pallas kernel; for collectives, "
            "--xla_tpu_enable_sparse_core_collective_offload_all_gather=false and "
            "--xla_tpu_enable_sparse_core_collective_offload_all_reduce=false",
            missing,
        )
        return
    if message.space == "vmem":
        named = message.where or next((own.name for own in message.entries if own.name), "")
        yield Advice(
            "vmem",
            f"reduce the block sizes, scratch shapes or unrolling of the kernel {named}".rstrip()
            + "; for a Pallas kernel, if the chip has free memory, raise vmem_limit_bytes in its "
            f"compiler parameters, or the limit of the compiler: {_SCOPED_FLAG}",
            missing,
        )
        return
    if message.space in SCALAR:
        yield Advice(
            "smem",
            "pass large index or page tables in HBM or VMEM instead of scalar prefetch, or split "
            "the call: fewer sequences, or fewer pages each",
            missing,
        )
        return
    if why == "host":
        yield Advice(
            "host",
            "create the array sharded on the devices (jax.jit with out_shardings, or "
            "jax.make_array_from_callback) instead of whole on the host; load checkpoints shard by "
            "shard; run fewer data loader processes",
            message.figures["requested"].bytes if "requested" in message.figures else missing,
        )
    if why == "allocator":
        yield from _of_device(message, missing)
    if why == "fragmentation":
        yield from _of_pieces(message)


def _of_device(message: Message, missing: int | None) -> Iterator[Advice]:
    what = "load the program" if message.stage == "load" else "take the allocation"
    yield Advice(
        "allocator",
        f"free memory on the device before it has to {what}: delete arrays that are kept alive "
        "(jax.live_arrays() lists them), donate the arguments (donate_argnums), and drop compiled "
        "programs that are not needed (jax.clear_caches())",
        missing,
    )
    if message.backend == "gpu":
        yield Advice(
            "allocator",
            "look for other processes on the GPU (nvidia-smi): each JAX process takes 75 % of it "
            "by default; set XLA_PYTHON_CLIENT_MEM_FRACTION or XLA_PYTHON_CLIENT_PREALLOCATE=false",
            missing,
        )


def _of_pieces(message: Message) -> Iterator[Advice]:
    figures = message.figures
    free = figures.get("free") or figures.get("available")
    pieces = None if free is None else free.bytes
    if "limit" in figures and "in_use" in figures:
        pieces = max(figures["limit"].bytes - figures["in_use"].bytes, 0)
    if message.backend == "gpu":
        text = (
            "allocate the large arrays that live long first; try another allocator: "
            "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async, TF_GPU_ALLOCATOR=cuda_malloc_async"
        )
    elif message.stage == "compile":
        text = (
            "limit large temporaries to few sizes and lifetimes: scan over layers instead of "
            "unrolling them, and checkpoint each layer"
        )
    else:
        text = (
            "allocate the large arrays first, and delete arrays in the reverse order; load all "
            "programs before the arrays"
        )
    yield Advice("fragmentation", text, pieces)


_TEXTS = {
    "residual": (
        "residuals",
        "keep fewer values for the backward pass: wrap the layer in jax.checkpoint with a policy "
        "that saves less (nothing_saveable, save_only_these_names), offload them to the host, or "
        "shard them along the sequence",
    ),
    "zero_stack": (
        "temporaries",
        "shard the stacked weights, so that their gradients are sharded too: a sharding constraint "
        "on the gradients inside the scanned layer keeps the accumulators at one device's part",
    ),
    "gradient": (
        "temporaries",
        "shard the gradients like the weights, and accumulate them in the type of the weights",
    ),
    "logits": (
        "logits",
        "compute the loss in chunks of tokens (jax.checkpoint over a scan), so that the scores of "
        "the whole batch never exist; shard the vocabulary dimension; keep the scores in bfloat16",
    ),
    "attention_scores": (
        "attention-scores",
        "use an attention that does not store scores: a flash attention kernel "
        "(jax.nn.dot_product_attention with implementation='cudnn', splash attention on TPU) or a "
        "scan over blocks of queries with jax.checkpoint",
    ),
    "gathered_weight": (
        "gathered-weights",
        "gather the weights inside the layer loop, one layer at a time, and do not keep them for "
        "the backward pass",
    ),
    "optimizer_state": (
        "arguments",
        "shard the optimizer state over all devices that hold copies (ZeRO), keep it in bfloat16, "
        "and donate it",
    ),
    "f32_copy": (
        "temporaries",
        "convert to float32 inside the loop over layers, or keep the array in bfloat16",
    ),
    "rng": (
        "temporaries",
        "generate random numbers layer by layer, or use the generator of the hardware "
        "(jax_default_prng_impl=unsafe_rbg), which needs no copies of its bits",
    ),
    "layout_copy": (
        "temporaries",
        "avoid the layout change: use the same order of dimensions in the producer and its users",
    ),
    "kv_cache": (
        "arguments",
        "store fewer or smaller pages: a shorter cache, int8 keys and values",
    ),
    "collective": (
        "temporaries",
        "keep the array sharded: give the operation before the collective the sharding of its "
        "result",
    ),
}
"""Advice by class of allocations: cause and text."""


def _of_classes(
    message: Message, classes: Sequence[tuple[str, str]], sums: Mapping[str, int]
) -> Iterator[Advice]:
    if message.space in ON_CHIP | SCALAR:
        return
    total = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda pair: -pair[1])
    for name, size in ordered:
        if name not in _TEXTS or not size or size < _LEAST_SHARE * total:
            continue
        code, text = _TEXTS[name]
        lines = sorted(
            {
                f"{own.source_file}:{own.source_line}"
                for own, (kind, _) in zip(message.entries, classes, strict=True)
                if kind == name and own.source_file is not None
            }
        )
        where = f" ({', '.join(lines[:_SHOWN])})" if lines else ""
        yield Advice(code, f"{text}{where}", size, is_listed=True)
    yield from _of_padding(message)


def _of_padding(message: Message) -> Iterator[Advice]:
    padding = padding_of(message)
    if not padding:
        return
    listed = sorted(
        (own for own in message.entries if own.padding), key=lambda own: -(own.padding or 0)
    )
    least = _LEAST_SHARE * (message.exceeded or padding)
    for own in listed[:_SHOWN]:
        if (own.padding or 0) < least:
            continue
        yield Advice("padding", _padded(own), own.padding, is_listed=True)
    if not listed:
        yield Advice(
            "padding",
            "choose dimensions that fill the tiles: multiples of 128 in the minor dimension, of 8 "
            "(bfloat16: 16) in the one before",
            padding,
        )


def _padded(entry: Entry) -> str:
    """Which dimensions of an allocation are padded, and what to change."""
    name = entry.name or entry.op_name or "an allocation"
    sizes = dimensions(entry.shape)
    found = _LAYOUT.search(entry.shape or "")
    start = f"{name}, {entry.shape}: " if entry.shape else f"{name}: "
    if found is None or not sizes:
        return f"{start}reshape it so that its minor dimensions fill the tiles of 8 × 128"
    order = [int(own) for own in found[1].split(",") if own]
    tile = [int(own) for own in (found[3], found[2]) if own is not None]  # Minor first.
    parts = []
    for place, length in zip(order, tile, strict=False):
        if place < len(sizes) and sizes[place] % length:
            up = -(-sizes[place] // length) * length
            parts.append(f"dimension {place} of size {sizes[place]} takes {up}")
    what = ", ".join(parts) or "its minor dimensions leave the tiles partly empty"
    return (
        f"{start}{what}; fold the small dimension into another one, choose sizes that are "
        "multiples of the tile, or make a large dimension the minor one"
    )


def _of_accounts(message: Message, why: str) -> Iterator[Advice]:
    space = message.space or "hbm"
    if space not in ("hbm", "gpu") or why == "allocator":
        return
    parts = message.parts
    arguments = parts.get((f"usage {space}", "arguments")) or parts.get(
        ("buffer assignment", "parameter allocation")
    )
    output = message.figures.get("output") or parts.get(
        ("buffer assignment", "maybe_live_out allocation")
    )
    shared = message.figures.get("output_shared")
    missing = message.exceeded
    basis = missing or max((own.bytes for own in message.figures.values()), default=0)
    least = _LEAST_SHARE * (basis or 1)
    if arguments is not None and output is not None and shared is not None:
        free = min(output.bytes - shared.bytes, arguments.bytes)
        if free > least:
            yield Advice(
                "arguments",
                "donate arguments that a result replaces (donate_argnums): "
                f"{output.text} of results share {shared.text} with arguments",
                free,
            )
    if arguments is not None and arguments.bytes > max(least, 1):
        yield Advice(
            "arguments",
            "shard weights and optimizer state over more devices, or keep them in a smaller type; "
            "offload the optimizer state to the host",
            arguments.bytes,
        )
    if message.stage == "compile" or message.backend == "gpu":
        temporary = parts.get((f"requirement {space}", "HLO temp")) or parts.get(
            ("buffer assignment", "preallocated temp allocation")
        )
        if temporary is not None and missing and 0 < missing < temporary.bytes:
            left = 100 * (temporary.bytes - missing) / temporary.bytes
            yield Advice(
                "temporaries",
                f"reduce the batch or sequence of one device: {written(missing)} of the "
                f"{temporary.text} of temporaries have to go, {left:.0f} % may stay; more "
                "micro-batches keep the global batch",
                missing,
            )
        elif missing and "used" in message.figures:
            yield Advice(
                "temporaries",
                "reduce the batch or sequence of one device, or checkpoint the layers: "
                f"{written(missing)} of {message.figures['used'].text} have to go",
                missing,
            )
    if "sparsecore" in message.figures:
        yield Advice(
            "temporaries",
            "reduce the SparseCore's stack: max_unique_nz_per_row, feature width, or "
            "--xla_sc_num_serialized_tables_to_optimize_hbm",
            message.figures["sparsecore"].bytes,
        )
    if "rematerialized_to" in message.figures:
        own = message.figures["rematerialized_to"]
        yield Advice(
            "temporaries",
            f"XLA's own rematerialisation stopped at {written(own.bytes)}: choose what to "
            "recompute with jax.checkpoint (hlofast remat --plan DUMP lists candidates)",
            own.bytes,
        )
