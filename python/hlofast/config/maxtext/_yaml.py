"""Reads YAML as MaxText's configs use it: scalars, lists and dictionaries, each with its place.

The reader is built on PyYAML's events, so nothing in a file is ever constructed: tags other than
YAML's own are refused, and size, depth and the values that aliases stand for are bounded.
"""

from __future__ import annotations

import re

from hlofast._extras import library
from hlofast.config._faults import config_error, decoded
from hlofast.config._values import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast.errors import ConfigError

MOST_BYTES = 1 << 20
"""Limit on the size of a file; MaxText's largest has 58 kB."""
MOST_NESTED = 20
MOST_VALUES = 50_000
"""Limit on the values of a file, those that aliases stand for included."""
_CORE = "tag:yaml.org,2002:"
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
)
"""Numbers as OmegaConf reads them, which MaxText loads its files with: 1e-6 is a number."""
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]*|[1-9][0-9_]*)")
_INTERPOLATION = re.compile(r"(\\*)\$\{")
"""An interpolation of OmegaConf with the backslashes before it: an odd number makes it text."""
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(
        (form for word in ("yes", "true", "on") for form in (word, word.title(), word.upper())),
        True,
    ),
    **dict.fromkeys(
        (form for word in ("no", "false", "off") for form in (word, word.title(), word.upper())),
        False,
    ),
}
_MOST_DIGITS = 400
"""Limit on the characters of a number."""


class Entry:
    """A value of the top level, with the line that it stands in."""

    __slots__ = ("line", "value")

    def __init__(self, value: Any, line: int) -> None:
        self.value = value
        self.line = line


def read(text: str | bytes, path: str | None) -> dict[str, Entry]:
    """The top-level keys of a file; raises `ConfigError` with the place of the first fault."""
    whole = decoded(text, path, MOST_BYTES)
    try:
        return _Reader(whole).document()
    except Fault as fault:
        raise config_error(fault, whole, path) from None


