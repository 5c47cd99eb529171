"""Compact HTML of results and tables for notebooks, with units, in light and dark themes."""

from __future__ import annotations

from html import escape

from hlofast import _text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hlofast._core import Module
    from hlofast._result import Note, Result, Section
    from hlofast.table import Table

_SHOWN = 10
_STYLE = (
    "<style>.hlofast{font-size:90%}.hlofast td,.hlofast th{text-align:left;padding:1px 8px;"
    "max-width:32em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}"
    ".hlofast td.n,.hlofast th.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".hlofast caption{text-align:left;font-weight:bold}.hlofast p{margin:2px 0}</style>"
)


def table(
    shown: Table,
    columns: Sequence[str] | None = None,
    title: str = "",
    module: Module | None = None,
) -> str:
    """Returns the first rows of a table."""
    fields = [shown.field(name) for name in (shown.columns if columns is None else columns)]
    classes = [' class="n"' if field.is_amount and field.kind != "flag" else "" for field in fields]
    head = "".join(
        f'<th{kind} title="{escape(field.doc)}">{escape(_text.heading_of(field))}</th>'
        for field, kind in zip(fields, classes, strict=True)
    )
    first = shown.top(_SHOWN)
    cells = [
        [
            f"<td{kind}>{escape(_text.cell(field, value, module))}</td>"
            for value in first.values(field.name)
        ]
        for field, kind in zip(fields, classes, strict=True)
    ]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*cells, strict=True))
    rows = _text.counted(len(shown), "row")
    if len(first) < len(shown):
        rows = f"first {len(first):,} of {rows}"
    caption = f"{title} ({rows})" if title else rows
    return (
        f'<table class="hlofast"><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>'
    )


def paragraphs(section: Section) -> str:
    """Returns the first rows of a section that consists of paragraphs."""
    every = section.paragraphs or ()
    shown = every if section.is_whole else every[:_SHOWN]
    if not shown:
        return ""
    title = section.title + _text.first_of(len(shown), len(every))
    parts = [f"<p><b>{escape(title)}</b></p>"]
    for head, lines in shown:
        own = "".join(
            f"<br>{escape(_text.printable(start + ': ' if start else start))}"
            f"{escape(_text.printable(text))}"
            for start, text in lines
        )
        parts.append(f"<p><b>{escape(_text.printable(head))}</b>{own}</p>")
    return "".join(parts)


def result(shown: Result, sections: Iterable[Section]) -> str:
    """Returns facts, the first rows or paragraphs of each section, and notes."""
    facts = "".join(
        f'<tr title="{escape(fact.field.doc)}"><td>{escape(fact.field.label)}</td>'
        f"<td>{escape(_text.figure(fact.field, fact.value))}</td></tr>"
        for fact in shown.facts
    )
    head = f"<table><caption>{escape(shown.title)}</caption>{facts}</table>"
    return _page(head, sections, shown.every_note, shown._module)


def sections(shown: Iterable[Section], notes: Iterable[Note], module: Module | None = None) -> str:
    """Returns the first rows or paragraphs of each section, and notes."""
    return _page("", shown, notes, module)


def _page(
    head: str, sections: Iterable[Section], notes: Iterable[Note], module: Module | None
) -> str:
    tables = "".join(
        table(section.table, section.columns, section.title, module)
        if section.paragraphs is None
        else paragraphs(section)
        for section in sections
        if section.columns
    )
    texts = "".join(f"<p>note: {escape(note.text)}</p>" for note in notes)
    return f'{_STYLE}<div class="hlofast">{head}{tables}{texts}</div>'
