"""Checkpoint policies as code: of JAX, or in the spelling of the trainer that the text shows.

The names that AXLearn and MaxText give to values are facts of those projects, from
`axlearn/common/attention.py` (`_remat_name`) and MaxText's `configs/base.yml` (`remat_policy`).
"""

from __future__ import annotations

import re

from hlofast._text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hlofast._module import Module
    from hlofast._policy import Policy

    Row = dict[str, Any]

_PREFIX = "jax.checkpoint_policies."
_STEPS = frozenset(
    ("while", "body", "cond", "closed_call", "eval_jaxpr", "checkpoint", "rematted_computation")
)
"""Components of operation names that do not name a scope of the program."""
_AXLEARN = re.compile(r"\[(?:Repeated|Stacked)?Transformer\w*Layer\]")
"""AXLearn's scopes name the module and its class: `layer[TransformerLayer]`."""
_AXLEARN_NAMES = (
    (re.compile(r"/i_proj\["), "[qkv]_proj"),
    (re.compile(r"/([qkv])_proj\["), r"\1_proj"),
    (re.compile(r"/o_proj\["), "o_proj"),
    (re.compile(r"/(linear1_[01])\["), r"\1"),
    (re.compile(r"/linear1\["), "linear1_0"),
    (re.compile(r"/linear2\["), "linear2"),
)
"""Scopes of AXLearn's layers, and the ends of the names that the layers give to their results."""
_SCANNED = (
    "layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)",
    "x, _ = jax.lax.scan(layer, x, weights)",
)
_UNROLLED = (
    "layer = jax.checkpoint(layer, policy=policy)",
    "for weights in layers:",
    "    x = layer(x, weights)",
)
"""How a program applies a policy to its layers. Without a loop the barriers of `prevent_cse` are
needed: otherwise XLA finds that recomputed values are there already."""
_FLAX_FILE = re.compile(r"(?:^|/)flax/(linen|nnx)/")
_FLAX: dict[tuple[str, bool], tuple[str, ...]] = {
    ("linen", True): (
        "Layer = nn.remat(Layer, policy=policy, prevent_cse=False)  # inside nn.scan",
    ),
    ("linen", False): ("Layer = nn.remat(Layer, policy=policy)",),
    ("nnx", True): (
        "layer = nnx.remat(layer, policy=policy, prevent_cse=False)  # inside nnx.scan",
    ),
    ("nnx", False): ("layer = nnx.remat(layer, policy=policy)",),
}
"""The same in Flax, by its interface and whether a loop runs the layers (`flax.linen.remat`,
`flax.nnx.remat`)."""
_MAXTEXT = re.compile(r"(?:^|/)maxtext/(?:\w+/)*[\w.]+$", re.IGNORECASE)
_MAXTEXT_INPUT = "decoder_layer_input"
_MAXTEXT_FUNCTIONS = {
    "query_projection": ("query_proj",),
    "kv_projection": ("key_proj", "value_proj"),
    "qkv_projection": ("qkv_proj",),
    "out_projection": ("out_proj",),
    "wv_product": ("context",),
}
"""Functions of MaxText's attention, and the keys of the results of their calls, in this order."""
_MOST_APART = 64
"""Limit on the values of a line whose call stacks are compared with each other."""
INPUT = "layer_input"
"""The name of what a layer gets from the layer before."""


def value_names(rows: Sequence[Row]) -> list[str]:
    """A distinct name for each value of `Policies.savable`: its scope or file, and its line."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    counts: dict[str, int] = {}
    # Matmuls, which a policy saves first, get the names without a number.
    for at in sorted(range(len(rows)), key=lambda at: rows[at]["kind"] == "other"):
        row = rows[at]
        # AXLearn's scopes name a module and its class: `o_proj[Linear]`.
        parts = [part.partition("[")[0] for part in (row["op_name"] or "").split("/")[:-1]]
        scope = [part for part in parts if part.isidentifier() and part not in _STEPS]
        base = "_".join(scope[-2:]) or _stem(row)
        line = f"_{row['source_line']}" if row["source_line"] else ""
        if row["kind"] == "input":
            base, line = INPUT, ""
        name = base + line
        while name in taken:
            counts[base + line] = counts.get(base + line, 1) + 1
            name = f"{base}{line}_{counts[base + line]}"
        taken.add(name)
        names[at] = name
    return [names[at] for at in range(len(rows))]


def code(policy: Policy) -> str:
    """The code of a policy, in the spelling of the trainer if the text shows which one it is."""
    rows = policy._policies.savable.to_pylist()
    lines = _maxtext(policy, rows) or _axlearn(policy, rows)
    if lines is None:
        usage: tuple[str, ...] = _SCANNED if policy._policies.is_scanned else _UNROLLED
        library = next(filter(None, map(_flax, rows)), None)
        if library is not None:
            usage = _FLAX[library, policy._policies.is_scanned]
        lines = [*_jax(policy, rows), *usage]
    return "\n".join(lines)


def _flax(row: Row) -> str | None:
    """The interface of Flax in which a value's line lies: `linen` or `nnx`; None for others."""
    found = _FLAX_FILE.search(row["source_file"] or "")
    return None if found is None else found[1]


