"""The cause of a failure as one word, from the figures of a message and its allocations."""

from __future__ import annotations

from hlofast._messages.message import ON_CHIP, SCALAR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hlofast._messages.message import Message

CAUSES = {
    "padding": "tiles that small dimensions leave partly empty",
    "fragmentation": "free memory in blocks that are too small",
    "residuals": "values that loops keep for the backward pass",
    "gathered-weights": "weights that all-gathers collect in full",
    "logits": "logits over the vocabulary",
    "attention-scores": "attention scores of pairs of positions",
    "arguments": "arguments of the program: weights, optimizer state, inputs",
    "temporaries": "temporaries in total, without a dominant class",
    "vmem": "fast on-chip memory of a kernel, a fusion or a SparseCore program",
    "smem": "scalar memory, for indices and tables",
    "host": "the host's memory",
    "allocator": "arrays, programs or processes that hold the memory before the program runs",
    "too-many-programs": "several programs that do not fit the device together",
    "unknown": "the message does not say",
}
"""Causes, with their meaning."""
_OF_CLASS = {
    "residual": "residuals", "zero_stack": "temporaries", "gradient": "temporaries",
    "gathered_weight": "gathered-weights", "logits": "logits",
    "attention_scores": "attention-scores", "parameter": "arguments",
    "optimizer_state": "arguments", "kv_cache": "arguments",
}  # fmt: skip
_LEAST_SHARE = 1 / 3
"""Share of the listed bytes from which one class is the cause."""
_PADDED = 0.25
"""Share of padding in the temporaries from which padding is the cause."""
_BROKEN = 0.2
"""Share of fragmentation from which it is the cause."""
_SMALL = 1 << 30
"""A GPU program below this size does not fill any GPU by itself."""


def cause(message: Message, sums: Mapping[str, int]) -> tuple[str, str]:
    """Returns the cause, one of `CAUSES`, and the reason; `sums` are listed bytes by class."""
    space = message.space
    if message.stage == "report":
        return _of_classes(sums) or ("temporaries", "no class of values takes most of the memory")
    if why := _is_in_pieces(message):
        return "fragmentation", why
    if message.backend == "gpu" and {"limit", "in_use"} <= message.figures.keys():
        return _of_gpu(message, sums)  # The pool of an allocator, wherever it is.
    if space == "host" or message.backend == "cpu":
        return "host", "the memory of the host ran out, not that of a device"
    if space in ON_CHIP:
        return "vmem", f"the message names {space}"
    if space in SCALAR:
        return "smem", f"the message names {space}"
    if message.backend == "tpu" and message.stage in ("load", "run"):
        what = "the program compiled" if message.stage == "load" else "no program is compiled"
        return "allocator", f"{what}, but arrays and programs on the device left too little"
    if message.backend == "gpu":
        return _of_gpu(message, sums)
    return _of_compile(message, sums)


def _bytes(message: Message, name: str) -> int | None:
    figure = message.figures.get(name)
    return None if figure is None else figure.bytes


def _is_in_pieces(message: Message) -> str:
    """Why free memory is in pieces; empty if it is not, or if the message does not say."""
    requested, free = _bytes(message, "requested"), _bytes(message, "free")
    if requested is None:
        return ""
    if free is not None and free >= requested:
        return "more is free than requested, but not contiguous"
    limit, in_use = _bytes(message, "limit"), _bytes(message, "in_use")
    if message.backend == "gpu" and limit and in_use is not None and limit - in_use >= requested:
        return "the allocator's limit leaves more than was requested"
    return ""


def _of_gpu(message: Message, sums: Mapping[str, int]) -> tuple[str, str]:
    parts = {name: own for (_, name), own in message.parts.items() if own is not None}
    total = parts.get("total allocation")
    limit, in_use = _bytes(message, "limit"), _bytes(message, "in_use")
    requested = _bytes(message, "requested")
    if total is not None:
        broken = parts.get("total fragmentation")
        if broken is not None and broken.bytes > _BROKEN * total.bytes > 0:
            return "fragmentation", f"{broken.text} of {total.text} are gaps"
        if limit and total.bytes < limit // 2:
            return "allocator", f"the program takes {total.text}, less than half of the limit"
        if not limit and total.bytes < _SMALL:
            return "allocator", f"the program itself takes {total.text}"
        temporary = parts.get("preallocated temp allocation")
        parameter = parts.get("parameter allocation")
        if parameter is not None and 2 * parameter.bytes >= total.bytes:
            return "arguments", f"parameters are {parameter.text} of {total.text}"
        if found := _of_classes(sums):
            return found
        if temporary is not None and 2 * temporary.bytes >= total.bytes:
            return "temporaries", f"temporaries are {temporary.text} of {total.text}"
        return "temporaries", "no class of allocations takes most of the memory"
    if found := _of_classes(sums):
        return found
    is_bare = not message.figures and not (message.where or "").startswith("tensor ")
    if ("device" in message.figures and limit is None) or is_bare:
        return "allocator", "the driver has no memory left: this process or another one holds it"
    if requested is not None and limit and requested > limit:
        return "temporaries", "one allocation is larger than the allocator's limit"
    if limit and in_use is not None and in_use > limit // 2:
        return "allocator", "arrays of the process fill the allocator"
    if requested is not None or (message.where or "").startswith("tensor "):
        return "temporaries", "the message names one allocation and nothing else"
    return "unknown", "the message gives neither buffers nor the state of the allocator"


