"""Arguments of tools: their JSON Schemas, and reading what a caller sent."""

from __future__ import annotations

from hlofast._mcp.files import RefusedError
from hlofast._names import meant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_MOST_TEXT = 10_000
"""Limit on the characters of a text that a caller sends."""
_MOST_ITEMS = 64
"""Limit on the items of a list that a caller sends."""


def text(doc: str, choices: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the schema of a text."""
    return {"type": "string", "description": doc} | ({"enum": list(choices)} if choices else {})


def number(doc: str, least: int = 1, most: int = 10_000) -> dict[str, Any]:
    """Returns the schema of a whole number."""
    return {"type": "integer", "description": doc, "minimum": least, "maximum": most}


def flag(doc: str) -> dict[str, Any]:
    """Returns the schema of a switch."""
    return {"type": "boolean", "description": doc}


def texts(doc: str) -> dict[str, Any]:
    """Returns the schema of a list of texts."""
    return {"type": "array", "items": {"type": "string"}, "description": doc}


def whole(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    """Returns the schema of the arguments of a tool."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def read(schema: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that were given; raises `RefusedError` if they do not fit the schema.

    Numbers and flags may come as texts, and null counts as left out, because models write both.
    """
    known = schema["properties"]
    arguments = {}
    for name, value in given.items():
        if name not in known:
            hint = meant(name, known) or ";"
            raise RefusedError(f"unknown argument {name!r}{hint} known: {', '.join(known)}")
        if value is not None:
            arguments[name] = _read(name, known[name], value)
    missing = [name for name in schema["required"] if name not in arguments]
    if missing:
        raise RefusedError(f"missing argument {missing[0]!r}: {known[missing[0]]['description']}")
    return arguments


def _read(name: str, schema: Mapping[str, Any], value: Any) -> Any:
    kind = schema["type"]
    if kind == "array":
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or len(items) > _MOST_ITEMS:
            raise RefusedError(f"{name}: give a list of at most {_MOST_ITEMS} texts")
        return [_read(name, schema["items"], item) for item in items]
    if kind == "boolean":
        word = {"true": True, "false": False}.get(str(value).lower())
        if word is None:
            raise RefusedError(f"{name}: give true or false, not {value!r}")
        return word
    if kind == "integer":
        try:
            count = int(str(value).removesuffix(".0"))
        except ValueError:
            raise RefusedError(f"{name}: give a whole number, not {str(value)[:40]!r}") from None
        least, most = schema["minimum"], schema["maximum"]
        if not least <= count <= most:
            raise RefusedError(f"{name}: give a number from {least:,} to {most:,}, not {count:,}")
        return count
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RefusedError(f"{name}: give a text")
    shown = str(value)
    if len(shown) > _MOST_TEXT:
        raise RefusedError(f"{name}: longer than {_MOST_TEXT:,} characters")
    choices = schema.get("enum")
    if choices is not None and shown not in choices:
        hint = meant(shown, choices) or ";"
        raise RefusedError(f"{name}: unknown {shown[:80]!r}{hint} one of {', '.join(choices)}")
    return shown
