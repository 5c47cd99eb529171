"""The roles of dimensions that `WhatIf` can change, and which of them a request means."""

from __future__ import annotations

from hlofast import _what_if_notes
from hlofast._names import meant

TYPE_CHECKING = False  # Verbs print results; importing typing would slow their start.
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._core import Instruction
    from hlofast._what_if import Size, Sizes, WhatIf

_FLOATS = ("bf", "f")
"""How the names of element types begin of which inputs have features."""


class Symbol:
    """The role of dimensions of a module: from `WhatIf.symbols`."""

    __slots__ = (
        "axes", "dimensions", "evidence", "loops", "number", "parameters", "role", "shift", "size",
    )  # fmt: skip

    def __init__(self, number: int, fields: tuple[Any, ...]) -> None:
        self.number = number
        (role, evidence), size, shift, parameters, axes, dimensions, loops = fields
        self.role: str = role
        """Batch, sequence, layers, accumulation, width, heads, vocabulary, or other."""
        self.evidence: str = evidence
        """Why the symbol has its role."""
        self.size: int = size
        """The size over all devices, as compiled."""
        self.shift: int = shift
        """Offset that is added to the parameter's dimension to get the size."""
        self.parameters: list[tuple[str, int]] = parameters
        """Name and dimension of the entry parameters that have the symbol."""
        self.axes: list[str] = axes
        """Mesh axes that divide the symbol in a parameter."""
        self.dimensions: int = dimensions
        """Dimensions of instructions that contain the symbol."""
        self.loops: int = loops
        """Loops that run once per element."""

    @property
    def name(self) -> str:
        """The entry parameter with the shortest name that has the symbol."""
        return min((name for name, _ in self.parameters), key=lambda name: (len(name), name))

    def is_named(self, word: str) -> bool:
        """Whether the whole name of a parameter is `word`."""
        return any(word == name for name, _ in self.parameters)

    def is_called(self, word: str) -> bool:
        """Whether a part of a parameter's name is `word`."""
        return any(word in parts_of(name) for name, _ in self.parameters)

    def others(self, word: str) -> list[str]:
        """Returns the other inputs that have the symbol: those beside one with `word`."""
        names = [name for name, _ in self.parameters]
        if word in names:
            own, parts = [word], parts_of(word)
            first = [parts[:1]] if len(parts) > 1 else []
        else:
            own = [name for name in names if word in parts_of(name)]
            first = [parts_of(name)[:1] for name in own if word in parts_of(name)[1:]]
        return [name for name in names if name not in own and parts_of(name)[:1] in first]

    def __repr__(self) -> str:
        return f"<Symbol {self.role} {self.size} of {self.name}>"


def word_for(symbol: Symbol, others: list[Symbol]) -> str:
    """Returns the word that names a symbol and none of the others."""
    for part in reversed(parts_of(symbol.name)):
        if not any(other.is_called(part) for other in others):
            return part
    return symbol.name


def parts_of(name: str) -> list[str]:
    """Returns the parts of a parameter's name: `batch['tokens']` has `batch` and `tokens`."""
    for mark in "[]'\".":
        name = name.replace(mark, "/")
    return [part for part in name.split("/") if part]


def wanted(result: WhatIf, role: str, wanted: Sizes) -> dict[int, int]:
    """New sizes of the symbols with a role, by number."""
    if isinstance(wanted, str) and ":" in wanted:
        return _by_size(result, role, wanted)
    own = [symbol for symbol in result.symbols if symbol.role == role]
    if not own:
        raise ValueError(
            f"{role}: {_what_if_notes.missing(result, role)}{_told_by_size(result, role)}"
        )
    if isinstance(wanted, (int, str)):
        if why := next(_contradictions(result, own), None):
            raise ValueError(f"{role}: it cannot be told: {why}{_told_by_size(result, role)}")
        # Encoders and decoders with as many layers each count as one stack.
        if len({symbol.size for symbol in own}) > 1:
            known = ", ".join(f"{symbol.name} ({symbol.size:,})" for symbol in own)
            word = word_for(own[0], own[1:])
            example = f"{word}={own[0].size}"
            if any(own[0].name == other.name for other in own[1:]):
                example = f"{own[0].size}:{2 * own[0].size}"
                how = "give the old and the new size of one"
            else:
                how = "name one by a part of its parameter's name"
            raise ValueError(
                f"several dimensions may be the {role}: {known}; {how}, such as {example}"
            )
        return {symbol.number: read_size(role, wanted, symbol.size) for symbol in own}
    found: dict[int, int] = {}
    for word, size in wanted.items():
        # A whole name is meant before a part: `param` is also a part of `param.1`.
        named = [symbol for symbol in own if symbol.is_named(word)]
        named = named or [symbol for symbol in own if symbol.is_called(word)]
        if not named:
            parts = sorted({part for symbol in own for name, _ in symbol.parameters
                            for part in parts_of(name)})  # fmt: skip
            raise ValueError(
                f"{role}: no parameter has {word!r} in its name{meant(word, parts) or ';'} "
                f"known: {', '.join(parts[:20])}"
            )
        shared = [other for symbol in named for other in symbol.others(word)]
        if shared:
            raise ValueError(
                f"{role}: {word!r} alone cannot change: in this module it cannot be told from "
                f"{shared[0]}, which has as many; change both, or take a module where they "
                "differ"
            )
        found |= {symbol.number: read_size(role, size, symbol.size) for symbol in named}
    return found


