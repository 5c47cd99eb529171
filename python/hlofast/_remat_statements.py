"""Statements of `Remat`, each with its evidence, and the steps of its plan as text."""

from __future__ import annotations

from hlofast import _text
from hlofast._collectives_notes import NO_AXES
from hlofast._memory_account import value_name
from hlofast._shares import TOGETHER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from hlofast._core import RematData
    from hlofast._module import Module
    from hlofast.table import Table

    Row = dict[str, Any]

LEAST_COPY = 1 << 20
"""Bytes below which a weight copy is not reported."""
MOST_PROOFS = 64
"""Maximum number of instructions in a statement's evidence; its figures count all."""
MOST_ALIKE = 8
"""Maximum number of statements about all-gathers per fate."""
SHOWN = 6
_MOVES = ("copy", "copy-start", "copy-done", "bitcast", "convert", "all-gather-done")
"""Opcodes between a gather of an updated weight and the result of the step."""

LEAST_GATHER = 1 << 16
"""Bytes below which a kept gather gets no advice: token ids, tables of positions."""
PART_OF_KEPT = 1000
"""A kept gather of less than 1/1000 of all kept bytes gets none either: likelihoods of tokens."""

NAMING = (
    "save neither the tensor nor the shard before the constraint that gathers it{where}: pass "
    "jax.checkpoint a policy that saves other values, named with checkpoint_name "
    "(jax.checkpoint_policies.save_only_these_names), or nothing_saveable. To save the shard in "
    "layers under lax.scan, constrain it again after naming it, x = "
    "with_sharding_constraint(checkpoint_name(x, 'shard'), spec); without that constraint the "
    "compiler keeps the gathered tensor in its place. The backward pass then gathers it again"
)
"""What makes XLA gather an activation again. `tests/oracle/judge_advice.py` compiles it, and the
recipe that fails: naming the shard before the constraint without constraining it again."""
CHECK = (
    "compile the step you train with (value_and_grad of all weights, not one gradient alone) and "
    "run this command again: it must list the all-gather of the tensor as recomputed or backward, "
    "and no all-gather of an activation as kept"
)
SAID = "as above"


CHANGES = {
    "weight_copy": "convert or rearrange the weight under jax.checkpoint{at}, so that the backward "
    "pass recomputes the copy, or use the weight as it is",
    "gathered_weight": "use the weight under jax.checkpoint{at}, with a policy that does not save "
    "it, so that the backward pass gathers the weight again",
    "activation": "compute the activation under jax.checkpoint{at}, with a policy that does not "
    "save it: save_only_these_names with the values it is computed from",
}


def change(module: Module, row: Row) -> str:
    """Returns the change to the program that makes it recompute a residual."""
    file = row["source_file"]
    # Users do not edit libraries, so advice does not name a place in one.
    if file and module._is_library(file):
        row = row | {"source_file": None}
    if row["kind"] == "gathered_activation":
        return NAMING.format(where=_at(row))
    return CHANGES[row["kind"]].format(at=_from(row))


class Statement:
    """A conclusion from a module's tables."""

    __slots__ = ("advice", "code", "figures", "instructions", "names", "text")

    def __init__(
        self,
        module: Module,
        code: str,
        text: str,
        rows: Iterable[int],
        advice: str | None = None,
        **figures: int,
    ) -> None:
        self.code = code
        """The kind of statement."""
        self.text = text
        """The statement."""
        self.advice = advice
        """What to change, and how to check the effect; None if there is nothing to do."""
        proofs = list(dict.fromkeys(rows))[:MOST_PROOFS]
        self.instructions: tuple[int, ...] = tuple(proofs)
        """The evidence: instruction rows, at most 64."""
        self.names: tuple[str, ...] = tuple(module[row].name for row in proofs)
        """The names of these instructions."""
        self.figures: dict[str, int] = figures
        """The figures of the text."""

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __repr__(self) -> str:
        return f"<Statement {self.code}: {self.text}>"


def statements(
    module: Module, data: RematData, tables: dict[str, Table], products: Table
) -> tuple[Statement, ...]:
    """Returns all statements about a module in display order.

    `tables` are the tables of `hlofast.Remat` by name, `products` the matmuls.
    """
    program = _Tables(module, data, tables, products)
    made: list[Statement] = []
    for rule in (
        _no_forward,
        _linear_chain,
        _products,
        _kept_gathers,
        _recomputed_gathers,
        _weight_gathers,
        _weight_copies,
        _residuals,
        _recomputed,
        _constraints,
    ):
        made.extend(rule(program))
    return tuple(made)


