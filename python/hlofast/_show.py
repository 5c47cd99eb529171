"""`Shown`: one instruction or computation with its operands, users, callers and text."""

from __future__ import annotations

from hlofast import _core, _text
from hlofast._core import Field
from hlofast._names import meant
from hlofast._result import Fact, Note, Result, Section
from hlofast._shares import labelled
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
_FRAMES = (
    Field("path", "file", "The source file."),
    Field("index", "line", "The line in the source file.", nullable=True),
    Field("name", "function", "The function.", nullable=True),
    Field("flag", "is_library", "Whether the file belongs to a library.", label="library"),
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
        Field("name", "computation", "The computation, or the instruction's computation."),
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
            label="called",
        ),
        Field("count", "multiplicity", "Calls of the instruction per step.", label="calls"),
        Field(
            "flops",
            "flops",
            "FLOPs of one call; for a fusion, the FLOPs inside it.",
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

        shown = self._what
        if isinstance(shown, Instruction):
            values = _of_instruction(shown) | _figures(self.module, shown)
        else:
            values = _of_computation(self.module, shown)
        values["module"] = self.module.name
        known_as = values.get("provenance")
        facts = tuple(
            Fact(field, values[field.name], (known_as or {}).get(field.name, "exact"))
            for field in self.FACTS
            if values.get(field.name) is not None or (field.name == "bytes" and "bytes" in values)
        )
        return labelled(self.module, facts, ("bytes", "flops", "seconds"))

    @property
    def notes(self) -> tuple[Note, ...]:
        """A note if the text only implies the instruction."""
        instruction = self.instruction
        if instruction is None or not instruction.is_implicit:
            return ()
        if self.module.is_fragment and instruction.opcode == "parameter":
            return (Note("placeholder", "no line of the text defines this operand"),)
        return (Note("implied", "the text implies this instruction without writing it"),)

    def sections(self) -> tuple[Section, ...]:
        """Operands, users, attributes and call stack, or parameters and callers; the text."""
        chosen = ["operands", "users", "attributes", "stack", "text"]
        if self.instruction is None:
            chosen = ["parameters", "callers", "text"]
        return tuple(own for own in self.every_section() if own.name in chosen)

    def every_section(self) -> tuple[Section, ...]:
        """The tables of instructions and of computations."""
        what: Any = self._what
        instruction = self.instruction
        no: tuple[Instruction, ...] = ()
        attributes = {} if instruction is None else instruction.attributes.texts()
        first = what.text_line
        lines = [
            (None if first is None else first + at, line)
            for at, line in enumerate((what.text or "").splitlines())
        ]
        parameters = _references(no if instruction else what.parameters)
        callers = _references(no if instruction else what.callers)
        operands = _references(instruction.operands if instruction else no)
        users = _references(instruction.users if instruction else no)
        in_what = ("instruction", "opcode", "computation")
        return (
            Section("operands", "Operands", operands, _SHOWN),
            Section("users", "Users", users, _SHOWN),
            Section("attributes", "Attributes", of_rows(_ATTRIBUTES, [
                (key, value) for key, value in attributes.items() if key not in _ELSEWHERE
            ])),
            Section("stack", "Call stack, innermost first", of_rows(
                _FRAMES, [] if instruction is None else _frames(self.module, instruction)
            )),
            Section("parameters", "Parameters", parameters, _SHOWN),
            Section("callers", "Callers", callers, in_what),
            Section("text", "Text", of_rows(_TEXT, lines)),
        )  # fmt: skip

    def __repr__(self) -> str:
        kind = "computation" if self.instruction is None else "instruction"
        return f"<Shown {kind} {self.title} of {self.module.name}>"


def _of_instruction(instruction: Instruction) -> dict[str, Any]:
    metadata, source = instruction.metadata, instruction.source
    return {
        "kind": "instruction",
        "computation": instruction.computation.name,
        "opcode": instruction.opcode,
        "shape": str(instruction.shape),
        "bytes": instruction.shape.bytes,
        "is_root": instruction.is_root,
        "is_implicit": instruction.is_implicit,
        "called_computations": ", ".join(c.name for c in instruction.called_computations) or None,
        "op_name": (metadata and metadata.op_name) or None,
        "source_file": (source and source.file) or None,
        "source_line": source.line if source else None,
        "text_line": instruction.text_line,
    }


def _figures(module: Module, instruction: Instruction) -> dict[str, Any]:
    """Calls, FLOPs and seconds of an instruction, and their provenance where it is not exact."""
    cost = module.cost()._data
    calls = cost.column("multiplicity")[instruction.row]
    values: dict[str, Any] = {"multiplicity": None if calls < 0 else calls, "provenance": {}}
    rows = _inside(instruction)
    if rows:
        flops, sources = cost.column("flops"), cost.column("provenance")
        values["flops"] = sum(flops[row] for row in rows)
        # Ordered from exact to unknown; an unknown part makes the sum a lower bound.
        worst = max(sources[row] for row in rows)
        known = _core.provenances[worst]
        words = {"from_backend_config": "configuration", "unknown": "bound"}
        values["provenance"]["flops"] = words.get(known, known)
    if module.context.device is not None and not module.is_fragment:
        time = module.time()
        seconds = time._data.column("seconds")[instruction.row]
        values["seconds"] = seconds if seconds == seconds else None
        for sent in time.collectives:
            if sent["instruction"] == instruction.row:
                values["seconds"] = sent["seconds"]
        values["provenance"]["seconds"] = "modelled"
    return values


def _inside(instruction: Instruction) -> list[int]:
    """Rows whose FLOPs are the instruction's own; none for loops, branches and calls."""
    if instruction.opcode == "fusion":
        called = (row for own in instruction.called_computations for row in own.instructions)
        return [inner for row in called for inner in _inside(row)]
    return [] if instruction.opcode in _CALLS else [instruction.row]


def _frames(module: Module, instruction: Instruction) -> list[tuple[object, ...]]:
    """Returns file, line, function and whether it is a library for each frame."""
    metadata = instruction.metadata
    return [
        (frame.file, frame.line or None, frame.function or None, module._is_library(frame.file))
        for frame in (() if metadata is None else metadata.stack_frames)
    ]


def _of_computation(module: Module, computation: Computation) -> dict[str, Any]:
    usage = [row for row in module.summary().computations if row["name"] == computation.name]
    return {
        "kind": "computation",
        "computation": computation.name,
        "role": usage[0]["role"] if usage else None,
        "instructions": usage[0]["instructions"] if usage else None,
        "root": computation.root.name if computation.root else None,
        "text_line": computation.text_line,
    }


def _references(instructions: Iterable[Instruction]) -> Table:
    return of_rows(
        _REFERENCE,
        [
            (
                instruction.row,
                instruction.opcode,
                str(instruction.shape),
                instruction.computation.name,
            )
            for instruction in instructions
        ],
    )


def matches(module: Module, name: str) -> list[Shown]:
    """Returns matches of `name`: a computation, then instructions.

    `COMPUTATION/NAME` selects the instruction of one computation.
    """
    place, _, plain = name.rpartition("/")
    plain, place = plain.removeprefix("%"), place.removeprefix("%")
    matching: list[Shown] = []
    if not place and plain in module.computations:
        matching.append(Shown(module, module.computations[plain]))
    for computation in module.computations:
        if plain in computation.instructions and place in ("", computation.name):
            matching.append(Shown(module, computation.instructions[plain]))
    return matching


def is_ambiguous(named: list[Shown]) -> bool:
    """Whether several instructions match; a computation of the same name takes precedence."""
    return len(named) > 1 and all(shown.instruction is not None for shown in named)


def places(named: list[Shown]) -> str:
    """Returns `COMPUTATION/NAME` of the first instructions."""
    own = [(shown.instruction, shown.title) for shown in named]
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
    named = matches(module, name)
    if not named:
        raise unknown_instruction(module, name)
    if len(named) > 1 and named[0].instruction is not None:
        text = f"{len(named)} instructions are named {name!r}: {places(named)}"
        raise ValueError(text)
    return named[0]
