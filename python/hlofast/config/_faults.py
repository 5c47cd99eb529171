"""Errors of configs: a fault, its place in the text, and the line that shows it."""

from __future__ import annotations

from hlofast.config._values import Fault
from hlofast.errors import ConfigError

WINDOW = 100
"""Characters of a line that an error shows."""


def decoded(text: str | bytes, path: str | None, most: int) -> str:
    """The text of a config of at most `most` bytes; raises `ConfigError`."""
    if len(text) > most:
        message = f"larger than {most:,} bytes, the limit for a config"
        raise refused(message, path, "too-large")
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        read = text[: error.start].decode()
        fault = Fault("invalid-utf-8", "this is not UTF-8 text", len(read))
        raise config_error(
            fault, read + text[error.start :].decode("utf-8", "replace"), path
        ) from None


def refused(message: str, path: str | None, kind: str) -> ConfigError:
    """The error for a text that is refused as a whole."""
    rendering = f"{path or '<text>'}: error: {message}"
    return ConfigError(message, path=path, kind=kind, rendering=rendering)


def config_error(fault: Fault, text: str, path: str | None, newline: str = "\n") -> ConfigError:
    """The error for a fault in `text`, whose lines originally ended with `newline`."""
    start = min(fault.start, len(text))
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", start)
    shown = text[begin : len(text) if stop < 0 else stop]
    line, column = text.count("\n", 0, start) + 1, start - begin + 1
    end = max(min(fault.end, begin + len(shown)), start + 1)
    # For a long line, shows a window around the fault.
    first = max(column - 1 - WINDOW // 2, 0) if len(shown) > WINDOW else 0
    cut = shown[first : first + WINDOW]
    left = "…" if first else ""
    right = "…" if first + WINDOW < len(shown) else ""
    cut = "".join(character if character.isprintable() else "?" for character in cut)
    carets = "^" * max(min(end - start, first + len(cut) - (column - 1)), 1)
    pad = " " * (len(left) + column - 1 - first)
    gutter = len(str(line))
    excerpt = f" {line} | {left}{cut}{right}\n {'':>{gutter}} | {pad}{carets}"
    skipped = (line - 1) * (len(newline) - 1)
    rendering = f"{path or '<text>'}:{line}:{column}: error: {fault.message}\n{excerpt}"
    return ConfigError(
        fault.message,
        path=path,
        line=line,
        column=column,
        offset=len(text[:start].encode("utf-8", "surrogatepass")) + skipped,
        end_offset=len(text[:end].encode("utf-8", "surrogatepass")) + skipped,
        kind=fault.kind,
        excerpt=excerpt,
        rendering=rendering,
    )