class _Tables:
    """The tables that statements are derived from."""

    def __init__(
        self, module: Module, data: RematData, tables: dict[str, Table], products: Table
    ) -> None:
        self.module = module
        self.data = data
        self.recomputed: list[Row] = tables["recomputed"].to_pylist()
        self.residuals: list[Row] = tables["residuals"].to_pylist()
        self.gathers: list[Row] = tables["gathers"].to_pylist()
        self.phases = dict(data.instructions())
        self.products: list[Row] = products.to_pylist()
        self.constraints: list[int] = data.marks()[2]
        self.has_forward = self.phases["forward"] > 0
        self.has_backward = self.phases["backward"] > 0

    def gathers_of(self, moved: str, *fates: str) -> list[Row]:
        return [row for row in self.gathers if row["tensor_kind"] == moved and row["fate"] in fates]

    def state(
        self, code: str, text: str, rows: Iterable[int], advice: str | None = None, **figures: int
    ) -> Statement:
        return Statement(self.module, code, text, rows, advice, **figures)


def _no_forward(program: _Tables) -> list[Statement]:
    if program.has_forward or not program.has_backward:
        return []
    backward, recomputed = program.phases["backward"], program.phases["recompute"]
    text = (
        f"the module has no forward pass ({backward:,} backward, {recomputed:,} recomputed "
        "instructions): backward code reads "
    )
    if program.residuals:
        text += "only values that no operation name marks as forward"
    else:
        text += "no residuals, only parameters, constants and its own values"
    again = [row["instruction"] for row in program.recomputed]
    if again:
        text += "; it recomputes the forward values it needs"
    rows = [row["instruction"] for row in program.products or program.gathers] or again
    advice = (
        "to get a training step, return the loss too (value_and_grad) and differentiate with "
        "respect to the weights as well (argnums)"
    )
    figures = {"forward": 0, "backward": backward, "recompute": recomputed}
    return [program.state("no-forward", text, rows, advice, **figures)]


def _linear_chain(program: _Tables) -> list[Statement]:
    """A backward pass whose matmuls do not depend on the input of the differentiation."""
    products = [row["instruction"] for row in program.products if row["phase"] == "backward"]
    if program.has_forward or not products:
        return []
    read = program.data.parameters_read(products)
    if read is None:
        return []
    entry = program.module.entry
    parameters = [i for i in entry.instructions if i.opcode == "parameter"]
    root = entry.root
    if root is None:
        return []
    results = list(root.shape.elements) if root.shape.is_tuple else [root.shape]
    others = [i for i in parameters if i.row not in set(read)]
    likely = [i for i in others if any(_alike(i.shape, shape) for shape in results)]
    # The statement holds only if every result is the gradient of an input that no matmul reads.
    if not likely or any(
        _alike(program.module[row].shape, shape) for row in read for shape in results
    ):
        return []
    names = _tensors(program, read) or "no parameter"
    of = _tensors(program, [i.row for i in likely])
    result = "the result has its" if len(results) == 1 else "the results have its"
    text = (
        f"the gradient is taken with respect to {of} only: {result} shape, and no matmul computes "
        f"the gradient of a weight. The matmuls depend on {names} and constants, not on {of}: the "
        f"function of {of} is linear, so its derivative needs only the weights, and the forward "
        "matmuls and the all-gather before them are dead code"
    )
    rows = [*products, *read, root.row]
    return [program.state("linear-chain", text, rows, products=len(products))]


def _alike(shape: Any, other: Any) -> bool:
    return bool(shape.is_array and other.is_array and shape.dimensions == other.dimensions)


def _products(program: _Tables) -> list[Statement]:
    rows = {row["instruction"]: row for row in program.products}
    convolutions = [row for row in rows.values() if row["kind"] == "convolution_as_dot"]
    if not convolutions:
        return []
    sizes = [f"{r['name']} {r['m']:,} x {r['n']:,} x {r['k']:,}" for r in convolutions]
    count = len(convolutions)
    are = "1 of the matmuls is a" if count == 1 else f"{count:,} matmuls are"
    noun = "convolution" if count == 1 else "convolutions"
    if count == len(rows):
        are = "the matmul is a" if count == 1 else f"the {count:,} matmuls are"
        there = "; the text has no dot"
    else:
        there = ""
    text = f"{are} {noun} in this text (M x N x K: {_listed(sizes)}){there}"
    places = [row["instruction"] for row in convolutions]
    flops = sum(row["flops"] or 0 for row in convolutions)
    return [program.state("products-are-convolutions", text, places, count=count, flops=flops)]


