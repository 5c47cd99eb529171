"""The compiled part of hlofast."""

import os
import typing
from collections.abc import Callable, Iterator, Sequence
from re import Pattern
from typing import Any, Final, Self, TypeVar, final, overload

import numpy
import numpy.typing

from hlofast import _module
from hlofast._context import Context
from hlofast._cost_data import CollectivesData as CollectivesData
from hlofast._cost_data import CostData as CostData
from hlofast._cost_data import PlanData as PlanData
from hlofast._cost_data import RematData as RematData
from hlofast._cost_data import StagesData as StagesData
from hlofast._cost_data import _cost as _cost
from hlofast._cost_data import _lint_options as _lint_options
from hlofast._cost_data import _lint_rules as _lint_rules
from hlofast._diff_data import DiffData as DiffData
from hlofast._diff_data import _diff as _diff
from hlofast._memory_data import MemoryData as MemoryData
from hlofast._memory_data import _memory as _memory
from hlofast._memory_data import _memory_file as _memory_file
from hlofast._memory_data import _xla_memory as _xla_memory
from hlofast._mesh import AxisMatch as AxisMatch
from hlofast._mesh import Mesh as Mesh
from hlofast._mesh import PartitionSpec as PartitionSpec
from hlofast._mesh import ReplicaGroups as ReplicaGroups
from hlofast._mesh import Sharding as Sharding
from hlofast._mesh import _restore_mesh as _restore_mesh
from hlofast._records import Alias as Alias
from hlofast._records import DimensionLabels as DimensionLabels
from hlofast._records import PaddingDimension as PaddingDimension
from hlofast._records import SliceDimension as SliceDimension
from hlofast._records import WindowDimension as WindowDimension
from hlofast._scan_data import ScanData as ScanData
from hlofast._scan_data import ScanPart as ScanPart
from hlofast._scan_data import ScanTable as ScanTable
from hlofast._scan_data import SurveyData as SurveyData
from hlofast._scan_data import _concatenated as _concatenated
from hlofast._scan_data import _scan_fields as _scan_fields
from hlofast._scan_data import _scan_part as _scan_part
from hlofast._scan_data import _scan_rows as _scan_rows
from hlofast._scan_data import _scan_table as _scan_table
from hlofast._scan_data import _scan_words as _scan_words
from hlofast._scan_data import _survey as _survey
from hlofast._scan_data import _survey_listing as _survey_listing
from hlofast._scan_data import _survey_part as _survey_part
from hlofast._time_data import TimeData as TimeData
from hlofast._time_data import _collective_time as _collective_time
from hlofast._time_data import _time as _time
from hlofast._trace_data import TraceData as TraceData
from hlofast._trace_data import _trace as _trace
from hlofast._views import Attributes as Attributes
from hlofast._views import Computation as Computation
from hlofast._views import ComputationIterator as ComputationIterator
from hlofast._views import ComputationSequence as ComputationSequence
from hlofast._views import Instruction as Instruction
from hlofast._views import InstructionIterator as InstructionIterator
from hlofast._views import InstructionSequence as InstructionSequence
from hlofast._views import Literal as Literal
from hlofast.errors import ParseError

_T = TypeVar("_T")
_Strict = typing.Literal[False, True, "newest"] | None
_OnError = typing.Literal["raise", "collect"]
_Words = str | Sequence[str]
_Array = numpy.typing.NDArray[Any]

__all__: list[str]

call_roles: tuple[str, ...]
phases: tuple[str, ...]
protobuf_fields_not_in_text: tuple[tuple[str, str], ...]
provenances: tuple[str, ...]
element_types: tuple[str, ...]
error_kinds: tuple[str, ...]
_version: str
kinds: tuple[str, ...]
opcodes: tuple[str, ...]

def _load(
    path: str | os.PathLike[str],
    *,
    module: str | int | None = None,
    strict: _Strict = None,
    on_error: _OnError = "raise",
    max_bytes: int | None = None,
    threads: int | None = None,
    context: Context | None = None,
) -> _module.Module:
    """The module in the local file `path`: what `hlofast.load` reads with the same arguments."""

def _loads(
    text: str | bytes | bytearray | memoryview,
    *,
    path: str | None = None,
    module: str | int | None = None,
    strict: _Strict = None,
    on_error: _OnError = "raise",
    max_bytes: int | None = None,
    threads: int | None = None,
    context: Context | None = None,
) -> _module.Module:
    """The module in `text`: what `hlofast.loads` reads with the same arguments."""

