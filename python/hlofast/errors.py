"""What can go wrong while reading."""

from __future__ import annotations


class ParseError(ValueError):
    """A fault in the input, with its place.

    `str()` gives the whole message: place, excerpt with a caret, and a line of help where there is
    something to say. `message` is the sentence alone.
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
    """A column, key, table or instruction that is not there; `str()` says which are near."""

    def __str__(self) -> str:
        return str(self.args[0])


class ContextError(ValueError):
    """What is told of a run is not of the module: another number of devices, another backend."""


class ConfigError(ParseError):
    """A fault in the text of a config, with its place."""


class WorkerError(RuntimeError):
    """A scan that others do for this process stopped, since a part of it could not be done there.

    Rows that had been written stay, and the next scan goes on from them.
    """


def _restore(message: str, fields: dict[str, object], kind: type = ParseError) -> ParseError:
    error: ParseError = kind(message)
    error.__dict__.update(fields)
    return error
