"""XLA's memory files without their module: usage reports and buffer assignments."""

from __future__ import annotations

import re

from hlofast._messages.amounts import amount, exact
from hlofast._messages.entries import Entry, shape_in
from hlofast._messages.message import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SPACE = re.compile(r"\s*Memory Space: (\w{1,40}) \(color=(\d{1,4})\)")
_TOTAL = re.compile(r"\s*Total bytes: (\d{1,19})")
_ALLOCATION = re.compile(r"\s*allocation (\d{1,9}): size (\d{1,19})(.*)")
_VALUE = re.compile(
    r"\s*value: <(\d{1,12}) (\S{1,500})(?: \(phi\))? @(\d{1,4})> "
    r"\(size=(\d{1,19}),offset=(\d{1,19})\):\s*(.*)"
)
_COLOR = re.compile(r"color (\d{1,4})")
_INDEX = re.compile(r"\{[\d,]*\}$")
_SPACES = {0: "hbm", 1: "vmem", 2: "smem", 3: "sflag", 5: "host"}
"""Memory spaces by colour, as TPU programs use them."""
REPORT, ASSIGNMENT = "memory-usage-report", "buffer-assignment"


def kind_of(start: str) -> str | None:
    """Returns which memory file a text is, from its beginning; None if it is none of them."""
    head = start[:4096].lstrip("\ufeff \r\n\t")
    if head.startswith(("BufferAssignment:", "allocation 0: size ")):
        return ASSIGNMENT
    starts = ("Memory Space:", "Total bytes", "cumulative_size")
    if "cumulative_size;" in head and head.startswith(starts):
        return REPORT
    return None


def read(kind: str, lines: Iterable[str]) -> Message:
    """Reads a memory file, by `kind_of`."""
    message = Message(None, "report", 1, 0)
    message.text = "memory usage report" if kind == REPORT else "buffer assignment"
    message.space = "hbm"
    message.is_space_assumed = True
    (_report if kind == REPORT else _assignment)(message, lines)
    message.entries.sort(key=_size, reverse=True)
    for number, own in enumerate(message.entries, 1):
        own.number = number
    return message


def _size(entry: Entry) -> int:
    return 0 if entry.size is None else entry.size.bytes


def _report(message: Message, lines: Iterable[str]) -> None:
    space = "default"
    for number, line in enumerate(lines, 1):
        if (found := _SPACE.match(line)) is not None:
            space = _SPACES.get(int(found[2]), found[1]) if found[2] != "0" else "default"
        elif (found := _TOTAL.match(line)) is not None:
            total = exact(int(found[1]))
            if total is not None:
                message.parts[f"report {space}", "total"] = total
                if space == "default":
                    message.figures["total"] = total
        elif line.count(";") >= 4 and "cumulative_size" not in line:
            cells = [own.strip() for own in line.split(";", 4)]
            size = amount(cells[1])
            if size is None:
                continue
            entry = Entry(None, number, size)
            entry.shape = shape_in(cells[4]) if not cells[4].startswith("(") else cells[4][:400]
            entry.label = cells[4][:2000]
            entry.allocation_type = space
            values = cells[3]
            entry.tag = f"{values} values share it" if values.isdecimal() else None
            message.add(entry)


def _assignment(message: Message, lines: Iterable[str]) -> None:
    kind, total, default = "", 0, 0
    by_kind: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if (found := _ALLOCATION.match(line)) is not None:
            size, rest = int(found[2]), found[3]
            color = _COLOR.search(rest)
            space = 0 if color is None else int(color[1])
            kind = _purpose(rest)
            total += size
            by_kind[kind] = by_kind.get(kind, 0) + size
            default += size if space == 0 else 0
        elif (found := _VALUE.match(line)) is not None:
            entry = Entry(None, number, exact(int(found[4])))
            entry.name = _INDEX.sub("", found[2])
            entry.label = found[2]
            entry.fill_shape(found[6], is_parameter=kind == "parameter")
            entry.allocation_type = kind
            entry.opcode = entry.name.split(".")[0] if entry.name else None
            message.add(entry)
        elif line.startswith("Used values:"):
            break
    for name, size in (("total", total), ("default", default), *by_kind.items()):
        figure = exact(size)
        if figure is not None:
            message.parts["buffer assignment", name] = figure
    if (figure := exact(default)) is not None:
        message.figures["total"] = figure


def _purpose(rest: str) -> str:
    if rest.startswith(", parameter "):
        return "parameter"
    if rest.startswith(", constant"):
        return "constant"
    if "maybe-live-out" in rest:
        return "output"
    return "temporary" if "preallocated-temp" in rest else "other"
