"""What a probe is, and the few ways in which its text is put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

ACCEPT = "accept"
REJECT = "reject"
ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Probe:
    """A text that exercises one feature of the format.

    `row` names the section and the table row that the text covers ("5:gather", "4.4:T").
    `expected` is what the format reference says of the text; empty where it says nothing. The
    verdict of XLA, which is the one that counts, is kept in `verdicts.jsonl.gz`.
    `newest` names the construct when only an XLA newer than the judge understands it; `expected`
    is then what the newer one does.
    """

    id: str
    row: str
    text: str
    expected: str = ""
    note: str = ""
    newest: str = ""


def module(
    body: str, *, header: str = "", computations: str = "", parameters: Iterable[str] = ()
) -> str:
    """A module whose entry declares `parameters` (shapes) as p0, p1, ... and then holds `body`."""
    lines = [f"  p{number} = {shape} parameter({number})" for number, shape in enumerate(parameters)]
    lines += [f"  {line}" for line in body.splitlines()]
    head = "HloModule m" + (f", {header}" if header else "")
    before = f"{computations.strip()}\n\n" if computations else ""
    inside = "\n".join(lines)
    return f"{head}\n\n{before}ENTRY e {{\n{inside}\n}}\n"


ADD = "add_f32 {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = f32[] add(x, y)\n}"


def slug(text: str) -> str:
    """A readable id for arbitrary text, another one for every other text."""
    out = text.encode("unicode_escape").decode()
    return out if len(out) <= 72 else f"{out[:56]}..{len(out)}.{checksum(out):04x}"


def checksum(text: str) -> int:
    """A small hash that does not differ between runs, as Python's own does."""
    value = 0
    for byte in text.encode():
        value = (value * 31 + byte) & 0xFFFF
    return value


def table(
    prefix: str, row: str, wrap, accepted: Iterable[str] = (), rejected: Iterable[str] = (),
    unknown: Iterable[str] = (),
) -> Iterator[Probe]:
    """One probe per value: `wrap(value)` is the text, the value makes the id."""
    for expected, values in ((ACCEPT, accepted), (REJECT, rejected), ("", unknown)):
        for value in values:
            yield Probe(f"{prefix}/{slug(value) or 'empty'}", row, wrap(value), expected)
