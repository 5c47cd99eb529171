"""Exceptions that hlofast raises."""

from __future__ import annotations


class ParseError(ValueError):
    """A fault in the input, with its place.

    `str()` is the whole message: place, excerpt with a caret, and help if there is any. `message`
    is the sentence alone.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int = 1,
        column: int = 1,
        offset: int = 0,
        end_offset: int = 0,
        kind: str = "unexpected-character",
        excerpt: str = "",
        help: str | None = None,  # noqa: A002 - the attribute's name
        rendering: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.line = line
        self.column = column
        self.offset = offset
        self.end_offset = end_offset
        self.kind = kind
        self.excerpt = excerpt
        self.help = help
        self._rendering = rendering

    def __str__(self) -> str:
        return self.message if self._rendering is None else self._rendering

    def __repr__(self) -> str:
        place = f"{self.path or '<text>'}:{self.line}:{self.column}"
        return f"{type(self).__name__}({self.kind!r}, {self.message!r} at {place})"

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.message, self.__dict__, type(self))


class UnknownNameError(KeyError):
    """An unknown column, key, table or instruction; `str()` lists near names."""

    def __str__(self) -> str:
        return str(self.args[0])


class ContextError(ValueError):
    """The context of a run does not fit the module: another number of devices or backend."""


class FragmentError(ValueError):
    """A figure of a whole program, such as its peak memory, was requested for a fragment.

    See `hlofast.Module.is_fragment`.
    """


class ConfigError(ParseError):
    """A fault in the text of a config, with its place."""


class WorkerError(RuntimeError):
    """A distributed scan stopped because a worker failed.

    Rows that were already written are kept, and the next scan continues from them.
    """


def _restore(message: str, fields: dict[str, object], kind: type = ParseError) -> ParseError:
    error: ParseError = kind(message)
    error.__dict__.update(fields)
    return error
