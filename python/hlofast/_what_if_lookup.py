"""Lookups in tables after a change: the collectives that XLA's partitioner then makes of them.

The partitioner takes the cheapest way to split a lookup, which follows from sizes and shardings
(`hlofast/_partition`). What it knows and the compiled text does not say, such as which axes divide
the sequence of the rows that are looked up, is tried: only what makes the collectives of the text
from its sizes counts, and only if all that does makes equal collectives of the new sizes.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations, islice
from math import prod

from hlofast._what_if_padding import padded_shard
from hlofast._what_if_places import place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from hlofast._core import Instruction, Mesh
    from hlofast._module import Module
    from hlofast._partition.made import Axes, Made, Split
    from hlofast._what_if import WhatIf
    from hlofast._what_if_symbols import Symbol

_MOST_DEVICES = 1024
"""Devices up to which the model is tried: its work grows with them."""
_MOST_TABLES = 4
"""Limit on the tables that are tried."""
_MOST_STEPS = 256
"""Limit on the instructions between an input and a gather of its positions."""
_MOST_INPUTS = 3
"""Inputs of integers up to which all choices of those that are looked up are tried."""
_ELEMENTS = (2, 4)
"""Bytes of an element of a table that is looked up: bfloat16 or float32."""
_PADDED = 1.1
"""Bytes of a reduce-scatter by those of its sum, at most: XLA pads shards to tiles."""
_OPERATIONS = ("gather", "scatter", "scatter-add", "scatter_add", "take")

_COMPUTES = frozenset(
    ("dot", "convolution", "reduce", "reduce-window", "while", "conditional", "call")
)
"""Opcodes of instructions whose results are made of several elements of an operand."""

Sent = dict["str | None", int]


class Lookups:
    """The collectives of lookups, before and after a change."""

    __slots__ = (
        "adds_rows", "is_other", "is_sure", "kept", "moves_rows", "padded", "parts", "removed",
        "sent",
    )  # fmt: skip

    def __init__(
        self,
        removed: dict[str, int],
        kept: set[str],
        sent: Sent,
        padded: set[str | None],
        parts: dict[str, list[int]],
        is_other: bool,
        is_sure: bool,
        moved: tuple[bool, bool],
    ) -> None:
        self.removed = removed
        """By collective of the text: its bytes after the change that are of lookups."""
        self.kept = kept
        """Collectives of lookups that stay as they are in the text."""
        self.sent = sent
        """By mesh axes: the bytes of lookups after the change."""
        self.padded = padded
        """Axes along which shards are padded, in a way that the text does not say."""
        self.parts = parts
        """By sum of several arrays: the places of those that are of lookups."""
        self.is_other = is_other
        """Whether the partitioner splits a lookup otherwise than in the text."""
        self.is_sure = is_sure
        """Whether no collective may be made twice."""
        self.moves_rows = moved[1]
        """Whether devices exchange rows of tokens after the change, and not only the table."""
        self.adds_rows = moved == (False, True)
        """Whether they do so only after the change."""


def of_lookup(row: dict[str, Any]) -> bool:
    """Returns whether a collective is made for a lookup or the gradient of one."""
    return (row["op_name"] or "").rpartition("/")[2] in _OPERATIONS


def find(result: WhatIf) -> Lookups | None:
    """Returns the lookups of a change; None if the model does not make those of the text."""
    if result.module._misfit("gpu") != "tpu" or result.mesh is None or result.policy is not None:
        return None
    old, new = result.mesh, result.new_mesh or result.mesh
    if max(prod(old.shape.values()), prod(new.shape.values())) > _MOST_DEVICES:
        return None
    if any(old.shape[axis] == 1 < new.shape[axis] for axis in old.shape):
        return None  # Shardings do not name axes of one device.
    rows = list(result.module.collectives()._ordered())
    if not any(of_lookup(row) and row["multiplicity"] == 1 for row in rows):
        return None
    found: Lookups | None = None
    seen = None
    for guess in _guesses(result, rows):
        before = guess.made(old, lambda own: own.size)
        if (
            before is None
            or (matched := _matched(result.module, rows, before.collectives, old)) is None
        ):
            continue
        after = guess.made(new, lambda own: int(result.asked.get(own.number, own.size)))
        if after is None:
            return None
        sent = _sums(after.collectives, new)
        if seen is not None and seen != sent:
            return None
        seen = sent
        found = found or _change(result, rows, matched, (before, after), (old, new), guess)
    return found


class _Guess:
    """A table, the inputs that are looked up in it, and what the text does not say of both."""

    __slots__ = ("along", "element", "inputs", "is_training", "table")

    def __init__(
        self,
        table: tuple[Symbol, Symbol, Sequence[Axes]],
        inputs: Sequence[tuple[Symbol, Symbol, Sequence[Axes], int]],
        element: int,
        along: Axes,
        is_training: bool,
    ) -> None:
        self.table = table
        self.inputs = inputs
        self.element = element
        self.along = along
        """Axes that divide the sequence of rows, and so of positions: shardings spread to them."""
        self.is_training = is_training

    def made(self, mesh: Mesh, size: Any) -> Split | None:
        """What the partitioner makes on a mesh; None if the model does not know them."""
        from hlofast._partition import made
        from hlofast._partition.reshard import UnsureError

        rows, width, axes = self.table
        table = made.Table(size(rows), size(width), axes, self.element)
        inputs = []
        for batch, sequence, (first, second), element in self.inputs:
            tiled = first, self.along or second
            inputs.append(made.Input(size(batch), size(sequence), tiled, element))
        try:
            return made.split(dict(mesh.shape), table, inputs, self.is_training)
        except UnsureError:
            # The lookup then stays as compiled, with the notes of a lookup that is not modelled.
            return None


def _guesses(result: WhatIf, rows: list[dict[str, Any]]) -> Iterator[_Guess]:
    mesh = result.mesh
    assert mesh is not None
    parameters = {
        own.metadata.op_name or "": own
        for own in result.module.entry.parameters
        if own.metadata is not None
    }
    is_training = any(row["phase"] == "backward" for row in rows)
    inputs = list(_inputs(result, parameters, mesh))[:_MOST_INPUTS]
    chosen = [own for count in range(len(inputs), 0, -1) for own in combinations(inputs, count)]
    tables = list(islice(_tables(result, parameters, mesh), _MOST_TABLES + 1))
    # Which table is looked up is only known if all have been tried.
    for table in tables if len(tables) <= _MOST_TABLES else ():
        for some in chosen:
            used = {axis for _, _, axes, _ in some for own in axes for axis in own}
            rest = [axis for axis, size in mesh.shape.items() if size > 1 and axis not in used]
            for along in ((), *((axis,) for axis in rest)):
                for element in _ELEMENTS:
                    yield _Guess(table, some, element, along, is_training)


def _tables(
    result: WhatIf, parameters: Mapping[str, Instruction], mesh: Mesh
) -> Iterator[tuple[Symbol, Symbol, Sequence[Axes]]]:
    """The tables among the parameters: matrices whose rows are looked up."""
    seen = set()
    for rows in result.symbols:
        names = [name for name, dim in rows.parameters if dim == 0 and rows.role == "vocabulary"]
        for name in sorted(names, key=len):
            for width in result.symbols:
                if width.number != rows.number and (name, 1) in width.parameters:
                    axes = _axes(parameters.get(name), mesh, 2)
                    if axes is not None and (rows.number, width.number) not in seen:
                        seen.add((rows.number, width.number))
                        yield rows, width, axes


def _inputs(
    result: WhatIf, parameters: Mapping[str, Instruction], mesh: Mesh
) -> Iterator[tuple[Symbol, Symbol, Sequence[Axes], int]]:
    """The inputs of integers, batches by sequences, that may be looked up."""
    for batch in result.symbols:
        for name, dim in batch.parameters:
            own = parameters.get(name)
            if batch.role != "batch" or dim != 0 or own is None:
                continue
            kind = str(own.shape.element_type)
            axes = _axes(own, mesh, 2)
            if axes is None or kind not in ("s32", "u32", "s64", "u64"):
                continue
            for sequence in result.symbols:
                if sequence.role == "sequence" and (name, 1) in sequence.parameters:
                    yield batch, sequence, axes, int(kind[1:]) // 8


def _axes(parameter: Instruction | None, mesh: Mesh, rank: int) -> list[Axes] | None:
    """The axes that divide each dimension of a parameter; None if they are unknown."""
    if parameter is None or parameter.sharding is None or parameter.shape.rank != rank:
        return None
    sharding = parameter.sharding
    if sharding.is_replicated:
        return [()] * rank
    spec = sharding.spec(mesh)
    if spec.reason is not None or len(spec.dimensions) > rank:
        return None
    found = [() if own is None else (own,) if isinstance(own, str) else tuple(own)
             for own in spec.dimensions]  # fmt: skip
    return found + [()] * (rank - len(found))


def _rows_of(made: Sequence[Made], mesh: Mesh) -> list[dict[str, Any]]:
    """The table of collectives for those that the partitioner makes."""
    from hlofast._module import loads
    from hlofast._partition.made import as_text

    table = loads(as_text(made)).with_context(mesh=mesh).collectives()._ordered()
    found = {row["name"]: row for row in table}
    return [found[f"made.{at}"] for at in range(len(made))]


def _sums(made: Sequence[Made], mesh: Mesh) -> Sent:
    sent: Sent = {}
    for row in _rows_of(made, mesh):
        sent[row["axes"]] = sent.get(row["axes"], 0) + row["wire_bytes"]
    return sent


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What equal collectives have in common."""
    return row["kind"], row["axes"], row["wire_bytes"]