def _kept_gathers(program: _Tables) -> list[Statement]:
    made: list[Statement] = []
    for rows in _alike_gathers(program.gathers_of("activation", "kept")):
        kept = [program.residuals[row["residual"]] for row in rows]
        total = sum(row["bytes"] or 0 for row in kept)
        first, copy = rows[0], kept[0]
        what = f"{_gathers(rows)} {first['shape']}{_over(first)}{_from(first)}"
        as_what = f" as {copy['shape']}" if copy["shape"] != first["shape"] else ""
        stacked = ", stacked by a loop" if copy["is_stacked"] else ""
        text = (
            f"{what} {'is' if len(rows) == 1 else 'are'} kept from forward to backward{as_what}"
            f"{stacked}: {total:,} B"
        )
        share = sum(
            (row["bytes"] or 0) // (gather["group_size"] or 1)
            for row, gather in zip(kept, rows, strict=True)
        )
        if share < total:
            text += f"; the shards before gathering take {share:,} B"
        proof = [
            row
            for gather, residual in zip(rows, kept, strict=True)
            for row in (gather["instruction"], residual["made_by"], residual["last_use"])
        ]
        file = first["source_file"]
        where = "" if file and program.module._is_library(file) else _at(first)
        advice: str | None = f"{NAMING.format(where=where)}. Then {CHECK}"
        if any(other.advice for other in made):
            advice = f"the change above, before the constraint{where}" if where else SAID
        is_float = copy["shape"].startswith(("f", "bf", "c"))
        least = sum(row["bytes"] or 0 for row in program.residuals) // PART_OF_KEPT
        if total < max(LEAST_GATHER, least) or not is_float:
            advice = None
        made.append(
            program.state("gather-kept", text, proof, advice, gathers=len(rows), bytes=total)
        )
    return made


def _recomputed_gathers(program: _Tables) -> list[Statement]:
    made = []
    for rows in _alike_gathers(program.gathers_of("activation", "recomputed")):
        first = rows[0]
        text = (
            f"{_gathers(rows)} {first['shape']}{_over(first)}{_from(first)} "
            f"{'is' if len(rows) == 1 else 'are'} recomputed: repeated for the backward pass, "
            "result not kept"
        )
        size = sum(row["payload_out"] or 0 for row in rows)
        proof = [row["instruction"] for row in rows]
        made.append(program.state("gather-recomputed", text, proof, gathers=len(rows), bytes=size))
    return made


def _weight_gathers(program: _Tables) -> list[Statement]:
    weights = [row for row in program.gathers if row["tensor_kind"] == "weight"]
    if not weights:
        return []
    count, total = len(weights), len(program.gathers)
    of = "the all-gather" if total == 1 else f"{count:,} of {total:,} all-gathers"
    if count == total > 1:
        of = "both all-gathers" if count == 2 else f"all {count:,} all-gathers"
    replaced = _replaced(program.module)
    tensors = list(
        dict.fromkeys(
            replaced.get(row["instruction"]) or row["tensor"] or row["name"] for row in weights
        )
    )
    verb = "gathers weights" if count == 1 else "gather weights"
    text = f"{of} {verb} ({_listed(tensors)})"
    kept = [row for row in weights if row["fate"] == "kept"]
    if kept:
        size = sum(program.residuals[row["residual"]]["bytes"] or 0 for row in kept)
        text += f"; {len(kept):,} of them kept from forward to backward, {size:,} B"
    activations = program.gathers_of("activation", "kept")
    if not activations:
        text += "; no gathered activation is kept from forward to backward"
    places = [row["instruction"] for row in weights]
    figures = {"gathers": count, "kept": len(kept), "kept_activations": len(activations)}
    return [program.state("weight-gathers", text, places, None, **figures)]


def _replaced(module: Module) -> dict[int, str]:
    """By row of what a step returns in the buffer of a parameter: the parameter's name.

    An optimizer gathers what it has updated in parts; its operation has no name of the weight.
    """
    root = None if module.entry is None else module.entry.root
    results = list(root.operands) if root is not None and root.opcode == "tuple" else []
    parameters = {own.parameter_number: own for own in module.entry.instructions} if results else {}
    found = {}
    for alias in module.header.get("input_output_alias") or ():
        parameter = parameters.get(alias.number)
        name = (
            None if parameter is None or parameter.metadata is None else parameter.metadata.op_name
        )
        if not name or len(alias.output_index) != 1 or alias.output_index[0] >= len(results):
            continue
        own = results[alias.output_index[0]]
        while own.opcode in _MOVES and own.operands:
            own = own.operands[0]
        found[own.row] = name
    return found


