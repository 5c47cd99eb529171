"""Which figures belong to one failure, and which failures are equal."""

from __future__ import annotations

from hlofast._messages.amounts import Amount, amount, exact
from hlofast._messages.clean import Cleaned
from hlofast._messages.entries import Entry
from hlofast._messages.message import Message
from hlofast._messages.partitioner import Warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._messages.tokens import Token

NEAR = 40_000
"""Characters within which phrases may belong to one failure; dumps of allocators, which are longer,
consist of phrases themselves."""
MOST_MESSAGES = 4_096
"""Different messages that are kept."""
_SENTENCE = 400


class State:
    """The open message, its open entry, and the messages that are complete."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.warnings = Warnings()
        self.left = 0
        """Messages beyond `MOST_MESSAGES`."""
        self._current: Message | None = None
        self._entry: Entry | None = None
        self._account = ""
        self._offset = 0
        self._by_head: dict[tuple[object, ...], list[Message]] = {}
        self._pending: dict[str, Amount] = {}
        self._hint: Message | None = None
        """A warning that the rematerialisation missed its target, for logs without the failure."""
        self._loads: str | None = None
        self._does_load = False
        self._error_code: str | None = None
        self._cleaned = Cleaned([""], [1])
        self._next = 0
        self._last_line = 0

    # Messages.

    def _line(self, token: Token) -> int:
        return self._cleaned.line_at(token.start)

    def _begin(self, backend: str | None, stage: str | None, token: Token) -> Message:
        self._finish()
        message = Message(backend, stage, self._line(token), self._offset + token.start)
        message.code, self._error_code = self._error_code, None
        self._current = message
        self._account = ""
        return message

    def _say(self, message: Message, token: Token) -> None:
        """Keeps the first sentence of a message, from the beginning of its phrase."""
        if message.text is None:
            text = self._cleaned.text
            end = text.find("\n", token.end)
            sentence = text[
                token.start : min(end if end >= 0 else len(text), token.start + _SENTENCE)
            ]
            message.text = " ".join(sentence.split())

    def _is_near(self, token: Token) -> bool:
        current = self._current
        return current is not None and self._offset + token.start - current.last_at < NEAR

    def _of(
        self, backend: str, token: Token, *, without: str, figure: Amount | None = None
    ) -> Message:
        """Returns the open message of a backend that lacks a figure, or a new one.

        A figure that agrees with the one it has is the same figure, told by another layer.
        """
        current = self._current
        if current is not None and current.backend == backend and self._is_near(token):
            has = current.figures.get(without)
            if has is None or (figure is not None and has.agrees(figure) and not current.has_end):
                return current
        return self._begin(backend, None, token)

    def _finish_entry(self) -> None:
        entry, self._entry = self._entry, None
        if entry is not None and self._current is not None:
            said = (entry.size, entry.label, entry.op_name, entry.shape)
            if any(own is not None for own in said):
                self._current.add(entry)

    def _finish(self) -> None:
        self._finish_entry()
        message, self._current = self._current, None
        if message is None:
            return
        if not (message.figures or message.parts or message.entries or message.text):
            return
        if message.space is None and any(own.allocation_type for own in message.entries):
            # Lists of other memories name it in their head, which was not pasted.
            message.space, message.is_space_assumed = "hbm", True
        for same in self._by_head.get((message.kind, message.space), ())[-64:]:
            if same.repeats(message):
                same.absorb(message)
                return
        if len(self.messages) >= MOST_MESSAGES:
            self.left += 1
            return
        self.messages.append(message)
        self._by_head.setdefault((message.kind, message.space), []).append(message)

    def _set(self, message: Message, name: str, text: str | None) -> None:
        figure = None if text is None else amount(text)
        if figure is not None:
            message.figures.setdefault(name, figure)

    def _set_count(self, message: Message, name: str, text: str | None) -> None:
        """Sets a figure that the text gives as a plain number of bytes."""
        figure = None if text is None else exact(int(text), text)
        if figure is not None:
            message.figures.setdefault(name, figure)

    def _value(self, token: Token) -> str:
        return self._cleaned.text[token.end : self._next]
