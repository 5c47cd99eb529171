"""Views of a module: a part of `hlofast._core`; a stub only, the code is in `_core`."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar, final, overload

import numpy
import numpy.typing

from hlofast import _module
from hlofast._core import Column, Columns, Metadata, Shape, SourceLocation
from hlofast._mesh import Sharding

_T = TypeVar("_T")
_Array = numpy.typing.NDArray[Any]

@final
class Computation:
    """A computation of a module: a light view, made on access. It is a sequence of instructions."""

    name: Final[str]
    """The name, without `%`."""
    module: Final[_module.Module]
    """The module it belongs to."""
    index: Final[int]
    """The position in `module.computations`."""
    instructions: Final[InstructionSequence]
    """Its instructions in text order."""
    root: Final[Instruction | None]
    """The root; None for an empty computation."""
    parameters: Final[InstructionSequence]
    """Its parameters, by number."""
    is_entry: Final[bool]
    """Whether it is the module's entry."""
    is_implicit: Final[bool]
    """Whether the text only implies it, as async sugar does."""
    is_inline: Final[bool]
    """Whether it is written in place, inside the instruction that calls it."""
    execution_thread: Final[str | None]
    """The execution thread; None for the main one."""
    signature: Final[str]
    """`(parameters) -> shape` as written; empty in the short form."""
    callers: Final[InstructionSequence]
    """The instructions that call it."""
    columns: Final[Columns]
    """Its part of the module's columns."""
    text: Final[str | None]
    """Its text, byte for byte; None where the text only implies it."""
    text_line: Final[int | None]
    """The 1-based line of the file on which its text starts; None where there is none."""
    def post_order(self) -> InstructionSequence:
        """Operands before users, otherwise in text order."""
    def names(self) -> list[str]:
        """The names of all instructions."""
    def opcodes(self) -> list[str]:
        """The opcodes of all instructions."""
    def operand_names(self) -> list[list[str]]:
        """For each instruction the names of its operands."""
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: int | str, /) -> Instruction: ...
    @overload
    def __getitem__(self, key: slice, /) -> InstructionSequence: ...
    def __contains__(self, item: object, /) -> bool: ...
    def __iter__(self) -> InstructionIterator: ...
    def __reversed__(self) -> InstructionIterator: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __copy__(self) -> Computation: ...
    def __deepcopy__(self, _memo: object, /) -> Computation: ...
    def _repr_html_(self) -> str: ...

@final
class Instruction:
    """An instruction of a module: a light view, made on access."""

    name: Final[str]
    """The name, without `%`."""
    opcode: Final[str]
    """The opcode of XLA's graph; unknown ones as written."""
    opcode_text: Final[str]
    """The opcode as the text writes it, such as `all-to-all-start` for an `async-start`."""
    module: Final[_module.Module]
    """The module it belongs to."""
    computation: Final[Computation]
    """The computation it belongs to."""
    row: Final[int]
    """The row number in the module's columns."""
    index: Final[int]
    """The position in its computation."""
    shape: Final[Shape]
    """The result shape."""
    operands: Final[InstructionSequence]
    """The operands."""
    users: Final[InstructionSequence]
    """The instructions that use the result, each once."""
    called_computations: Final[ComputationSequence]
    """The computations it calls, in text order."""
    calls: Final[tuple[tuple[str, Computation], ...]]
    """Its calls with their roles: `(role, computation)`, where role is the attribute's name."""
    control_predecessors: Final[InstructionSequence]
    """The instructions that must run before it though it does not read them."""
    control_successors: Final[InstructionSequence]
    """The instructions that name it as a control predecessor."""
    attributes: Final[Attributes]
    """The attributes: a mapping whose values are decoded on access."""
    metadata: Final[Metadata | None]
    """Where it comes from; None if the text does not say."""
    source: Final[SourceLocation | None]
    """Source file and line, from the metadata or its innermost stack frame; None if unknown."""
    sharding: Final[Sharding | None]
    """How the result lies on devices; None if the text does not say."""
    frontend_attributes: Final[dict[str, str | bytes]]
    """The framework's own attributes, as a dictionary."""
    backend_config: Final[str | bytes | None]
    """The back-end's configuration: the content of a string (`bytes` if it is binary), or a
    dictionary as written; None without one.
    """
    backend_config_json: Final[Any]
    """`backend_config` read as JSON; None if there is none or it is not JSON."""
    literal: Final[Literal | None]
    """The values of a constant; None for other instructions."""
    parameter_number: Final[int | None]
    """The number of a parameter; None for other instructions."""
    is_root: Final[bool]
    """Whether it is the root of its computation."""
    is_implicit: Final[bool]
    """Whether the text only implies it."""
    text: Final[str | None]
    """Its text, byte for byte; None where the text only implies it."""
    text_line: Final[int | None]
    """The 1-based line of the file on which its text starts; None where there is none."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __copy__(self) -> Instruction: ...
    def __deepcopy__(self, _memo: object, /) -> Instruction: ...
    def _repr_html_(self) -> str: ...

@final
class Literal:
    """What stands in a constant's parentheses: the literal of an array, or of a tuple of arrays."""

    shape: Final[Shape]
    """The shape of the array or tuple."""
    text: Final[str | bytes]
    """The text, as written; `bytes` if it is not UTF-8. Empty where a tuple around it is elided."""
    leaves: Final[tuple[Literal, ...]]
    """The literals of the arrays of a tuple, in order; of an array, the literal itself."""
    extent: Final[typing.Literal["full", "elided", "first only"] | None]
    """How much of the array the text gives: `full`, `elided` (`...` stands for elements that
    were left out) or `first only` (one element without braces for a whole array; XLA leaves
    the others 0). None for tuples.
    """
    is_elided: Final[bool]
    """Whether some elements were left out when the text was printed, here or in any leaf."""
    array: Final[_Array]
    """The elements as a read-only NumPy array. It has the array's dimensions if the text gives
    all elements, else one dimension with those given. `pred` is bool; integers narrower than
    a byte are int8 or uint8; `f16`, `f32`, `f64`, `c64` and `c128` are NumPy's own; of other
    floats it holds the bits (uint16 for `bf16`, uint8 for the smaller ones): `shape` says
    which they are. A tuple has none: take those of its `leaves`.
    """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class InstructionIterator:
    """Iterator over a sequence of instructions."""

    def __iter__(self) -> InstructionIterator: ...
    def __next__(self) -> Instruction: ...
    def __length_hint__(self) -> int: ...

