"""Checkpoint policies as code: of JAX, or in the spelling of the trainer that the text shows.

The names that AXLearn and MaxText give to values are facts of those projects, from
`attention.py` (`_remat_name`) and `flash_attention/tpu_attention.py` in `axlearn/common`, and
MaxText's `configs/base.yml` (`remat_policy`) and `layers/attention_op.py`.
"""

from __future__ import annotations

import re

from hlofast import _policy_units
from hlofast._text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from hlofast._module import Module
    from hlofast._policies import Policies
    from hlofast._policy import Policy

    Row = dict[str, Any]

_PREFIX = "jax.checkpoint_policies."
_STEPS = frozenset(
    (
        "while", "body", "cond", "closed_call", "eval_jaxpr", "checkpoint",
        "rematted_computation", "shard_map",
    )
)  # fmt: skip
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
_AXLEARN_KERNEL = "flash_residuals"
"""The end of the name of what AXLearn's attention kernels keep for their backward pass."""
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
_OVER_TIME = (
    "step = jax.checkpoint(step, policy=policy, prevent_cse=False)  # one {iteration}",
    "carry, results = jax.lax.scan(step, carry, inputs)",
)
"""How a program applies a policy to a scan over time or over the ticks of a pipeline."""
_IN_GROUPS = "# for the layers of a group; the jax.checkpoint around the group stays as it is"
_SEVERAL = "# for the layers of each of the {stacks} scans"
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
_MAXTEXT_KERNEL = "context"
"""The key of the results of attention: MaxText gives it to the kernel itself."""
_MAXTEXT_FUNCTIONS = {
    "query_projection": ("query_proj",),
    "kv_projection": ("key_proj", "value_proj"),
    "qkv_projection": ("qkv_proj",),
    "out_projection": ("out_proj",),
    "wv_product": ("context",),
}
"""Functions of MaxText's attention, and the keys of the results of their calls, in this order."""
_SPLASH = re.compile(r"(?:^|/)(splash_m[hq]a)_")
"""JAX's splash attention, which names its results itself: `splash_attention_kernel.py`."""
_PRIMITIVES = {"pallas_call": ("pallas_call", "custom_vjp_call")}
"""What a policy sees of a kernel, by the end of its operation name. The forward pass of JAX's flash
attention calls a function with a backward pass of its own, which a policy sees as one call
(`flash_attention.py`)."""
_TRANSFORMED = re.compile(r"\w+\((.*)\)")
"""A scope under one of JAX's transformations: `jvp(bd,df->bf)`."""
_NUMBERED = re.compile(r"[A-Z][A-Za-z0-9_]*_\d+")
"""The name that Flax gives to a module of a class."""
_MOST_APART = 64
"""Limit on the values of a line whose call stacks are compared with each other."""
INPUT = "layer_input"
"""The name of what a layer gets from the layer before."""


def value_names(rows: Sequence[Row]) -> list[str]:
    """A name for each value of `Policies.savable`: its scope or file, and its line.

    All results of a kernel have the same name: they are kept together. All other names differ.
    """
    names: dict[int, str] = {}
    taken: set[str] = set()
    counts: dict[str, int] = {}
    kernels: dict[int, str] = {}
    # Matmuls, which a policy saves first, get the names without a number.
    for at in sorted(range(len(rows)), key=lambda at: rows[at]["kind"] == "other"):
        row = rows[at]
        is_kernel = row["kind"] == "kernel"
        if is_kernel and row["instruction"] in kernels:
            names[at] = kernels[row["instruction"]]
            continue
        # AXLearn's scopes name a module and its class: `o_proj[Linear]`.
        parts = [part.partition("[")[0] for part in (row["op_name"] or "").split("/")[:-1]]
        scope = [part for part in parts if part.isidentifier() and part not in _STEPS]
        # A name reaches the value in all layers, also in those that Flax numbers: `Bottleneck_3`.
        scope[:-1] = [
            part.rpartition("_")[0] if _NUMBERED.fullmatch(part) else part for part in scope[:-1]
        ]
        base = "_".join(dict.fromkeys(scope[-2:])) or _stem(row)
        line = f"_{row['source_line']}" if row["source_line"] else ""
        if row["kind"] == "input":
            base, line = INPUT, ""
        name = base + line
        while name in taken:
            counts[base + line] = counts.get(base + line, 1) + 1
            name = f"{base}{line}_{counts[base + line]}"
        taken.add(name)
        names[at] = name
        if is_kernel:
            kernels[row["instruction"]] = name
    return [names[at] for at in range(len(rows))]