def _find_modules(
    text: str | bytes | bytearray | memoryview,
    *,
    path: str | None = None,
    strict: _Strict = None,
    on_error: _OnError = "raise",
    max_bytes: int | None = None,
    threads: int | None = None,
    context: Context | None = None,
) -> list[FoundModule]:
    """Every module in `text`: what `hlofast.find_modules` reads with the same arguments."""

def _register_module_class(class_: type[Module]) -> None:
    """Make every module from now on an object of `class_`, a subclass of `_core.Module`."""

def _register_error_class(class_: type[ParseError]) -> None:
    """Make every fault from now on an object of `class_`."""

def _proto(module: Module, wrapped: bool) -> tuple[bytes, list[tuple[int, str]]]:
    """The bytes of a protobuf, with line and words of everything that it has no place for."""

def _neighbours(path: str) -> tuple[tuple[str, str] | None, str | None]:
    """What the files beside `path` say of the module in it: its chip and the file that says so, and
    the file of the same module before optimisation.
    """

def _restore_module(text: bytes, options: dict[str, Any]) -> _module.Module:
    """What unpickling a module calls: reads `text` again as it was read, with its place in its
    file.
    """

def _restore_instruction(module: Module, row: int) -> Instruction:
    """What unpickling an instruction calls."""

def _restore_computation(module: Module, number: int) -> Computation:
    """What unpickling a computation calls."""

def _restore_shape(module: Module, number: int) -> Shape:
    """What unpickling a shape calls."""

def _restore_attributes(module: Module, row: int | None) -> Attributes:
    """What unpickling attributes calls; those of the header have no row."""

def _restore_metadata(module: Module, row: int) -> Metadata:
    """What unpickling metadata calls."""

def _restore_instructions(module: Module, rows: Sequence[int]) -> InstructionSequence:
    """What unpickling a sequence of instructions calls."""

def _restore_computations(module: Module, numbers: Sequence[int]) -> ComputationSequence:
    """What unpickling a sequence of computations calls."""

def _restore_layout(parts: tuple[Any, ...]) -> Layout:
    """What unpickling a layout calls."""

def _instruction_columns(module: Module) -> list[tuple[Field, Column | TextColumn]]:
    """Field and column of every fact in the instruction table."""

def _arrow_stream(columns: list[tuple[Field, Column | TextColumn]], length: int) -> object:
    """A capsule `arrow_array_stream` of one record batch."""

def _arrow_schema(columns: list[tuple[Field, Column | TextColumn]], length: int) -> object:
    """A capsule `arrow_schema`."""

def _arrow_array(
    columns: list[tuple[Field, Column | TextColumn]], length: int
) -> tuple[object, object]:
    """Capsules `arrow_schema` and `arrow_array`: the table as one struct array."""

@final
class FoundModule:
    """A module found in a text, or the fault that keeps it from being read."""

    module: Final[_module.Module | None]
    """The module; None if it cannot be read."""
    error: Final[ParseError | None]
    """The `ParseError`; None if the module was read."""
    line: Final[int]
    """1-based line where it starts."""
    offset: Final[int]
    """Byte offset where it starts."""
    label: Final[str | None]
    """The file name that a framed dump announces; None without one."""

