"""What a listed allocation is, as far as its operation, opcode, shape and label tell."""

from __future__ import annotations

import re

from hlofast._messages.entries import SHAPE
from hlofast._messages.message import ON_CHIP, SCALAR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hlofast._messages.entries import Entry

CLASSES = {
    "parameter": "an argument of the program: weights, inputs",
    "optimizer_state": "state of the optimizer, or a temporary of its update",
    "gathered_weight": "an array that an all-gather collects in full",
    "collective": "the result of another collective",
    "residual": "values of all iterations of a loop over layers, kept for the backward pass",
    "zero_stack": "gradients of all layers, initialised with zeros for a backward loop to add to",
    "gradient": "gradients that a backward loop collects for all layers",
    "logits": "logits over the vocabulary for every token",
    "attention_scores": "attention scores of every pair of positions",
    "kv_cache": "keys and values of earlier tokens",
    "f32_copy": "a copy in float32",
    "layout_copy": "a copy in another layout",
    "rng": "random bits and numbers made of them",
    "scoped": "scratch memory of one kernel or fusion",
    "padding": "unidentified; more than half of it is padding",
    "output": "a result of the program",
    "constant": "a constant of the program",
    "temporary": "a temporary of a named operation",
    "unknown": "unidentified",
}
"""Classes of allocations, with their meaning."""

# Vocabulary sizes of published tokenizers, and these rounded up to multiples of 64 and 128.
_VOCABULARIES = frozenset(
    (
        "21128 28996 30522 30592 31999 32000 32001 32064 32100 32128 32256 36864 49152 49155 "
        "49280 50257 50265 50272 50280 50304 50400 50432 51200 51865 51968 64000 64256 64512 "
        "65024 65536 92544 92672 100256 100277 100352 102400 119547 125696 126464 128000 128256 "
        "129280 131072 151643 151646 151665 151851 151936 152064 155136 200064 201088 202048 "
        "248320 250002 250112 250624 250880 256000 256128 256206 256256 256512 257152 257216 "
        "262144 262208 262400"
    ).split()
)
_OPTIMIZER = re.compile(
    r"opt_?state|optimi[sz]er|adam|adafactor|momentum|\b[mn]u\b|scale_by_|apply_updates|lion\b|"
    r"shampoo|\bema\b|learner",
    re.IGNORECASE,
)
_RANDOM = re.compile(
    r"threefry|random_bits|rng[_-]|_bernoulli|_uniform\b|_normal\b|truncated_normal|/dropout|"
    r"random_gamma|shuffle|random_wrap",
    re.IGNORECASE,
)
_LOGITS = re.compile(
    r"logit|lm_?head|unembed|vocab|cross_?entropy|log_softmax|logsumexp|one_hot|embed\w{0,20}/attend|"
    r"attend\b|\bxent|softmax_xent|output_projection|classifier",
    re.IGNORECASE,
)
_ATTENTION = re.compile(
    r"attention|attn|softmax|\bmha\b|dot_product|multihead|->[.\w]{0,8}(?:qk|ts|ij|qs|ks)\b", re.I
)
# Einsums whose result has a dimension per query and one per key.
_SCORES = re.compile(
    r"->[.\w]{0,8}(?:hqk|nts|hts|gts|hij|qk|hqs|gqk|hst|kgts|kgqs|htT|hlm)\b|qk_einsum|scores"
)
_LOOP = re.compile(r"while|scan|/body|ckpt_scan|remat_scan|layer_stack|Stacked")
_CACHE = re.compile(r"kv_?cache|cached_(?:key|value)|/cache\b", re.IGNORECASE)
_UPDATE = re.compile(r"dynamic[_-]update[_-]slice|dynamic_update_index|scatter")
_COLLECTIVE = re.compile(
    r"^(?:all-reduce|all-to-all|reduce-scatter|collective-permute|ragged-all-to-all)"
)
# TPU programs allocate the stacks of loops with custom calls that take and compute nothing.
_EMPTY = re.compile(r'custom-call\(\)|"AllocateBuffer"')
_SHAPES = re.compile(SHAPE)
_PARAMETERS = re.compile(r"\[\w{1,40}=")
_LONG = 1024
_LEAST_SCORES = 256
"""Positions from which a pair of equal dimensions counts as scores: shorter ones are heads."""