def shown_names(module: Module, rows: Sequence[Row]) -> list[str]:
    """The name of each value, as the trainer calls it where the text shows that."""
    names = value_names(rows)
    known = {at: name for at, row in enumerate(rows) if (name := _axlearn_name(row))}
    if _is_maxtext(rows):
        known = _maxtext_keys(module, rows)
    elif not _is_axlearn(rows):
        known = {}
    return [known.get(at, name) for at, name in enumerate(names)]


def _is_axlearn(rows: Sequence[Row]) -> bool:
    return any(_AXLEARN.search(row["op_name"] or "") for row in rows)


def _is_maxtext(rows: Sequence[Row]) -> bool:
    return any(_MAXTEXT.search(row["source_file"] or "") for row in rows)


def code(policy: Policy) -> str:
    """The code of a policy, in the spelling of the trainer if the text shows which one it is."""
    rows = policy._policies.savable.to_pylist()
    lines = _maxtext(policy, rows) or _axlearn(policy, rows)
    if lines is None:
        usage: tuple[str, ...] = _SCANNED if policy._policies.is_scanned else _UNROLLED
        if (iteration := policy._policies.iteration) != "layer":
            usage = tuple(line.format(iteration=iteration) for line in _OVER_TIME)
        module = policy._policies.module
        library = next(filter(None, (_flax(module, row) for row in rows)), None)
        if library is not None:
            usage = _FLAX[library, policy._policies.is_scanned]
        groups = (_IN_GROUPS,) if policy._policies.has_checkpointed_groups else ()
        units = _policy_units.lines(policy._policies, library=library is not None)
        stacks = len({row for row, _ in policy._policies._data.loops()})
        is_said = stacks > 1 and iteration == "layer" and not groups
        several = (_SEVERAL.format(stacks=stacks),) if is_said else ()
        lines = [*_jax(policy, rows), *groups, *several, *units, *usage]
    return "\n".join(lines)


def _flax(module: Module, row: Row) -> str | None:
    """The interface of Flax that computes a value: `linen` or `nnx`; None for others."""
    # The line of a value is the program's own; the frames below it are those of libraries.
    places = [row["source_file"] or "", *frames_of(module, row)]
    found = next(filter(None, map(_FLAX_FILE.search, places)), None)
    return None if found is None else found[1]


def _jax(policy: Policy, rows: Sequence[Row]) -> list[str]:
    """A policy of JAX if it keeps the same values, otherwise names of values."""
    if policy.built_in is not None:
        return [f"policy = {_PREFIX}{policy.built_in}"]
    named = _named(policy, rows)
    lines = list(dict.fromkeys(statement for _, statement in named.values()))
    if any("checkpoint_name(x" in line for line in lines):
        lines.insert(0, "from jax.ad_checkpoint import checkpoint_name")
    kept, moved = _parted(policy, {at: name for at, (name, _) in named.items()})
    if moved:
        call = (
            f"{_PREFIX}save_and_offload_only_these_names("
            f"names_which_can_be_saved={kept}, names_which_can_be_offloaded={moved}, "
            'offload_src="device", offload_dst="pinned_host")'
        )
    else:
        call = f"{_PREFIX}save_only_these_names({', '.join(map(repr, kept))})"
    kernels = kept_by_primitive(rows, policy.fates)
    if not kernels:
        return [*lines, f"policy = {call}"]
    own = [rows[at] for at in kernels.values()]
    found = dict.fromkeys(primitive for row in own for primitive in _primitives(row))
    others = [
        row["name"]
        for row in rows
        if row["kind"] == "kernel"
        and row["instruction"] not in kernels
        and not found.keys().isdisjoint(_primitives(row))
    ]
    return [
        *lines,
        f"names = {call}",
        "def policy(primitive, *inputs, **parameters):",
        "    # No name outside a kernel reaches what its backward pass reads.",
        *(f"    # {printable(row['name'])}: {_place(policy._policies.module, row)}" for row in own),
        *(f"    # This keeps {printable(name)} too." for name in dict.fromkeys(others)),
        f"    if primitive.name in {tuple(found)}:",
        "        return True",
        "    return names(primitive, *inputs, **parameters)",
    ]