def _jax(policy: Policy, rows: Sequence[Row]) -> list[str]:
    """A policy of JAX if it keeps the same values, otherwise names of values."""
    lines: list[str] = []
    if policy.built_in is not None:
        call = f"policy = {_PREFIX}{policy.built_in}"
    else:
        named = _named(policy, rows)
        lines.append("from jax.ad_checkpoint import checkpoint_name")
        for name, place in dict(named).items():
            lines.append(f'x = checkpoint_name(x, "{name}")  # {place}')
        kept, moved = _parted(policy, [name for name, _ in named])
        if moved:
            call = (
                f"policy = {_PREFIX}save_and_offload_only_these_names("
                f"names_which_can_be_saved={kept}, names_which_can_be_offloaded={moved}, "
                'offload_src="device", offload_dst="pinned_host")'
            )
        else:
            call = f"policy = {_PREFIX}save_only_these_names({', '.join(map(repr, kept))})"
    return [*lines, call]


def of_lines(rows: Sequence[Row], taken: Sequence[str]) -> dict[str, list[int]]:
    """The rows of the matmuls and kernels of a line that has several, by a name for all of them.

    A line has several if it computes several values, or if it is called several times. A line gets
    no name if another line would get the same, or a value has it: `taken` are the `value_names`.
    """
    named: dict[str, list[list[int]]] = {}
    for own in _lines(rows):
        row = rows[own[0]]
        named.setdefault(f"{_stem(row)}_line_{row['source_line']}", []).append(own)
    known = set(taken)
    return {name: own[0] for name, own in named.items() if len(own) == 1 and name not in known}


def _lines(rows: Sequence[Row]) -> list[list[int]]:
    """The rows of each line with several matmuls and kernels."""
    found: dict[tuple[str, int], list[int]] = {}
    for at, row in enumerate(rows):
        if row["kind"] not in ("input", "other") and row["source_file"] and row["source_line"]:
            found.setdefault((row["source_file"], row["source_line"]), []).append(at)
    return [own for own in found.values() if len(own) > 1]


def _stem(row: Row) -> str:
    """The name of a value's file, if it can be part of a name."""
    stem: str = (row["source_file"] or "").rpartition("/")[2].partition(".")[0]
    return stem if stem.isidentifier() else "value"


