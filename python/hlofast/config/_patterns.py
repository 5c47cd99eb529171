"""Regular expressions of configs, matched in bounded time.

Python's `re` backtracks, so a pattern from a file could take exponential time. A `Pattern` follows
all paths of an automaton at once, in time proportional to pattern length times text length, and
reports the length of the fitting prefix of a text that does not match. It supports the syntax of
`re` except look-around, back-references, conditions, flags, and possessive and atomic groups.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TypeAlias

    Node: TypeAlias = "tuple[Any, ...]"

MOST_STATES = 2_000
"""Limit on the states of a pattern after its repetitions are expanded."""
MOST_NESTED = 50
"""Limit on the nesting of groups."""

_LONGEST_RUN = 40
_DIGITS = "0123456789"
_HEXADECIMAL = "0123456789abcdefABCDEF"
_OCTAL = "01234567"
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class PatternError(ValueError):
    """A pattern that is invalid, or uses syntax that is not supported."""


class Characters:
    """A set of single characters, ranges and classes, or its complement."""

    __slots__ = ("classes", "is_negated", "ranges", "shown", "singles")

    def __init__(self, shown: str, singles: str = "", *, is_negated: bool = False) -> None:
        self.shown = shown
        self.singles = set(singles)
        self.ranges: list[tuple[str, str]] = []
        self.classes: list[Callable[[str], bool]] = []
        self.is_negated = is_negated

    def __contains__(self, character: str) -> bool:
        is_listed = (
            character in self.singles
            or any(low <= character <= high for low, high in self.ranges)
            or any(is_in(character) for is_in in self.classes)
        )
        return is_listed != self.is_negated

    @property
    def is_literal(self) -> bool:
        """Whether the set is one single character."""
        return len(self.singles) == 1 and not (self.ranges or self.classes or self.is_negated)

    def listed(self, limit: int) -> list[str] | None:
        """The characters, sorted; None for more than `limit`, a class or a complement."""
        if self.is_negated or self.classes:
            return None
        characters = set(self.singles)
        for low, high in self.ranges:
            if ord(high) - ord(low) + len(characters) >= 2 * limit:
                return None
            characters.update(map(chr, range(ord(low), ord(high) + 1)))
        return sorted(characters) if len(characters) <= limit else None


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _class(letter: str) -> Callable[[str], bool]:
    kinds: dict[str, Callable[[str], bool]] = {"d": str.isdecimal, "w": _is_word, "s": str.isspace}
    is_in = kinds[letter.lower()]
    return is_in if letter.islower() else lambda character: not is_in(character)


class _Parser:
    """Reads a pattern into nested tuples: ("in", set), ("all", …), ("any", …), ("repeat", …)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.names: set[str] = set()

    def fail(self, message: str) -> NoReturn:
        raise PatternError(f"{message} at character {self.at + 1} of {self.text!r}")

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        character = self.peek()
        self.at += 1
        return character

    def skip(self, expected: str) -> bool:
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def pattern(self) -> Node:
        node = self.alternatives()
        if self.at < len(self.text):
            self.fail("unmatched ')'")
        return node

    def alternatives(self) -> Node:
        ways = [self.sequence()]
        while self.skip("|"):
            ways.append(self.sequence())
        return ways[0] if len(ways) == 1 else ("any", ways)

    def sequence(self) -> Node:
        items: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            item = self.item()
            bounds = self.quantifier()
            if bounds is not None:
                if item[0] == "at":
                    self.fail("nothing to repeat")
                item = ("repeat", item, *bounds)
                if self.skip("+"):
                    self.fail("unsupported possessive repetition")
                self.skip("?")
                if self.quantifier() is not None:
                    self.fail("multiple repeat")
            items.append(item)
        return ("all", items)

    def quantifier(self) -> tuple[int, int | None] | None:
        start = self.at
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.skip(sign):
                return bounds
        if not self.skip("{"):
            return None
        low = self.digits(_DIGITS)
        has_comma = self.skip(",")
        high = self.digits(_DIGITS) if has_comma else low
        if not self.skip("}") or not (low or has_comma) or (not low and not high):
            # Other braces are literal characters; `{,}` repeats any number of times.
            is_any = self.text.startswith("{,}", start)
            self.at = start + 3 if is_any else start
            return (0, None) if is_any else None
        if max(len(low), len(high)) > len(str(MOST_STATES)):
            self.fail("too many repetitions")
        least, most = int(low or 0), int(high) if high else None
        if most is not None and most < least:
            self.fail("the minimum of a repetition exceeds its maximum")
        return least, most

    def digits(self, allowed: str, most: int | None = None) -> str:
        start = self.at
        while self.peek() and self.peek() in allowed and self.at - start != most:
            self.at += 1
        return self.text[start : self.at]

    def item(self) -> Node:
        character = self.take()
        if character == "(":
            return self.group()
        if character == "[":
            return ("in", self.set())
        if character == ".":
            return ("in", Characters("any character", "\n", is_negated=True))
        if character == "^":
            return ("at", "A")
        if character == "$":
            return ("at", "$")
        if character == "\\":
            return self.escape()
        if character in "*+?":
            self.at -= 1
            self.fail("nothing to repeat")
        if character == "{":
            self.at -= 1
            if self.quantifier() is not None:
                self.fail("nothing to repeat")
            self.at += 1
        return _literal(character)

    def group(self) -> Node:
        if self.skip("?"):
            if self.skip("P<"):
                name = self.text[self.at :].partition(">")[0]
                if not name.isidentifier():
                    self.fail("the name of a group must be an identifier")
                if name in self.names:
                    self.fail(f"two groups are called {name}")
                self.names.add(name)
                self.at += len(name) + 1
            elif not self.skip(":"):
                self.fail(f"unsupported (?{self.peek()}")
        self.depth += 1
        if self.depth > MOST_NESTED:
            self.fail(f"more than {MOST_NESTED} nested groups")
        node = self.alternatives()
        self.depth -= 1
        if not self.skip(")"):
            self.fail("unclosed group")
        # Wrapped in "all" because an assertion in parentheses may be repeated.
        return ("all", [node])

    def escape(self) -> Node:
        letter = self.peek()
        if letter and letter in "AZbB":
            self.at += 1
            return ("at", letter)
        if letter and letter in "dDwWsS":
            self.at += 1
            characters = Characters(f"\\{letter}")
            characters.classes.append(_class(letter))
            return ("in", characters)
        if letter and letter in "123456789":
            octal = self.text[self.at : self.at + 3]
            if len(octal) < 3 or octal[0] not in "123" or octal.strip(_OCTAL):
                self.fail("unsupported back-reference")
        return _literal(self.character())

    def character(self) -> str:
        """Reads the character behind a backslash."""
        letter = self.take()
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter and letter in _OCTAL:
            self.at -= 1
            return chr(int(self.digits(_OCTAL, 3), 8))
        for prefix, count in (("x", 2), ("u", 4), ("U", 8)):
            if letter == prefix:
                digits = self.digits(_HEXADECIMAL, count)
                if len(digits) < count or int(digits, 16) > 0x10FFFF:
                    self.fail(f"\\{letter} needs {count} hexadecimal digits")
                return chr(int(digits, 16))
        if not letter or (letter.isascii() and letter.isalnum()):
            self.fail(f"unsupported escape \\{letter}")
        return letter

    def set(self) -> Characters:
        start = self.at - 1
        characters = Characters("", is_negated=self.skip("^"))
        first = True
        while first or self.peek() != "]":
            low = self.member(characters)
            first = False
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.member(characters)
                if low is None or high is None or high < low:
                    self.fail("invalid range")
                characters.ranges.append((low, high))
            elif low is not None:
                characters.singles.add(low)
        self.at += 1
        characters.shown = self.text[start : self.at]
        return characters

    def member(self, characters: Characters) -> str | None:
        """Reads one character of a set; adds a class to the set and returns None."""
        if not self.peek():
            self.fail("unclosed set")
        if not self.skip("\\"):
            return self.take()
        letter = self.peek()
        if letter and letter in "dDwWsS":
            self.at += 1
            characters.classes.append(_class(letter))
            return None
        if self.skip("b"):
            return "\b"
        return self.character()


