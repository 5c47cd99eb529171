"""`HistoryFound`: which pass made, cloned, split, merged, changed or removed an instruction.

`_history_links.py` finds the partners of instructions in consecutive dumps. What has no partner is
explained by the graph around it:

* removed, while its users read an instruction of the same opcode in its place: merged (CSE,
  combiners); if they read another one, that is the `after` of the event;
* new, with the shape and attributes of an instruction that was there before and stays, and with its
  op_name, its name and `.clone`, or in a computation that is new as a whole: cloned;
* several new instructions of one opcode that read what a removed one of that opcode read, or carry
  its op_name with smaller results: split.
"""

from __future__ import annotations

from hlofast._core import Field
from hlofast._history_links import (
    Link,
    changes_of,
    is_named_after,
    links_of,
    op_name,
    signature,
)
from hlofast._result import Fact, Note, Result, Section
from hlofast._text import counted, names
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from hlofast._core import Instruction
    from hlofast._history import History
    from hlofast._module import Module
    from hlofast._programs import File
    from hlofast.table import Table

COLLECTIVES = (
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute",
    "ragged-all-to-all", "reduce-scatter",
)  # fmt: skip
"""The opcodes that `collective` stands for, and their `-start`; an async pair counts once."""
EVENTS = ("made", "cloned", "split", "merged", "removed", "changed", "renamed", "moved")
"""Events, in the order of the table within a pass."""
_EVENTS = (
    Field("index", "step", "The number of the dump.", nullable=True),
    Field("name", "pipeline", "The pipeline of the pass.", nullable=True),
    Field("name", "pass", "The pass that changed the instructions.", nullable=True),
    Field(
        "word", "event",
        "Made, cloned, split (into `count` instructions), merged (into another), removed, changed "
        "(`changes` says in what), renamed or moved (into or out of a called computation).",
    ),
    Field("word", "opcode", "The opcode after the pass; for a removed instruction, its opcode."),
    Field(
        "name", "before",
        "The first instruction before the pass; for a new instruction, the one that it replaces.",
        nullable=True,
    ),
    Field(
        "name", "after",
        "The first instruction after the pass; for a removed instruction, the one that its users "
        "read now.",
        nullable=True,
    ),
    Field("count", "count", "Number of instructions; for a split, the number of results."),
    Field(
        "text", "changes",
        "What changed instructions differ in, before and after: opcode, element type, shape, "
        "groups of devices, other attributes. Layouts do not count.",
        nullable=True,
    ),
    Field("scope", "op_name", "The framework's name for the first instruction.", nullable=True),
    Field("path", "file", "The dump after the pass."),
)  # fmt: skip
_SHOWN = (
    *("step", "pipeline", "pass", "event", "opcode", "before", "after", "count", "changes"),
    "op_name",
)
_START = "pipeline-start"
_MOST_NAMES = 4
"""Limit on the names in one cell."""
_LONGEST = 60
"""Limit on the characters of one value in a cell."""