class Module:
    """A parsed HLO module: frozen, shared, a sequence of instructions. `hlofast.Module` adds the
    analyses.
    """

    def __new__(cls, module: Module, context: Context | None = None) -> Self: ...
    @property
    def _told(self) -> Context | None:
        """The context that was told; None if nothing was."""
    def _context(self, find: Callable[[], Context]) -> Context:
        """The whole context: what `find` returns, which is called once."""
    @property
    def name(self) -> str:
        """The name."""
    @property
    def path(self) -> str | None:
        """The file it was read from; None for texts without one."""
    @property
    def buffer_assignment(self) -> bytes | None:
        """XLA's account of buffers, where the module came in a protobuf that has one: what the file
        `-buffer-assignment.txt` says, for `Memory.file`. None otherwise.
        """
    @property
    def num_partitions(self) -> int:
        """Number of partitions (devices that share the work of one program); 1 if the header does
        not say. A `ParseError` if what it says is no 64-bit integer.
        """
    @property
    def replica_count(self) -> int:
        """Number of replicas (devices that run the same program on other data); as for
        `num_partitions`.
        """
    @property
    def is_scheduled(self) -> bool:
        """Whether text order is the order of execution."""
    @property
    def entry(self) -> Computation:
        """The entry computation."""
    @property
    def computations(self) -> ComputationSequence:
        """The computations in text order."""
    @property
    def instructions(self) -> InstructionSequence:
        """All instructions in text order, implied ones included."""
    @property
    def instruction_count(self) -> int:
        """Number of instructions that the text writes."""
    @property
    def computation_count(self) -> int:
        """Number of computations that the text writes."""
    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The distinct shapes by number."""
    @property
    def header(self) -> Attributes:
        """The header's attributes, decoded on access."""
    @property
    def errors(self) -> tuple[ParseError, ...]:
        """Faults that were passed over; only with `on_error="collect"`."""
    @property
    def missing_entry(self) -> ParseError | None:
        """What is wrong if the text seems to end before its entry computation: none is marked as
        ENTRY, and the last one, which `entry` therefore is, has other parameters or another result
        than `entry_computation_layout` in the header says. None for other modules, and with faults
        in `errors`. XLA reads such text without a word.
        """
    @property
    def columns(self) -> Columns:
        """Read-only NumPy arrays over the module's memory."""
    @property
    def op_names(self) -> tuple[str, ...]:
        """The distinct operation names that `columns.op_name` counts."""
    @property
    def source_files(self) -> tuple[str, ...]:
        """The distinct source files that `columns.source_file` counts."""
    @property
    def nbytes(self) -> int:
        """Bytes that the representation takes beyond the text, with what was computed so far."""
    @property
    def text_bytes(self) -> int:
        """Bytes of the text."""
    @property
    def text(self) -> str:
        """The text, byte for byte."""
    def names(self) -> list[str]:
        """The names of all instructions."""
    def opcodes(self) -> list[str]:
        """The opcodes of all instructions."""
    def operand_names(self) -> list[list[str]]:
        """For each instruction the names of its operands."""
    def post_order(self) -> ComputationSequence:
        """The computations, callees before callers, otherwise in text order."""
    def _summary(self, *, shapes: int = 10) -> dict[str, Any]:
        """What `hlofast.Summary` is made of; `shapes` is how many of the largest shapes to list."""
    def mesh(self) -> Mesh | None:
        """The mesh that the text speaks of: its source, and whether the names of the axes are in
        the text, are in the result. None if nothing in it names several devices.
        """
    def where(
        self,
        *,
        opcode: _Words | None = None,
        computation: str | Computation | Sequence[str | Computation] | None = None,
        name: str | None = None,
        op_name: str | Pattern[str] | None = None,
        source_file: str | Pattern[str] | None = None,
        source_line: int | None = None,
        shape: str | Shape | Sequence[str | Shape] | None = None,
        element_type: _Words | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        is_root: bool | None = None,
        is_implicit: bool | None = None,
    ) -> numpy.typing.NDArray[numpy.uint32]:
        """The rows that meet every condition given, as a NumPy array of row numbers. `opcode`,
        `computation`, `shape` and `element_type` take one value or several; `op_name` and
        `source_file` a part of the text or a compiled regular expression.
        """
    def to_text(
        self,
        *,
        form: typing.Literal["long", "short", "original"] = "long",
        metadata: bool = True,
        backend_config: bool = True,
        layouts: bool = True,
    ) -> str:
        """The module as text: `form` is `long` or `short` for XLA's canonical forms, `original` for
        the bytes it was read from.
        """
    def to_proto(self, *, wrapped: bool = False, strict: bool = False) -> bytes:
        """The module as the bytes of an `HloModuleProto`, which XLA loads; with `wrapped` of the
        `HloProto` around it that XLA dumps. Reading them gives the same program.

        Names that several instructions share become unique, constants whose values the text elides
        have none, device numbers are the usual ones. A `ParseError` at what has no field; what XLA
        itself loses (options of the compiler in the header, a `channel_id` below 1, the grouping of
        `slice_sizes` that tuples are cut by) is left out, or with `strict` an error too.
        """
    def fingerprint(
        self,
        *,
        names: bool = False,
        channel_ids: bool = False,
        metadata: bool = False,
        layouts: bool = True,
        backend_config: bool = True,
        schedule: bool = True,
    ) -> str:
        """A stable digest, as 32 hexadecimal digits, of what the module computes: equal for modules
        that differ only in what is left out here.
        """
    def same_program(self, other: Module, *, layouts: bool = True, metadata: bool = True) -> bool:
        """Whether `other` is the same program: names, opcodes, shapes, operands, calls, attributes,
        header. Spacing, comments and what the text leaves implied do not matter, nor does the
        order of rows unless they are scheduled. `==` compares texts instead.
        """
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    @overload
    def __getitem__(self, key: int | str, /) -> Instruction: ...
    @overload
    def __getitem__(self, key: slice, /) -> InstructionSequence: ...
    def __contains__(self, item: object, /) -> bool: ...
    def __iter__(self) -> InstructionIterator: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: object, /) -> Self: ...
    def _repr_html_(self) -> str: ...