def _literal(character: str) -> Node:
    return ("in", Characters(repr(character), character))


class Pattern:
    """A regular expression that matches whole strings; raises `PatternError` if it is invalid."""

    __slots__ = ("_asserts", "_empty", "_node", "_start", "_steps", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._node = _Parser(text).pattern()
        # Transitions of each state: on a character, without a character, on an assertion.
        self._steps: list[tuple[Characters, int] | None] = []
        self._empty: list[list[int]] = []
        self._asserts: list[tuple[str, int] | None] = []
        self._start = self._chain(self._node, self._state())

    def fullmatch(self, text: str) -> bool:
        """Whether the whole of `text` matches, as with `re.fullmatch`."""
        return self._follow(text)[1]

    def fits(self, text: str) -> tuple[int, list[str]]:
        """The length of the prefix of `text` that can start a match, and its continuation.

        The continuation is a quoted text, a set as written, `any character` or `the end`.
        """
        matched, _, states = self._follow(text)
        expected = [self._run(state) for state in states if self._steps[state]]
        if 0 in states:
            expected.append("the end")
        return matched, sorted(set(expected))

    def examples(self, limit: int) -> list[str] | None:
        """All strings that match, reading `.` as a dot; None for more than `limit`."""
        texts = _texts(self._node, limit)
        return None if texts is None else [text for text in texts if self.fullmatch(text)]

    def _state(self) -> int:
        if len(self._steps) >= MOST_STATES:
            message = f"the pattern {self.text[:80]!r} has more than {MOST_STATES:,} states"
            raise PatternError(message)
        self._steps.append(None)
        self._empty.append([])
        self._asserts.append(None)
        return len(self._steps) - 1

    def _chain(self, node: Node, after: int) -> int:
        """Adds states that match `node` and lead to the state `after`; returns the first."""
        kind = node[0]
        if kind == "in":
            state = self._state()
            self._steps[state] = (node[1], after)
            return state
        if kind == "at":
            state = self._state()
            self._asserts[state] = (node[1], after)
            return state
        if kind == "all":
            for item in reversed(node[1]):
                after = self._chain(item, after)
            return after
        if kind == "any":
            ways = [self._chain(item, after) for item in node[1]]
            state = self._state()
            self._empty[state] = ways
            return state
        _, item, least, most = node
        if most is None:
            loop = self._state()
            self._empty[loop] = [self._chain(item, loop), after]
            after = loop
        else:
            end = after
            for _ in range(most - least):
                state = self._state()
                self._empty[state] = [self._chain(item, after), end]
                after = state
        for _ in range(least):
            # One state per repetition, so that repetitions of the empty text count towards the
            # limit.
            state = self._state()
            self._empty[state] = [self._chain(item, after)]
            after = state
        return after

    def _follow(self, text: str) -> tuple[int, bool, set[int]]:
        """The length of the fitting prefix, whether the whole text matches, and the last states."""
        states = self._reached({self._start}, text, 0)
        for at, character in enumerate(text):
            steps = (self._steps[state] for state in states)
            after = {step[1] for step in steps if step and character in step[0]}
            reached = self._reached(after, text, at + 1)
            if not reached:
                return at, False, states
            states = reached
        return len(text), 0 in states, states

    def _run(self, state: int) -> str:
        """The expected continuation: the literal text up to the next choice, or a set."""
        text = ""
        while len(text) < _LONGEST_RUN:
            step = self._steps[state]
            if step is None or not step[0].is_literal:
                break
            text += next(iter(step[0].singles))
            waiting = [at for at in self._reached({step[1]}, "", 0) if self._is_stop(at)]
            if len(waiting) != 1:
                break
            state = waiting[0]
        step = self._steps[state]
        return repr(text) if text or step is None else step[0].shown

    def _is_stop(self, state: int) -> bool:
        return state == 0 or self._steps[state] is not None or self._asserts[state] is not None

    def _reached(self, states: set[int], text: str, at: int) -> set[int]:
        """The states reachable from `states` without consuming a character."""
        reached, waiting = set(states), list(states)
        while waiting:
            state = waiting.pop()
            ways = self._empty[state]
            asserts = self._asserts[state]
            if asserts and _holds(asserts[0], text, at):
                ways = [*ways, asserts[1]]
            for way in ways:
                if way not in reached:
                    reached.add(way)
                    waiting.append(way)
        return reached


def _holds(kind: str, text: str, at: int) -> bool:
    if kind == "A":
        return at == 0
    if kind == "Z":
        return at == len(text)
    if kind == "$":
        return at == len(text) or (at == len(text) - 1 and text[at] == "\n")
    before = at > 0 and _is_word(text[at - 1])
    behind = at < len(text) and _is_word(text[at])
    # \\B matches the empty text, as in Python 3.14 and later.
    return (before != behind) == (kind == "b")


def _texts(node: Node, limit: int) -> list[str] | None:
    """The strings that `node` matches, in the order of alternatives; None for too many."""
    kind = node[0]
    if kind == "at":
        return [""]
    if kind == "in":
        characters: Characters = node[1]
        return ["."] if characters.shown == "any character" else characters.listed(limit)
    if kind == "any":
        alternatives = [_texts(item, limit) for item in node[1]]
        if None in alternatives:
            return None
        texts = list(dict.fromkeys(text for texts in alternatives for text in texts or ()))
        return texts if len(texts) <= limit else None
    if kind == "all":
        return _products([_texts(item, limit) for item in node[1]], limit)
    _, item, least, most = node
    if most is None or most > 100:
        return None
    single = _texts(item, limit)
    alternatives = [_products([single] * count, limit) for count in range(least, most + 1)]
    if None in alternatives:
        return None
    texts = list(dict.fromkeys(text for texts in alternatives for text in texts or ()))
    return texts if len(texts) <= limit else None


def _products(parts: list[list[str] | None], limit: int) -> list[str] | None:
    texts = [""]
    for part in parts:
        if part is None:
            return None
        texts = list(dict.fromkeys(text + more for text in texts for more in part))
        if len(texts) > limit:
            return None
    return texts