def kept_by_primitive(rows: Sequence[Row], fates: Sequence[int]) -> dict[int, int]:
    """The kernels that run no second time although no name reaches what they keep.

    By instruction: a row of `rows`. A name after a kernel reaches its output alone, and the kernel
    runs again for the rest of what its backward pass reads.
    """
    first: dict[int, int] = {}
    runs_again = set()
    for at, (row, fate) in enumerate(zip(rows, fates, strict=True)):
        if row["kind"] == "kernel" and not row["is_nameable"]:
            first.setdefault(row["instruction"], at)
            if not fate:
                runs_again.add(row["instruction"])
    return {own: at for own, at in first.items() if own not in runs_again}


def _primitives(row: Row) -> tuple[str, ...]:
    """The primitives as which a policy may see the kernel of a value."""
    name = (row["op_name"] or "").rpartition("/")[2].partition("[")[0]
    return _PRIMITIVES.get(name, (name,) if name.isidentifier() else _PRIMITIVES["pallas_call"])


def of_lines(rows: Sequence[Row], taken: Sequence[str]) -> dict[str, list[int]]:
    """The rows of the matmuls of a line that has several, by a name for all of them.

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
    """The rows of each line with several matmuls or named values of other kinds."""
    found: dict[tuple[str, int], list[int]] = {}
    for at, row in enumerate(rows):
        is_named = row["kind"] not in ("input", "other", "kernel")
        if is_named and row["source_file"] and row["source_line"]:
            found.setdefault((row["source_file"], row["source_line"]), []).append(at)
    return [own for own in found.values() if len(own) > 1]


def _stem(row: Row) -> str:
    """The name of a value's file, if it can be part of a name."""
    stem: str = (row["source_file"] or "").rpartition("/")[2].partition(".")[0]
    return stem if stem.isidentifier() else "value"


def _named(policy: Policy, rows: Sequence[Row]) -> dict[int, tuple[str, str]]:
    """By value that the policy keeps and a name reaches: the name, and how it is given."""
    module, every, shared = policy._policies.module, value_names(rows), {}
    for name, own in of_lines(rows, every).items():
        if len({policy.fates[at] for at in own}) == 1:
            shared.update(dict.fromkeys(own, (name, own)))
    apart: dict[int, str] = {}
    for own in _lines(rows):
        if own[0] not in shared:
            apart |= _apart(module, rows, own, _weights(policy._policies))
    named = {}
    kernels = kept_by_primitive(rows, policy.fates)
    for at in policy.saved_numbers:
        row, name = rows[at], every[at]
        if row["instruction"] in kernels:
            continue
        splash = _SPLASH.search(row["op_name"] or "") if row["kind"] == "kernel" else None
        if row["kind"] == "input":
            place = "before anything in the layer reads its input"
        elif at in shared:
            name, own = shared[at]
            place = f"{_place(module, rows[own[0]])}, each of the {len(own)} results of this line"
            place += _product([rows[one] for one in own])
        else:
            place = _place(module, row) + (f", {apart[at]}" if at in apart else "")
            place += _product([row])
            merged = _merged(module, row)
            if merged:
                place += f"; XLA computes {merged} matmuls as one here: name the result of each"
        statement = f'x = checkpoint_name(x, "{name}")  # {place}'
        if splash is not None:
            call = f'make_{splash[1]}(..., residual_checkpoint_name="{name}")'
            source = f"{row['source_file']}:{row['source_line']}" if row["source_file"] else ""
            statement = printable(f"kernel = {call}  # called at {source or row['name']}")
        named[at] = name, statement
    return named