def scalar(text: str) -> Any:
    """The value of a plain scalar: None, a boolean, a number or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MOST_DIGITS:
        return text
    digits = text.replace("_", "")
    if _INTEGER.fullmatch(text):
        negative, digits = digits.startswith("-"), digits.lstrip("+-")
        base = {"0b": 2, "0x": 16, "0o": 8}.get(digits[:2].lower())
        if base is None and digits.startswith("0") and len(digits) > 1:
            base, digits = 8, f"0o{digits[1:]}"
        try:
            number = int(digits, base or 10)
        except ValueError:
            return text
        return -number if negative else number
    if _FLOAT.fullmatch(text):
        return float(digits.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def argument(text: str, name: str) -> Any:
    """The value of `key=VALUE` on a command line; raises `ConfigError` under this name."""
    try:
        return _Reader(text).value()
    except Fault as fault:
        raise config_error(fault, text, name) from None


def write(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, float):
        shown = repr(value)
        # YAML 1.1 reads an exponent only after a decimal point.
        return re.sub(r"^(-?\d+)e", r"\1.0e", shown.replace("inf", ".inf").replace("nan", ".nan"))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(write, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key_of(key)}: {write(own)}" for key, own in value.items()) + "}"
    if isinstance(value, str):
        # Each backslash before an interpolation counts twice, and one more makes it text.
        return key_of(_INTERPOLATION.sub(lambda own: f"{own[1] * 2}\\${{", value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def key_of(text: str) -> str:
    """Text as YAML on one line, with no regard to interpolations: a key."""
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", text) and text not in _WORDS
    return text if is_plain else '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    """A character inside double quotes."""
    code = ord(character)
    if character in '"\\':
        return f"\\{character}"
    if 0x20 <= code < 0x7F:
        return character
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 1 << 16
        else f"\\U{code:08x}"
    )


class _Reader:
    """Builds values from the events of one text."""

    def __init__(self, text: str) -> None:
        self._yaml = library("yaml", "maxtext")
        self._text = text
        self._events = self._yaml.parse(text, Loader=self._yaml.SafeLoader)
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._count = 0

    def document(self) -> dict[str, Entry]:
        """The entries of a text that is one dictionary."""
        first = self._start()
        if isinstance(first, self._yaml.StreamEndEvent):
            return {}
        if not isinstance(first, self._yaml.MappingStartEvent):
            raise self._fault(
                "not-a-mapping", "a MaxText config consists of lines key: value", first
            )
        entries: dict[str, Entry] = {}
        while not isinstance(event := self._next(), self._yaml.MappingEndEvent):
            name = self._key(event, entries)
            value = self._next()
            entries[name] = Entry(self._value(value, 1), event.start_mark.line + 1)
        self._end()
        return entries

    def value(self) -> Any:
        """The value of a text."""
        first = self._start()
        if isinstance(first, self._yaml.StreamEndEvent):
            return None
        value = self._value(first, 0)
        self._end()
        return value

    def _start(self) -> Any:
        self._next()
        event = self._next()
        return self._next() if isinstance(event, self._yaml.DocumentStartEvent) else event

    def _end(self) -> None:
        self._next()
        event = self._next()
        if not isinstance(event, self._yaml.StreamEndEvent):
            raise self._fault("several-documents", "a config is one YAML document", event)

    def _next(self) -> Any:
        try:
            return next(self._events)
        except self._yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = getattr(mark, "index", getattr(error, "position", 0)) or 0
            told = getattr(error, "problem", None) or getattr(error, "reason", None)
            raise Fault("invalid-yaml", str(told or "this is not YAML"), where) from None

    def _value(self, event: Any, depth: int) -> Any:
        before = self._count
        self._counted(1, event)
        if isinstance(event, self._yaml.AliasEvent):
            if event.anchor not in self._anchors:
                message = f"the alias *{event.anchor} has no anchor before it"
                raise self._fault("unknown-alias", message, event)
            value, count = self._anchors[event.anchor]
            self._counted(count, event)
            return value
        if depth > MOST_NESTED:
            raise self._fault("too-deep", f"more than {MOST_NESTED} nested lists", event)
        value = self._content(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._count - before)
        return value

    def _content(self, event: Any, depth: int) -> Any:
        if isinstance(event, self._yaml.SequenceStartEvent):
            self._checked_tag(event, ("seq",))
            items = []
            while not isinstance(inner := self._next(), self._yaml.SequenceEndEvent):
                items.append(self._value(inner, depth + 1))
            return items
        if isinstance(event, self._yaml.MappingStartEvent):
            self._checked_tag(event, ("map",))
            own: dict[str, Any] = {}
            while not isinstance(inner := self._next(), self._yaml.MappingEndEvent):
                key = self._key(inner, own)
                own[key] = self._value(self._next(), depth + 1)
            return own
        return self._scalar(event)

    def _scalar(self, event: Any) -> Any:
        self._checked_tag(event, ("str", "int", "float", "bool", "null"))
        if any(len(own[1]) % 2 == 0 for own in _INTERPOLATION.finditer(event.value)):
            message = "interpolation is not evaluated: write the value itself"
            raise self._fault("interpolation", message, event)
        text = _INTERPOLATION.sub(lambda own: f"{own[1][: len(own[1]) // 2]}${{", event.value)
        if event.tag is not None:
            return text if event.tag.endswith("str") else scalar(text)
        return scalar(text) if event.implicit[0] else text

    def _key(self, event: Any, known: dict[str, Any]) -> str:
        self._counted(1, event)
        if not isinstance(event, self._yaml.ScalarEvent):
            raise self._fault("invalid-key", "a key must be a name", event)
        name: str = event.value
        if name == "<<":
            raise self._fault("merge-key", "merge keys are not supported", event)
        if name in known:
            raise self._fault("duplicate-key", f"{name} is already set above", event)
        return name

    def _checked_tag(self, event: Any, names: tuple[str, ...]) -> None:
        tag = event.tag
        if tag is not None and tag not in (f"{_CORE}{name}" for name in names) and tag != "!":
            shown = tag.replace(_CORE, "!!")
            raise self._fault("tag", f"the tag {shown} is not read", event)

    def _counted(self, count: int, event: Any) -> None:
        self._count += count
        if self._count > MOST_VALUES:
            raise self._fault("too-large", f"more than {MOST_VALUES:,} values", event)

    def _fault(self, kind: str, message: str, event: Any) -> Fault:
        start = event.start_mark.index
        return Fault(kind, message, start, max(event.end_mark.index, start + 1))


def fault(kind: str, message: str, path: str | None) -> ConfigError:
    """An error that concerns no place of a text."""
    from hlofast.errors import ConfigError

    return ConfigError(message if path is None else f"{path}: {message}", path=path, kind=kind)
