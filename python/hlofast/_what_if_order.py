"""The order of a changed module's instructions where its collectives are others than in the text.

XLA's scheduler runs work beside collectives. Where the partitioner makes other collectives after a
change (`_what_if_lookup.py`, `_what_if_rings.py`), work that ran late because of those in the text
has nothing to wait for, and what it reads is not kept:

* In the text of a step whose devices exchange rows of tokens for the gradient of a table, the
  matmul of the head's gradient may run beside that exchange, after the backward loop: both are one
  fusion. If devices exchange only the table after the change, it runs before the loop. If only the
  change adds the exchange, and collectives of the text run beside matmuls in such fusions, as on
  v5e, this matmul waits for it. Steps for v5p have no such fusions, and it does not wait there.
* The gradient of a weight that is summed in a loop around a ring of devices runs after the whole
  backward pass, if layers are not a loop, and room for its sums is made early. Without the ring it
  runs as soon as its operands are there.
* Scores of attention that are too long for one kernel after the change (`_what_if_scores.py`) are
  written by another that runs just before.

Only bytes follow this order: the changed module itself keeps that of its text. Rings that a change
adds do not tell which work XLA runs beside them, so that nothing is moved for them.
"""

from __future__ import annotations

import re

from hlofast import _what_if_scores

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._core import Computation, Instruction, Shape
    from hlofast._module import Module
    from hlofast._what_if import WhatIf

_VIEWS = frozenset((
    "bitcast", "broadcast", "concatenate", "constant", "convert", "copy", "copy-done",
    "copy-start", "get-tuple-element", "iota", "opt-barrier", "pad", "reshape", "slice",
    "transpose", "tuple",
))  # fmt: skip
"""Opcodes that do not count as work to wait for."""
_SLICES = frozenset(("dynamic-slice", "slice"))
_MATMULS = frozenset(("convolution", "dot"))
_LATE = frozenset(("fusion", *_MATMULS))
"""Opcodes of matmuls that may wait; those in loops do not."""
_MOST_NESTED = 8
"""Limit on computations within computations."""
_SOON = 0.5
"""The place of a row that moves, behind the row that it waits for."""


def ordered(result: WhatIf) -> Module:
    """Returns the changed module in the order that its peaks have; itself if nothing moves."""
    changed = result.changed
    if not result.is_changed or result.policy is not None or not changed.is_scheduled:
        return changed
    loops = _ring_loops(changed, result._rings.vanished)
    lookups = result._lookups
    is_free = lookups is not None and lookups.is_sure and lookups.is_other
    gathers: set[int] = set()
    if is_free and lookups is not None and not lookups.moves_rows:
        gathers = set(_beside(changed, lookups.removed))
    waits = is_free and lookups is not None and lookups.adds_rows and _has_fused_starts(changed)
    scores = dict(_what_if_scores.written(result))
    if not loops and not gathers and not waits and not scores:
        return changed
    entry = _Entry(changed)
    if not entry.is_plain:
        return changed
    for at in sorted(loops):
        entry.run_early(at)
    if loops:
        entry.make_room_late()
    for at in sorted(gathers):
        entry.run_before(at)
    if waits:
        entry.run_behind_loops()
    for at, shape in scores.items():
        entry.write_first(at, shape)
    from hlofast.errors import ParseError

    try:
        return entry.module()
    except ParseError:
        return changed  # A line that the rewriting did not foresee; the text's own order stands.


def _ring_loops(module: Module, transfers: set[str]) -> set[int]:
    """The rows of the loops in the entry computation that have some of the transfers."""
    entry = module.entry.index
    found = set()
    for name in transfers:
        callers = module.instructions[name].computation.callers
        if len(callers) == 1 and callers[0].opcode == "while":
            found |= {own.index for own in callers if own.computation.index == entry}
    return found


def _beside(module: Module, collectives: dict[str, int]) -> Iterator[int]:
    """Yields the rows of the entry computation that start a collective beside other work."""
    for name in collectives:
        computation = module.instructions[name].computation
        for caller in computation.callers:
            if _starts(caller):
                yield caller.index


def _has_fused_starts(module: Module) -> bool:
    """Whether some collective starts in a fusion."""
    return any(_starts(module.instructions[int(at)]) for at in module.where(opcode="fusion"))


def _starts(own: Instruction) -> bool:
    """Whether a fusion starts a collective, beside which another fusion runs a matmul."""
    return own.opcode == "fusion" and own.name.startswith("async-collective-start")