def _apart(
    module: Module, rows: Sequence[Row], line: Sequence[int], weights: Mapping[int, str]
) -> dict[int, str]:
    """What tells each value of a line from the others.

    That is the calls around it, its place in the line, the weight that its product multiplies by,
    or the order. `weights` are those of rows in one layer.
    """
    alike: dict[tuple[str, ...], list[int]] = {}
    if len(line) <= _MOST_APART:
        for at in line:
            alike.setdefault(tuple(frames_of(module, rows[at])), []).append(at)
    calls = {
        own: _call(rows[group[0]], own, [other for other in alike if other != own])
        for own, group in alike.items()
    }
    if not alike or (len(alike) > 1 and not all(calls.values())):
        return _numbered(line, "of this line, in the order of execution")
    found: dict[int, str] = {}
    for own, group in alike.items():
        call = calls[own]
        place = f"of this line {call}".rstrip()
        by = [weights.get(at) for at in group]
        columns = [_column(module, rows[at]) for at in group]
        if len(group) == 1:
            found[group[0]] = call
        elif len(set(columns)) == len(group):
            in_line = [at for _, at in sorted(zip(columns, group, strict=True))]
            found |= _numbered(in_line, f"{place}, from left to right")
        elif None not in by and len(set(by)) == len(group):
            head = f"{call}, " if call else ""
            words = "in one of the layers"
            found |= {at: f"{head}with the weight {weights[at]} {words}" for at in group}
        else:
            found |= _numbered(group, f"{place}, in the order of execution")
    return {at: printable(words) for at, words in found.items()}


def _numbered(values: Sequence[int], words: str) -> dict[int, str]:
    every = len(values)
    return {at: f"result {number} of the {every} {words}" for number, at in enumerate(values, 1)}


def _column(module: Module, row: Row) -> int:
    """The column of a value in its line; -1 if the text has none."""
    metadata = module[row["instruction"]].metadata
    for frame in () if metadata is None else metadata.stack_frames:
        if (frame.file, frame.line) == (row["source_file"], row["source_line"]):
            return frame.column
    return -1


def _weights(policies: Policies) -> dict[int, str]:
    """By value: the name of the parameter that its product in one layer multiplies by."""
    entry = policies.module.entry
    parameters = () if entry is None else entry.parameters
    names = {own.parameter_number: own.metadata and own.metadata.op_name for own in parameters}
    numbers = enumerate(policies._data.weights())
    return {at: name for at, number in numbers if (name := names.get(number))}


