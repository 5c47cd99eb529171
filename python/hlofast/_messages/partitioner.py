"""Warnings of the partitioner in logs: `[SPMD] Involuntary full rematerialization` and others.

`PartitionedHlo::ReshardNoCache` in XLA's `spmd_partitioner.cc` writes them: since 2021 as "was not
able to go from sharding … to …", with the instruction since 2024, and since 2025 as "cannot go from
sharding … to … efficiently". The instruction is the partitioned one: its shape is one device's.
"""

from __future__ import annotations

import re

from hlofast._messages.entries import definition, metadata_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._messages.clean import Cleaned

MOST_WARNINGS = 20_000
"""Different warnings that are kept."""
MOST_TEXT = 60_000
"""Characters of a warning that are read; XLA prints every operand of the instruction."""
_REMATERIALIZATION = re.compile(
    r"Involuntary\s+full\s+rematerialization\.?\s+The\s+compile[rd]\s+"
    r"(?:was\s+not\s+able\s+to|cannot|could\s+not)\s+go\s+from\s+sharding\s+"
)
_OPERATION = re.compile(r"for\s+HLO\s+operation:?\s+")
_ENDS = re.compile(
    r"\.\s+(?:You\s+probably\s+want|As\s+the\s+last\s+resort|This\s+issue\s+will|Contact\s+Shardy)"
)
_TO = re.compile(r"\s+to\s+")
_SHARDING = re.compile(r"\bsharding=")
_WRAPPED = 60


class Warned:
    """A warning of the partitioner. What its text lacks is None."""

    __slots__ = (
        "count", "line", "lines", "name", "op_name", "opcode", "shape", "source", "source_file",
        "source_line", "target", "text", "what",
    )  # fmt: skip

    def __init__(self, what: str, text: str, line: int) -> None:
        self.what = what
        """`involuntary-rematerialization` or `other`."""
        self.text = text
        """Its first sentence."""
        self.source: str | None = None
        """The sharding that the array has."""
        self.target: str | None = None
        """The sharding that is needed."""
        self.name: str | None = None
        """The name of the instruction."""
        self.opcode: str | None = None
        """Its opcode."""
        self.shape: str | None = None
        """Its shape on one device."""
        self.op_name: str | None = None
        self.source_file: str | None = None
        self.source_line: int | None = None
        self.line = line
        """The line of the log."""
        self.lines = [line]
        """The first lines of the log in which it stands."""
        self.count = 1
        """How often the log has it."""

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from other warnings."""
        place = (self.name, self.shape, self.op_name, self.source_file, self.source_line)
        return (self.what, self.source, self.target, *place, "" if self.source else self.text)


class Warnings(list[Warned]):
    """The different warnings of a log, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[object, ...], Warned] = {}
        self.left = 0
        """Warnings beyond `MOST_WARNINGS`."""

    def read(self, text: Cleaned, start: int, end: int) -> int:
        """Reads the warning whose mark stands at `start` to `end`; returns where it ends."""
        content, stop = _content(text.text, end)
        warned = _warned(content, text.line_at(start))
        if warned is None:
            return end
        same = self._known.get(warned.key)
        if same is not None:
            same.count += 1
            if len(same.lines) < 1000:
                same.lines.append(warned.line)
        elif len(self) < MOST_WARNINGS:
            self._known[warned.key] = warned
            self.append(warned)
        else:
            self.left += 1
        return stop


def _content(text: str, start: int) -> tuple[str, int]:
    """Returns the text of a warning, with the lines of a wrapped one joined, and its end."""
    stop = text.find("\n", start)
    stop = len(text) if stop < 0 else stop
    limit = min(len(text), start + MOST_TEXT)
    for mark in ("[SPMD]", "[spmd]", "\n\n"):
        at = text.find(mark, start, limit)
        limit = limit if at < 0 else at
    found = _ENDS.search(text, start, limit)
    if found is not None:
        stop = max(stop, found.end())
        after = text.find("\n", stop)
        stop = len(text) if after < 0 else after
    lines = text[start : min(stop, start + MOST_TEXT)].split("\n")
    content = lines[0]
    for line in lines[1:]:
        tail = content[-_WRAPPED:]
        # A break inside the brackets of a shape splits a number; elsewhere it stands at a space.
        is_inside = tail.rfind("[") > tail.rfind("]") or tail.rfind('"') > tail.rfind(" ")
        content = f"{content}{line.lstrip()}" if is_inside else f"{content} {line.lstrip()}"
    return content, stop


def _warned(content: str, line: int) -> Warned | None:
    found = _REMATERIALIZATION.search(content[:1000])
    if found is None:
        if "full rematerialization" in content[:1000]:
            return Warned("involuntary-rematerialization", _sentence(content), line)
        text = _sentence(content)
        # Programs print the mark too; XLA's sentences begin with a capital letter.
        return Warned("other", text, line) if len(text) > 12 and text[0].isupper() else None
    warned = Warned("involuntary-rematerialization", _sentence(content), line)
    source, at = _sharding(content, found.end())
    warned.source = source
    to = _TO.match(content, at)
    if to is None:
        return warned
    warned.target, at = _sharding(content, to.end())
    operation = _OPERATION.search(content, at, at + 200)
    if operation is None:
        return warned
    ends = _ENDS.search(content, operation.end())
    hlo = content[operation.end() : None if ends is None else ends.start()].strip()
    warned.name, warned.shape, warned.opcode = definition(hlo)
    warned.op_name, warned.source_file, warned.source_line = metadata_of(hlo)
    return warned


def _sentence(content: str) -> str:
    return " ".join(content[:300].split())


def _sharding(text: str, at: int) -> tuple[str | None, int]:
    """Returns a sharding without its metadata, and where it ends; None if it is cut off."""
    depth = 0
    is_quoted = False
    for place in range(at, min(len(text), at + 8000)):
        character = text[place]
        if character == '"':
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == " " and depth == 0:
            own = text[at:place]
            return (_without_metadata(own) or None), place
        elif depth == 0 and place == at and not character.isalnum():
            return None, at
        if depth == 0 and place + 1 == len(text):
            return _without_metadata(text[at : place + 1]) or None, place + 1
    return None, len(text)


def _without_metadata(sharding: str) -> str:
    """Returns a sharding without `metadata={…}`, which names the constraint it comes from."""
    at = sharding.find("metadata={")
    if at < 0:
        return sharding.strip().rstrip(".")
    depth = 0
    for place in range(at + 9, len(sharding)):
        depth += (sharding[place] == "{") - (sharding[place] == "}")
        if depth == 0:
            kept = f"{sharding[:at].rstrip(' ,')}{sharding[place + 1 :]}"
            return _without_metadata(kept)
    return sharding[:at].rstrip(" ,")