class _Matched:
    """Collectives of the text that are those of the model."""

    __slots__ = ("again", "cut", "parts", "whole")

    def __init__(self) -> None:
        self.again: set[str] = set()
        """Names of collectives that XLA made twice, and did not merge."""
        self.whole: set[str] = set()
        """Names of collectives that are of lookups alone."""
        self.parts: dict[str, list[int]] = {}
        """By sum of several arrays: the places of those that are of lookups."""
        self.cut: dict[str, int] = {}
        """By reduce-scatter: which of the model's sums it makes."""


def _matched(
    module: Module, rows: list[dict[str, Any]], made: Sequence[Made], mesh: Mesh
) -> _Matched | None:
    """Finds the collectives of the model in the text; None if one is missing, or one too many."""
    own = [row for row in rows if of_lookup(row) and row["multiplicity"] == 1]
    found = _Matched()
    wanted: Counter[tuple[Any, ...]] = Counter()
    sums = []
    known: set[tuple[Any, ...]] = set()
    twice = []
    for at, (one, row) in enumerate(zip(made, _rows_of(made, mesh), strict=True)):
        if one.value.op == "all-reduce":
            sums.append((at, one, row))
        else:
            wanted[_key(row)] += 1
    for row in own:
        if row["kind"] in ("all-reduce", "reduce-scatter"):
            continue
        key = _key(row)
        if not wanted[key]:
            twice.append(row)
            continue
        wanted[key] -= 1
        found.whole.add(row["name"])
        known.add(key)
    for row in twice:
        if row["kind"] != "all-gather" or _key(row) not in known:
            return None
        found.again.add(row["name"])
    if +wanted:
        return None
    # Sums may be combined with others, and have the name of one of them.
    for at, one, row in sorted(sums, key=lambda own: -own[1].value.bytes):
        if not (_match_sum(module, rows, one, row, found) or _match_cut(own, at, one, row, found)):
            return None
    return found


