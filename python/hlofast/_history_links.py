"""Which instruction of a dump is which of the dump after the next pass.

Consecutive dumps are compared as `hlofast diff` compares them: by structure. Names decide among
instructions that structure does not tell apart, because XLA keeps the name of what it does not make
anew.
"""

from __future__ import annotations

import re
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._core import Instruction
    from hlofast._module import Module


class Link:
    """The partners of instructions in two consecutive dumps; both maps are by row."""

    __slots__ = ("back", "moved", "on")

    def __init__(self, before: Module, after: Module) -> None:
        self.on: dict[int, int] = {}
        self.moved: set[int] = set()
        if before == after:
            self.on = {row: row for row in range(len(before))}
        else:
            diff = before.diff(after)
            pairs = diff.pairs
            columns = (pairs.values(f"instruction_{side}") for side in ("before", "after"))
            self.on = dict(zip(*columns, strict=True))
            changes = diff.changes
            kinds = zip(changes.values("kind"), changes.values("instruction_before"), strict=True)
            self.moved = {row for kind, row in kinds if kind == "moved" and row is not None}
            self._prefer_names(before, after)
            self._pair_left(before, after)
        self.back = {other: row for row, other in self.on.items()}

    def _prefer_names(self, before: Module, after: Module) -> None:
        """Exchanges partners among instructions that only names tell apart."""
        back = {other: row for row, other in self.on.items()}
        named = {after[row].name: row for row in range(len(after)) if not after[row].is_implicit}
        for row in range(len(before)):
            own, other = before[row], self.on.get(row)
            same = named.get(own.name)
            if same is None or same == other or not is_copy(own, after[same]):
                continue
            displaced = back.get(same)
            if displaced is not None and before[displaced].name == own.name:
                continue
            self.on[row], back[same] = same, row
            if other is not None:
                back.pop(other, None)
            if displaced is None:
                continue
            if other is not None and is_copy(before[displaced], after[other]):
                self.on[displaced], back[other] = other, displaced
            else:
                self.on.pop(displaced, None)

    def _pair_left(self, before: Module, after: Module) -> None:
        """Pairs what has no partner: by name, or with its copy under a longer op_name.

        Inlining puts the op_name of the call before those of the callee.
        """
        taken = set(self.on.values())
        named = {after[row].name: row for row in range(len(after)) if row not in taken}
        for row in range(len(before)) if named else ():
            other = None if row in self.on else named.get(before[row].name)
            if other is None:
                continue
            own, same = before[row], after[other]
            if (own.opcode, shape_of(own), op_name(own)) == (
                same.opcode, shape_of(same), op_name(same)
            ):  # fmt: skip
                self.on[row] = other
                taken.add(other)
        back = {other: row for row, other in self.on.items()}
        # Partners by structure alone give way to those whose op_name fits.
        open_ones: dict[Any, list[int]] = {}
        for other in range(len(after)):
            known = back.get(other)
            if op_name(after[other]) and (
                known is None or not is_named_after(before[known], after[other])
            ):
                open_ones.setdefault(signature(after[other]), []).append(other)
        left = [row for row in range(len(before)) if row not in self.on] if open_ones else []
        while left:
            row = left.pop()
            alike = open_ones.get(signature(before[row]), []) if op_name(before[row]) else []
            found = next((own for own in alike if is_named_after(before[row], after[own])), None)
            if found is None:
                continue
            alike.remove(found)
            if (displaced := back.get(found)) is not None:
                self.on.pop(displaced)
                left.append(displaced)
            self.on[row], back[found] = found, row
            if before[row].computation.name != after[found].computation.name:
                self.moved.add(row)


def links_of(modules: list[Module]) -> list[Link]:
    return [Link(*pair) for pair in pairwise(modules)]


def op_name(own: Instruction) -> str:
    metadata = own.metadata
    return (metadata and metadata.op_name) or ""


def is_named_after(own: Instruction, other: Instruction) -> bool:
    """Whether the op_name of `other` is that of `own`, or ends with it as inlining makes it."""
    name, longer = op_name(own), op_name(other)
    return name == longer or (bool(name) and longer.endswith(f"/{name}"))


def is_copy(own: Instruction, other: Instruction) -> bool:
    return op_name(own) == op_name(other) and signature(own) == signature(other)


def signature(own: Instruction) -> tuple[Any, ...]:
    """What an instruction shares with its copies, besides the op_name."""
    attributes = own.attributes.texts()
    plain = tuple((key, text) for key, text in attributes.items() if key not in _OF_PLACES)
    calls = tuple(
        (called.instructions[-1].opcode, len(called.instructions))
        for called in own.called_computations
    )
    operands = tuple(shape_of(operand) for operand in own.operands)
    return own.opcode, shape_of(own), operands, plain, calls


def shape_of(own: Instruction) -> str:
    """The shape without layouts, which passes assign on the way."""
    return re.sub(r"\{[^{}]*\}", "", str(own.shape))


def changes_of(own: Instruction, other: Instruction) -> tuple[tuple[str, str, str], ...]:
    """What differs between partners besides name and place: each with the value of both.

    Layouts, backend configurations and what `signature` ignores do not count.
    """
    found = []
    if own.opcode != other.opcode:
        found.append(("opcode", own.opcode, other.opcode))
        if other.opcode.removesuffix("-start") == own.opcode:
            return tuple(found)  # The shape of a start holds operands too.
    for what, of in (("type", _types), ("shape", _sizes)):
        before, after = of(own), of(other)
        if before != after:
            found.append((what, before, after))
    if _devices(own) != _devices(other):
        found.append(("groups", _groups(own), _groups(other)))
    texts = own.attributes.texts(), other.attributes.texts()
    for key in dict.fromkeys((*texts[0], *texts[1])):
        if key in _OF_PLACES or key in _OF_BACKENDS or key in _GROUPS:
            continue
        before, after = (text.get(key, "none") for text in texts)
        if before != after:
            found.append((key, before, after))
    return tuple(found)


def _types(own: Instruction) -> str:
    return ", ".join(dict.fromkeys(re.findall(r"\b([a-z]+[0-9]\w*|pred)\[", shape_of(own))))


def _sizes(own: Instruction) -> str:
    return ", ".join(re.findall(r"\[[^\]]*\]", shape_of(own))) or str(own.shape)


def _groups(own: Instruction) -> str:
    return next((text for key, text in own.attributes.texts().items() if key in _GROUPS), "none")


def _devices(own: Instruction) -> object:
    """The groups of devices, however the text writes them."""
    known = own.attributes.get("replica_groups")
    try:
        lists = None if known is None else known.expand()
    except ValueError:  # A mesh, or more devices than are worth it.
        lists = None
    return _groups(own) if lists is None else lists


_GROUPS = ("replica_groups", "source_target_pairs")
_OF_BACKENDS = ("backend_config", "frontend_attributes", "use_global_device_ids", "origin")
_OF_PLACES = (
    "metadata", "channel_id", "control-predecessors", "to_apply", "calls", "body", "condition",
    "branch_computations", "true_computation", "false_computation", "called_computations",
    "called_computation", "sharding",
)  # fmt: skip
"""Attributes that copies need not share."""
