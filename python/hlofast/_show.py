"""`Shown`: one instruction or computation with its operands, users, callers and text."""

from __future__ import annotations

from hlofast import _text
from hlofast._core import Field
from hlofast._names import meant
from hlofast._result import Fact, Note, Result, Section
from hlofast.errors import UnknownNameError
from hlofast.table import of_rows

TYPE_CHECKING = False  # The command line shows it; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast._core import Computation, Instruction
    from hlofast._module import Module
    from hlofast.table import Table

_REFERENCE = (
    Field("instruction", "instruction", "The instruction."),
    Field("word", "opcode", "The opcode."),
    Field("shape", "shape", "The shape of the result."),
    Field("name", "computation", "The computation that the instruction is in."),
)
_SHOWN = ("instruction", "opcode", "shape")
_ATTRIBUTES = (
    Field("word", "key", "The attribute."),
    Field("text", "value", "The value as written in the text."),
)
_TEXT = (
    Field("index", "line", "The line of the module's text.", nullable=True),
    Field("text", "text", "The text of the line."),
)
_ELSEWHERE = {"metadata", "calls", "to_apply", "body", "condition"}
"""Attributes that facts and other tables already show."""
_CALLS = {"while", "conditional", "call", "async-start"}
"""Opcodes whose callees count separately."""


class Shown(Result):
    """An instruction or computation in context: `Module.show()`."""

    __slots__ = ("_what", "module")

    VERB = "show"
    FACTS = (
        Field("word", "kind", "Instruction or computation."),
        Field("name", "module", "The module."),
        Field("name", "computation", "The computation, or the one that the instruction is in."),
        Field("word", "opcode", "The opcode."),
        Field("shape", "shape", "The shape of the result."),
        Field("bytes", "bytes", "Bytes of the result, unpadded."),
        Field(
            "flag",
            "is_root",
            "Whether the instruction is the root of its computation.",
            label="root",
        ),
        Field(
            "flag", "is_implicit", "Whether the text only implies the instruction.", label="implied"
        ),
        Field(
            "text",
            "called_computations",
            "The computations that the instruction calls.",
            label="calls",
        ),
        Field("count", "multiplicity", "Calls of the instruction per step.", label="calls"),
        Field(
            "flops",
            "flops",
            "FLOPs of one call; those of a fusion are the FLOPs inside it.",
            label="FLOP per call",
        ),
        Field(
            "seconds",
            "seconds",
            "Modelled time of one call on the device, without overlap.",
            label="time per call",
        ),
        Field("scope", "op_name", "The framework's name for the operation."),
        Field("path", "source_file", "The source file."),
        Field("index", "source_line", "The line in the source file."),
        Field("word", "role", "Role of the computation in its callers."),
        Field("count", "instructions", "Instructions of the computation."),
        Field("name", "root", "The root of the computation."),
        Field("index", "text_line", "The line of the module's text.", label="line"),
    )

    def __init__(self, module: Module, what: Instruction | Computation) -> None:
        self.module = module
        """The module."""
        self._what = what

    @property
    def title(self) -> str:
        """The name of the instruction or computation."""
        return self._what.name

    @property
    def instruction(self) -> Instruction | None:
        """The instruction; None for a computation."""
        from hlofast._core import Instruction

        return self._what if isinstance(self._what, Instruction) else None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Properties and place of the instruction or computation."""
        from hlofast._core import Instruction

        one = self._what
        if isinstance(one, Instruction):
            values = _of_instruction(one) | _figures(self.module, one)
        else:
            values = _of_computation(self.module, one)
        values["module"] = self.module.name
        known_as = values.get("provenance")
        return tuple(
            Fact(field, values[field.name], (known_as or {}).get(field.name, "exact"))
            for field in self.FACTS
            if values.get(field.name) is not None or (field.name == "bytes" and "bytes" in values)
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """A note if the text only implies the instruction."""
        one = self.instruction
        if one is None or not one.is_implicit:
            return ()
        return (Note("implied", "the text implies this instruction without writing it"),)

    def sections(self) -> tuple[Section, ...]:
        """Operands, users and attributes of an instruction, or parameters and callers; the text."""
        chosen = ["operands", "users", "attributes", "text"]
        if self.instruction is None:
            chosen = ["parameters", "callers", "text"]
        return tuple(own for own in self.every_section() if own.name in chosen)

    def every_section(self) -> tuple[Section, ...]:
        """The tables of instructions and of computations."""
        what: Any = self._what
        one = self.instruction
        no: tuple[Instruction, ...] = ()
        attributes = {} if one is None else one.attributes.texts()
        first = what.text_line
        lines = [
            (None if first is None else first + at, line)
            for at, line in enumerate((what.text or "").splitlines())
        ]
        parameters = _references(no if one else what.parameters)
        callers = _references(no if one else what.callers)
        in_what = ("instruction", "opcode", "computation")
        return (
            Section("operands", "Operands", _references(one.operands if one else no), _SHOWN),
            Section("users", "Users", _references(one.users if one else no), _SHOWN),
            Section("attributes", "Attributes", of_rows(_ATTRIBUTES, [
                (key, value) for key, value in attributes.items() if key not in _ELSEWHERE
            ])),
            Section("parameters", "Parameters", parameters, _SHOWN),
            Section("callers", "Callers", callers, in_what),
            Section("text", "Text", of_rows(_TEXT, lines)),
        )  # fmt: skip

    def __repr__(self) -> str:
        kind = "computation" if self.instruction is None else "instruction"
        return f"<Shown {kind} {self.title} of {self.module.name}>"


def _of_instruction(one: Instruction) -> dict[str, Any]:
    metadata, source = one.metadata, one.source
    return {
        "kind": "instruction",
        "computation": one.computation.name,
        "opcode": one.opcode,
        "shape": str(one.shape),
        "bytes": one.shape.bytes,
        "is_root": one.is_root,
        "is_implicit": one.is_implicit,
        "called_computations": ", ".join(c.name for c in one.called_computations) or None,
        "op_name": (metadata and metadata.op_name) or None,
        "source_file": (source and source.file) or None,
        "source_line": source.line if source else None,
        "text_line": one.text_line,
    }


def _figures(module: Module, one: Instruction) -> dict[str, Any]:
    """Calls, FLOPs and seconds of an instruction, and their provenance where it is not exact."""
    cost = module.cost()._data
    calls = cost.column("multiplicity")[one.row]
    values: dict[str, Any] = {"multiplicity": None if calls < 0 else calls, "provenance": {}}
    rows = _inside(one)
    if rows:
        flops, sources = cost.column("flops"), cost.column("provenance")
        values["flops"] = sum(flops[row] for row in rows)
        # From exact to unknown; an unknown part makes the sum a lower bound.
        worst = max(sources[row] for row in rows)
        values["provenance"]["flops"] = ("exact", "configuration", "modelled", "bound")[worst]
    if module.context.device is not None:
        seconds = module.time()._data.column("seconds")[one.row]
        values["seconds"] = seconds if seconds == seconds else None
        values["provenance"]["seconds"] = "modelled"
    return values


def _inside(one: Instruction) -> list[int]:
    """Rows whose FLOPs are the instruction's own; none for loops, branches and calls."""
    if one.opcode == "fusion":
        called = (row for own in one.called_computations for row in own.instructions)
        return [inner for row in called for inner in _inside(row)]
    return [] if one.opcode in _CALLS else [one.row]