def _weight_copies(program: _Tables) -> list[Statement]:
    copies = [
        row
        for row in program.residuals
        if row["kind"] == "weight_copy"
        and row["widened_from"]
        and (row["bytes"] or 0) >= LEAST_COPY
    ]
    if not copies:
        return []
    copies.sort(key=lambda row: -row["bytes"])
    size = sum(row["bytes"] for row in copies)
    total = sum(row["bytes"] or 0 for row in program.residuals)
    kinds = ", ".join(sorted({row["shape"].split("[")[0] for row in copies}))
    narrow = ", ".join(sorted({row["widened_from"] for row in copies}))
    text = (
        f"{len(copies):,} {kinds} copies of {narrow} weights are kept from forward to backward: "
        f"{size:,} B, {100 * size / total:.1f} % of the {total:,} B of residuals "
        f"({_listed([row['shape'] for row in copies])})"
    )
    advice: str | None = (
        "put the conversion inside jax.checkpoint, so that the backward pass converts the weights "
        "again at the cost of reading them once more, or multiply in the weights' own type"
    )
    summary = program.module.summary()
    if summary.backend == "cpu" and summary.status == "scheduled":
        # XLA for CPUs multiplies in f32 whatever the program says.
        advice = None
    proof = [place for row in copies for place in (row["made_by"], row["source"])]
    figures = {"copies": len(copies), "bytes": size, "residual_bytes": total}
    return [program.state("widened-weights-kept", text, proof, advice, **figures)]


def _residuals(program: _Tables) -> list[Statement]:
    if not program.residuals:
        return []
    total = sum(row["bytes"] or 0 for row in program.residuals)
    sizes: dict[str, int] = {}
    for row in program.residuals:
        sizes[row["kind"]] = sizes.get(row["kind"], 0) + (row["bytes"] or 0)
    parts = [f"{kind.replace('_', ' ')} {size:,} B" for kind, size in sizes.items()]
    count = len(program.residuals)
    together = TOGETHER if program.module.summary().devices_together > 1 else ""
    text = (
        f"{count:,} {'value is' if count == 1 else 'values are'} kept from forward to backward, "
        f"{total:,} B{together} ({', '.join(parts)})"
    )
    stacked = [row for row in program.residuals if row["is_stacked"]]
    if stacked:
        text += f"; {len(stacked):,} of them stacked by loops"
    unknown = sum(row["bytes"] is None for row in program.residuals)
    if unknown:
        text += f"; {unknown:,} of unknown size"
    rows = sorted(program.residuals, key=lambda row: -(row["bytes"] or 0))
    proof = [row["made_by"] for row in rows]
    return [program.state("residuals", text, proof, values=count, bytes=total)]


WHO = {
    "program": "by the program (jax.checkpoint)",
    "compiler": "by the compiler (.remat)",
    "twin": "as twins of earlier instructions, without a name that marks recomputation",
}
NORM = frozenset(
    """
    add sub mul div neg max min integer_pow pow square sqrt rsqrt reduce_sum convert_element_type
    broadcast_in_dim reshape squeeze expand_dims stop_gradient
    """.split()
)
"""JAX primitives of a root-mean-square or layer norm."""


def operation(row: Row) -> str:
    """Returns the last component of the operation name, otherwise the opcode."""
    return (row["op_name"] or "").rsplit("/", 1)[-1] or str(row["opcode"])


def _recomputed(program: _Tables) -> list[Statement]:
    made = []
    for by, who in WHO.items():
        rows = [row for row in program.recomputed if row["by"] == by]
        if not rows:
            continue
        operations: dict[str, int] = {}
        for row in rows:
            name = operation(row)
            operations[name] = operations.get(name, 0) + 1
        most = sorted(operations.items(), key=lambda item: (-item[1], item[0]))
        listed = _listed([f"{name} {count:,}" for name, count in most])
        count = len(rows)
        text = (
            f"{count:,} {'instruction is' if count == 1 else 'instructions are'} recomputed {who}: "
            f"{listed}{_places(rows)}"
        )
        if operations.keys() <= NORM and "rsqrt" in operations and "reduce_sum" in operations:
            text += "; all belong to a norm (rsqrt of a mean)"
        collectives = sum(row["is_collective"] for row in rows)
        flops = sum(row["flops"] or 0 for row in rows)
        products = {row["instruction"] for row in program.products}
        is_product = any(row["instruction"] in products for row in rows)
        moved = _text.counted(collectives, "collective") if collectives else "no collective"
        text += f"; {flops:,} FLOP, {moved}"
        if not is_product:
            text += ", no matmul"
        proof = [row["instruction"] for row in rows]
        figures = {"instructions": count, "flops": flops, "collectives": collectives}
        made.append(program.state(f"recomputed-by-{by}", text, proof, **figures))
    return made


