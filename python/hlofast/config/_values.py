"""Values as Python's `repr` writes them, read without evaluating anything and written back."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypeAlias

    Value: TypeAlias = (
        "bool | int | float | str | bytes | tuple[Any, ...] | list[Any] | dict[Any, Any]"
        " | set[Any] | frozenset[Any] | PartitionSpec | Enumeration | Opaque | None"
    )

MOST_NESTED = 64
"""Limit on the nesting of containers in one value."""
MOST_DIGITS = 4300
"""Limit on the characters of a number: Python's default limit for integers."""

UNCONSTRAINED = "UNCONSTRAINED"
"""The dimension of a `PartitionSpec` whose sharding the compiler chooses."""

_NUMBER = re.compile(r"-?(?:(\d+)(\.\d+)?([eE][+-]?\d+)?|inf\b|nan\b)")
_WORD = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_ATTRIBUTE = re.compile(r"\.[^\W\d]\w*")
_MEMBER = re.compile(r"<([^\W\d][\w.]*)\.([^\W\d]\w*(?:\|[^\W\d]\w*)*): ")
_BODY = {
    "'": re.compile(r"[^'\\\n]*(?:\\.[^'\\\n]*)*"),
    '"': re.compile(r'[^"\\\n]*(?:\\.[^"\\\n]*)*'),
}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_SINGLE = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t"}
_CONSTANTS = {"None": None, "True": True, "False": False}


class Fault(Exception):  # noqa: N818 - the error that people see is ConfigError
    """A fault in a text, with its start and end offsets."""

    def __init__(self, kind: str, message: str, start: int, end: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.start = start
        self.end = start + 1 if end is None else end


class Frozen:
    """An immutable class with equality and hash by the fields in `__slots__`."""

    __slots__ = ()

    def __init__(self, *values: Any) -> None:
        names: tuple[str, ...] = self.__slots__
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    def _fields(self) -> tuple[Any, ...]:
        names: tuple[str, ...] = self.__slots__
        return tuple(getattr(self, name) for name in names)

    def __setattr__(self, name: str, value: object = None) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    __delattr__ = __setattr__

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), self._fields()))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._fields()


