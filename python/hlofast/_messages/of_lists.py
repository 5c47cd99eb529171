"""The phrases of lists of allocations, and of errors in general."""

from __future__ import annotations

from hlofast._messages.amounts import amount
from hlofast._messages.entries import Entry
from hlofast._messages.message import Message
from hlofast._messages.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._messages.tokens import Token


class OfLists(State):
    """Handlers of phrases by pattern."""

    def _item(self, token: Token) -> None:
        self._finish_entry()
        number = int(token.groups[0] or 0)
        current = self._current
        entries = [] if current is None else current.entries
        is_next = not entries or number > (entries[-1].number or 0)
        if current is None or current.backend != "tpu" or not is_next or not self._is_near(token):
            current = self._begin("tpu", "compile", token)
            self._say(current, token)
        self._account = ""
        self._entry = Entry(number, self._line(token), amount(token.groups[1] or ""))

    def _buffer(self, token: Token) -> None:
        self._finish_entry()
        number = int(token.groups[0] or 0)
        after = self._cleaned.text[token.end : token.end + 40].lstrip()
        if not after.startswith("Size:"):
            return
        current = self._current
        entries = [] if current is None else current.entries
        is_next = not entries or number > (entries[-1].number or 0)
        if current is None or current.backend != "gpu" or not is_next:
            current = self._begin("gpu", "run", token)
            self._say(current, token)
        self._entry = Entry(number, self._line(token))

    def _size(self, token: Token) -> None:
        if self._entry is not None and self._entry.size is None:
            self._entry.size = amount(token.groups[0] or "")

    def _listed(self, token: Token, *, has: bool) -> Entry:
        """Returns the open entry, or a new one if it has such a text already or none is open."""
        if self._entry is None or has:
            self._finish_entry()
            current = self._current
            if current is None or not self._is_near(token):
                self._begin("tpu", "compile", token)
            self._entry = Entry(None, self._line(token))
            self._account = ""
        return self._entry

    def _operator(self, token: Token) -> None:
        if (
            self._entry is None
            and "op_name=" not in self._cleaned.text[token.end : token.end + 300]
        ):
            return
        entry = self._entry
        own = self._listed(token, has=entry is not None and entry.op_name is not None)
        own.fill_operator(self._value(token))

    def _shape(self, token: Token) -> None:
        if self._entry is not None and self._entry.shape is None:
            is_parameter = self._cleaned.text.startswith("Entry", token.start)
            self._entry.fill_shape(self._value(token), is_parameter=is_parameter)

    def _unpadded(self, token: Token) -> None:
        entry = self._entry
        own = self._listed(token, has=entry is not None and entry.unpadded is not None)
        own.unpadded = amount(token.groups[0] or "")

    def _extra(self, token: Token) -> None:
        entry = self._entry
        own = self._listed(token, has=entry is not None and entry.extra is not None)
        own.extra = amount(token.groups[0] or "")
        own.expansion = None if token.groups[1] is None else float(token.groups[1])

    def _label(self, token: Token) -> None:
        entry = self._entry
        own = self._listed(token, has=entry is not None and entry.label is not None)
        own.fill_label(self._value(token))

    def _tag(self, token: Token) -> None:
        if self._entry is not None and self._entry.tag is None:
            self._entry.tag = " ".join(self._value(token)[:2000].split())

    def _type(self, token: Token) -> None:
        if self._entry is not None and self._entry.allocation_type is None:
            words = (token.groups[0] or "").split("  ")[0].strip()
            self._entry.allocation_type = words

    def _end(self, _: Token) -> None:
        self._finish_entry()

    def _code(self, token: Token) -> None:
        self._finish()
        self._error_code = f"E{token.groups[0]}"

    def _link(self, token: Token) -> None:
        current = self._current
        if current is not None and current.code is None and self._is_near(token):
            current.code = f"E{token.groups[0]}"

    def _exhausted(self, _: Token) -> None:
        """An error begins; figures before it may belong to it, entries of a list do not follow."""
        self._finish_entry()
        if self._current is not None and self._current.backend == "tpu":
            self._finish()

    def _remat(self, token: Token) -> None:
        """XLA's own rematerialisation did not reach its target; the failure may follow."""
        target, target_bytes, reached, reached_bytes, before, before_bytes = token.groups
        if self._hint is None:
            self._hint = Message(None, "compile", self._line(token), self._offset + token.start)
            self._hint.is_hint = True
            self._say(self._hint, token)
        for name, text, count in (
            ("rematerialization_target", target, target_bytes),
            ("rematerialized_to", reached, reached_bytes),
            ("rematerialized_from", before, before_bytes),
        ):
            figure = amount(f"{count}B" if count else text or "")
            if figure is not None:
                self._pending[name] = figure
                self._hint.figures[name] = figure
