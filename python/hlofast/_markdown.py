"""Markdown of results, for comments on pull requests and job summaries.

Texts of programs may hold anything. Names, scopes, paths and shapes become code spans, in which
Markdown and HTML mean nothing and no user is mentioned. In sentences, characters with a meaning are
escaped, and what would become a mention or a link is broken by a space of no width.
"""

from __future__ import annotations

import re

from hlofast import _text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast._core import Field, Module
    from hlofast._result import Result, Section

MOST = 60_000
"""Limit on the characters of a document: GitHub refuses comments of more than 65,536."""
_CODE = ("name", "scope", "path", "shape", "instruction", "axes")
"""Kinds of columns whose texts come from a program."""
_LONGEST = 600
"""Characters of a sentence."""
_MARK = re.compile(r"[\\`*\[\]<>|~&!{}]|(?<![^\W_])_|_(?![^\W_])")
_LINK = re.compile(r"(?<=[@#])(?=\w)|(?<=:)(?=//)|(?<=[wW])(?=\.)")
_DOLLAR = "<span>$</span>"
"""A dollar sign that GitHub does not take for the start of a formula; a backslash does not help."""
_RUN = re.compile(r"`+")


def text(sentence: str) -> str:
    """Returns a sentence, escaped; only its first characters if it is long."""
    shown = _text.printable(sentence)
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
    escaped = _MARK.sub(r"\\\g<0>", _LINK.sub("\u200b", shown))
    return escaped.replace("$", _DOLLAR)


def code(name: str) -> str:
    """Returns a text of a program as a code span that may stand in a table."""
    shown = _text.printable(name).strip() or " "
    fence = "`" * (1 + max(map(len, _RUN.findall(shown)), default=0))
    room = " " if shown.startswith("`") or shown.endswith("`") else ""
    # Tables are split at pipes before code spans are found.
    return f"{fence}{room}{shown}{room}{fence}".replace("\\|", "|").replace("|", "\\|")


def result(
    shown: Result, sections: Iterable[Section], *, limit: int | None = 10, most: int = MOST
) -> str:
    """Returns title, facts, the first `limit` rows of each section (None: all), and notes.

    Sections beyond `most` characters are left out, with a sentence that says so.
    """
    parts = [f"### {text(shown.title)}", *_facts(shown)]
    tables = [own for section in sections if (own := _section(section, shown._module, limit))]
    notes = [f"> {text(note.text)}" for note in shown.every_note]
    room = most - sum(len(part) + 2 for part in (*parts, *notes))
    for at, table in enumerate(tables):
        room -= len(table) + 2
        if room < 0:
            left = _text.counted(len(tables) - at, "further table")
            parts.append(f"> {left} left out: the document would be too long")
            break
        parts.append(table)
    return "\n\n".join([*parts, *notes]) + "\n"


def _facts(shown: Result) -> list[str]:
    """The facts as a list; a verdict comes first, as a sentence."""
    rows = _text.with_provenance(shown)
    verdict = [f"**{text(value)}**" for label, value in rows if label == "verdict" and value]
    lines = [f"- {text(label)}: {text(value)}" for label, value in rows if label != "verdict"]
    return [*verdict, "\n".join(lines)] if lines else verdict


def _section(section: Section, module: Module | None, limit: int | None) -> str:
    """A table or paragraphs of a result; empty if there are no rows."""
    limit = None if section.is_whole else limit
    if section.paragraphs is not None:
        every = section.paragraphs[:limit]
        if not every:
            return ""
        parts = [f"#### {text(section.title)}{_text.first_of(len(every), len(section.paragraphs))}"]
        for head, lines in every:
            told = [
                f"- {text(start)}: {text(own)}" if start else f"- {text(own)}"
                for start, own in lines
            ]
            parts.append("\n".join([f"**{text(head)}**", *told]))
        return "\n\n".join(parts)
    table = section.table
    fields = [table.field(name) for name in section.columns if _text.says_something(table, name)]
    if not len(table) or not fields:
        return ""
    rows = table if limit is None else table.top(limit)
    columns = [[_cell(own, value, module) for value in rows.values(own.name)] for own in fields]
    written = [
        "| " + " | ".join(text(own.label) for own in fields) + " |",
        "|" + "|".join("---:" if own.is_amount else "---" for own in fields) + "|",
        *("| " + " | ".join(row) + " |" for row in zip(*columns, strict=True)),
    ]
    title = f"#### {text(section.title)}{_text.first_of(len(rows), len(table))}"
    return f"{title}\n\n" + "\n".join(written)


def _cell(field: Field, value: Any, module: Module | None) -> str:
    """A value with its unit."""
    if value is None:
        return "unknown"
    if field.kind in ("bytes", "flops"):
        sign = ("-" if value < 0 else "+" if value > 0 else "") if field.signed else ""
        return sign + _text.figure(field, abs(value) if field.signed else value)
    shown = _text.cell(field, value, module)
    return code(shown) if field.kind in _CODE else text(shown)