def _constraints(program: _Tables) -> list[Statement]:
    """Sharding constraints in checkpointed code whose all-gather is not in this text."""
    if not program.constraints or not program.has_backward:
        return []
    shown = program.gathers_of("activation", "kept", "recomputed", "forward", "backward")
    if shown:
        return []
    places = program.data.places(program.constraints)
    lines = list(dict.fromkeys(f"{file}:{line}" for _, file, line in places if file))
    at = f" ({_listed(lines)})" if lines else ""
    text = (
        f"there are sharding constraints under jax.checkpoint{at}, but this text has no all-gather "
        "of an activation, forward or backward, that belongs to one of them"
    )
    # A step with its forward pass that gathers no activation has nothing to recompute.
    advice = None
    if not program.has_forward:
        advice = (
            "to recompute the all-gather that the partitioner inserts for a constraint, "
            f"{NAMING.format(where='')}. Then {CHECK}"
        )
    count = len(program.constraints)
    return [
        program.state(
            "name-before-constraint", text, program.constraints, advice, constraints=count
        )
    ]


def _alike_gathers(rows: Sequence[Row]) -> list[list[Row]]:
    """Groups all-gathers by source line, shape and axes, largest first."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        key = (row["shape"], row["axes"], row["source_file"], row["source_line"], row["op_name"])
        groups.setdefault(key, []).append(row)

    def payload(rows: Sequence[Row]) -> int:
        return sum(row["payload_out"] or 0 for row in rows)

    return sorted(groups.values(), key=payload, reverse=True)[:MOST_ALIKE]


def _gathers(rows: Sequence[Row]) -> str:
    return "the all-gather of" if len(rows) == 1 else f"{len(rows):,} all-gathers of"


def _over(row: Row) -> str:
    if row["axes"] and row["axes"] != NO_AXES:
        return f" along {row['axes']}"
    return f" over {row['group_size']:,} devices" if row["group_size"] else ""


def _from(row: Row) -> str:
    return f" from {row['source_file']}:{row['source_line']}" if row["source_file"] else ""


def _at(row: Row) -> str:
    return f", {row['source_file']}:{row['source_line']}" if row["source_file"] else ""


def _places(rows: Sequence[Row]) -> str:
    """The source lines, if all are in one file."""
    files = {row["source_file"] for row in rows if row["source_file"]}
    if len(files) != 1:
        return ""
    lines = sorted({row["source_line"] for row in rows if row["source_line"]})
    if not lines:
        return ""
    listed = ", ".join(str(line) for line in lines[:SHOWN]) + (", …" if len(lines) > SHOWN else "")
    return f", at {files.pop()}:{listed}"


def _tensors(program: _Tables, rows: Sequence[int]) -> str:
    """The program's names of parameters."""
    names = [name for name, _, _ in program.data.places(list(rows))]
    return _listed([n or program.module[row].name for n, row in zip(names, rows, strict=True)])


def _listed(words: Sequence[str]) -> str:
    return _text.names(words, most=SHOWN)


def step_text(row: dict[str, Any], peak: int) -> str:
    """A chosen candidate as text: the residual, the peak with it, the cost."""
    made = value_name(row["name"], row["index"])
    price = [f"{row['wire_bytes']:,} wire B"] if row["wire_bytes"] else []
    price += [f"{row['flops']:,} FLOP"] if row["flops"] else []
    price += [_text.seconds(row["seconds"])] if row["seconds"] is not None else []
    cost = f" for {', '.join(price)}" if price else ""
    return f"{row['kind'].replace('_', ' ')} {made} {row['shape']}: peak {peak:,} B{cost}"


def what_to_do(row: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines below a step of a plan: the change, and what is copied for it."""
    again = (row["again"] or "").split()
    copies = [("module", f"copies of {', '.join(again)}")] if again else []
    return [("change", row["change"]), *copies]