def dimensions(shape: str | None) -> tuple[int, ...]:
    """Returns the sizes of an array shape; empty without any."""
    if shape is None or "[" not in shape or shape.startswith("("):
        return ()
    inside = shape[shape.index("[") + 1 :].partition("]")[0]
    sizes = [part.strip().removeprefix("<=") for part in inside.split(",")]
    return tuple(int(own) for own in sizes if own.isdecimal() and len(own) < 16)


def element_type(shape: str | None) -> str:
    """Returns the element type of an array shape; empty without one."""
    return "" if shape is None or shape.startswith("(") else shape.partition("[")[0]


def without_parameters(op_name: str) -> str:
    """Returns an operation name without the parameters of its primitive: `…/dot_general[…]`."""
    found = _PARAMETERS.search(op_name)
    return op_name[: found.start()] if found is not None and op_name.endswith("]") else op_name


def shapes_of(entries: Iterable[Entry]) -> frozenset[tuple[int, ...]]:
    """Returns the sizes of all arrays that entries name, those of shared places too."""
    found = {dimensions(own.shape) for own in entries}
    for own in entries:
        if own.values is not None:
            found |= {dimensions(text) for text in _SHAPES.findall((own.label or "")[:2000])}
    return frozenset(found)


def classify(
    entry: Entry,
    phase: str | None,
    space: str | None,
    shapes: frozenset[tuple[int, ...]] = frozenset(),
) -> tuple[str, str]:
    """Returns the class of an allocation and the reason, one of `CLASSES`.

    `phase` is that of its operation name, `space` the memory that ran out, `shapes` the sizes of
    all listed arrays (`shapes_of`).
    """
    name = entry.op_name or ""
    operation = without_parameters(name)
    last = operation.rpartition("/")[2]
    sizes, kind = dimensions(entry.shape), element_type(entry.shape)
    label, opcode, own = entry.label or "", entry.opcode or "", entry.name or ""
    if entry.allocation_type in ("scoped", "stack") or (space in ON_CHIP | SCALAR and not name):
        return "scoped", "scoped memory" if entry.tag is None else entry.tag.partition(". ")[0]
    kind_of_file = entry.allocation_type
    if kind_of_file in ("parameter", "output", "constant"):
        return kind_of_file, f"the file calls it {kind_of_file}"
    is_backward = phase == "backward" or "transpose(" in operation
    if entry.is_parameter or opcode == "parameter":
        if _OPTIMIZER.search(operation):
            return "optimizer_state", f"a parameter named {_short(operation)}"
        return "parameter", "a parameter of the entry computation"
    if opcode.startswith("rng") or "rng-bit-generator" in label or _RANDOM.search(operation):
        is_named = _RANDOM.search(operation)
        return "rng", _short(last) if is_named else "rng-bit-generator in the label"
    if opcode.startswith("all-gather") or own.startswith("all-gather") or last == "all_gather":
        return "gathered_weight", "the result of an all-gather"
    if _COLLECTIVE.match(opcode) or _COLLECTIVE.match(own):
        return "collective", f"the result of {opcode or own}"
    if opcode == "custom-call" and len(sizes) >= 3 and _EMPTY.search(label):
        return "residual", f"an empty stack of {sizes[0]}, which a loop fills"
    is_filled = opcode == "broadcast" or last in ("broadcast_in_dim", "full", "zeros_like")
    is_in_loop = bool(_LOOP.search(operation))
    if is_filled and len(sizes) >= 2 and (is_in_loop or is_backward):
        if is_backward:
            return "zero_stack", f"{sizes[0]} × one value, broadcast in the backward pass"
        return "residual", f"a stack of {sizes[0]}, filled before a loop of the forward pass"
    is_square = _pairs(sizes) and _ATTENTION.search(operation) is not None
    if len(sizes) >= 4 and sizes[-1] == sizes[-2] >= _LONG and "conv" not in operation:
        is_square = True  # Images of this size have channels in their last dimension on TPU.
    if (_SCORES.search(operation) and len(sizes) >= 2) or is_square:
        return "attention_scores", f"{_short(operation)} of shape {list(sizes)}"
    if is_logits := _logits(operation, sizes, kind):
        return "logits", is_logits
    if _CACHE.search(operation):
        return "kv_cache", f"named {_short(operation)}"
    if (last.startswith("convert_element_type") or opcode == "convert") and kind == "f32":
        return "f32_copy", "a conversion to f32"
    if not operation and len(sizes) >= 4:
        if sizes[-1] == sizes[-2] >= _LEAST_SCORES:
            return "attention_scores", f"{sizes[-2]} × {sizes[-1]} values for each of {sizes[:-2]}"
        if sizes[1:] in shapes:
            return "residual", f"{sizes[0]} times an array that is listed by itself: a loop's stack"
    return _of_loops(entry, operation, sizes, is_backward=is_backward, is_in_loop=is_in_loop)


