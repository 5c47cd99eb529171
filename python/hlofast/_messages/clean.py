"""Log lines without what carried them: colours, quoting, prefixes of loggers, JSON, HTML."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate

LONGEST = 1 << 16
"""Characters of a line that are read; the rest is left out. XLA's longest lines name hundreds of
operands in about 40,000 characters."""
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-9;:?]{0,32}[ -/]?[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-_])"
)
_ENTITY = re.compile(r"&(?:gt|lt|quot|amp|apos|nbsp|#39|#34|#x27|#x22|#60|#62);")
_ENTITIES = {
    "&gt;": ">", "&lt;": "<", "&quot;": '"', "&amp;": "&", "&apos;": "'", "&nbsp;": " ",
    "&#39;": "'", "&#34;": '"', "&#x27;": "'", "&#x22;": '"', "&#60;": "<", "&#62;": ">",
}  # fmt: skip
_TAG = re.compile(
    r"</?(?:a|b|br|code|details|div|em|p|pre|span|strong|summary|td|tr)(?:\s[^<>]{0,300})?/?>"
)
# A message with line ends written as \n: in a JSON line, or in a Python string.
_JOINED = re.compile(
    r"(?<!\\)\\n\s*(?:\\n|\d{1,6}\. Size|Total [a-z]{1,16} usage|Program [a-z]{1,16} requirement|"
    r"Output size|Largest program|BufferAssignment|Peak buffers|\\tBuffer|Buffer \d|"
    r"XLA [Ll]abel|Shape:|Operator:|reserved  |program  |InUse:|Limit:|Scoped allocation|Ran out|"
    r"parameter alloc|==========)"
)
_PAYLOADS = ("textPayload", "log", "message", "msg", "MESSAGE", "text", "line", "event", "body")
"""Names of the text in JSON records: of Google Cloud, Docker, systemd and Python loggers."""
_INNER = ("jsonPayload", "record", "data", "fields")
_UNESCAPED = {"n": "\n", "t": "\t", "r": "", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_ESCAPE = re.compile(r"\\(?:([ntr\"'/\\])|u([0-9a-fA-F]{4}))")
_CLOCK = r"\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?"
_PLACE = r"[\w./<>-]{1,160}:\d{1,7}"
_DATE = r"\d{4}-\d{2}-\d{2}[T ]"
_PREFIXES = re.compile(
    r"\s{0,400}(?:"
    r"(?:>|&gt;)\s?"  # Quoted in mail and Markdown.
    rf"|[IWEFD]\d{{4,8}} {_CLOCK}\s{{1,8}}\d{{1,10}} {_PLACE}\]"  # glog
    rf"|{_DATE}{_CLOCK}: [IWEF]\s{{1,4}}(?:\d{{1,10}}\s)?{_PLACE}\]"  # tsl
    rf"|{_DATE}{_CLOCK}(?:Z|[+-]\d{{2}}:?\d{{2}})?(?: std(?:out|err) [FP])?(?=\s)"  # kubectl
    rf"|\[{_DATE}{_CLOCK}[^\]\s]{{0,12}}\]"
    r"|\[(?:rank|Rank|host|worker|task|process|proc)[ _:=]?\d{1,6}\]:?"
    r"|(?:rank|host|worker|task|proc|pod)[-_ ]?\d{1,6}\s?[:|](?=\s)"
    r"|\[\d{1,6}(?:,\d{1,6})?\](?:<std(?:err|out)>)?:"  # mpirun
    r"|\((?:\w{1,40} )?(?:pid|rank|ip)=[^)\n]{0,120}\)"  # Ray, vLLM
    rf"|(?:ERROR|WARNING|INFO|DEBUG|CRITICAL) \d{{2}}-\d{{2}} {_CLOCK} \[{_PLACE}\]"
    r"|\d{1,7}\s{0,3}(?:\||│|\t)"  # Line numbers of editors and pages.
    r")"
)


class Cleaned:
    """A stretch of a log: one line of the message per line, without prefixes."""

    __slots__ = ("_lines", "_starts", "text")

    def __init__(self, lines: list[str], numbers: list[int]) -> None:
        self.text = "\n".join(lines)
        self._starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
        self._lines = numbers

    def line_at(self, at: int) -> int:
        """Returns the line of the file for an offset in the text."""
        return self._lines[min(bisect_right(self._starts, at) - 1, len(self._lines) - 1)]


def cleaned(raw: bytes, first_line: int = 1) -> Cleaned:
    """Returns a stretch of a log without what carried it; `first_line` is its place in the file."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    lines: list[str] = []
    numbers: list[int] = []
    for number, line in enumerate(text.split("\n"), first_line):
        if len(line) > LONGEST:
            line = line[:LONGEST]
        if line.startswith("{") or "\\n" in line:
            line = _unjoined(line)
        if "&" in line:
            line = _ENTITY.sub(lambda found: _ENTITIES[found[0]], line)
            if "&" in line and _ENTITY.search(line):  # Escaped twice: &amp;gt;
                line = _ENTITY.sub(lambda found: _ENTITIES[found[0]], line)
        if "**" in line:  # Bold in Markdown.
            line = line.replace("**", "")
        if "</" in line or "<br" in line or "<p" in line or "<code" in line:
            line = _TAG.sub("", line)
        parts = [bare(own) for own in line.split("\n")] if "\n" in line else [bare(line)]
        lines += parts
        numbers += [number] * len(parts)
    return Cleaned(lines, numbers)


def bare(line: str) -> str:
    """Returns a line without the prefixes of loggers, at most eight of them."""
    start = 0
    for _ in range(8):
        found = _PREFIXES.match(line, start)
        if found is None:
            break
        start = found.end()
    line = line[start:] if start else line
    return line.rstrip("\r \t")


def _unjoined(line: str) -> str:
    """Returns a line whose line ends are written as two characters as several lines."""
    stripped = line.lstrip()
    for _ in range(2):  # A logger's record may hold another logger's.
        if not stripped.startswith("{") or (payload := _payload(stripped)) is None:
            break
        line = stripped = payload
    else:
        return line
    if "\\n" not in line:
        return line
    if not stripped.startswith(("{", '"')) and _JOINED.search(line) is None:
        return line  # The escapes belong to the message, as in `op_name="…[\\n shape=…]"`.
    return _ESCAPE.sub(_character, line)


def _payload(line: str) -> str | None:
    """Returns the text of a JSON record of a logger; None if the line is not one."""
    import json  # Most logs have no JSON; importing it takes as long as reading a small dump.

    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    for _ in range(3):
        if not isinstance(record, dict):
            return None
        inner = next((own for own in _INNER if isinstance(record.get(own), dict)), None)
        for name in _PAYLOADS:
            if isinstance(record.get(name), str):
                return str(record[name]).rstrip("\n")
        if inner is None:
            break
        record = record[inner]
    texts = [own for own in record.values() if isinstance(own, str)]
    return max(texts, key=len).rstrip("\n") if texts else None


def _character(found: re.Match[str]) -> str:
    if found[2] is not None:
        return chr(int(found[2], 16))
    return _UNESCAPED[found[1]]