def _of_computation(module: Module, one: Computation) -> dict[str, Any]:
    usage = [row for row in module.summary().computations if row["name"] == one.name]
    return {
        "kind": "computation",
        "computation": one.name,
        "role": usage[0]["role"] if usage else None,
        "instructions": usage[0]["instructions"] if usage else None,
        "root": one.root.name if one.root else None,
        "text_line": one.text_line,
    }


def _references(instructions: Iterable[Instruction]) -> Table:
    return of_rows(
        _REFERENCE,
        [(one.row, one.opcode, str(one.shape), one.computation.name) for one in instructions],
    )


def matches(module: Module, name: str) -> list[Shown]:
    """Returns matches of `name`: a computation, then instructions.

    `COMPUTATION/NAME` selects the instruction of one computation.
    """
    place, _, plain = name.rpartition("/")
    plain, place = plain.removeprefix("%"), place.removeprefix("%")
    found: list[Shown] = []
    if not place and plain in module.computations:
        found.append(Shown(module, module.computations[plain]))
    for computation in module.computations:
        if plain in computation.instructions and place in ("", computation.name):
            found.append(Shown(module, computation.instructions[plain]))
    return found


def is_ambiguous(found: list[Shown]) -> bool:
    """Whether several instructions match; a computation of the same name takes precedence."""
    return len(found) > 1 and all(one.instruction is not None for one in found)


def places(found: list[Shown]) -> str:
    """Returns `COMPUTATION/NAME` of the first instructions."""
    own = [(one.instruction, one.title) for one in found]
    return _text.names([f"{at.computation.name}/{title}" for at, title in own if at is not None])


def unknown_instruction(module: Module, name: str) -> UnknownNameError:
    """Returns the error for a name that no instruction or computation of a module has."""
    return UnknownNameError(f"no instruction or computation {name!r}{near(module, name)}")


def near(module: Module, name: str) -> str:
    """Returns `; did you mean …?` with similar names of instructions and computations."""
    from itertools import chain

    computations = (own.name for own in module.computations)
    plain = name.rpartition("/")[2].removeprefix("%")
    return meant(plain, chain(computations, (own.name for own in module)))


def show(module: Module, name: str) -> Shown:
    """`Module.show`."""
    found = matches(module, name)
    if not found:
        raise unknown_instruction(module, name)
    if len(found) > 1 and found[0].instruction is not None:
        text = f"{len(found)} instructions are named {name!r}: {places(found)}"
        raise ValueError(text)
    return found[0]