def _of_loops(
    entry: Entry, operation: str, sizes: Sequence[int], *, is_backward: bool, is_in_loop: bool
) -> tuple[str, str]:
    """The classes that loops and opcodes tell, and the rest."""
    opcode, own = entry.opcode or "", entry.name or ""
    updates = _UPDATE.search(operation.rpartition("/")[2]) or "dynamic-update-slice" in (
        f"{opcode} {own}"
    )
    is_stack = len(sizes) >= 3 and sizes[0] > 1
    if updates and is_stack and (is_in_loop or not operation):
        if is_backward:
            return "gradient", f"a stack of {sizes[0]}, written in a backward loop"
        return "residual", f"a stack of {sizes[0]}, written in a loop"
    if opcode in ("while", "get-tuple-element", "tuple") and is_stack:
        return "residual", f"a stack of {sizes[0]} that a loop carries"
    if _OPTIMIZER.search(operation):
        return "optimizer_state", f"an operation of the optimizer: {_short(operation)}"
    if opcode in ("copy", "copy-start", "transpose"):
        return "layout_copy", f"the result of {opcode}"
    size, padding = entry.size, entry.padding
    if not operation and size is not None and padding is not None and 2 * padding > size.bytes:
        return "padding", "more than half of it is padding"
    if operation:
        when = "backward" if is_backward else "forward"
        return "temporary", f"{_short(operation)}, {when} pass"
    if entry.opcode is not None:
        return "temporary", f"the result of {entry.opcode}"
    return "unknown", "the message gives no operation and no opcode"


def _logits(operation: str, sizes: Sequence[int], kind: str) -> str:
    """Why an array is logits; empty if nothing tells so. Integers are indices."""
    if len(sizes) < 2 or kind.startswith(("s", "u")):
        return ""
    if str(sizes[-1]) in _VOCABULARIES and max(sizes[:-1]) > 1:
        return f"its last dimension is {sizes[-1]}, the size of a vocabulary"
    if _LOGITS.search(operation) and sizes[-1] >= 4096:
        return f"{_short(operation)} with {sizes[-1]:,} values per token"
    return ""


def _pairs(sizes: Sequence[int]) -> bool:
    """Whether two dimensions have the same size, that of positions."""
    long = [size for size in sizes if size >= _LEAST_SCORES]
    return len(set(long)) < len(long)


def _short(name: str) -> str:
    parts = name.split("/")
    text = "/".join(parts[-2:])
    return text if len(text) <= 60 else f"…{text[-59:]}"
