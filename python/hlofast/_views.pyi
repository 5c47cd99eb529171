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
    """A computation of a module: a light view, created on access, and a sequence of
    instructions.
    """

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
    """Its parameters, ordered by number."""
    is_entry: Final[bool]
    """Whether it is the module's entry computation."""
    is_implicit: Final[bool]
    """Whether it is implicit: it is not in the text, as with async sugar."""
    is_inline: Final[bool]
    """Whether it is written inline, inside the instruction that calls it."""
    execution_thread: Final[str | None]
    """The execution thread; None for the main thread."""
    signature: Final[str]
    """`(parameters) -> shape` as written; empty if the text is in short form."""
    callers: Final[InstructionSequence]
    """The instructions that call it."""
    columns: Final[Columns]
    """The rows of this computation in the module's columns."""
    text: Final[str | None]
    """Its text, byte for byte; None for implicit computations."""
    text_line: Final[int | None]
    """The 1-based line of the file on which its text starts; None for implicit computations."""
    def post_order(self) -> InstructionSequence:
        """Returns its instructions, operands before users, otherwise in text order."""
    def names(self) -> list[str]:
        """Returns the names of all instructions."""
    def opcodes(self) -> list[str]:
        """Returns the opcodes of all instructions."""
    def operand_names(self) -> list[list[str]]:
        """Returns the operand names of each instruction: a list of lists."""
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
    """An instruction of a module: a light view, created on access."""

    name: Final[str]
    """The name, without `%`."""
    opcode: Final[str]
    """The opcode in XLA's graph; unknown opcodes as written."""
    opcode_text: Final[str]
    """The opcode as the text writes it, e.g. `all-to-all-start` for an `async-start`."""
    module: Final[_module.Module]
    """The module it belongs to."""
    computation: Final[Computation]
    """The computation it belongs to."""
    row: Final[int]
    """The row number: its index in the module's columns."""
    index: Final[int]
    """The position within its computation."""
    shape: Final[Shape]
    """The shape of the result."""
    operands: Final[InstructionSequence]
    """The operands."""
    users: Final[InstructionSequence]
    """The instructions that use the result, without duplicates."""
    called_computations: Final[ComputationSequence]
    """The computations it calls, in text order."""
    calls: Final[tuple[tuple[str, Computation], ...]]
    """Its calls as pairs `(role, computation)`; the role is the attribute's name."""
    control_predecessors: Final[InstructionSequence]
    """The instructions that must run before it although it does not read them."""
    control_successors: Final[InstructionSequence]
    """The instructions that have it as a control predecessor."""
    attributes: Final[Attributes]
    """The attributes: a mapping whose values are decoded on access."""
    metadata: Final[Metadata | None]
    """Operation name, source location and more; None if the text gives no metadata."""
    source: Final[SourceLocation | None]
    """Source file and line, from the metadata or the frame of its stack that the context selects;
    None if unknown.
    """
    sharding: Final[Sharding | None]
    """The sharding of the result; None if the text gives none."""
    frontend_attributes: Final[dict[str, str | bytes]]
    """The framework's own attributes, as a dictionary; empty if there are none."""
    backend_config: Final[str | bytes | None]
    """The backend configuration; None if there is none.

    The content of a string (`bytes` if it is binary), or a dictionary as written.
    """
    backend_config_json: Final[Any]
    """`backend_config` parsed as JSON; None if it is absent or not JSON."""
    literal: Final[Literal | None]
    """The values of a constant; None for other instructions."""
    parameter_number: Final[int | None]
    """The parameter number; None for other instructions."""
    is_root: Final[bool]
    """Whether it is the root of its computation."""
    is_implicit: Final[bool]
    """Whether it is implicit: the text only implies it."""
    text: Final[str | None]
    """Its text, byte for byte; None for implicit instructions."""
    text_line: Final[int | None]
    """The 1-based line of the file on which its text starts; None for implicit instructions."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __copy__(self) -> Instruction: ...
    def __deepcopy__(self, _memo: object, /) -> Instruction: ...
    def _repr_html_(self) -> str: ...

@final
class Literal:
    """The values of a constant: the literal of an array, or of a tuple of arrays."""

    shape: Final[Shape]
    """The shape of the array or tuple."""
    text: Final[str | bytes]
    """The text as written; `bytes` if it is not UTF-8. Empty for a leaf of an elided tuple."""
    leaves: Final[tuple[Literal, ...]]
    """The literals of a tuple's arrays, in order; for an array, the literal itself."""
    extent: Final[typing.Literal["full", "elided", "first only"] | None]
    """How much of the array the text gives; None for tuples.

    `full`, `elided` (`...` stands for omitted elements) or `first only` (one element without
    braces for a whole array; XLA sets the others to 0).
    """
    is_elided: Final[bool]
    """Whether elements of the array, or of any leaf, were elided when the text was printed."""
    array: Final[_Array]
    """The elements as a read-only NumPy array.

    It has the dimensions of the shape if the text gives all elements; otherwise it is
    one-dimensional and holds the elements given. `pred` is bool; integers narrower than a byte
    are int8 or uint8; `f16`, `f32`, `f64`, `c64` and `c128` are NumPy's own types; other floats
    are given as their bits (uint16 for `bf16`, uint8 for smaller types), and `shape` names the
    type.

    Raises `TypeError` for a tuple: use its `leaves`.
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
    """A lazy, immutable sequence of instructions.

    Index it with a position, a slice or a name. An unknown or ambiguous name raises `KeyError`.
    """

    rows: Final[Column]
    """The row numbers, as a column of uint32."""
    def names(self) -> list[str]:
        """Returns the names of all instructions."""
    def opcodes(self) -> list[str]:
        """Returns the opcodes of all instructions."""
    def operand_names(self) -> list[list[str]]:
        """Returns the operand names of each instruction: a list of lists."""
    # Without the range to search in: there is nothing to skip.
    def index(self, item: object) -> int:  # type: ignore[override]
        """Returns the position of an instruction, or of the first instruction with the given name.

        Raises `ValueError` if it is not in the sequence.
        """
    def count(self, item: object) -> int:
        """Returns how often an instruction occurs in the sequence."""
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
    """A lazy, immutable sequence of computations.

    Index it with a position, a slice or a name. An unknown name raises `KeyError`.
    """

    def names(self) -> list[str]:
        """Returns the names of all computations."""
    # Without the range to search in: there is nothing to skip.
    def index(self, item: object) -> int:  # type: ignore[override]
        """Returns the position of a computation, or of the computation with the given name.

        Raises `ValueError` if it is not in the sequence.
        """
    def count(self, item: object) -> int:
        """Returns how often a computation occurs in the sequence."""
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
    """Attributes by key, in text order. Values are decoded on access."""

    @overload
    def get(self, key: object, default: None = None) -> Any:
        """Returns the value of `key`, or `default`."""
    @overload
    def get(self, key: object, default: _T) -> Any | _T:
        """Returns the value of `key`, or `default`."""
    # Lists, not views: nothing under them can change.
    def keys(self) -> list[str]:  # type: ignore[override]
        """Returns the keys, in text order."""
    def values(self) -> list[Any]:  # type: ignore[override]
        """Returns the decoded values, in text order."""
    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Returns pairs of key and decoded value, in text order."""
    def raw(self, key: str) -> str | bytes:
        """Returns the value of `key` as written; `bytes` if it is binary.

        Raises `KeyError` if there is no such attribute.
        """
    def texts(self) -> dict[str, str]:
        """Returns all values as written, by key."""
    def __len__(self) -> int: ...
    def __getitem__(self, key: str, /) -> Any: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __eq__(self, other: object, /) -> bool: ...
    # Compares by value, values may be lists; object's type says it can be hashed.
    __hash__: ClassVar[None]  # type: ignore[assignment]
    def _repr_html_(self) -> str: ...
