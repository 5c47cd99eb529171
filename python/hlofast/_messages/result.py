"""`Messages`: what ran out, what holds it and what to change, from the text of a log."""

from __future__ import annotations

from hlofast import _text
from hlofast._messages import fields
from hlofast._messages.advice import Advice, advise
from hlofast._messages.amounts import written
from hlofast._messages.cause import CAUSES, cause, largest, padding_of
from hlofast._messages.classes import CLASSES, classify, shapes_of
from hlofast._messages.scopes import places
from hlofast._messages.warned import rows_of_warnings
from hlofast._result import Fact, Note, Result, Section
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from hlofast._context import Context
    from hlofast._messages.amounts import Amount
    from hlofast._messages.joined import Joined
    from hlofast._messages.message import Message
    from hlofast._messages.partitioner import Warned
    from hlofast._module import Module

_WHEN = {"compile": "when the program was compiled", "load": "when the program was loaded",
         "run": "at run time"}  # fmt: skip
_MEMORY = {"hbm": "HBM", "gpu": "the GPU's memory", "host": "the host's memory"}
_SHORT = 200


class Messages(Result):
    """Out-of-memory messages and partitioner warnings of a text: `hlofast.oom`.

    The facts, the allocations shown and the advice are about one message: that with the most
    figures. The tables have all messages.
    """

    VERB = "oom"
    FACTS = fields.FACTS
    CAUSES = CAUSES
    """Causes, with their meaning."""
    CLASSES = CLASSES
    """Classes of allocations, with their meaning."""

    def __init__(
        self,
        messages: Sequence[Message],
        warnings: Sequence[Warned],
        *,
        path: str | None = None,
        left_out: int = 0,
        module: Module | None = None,
        context: Context | None = None,
    ) -> None:
        self.path = path
        """The file; None for a text."""
        self.messages: tuple[Message, ...] = tuple(messages)
        """The different messages, in their order."""
        self.warnings: tuple[Warned, ...] = tuple(warnings)
        """The different warnings of the partitioner, in their order."""
        self.module = module
        """The module that the messages are joined to; None without one."""
        self._left_out = left_out
        self._context = context if module is None else module.context
        self.chosen: int = largest(self.messages)
        """The number of the message that facts and advice are about."""
        names = [entry.op_name for own in self.messages for entry in own.entries]
        known = iter(places(names, self._context))
        self._places = [[next(known) for _ in own.entries] for own in self.messages]
        self._classes = [
            [
                classify(entry, phase, own.space, shapes)
                for entry, (_, phase) in zip(own.entries, where, strict=True)
            ]
            for own, where in zip(self.messages, self._places, strict=True)
            for shapes in (shapes_of(own.entries),)
        ]
        self._causes = [cause(own, self._sums(number)) for number, own in enumerate(self.messages)]
        self._joined: Joined | None = None
        if module is not None:
            from hlofast._messages.joined import Joined

            self._joined = Joined(module)

    @property
    def title(self) -> str:
        """The file, or `message`."""
        return "message" if self.path is None else self.path

    @property
    def main(self) -> Message | None:
        """The message that facts and advice are about; None without any."""
        return self.messages[self.chosen] if self.messages else None

    @property
    def is_file(self) -> bool:
        """Whether the text is one of XLA's memory files instead of a message."""
        return self.main is not None and self.main.stage == "report"

    def _sums(self, number: int) -> dict[str, int]:
        """Bytes of the allocations of a message by class."""
        sums: dict[str, int] = {}
        entries = self.messages[number].entries
        for entry, (name, _) in zip(entries, self._classes[number], strict=True):
            if entry.size is not None:
                sums[name] = sums.get(name, 0) + entry.size.bytes
        return sums

    @property
    def cause(self) -> str | None:
        """The cause of the failure as one word; None without a message.

        Of a memory file: what takes most of the memory.
        """
        if not self.messages:
            return None
        return self._causes[self.chosen][0]

    @property
    def advice(self) -> tuple[Advice, ...]:
        """What to change, the advice for the cause first; each with the bytes it concerns."""
        main = self.main
        if main is None or self.is_file:
            return ()
        found = advise(
            main,
            self._classes[self.chosen],
            self._sums(self.chosen),
            self._causes[self.chosen][0],
        )
        if self._joined is not None:
            found += self._joined.advice(main)
        return tuple(found)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What ran out, by how much, and why."""
        return self._facts(
            (name, value, how) for name, value, how in self._told() if value is not None
        )

    def _told(self) -> Iterator[tuple[str, Any, str]]:
        main = self.main
        if main is not None:
            yield (
                "kind",
                main.text.replace(" ", "-") if self.is_file and main.text else main.kind,
                ("exact"),
            )
            if not self.is_file:
                yield "ran_out", self._ran_out(main), "exact"
            how = "assumed" if main.is_space_assumed else "exact"
            yield "memory_space", main.space, how
            if not self.is_file:
                yield "stage", main.stage, "exact"
            yield "error_code", main.code, "exact"
            yield "program", main.program, "exact"
            for name in ("used", "requested", "limit", "free"):
                yield name, *_known(main.figures.get(name))
            if not self.is_file:
                is_read = "exceeded" in main.figures
                how = _known(main.figures["exceeded"])[1] if is_read else "modelled"
                yield "exceeded", main.exceeded, how
            yield "total", *_known(main.figures.get("total"))
            yield "padding", padding_of(main), "modelled"
            yield "fragmentation", *_known(_fragments(main))
            word, reason = self._causes[self.chosen]
            yield "cause", word, "modelled"
            yield "reason", reason, "modelled"
            if len(self.messages) > 1 or main.count > 1:
                yield "messages", len(self.messages), "exact"
                yield "occurrences", sum(own.count for own in self.messages), "exact"
        else:
            yield "kind", "partitioner", "exact"
        if self.warnings:
            yield "warnings", len(self.warnings), "exact"
        if self._joined is not None:
            yield from self._joined.facts(main)

    def _ran_out(self, main: Message) -> str:
        space = main.space or "memory"
        what = f"{_MEMORY.get(space, space)} {_WHEN.get(main.stage or '', '')}".rstrip()
        figures = main.figures
        parts = []
        if "used" in figures and "limit" in figures:
            parts.append(f"{_short(figures['used'])} used of {_short(figures['limit'])}")
        elif "requested" in figures:
            have = figures.get("free") or figures.get("limit")
            of = "free" if "free" in figures else "in all"
            parts.append(f"{_short(figures['requested'])} requested")
            parts += [f"{_short(have)} {of}"] if have is not None else []
        if main.exceeded:
            parts.append(f"{written(main.exceeded)} missing")
        return f"{what}: {', '.join(parts)}" if parts else what

    @property
    def notes(self) -> tuple[Note, ...]:
        """Rounding, guesses, and what was left out."""
        found = []
        main = self.main
        if main is not None:
            rounded = [own for _, own in main.all_figures() if not own.is_exact]
            rounded += [own.size for own in main.entries if own.size and not own.size.is_exact]
            if rounded:
                most = max(own.plus_minus for own in rounded)
                text = (
                    f"the text rounds its figures, such as {rounded[0].text}: bytes are exact "
                    f"within ± {most:,} B; the table figures has each one as written"
                )
                found.append(Note("rounded", text, plus_minus=most))
            if main.is_space_assumed and not self.is_file:
                found.append(Note("memory", "the text does not name the memory; HBM is assumed"))
            if any(own.is_cut for own in main.entries) or (
                main.backend == "tpu" and main.stage == "compile" and not main.figures
                and not main.parts
            ):  # fmt: skip
                found.append(
                    Note("cut", "the text is truncated: figures outside of it are unknown")
                )
            if main.left:
                text = f"{main.left:,} further allocations are not listed"
                found.append(Note("more", text, left=main.left))
            found += self._of_module(main)
        if self._left_out:
            text = f"{self._left_out:,} B of messages in the middle of the file are not read"
            found.append(Note("left_out", text, bytes=self._left_out))
        if self.warnings and self._context_mesh() is None:
            found.append(
                Note(
                    "mesh", "shardings have no axis names: give --mesh data=2,model=4, or the dump"
                )
            )
        return tuple(found)

    def _of_module(self, main: Message) -> Iterator[Note]:
        if self._joined is not None:
            yield from self._joined.notes(main)

    def _context_mesh(self) -> Any:
        from hlofast._messages.warned import mesh_of

        return mesh_of(self.module, self._context)

    def sections(self) -> tuple[Section, ...]:
        """Advice, allocations by class and one by one, figures, messages, warnings."""
        several = len(self.messages) > 1
        advice = self.advice
        paragraphs = [(f"{own.code}: {_stake(own)}", [("change", own.text)]) for own in advice]
        rows = [(own.code, own.bytes, own.is_listed, own.text) for own in advice]
        found = [
            Section("messages", "Messages", self._of_messages(), _MESSAGE_COLUMNS)
            if several
            else Section("messages", "Messages", self._of_messages(), paragraphs=()),
            Section("classes", "Listed allocations, by class", self._by_class(), is_whole=True),
            Section("buffers", "Listed allocations", self._buffers(), fields.BUFFERS_SHOWN,
                    figure="bytes", named="number"),
            self._of_warnings(),
            Section("advice", "What to change", of_rows(fields.ADVICE, rows),
                    paragraphs=paragraphs),
            Section("figures", "Figures", self._figures(),
                    _FIGURE_COLUMNS if several is False else ("message", *_FIGURE_COLUMNS),
                    named="figure", is_whole=not several),
            Section("allocations", "Allocations", self._allocations()),
            Section("chunks", "Chunks in use", self._chunks(), ("chunks", "size", "bytes")),
        ]  # fmt: skip
        if self._joined is not None:
            found += self._joined.sections()
        return tuple(found)

    def every_section(self) -> tuple[Section, ...]:
        """All tables, including those that only a module beside the message adds."""
        from hlofast._messages.joined import Joined
        from hlofast._module import loads

        own = self.sections()
        if self._joined is not None:
            return own
        smallest = loads("HloModule m\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n")
        found = Joined(smallest).sections()
        return (
            *own,
            *(Section(one.name, one.title, one.table.take(()), one.columns) for one in found),
        )

    def table(self, name: str = "buffers") -> Table:
        """Returns a table by name, such as `buffers`, `messages`, `figures` or `warnings`."""
        from hlofast._names import unknown

        tables = self.tables
        if name not in tables:
            raise unknown("table", name, tables)
        return tables[name]

    def _of_messages(self) -> Table:
        rows = []
        for number, (own, (word, reason)) in enumerate(
            zip(self.messages, self._causes, strict=True)
        ):
            figures = [own.figures.get(name) for name in ("used", "requested", "limit", "free")]
            rows.append(
                (
                    number, _kind(own),
                    own.space, own.stage,
                    *(None if figure is None else figure.bytes for figure in figures),
                    own.exceeded, word, reason, own.program, own.where, own.code, own.count,
                    own.line, None if own.text is None else own.text[:_SHORT],
                )
            )  # fmt: skip
        return of_rows(fields.MESSAGES, rows)

    def _figures(self) -> Table:
        rows: list[tuple[Any, ...]] = []
        for number, own in enumerate(self.messages):
            rows += [
                (number, "", name, figure.bytes, figure.plus_minus, figure.text, None)
                for name, figure in own.figures.items()
            ]
            for (account, part), found in own.parts.items():
                if found is None:
                    rows.append((number, account, part, None, None, "unknown", None))
                else:
                    told = found.bytes, found.plus_minus, found.text
                    rows.append((number, account, part, *told, None))
            for name, percent in own.percents.items():
                account, _, part = name.rpartition(": ")
                rows.append((number, account, part, None, None, f"{percent:g}%", percent))
        return of_rows(fields.FIGURES, rows)

    def _buffers(self) -> Table:
        rows = []
        for number, own in enumerate(self.messages):
            if self._joined is not None:
                joined = self._joined.of(own)
            for at, entry in enumerate(own.entries):
                scope, phase = self._places[number][at]
                place = entry.source_file
                if place is not None and entry.source_line is not None:
                    place = f"{place}:{entry.source_line}"
                sizes = (entry.size, entry.unpadded)
                size, unpadded = (None if figure is None else figure.bytes for figure in sizes)
                found = (None,) * 5 if self._joined is None else joined[at]
                rows.append(
                    (
                        number, entry.number or 0, size,
                        None if entry.size is None else entry.size.plus_minus,
                        *self._classes[number][at], entry.name, entry.opcode, entry.shape,
                        unpadded, entry.padding, entry.expansion, scope, phase, entry.op_name,
                        place, entry.source_file, entry.source_line, entry.label, entry.tag,
                        entry.allocation_type, entry.offset, entry.values, *found,
                    )
                )  # fmt: skip
        if self.is_file:
            rows.sort(key=lambda row: -(row[2] or 0))
        return of_rows(fields.BUFFERS, rows)

    def _allocations(self) -> Table:
        main = self.main
        rows = [] if main is None else main.allocations
        return of_rows(
            fields.ALLOCATIONS,
            [
                (own.number, own.bytes, own.color, own.values, own.shape, own.text)
                for own in sorted(rows, key=lambda own: -own.bytes)
            ],
        )

    def _by_class(self) -> Table:
        main = self.main
        if main is None:
            return of_rows(fields.CLASSES, [])
        sums: dict[str, list[int]] = {}
        for entry, (name, _) in zip(main.entries, self._classes[self.chosen], strict=True):
            size = 0 if entry.size is None else entry.size.bytes
            own = sums.setdefault(name, [0, 0, 0])
            for at, value in enumerate((1, size, entry.padding or 0)):
                own[at] += value
        total = sum(own[1] for own in sums.values())
        rows = [
            (name, count, size, size / total if total else None, padding, CLASSES[name])
            for name, (count, size, padding) in sorted(sums.items(), key=lambda own: -own[1][1])
        ]
        return of_rows(fields.CLASSES, rows)

    def _chunks(self) -> Table:
        rows = [
            (number, count, size, min(count * size, 2**63 - 1))
            for number, own in enumerate(self.messages)
            for count, size in own.chunks
        ]
        return of_rows(fields.CHUNKS, sorted(rows, key=lambda row: -row[3]))

    def _of_warnings(self) -> Section:
        rows, paragraphs = rows_of_warnings(self.warnings, self.module, self._context)
        return Section(
            "warnings", "Warnings of the partitioner", of_rows(fields.WARNINGS, rows),
            paragraphs=paragraphs,
        )  # fmt: skip

    @property
    def _module(self) -> Module | None:
        return self.module

    def __repr__(self) -> str:
        parts = [_text.counted(len(self.messages), "message")] if self.messages else []
        parts += [self.cause] if self.cause else []
        parts += [_text.counted(len(self.warnings), "warning")] if self.warnings else []
        return f"<Messages: {', '.join(parts) or 'none'}>"


_MESSAGE_COLUMNS = (
    "message", "kind", "memory_space", "used", "requested", "limit", "free", "exceeded", "cause",
    "count", "line", "program", "where",
)  # fmt: skip
_FIGURE_COLUMNS = ("account", "figure", "bytes", "plus_minus", "written")


def _short(figure: Amount) -> str:
    """A figure as the text has it; one in bytes in XLA's short form, too."""
    is_long = figure.is_exact and figure.bytes >= 1024
    return f"{written(figure.bytes)} ({figure.bytes:,} B)" if is_long else figure.text


def _kind(message: Message) -> str:
    """The kind of a message, or of a memory file."""
    if message.stage == "report" and message.text is not None:
        return message.text.replace(" ", "-")
    return message.kind


def _known(figure: Amount | None) -> tuple[int | None, str]:
    """A figure's bytes and provenance.

    Bytes of a rounded text, as `63.80G`, are `assumed`: the text says that they lie within half a
    unit of its last digit, and hlofast takes the middle. `exact` would claim digits that the text
    lacks, `bound` is for figures known from one side, `modelled` for those of a rule of hlofast's
    own. The note `rounded` has the largest deviation, the table `figures` that of each figure.
    """
    if figure is None:
        return None, "unknown"
    return figure.bytes, "exact" if figure.is_exact else "assumed"


def _fragments(message: Message) -> Amount | None:
    for account in (f"requirement {message.space}", "buffer assignment"):
        for name in ("HLO temp fragmentation", "total fragmentation"):
            found = message.parts.get((account, name))
            if found is not None:
                return found
    return None


def _stake(own: Advice) -> str:
    if own.bytes is None:
        return "bytes unknown"
    return f"at least {_text.size(own.bytes)}" if own.is_listed else _text.size(own.bytes)