def _match_sum(
    module: Module, rows: list[dict[str, Any]], one: Made, row: dict[str, Any], found: _Matched
) -> bool:
    for other in sorted(rows, key=lambda own: not of_lookup(own)):
        same = other["kind"] == "all-reduce" and other["axes"] == row["axes"]
        if not same or other["multiplicity"] != 1:
            continue
        taken = found.parts.get(other["name"], [])
        for place, operand in enumerate(module.instructions[other["instruction"]].operands):
            if place not in taken and operand.shape.bytes == one.value.bytes:
                found.parts.setdefault(other["name"], []).append(place)
                return True
    return False


def _match_cut(
    own: list[dict[str, Any]], at: int, one: Made, row: dict[str, Any], found: _Matched
) -> bool:
    for other in own:
        if not one.is_cut or other["kind"] != "reduce-scatter" or other["name"] in found.cut:
            continue
        size = one.value.bytes
        if other["axes"] == row["axes"] and size <= (other["payload_in"] or 0) <= size * _PADDED:
            found.cut[other["name"]] = at
            return True
    return False


def _transfer_of(rows: list[dict[str, Any]], name: str, made: Made) -> list[str] | None:
    """The transfer that puts rows of padded shards back in their place; None if it is unclear."""
    own = next(row for row in rows if row["name"] == name)
    count = len(made.value.groups[0])
    padding = (own["payload_out"] or 0) - made.value.bytes // count
    if padding == 0:
        return []
    halos = [row for row in rows if row["kind"] == "collective-permute" and not row["op_name"]]
    found = [row["name"] for row in halos
             if row["axes"] == own["axes"] and row["payload"] == padding * (count - 1)]  # fmt: skip
    return found if len(found) == 1 else None