class HistoryFound(Result):
    """What passes did to the instructions that `History.find` selects.

    `wanted` is the name, opcode or `collective`; `kind` says which of the three it was. What was in
    the first dump, what passes made and cloned and the parts of splits, less what they split,
    merged and removed, is what is in the last dump.
    """

    VERB = "history"
    FACTS = (
        Field("name", "module", "The name of the module."),
        Field("text", "find", "The search term."),
        Field(
            "word",
            "find_kind",
            "The kind of search term: name, opcode or collective.",
            label="search kind",
        ),
        Field("count", "first", "Matching instructions in the first dump.", label="in first dump"),
        Field("count", "last", "Matching instructions in the last dump.", label="in last dump"),
        *(Field("count", event, f"Instructions {event}, over all passes.") for event in EVENTS),
    )

    def __init__(self, history: History, wanted: str) -> None:
        self.history = history
        """The dumps."""
        self.wanted = wanted
        """The name, opcode or `collective`."""
        if not wanted.lstrip("%"):
            message = "nothing to find: give the name of an instruction, an opcode, or collective"
            raise ValueError(message)
        dumps = [
            (file, history.module(row))
            for row, (file, error) in enumerate(
                zip(history._files, history.values("error"), strict=True)
            )
            if error is None
        ]
        self.kind, chosen = _chosen([module for _, module in dumps], wanted.lstrip("%"))
        """What `wanted` is: name, opcode or collective."""
        links = links_of([module for _, module in dumps])
        if self.kind == "name":
            _follow(chosen, links)
        rows = list(_rows(dumps, chosen, links, groups=self.kind != "name"))
        self._first, self._last = (len(chosen[0]), len(chosen[-1])) if chosen else (0, 0)
        self._names = _names_of(dumps, chosen) if self.kind == "name" else []
        self._table = of_rows(_EVENTS, rows)

    @property
    def title(self) -> str:
        """The key that identifies the program within the folder."""
        return self.history.title

    @property
    def _module(self) -> None:
        """None, because every row belongs to another module."""

    @property
    def events(self) -> Table:
        """One row per pass and event, in the order of compilation.

        For a name each instruction has its own row; for opcodes the instructions of one pass, event
        and opcode share a row.
        """
        return self._table

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What was found, and how many instructions met each event."""
        sums = dict.fromkeys(EVENTS, 0)
        columns = (self._table.values(name) for name in ("event", "count"))
        for event, count in zip(*columns, strict=True):
            sums[event] += count
        known = (self.history.program.name, self.wanted, self.kind, self._first, self._last)
        values = (*known, *(sums[event] for event in EVENTS))
        return tuple(
            Fact(field, value)
            for field, value in zip(self.FACTS, values, strict=True)
            if value or field.name in ("first", "last")
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """The names that the instructions had, and what cannot be told."""
        notes = []
        if len(self._names) > 1:
            text = f"followed by structure under the names {names(self._names, most=8)}"
            notes.append(Note("other-names", text, names=len(self._names)))
        errors = [error for error in self.history.values("error") if error is not None]
        if errors:
            text = (
                f"{counted(len(errors), 'dump')} could not be read: the next pass has their events"
            )
            notes.append(Note("unreadable", text, dumps=len(errors)))
        if not len(self._table):
            notes.append(Note("unchanged", "no pass changed these instructions"))
        return tuple(notes)

    def sections(self) -> tuple[Section, ...]:
        """The events."""
        return (Section("events", "Events by pass", self._table, _SHOWN),)

    def __repr__(self) -> str:
        return f"<HistoryFound {self.wanted}: {counted(len(self._table), 'event')}>"


def is_collective(opcode: str) -> bool:
    """Whether an opcode is that of a collective or of its start."""
    return opcode.removesuffix("-start") in COLLECTIVES


def _chosen(modules: list[Module], wanted: str) -> tuple[str, list[set[int]]]:
    """What `wanted` is, and the rows that it selects in each module.

    Raises `ValueError` for what no dump has.
    """
    if wanted in ("collective", "collectives"):
        each = [
            {row for row, opcode in enumerate(module.opcodes()) if is_collective(opcode)}
            for module in modules
        ]
        return "collective", _once(modules, _written(modules, each))
    each = [
        {row for row, opcode in enumerate(module.opcodes()) if opcode == wanted}
        for module in modules
    ]
    if any(each):
        each = _written(modules, each)
        return "opcode", _once(modules, each) if is_collective(wanted) else each
    named: list[set[int]] = []
    for module in modules:
        try:
            named.append({module[wanted].row})
        except (KeyError, ValueError):
            named.append(set())
    if any(named):
        return "name", named
    from hlofast._names import meant

    known = sorted({instruction.name for module in modules for instruction in module})
    known += sorted({opcode for module in modules for opcode in module.opcodes()})
    raise ValueError(
        f"no dump has an instruction or opcode {wanted!r}{meant(wanted, known)}; give the name of "
        "an instruction, an opcode, or collective"
    )


def _written(modules: list[Module], each: list[set[int]]) -> list[set[int]]:
    """The rows that are written in the text."""
    return [
        {row for row in rows if not module[row].is_implicit}
        for module, rows in zip(modules, each, strict=True)
    ]


def _once(modules: list[Module], each: list[set[int]]) -> list[set[int]]:
    """The rows that stand for a collective.

    XLA for TPUs repeats an asynchronous collective in every fusion that waits for it.
    """
    return [
        rows & set(module.collectives().values("instruction")) if rows else rows
        for module, rows in zip(modules, each, strict=True)
    ]


def _follow(chosen: list[set[int]], links: list[Link]) -> None:
    """Adds the partners of the chosen rows in all other modules."""
    for at in reversed(range(len(links))):
        back = links[at].back
        chosen[at] |= {back[row] for row in chosen[at + 1] if row in back}
    for at, link in enumerate(links):
        chosen[at + 1] |= {link.on[row] for row in chosen[at] if row in link.on}


def _names_of(dumps: list[tuple[File, Module]], chosen: list[set[int]]) -> list[str]:
    """The names of the chosen rows, in the order of their first dump."""
    found: dict[str, None] = {}
    for (_, module), rows in zip(dumps, chosen, strict=True):
        found.update(dict.fromkeys(module[row].name for row in sorted(rows)))
    return list(found)


def _rows(
    dumps: list[tuple[File, Module]],
    chosen: list[set[int]],
    links: list[Link],
    *,
    groups: bool,
) -> Iterator[tuple[Any, ...]]:
    """The rows of the table of events."""
    for at, link in enumerate(links):
        (earlier, before), (file, after) = dumps[at], dumps[at + 1]
        step = _Step(before, after, link, chosen[at], chosen[at + 1])
        found = sorted(step.events(), key=lambda own: (EVENTS.index(own.event), own.order))
        if not groups:
            chosen[at + 1] |= step.followed
            for row in step.followed:
                _extend(chosen, links, at + 1, row)
        pipeline, name = file.pipeline, file.after
        if name == _START and earlier.before:
            # A pass that runs a pipeline of its own has changed the module before that begins.
            pipeline, name = earlier.pipeline, earlier.before
        place = (file.step, pipeline or None, name or file.stage)
        if groups:
            found = list(_grouped(found))
        for own in found:
            yield (*place, *own.cells(), file.path)


def _extend(chosen: list[set[int]], links: list[Link], at: int, row: int) -> None:
    """Adds the partners of `row` of module `at` in all later modules."""
    for later in range(at, len(links)):
        known = links[later].on.get(row)
        if known is None:
            return
        row = known
        chosen[later + 1].add(row)


class _Event:
    """One event."""

    __slots__ = ("after", "before", "changes", "count", "event", "op_name", "opcode", "order")

    def __init__(
        self,
        event: str,
        opcode: str,
        before: Iterable[Instruction],
        after: Iterable[Instruction],
        count: int = 1,
        changes: tuple[tuple[str, str, str], ...] = (),
    ) -> None:
        self.event = event
        self.opcode = opcode
        self.changes = [changes]
        both = list(before), list(after)
        self.before, self.after = ([own.name for own in side] for side in both)
        self.count = count
        first = next((own for side in reversed(both) for own in side), None)
        self.order = -1 if first is None else first.row
        metadata = None if first is None else first.metadata
        self.op_name = (metadata and metadata.op_name) or None

    def cells(self) -> tuple[Any, ...]:
        """The cells from `event` to `op_name`."""
        before, after = (
            names(list(dict.fromkeys(side)), most=_MOST_NAMES) or None
            for side in (self.before, self.after)
        )
        return self.event, self.opcode, before, after, self.count, _said(self.changes), self.op_name


def _said(changes: list[tuple[tuple[str, str, str], ...]]) -> str | None:
    """What the instructions of one event differ in; their first values stand for others."""
    parts = []
    for same in zip(*changes, strict=True):
        before, after = (_first(change[side] for change in same) for side in (1, 2))
        parts.append(f"{same[0][0]} {before} to {after}")
    return "; ".join(parts) or None


def _first(values: Iterable[str]) -> str:
    known = list(dict.fromkeys(values))
    first = known[0] if len(known[0]) <= _LONGEST else f"{known[0][:_LONGEST]}…"
    return f"{first} and {len(known) - 1} more" if len(known) > 1 else first


def _grouped(events: list[_Event]) -> Iterator[_Event]:
    """Joins the events of one kind, opcode and kind of change; every split stays alone."""
    groups: dict[tuple[Any, ...], _Event] = {}
    for own in events:
        changed = tuple(key for key, *_ in own.changes[0])
        key = (own.event, own.opcode, changed, own.order if own.event == "split" else None)
        known = groups.setdefault(key, own)
        if known is not own:
            known.before += own.before
            known.after += own.after
            known.count += own.count
            known.changes += own.changes
    yield from groups.values()


class _Step:
    """Two consecutive dumps, with the chosen rows of both."""

    def __init__(
        self, before: Module, after: Module, link: Link, old: set[int], new: set[int]
    ) -> None:
        self.before, self.after, self.link = before, after, link
        self.old, self.new = old, new
        self.followed: set[int] = set()
        """Rows of `after` that are clones and parts of the chosen rows."""
        self._alike: dict[str, dict[Any, list[int]]] = {}
        self._fresh: dict[str, list[int]] | None = None
        self._new: dict[str, bool] = {}
        self._by_place: dict[str, tuple[dict[int | None, list[int]], dict[str, list[int]]]] = {}

    def events(self) -> Iterator[_Event]:
        """What became of the chosen rows, and where those after the pass come from."""
        parts: dict[int, list[int]] = {}
        for row in sorted(self.old - self.link.on.keys()):
            if found := self._parts(row):
                parts[row] = found
        taken = {row for own in parts.values() for row in own}
        for row in sorted(self.old):
            yield from self._gone(row, parts.get(row))
        for row in sorted(self.new - taken):
            yield from self._come(row)
        yield from self._clones(taken)

    def _gone(self, row: int, parts: list[int] | None) -> Iterator[_Event]:
        """What became of a chosen row of `before`."""
        own = self.before[row]
        other = self.link.on.get(row)
        if other is None:
            if parts is not None:
                self.followed |= set(parts)
                pieces = [self.after[part] for part in parts]
                yield _Event("split", pieces[0].opcode, [own], pieces, len(pieces))
                return
            reads, is_merged = self._instead(own)
            event = "merged" if is_merged else "removed"
            yield _Event(event, own.opcode, [own], [] if reads is None else [reads])
        elif other not in self.new and self._start_of(other) not in self.new:
            # The instruction stays under another opcode.
            yield _Event("removed", own.opcode, [own], [self.after[other]])
        else:
            partner = self.after[self._start_of(other)]
            changes = changes_of(own, partner)
            if changes:
                yield _Event("changed", partner.opcode, [own], [partner], changes=changes)
            if row in self.link.moved and partner.opcode == own.opcode:
                yield _Event("moved", partner.opcode, [own], [partner])
            elif not changes and partner.name != own.name:
                yield _Event("renamed", partner.opcode, [own], [partner])

    def _start_of(self, row: int) -> int:
        """The start whose `-done` `row` is, otherwise `row`."""
        own = self.after[row]
        if own.opcode.endswith("-done") and len(own.operands):
            return int(own.operands[0].row)
        return row

    def _come(self, row: int) -> Iterator[_Event]:
        """Where a chosen row of `after` comes from; nothing if it stays or is a clone."""
        own = self.after[row]
        other = self.link.back.get(row)
        if other is None and own.opcode.endswith("-start"):
            # A diff may take the end of an asynchronous pair for the instruction before.
            ends = (self.link.back.get(user.row) for user in own.users)
            other = next((end for end in ends if end in self.old), None)
        if other is not None:
            if other not in self.old:
                yield _Event("made", own.opcode, [self.before[other]], [own])
            return
        if self._original(own) is None:
            replaced = self._replaced(own)
            yield _Event("made", own.opcode, [] if replaced is None else [replaced], [own])

    def _clones(self, taken: set[int]) -> Iterator[_Event]:
        """The clones among the chosen rows of `after`, or of the chosen rows of `before`."""
        rows = self.new - self.link.back.keys() - taken
        opcodes = {self.before[row].opcode for row in self.old}
        further = {row for opcode in opcodes for row in self._unmatched(opcode)} - taken
        for row in sorted(rows | further):
            own = self.after[row]
            original = self._original(own)
            if original is not None and (row in rows or original in self.old):
                self.followed.add(row)
                yield _Event("cloned", own.opcode, [self.before[original]], [own])

    def _unmatched(self, opcode: str) -> list[int]:
        """Rows of `after` without a partner."""
        if self._fresh is None:
            self._fresh = {}
            for row, other in enumerate(self.after.opcodes()):
                if row not in self.link.back and not self.after[row].is_implicit:
                    self._fresh.setdefault(other, []).append(row)
        return self._fresh.get(opcode, [])

    def _original(self, own: Instruction) -> int | None:
        """The row of `before` of which an instruction without a partner is a copy."""
        known = self._alike.get(own.opcode)
        if known is None:
            known = self._alike[own.opcode] = {}
            for row in self.link.on:
                if self.before[row].opcode == own.opcode:
                    known.setdefault(signature(self.before[row]), []).append(row)
        for row in known.get(signature(own), []):
            source = self.before[row]
            is_told = bool(op_name(own)) or self._is_new(own)
            # XLA names a copy after what it copies.
            is_told = is_told or own.name.partition(".clone")[0] == source.name != own.name
            if is_told and is_named_after(source, own):
                return row
        return None

    def _is_new(self, own: Instruction) -> bool:
        """Whether nothing in the instruction's computation has a partner."""
        name = own.computation.name
        known = self._new.get(name)
        if known is None:
            rows = (inner.row for inner in own.computation.instructions)
            known = self._new[name] = not any(row in self.link.back for row in rows)
        return known

    def _parts(self, row: int) -> list[int]:
        """The rows of `after` into which a row without a partner was split; empty if it was not."""
        own = self.before[row]
        readers, named = self._places(own.opcode)
        sources = {self.link.on.get(operand.row) for operand in own.operands}
        of_operands = {part for source in sources for part in readers.get(source, ())}
        size = own.shape.bytes
        of_name = [
            part
            for part in named.get(op_name(own), ())
            if size is not None and (self.after[part].shape.bytes or size) < size
        ]
        found = of_name if len(of_name) > 1 else sorted(of_operands)
        return found if len(found) > 1 else []

    def _places(self, opcode: str) -> tuple[dict[int | None, list[int]], dict[str, list[int]]]:
        """Rows of `after` without a partner, by what they read and by op_name."""
        known = self._by_place.get(opcode)
        if known is None:
            readers: dict[int | None, list[int]] = {}
            named: dict[str, list[int]] = {}
            for part in self._unmatched(opcode):
                own = self.after[part]
                for operand in own.operands:
                    readers.setdefault(int(operand.row), []).append(part)
                if op_name(own):
                    named.setdefault(op_name(own), []).append(part)
            known = self._by_place[opcode] = readers, named
        return known

    def _instead(self, own: Instruction) -> tuple[Instruction | None, bool]:
        """What the users of a removed instruction read now, and whether it was merged into that."""
        for user in own.users:
            other = self.link.on.get(user.row)
            if other is None:
                continue
            now = self.after[other].operands
            if len(now) != len(user.operands):
                continue
            place = next(
                (at for at, operand in enumerate(user.operands) if operand.row == own.row), None
            )
            if place is None:
                continue
            found = now[place]
            seen = found
            while seen.opcode in ("get-tuple-element", "bitcast") and len(seen.operands):
                seen = seen.operands[0]
            is_older = seen.row in self.link.back
            if seen.opcode == own.opcode and (is_older or len(seen.operands) > len(own.operands)):
                return seen, True
            return found, False
        return None, False

    def _replaced(self, own: Instruction) -> Instruction | None:
        """What the users of a new instruction read before."""
        for user in own.users:
            other = self.link.back.get(user.row)
            if other is None:
                continue
            then = self.before[other].operands
            if len(then) != len(user.operands):
                continue
            for at, operand in enumerate(user.operands):
                if operand.row == own.row and then[at].row not in self.link.on:
                    return then[at]
        return None
