"""Compact HTML of results and tables for notebooks, with units, in light and dark themes.

Tables show the columns that fit a text column of a notebook, chosen like those of a terminal; wider
ones scroll inside their box. Colours are those of the surrounding page.
"""

from __future__ import annotations

from html import escape

from hlofast import _text
from hlofast._layout import Layout, fitted, roles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hlofast._core import Field, Module
    from hlofast._report.chart import Chart
    from hlofast._result import Note, Result, Section
    from hlofast.table import Table

_SHOWN = 10
_ROOM = 140
"""Characters in a row of a table with all columns; most fonts then need less than 1,000 pixels."""
_ROOM_OF_SECTIONS = 180
"""The same for tables of results, whose columns were chosen; wide ones scroll."""
_STYLE = (
    "<style>.hlofast{font-size:13px;line-height:1.4;max-width:100%;overflow-x:auto}"
    ".hlofast table.facts,.hlofast table.rows{border-collapse:collapse;border:0;margin:0 0 10px;"
    "font-size:inherit;display:table;table-layout:auto}"
    ".hlofast table tr td,.hlofast table tr th{text-align:left!important;vertical-align:bottom;"
    "border:0;padding:1px 12px 1px 0;white-space:nowrap;background:none;color:inherit;min-width:0;"
    "max-width:none}"
    ".hlofast table tr td{vertical-align:top;max-width:44em;overflow:hidden;"
    "text-overflow:ellipsis}"
    ".hlofast table tr{background:none!important;border:0}"
    ".hlofast table tr th{font-weight:600;border-bottom:1px solid color-mix(in srgb,"
    "currentColor 30%,transparent)}"
    ".hlofast table tr .n{text-align:right!important;font-variant-numeric:tabular-nums}"
    ".hlofast .q{opacity:.72;font-weight:400}"
    ".hlofast table caption{text-align:left;font-weight:600;color:inherit;padding:4px 0 2px;"
    "caption-side:top;white-space:nowrap}"
    ".hlofast table.facts tr td:nth-child(2){white-space:normal;max-width:60em}"
    ".hlofast p{margin:2px 0 6px;max-width:100ch}</style>"
)
"""More specific than the rules of notebooks for tables."""
_STYLE_OF_CHARTS = (
    "<style>.hlofast .still{display:block;width:100%;max-width:1100px;height:auto;font-size:11px}"
    ".hlofast .still text{fill:currentColor}"
    ".hlofast .still .rule{stroke:color-mix(in srgb,currentColor 25%,transparent);fill:none}"
    "</style>"
)


def table(
    shown: Table,
    columns: Sequence[str] | None = None,
    title: str = "",
    module: Module | None = None,
) -> str:
    """Returns the first rows of a table, in a box of its own."""
    fields = [shown.field(name) for name in (shown.columns if columns is None else columns)]
    return _box(_table(shown, fields, title, module, _SHOWN))


def _box(content: str) -> str:
    return f'{_STYLE}<div class="hlofast">{content}</div>'


def _table(
    shown: Table,
    fields: Sequence[Field],
    title: str,
    module: Module | None,
    limit: int | None,
    room: int = _ROOM,
    figure: str | None = None,
    named: str | None = None,
) -> str:
    """Returns the first `limit` rows (None: all) and the columns that fit."""
    fields = [field for field in fields if _text.says_something(shown, field.name)]
    first = shown if limit is None else shown.top(limit)
    columns = [
        [_text.cell(field, value, module) for value in first.values(field.name)] for field in fields
    ]
    rows = list(zip(*columns, strict=True))
    headings = [_text.heading_of(field) for field in fields]
    purposes = roles(fields, figure, named)
    layout = Layout(headings, rows, purposes, room)
    is_number = [
        field.kind == "index" or (field.is_amount and field.kind != "flag") for field in fields
    ]
    classes = [' class="n"' if holds else "" for holds in is_number]
    head = "".join(
        f'<th{classes[at]} title="{escape(fields[at].doc)}">'
        f"{'<br>'.join(map(escape, layout.headings[at]))}</th>"
        for at in layout.columns
    )

    def cell(text: str, at: int) -> str:
        short = fitted(text, purposes[at], layout.widths[at])
        whole = f' title="{escape(text)}"' if short != text else ""
        return f"<td{classes[at]}{whole}>{escape(short)}</td>"

    body = "".join(
        f"<tr>{''.join(cell(row[at], at) for at in layout.columns)}</tr>" for row in rows
    )
    counted = _text.counted(len(shown), "row")
    if len(first) < len(shown):
        counted = f"first {len(first):,} of {counted}"
    caption = f'{escape(title)} <span class="q">({counted})</span>' if title else counted
    left_out = (
        f'<p class="q">further columns: {escape(", ".join(layout.left_out))}</p>'
        if layout.left_out
        else ""
    )
    head = f"<caption>{caption}</caption><tr>{head}</tr>"
    return f'<table class="rows">{head}{body}</table>{left_out}'


