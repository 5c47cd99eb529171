"""Log lines without what carried them: colours, quoting, prefixes of loggers, JSON, HTML."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate

from hlofast._messages import records

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
_UNESCAPED = {"n": "\n", "t": "\t", "r": "", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_ESCAPE = re.compile(r"\\(?:([ntr\"'/\\])|u([0-9a-fA-F]{4}))")
_CLOCK = r"\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?"
_PLACE = r"[\w./<>-]{1,160}:\d{1,7}"
_DATE = r"\d{4}-\d{2}-\d{2}(?:[T ]|, )"
_ZONE = r"(?:\s?(?:Z|UTC|[+-]\d{2}:?\d{2}))?"
_LEVEL = r"(?:TRACE|DEBUG|INFO|SUCCESS|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_WHO = (
    r"\[(?:rank|Rank|host|worker|task|process|proc|default|node)[ _:=-]?\d{1,6}\]:?"
    r"|(?:rank|host|worker|task|proc|pod|node)[-_ ]?\d{1,6}\s?[:|](?=\s|$)"
    r"|\[(?:[\w.@-]{1,80}@)?\d{1,6}(?:,\d{1,6})?\](?:<std(?:err|out)>)?:"  # mpirun
    r"|\((?:\w{1,40} )?(?:pid|rank|ip)=[^)\n]{0,120}\)"  # Ray, vLLM
    r"|\[pod/[\w./-]{1,200}\]"  # kubectl logs --prefix
    r"|[\w.-]{1,80}[-_]\d{1,5}\s{1,40}\|(?=\s|$)"  # docker compose
    r"|[a-z][a-z0-9]{0,40}(?:[-.][a-z0-9]{1,40}){1,8}:(?=\s|$)"  # pdsh, clush: tpu-vm-3:
    r"|\d{1,3}(?:\.\d{1,3}){3}:(?=\s|$)"
    r"|\d{1,6}:(?=\s|$)"  # srun --label
)
"""Prefixes that name the process which wrote a line."""
_PREFIXES = re.compile(
    r"\s{0,400}+(?:"
    rf"(?P<who>{_WHO})"
    rf"|(?:[A-Z][a-z]{{2}} [ \d]\d {_CLOCK}|{_DATE}{_CLOCK}{_ZONE})"
    r" (?P<unit>[\w.-]{1,80} [\w./@-]{1,80}\[\d{1,10}\]):"  # syslog and its journal
    r"|(?:>|&gt;)\s?"  # Quoted in mail and Markdown.
    rf"|[IWEFD]\d{{4,8}} {_CLOCK}\s{{1,8}}\d{{1,10}} {_PLACE}\]"  # glog
    rf"|{_DATE}{_CLOCK}: [IWEF]\s{{1,4}}(?:\d{{1,10}}\s)?{_PLACE}\]"  # tsl
    rf"|{_DATE}{_CLOCK}{_ZONE}(?: std(?:out|err) [FP])?(?=\s|$)"  # kubectl, GitHub Actions
    rf"|\[{_DATE}{_CLOCK}[^\]\s]{{0,12}}(?: [A-Z]{{3,4}})?\]"
    rf"|\S[^\t\n]{{0,80}}\t[^\t\n]{{1,80}}\t(?=\ufeff?{_DATE})"  # gh run view --log
    rf"|[A-Z][a-z]{{2}} [ \d]\d {_CLOCK}(?=\s|$)"  # ts
    rf"|{_CLOCK}(?=\s|$)"
    rf"|(?:ERROR|WARNING|INFO|DEBUG|CRITICAL) \d{{2}}-\d{{2}} {_CLOCK} \[{_PLACE}\]"
    rf"|\|\s{{0,3}}{_LEVEL}\s{{0,8}}\|"  # loguru
    r"(?: [\w.<>-]{1,160}:[\w.<>-]{1,100}:\d{1,7} -)?"
    rf"|- [\w.]{{1,100}} - {_LEVEL} -"  # logging
    rf"|\{{{_PLACE}\}} {_LEVEL} -"  # Airflow
    rf"|{_LEVEL}\s{{0,4}}:[\w.]{{1,100}}:"  # logging, its default
    rf"|\[{_LEVEL}\]"
    r"|\d{1,7}\s{0,3}(?:\||│|\t)"  # Line numbers of editors and pages.
    r")"
)
_SECTION = re.compile(r"==> (.{1,300}) <==$")
"""The head of a part of another file, as `tail` writes it."""
_LINES_EACH = 2
"""Lines of each process, on average, from which lines are sorted by process: a prefix with another
number on every line is a line number."""


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
    rows: list[tuple[str, int, str | None]] = []
    section: str | None = None
    is_json = False
    for number, line in enumerate(text.split("\n"), first_line):
        if line.startswith("==> ") and (found := _SECTION.match(line.rstrip())) is not None:
            section = found[1]
            continue
        start = line[:400].lstrip()
        if start.startswith(("{", "[{")) and (texts := records.read(line.strip())) is not None:
            is_json = False
            for own, process in texts:
                rows += _rows(own, number, process or section)
            continue
        pretty = None
        if start.startswith(('"', "{", "}", "[", "]")):
            pretty = records.of_pretty(line, is_open=is_json)
        is_json = pretty is not None
        if not is_json:
            rows += _rows(line, number, section)
        elif pretty:
            rows += _rows(pretty, number, section)
    rows = _by_process(rows)
    return Cleaned([row[0] for row in rows] or [""], [row[1] for row in rows] or [first_line])


def _rows(text: str, number: int, process: str | None) -> list[tuple[str, int, str | None]]:
    """Returns the lines of a text of one line of the file, each with that and its process."""
    rows: list[tuple[str, int, str | None]] = []
    text = _unjoined(text)
    for line in text.split("\n") if "\n" in text else (text,):
        if len(line) > LONGEST:
            line = line[:LONGEST]
        if "&" in line:
            line = _ENTITY.sub(lambda found: _ENTITIES[found[0]], line)
            if "&" in line and _ENTITY.search(line):  # Escaped twice: &amp;gt;
                line = _ENTITY.sub(lambda found: _ENTITIES[found[0]], line)
        if "**" in line:  # Bold in Markdown.
            line = line.replace("**", "")
        if "</" in line or "<br" in line or "<p" in line or "<code" in line:
            line = _TAG.sub("", line)
        if "\x1b" in line:  # Escaped in JSON.
            line = _ESCAPES.sub("", line)
        own, who = _bare(line)
        rows.append((own, number, who or process))
    return rows


def _by_process(
    rows: list[tuple[str, int, str | None]],
) -> list[tuple[str, int, str | None]]:
    """Returns lines that several processes wrote at once sorted by process, each in its order.

    A line that names no process belongs to the one before: loggers prefix the first line alone.
    """
    places: dict[str, list[tuple[str, int, str | None]]] = {}
    last = None
    changes = named = 0
    for row in rows:
        if row[2] is not None:
            named += 1
            changes += row[2] != last
            last = row[2]
        places.setdefault(last or "", []).append(row)
    found = len(places) - ("" in places)
    if found < 2 or changes <= found or named < _LINES_EACH * found:
        return rows
    return [row for own in places.values() for row in own]


def bare(line: str) -> str:
    """Returns a line without the prefixes of loggers, at most eight of them."""
    return _bare(line)[0]


def _bare(line: str) -> tuple[str, str | None]:
    """Returns a line without its prefixes, and the process that they name."""
    start = 0
    who: str | None = None
    for _ in range(8):
        found = _PREFIXES.match(line, start)
        if found is None:
            break
        named = found["who"] or found["unit"]
        if named is not None:
            who = named if who is None else f"{who} {named}"
        start = found.end()
    line = line[start:] if start else line
    return line.rstrip("\r \t"), who


def _unjoined(line: str) -> str:
    """Returns a line whose line ends are written as two characters as several lines."""
    if "\\n" not in line:
        return line
    if not line.lstrip().startswith(("{", '"')) and _JOINED.search(line) is None:
        return line  # The escapes belong to the message, as in `op_name="…[\\n shape=…]"`.
    return _ESCAPE.sub(_character, line)


def _character(found: re.Match[str]) -> str:
    if found[2] is not None:
        return chr(int(found[2], 16))
    return _UNESCAPED[found[1]]
