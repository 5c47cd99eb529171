"""`Reader`: from the stretches of a log to messages and warnings."""

from __future__ import annotations

from hlofast._messages.clean import Cleaned, cleaned
from hlofast._messages.of_gpu import OfGpu
from hlofast._messages.of_lists import OfLists
from hlofast._messages.of_tpu import OfTpu
from hlofast._messages.tokens import Token, tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hlofast._messages.find import Stretch


class Reader(OfTpu, OfGpu, OfLists):
    """Reads stretches of a log one after the other.

    `messages` and `warnings` are complete after `close`.
    """

    def feed(self, stretch: Stretch) -> None:
        """Reads one stretch; line numbers are those of the file."""
        self.read(cleaned(stretch.content, stretch.line))

    def read(self, text: Cleaned) -> None:
        """Reads one stretch of cleaned text."""
        self._cleaned = text
        first = text.line_at(0)
        if first > self._last_line + 1:
            self._finish_entry()
        found = list(tokens(text.text))
        skip_until = 0
        for number, token in enumerate(found):
            if token.start < skip_until:
                continue
            self._next = found[number + 1].start if number + 1 < len(found) else len(text.text)
            if token.kind == "partitioner":
                skip_until = self.warnings.read(text, token.start, token.end)
                continue
            handle: Callable[[Token], None] = getattr(self, f"_{token.kind}")
            handle(token)
            if self._current is not None:
                self._current.last_at = self._offset + token.end
        self._offset += len(text.text) + 1
        self._last_line = text.line_at(len(text.text))

    def close(self) -> None:
        """Ends the last message; attempts that are not failures count only alone."""
        self._finish()
        if not self.messages and self._hint is not None:
            self.messages.append(self._hint)
        failures = [own for own in self.messages if not own.is_hint]
        self.messages = failures or self.messages
