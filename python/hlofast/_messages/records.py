"""JSON in logs: records of loggers, one a line or a whole export, and the texts in them."""

from __future__ import annotations

import re

from hlofast._messages.find import contains

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PAYLOADS = (
    "textPayload", "log", "message", "@message", "msg", "MESSAGE", "text", "line", "event", "body",
)  # fmt: skip
"""Names of the text in JSON records: of Google Cloud, Docker, systemd and Python loggers."""
_INNER = ("jsonPayload", "record", "data", "fields")
_SOURCES = (
    "pod_name", "pod", "host", "hostname", "_HOSTNAME", "rank", "process_index", "worker", "node",
    "node_name", "instance_id", "container_id", "container_name", "task_id",
)  # fmt: skip
"""Names under which records say which process wrote them."""
_MOST_VALUES, _DEEPEST = 2_000, 8
"""Values of one record, and levels of nesting, that are looked at."""
_MOST_RECORDS = 200_000
_STRING = r'"(?:[^"\\]|\\.)*"'
_FIELD = re.compile(rf'\s*"([^"\\]{{1,80}})"\s*:\s*(?:({_STRING})|[-\w.]{{1,40}}|[{{\[])\s*,?\s*$')
_ITEM = re.compile(rf"\s*({_STRING})\s*,?\s*$")
_BRACKETS = re.compile(r"\s*[\[\]{}]{1,4}\s*,?\s*$")
_NAMED = re.compile(rf'"(?:{"|".join(map(re.escape, PAYLOADS))})"\s*:\s*({_STRING})')
_MARKED = 20
"""Characters below which a text is a word, such as a severity."""


def read(line: str) -> list[tuple[str, str | None]] | None:
    """Returns the texts of a line of JSON with the process that wrote each; None for other lines.

    The line is a record, or a document that holds many. One that is cut off still gives the texts
    with a known name.
    """
    import json  # Most logs have no JSON; importing it takes as long as reading a small dump.

    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        texts = [_string(own[1]) for own in _NAMED.finditer(line)]
        return [(own, None) for own in texts if own] or None
    records = _records(document)
    if records is None:
        return None
    found = [own for record in records if (own := _of_record(record)) is not None]
    return found or None


def _records(document: Any) -> list[dict[str, Any]] | None:
    """Returns the records of a document: itself, its elements, or the longest list in it."""
    if isinstance(document, dict):
        lists = [
            own
            for own in document.values()
            if isinstance(own, list) and own and all(isinstance(one, dict) for one in own[:100])
        ]
        if not lists or any(isinstance(document.get(name), str) for name in PAYLOADS):
            return [document]
        document = max(lists, key=len)
    if not isinstance(document, list):
        return None
    return [own for own in document[:_MOST_RECORDS] if isinstance(own, dict)] or None


def _of_record(record: dict[str, Any]) -> tuple[str, str | None] | None:
    """Returns the text of a record and its process; None without a text.

    The text is that of the logger, unless another field holds a whole message: exceptions often
    have a field of their own.
    """
    payload = _payload(record)
    strings = list(_strings(record, _DEEPEST))
    if payload is None or not contains(payload.encode("utf-8", "replace")):
        marked = [
            own
            for own in strings
            if (payload is None or "\n" in own)
            and len(own) > _MARKED
            and contains(own.encode("utf-8", "replace"))
        ]
        if marked:
            payload = max(marked, key=len)
    if payload is None and strings:
        payload = max(strings, key=len)
    return None if payload is None else (payload.rstrip("\n"), _source(record))


def _payload(record: dict[str, Any]) -> str | None:
    own: Any = record
    for _ in range(3):
        for name in PAYLOADS:
            if isinstance(own.get(name), str):
                return str(own[name])
        inner = next((name for name in _INNER if isinstance(own.get(name), dict)), None)
        if inner is None:
            return None
        own = own[inner]
    return None


def _strings(value: Any, depth: int) -> Iterator[str]:
    """Yields the texts in a value; a list of lines, as in notebooks, is one text."""
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, dict):
        for own in list(value.values())[:_MOST_VALUES]:
            yield from _strings(own, depth - 1)
    elif depth and isinstance(value, list):
        if value and all(isinstance(own, str) for own in value):
            ends = "" if value[0].endswith("\n") else "\n"
            yield ends.join(value)
        else:
            for own in value[:_MOST_VALUES]:
                yield from _strings(own, depth - 1)


def _source(record: dict[str, Any]) -> str | None:
    """Returns the process that wrote a record, as far as it tells."""
    found: list[str] = []
    level = [record]
    for _ in range(4):
        for own in level:
            found += [str(own[name]) for name in _SOURCES if isinstance(own.get(name), str | int)]
        level = [
            value for own in level for value in list(own.values())[:100] if isinstance(value, dict)
        ][:100]
    return "/".join(found[:8])[:200] or None


def of_pretty(line: str, *, is_open: bool) -> str | None:
    """Returns the text of a line of JSON that is printed over many lines; None for other lines.

    The text is empty for names, numbers and brackets. `is_open` says that the line before is one.
    """
    if '"' not in line:
        return "" if is_open and _BRACKETS.match(line) else None
    found = _FIELD.match(line)
    if found is not None:
        text = _string(found[2]) if found[2] is not None else ""
        is_text = found[1] in PAYLOADS or "\n" in text or contains(text.encode("utf-8", "replace"))
        return text if is_text else ""
    item = _ITEM.match(line)
    if item is not None and (is_open or item[1].endswith('\\n"')):
        return _string(item[1])
    return None


def _string(quoted: str) -> str:
    """Returns the value of a JSON string; empty if it is damaged."""
    import json

    try:
        return str(json.loads(quoted, strict=False)).rstrip("\n")
    except ValueError:
        return ""