def _change(
    result: WhatIf,
    rows: list[dict[str, Any]],
    matched: _Matched,
    splits: tuple[Split, Split],
    meshes: tuple[Mesh, Mesh],
    guess: _Guess,
) -> Lookups:
    """Takes the collectives of lookups out of the changed text, and those after the change in."""
    before, after = (own.collectives for own in splits)
    removed: dict[str, int] = {}
    changed = {row["name"]: row for row in result.changed.collectives()._ordered()}
    for name in matched.whole:
        removed[name] = changed[name]["total_wire_bytes"] or 0
    for name, places in matched.parts.items():
        row = changed[name]
        operands = list(result.changed.instructions[row["instruction"]].operands)
        sizes = [own.shape.bytes or 0 for own in operands]
        part = sum(sizes[place] for place in places)
        removed[name] = (row["total_wire_bytes"] or 0) * part // max(sum(sizes), 1)
    old, new = meshes
    first, last = _rows_of(before, old), _rows_of(after, new)
    # By axes: reduce-scatters of the text, whose padding only the text says. They stay.
    stays: dict[str | None, list[str]] = {}
    for name, at in matched.cut.items():
        stays.setdefault(first[at]["axes"], []).append(name)
    summed = {row["axes"] for at, (own, row) in enumerate(zip(before, first, strict=True))
              if own.is_cut and at not in matched.cut.values()}  # fmt: skip
    sent: Sent = {}
    padded: set[str | None] = set()
    kept: set[str] = set()
    for own, row in zip(after, last, strict=True):
        axes, size = row["axes"], row["wire_bytes"]
        if own.is_cut and stays.get(axes):
            name = stays[axes].pop()
            kept.add(name)
            if old != new and name not in result._padding.known:
                padded.add(axes)
            continue
        if own.is_cut and axes not in summed:
            # A reduce-scatter sends half as much as the sum, and more if shards are padded.
            size = size // 2 + _padding(own, axes, result)
            padded.add(axes)
        sent[axes] = sent.get(axes, 0) + size
    for name in (name for names in stays.values() for name in names):
        removed[name] = changed[name]["total_wire_bytes"] or 0
        transfer = _transfer_of(rows, name, before[matched.cut[name]])
        if transfer is None:
            padded.add(changed[name]["axes"])
        else:
            removed |= {own: changed[own]["total_wire_bytes"] or 0 for own in transfer}

    is_other = [own.value.op for own in before] != [own.value.op for own in after]
    made = {_key(row) for row in last}
    texts = {row["name"]: row for row in rows}
    for name in matched.again:
        row = changed[name]
        gather = result.module.instructions[texts[name]["instruction"]]
        twin = _made_again(guess, before, after, first, texts[name], gather)
        if twin is None and is_other and _key(row) in made:
            kept.add(name)
            continue
        removed[name] = row["total_wire_bytes"] or 0
        if twin is not None:
            axes, size = last[twin]["axes"], last[twin]["wire_bytes"]
            sent[axes] = sent.get(axes, 0) + size
    is_sure = not (is_other and matched.again)
    if splits[0].cuts != splits[1].cuts and _sums_reach(result.module, matched):
        is_sure = False
    moved = _moves_rows(before), _moves_rows(after)
    return Lookups(removed, kept, sent, padded, matched.parts, is_other, is_sure, moved)


def _moves_rows(made: Sequence[Made]) -> bool:
    """Whether devices exchange rows of tokens, and not only the table."""
    return any(len(own.value.shape) > 2 and own.value.shape[-1] > 1 for own in made)