def _of_compile(message: Message, sums: Mapping[str, int]) -> tuple[str, str]:
    parts = message.parts
    space = message.space or "hbm"

    def part(account: str, name: str) -> int | None:
        own = parts.get((f"{account} {space}", name))
        return None if own is None else own.bytes

    missing = message.exceeded or 0
    temporary = part("requirement", "HLO temp")
    fragments = part("requirement", "HLO temp fragmentation")
    arguments, limit = part("usage", "arguments"), _bytes(message, "limit")
    program = part("usage", "program") or temporary or 0
    padding = padding_of(message)
    if arguments is not None and arguments >= max(program, 1):
        return "arguments", "arguments take more than the program's own memory"
    if arguments is not None and limit is not None and arguments > limit:
        return "arguments", "arguments alone exceed the memory"
    if temporary and fragments is not None:
        # Gaps whose end would not let the program fit are not the cause, whatever their share.
        if missing and fragments >= missing:
            return "fragmentation", "the gaps between temporaries are larger than what is missing"
        if not missing and fragments > _BROKEN * temporary:
            return "fragmentation", "gaps are over a fifth of the temporaries"
    basis = temporary or sum(sums.values())
    if padding is not None and basis and padding >= _PADDED * basis:
        return "padding", "padding is over a quarter of the temporaries"
    if found := _of_classes(sums):
        return found
    if not message.figures and not message.parts and not message.entries:
        return "unknown", "the message has no figures"
    if "sparsecore" in message.figures and "tensorcore" in message.figures:
        parts_ = message.figures["sparsecore"], message.figures["tensorcore"]
        larger = "SparseCore" if parts_[0].bytes > parts_[1].bytes else "TensorCore"
        return "temporaries", f"the {larger} takes most"
    return "temporaries", "no class of allocations takes most of the memory"


def padding_of(message: Message) -> int | None:
    """Bytes of padding: from the account of temporaries, or the sum of the listed; None if unknown.

    An account without padded sizes gives its utilisation, which counts gaps too.
    """
    space = message.space or "hbm"
    account = f"requirement {space}"
    padded = message.parts.get((account, "HLO temp padded"))
    unpadded = message.parts.get((account, "HLO temp unpadded"))
    listed = [own.padding for own in message.entries if own.padding is not None]
    if padded is not None and unpadded is not None:
        return max(padded.bytes - unpadded.bytes, 0)
    used = message.percents.get(f"{account}: utilization")
    temporary = message.parts.get((account, "HLO temp"))
    if used is not None and temporary is not None:
        fragments = message.parts.get((account, "HLO temp fragmentation"))
        gaps = 0 if fragments is None else fragments.bytes
        estimate = max(int(temporary.bytes * max(100 - used, 0) / 100) - gaps, 0)
        return max(estimate, sum(listed)) if listed else estimate
    return sum(listed) if listed else None


def _of_classes(sums: Mapping[str, int]) -> tuple[str, str] | None:
    """The cause that the classes of listed allocations tell; None if no class takes enough."""
    total = sum(sums.values())
    by_cause: dict[str, int] = {}
    for name, size in sums.items():
        if (word := _OF_CLASS.get(name)) is not None:
            by_cause[word] = by_cause.get(word, 0) + size
    if not by_cause or not total:
        return None
    word, size = max(by_cause.items(), key=_second)
    if size < _LEAST_SHARE * total:
        return None
    return word, f"{CAUSES[word]}: {100 * size / total:.0f} % of the listed bytes"


def _second(pair: tuple[str, int]) -> int:
    return pair[1]


def largest(messages: Sequence[Message]) -> int:
    """Returns the index of the message that tells most: the one with the most figures and entries.

    The last one, among equals: a program that is tried again fails for good at the end.
    """
    best, most = 0, (-1, -1, -1)
    for number, own in enumerate(messages):
        figures = len(own.parts) + len(own.figures)
        told = (min(figures, 1), min(len(own.entries), 1), figures)
        if told >= most:
            best, most = number, told
    return best