@final
class ComputationIterator:
    """Iterator over a sequence of computations."""

    def __iter__(self) -> ComputationIterator: ...
    def __next__(self) -> Computation: ...
    def __length_hint__(self) -> int: ...

@final
class InstructionSequence(Sequence[Instruction]):
    """A lazy, immutable sequence of instructions. Index it with a position, a slice or a name."""

    rows: Final[Column]
    """The row numbers, as a column."""
    def names(self) -> list[str]:
        """The names of all instructions."""
    def opcodes(self) -> list[str]:
        """The opcodes of all instructions."""
    def operand_names(self) -> list[list[str]]:
        """For each instruction the names of its operands."""
    # Without the range to search in: there is nothing to skip.
    def index(self, item: object) -> int:  # type: ignore[override]
        """The position of an instruction or of the first one with this name."""
    def count(self, item: object) -> int:
        """How often an instruction stands in the sequence."""
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: int | str, /) -> Instruction: ...
    @overload
    def __getitem__(self, key: slice, /) -> InstructionSequence: ...
    def __contains__(self, item: object, /) -> bool: ...
    def __iter__(self) -> InstructionIterator: ...
    def __reversed__(self) -> InstructionIterator: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class ComputationSequence(Sequence[Computation]):
    """A lazy, immutable sequence of computations. Index it with a position, a slice or a name."""

    def names(self) -> list[str]:
        """The names of all computations."""
    # Without the range to search in: there is nothing to skip.
    def index(self, item: object) -> int:  # type: ignore[override]
        """The position of a computation or of the one with this name."""
    def count(self, item: object) -> int:
        """How often a computation stands in the sequence."""
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: int | str, /) -> Computation: ...
    @overload
    def __getitem__(self, key: slice, /) -> ComputationSequence: ...
    def __contains__(self, item: object, /) -> bool: ...
    def __iter__(self) -> ComputationIterator: ...
    def __reversed__(self) -> ComputationIterator: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class Attributes(Mapping[str, Any]):
    """Attributes by key, in text order. Values are decoded when they are asked for."""

    @overload
    def get(self, key: object, default: None = None) -> Any:
        """The value of `key`, or `default`."""
    @overload
    def get(self, key: object, default: _T) -> Any | _T:
        """The value of `key`, or `default`."""
    # Lists, not views: nothing under them can change.
    def keys(self) -> list[str]:  # type: ignore[override]
        """The keys, in text order."""
    def values(self) -> list[Any]:  # type: ignore[override]
        """The decoded values, in text order."""
    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Keys with decoded values, in text order."""
    def raw(self, key: str) -> str | bytes:
        """The value of `key` as the text writes it; `bytes` if it is binary."""
    def texts(self) -> dict[str, str]:
        """All values as the text writes them."""
    def __len__(self) -> int: ...
    def __getitem__(self, key: str, /) -> Any: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __eq__(self, other: object, /) -> bool: ...
    # Compares by value, values may be lists; object's type says it can be hashed.
    __hash__: ClassVar[None]  # type: ignore[assignment]
    def _repr_html_(self) -> str: ...
