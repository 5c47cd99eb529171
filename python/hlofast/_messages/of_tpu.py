"""The phrases of messages of TPUs: compile time, loading and run time."""

from __future__ import annotations

import re

from hlofast._messages.amounts import SIZE, Amount, amount
from hlofast._messages.entries import Entry
from hlofast._messages.message import Message
from hlofast._messages.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._messages.tokens import Token

_PARTS = {"constant": "constants"}
_PART_LINE = re.compile(
    rf"\s{{0,80}}([A-Za-z][A-Za-z _-]{{1,30}}?)(?:\s?\([^()\n\d]{{1,60}}\))?"
    rf"\s{{1,60}}({SIZE}|unknown size)(?=[\s(]|$)"
)
"""A part of an account; a remark in brackets may follow the name, as in `reserved(Infeed/…)`."""
_HEAP_ACCOUNTS = {"Heap": "heap", "Persistent": "persistent"}
_STATE = {
    "Top-of-Memory reserved": "top_reserved", "Currently allocated": "in_use",
    "Program requirement": "program_requirement",
}  # fmt: skip
_OF_SPARSECORE = {"0": "smem", "201": "tilespmem", "202": "spmem", "203": "hbm", "204": "sflag"}
"""Memory spaces of SparseCore programs by number (openxla.org/xla/errors/error_3000)."""
_WORD = 4
"""Bytes of a word in messages of the SparseCore: `memref<23440xf32>` takes 23440 words."""
_REPLICA_PARTS = {
    "fixed_size_allocation_bytes": "fixed", "row_dependent_size_allocation_bytes": "row_dependent",
    "total_spmem_size_bytes": "limit",
}  # fmt: skip
_MOST_PARTS = 40
_SHAPE_IN = re.compile(r"shape = '([^']{1,300})'")
_SPACE_IN = re.compile(r"space=(\w{1,16})")
_NAMED = re.compile(r"\s::\s%?([A-Za-z_][\w.-]{0,300})")
_TAG_IN = re.compile(r"tag = '([^']{1,600})'")