def _by_size(result: WhatIf, role: str, wanted: str) -> dict[int, int]:
    """New sizes of the dimensions of inputs that have a size now: `1024:2048` or `1024:2x`."""
    old, _, new = wanted.partition(":")
    size = read_size(role, old, 1)
    of_inputs = [] if role == "layers" else list(_of_inputs(result))
    found = [own for own in of_inputs if own.size == size]
    if role == "layers":
        found = [own for own in result.symbols if (own.role, own.size) == (role, size)]
    if not found:
        sizes = sorted({own.size for own in of_inputs if own.size > 1})
        known = f"; known: {', '.join(f'{own:,}' for own in sizes)}" if sizes else ""
        raise ValueError(f"{role}: no dimension of an input has {size:,} elements{known}")
    result._renamed |= {own.number: role for own in found}
    return {own.number: read_size(role, new, size) for own in found}


def _of_inputs(result: WhatIf) -> Iterator[Symbol]:
    """Yields the symbols of dimensions that inputs have."""
    known = {name for own in result.symbols if own.role in ("batch", "accumulation")
             for name, _ in own.parameters}  # fmt: skip
    for own in result.symbols:
        if any(name in known for name, _ in own.parameters):
            yield own


def _told_by_size(result: WhatIf, role: str) -> str:
    """Returns how the user says which dimension of the inputs is meant; empty without inputs."""
    sizes = {own.size: None for own in _of_inputs(result) if own.size > 1}
    if role == "layers" or not sizes:
        return ""
    # Loops take slices along time before anything else.
    slices = [own.size for own in _of_inputs(result) if own.role == "accumulation"]
    size = slices[0] if slices else next(iter(sizes))
    known = ", ".join(f"{own:,}" for own in sorted(sizes))
    return (
        f"; the inputs have dimensions of {known}: give the old and the new size of the {role}, "
        f"such as {size}:{2 * size}"
    )


def _contradictions(result: WhatIf, own: list[Symbol]) -> Iterator[str]:
    """Yields why symbols with the role of the sequence may be something else.

    Inputs with time before the batch, such as the rollouts of a policy, show the batch as second
    dimension. Features are the last dimension of an input whose time a loop takes slices of.
    """
    of_role = {role: [one for one in result.symbols if one.role == role]
               for role in ("batch", "accumulation")}  # fmt: skip
    shapes = {_name_of(one): one.shape for one in result.module.entry.parameters}
    for symbol in own:
        if symbol.role != "sequence":
            continue
        inputs = {name for name, _ in symbol.parameters}
        for batch in of_role["batch"]:
            others = {name for name, _ in batch.parameters}
            is_alike = (batch.size, batch.axes) == (symbol.size, symbol.axes)
            if is_alike and symbol.axes and not others & inputs:
                yield (
                    f"{symbol.size:,} is the second dimension of {symbol.name}, and the batch of "
                    f"{batch.name}, divided along the same axes"
                )
        sliced = {name for one in of_role["accumulation"] for name, _ in one.parameters}
        is_last = all(
            name in sliced
            and (shape := shapes.get(name)) is not None
            and shape.is_array
            and place + 1 == shape.rank
            and str(shape.element_type).startswith(_FLOATS)
            for name, place in symbol.parameters
        )
        if is_last:
            yield (
                f"{symbol.size:,} is the last dimension of {symbol.name}, whose first a loop takes "
                "slices of: it may be features, and the loop the time"
            )


def _name_of(parameter: Instruction) -> str:
    """Returns the name that symbols have for an entry parameter."""
    told = parameter.metadata
    return (told.op_name if told is not None else None) or parameter.name


def read_size(role: str, wanted: Size, old: int) -> int:
    """Reads a size: a number, or a multiple such as `2x` or `0.5x`. Raises `ValueError`."""
    what = f"{role}: {wanted!r} is not a size such as {old} or a multiple such as 2x"
    if isinstance(wanted, bool) or not isinstance(wanted, (int, str)):
        raise ValueError(what)
    if isinstance(wanted, str):
        text = wanted.strip().lower().replace("_", "")
        is_multiple = text.endswith("x")
        text = text.removesuffix("x")
        if len(text) > 20 or not text.replace(".", "", 1).isdecimal() or not text.isascii():
            raise ValueError(what)
        if not is_multiple and "." in text:
            raise ValueError(what)
        from fractions import Fraction

        exact = Fraction(text) * (old if is_multiple else 1)
        if exact.denominator != 1:
            raise ValueError(f"{role}: {wanted} of {old:,} is not a whole number")
        wanted = int(exact)
    if not 1 <= wanted < 2**48:
        raise ValueError(f"{role}: {wanted:,} is not a size from 1 to 2^48")
    return wanted
