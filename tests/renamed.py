"""The same program with other names and in another order, which `Module.diff` must ignore."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import hlofast

_CALLS = frozenset(
    """
    calls to_apply condition body select scatter true_computation false_computation
    branch_computations called_computations
    """.split()
)
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|backend_config=\{|[{}()\[\]]|([A-Za-z_][\w-]*)=|%([\w.\-]+)|.', re.DOTALL
)
_INSTRUCTION = re.compile(r"  (?:ROOT )?%([\w.\-]+) = ")
_HEADER = re.compile(r"(ENTRY )?%([\w.\-]+) .*\{")


def _rewritten(line: str, name: Callable[[str, bool], str]) -> str:
    """`line` with every `%name` replaced; `name` is told whether a computation is meant."""
    out = []
    depth, key, position = 0, "", 0
    while position < len(line):
        token = _TOKEN.match(line, position)
        assert token is not None
        text = token.group()
        position = token.end()
        if text == "backend_config={":
            level = 1
            while level:
                level += {"{": 1, "}": -1}.get(line[position], 0)
                text += line[position]
                position += 1
        elif text in {"{", "(", "["}:
            depth += 1
        elif text in {"}", ")", "]"}:
            depth -= 1
        elif token.group(1) and not depth:
            key = token.group(1)
        elif token.group(2):
            text = "%" + name(token.group(2), key in _CALLS)
        out.append(text)
    return "".join(out)


def renamed(module: hlofast.Module, seed: int = 0) -> str:
    """The module with new names and channels, in another valid order, without metadata."""
    chosen = random.Random(seed)
    first, *blocks = re.split(r"\n\n(?=ENTRY %|%)", module.to_text(metadata=False).rstrip("\n"))
    computations = {}
    for block in blocks:
        header = _HEADER.match(block)
        assert header is not None, block[:200]
        computations[header.group(2)] = f"c{len(computations)}.{chosen.randrange(10**6)}"
    channels: dict[str, str] = {}
    written = {}
    calls = {}
    for name, block in zip(computations, blocks):
        written[name], calls[name] = _block(block, computations, channels, chosen)
    head = re.sub(r"^HloModule [^,\n]+", "HloModule renamed", first)
    return "\n\n".join([head, *(written[name] for name in _shuffled(calls, chosen))]) + "\n"


def _block(
    block: str, computations: dict[str, str], channels: dict[str, str], chosen: random.Random
) -> tuple[str, set[str]]:
    """A computation renamed and reordered, and the computations that it calls."""
    header, *parts, end = block.split("\n")
    lines: list[str] = []
    for part in parts:
        # Values in braces may go on on lines of their own.
        if _INSTRUCTION.match(part):
            lines.append(part)
        else:
            lines[-1] += f"\n{part}"
    names = [match.group(1) for match in map(_INSTRUCTION.match, lines) if match]
    new = {name: f"i{number}.{chosen.randrange(10**6)}" for number, name in enumerate(names)}
    used: set[str] = set()
    calls: set[str] = set()

    def rename(name: str, is_computation: bool) -> str:
        (calls if is_computation else used).add(name)
        return (computations if is_computation else new)[name]

    texts = {}
    uses = {}
    for name, line in zip(names, lines):
        used.clear()
        text = _rewritten(line, rename)
        uses[name] = used - {name}
        texts[name] = re.sub(
            r"channel_id=(\d+)",
            lambda match: f"channel_id={channels.setdefault(match[1], str(7 * len(channels) + 3))}",
            text,
        )
    match = _HEADER.match(header)
    assert match is not None
    start = f"{match.group(1) or ''}%{computations[match.group(2)]} {{"
    return "\n".join([start, *(texts[name] for name in _shuffled(uses, chosen)), end]), calls


def _shuffled(needs: dict[str, set[str]], chosen: random.Random) -> list[str]:
    """The keys in a random order in which each follows what it needs."""
    left = {name: len(needed) for name, needed in needs.items()}
    users: dict[str, list[str]] = {name: [] for name in needs}
    for name, needed in needs.items():
        for other in needed:
            users[other].append(name)
    ready = [name for name, count in left.items() if not count]
    order = []
    while ready:
        at = chosen.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        order.append(ready.pop())
        for user in users[order[-1]]:
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    assert len(order) == len(needs), "a cycle"
    return order