class OfTpu(State):
    """Handlers of phrases by pattern."""

    def _ran_space(self, token: Token) -> None:
        space, name = token.groups
        current = self._current
        is_open = current is not None and current.backend == "tpu" and current.space is None
        if current is None or not is_open or current.figures or not self._is_near(token):
            current = self._begin("tpu", "compile", token)
        current.backend, current.stage = "tpu", "compile"
        current.space = (space or "").lower()
        self._say(current, token)
        if name:
            current.where = name.lstrip("%")
            rest = self._value(token).strip()
            if rest.startswith("="):
                entry = Entry(None, self._line(token))
                entry.fill_label(f"{name} {rest}".rstrip(" ."))
                entry.fill_shape(rest[1:], is_parameter=False)
                entry.allocation_type = "stack"
                current.add(entry)

    def _ran_on(self, token: Token) -> None:
        current = self._begin("tpu", "compile", token)
        current.space = (token.groups[0] or "").lower()
        self._say(current, token)

    def _tpu(self, token: Token, without: str) -> Message:
        self._finish_entry()
        current = self._of("tpu", token, without=without)
        if current.stage is None:
            current.stage = "compile"
        self._say(current, token)
        return current

    def _used(self, token: Token) -> None:
        used, limit, space = token.groups
        if space is None and (self._current is None or self._current.space is None):
            return  # "Used 3 of 4" of some other program.
        current = self._tpu(token, "used")
        current.space = current.space or (space or "").lower() or None
        self._set(current, "used", used)
        self._set(current, "limit", limit)

    def _exceeded(self, token: Token) -> None:
        current = self._tpu(token, "exceeded")
        current.space = current.space or (token.groups[0] or "").lower()
        self._set(current, "exceeded", token.groups[1])

    def _temporaries(self, token: Token) -> None:
        current = self._tpu(token, "used")
        current.space = current.space or (token.groups[1] or "").lower()
        self._set(current, "used", token.groups[0])
        self._set(current, "limit", token.groups[2])
        current.where = current.where or "HLO temporaries"

    def _sparse(self, token: Token) -> None:
        current = self._tpu(token, "tensorcore")
        current.space = "hbm"
        for name, text in zip(("tensorcore", "sparsecore", "limit"), token.groups, strict=True):
            self._set(current, name, text)

    def _scoped(self, token: Token) -> None:
        size, limit, space, exceeded = token.groups
        current = self._tpu(token, "used")
        # The sentence of the load error before it, if any, tells the consequence.
        current.space, current.stage = (space or current.space or "vmem").lower(), "compile"
        self._set(current, "used", size)
        self._set(current, "limit", limit)
        self._set(current, "exceeded", exceeded)
        for entry in current.entries[-1:]:
            entry.size = entry.size or current.figures.get("used")

    def _mosaic(self, token: Token) -> None:
        current = self._tpu(token, "used")
        current.space = "vmem"
        self._set(current, "used", token.groups[0])
        self._set(current, "limit", token.groups[1])

    def _insufficient(self, token: Token) -> None:
        current = self._tpu(token, "used")
        current.space = (token.groups[0] or "").lower()
        self._set(current, "used", token.groups[1])
        self._set(current, "limit", token.groups[2])

    def _would_exceed(self, token: Token) -> None:
        size, limit, number, inside = token.groups
        current = self._begin("tpu", "compile", token)
        self._say(current, token)
        self._set(current, "requested", size)
        self._set(current, "limit", limit)
        inside = inside or ""
        space = _SPACE_IN.search(inside)
        current.space = space[1].lower() if space else None
        if number is None:
            return
        entry = Entry(None, self._line(token), current.figures.get("requested"))
        if (shape := _SHAPE_IN.search(inside)) is not None:
            entry.fill_shape(shape[1], is_parameter=False)
        if (tag := _TAG_IN.search(inside)) is not None:
            entry.tag = tag[1]
            current.where = tag[1].removeprefix("scoped memory for ").removeprefix("output of ")
        if ", scoped," in inside:
            entry.allocation_type = "scoped"
        after = self._cleaned.text[token.end : token.end + 500]
        if (name := _NAMED.match(after)) is not None:
            entry.name = name[1].rstrip(".")
            current.where = entry.name
        entry.label = f"#{number}"
        current.add(entry)

    def _early(self, token: Token) -> None:
        current = self._begin("tpu", "compile", token)
        current.space, current.is_space_assumed = "hbm", True
        self._say(current, token)
        self._set(current, "used", token.groups[0])
        self._set(current, "limit", token.groups[1])

    def _embedding(self, token: Token) -> None:
        current = self._begin("tpu", "compile", token)
        current.space, current.where = "hbm", "embedding tables"
        self._say(current, token)
        self._set(current, "limit", token.groups[0])
        self._set(current, "used", token.groups[1])

    # The SparseCore.

    def _alloca(self, token: Token) -> None:
        used, limit, number, requested = token.groups
        current = self._begin("tpu", "compile", token)
        current.space = _OF_SPARSECORE.get(number or "", "tilespmem")
        current.is_space_assumed = number not in _OF_SPARSECORE
        current.where = "SparseCore program"
        self._say(current, token)
        for name, words in (("requested", requested), ("used", used), ("limit", limit)):
            if words is not None:
                self._set_count(current, name, str(int(words) * _WORD))

    def _replicas(self, token: Token) -> None:
        current = self._begin("tpu", "compile", token)
        current.space, current.where = "tilespmem", "embedding table"
        self._say(current, token)

    def _replica_part(self, token: Token) -> None:
        current = self._current
        if current is not None and current.space == "tilespmem" and self._is_near(token):
            self._set_count(current, _REPLICA_PARTS[token.groups[0] or ""], token.groups[1])

    # Accounts.

    def _account_lines(self, current: Message, token: Token) -> None:
        """Reads the lines of an account, whatever the parts are called."""
        text = self._cleaned.text
        at = text.find("\n", token.end) + 1
        for _ in range(_MOST_PARTS):
            found = _PART_LINE.match(text, at) if at else None
            if found is None:
                return
            name = found[1].strip()
            current.parts.setdefault((self._account, _PARTS.get(name, name)), amount(found[2]))
            at = text.find("\n", found.end()) + 1

    def _total(self, token: Token) -> None:
        space = (token.groups[0] or "").lower()
        self._finish_entry()
        current = self._current
        has = current is not None and (f"usage {space}", "total") in current.parts
        if current is None or current.backend != "tpu" or has or not self._is_near(token):
            current = self._begin("tpu", "compile", token)
        self._say(current, token)
        current.stage = current.stage or "compile"
        current.space = current.space or space
        self._account = f"usage {space}"
        figure = amount(token.groups[1] or "")
        current.parts[self._account, "total"] = figure
        if figure is not None and space == current.space:
            current.figures.setdefault("total", figure)
        self._account_lines(current, token)

    def _part(self, token: Token) -> None:
        if not self._account or self._current is None or self._entry is not None:
            return
        before = self._cleaned.text[max(token.start - 1, 0) : token.start]
        if before and not before.isspace():
            return
        name = token.groups[0] or ""
        self._current.parts.setdefault(
            (self._account, _PARTS.get(name, name)), amount(token.groups[1] or "")
        )

    def _output(self, token: Token) -> None:
        current = self._current
        if current is None or current.backend != "tpu":
            return
        self._set(current, "output", token.groups[0])
        self._set(current, "output_shared", token.groups[1])

    def _requirement(self, token: Token) -> None:
        space = (token.groups[0] or "").lower()
        account = f"requirement {space}"
        self._finish_entry()
        current = self._current
        has = current is not None and (account, "total") in current.parts
        if current is None or current.backend != "tpu" or has or not self._is_near(token):
            current = self._begin("tpu", "compile", token)
        self._say(current, token)
        current.stage = current.stage or "compile"
        current.space = current.space or space
        self._account = account
        current.parts[account, "total"] = amount(token.groups[1] or "")
        self._account_lines(current, token)

    def _heap_account(self, token: Token) -> None:
        """Reads what the run time of old TPUs says of its heap, and of what lives in it."""
        current = self._current
        if current is None or current.backend != "tpu" or not self._is_near(token):
            return
        self._finish_entry()
        self._account = _HEAP_ACCOUNTS[(token.groups[0] or "").split()[0]]
        self._account_lines(current, token)
        chunk = current.parts.get(("heap", "Max free chunk"))
        if chunk is not None:
            current.figures.setdefault("largest_free", chunk)

    def _capacity(self, token: Token) -> None:
        current = self._current
        if current is not None and current.backend == "tpu" and self._is_near(token):
            self._set(current, "limit", token.groups[0])

    def _state(self, token: Token) -> None:
        """Reads a line of the state of the memory, whose exact bytes stand in brackets."""
        name, text, count = token.groups
        current = self._current
        if current is None or current.backend != "tpu" or not self._is_near(token):
            return
        figure = amount(f"{count.replace(',', '')}B" if count else text or "")
        if figure is None:
            return
        if name in _STATE:
            current.figures.setdefault(_STATE[name], figure)
        elif figure.bytes < 0:  # What is left after the request: less than nothing.
            missing = Amount(-figure.bytes, figure.plus_minus, figure.text.lstrip("-"))
            current.figures.setdefault("exceeded", missing)

    def _utilization(self, token: Token) -> None:
        current = self._current
        if current is None or not self._account:
            return
        percent, unpadded, padded, broken, fragments = token.groups
        for name, text in (
            ("unpadded", unpadded),
            ("padded", padded),
            ("fragmentation", fragments),
        ):
            if text is not None:
                current.parts.setdefault((self._account, f"HLO temp {name}"), amount(text))
        for name, text in (("utilization", percent), ("fragmentation", broken)):
            if text is not None:
                current.percents.setdefault(f"{self._account}: {name}", float(text))

    def _largest(self, token: Token) -> None:
        space = (token.groups[0] or "").lower()
        self._finish_entry()
        current = self._current
        if current is None or current.backend != "tpu" or current.entries:
            current = self._begin("tpu", "compile", token)
        current.stage = current.stage or "compile"
        current.space = current.space or space
        self._account = ""

    # Run time on TPU.

    def _attempt(self, token: Token) -> None:
        verb, size, free, reserved, reservable, largest = token.groups
        is_load = verb == "reserve" or self._does_load
        if self._current is None or self._current.figures or not self._is_near(token):
            self._begin("tpu", None, token)
        current = self._current
        assert current is not None
        current.backend, current.space = "tpu", "hbm"
        current.stage = "load" if is_load else "run"
        current.program, self._loads, self._does_load = self._loads, None, False
        self._say(current, token)
        self._set(current, "requested", size)
        for name, text in (
            ("free", free), ("reserved", reserved), ("reservable", reservable),
            ("largest_free", largest),
        ):  # fmt: skip
            self._set(current, name, text)

    def _loading(self, token: Token) -> None:
        self._say(self._begin("tpu", "load", token), token)
        self._loads, self._does_load = token.groups[0], True

    def _device_buffer(self, token: Token) -> None:
        self._say(self._begin("tpu", "run", token), token)

    def _place(self, token: Token) -> None:
        current = self._current
        if current is not None and current.backend == "tpu" and self._is_near(token):
            current.space = (token.groups[0] or "hbm").lower()