class PartitionSpec(Frozen):
    """The sharding that a config asks for: the mesh axes that shard each dimension of an array.

    Each entry of `dimensions` is None, the name of an axis, a tuple of names (major first), or
    `"UNCONSTRAINED"`. A tuple of one name becomes that name, and an empty tuple becomes None. The
    sharding of a compiled program is a `hlofast.PartitionSpec`.
    """

    __slots__ = ("dimensions",)

    dimensions: tuple[str | tuple[str, ...] | None, ...]

    def __init__(self, *dimensions: str | tuple[str, ...] | list[str] | None) -> None:
        super().__init__(tuple(map(_dimension, dimensions)))

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of all axes, in order."""
        names: list[str] = []
        for dimension in self.dimensions:
            if isinstance(dimension, tuple):
                names.extend(dimension)
            elif dimension is not None and dimension != UNCONSTRAINED:
                names.append(dimension)
        return tuple(names)

    def __len__(self) -> int:
        return len(self.dimensions)

    def __getitem__(self, index: int) -> str | tuple[str, ...] | None:
        return self.dimensions[index]

    def __reduce__(self) -> tuple[object, ...]:
        return PartitionSpec, self.dimensions

    def __repr__(self) -> str:
        words = [word if word == UNCONSTRAINED else repr(word) for word in self.dimensions]
        return f"PartitionSpec({', '.join(words)}{',' if len(words) == 1 else ''})"


def _dimension(given: str | tuple[str, ...] | list[str] | None) -> str | tuple[str, ...] | None:
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, (tuple, list)) and all(isinstance(name, str) for name in given):
        names = tuple(given)
        return names if len(names) > 1 else names[0] if names else None
    raise TypeError(f"a dimension must be None, an axis or a tuple of axes, not {given!r}")


class Enumeration(Frozen):
    """A member of an enumeration: `<GMMBackend.TOKAMAX: 'TOKAMAX'>`."""

    __slots__ = ("class_name", "name", "value")

    class_name: str
    name: str
    value: Value

    def __init__(self, class_name: str, name: str, value: Value) -> None:
        super().__init__(class_name, name, value)

    def __hash__(self) -> int:
        return hash((self.class_name, self.name))

    def __repr__(self) -> str:
        return f"<{self.class_name}.{self.name}: {self.value!r}>"


class Opaque(Frozen):
    """The `repr` of an object of any other class, kept as text."""

    __slots__ = ("text",)

    text: str

    def __init__(self, text: str) -> None:
        super().__init__(text)

    def __repr__(self) -> str:
        return self.text


class Reader:
    """Reads values from `text`, starting at offset `at`; raises `Fault` for invalid values."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at
        self._nested: list[int] = []

    def peek(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.at : self.at + 1]

    def skip(self, expected: str) -> bool:
        """Consumes `expected` if it comes next; returns whether it did."""
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def value(self) -> Value:
        """Reads the value that starts here and moves `at` behind it."""
        start, first = self.at, self.peek()
        if first in ("'", '"'):
            return self._string(start, is_bytes=False)
        if first == "b" and self.text[start + 1 : start + 2] in ("'", '"'):
            self.at += 1
            return self._string(start, is_bytes=True)
        if first == "(":
            return self._tuple()
        if first == "[":
            return self._items("[", "]")
        if first == "{":
            return self._braces()
        if first == "<":
            return self._angle()
        number = _NUMBER.match(self.text, start)
        if number:
            return self._number(number)
        word = _WORD.match(self.text, start)
        if word:
            return self._named(word)
        if not first or first.isspace():
            raise Fault("missing-value", "missing value", start)
        raise Fault("invalid-value", f"a value cannot start with {first!r}", start)

    def _number(self, match: re.Match[str]) -> int | float:
        self.at = match.end()
        whole, fraction, exponent = match.groups()
        if whole is None:
            return float(match[0])
        if len(whole) > 1 and whole.startswith("0"):
            raise Fault("invalid-number", "a number with a leading zero", match.start(), self.at)
        if len(match[0]) > MOST_DIGITS:
            message = f"a number of {len(match[0]):,} characters; the limit is {MOST_DIGITS:,}"
            raise Fault("too-large", message, match.start(), self.at)
        return int(match[0]) if fraction is None and exponent is None else float(match[0])

    def _string(self, start: int, *, is_bytes: bool) -> str | bytes:
        quote = self.text[self.at]
        body = _BODY[quote].match(self.text, self.at + 1)
        if body is None or not self.text.startswith(quote, body.end()):
            raise Fault("unclosed-string", "unterminated string", start)
        control = _CONTROL.search(body[0])
        if control:
            message = f"the character {control[0]!r} must be escaped in a string, as repr does"
            raise Fault("control-character", message, body.start() + control.start())
        self.at = body.end() + 1
        if "\\" not in body[0] and not is_bytes:
            return body[0]
        shift = body.start()

        def escape(match: re.Match[str]) -> str:
            code = match[1]
            if code in _SINGLE:
                return _SINGLE[code]
            place = shift + match.start(), shift + match.end()
            if len(code) == 1 or (is_bytes and code[0] != "x"):
                raise Fault("invalid-escape", f"invalid escape {match[0]}", *place)
            number = int(code[1:], 16)
            if number > 0x10FFFF:
                raise Fault("invalid-escape", f"{match[0]} is beyond Unicode", *place)
            return chr(number)

        text = _ESCAPE.sub(escape, body[0])
        if not is_bytes:
            return text
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError:
            message = "a byte string may only contain characters up to \\xff"
            raise Fault("invalid-value", message, start, self.at) from None

    def _opened(self, opening: str) -> None:
        if len(self._nested) >= MOST_NESTED:
            raise Fault("too-deep", f"more than {MOST_NESTED} nested containers", self.at)
        self._nested.append(self.at)
        self.at += len(opening)

    def _closed(self, closing: str) -> bool:
        """Whether the innermost container ends here; consumes its closing bracket."""
        if not self.peek() or self.peek() == "\n":
            start = self._nested[-1]
            message = f"unclosed {self.text[start]!r}"
            raise Fault("unclosed-bracket", message, start)
        if not self.skip(closing):
            return False
        self._nested.pop()
        return True

    def _separated(self, closing: str) -> bool:
        """Consumes the separator of two items; returns whether the container ends instead."""
        if self._closed(closing):
            return True
        if not self.skip(","):
            raise Fault("missing-comma", f"expected a comma or {closing!r}", self.at)
        self.skip(" ")
        return self._closed(closing)

    def _items(self, opening: str, closing: str) -> list[Any]:
        self._opened(opening)
        items: list[Any] = []
        done = self._closed(closing)
        while not done:
            items.append(self.value())
            done = self._separated(closing)
        return items

    def _tuple(self) -> Value:
        items = self._items("(", ")")
        if len(items) == 1 and self.text[self.at - 2] != ",":
            message = "a tuple of one item needs a comma"
            raise Fault("missing-comma", message, self.at - 1)
        return tuple(items)

    def _braces(self) -> Value:
        self._opened("{")
        if self._closed("}"):
            return {}
        entries: dict[Any, Any] = {}
        items: set[Any] = set()
        is_dict: bool | None = None
        done = False
        while not done:
            start = self.at
            key = self.hashable()
            if is_dict is None:
                is_dict = self.peek() == ":"
            if is_dict:
                if not self.skip(": "):
                    raise Fault("missing-colon", "expected ': ' after a key", self.at)
                if key in entries:
                    raise Fault("duplicate-key", "duplicate key", start, self.at - 2)
                entries[key] = self.value()
            else:
                items.add(key)
            done = self._separated("}")
        return entries if is_dict else items

    def hashable(self) -> Any:
        """Reads the value that starts here, which must be hashable."""
        start = self.at
        key = self.value()
        try:
            hash(key)
        except TypeError:
            message = f"a {type(key).__name__} cannot be a key"
            raise Fault("unhashable-key", message, start, self.at) from None
        return key

    def _angle(self) -> Enumeration | Opaque:
        start = self.at
        member = _MEMBER.match(self.text, start)
        if member and len(self._nested) < MOST_NESTED:
            self._nested.append(start)
            self.at = member.end()
            try:
                value = self.value()
            except Fault as fault:
                # The value of a member may be any object: fall back to `Opaque`.
                if fault.kind in ("too-deep", "too-large"):
                    raise
                value = None
            else:
                if self.skip(">"):
                    self._nested.pop()
                    return Enumeration(member[1], member[2], value)
            del self._nested[self._nested.index(start) :]
        self.at = start
        self._balanced()
        return Opaque(self.text[start : self.at])

    def _named(self, word: re.Match[str]) -> Value:
        start, name = word.start(), word[0]
        self.at = word.end()
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name == "PartitionSpec" and self.peek() == "(":
            return self._partition_spec(start)
        if name in ("frozenset", "set") and self.peek() == "(":
            return self._set(frozenset if name == "frozenset" else set, start)
        while True:
            attribute = _ATTRIBUTE.match(self.text, self.at)
            if attribute:
                self.at = attribute.end()
            elif self.peek() in ("(", "["):
                self._balanced()
            else:
                return Opaque(self.text[start : self.at])

    def _set(self, kind: type[set[Any]] | type[frozenset[Any]], start: int) -> Value:
        at = self.at
        items = self._items("(", ")")
        if len(items) > 1 or (items and not isinstance(items[0], (set, dict, list, tuple))):
            raise Fault(
                "invalid-value",
                f"invalid {kind.__name__}; it takes at most one container",
                start,
                at,
            )
        return kind(items[0]) if items else kind()

    def _partition_spec(self, start: int) -> PartitionSpec | Opaque:
        opening = self.at
        self._opened("(")
        dimensions: list[Any] = []
        done = self._closed(")")
        while not done:
            at = self.at
            dimension = self.value()
            if self.peek() == "=":
                # Keyword arguments, such as axes of partial results, do not place the array.
                del self._nested[self._nested.index(opening) :]
                self.at = opening
                self._balanced()
                return Opaque(self.text[start : self.at])
            if isinstance(dimension, Opaque) and dimension.text.endswith(UNCONSTRAINED):
                dimension = UNCONSTRAINED
            try:
                # `_dimension` rejects values of other types.
                dimensions.append(_dimension(dimension))  # type: ignore[arg-type]
            except TypeError as error:
                raise Fault("invalid-value", str(error), at, self.at) from None
            done = self._separated(")")
        return PartitionSpec(*dimensions)

    def _balanced(self) -> None:
        """Skips a bracket with its content."""
        text, opened = self.text, list[tuple[str, int]]()
        # Inside other brackets, `<` and `>` are comparisons and arrows.
        has_angles = self.peek() == "<"
        while self.at < len(text):
            character = text[self.at]
            if character in _BODY:
                body = _BODY[character].match(text, self.at + 1)
                if body is None or not text.startswith(character, body.end()):
                    raise Fault("unclosed-string", "unterminated string", self.at)
                self.at = body.end()
            elif character in "([{" or (character == "<" and has_angles):
                if len(opened) >= MOST_NESTED:
                    raise Fault("too-deep", f"more than {MOST_NESTED} nested containers", self.at)
                opened.append((_CLOSING[character], self.at))
            elif character == opened[-1][0]:
                if character != ">" or text[self.at - 1] != "-":
                    opened.pop()
            elif character in ")]}":
                message = f"found {character!r}, expected {opened[-1][0]!r}"
                raise Fault("unclosed-bracket", message, self.at)
            self.at += 1
            if not opened:
                return
        start = opened[-1][1]
        raise Fault("unclosed-bracket", f"unclosed {text[start]!r}", start)