def _call(row: Row, own: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    """The frames of a call stack that others of the same line have not; empty if one has all."""
    depths = set()
    for other in others:
        pairs = enumerate(zip(own, other, strict=False))
        depths.add(next((depth for depth, (here, there) in pairs if here != there), -1))
    if not depths or -1 in depths:
        return ""
    # Frames are innermost first; those below the line's own are in libraries.
    place = f"{row['source_file']}:{row['source_line']}"
    line_depth = own.index(place) if place in own else 0
    outer = [own[depth] for depth in sorted(depths) if depth > line_depth]
    inner = [own[depth] for depth in sorted(depths) if depth <= line_depth]
    words = [("computed at ", inner), ("in the call from ", outer)]
    return printable(" ".join(head + ", ".join(places) for head, places in words if places))


def frames_of(module: Module, row: Row) -> list[str]:
    """The call stack of a value, innermost first, as FILE:LINE."""
    metadata = module[row["instruction"]].metadata
    frames = () if metadata is None else metadata.stack_frames
    return [f"{frame.file}:{frame.line}" for frame in frames]


def _merged(module: Module, row: Row) -> int:
    """How many matmuls of the program a matmul of the text computes; 0 if it is not merged.

    XLA for GPUs multiplies the operand that several matmuls share by their concatenated others.
    """
    for operand in module[row["instruction"]].operands:
        called = [computation for _, computation in operand.calls]
        made = called[0].root if operand.opcode == "fusion" and called else operand
        if made is None or made.opcode != "concatenate":
            continue
        name = "" if made.metadata is None else made.metadata.op_name or ""
        # A concatenation of the program has its own name; one of XLA that of a matmul's operand.
        if not name.endswith("/concatenate"):
            return len(made.operands)
    return 0


def _place(module: Module, row: Row) -> str:
    # XLA splits arrays over devices and reorders their dimensions when it optimises a program.
    shape = f"{row['shape']} on the device" if module.is_scheduled else row["shape"]
    # Names of files come from the dump: a line break in one must not become code.
    if row["source_file"]:
        return printable(f"{shape}  {row['source_file']}:{row['source_line']}")
    opcode = module[row["instruction"]].opcode
    place = f"result of {opcode} %{row['name']}, for which the text has no line"
    return printable(f"{shape}  {place}")


def _product(rows: Sequence[Row]) -> str:
    """Tells products from the sums that their line may add them to: `x + einsum(...)`."""
    if not all(row["kind"].endswith("matmul") for row in rows):
        return ""
    told = []
    for row in rows:
        outer, _, operation = str(row["op_name"] or "").rpartition("/")
        scope = outer.rpartition("/")[2]
        while inner := _TRANSFORMED.fullmatch(scope):
            scope = inner[1]
        if "->" in scope and operation == "dot_general":
            told.append(f"einsum {scope}")
    told = list(dict.fromkeys(told)) if len(told) == len(rows) else []
    text = ", the product alone" if len(told) < 2 else ", the products alone, each by this name"
    return printable(text + (f": {' and '.join(told)}" if told else ""))


def _parted(policy: Policy, names: Mapping[int, str]) -> tuple[list[str], list[str]]:
    """The names of values that are saved, and of those that are moved to host memory."""
    moved = [(name, policy.is_offloaded(at)) for at, name in names.items()]
    return (
        list(dict.fromkeys(name for name, is_moved in moved if not is_moved)),
        list(dict.fromkeys(name for name, is_moved in moved if is_moved)),
    )


def _axlearn(policy: Policy, rows: Sequence[Row]) -> list[str] | None:
    """A `RematSpec` of AXLearn; None if the text shows no AXLearn or a value has no name there."""
    if not _is_axlearn(rows):
        return None
    names = {at: name for at in policy.saved_numbers if (name := _axlearn_name(rows[at]))}
    if len(names) < len(policy.saved_numbers):
        return None
    if not names:
        policy_of = "jax_remat_policies.nothing_saveable"
        return [f"layer_cfg.remat_spec = RematSpec(prevent_cse=False, policy={policy_of})"]
    kept, moved = (
        None if not own else "|".join(f".*{name}" for name in own) for own in _parted(policy, names)
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


def _axlearn_name(row: Row) -> str | None:
    """The end of the name that AXLearn gives to a value; it has none for the input of a layer."""
    if row["kind"] in ("input", "kernel"):
        return _AXLEARN_KERNEL if row["kind"] == "kernel" and row["is_nameable"] else None
    for scope, name in _AXLEARN_NAMES:
        if found := scope.search(row["op_name"] or ""):
            return found.expand(name)
    return None


def _maxtext(policy: Policy, rows: Sequence[Row]) -> list[str] | None:
    """Keys of a MaxText config; None if the text shows no MaxText or a value has no key there."""
    if not _is_maxtext(rows):
        return None
    keys = _maxtext_keys(policy._policies.module, rows)
    names = {at: keys[at] for at in policy.saved_numbers if at in keys}
    if len(names) < len(policy.saved_numbers):
        return None
    if not names:
        return ["remat_policy: 'full'"]
    kept, moved = _parted(policy, names)
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
        if row["kind"] == "kernel" and _SPLASH.search(row["op_name"] or ""):
            keys[at] = _MAXTEXT_KERNEL
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