class _Entry:
    """The rows of the entry computation, by number, and the places to which they move."""

    def __init__(self, module: Module) -> None:
        self.source = module
        self.rows = list(module.entry.instructions)
        self.at = {row.index: number for number, row in enumerate(self.rows)}
        self.operands = [
            [self.at[own.index] for own in row.operands if own.index in self.at]
            for row in self.rows
        ]
        self.users: list[list[int]] = [[] for _ in self.rows]
        for number, operands in enumerate(self.operands):
            for own in operands:
                self.users[own].append(number)
        self.place = [float(number) for number in range(len(self.rows))]
        self.lines = module.text.split("\n")
        self.changed: dict[int, str] = {}
        """By number: the new line. Numbers that no row has are those of new ones."""
        self._known: dict[int, bool] = {}
        self._precedes: list[bool] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether each row has a line."""
        lines = [row.text_line for row in self.rows]
        return len(set(lines)) == len(lines) and all(
            line is not None and row.name in self.lines[line - 1]
            for row, line in zip(self.rows, lines, strict=True)
        )

    def run_early(self, row: int) -> None:
        """Runs the loop of a gradient as soon as its operands are there."""
        number = self.at[row]
        if self._leads_to_matmul(number):
            return  # It is not the gradient of a weight.
        waits_for = max((self._made(own) for own in self.operands[number]), default=-1)
        if waits_for + 1 < number:
            self.place[number] = waits_for + _SOON

    def run_behind_loops(self) -> None:
        """Runs matmuls of gradients between the loops of both passes after the backward loop."""
        loops = [number for number, row in enumerate(self.rows) if row.opcode == "while"]
        loops = [number for number in loops if self._has_matmul(self.rows[number])]
        for number in range(loops[-2], loops[-1]) if len(loops) > 1 else ():
            row = self.rows[number]
            if row.opcode in _LATE and self._has_matmul(row) and not self._leads_to_matmul(number):
                self._run_after(number, loops[-1])

    def _run_after(self, number: int, place: int) -> None:
        """Runs a row and what follows from it after a place."""
        stack = [number]
        while stack:
            own = stack.pop()
            if self.place[own] <= place:
                # In their old order, before the next row.
                self.place[own] = place + _SOON * own / len(self.rows)
                stack += self.users[own]

    def make_room_late(self) -> None:
        """Makes room for results where the first row that writes there runs."""
        is_empty = [False] * len(self.rows)
        for number, row in enumerate(self.rows):
            is_room = row.opcode in _VIEWS or row.opcode in ("custom-call", "fusion")
            is_empty[number] = is_room and all(is_empty[own] for own in self.operands[number])
        for number in reversed(range(len(self.rows))):
            first = min((self.place[own] for own in self.users[number]), default=0.0)
            if is_empty[number] and first - _SOON / 2 > self.place[number]:
                self.place[number] = first - _SOON / 2

    def run_before(self, row: int) -> None:
        """Runs the matmul of a gradient that is one fusion with the collective of `row` before it.

        For the account of memory, the text then has two instructions in its place.
        """
        started = {self.at[row]}
        started |= {own for own in self.users[self.at[row]]
                    if self.rows[own].opcode == "get-tuple-element"}  # fmt: skip
        for number in {user for own in started for user in self.users[own]} - started:
            fusion = self.rows[number]
            aliases = dict(_aliases(fusion.text or ""))
            parts = [] if fusion.shape.is_array else list(fusion.shape.leaves())
            beside = [place for place, own in enumerate(self.operands[number]) if own in started]
            own_results = [at for at in range(len(parts)) if aliases.get(at) not in beside]
            readers = self.users[number]
            if (
                len(own_results) != 1
                or len(self.operands[number]) != len(fusion.operands)
                or not self._has_matmul(fusion)
                or any(self.rows[own].opcode != "get-tuple-element" for own in readers)
            ):
                continue
            (result,) = own_results
            takes = [own for own in readers if f", index={result}" in (self.rows[own].text or "")]
            if any(self._leads_to_matmul(own) for own in takes):
                continue
            reads = [own for place, own in enumerate(self.operands[number]) if place not in beside]
            name = f"{fusion.name}.early"
            place = max((self._made(own) for own in reads), default=-1) + _SOON
            early = self._add(name, parts[result], reads, place)
            kept = [self.operands[number][place] for place in beside]
            pairs = [f"{{{at}}}: ({beside.index(place)}, {{}})"
                     for at, place in aliases.items() if place in beside]  # fmt: skip
            self.changed[number] = (
                f"%{fusion.name} = {fusion.shape} {self._call(kept)}, "
                f"output_to_operand_aliasing={{{', '.join(pairs)}}}"
            )
            self.operands[number] = kept
            for own in takes:
                self.operands[own] = [early]
                self.changed[own] = f"%{self.rows[own].name} = {parts[result]} bitcast(%{name})"

    def write_first(self, row: int, shape: Shape) -> None:
        """Writes a value of a fusion's inside before the fusion runs, which then reads it."""
        number = self.at[row]
        fusion, reads = self.rows[number], self.operands[number]
        name, aliases = f"{fusion.name}.first", dict(_aliases(fusion.text or ""))
        first = self._add(name, shape, reads, self.place[number] - _SOON / 2)
        pairs = [f"{{{at}}}: ({place}, {{}})" for at, place in aliases.items()]
        self.changed[number] = (
            f"%{fusion.name} = {fusion.shape} {self._call(reads, f', %{name}')}, "
            f"output_to_operand_aliasing={{{', '.join(pairs)}}}"
        )
        self.operands[number] = [*reads, first]

    def _add(self, name: str, shape: Shape, reads: list[int], place: float) -> int:
        """The number of a new row at a place."""
        number = len(self.operands)
        self.operands.append(reads)
        self.place.append(place)
        self.changed[number] = f"%{name} = {shape} {self._call(reads)}"
        return number

    def module(self) -> Module:
        """Returns the module whose rows are in their new places."""
        from hlofast._module import loads

        lines = iter(sorted((row.text_line or 0) - 1 for row in self.rows))
        text = [*self.lines]
        new: list[str] = []
        for number in self._order():
            if number in self.changed:
                new.append(self.changed[number])
            else:
                new.append(self.lines[(self.rows[number].text_line or 0) - 1])
            if number < len(self.rows):
                text[next(lines)] = "\n".join(new)
                new = []
        moved = loads("\n".join(text).encode("utf-8", "surrogateescape"))
        return moved.with_context(self.source.context)

    def _order(self) -> list[int]:
        """The numbers of the rows by their places, operands before users."""
        order: list[int] = []
        is_done = [False] * len(self.operands)
        for start in sorted(range(len(is_done)), key=lambda own: (self.place[own], own)):
            stack = [] if is_done[start] else [(start, iter(self.operands[start]))]
            is_done[start] = True
            while stack:
                number, operands = stack[-1]
                missing = next((own for own in operands if not is_done[own]), None)
                if missing is None:
                    order.append(number)
                    stack.pop()
                else:
                    is_done[missing] = True
                    stack.append((missing, iter(self.operands[missing])))
        return order

    def _call(self, operands: list[int], more: str = "") -> str:
        names = ", ".join(f"%{self.rows[own].name}" for own in operands)
        return f'custom-call({names}{more}), custom_call_target="early"'

    def _made(self, number: int) -> int:
        """The number of the last row with work that an operand is made of; -1 without any."""
        last = -1
        stack, seen = [number], {number}
        while stack:
            own = stack.pop()
            if self.rows[own].opcode == "parameter":
                continue
            if self.operands[own] and not _is_view(self.rows[own]):
                last = max(last, own)
                continue
            more = [one for one in self.operands[own] if one not in seen]
            seen.update(more)
            stack += more
        return last

    def _leads_to_matmul(self, number: int) -> bool:
        """Whether a matmul follows from what a row makes: gradients of weights lead to none."""
        if self._precedes is None:
            self._precedes = [False] * len(self.rows)
            for own in reversed(range(len(self.rows))):
                self._precedes[own] = any(
                    self._precedes[user] or self._has_matmul(self.rows[user])
                    for user in self.users[own]
                )
        return self._precedes[number]

    def _has_matmul(self, row: Instruction, depth: int = 0) -> bool:
        if row.opcode in _MATMULS:
            return True
        if row.opcode not in ("fusion", "while", "call") or depth > _MOST_NESTED:
            return False
        return any(self._calls_matmul(own, depth) for own in row.called_computations)

    def _calls_matmul(self, computation: Computation, depth: int) -> bool:
        known = self._known.get(computation.index)
        if known is None:
            known = any(self._has_matmul(own, depth + 1) for own in computation.instructions)
            self._known[computation.index] = known
        return known


def _is_view(own: Instruction) -> bool:
    """Whether an instruction only moves a value, also in slices to fast memory."""
    if own.opcode == "async-start":
        roots = (called.root for called in own.called_computations)
        return all(root is not None and root.opcode in _SLICES for root in roots)
    if own.opcode == "async-done":
        starts = own.operands
        return all(one.opcode == "async-start" and _is_view(one) for one in starts)
    is_joined = own.opcode == "custom-call" and '_target="ConcatBitcast"' in (own.text or "")
    return is_joined or own.opcode in _VIEWS


def _aliases(text: str) -> Iterator[tuple[int, int]]:
    """Yields which element of a tuple is in the buffer of which operand."""
    for own in re.finditer(r"\{(\d+)\}: \((\d+), \{[^}]*\}", text):
        yield int(own[1]), int(own[2])