def _named(policy: Policy, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """By value that the policy keeps: its name, and the place where the name is given."""
    every, shared = value_names(rows), {}
    for name, own in of_lines(rows, every).items():
        if len({policy.fates[at] for at in own}) == 1:
            shared.update(dict.fromkeys(own, (name, own)))
    apart: dict[int, str] = {}
    for own in _lines(rows):
        if own[0] not in shared:
            apart |= _apart(policy._policies.module, rows, own)
    named = []
    for at in policy.saved_numbers:
        row = rows[at]
        if row["kind"] == "input":
            named.append((every[at], "before anything in the layer reads its input"))
        elif at in shared:
            name, own = shared[at]
            place = f"{_place(rows[own[0]])}, each of the {len(own)} results of this line"
            named.append((name, place))
        else:
            which = f", {apart[at]}" if at in apart else ""
            named.append((every[at], _place(row) + which))
    return named


def _apart(module: Module, rows: Sequence[Row], line: Sequence[int]) -> dict[int, str]:
    """What tells each value of a line from the others: the calls around it, or the order."""
    known = {at: _frames(module, rows[at]) for at in line[:_MOST_APART]}
    found = {}
    for number, at in enumerate(line, 1):
        found[at] = f"result {number} of the {len(line)} of this line, in the order of execution"
        if len(line) > _MOST_APART:
            continue
        own, depths = known[at], set()
        for other in known.keys() - {at}:
            pairs = enumerate(zip(own, known[other], strict=False))
            depths.add(next((depth for depth, (here, there) in pairs if here != there), -1))
        if -1 not in depths:
            # Frames are innermost first; those below the line's own are in libraries.
            place = f"{rows[at]['source_file']}:{rows[at]['source_line']}"
            line_depth = own.index(place) if place in own else 0
            outer = [own[depth] for depth in sorted(depths) if depth > line_depth]
            inner = [own[depth] for depth in sorted(depths) if depth <= line_depth]
            words = [("computed at ", inner), ("in the call from ", outer)]
            told = [head + ", ".join(places) for head, places in words if places]
            found[at] = printable(" ".join(told))
    return found


def _frames(module: Module, row: Row) -> list[str]:
    """The call stack of a value, innermost first, as FILE:LINE."""
    metadata = module[row["instruction"]].metadata
    frames = () if metadata is None else metadata.stack_frames
    return [f"{frame.file}:{frame.line}" for frame in frames]


def _place(row: Row) -> str:
    # Names of files come from the dump: a line break in one must not become code.
    if row["source_file"]:
        return printable(f"{row['shape']}  {row['source_file']}:{row['source_line']}")
    return printable(f"{row['shape']}  result of {row['name']}, for which the text has no line")


def _parted(policy: Policy, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of values that are saved, and of those that are moved to host memory."""
    moved = [policy.is_offloaded(at) for at in policy.saved_numbers]
    pairs = list(zip(names, moved, strict=True))
    return (
        list(dict.fromkeys(name for name, is_moved in pairs if not is_moved)),
        list(dict.fromkeys(name for name, is_moved in pairs if is_moved)),
    )


def _axlearn(policy: Policy, rows: Sequence[Row]) -> list[str] | None:
    """A `RematSpec` of AXLearn; None if the text shows no AXLearn or a value has no name there."""
    if not any(_AXLEARN.search(row["op_name"] or "") for row in rows):
        return None
    # AXLearn has no name of its own for what a layer gets.
    named = [rows[at] for at in policy.saved_numbers if rows[at]["kind"] != "input"]
    names = [_axlearn_name(row["op_name"] or "") for row in named]
    if None in names or len(named) < len(policy.saved_numbers):
        return None
    if not names:
        policy_of = "jax_remat_policies.nothing_saveable"
        return [f"layer_cfg.remat_spec = RematSpec(prevent_cse=False, policy={policy_of})"]
    kept, moved = (
        None if not own else "|".join(f".*{name}" for name in own)
        for own in _parted(policy, [str(name) for name in names])
    )
    return [
        "layer_cfg.remat_spec = RematSpec(",
        "    prevent_cse=False,",
        "    policy=config_for_function(save_and_offload_only_these_names_regex).set(",
        f"        names_which_can_be_saved={kept!r},",
        f"        names_which_can_be_offloaded={moved!r},",
        '        offload_src="device",',
        '        offload_dst="pinned_host",',
        "    ),",
        ")",
    ]


def _axlearn_name(path: str) -> str | None:
    """The end of the name that AXLearn gives to the result of a layer."""
    for scope, name in _AXLEARN_NAMES:
        if found := scope.search(path):
            return found.expand(name)
    return None


def _maxtext(policy: Policy, rows: Sequence[Row]) -> list[str] | None:
    """Keys of a MaxText config; None if the text shows no MaxText or a value has no key there."""
    if not any(_MAXTEXT.search(row["source_file"] or "") for row in rows):
        return None
    keys = _maxtext_keys(policy._policies.module, rows)
    names = [keys.get(at) for at in policy.saved_numbers]
    if None in names:
        return None
    if not names:
        return ["remat_policy: 'full'"]
    kept, moved = _parted(policy, [str(name) for name in names])
    if set(kept) & set(moved):
        return None
    lines = ["remat_policy: 'custom'"]
    if _MAXTEXT_INPUT not in moved:
        lines.append(f"{_MAXTEXT_INPUT}: 'device'")
    lines += [f"{name}: 'device'" for name in kept]
    return lines + [f"{name}: 'offload'" for name in moved]


def _maxtext_keys(module: Module, rows: Sequence[Row]) -> dict[int, str]:
    """By row of `savable`: the key of a value in MaxText's config, known by the call stack."""
    keys: dict[int, str] = {}
    places: dict[str, dict[tuple[int, ...], list[int]]] = {}
    for at, row in enumerate(rows):
        if row["kind"] == "input":
            keys[at] = _MAXTEXT_INPUT
        if not row["kind"].endswith("matmul"):
            continue
        metadata = module[row["instruction"]].metadata
        frames = () if metadata is None else metadata.stack_frames
        for depth, frame in enumerate(frames):
            name = frame.function.rpartition(".")[2]
            name = "mlp" if frame.function.endswith("MlpBlock.__call__") else name
            if name in _MAXTEXT_FUNCTIONS or name == "mlp":
                caller = frames[depth + 1].line if depth + 1 < len(frames) else 0
                place = (frame.line,) if name == "mlp" else (caller, frame.line)
                places.setdefault(name, {}).setdefault(place, []).append(at)
                break
    for name, calls in places.items():
        order = sorted(calls)
        for number, call in enumerate(order):
            found = calls[call]
            if name == "mlp":
                # One line applies the first matrices one after another, another the last matrix.
                is_last = number > 0 and number == len(order) - 1
                first = ["mlpwi"] if len(found) == 1 else ["mlpwi_0", "mlpwi_1"]
                names = ["mlpwo"] if is_last else first
            elif len(order) == len(_MAXTEXT_FUNCTIONS[name]):
                names = [_MAXTEXT_FUNCTIONS[name][number]] * len(found)
            else:
                continue
            keys.update(zip(found, names, strict=False))
    return keys
