"""Entries of lists of allocations: the texts of operator, label and shape."""

from __future__ import annotations

import re

from hlofast._messages.amounts import Amount, exact

MOST_TEXT = 20_000
"""Characters of an operator or label that are read."""
_TYPE = r"[a-z][a-z0-9]{1,14}"
SHAPE = rf"{_TYPE}\[[0-9,<=?\s]{{0,200}}\](?:\{{[^{{}}\s]{{0,120}}\}})?"
"""An array shape with its layout."""
_ARRAY = re.compile(SHAPE)
_SIZES = re.compile(r"([a-z]{1,6}(\d{1,3})?)\w{0,8}\[((?:\d{1,15},?){0,12})\]")
_NAME = r"%?([A-Za-z_][\w.$-]{0,400})"
_TUPLE = r"\((?:[^()]|\([^()]{0,2000}\)){0,8000}\)"
_DEFINED = re.compile(
    rf"\s*(?:ROOT )?{_NAME}\s*=\s*(?:{_TUPLE}|{SHAPE})?\s*([a-z][a-z0-9-]{{1,60}})\("
)
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.){0,16000})("?)')
_OP_TYPE = re.compile(r'op_type="([^"\n]{0,200})"')
_FILE = re.compile(r'source_file="([^"\n]{1,1000})"')
_LINE = re.compile(r"source_line=(\d{1,9})")
_FRAME = re.compile(r"stack_frame_id=(\d{1,9})")
_METADATA = re.compile(r"metadata=\{")


class Entry:
    """A listed allocation. Texts and numbers that the message lacks are None."""

    __slots__ = (
        "allocation_type", "expansion", "extra", "is_cut", "is_parameter", "label", "line", "name",
        "number", "offset", "op_name", "op_type", "opcode", "shape", "size", "source_file",
        "source_line", "tag", "unpadded", "values",
    )  # fmt: skip

    def __init__(self, number: int | None, line: int, size: Amount | None = None) -> None:
        self.number = number
        """Its number in the list."""
        self.line = line
        """The line of the file where it begins."""
        self.size = size
        """Its bytes, with padding."""
        self.op_name: str | None = None
        """The framework's name of the operation."""
        self.op_type: str | None = None
        """The framework's type of the operation; older messages have it."""
        self.source_file: str | None = None
        self.source_line: int | None = None
        self.shape: str | None = None
        """The shape with its layout."""
        self.unpadded: Amount | None = None
        """Its bytes without padding."""
        self.extra: Amount | None = None
        """Bytes of padding."""
        self.expansion: float | None = None
        """Size divided by unpadded size, as written."""
        self.label: str | None = None
        """The instruction as the message prints it; GPU messages print its opcode alone."""
        self.name: str | None = None
        """The name of the instruction."""
        self.opcode: str | None = None
        """The opcode of the instruction."""
        self.allocation_type: str | None = None
        """`HLO temp`, `scoped`, `global`, …"""
        self.tag: str | None = None
        """The purpose of an allocation without an instruction."""
        self.offset: int | None = None
        """Its place in its allocation."""
        self.values: int | None = None
        """Number of values at its place."""
        self.is_parameter = False
        """Whether it is a parameter of the entry computation."""
        self.is_cut = False
        """Whether the text ends inside it."""

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from other allocations."""
        size = None if self.size is None else self.size.key
        return self.number, size, self.shape, self.label, self.op_name, self.allocation_type

    @property
    def padding(self) -> int | None:
        """Bytes of padding: as written, or else size minus unpadded size; None if unknown.

        Zero if the message gives the unpadded size and no padding. Without an unpadded size, a
        shape with tiles tells how many bytes its values take.
        """
        if self.extra is not None:
            return self.extra.bytes
        unpadded = self.unpadded
        if unpadded is None and self.shape is not None and ":T(" in self.shape:
            unpadded = value_bytes(self.shape)
        if unpadded is None or self.size is None:
            return None
        if unpadded.agrees(self.size):
            return 0
        return max(self.size.bytes - unpadded.bytes, 0)

    def fill_operator(self, text: str) -> None:
        """Reads the text after `Operator:`."""
        text = text[:MOST_TEXT]
        found = _OP_NAME.search(text)
        if found is not None:
            # A message that was wrapped breaks names at any character.
            self.op_name = _unwrapped(found[1]) or None
            self.is_cut = self.is_cut or not found[2]
        if (found := _OP_TYPE.search(text)) is not None:
            self.op_type = found[1]
        if (found := _FILE.search(text)) is not None:
            self.source_file = found[1]
        if (found := _LINE.search(text)) is not None:
            self.source_line = int(found[1])

    def fill_shape(self, text: str, *, is_parameter: bool) -> None:
        """Reads the text after `Shape:` or `Entry Parameter Subshape:`."""
        text = text[:MOST_TEXT].lstrip()
        self.is_parameter = self.is_parameter or is_parameter
        if text.startswith("("):
            self.shape = _balanced(text.split("\n", 1)[0])
            return
        found = _ARRAY.match(text)
        if found is not None:
            self.shape = found[0]

    def fill_label(self, text: str) -> None:
        """Reads the text after `XLA label:`."""
        self.label = label = _label(text[:MOST_TEXT])
        found = _DEFINED.match(label)
        if found is not None:
            self.name, self.opcode = found[1], found[2]
            if self.shape is None and (shape := _ARRAY.search(label, found.start(), found.end(2))):
                self.shape = shape[0]
        elif re.fullmatch(r"[a-z][a-z0-9-]{1,60}", label):
            self.opcode = label  # Messages of GPUs print the opcode.
        elif (found := re.match(rf"\s*{_NAME}\s*=", label)) is not None:
            self.name = found[1]
        elif label and "=" not in label:
            self.tag = label
        if self.op_name is None and _METADATA.search(label):
            self.fill_operator(label[label.index("metadata={") :])


def _label(text: str) -> str:
    """Returns the first line of a label, and the next ones while brackets are open."""
    lines = text.split("\n")
    label = lines[0].strip()
    for line in lines[1:40]:
        if not line.strip() or label.count("(") + label.count("{") <= label.count(
            ")"
        ) + label.count("}"):
            break
        label = f"{label} {line.strip()}"
    return label


def _balanced(text: str) -> str:
    """Returns the tuple shape at the start of a text, up to its closing bracket."""
    depth = 0
    for at, character in enumerate(text[:8000]):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: at + 1]
    return text[:8000].rstrip()


def _unwrapped(name: str) -> str:
    """Returns a name whose line ends a terminal or a page inserted."""
    if "\n" not in name:
        return name
    parts = name.split("\n")
    return "".join(part.strip() if number else part.rstrip() for number, part in enumerate(parts))


def value_bytes(shape: str) -> Amount | None:
    """Returns the bytes of the values of an array shape, without padding; None for other shapes."""
    found = _SIZES.match(shape)
    if found is None:
        return None
    bits = 8 if found[1] == "pred" else int(found[2] or 0)
    for text in found[3].split(","):
        bits *= int(text) if text else 1
    return exact(-(-bits // 8)) if bits else None


def shape_in(text: str) -> str | None:
    """Returns the first array shape in a text; None without one."""
    found = _ARRAY.search(text[:MOST_TEXT])
    return None if found is None else found[0]


def definition(text: str) -> tuple[str | None, str | None, str | None]:
    """Returns name, first result shape and opcode of an instruction's text; None for a lack."""
    found = _DEFINED.match(text[:MOST_TEXT])
    if found is None:
        name = re.match(rf"\s*(?:ROOT )?{_NAME}\s*=", text[:500])
        return (None if name is None else name[1]), shape_in(text), None
    shape = _ARRAY.search(text, found.start(), found.end(2))
    return found[1], None if shape is None else shape[0], found[2]


def metadata_of(text: str) -> tuple[str | None, str | None, int | None]:
    """Returns op_name, source file and line in an instruction's metadata; None for a lack."""
    at = text.find("metadata={")
    entry = Entry(None, 0)
    if at >= 0:
        entry.fill_operator(text[at:])
    return entry.op_name, entry.source_file, entry.source_line