def _padding(own: Made, axes: str | None, result: WhatIf) -> int:
    """Bytes that a device sends more because shards of a sum are padded, if they are rows."""
    if own.part is None or own.part[1:] != own.value.shape[1:] or len(own.part) != 2:
        return 0
    mesh = result.new_mesh or result.mesh
    assert mesh is not None
    where = place_of(result.module, axes, mesh)
    (rows, columns), devices = own.part, len(own.value.groups[0])
    row_bytes = columns * own.value.width
    padded = padded_shard(rows, columns, row_bytes, devices, where)
    # The rows of padding are sent again, to put rows back in their places.
    return 0 if padded is None else 2 * (padded - rows) * row_bytes * (devices - 1)


def _made_again(
    guess: _Guess,
    before: Sequence[Made],
    after: Sequence[Made],
    rows: Sequence[dict[str, Any]],
    text: dict[str, Any],
    gather: Instruction,
) -> int | None:
    """Which collective is made twice after a change; None if it is unclear.

    In the fitted programs this is the gather of the positions of one input, once for its lookup and
    once for the gradient.
    """
    inputs = {
        own.moves
        for own, row in zip(before, rows, strict=True)
        if own.is_of_sum and _key(row) == _key(text)
    }
    if len(inputs) > 1:
        known = _parameters_of(gather)
        named = {
            at
            for at, (_, sequence, _, _) in enumerate(guess.inputs)
            if any(name in known for name, dim in sequence.parameters if dim == 1)
        }
        inputs &= named
    found = [
        at
        for at, own in enumerate(after)
        if own.value.op == "all-gather" and own.is_of_sum and own.moves in inputs
    ]
    return found[0] if len(found) == 1 and None not in inputs else None


def _parameters_of(own: Instruction) -> set[str]:
    """Names of the entry parameters that positions are made of."""
    stack, seen, found = [own], {own.row}, set()
    while stack and len(seen) < _MOST_STEPS:
        for operand in stack.pop().operands:
            if operand.row not in seen:
                seen.add(operand.row)
                stack.append(operand)
                if operand.opcode == "parameter" and operand.metadata is not None:
                    found.add(operand.metadata.op_name or "")
    return found


def _sums_reach(module: Module, matched: _Matched) -> bool:
    """Whether the gradient of rows is a sum over devices of which all uses may be parts.

    XLA makes a reduce-scatter of a sum if devices take parts of it, or of elements made of it, and
    none needs all of it, as the gradient of a norm does.
    """
    own = {*matched.whole, *matched.parts, *matched.cut}
    table = module.collectives()._ordered()
    kinds = {row["instruction"]: row for row in table if not of_lookup(row)}
    stack: list[Instruction] = []
    for row in table:
        if row["name"] in own and "scatter" in (row["op_name"] or "").rpartition("/")[2]:
            instruction = module.instructions[row["instruction"]]
            # A collective that runs beside others lies within a fusion.
            stack += [instruction, *instruction.computation.callers]
    seen = {instruction.row for instruction in stack}
    lookups = frozenset(seen)
    while stack:
        for operand in stack.pop().operands:
            if operand.row in seen:
                continue
            seen.add(operand.row)
            made = {kinds[one.row]["kind"] for one in _with_inner(operand) if one.row in kinds}
            if "reduce-scatter" in made or (
                "all-reduce" in made and not _is_whole(operand, lookups)
            ):
                return True
            if not _computes(operand):
                stack.append(operand)
    return False


def _is_whole(own: Instruction, lookups: frozenset[int]) -> bool:
    """Whether something but `lookups` is computed of all of an array, or of elements made of it."""
    stack, seen = [own], {own.row, *lookups}
    while stack:
        for user in stack.pop().users:
            if user.row in seen:
                continue
            if _computes(user):
                return True
            seen.add(user.row)
            stack.append(user)
    return False


def _computes(own: Instruction) -> bool:
    """Whether the results are made of several elements of an operand each."""
    return any(one.opcode in _COMPUTES for one in _with_inner(own))


def _with_inner(own: Instruction) -> list[Instruction]:
    called = own.called_computations if own.opcode == "fusion" else ()
    return [own, *(one for computation in called for one in computation.instructions)]