@final
class Columns:
    """Read-only NumPy arrays by name, as attributes and as items. Arrays share memory with the
    module and stay valid after it is gone. Those of a computation are the part that its rows
    take; row numbers and offsets still count from the module's first row.
    """

    def keys(self) -> tuple[str, ...]:
        """The names of all columns."""
    def describe(self) -> dict[str, str]:
        """What each column holds."""
    def buffer(self, name: str) -> Column:
        """The column as a buffer, for code without NumPy."""
    def __len__(self) -> int: ...
    def __getitem__(self, key: str, /) -> _Array: ...
    def __getattr__(self, name: str, /) -> _Array: ...
    def __contains__(self, key: str, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __dir__(self) -> list[str]: ...
    def __setattr__(self, name: str, value: object, /) -> None: ...
    def __delattr__(self, name: str, /) -> None: ...

@final
class Field:
    """What a column or a fact is: its name, the kind and unit of its values, its heading, one
    sentence about it, whether values may be unknown and whether they add up.
    """

    def __new__(
        cls,
        kind: str,
        name: str,
        doc: str,
        *,
        label: str = "",
        nullable: bool = False,
        signed: bool = False,
        adds_up: bool = False,
    ) -> Field: ...
    name: Final[str]
    """The name, the same wherever the values are shown."""
    kind: Final[str]
    """What the values are: one of `hlofast.kinds`."""
    unit: Final[str]
    """The unit of the values: B, FLOP, s, or empty."""
    label: Final[str]
    """The heading for people."""
    doc: Final[str]
    """One sentence about the values."""
    nullable: Final[bool]
    """Whether a value may be unknown or absent, which is None, a null or a masked entry."""
    signed: Final[bool]
    """Whether numbers below zero are values."""
    adds_up: Final[bool]
    """Whether the sum over all rows means something."""
    unknown: Final[int | None]
    """The integer in memory behind a masked entry; None where there is none. Of floats it is
    NaN.
    """
    is_text: Final[bool]
    """Whether the values are texts."""
    is_amount: Final[bool]
    """Whether the values are amounts, so that they can be added."""
    def replace(
        self,
        *,
        name: str | None = None,
        doc: str | None = None,
        label: str | None = None,
        nullable: bool | None = None,
        adds_up: bool | None = None,
    ) -> Field:
        """The same field with other properties."""
    def values(self, column: Column | TextColumn) -> list[Any]:
        """The values of a column of this field as a list, with None for what is unknown."""
    def value(self, column: Column | TextColumn, index: int) -> Any:
        """The value of row `index` of a column of this field; None if it is unknown."""

def _restore_field(
    kind: str, name: str, doc: str, label: str, properties: tuple[bool, bool, bool]
) -> Field:
    """A field from what `Field.__reduce__` gives."""

@final
class Column:
    """A read-only column of integers over memory that stays alive as long as this object.

    `numpy.asarray(column)` makes an array over the same memory, without a copy.
    """

    def __new__(cls, buffer: object) -> Column: ...
    dtype: Final[str]
    """The element type's NumPy name."""
    nbytes: Final[int]
    """Bytes of the memory shown."""
    def tolist(self) -> list[Any]:
        """The items as a list."""
    def take(self, rows: Sequence[int]) -> Column:
        """The items with these numbers, in this order, as a column of the same type."""
    def __len__(self) -> int: ...
    def __getitem__(self, key: int, /) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class TextColumn:
    """A read-only column of texts; None where there is none."""

    def __new__(cls, values: Sequence[str], codes: Column | None = None) -> TextColumn: ...
    def tolist(self) -> list[str | None]:
        """The texts as a list of str."""
    def take(self, rows: Sequence[int]) -> TextColumn:
        """The texts of `rows`."""
    def __len__(self) -> int: ...
    def __getitem__(self, key: int, /) -> str | None: ...

@final
class Shape:
    """A shape: an array's element type, dimensions and layout, or a tuple of shapes."""

    id: Final[int]
    """The number of the shape in its module."""
    is_array: Final[bool]
    """Whether it is an array (scalars, tokens and opaque values are)."""
    is_tuple: Final[bool]
    """Whether it is a tuple."""
    is_buffer: Final[bool]
    """Whether it is a buffer that holds an array."""
    element_type: Final[str | None]
    """The word for the element type; None for tuples and buffers."""
    dimensions: Final[tuple[int | None, ...]]
    """The sizes of the dimensions, dynamic ones at their bound, None for those without one."""
    dynamic_dimensions: Final[tuple[bool, ...]]
    """For each dimension whether its size is only known when the program runs."""
    rank: Final[int | None]
    """Number of dimensions; None for tuples and buffers."""
    layout: Final[Layout | None]
    """The layout; None where the text gives none."""
    elements: Final[tuple[Shape, ...]]
    """The shapes of a tuple's elements, or of what a buffer holds."""
    leaf_count: Final[int]
    """Number of leaves: 1 for an array."""
    element_count: Final[int | None]
    """Number of elements of an array, dynamic dimensions at their bound; None if unknown."""
    bytes: Final[int | None]
    """Unpadded bytes of all leaves; None if some dimension has no bound."""
    def leaves(self) -> tuple[Shape, ...]:
        """The shapes of all leaves, in order."""
    def is_compatible(self, other: Shape) -> bool:
        """Whether both have the same structure, element types and sizes, whatever their layouts."""
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __getitem__(self, key: int, /) -> Shape: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class Layout:
    """What stands in the braces after an array shape."""

    minor_to_major: Final[tuple[int, ...]]
    """Dimension numbers from the fastest-varying to the slowest."""
    tiles: Final[tuple[tuple[int | None, ...], ...]]
    """The tiles, outermost first; None inside one combines with the next minor dimension."""
    memory_space: Final[int]
    """Memory space; 0 is the default one."""
    element_bits: Final[int]
    """Bits of one element where they are packed; 0 where they are not."""
    tail_padding_alignment: Final[int]
    """Elements to whose multiple the end is padded."""
    index_type: Final[str | None]
    """Element type of the indices of legacy sparse layouts."""
    pointer_type: Final[str | None]
    """Element type of the pointers of legacy sparse layouts."""
    splits: Final[tuple[tuple[int, tuple[int, ...]], ...]]
    """Split dimensions and where they are split."""
    metadata_prefix_bytes: Final[int]
    """Bytes of dynamic-shape metadata before the data."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Metadata:
    """Where an instruction comes from. Absent facts are None."""

    op_name: Final[str | None]
    """The framework's name stack."""
    op_type: Final[str | None]
    """The framework's operation type."""
    source_file: Final[str | None]
    """Source file: as written, else of the innermost stack frame."""
    source_line: Final[int | None]
    """First line in the file."""
    source_end_line: Final[int | None]
    """Last line in the file."""
    source_column: Final[int | None]
    """First column."""
    source_end_column: Final[int | None]
    """Last column."""
    profile_type: Final[tuple[int, ...] | None]
    """Kinds of profile guidance that were applied."""
    deduplicated_name: Final[str | None]
    """The name of what it was deduplicated into."""
    scheduling_name: Final[str | None]
    """The name the scheduler knows it by."""
    stack_frame_id: Final[int | None]
    """The number of its frame in the module's tables."""
    stack_frames: Final[tuple[StackFrame, ...]]
    """The call stack, innermost first; empty without one."""
    metadata_payload: Final[str | bytes | None]
    """Free payload; `bytes` if it is binary."""
    other: Final[dict[str, str]]
    """Keys that this version does not know, with their values as written."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class SourceLocation:
    """A line of a source file."""

    file: Final[str]
    """File name."""
    line: Final[int]
    """1-based line; 0 if unknown."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class StackFrame:
    """One frame of a call stack."""

    file: Final[str]
    """File name."""
    function: Final[str]
    """Function name."""
    line: Final[int]
    """First line."""
    end_line: Final[int]
    """Last line."""
    column: Final[int]
    """First column."""
    end_column: Final[int]
    """Last column."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
