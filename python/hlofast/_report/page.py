"""The page: self-contained HTML with compressed data inside."""

from __future__ import annotations

from hlofast import _core, _verdict_measured
from hlofast import _text as output
from hlofast._report import graph, sections, still
from hlofast._report.chart import missing
from hlofast._report.inline import Bokeh, asset, hash_of, micro, text
from hlofast._report.pack import Block
from hlofast._report.pages import GENERATOR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hlofast._core import Module
    from hlofast._report.chart import Chart
    from hlofast._report.data import Contents, Section
    from hlofast._report.sheet import Sheet
    from hlofast._report.step import Bar
    from hlofast._verdict_figures import Figure
    from hlofast._verdict_statements import Statement

SCRIPTS = ("columns.js", "grid.js", "charts.js", "memory.js", "instructions.js", "page.js")
_FIRST = 12
"""Statements of a list shown at once; the rest is collapsed."""


def html(contents: Contents, plots: bool) -> str:
    """Returns the page."""
    bokeh = Bokeh() if plots else None
    without = ""
    if bokeh is not None and not bokeh.scripts:
        bokeh, without = None, f"Charts are static images: {missing('bokeh')}"
    script = "\n".join(asset(name) for name in SCRIPTS)
    hashes = [hash_of(script)]
    blocks = {"sections": _sections(contents, plots)}
    if contents.module is not None:
        block = Block()
        block.head = graph.packed(contents.module, block)
        blocks["instructions"] = block.base64()
        values = sections.live_values(contents.module)
        if values is not None:
            block = Block()
            block.head = values.packed(block)
            blocks["values"] = block.base64()
    if bokeh is not None:
        block = Block()
        block.head = {
            "scripts": [block.place(script.encode("utf-8"), "u8") for script in bokeh.scripts]
        }
        blocks["bokeh"] = block.base64()
        hashes += [hash_of(script) for script in bokeh.scripts]
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
        "img-src data:; font-src 'none'; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    title = text(f"{contents.title} - hlofast report")
    data = "\n".join(
        f'<script type="text/plain" class="block" id="block-{name}">{content}</script>'
        for name, content in blocks.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{asset("style.css")}</style>
</head>
<body class="{contents.kind}">
{_body(contents, plots, bokeh, without)}
{data}
<script>{script}</script>
</body>
</html>
"""


def _sections(contents: Contents, plots: bool) -> str:
    """Returns the tables and charts of all sections as a block."""
    block = Block()
    block.head = {
        "kind": contents.kind,
        "sections": [
            {
                "key": section.key,
                "charts": [chart.packed(block) for chart in section.charts] if plots else [],
                "sheets": [sheet.packed(block) for sheet in _sheets(section, plots)],
            }
            for section in contents.sections
        ],
    }
    return block.base64()


def _sheets(section: Section, plots: bool) -> list[Sheet]:
    """Returns the tables of a section; without charts, also the tables of the charts."""
    beside = [] if plots else [chart.sheet for chart in section.charts]
    return [sheet for sheet in (*beside, *section.sheets) if len(sheet)]


def _body(contents: Contents, plots: bool, bokeh: Bokeh | None, without: str) -> str:
    links = [("verdict", "Verdict")]
    up = ""
    if contents.up is not None:
        address, title = contents.up
        up = f'<li><a href="{text(address)}">← {text(title)}</a></li>'
    links += [(section.key, section.title) for section in contents.sections]
    search = ""
    if contents.module is not None:
        links.append(("instructions", "Instructions"))
        search = _SEARCH
    shown = "".join(f'<li><a href="#{key}">{text(title)}</a></li>' for key, title in links)
    drawn = f"Charts: Bokeh {text(bokeh.version)} (BSD 3-Clause). " if bokeh else ""
    module = None if contents.module is None else contents.module.module
    parts = "\n".join(_section(section, plots, module) for section in contents.sections)
    instructions = _INSTRUCTIONS if contents.module is not None else ""
    return f"""<a class="skip" href="#main">Skip to the report</a>
<header class="top">
<div class="name"><span class="mark" aria-hidden="true"></span>
<h1><bdi>{text(contents.title)}</bdi></h1></div>
{search}
<button type="button" id="theme" class="quiet">Theme: system</button>
</header>
<div class="columns">
<nav aria-label="Sections"><ul>{up}{shown}</ul></nav>
<main id="main" tabindex="-1">
{_NO_SCRIPT}
<p id="trouble" class="unknown" role="alert" hidden></p>
{_verdict(contents)}
{f'<p class="unknown">{text(without)}</p>' if without else ""}
{parts}
{instructions}
</main>
</div>
<footer>Made by hlofast {text(_core._version)}. This file is self-contained. {drawn}
</footer>"""


_NO_SCRIPT = """<noscript><p class="unknown">Without JavaScript, charts are static and tables show
their first rows.</p></noscript>"""

_SEARCH = """<div class="search" role="search">
<label class="hidden" for="search">Find an instruction</label>
<input id="search" type="search" role="combobox" autocomplete="off" spellcheck="false"
 aria-expanded="false" aria-controls="found" aria-autocomplete="list"
 placeholder="Find an instruction: name, opcode, scope, source  ( / )">
<ul id="found" role="listbox" aria-label="Instructions found" hidden></ul>
<p id="found-count" class="hidden" role="status"></p>
</div>"""

_INSTRUCTIONS = """<section id="instructions" aria-labelledby="instructions-title">
<h2 id="instructions-title">Instructions</h2>
<div id="instruction" class="card" tabindex="-1" aria-live="polite">
<p class="quiet-text">Select an instruction, here or in any table or chart, to see its operands and
users.</p></div>
<div id="instructions-table"></div>
</section>"""


def _verdict(contents: Contents) -> str:
    pairs = _verdict_measured.heads(contents.figures)
    figures = "".join(_figure(figure, modelled) for figure, modelled in pairs)
    facts = _facts(contents.facts)
    if contents.findings:
        findings = _statements(contents.findings, "finding")
    else:
        words = "nothing to change" if contents.module is None else contents.module.nothing
        findings = f'<p class="quiet-text">{text(words[:1].upper() + words[1:])}.</p>'
    heading = "Findings" if contents.kind == "module" else "Highlights"
    return f"""<section id="verdict" aria-labelledby="verdict-title">
<h2 id="verdict-title">Verdict</h2>
<dl class="figures">{figures}</dl>
{"".join(map(_bar, contents.bars))}
<h3>{heading}</h3>
{findings}
{facts}
</section>"""


def _bar(bar: Bar) -> str:
    """A bar as wide as the page, with a legend that has the figures."""
    pieces = "".join(
        f'<span style="flex-grow:{part.share:.6f};background:{part.colour}" '
        f'title="{text(part.text)}"></span>'
        for part in bar.parts
    )
    legend = "".join(
        f'<li><span class="swatch" style="background:{part.colour}"></span>{text(part.text)}</li>'
        for part in bar.parts
    )
    return f"""<figure class="step">
<figcaption>{text(bar.title)}</figcaption>
<div class="parts" aria-hidden="true">{pieces}</div>
<ul class="legend">{legend}</ul>
</figure>"""


def _figure(figure: Figure, modelled: Figure | None) -> str:
    """A figure of the head; a measured one with the modelled figure in its note."""
    known = "known" if figure.value is not None else "not-known"
    note = text(figure.note)
    if modelled is not None:
        note = f"{note}<br>modelled {_value(modelled)}: {text(modelled.note)}"
    return (
        f'<div class="figure {known}"><dt>{text(figure.label)}</dt>'
        f'<dd class="value">{_value(figure)}</dd><dd class="note">{note}</dd></div>'
    )


def _value(figure: Figure) -> str:
    key, shown = text(figure.key), text(figure.text)
    if figure.value is None:
        return f'<span id="figure-{key}">{shown}</span>'
    return f'<data id="figure-{key}" value="{text(repr(figure.value))}">{shown}</data>'


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f"<div><dt>{text(name)}</dt><dd><bdi>{text(value)}</bdi></dd></div>"
        for name, value in facts
        if value
    )
    return f'<dl class="facts">{rows}</dl>' if rows else ""


def _statements(statements: Iterable[Statement], kind: str) -> str:
    items = [_statement(statement, kind) for statement in statements]
    first = f'<ol class="{kind}s">{"".join(items[:_FIRST])}</ol>'
    if len(items) <= _FIRST:
        return first
    rest = f'<ol class="{kind}s" start="{_FIRST + 1}">{"".join(items[_FIRST:])}</ol>'
    return f"{first}<details><summary>{len(items) - _FIRST:,} more</summary>{rest}</details>"


def _statement(statement: Statement, kind: str) -> str:
    stake = ""
    if statement.stake:
        stake = f'<span class="stake">{text(micro(statement.stake))}</span>'
    place = (
        f'<span class="place"><bdi>{text(statement.place)}</bdi></span>' if statement.place else ""
    )
    # Findings come from lint unless another command is named.
    is_other = kind == "finding" and statement.verb not in ("", "lint")
    verb = f" (hlofast {text(statement.verb)})" if is_other else ""
    head = f'<p class="head"><code>{text(statement.code)}</code>{verb}{stake}{place}</p>'
    remedy = f'<p class="remedy">{text(statement.remedy)}</p>' if statement.remedy else ""
    links = ", ".join(
        f'<a href="#i-{row}"><bdi>{text(name)}</bdi></a>' for row, name in statement.proof
    )
    proof = f'<p class="proof">Evidence: {links}</p>' if links else ""
    said = f"<p>{text(statement.text)}</p>" if statement.text else ""
    said += "".join(f"<p>{text(label)}: {text(what)}</p>" for label, what in statement.lines)
    return f"<li>{head}{said}{remedy}{proof}</li>"


def _section(section: Section, plots: bool, module: Module | None) -> str:
    key = text(section.key)
    charts = "".join(_chart(chart, module) for chart in section.charts) if plots else ""
    sheets = "".join(still.sheet(sheet, module) for sheet in _sheets(section, plots))
    unknown = f'<p class="unknown">{text(section.unknown)}</p>' if section.unknown else ""
    statements = _statements(section.statements, "statement") if section.statements else ""
    notes = "".join(f"<li>{text(note)}</li>" for note in section.notes)
    notes = f'<ul class="notes" aria-label="Notes">{notes}</ul>' if notes else ""
    return f"""<section id="{key}" aria-labelledby="{key}-title">
<h2 id="{key}-title">{text(section.title)}</h2>
{unknown}{_facts(section.facts)}{statements}{_code(*section.code) if section.code else ""}
<div class="charts">{charts}</div><div class="sheets">{sheets}</div>
{notes}
</section>"""


def _code(caption: str, lines: Iterable[str]) -> str:
    shown = "\n".join(map(text, lines))
    return (
        f'<div class="card"><h3 class="caption">{text(caption)}</h3>'
        f'<pre class="code" tabindex="0">{shown}</pre></div>'
        if shown
        else ""
    )


def _chart(chart: Chart, module: Module | None) -> str:
    """A chart and its figures; scripts replace both by what can be zoomed and sorted."""
    named = [mark for mark in chart.marks if mark.legend]
    legend = "".join(
        f'<li><span class="swatch {mark.glyph}" style="background:{mark.color}"></span>'
        f"{text(mark.legend)}</li>"
        for mark in named
    )
    legend = f'<ul class="legend">{legend}</ul>' if legend else ""
    note = f'<p class="note">{text(chart.note)}</p>' if chart.note else ""
    rows = output.counted(len(chart.sheet), "row")
    return f"""<div class="pair" id="pair-{text(chart.key)}">
<figure class="chart"><figcaption><h3>{text(chart.title)}</h3></figcaption>
<div class="canvas">{still.chart(chart)}</div>{legend}{note}</figure>
<details{" open" if chart.shows_figures else ""}><summary>Figures of this chart: {rows}</summary>
<div class="figures-of">{still.sheet(chart.sheet, module, "h4")}</div></details>
</div>"""
