"""Reads figures that people see, as text or HTML, and compares them with the values of results."""

import re
from collections.abc import Iterable
from html.parser import HTMLParser
from typing import Any

import hlofast
from hlofast._core import Field
from hlofast._result import PROVENANCES, Fact, Result
from hlofast._verdict_measured import MODELLED

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_NUMBER = r"[+-]?[\d,]+(?:\.\d+)?(?:e[+-]?\d+)?"


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _is_close(shown: float, value: float, share: float) -> bool:
    return abs(shown - value) <= share * abs(value) + 1e-300


def agrees(text: str, field: Field, value: Any, module: hlofast.Module | None = None) -> bool:
    """Whether a text shows this value of a field, as exactly as texts show such values."""
    if value is None:
        return text in ("unknown", "-")
    if field.kind == "flag":
        return text == ("yes" if value else "no")
    if field.kind == "instruction" and module is not None:
        value = module[value].name
    if isinstance(value, str):
        start, dots, end = text.partition("…")
        return text == value or bool(dots and value.startswith(start) and value.endswith(end))
    text = text.removeprefix("at least ").removeprefix("at most ")
    if field.kind == "seconds":
        found = re.fullmatch(rf"({_NUMBER}) (s|ms|us|ns)", text)
        return found is not None and _is_close(
            _number(found[1]) * _SECONDS[found[2]], value, 5.1e-4
        )
    if field.kind in ("flop_rate", "byte_rate"):
        found = re.fullmatch(rf"({_NUMBER}) ([kMGTP]?)(FLOP/s|B/s)", text)
        return found is not None and _is_close(_number(found[1]) * _PREFIX[found[2]], value, 5.1e-4)
    if field.kind == "ratio":
        percent = 100 * value
        if text.startswith(("<", ">")):
            return 0 < abs(percent) < 0.05 or 99.95 <= abs(percent) < 100
        found = re.fullmatch(rf"({_NUMBER}) %", text)
        return found is not None and abs(_number(found[1]) - percent) <= 0.0501
    # Bytes and FLOPs are shown in full, with a rounded figure before or after it.
    exact = re.search(rf"\(({_NUMBER})\)$", text) or re.match(rf"({_NUMBER})(?: B| FLOP)?\b", text)
    if exact is None:
        return False
    shown = _number(exact[1])
    return shown == value if isinstance(value, int) else _is_close(shown, value, 1e-5)


def _spoken(fact: Fact, result: Result) -> set[str]:
    """The labels under which a fact is shown; measured figures stand beside the modelled ones."""
    labels = {field.name: field.label for field in result.FACTS}
    return {fact.field.label.lower(), labels.get(MODELLED.get(fact.name, ""), "").lower()}


def unexplained(result: Result, shown: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of label and text that no fact of a result explains."""
    facts = result.facts
    wrong = []
    for label, text in shown:
        known = [fact for fact in facts if label.lower() in _spoken(fact, result)]
        parts = [text]
        if re.search(r" measured[,;] ", text):
            parts = re.split(r"(?<= measured)[,;] ", text)
        for part in parts:
            figure, _, word = part.rpartition(" ")
            how = word if word in PROVENANCES else None
            options = [(part, None), (figure, how)] if how else [(part, None)]
            if not any(
                agrees(own, fact.field, fact.value) and said in (None, fact.provenance)
                for fact in known
                for own, said in options
            ):
                wrong.append((label, part))
    return wrong


class Tables(HTMLParser):
    """The tables of HTML: class, caption and rows of texts; a cell's title is its whole text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[tuple[str, str, list[list[str]]]] = []
        self._into: list[str] | None = None
        self._whole: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "table":
            self.tables.append((values.get("class") or "", "", []))
        elif tag == "tr":
            self.tables[-1][2].append([])
        elif tag in ("td", "th", "caption"):
            self._into = []
            self._whole = values.get("title") if tag == "td" else None
        elif tag == "br" and self._into is not None:
            self._into.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._into is not None:
            self.tables[-1][2][-1].append(self._whole or "".join(self._into))
            self._into = None
        elif tag == "caption" and self._into is not None:
            kind, _, rows = self.tables[-1]
            self.tables[-1] = (kind, "".join(self._into), rows)
            self._into = None

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into.append(data)