def paragraphs(section: Section) -> str:
    """Returns the first rows of a section that consists of paragraphs."""
    every = section.paragraphs or ()
    shown = every if section.is_whole else every[:_SHOWN]
    if not shown:
        return ""
    title = section.title + _text.first_of(len(shown), len(every))
    parts = [f"<p><b>{escape(title)}</b></p>"] if title != shown[0][0] else []
    for head, lines in shown:
        own = "".join(
            f"<br>{escape(_text.printable(start + ': ' if start else start))}"
            f"{escape(_text.printable(text))}"
            for start, text in lines
        )
        parts.append(f"<p><b>{escape(_text.printable(head))}</b>{own}</p>")
    return "".join(parts)


def result(shown: Result, sections: Iterable[Section], drawn: Chart | None = None) -> str:
    """Returns facts, a chart, the first rows or paragraphs of each section, and notes."""
    head = _facts(shown) + _chart(drawn)
    return _page(head, sections, shown.every_note, shown._module)


def _chart(shown: Chart | None) -> str:
    """A chart as a drawing, with its title and note."""
    if shown is None:
        return ""
    from hlofast._report import still

    title, note = escape(shown.title), escape(shown.note)
    drawing = still.chart(shown)
    return f'{_STYLE_OF_CHARTS}<p><b>{title}</b></p>{drawing}<p class="q">{note}</p>'


def _facts(shown: Result) -> str:
    """Returns the facts as text output shows them, each with its provenance unless it says it."""
    known = {fact.field.label: fact for fact in shown.facts}
    docs = {field.label: field.doc for field in shown.FACTS}
    rows = []
    for label, text in shown.shown_facts:
        if not text:
            continue
        fact = known.get(label)
        how = fact.provenance if fact is not None and fact.field.is_amount else ""
        if (fact is not None and fact.value is None) or how in text.split():
            how = ""
        rows.append(
            f'<tr title="{escape(docs.get(label, ""))}"><td class="q">{escape(label)}</td>'
            f'<td>{escape(_text.printable(text))}</td><td class="q">{how}</td></tr>'
        )
    title = escape(_text.printable(shown.title))
    return f'<table class="facts"><caption>{title}</caption>{"".join(rows)}</table>'


def sections(
    shown: Iterable[Section],
    notes: Iterable[Note],
    module: Module | None = None,
    drawn: Chart | None = None,
) -> str:
    """Returns a chart, the first rows or paragraphs of each section, and notes."""
    return _page(_chart(drawn), shown, notes, module)


def _page(
    head: str, sections: Iterable[Section], notes: Iterable[Note], module: Module | None
) -> str:
    parts = [head]
    for section in sections:
        if section.paragraphs is not None:
            parts.append(paragraphs(section))
        elif section.columns and len(section.table):
            fields = [section.table.field(name) for name in section.columns]
            limit = None if section.is_whole else _SHOWN
            own = (section.title, module, limit, _ROOM_OF_SECTIONS, section.figure, section.named)
            parts.append(_table(section.table, fields, *own))
    parts += [f'<p class="q">note: {escape(note.text)}</p>' for note in notes]
    return _box("".join(parts))