def write(value: Value) -> str:
    """The text of `value` in a config; raises `TypeError` for values a config cannot show."""
    if not is_value(value):
        raise TypeError(f"a config cannot show a value of class {type(value).__name__}: {value!r}")
    return repr(value)


def is_value(value: object, depth: int = 0) -> bool:
    """Whether a config can show `value`."""
    if depth > MOST_NESTED:
        return False
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(is_value(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return all(
            is_value(key, depth + 1) and is_value(item, depth + 1) for key, item in value.items()
        )
    if isinstance(value, Enumeration):
        return is_value(value.value, depth + 1)
    return value is None or type(value) in (
        bool, int, float, str, bytes, PartitionSpec, Opaque
    )  # fmt: skip


def copied(value: Value) -> Value:
    """`value`, or a copy if it is mutable."""
    if isinstance(value, list):
        return [copied(item) for item in value]
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, set):
        return set(value)
    return value


def meaning(value: Value) -> object:
    """A hashable key that is equal for values that mean the same.

    Equal are: integers and floats of one value, lists and tuples (a config does not distinguish
    them), sets and dictionaries in any order, and partition specs with or without trailing
    unsharded dimensions. Booleans do not equal numbers.
    """
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, float) and value != value:
        return float, "nan"
    if isinstance(value, (list, tuple)):
        return tuple, tuple(map(meaning, value))
    if isinstance(value, (set, frozenset)):
        return set, frozenset(map(meaning, value))
    if isinstance(value, dict):
        entries = ((meaning(key), meaning(item)) for key, item in value.items())
        return dict, frozenset(entries)
    if isinstance(value, PartitionSpec):
        dimensions = list(value.dimensions)
        while dimensions and dimensions[-1] is None:
            dimensions.pop()
        return PartitionSpec, tuple(dimensions)
    if isinstance(value, Enumeration):
        return Enumeration, value.class_name, value.name, meaning(value.value)
    return value
