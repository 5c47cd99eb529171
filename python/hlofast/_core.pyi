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
from hlofast._cost_data import PolicyData as PolicyData
from hlofast._cost_data import RematData as RematData
from hlofast._cost_data import StagesData as StagesData
from hlofast._cost_data import _cost as _cost
from hlofast._cost_data import _lint_options as _lint_options
from hlofast._cost_data import _lint_rules as _lint_rules
from hlofast._diff_data import DiffData as DiffData
from hlofast._diff_data import _diff as _diff
from hlofast._measure_data import MeasuredData as MeasuredData
from hlofast._measure_data import _measure as _measure
from hlofast._measure_data import _profile_of_columns as _profile_of_columns
from hlofast._memory_data import MemoryData as MemoryData
from hlofast._memory_data import _memory as _memory
from hlofast._memory_data import _memory_file as _memory_file
from hlofast._memory_data import _packing as _packing
from hlofast._memory_data import _xla_memory as _xla_memory
from hlofast._mesh import AxisMatch as AxisMatch
from hlofast._mesh import Mesh as Mesh
from hlofast._mesh import PartitionSpec as PartitionSpec
from hlofast._mesh import ReplicaGroups as ReplicaGroups
from hlofast._mesh import Sharding as Sharding
from hlofast._mesh import _restore_mesh as _restore_mesh
from hlofast._profile_data import ProfileData as ProfileData
from hlofast._profile_data import ProfileEvent as ProfileEvent
from hlofast._profile_data import ProfileEvents as ProfileEvents
from hlofast._profile_data import ProfileLine as ProfileLine
from hlofast._profile_data import ProfilePlane as ProfilePlane
from hlofast._profile_data import _is_profile as _is_profile
from hlofast._profile_data import _load_profile as _load_profile
from hlofast._profile_data import _profile_runs as _profile_runs
from hlofast._records import Alias as Alias
from hlofast._records import DimensionLabels as DimensionLabels
from hlofast._records import PaddingDimension as PaddingDimension
from hlofast._records import SliceDimension as SliceDimension
from hlofast._records import WindowDimension as WindowDimension
from hlofast._scale_data import ScaleData as ScaleData
from hlofast._scale_data import _scale as _scale
from hlofast._scan_data import ScanData as ScanData
from hlofast._scan_data import ScanPart as ScanPart
from hlofast._scan_data import ScanTable as ScanTable
from hlofast._scan_data import SurveyData as SurveyData
from hlofast._scan_data import _concatenated as _concatenated
from hlofast._scan_data import _of_parquet as _of_parquet
from hlofast._scan_data import _parquet_without as _parquet_without
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
    """Reads the module in the local file `path`, with the arguments of `hlofast.load`."""

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
    """Reads the module in `text`, with the arguments of `hlofast.loads`."""

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
    """Reads every module in `text`, with the arguments of `hlofast.find_modules`."""

def _register_module_class(class_: type[Module]) -> None:
    """Makes every later module an instance of `class_`, a subclass of `_core.Module`."""

def _register_error_class(class_: type[ParseError]) -> None:
    """Makes every later fault an instance of `class_`."""

def _watch_interrupts(code: int) -> None:
    """Ends the process with `code` soon after an interrupt. Does nothing where a caller has set
    another handler, such as a shell that starts a background job with interrupts ignored, outside
    the main thread, and on systems without pipes of this kind.
    """

def _temporary(path: str, exists: bool) -> None:
    """Notes a temporary file or folder, or that it is gone."""

def _devices_together(module: Module) -> int:
    """Number of devices that the shapes of `module` cover together; 1 if they are the shapes of one
    device.
    """

def _shares(module: Module) -> dict[str, Any]:
    """The share of one device; tables without rows if the shapes already are the shapes of one
    device.
    """

def _proto(module: Module, wrapped: bool) -> tuple[bytes, list[tuple[int, str]]]:
    """Returns the bytes of a protobuf, and line and description of everything it cannot
    represent.
    """

def _neighbours(path: str) -> tuple[tuple[str, str] | None, str | None]:
    """Returns facts about the module at `path` from neighbouring files.

    The facts are the chip with the file that names it, and the file of the module before
    optimisation; None for unknown facts.
    """

def _restore_module(text: bytes, options: dict[str, Any]) -> _module.Module:
    """Restores a pickled module: parses `text` with its original options and its place in the
    file.
    """

def _restore_instruction(module: Module, row: int) -> Instruction:
    """Restores a pickled instruction."""

def _restore_computation(module: Module, number: int) -> Computation:
    """Restores a pickled computation."""

def _restore_shape(module: Module, number: int) -> Shape:
    """Restores a pickled shape."""

def _restore_attributes(module: Module, row: int | None) -> Attributes:
    """Restores pickled attributes; the header's attributes have no row."""

def _restore_metadata(module: Module, row: int) -> Metadata:
    """Restores pickled metadata."""

def _restore_instructions(module: Module, rows: Sequence[int]) -> InstructionSequence:
    """Restores a pickled sequence of instructions."""

def _restore_computations(module: Module, numbers: Sequence[int]) -> ComputationSequence:
    """Restores a pickled sequence of computations."""

def _restore_layout(parts: tuple[Any, ...]) -> Layout:
    """Restores a pickled layout."""

def _instruction_columns(module: Module) -> list[tuple[Field, Column | TextColumn]]:
    """Returns field and column of every fact in the instruction table."""

def _arrow_stream(columns: list[tuple[Field, Column | TextColumn]], length: int) -> object:
    """Returns an `arrow_array_stream` capsule with one record batch."""

def _arrow_schema(columns: list[tuple[Field, Column | TextColumn]], length: int) -> object:
    """Returns an `arrow_schema` capsule."""

def _arrow_array(
    columns: list[tuple[Field, Column | TextColumn]], length: int
) -> tuple[object, object]:
    """Returns capsules `arrow_schema` and `arrow_array`: the table as one struct array."""

@final
class FoundModule:
    """A module found in a text, or the fault that prevents reading it."""

    module: Final[_module.Module | None]
    """The module; None if it cannot be read."""
    error: Final[ParseError | None]
    """The `ParseError`; None if the module was read."""
    line: Final[int]
    """1-based line where its text starts."""
    offset: Final[int]
    """Byte offset where its text starts."""
    label: Final[str | None]
    """The file name announced by a framed dump; None for other texts."""

class Module:
    """A parsed HLO module: immutable, shared between threads, a sequence of instructions.

    `hlofast.Module` adds the analyses.
    """

    def __new__(cls, module: Module, context: Context | None = None) -> Self: ...
    @property
    def _told(self) -> Context | None:
        """The context given by the caller; None if there is none."""
    def _context(self, find: Callable[[], Context]) -> Context:
        """Returns the whole context.

        `find` computes the context and is called once.
        """
    @property
    def name(self) -> str:
        """The name of the module."""
    @property
    def path(self) -> str | None:
        """The file that it was read from; None for text without a file."""
    @property
    def buffer_assignment(self) -> bytes | None:
        """XLA's buffer assignment as bytes, if the module was read from a protobuf that has one;
        otherwise None.

        It holds the same facts as the file `-buffer-assignment.txt`; `Memory.file` reads it.
        """
    @property
    def num_partitions(self) -> int:
        """Number of partitions (devices that share the work of one program); 1 if the header does
        not say.

        Raises `ParseError` if the header's value is not a 64-bit integer.
        """
    @property
    def replica_count(self) -> int:
        """Number of replicas (devices that run the same program on other data); 1 if the header
        does not say.

        Raises `ParseError` if the header's value is not a 64-bit integer.
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
        """All instructions in text order, including implicit ones."""
    @property
    def instruction_count(self) -> int:
        """Number of instructions written in the text."""
    @property
    def computation_count(self) -> int:
        """Number of computations written in the text."""
    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The distinct shapes, by shape number."""
    @property
    def header(self) -> Attributes:
        """The header's attributes, decoded on access."""
    @property
    def errors(self) -> tuple[ParseError, ...]:
        """The faults that were passed over; empty unless `on_error="collect"`."""
    @property
    def is_fragment(self) -> bool:
        """Whether the text has pieces of a program rather than a module.

        Such text is instruction lines without a module, computations with lines left out, lines of
        `--xla_hlo_profile`, the body of a fusion alone, or lines cut at the right edge, as people
        paste them. Operands that no line defines are placeholders (implicit parameters without a
        number), of the shape that their use gives or else `opaque[?]`. Step time, memory and other
        figures of a whole program are unknown for a fragment. A module that ends before its entry
        is not one: see `missing_entry`.
        """
    @property
    def _lacks(self) -> dict[str, int] | None:
        """What a fragment lacks, as counts by name; None for a module."""
    @property
    def missing_entry(self) -> ParseError | None:
        """The fault if the text seems to end before its entry computation; otherwise None.

        This is the case if no computation is marked as ENTRY, and the last computation, which
        `entry` then returns, has other parameters or another result than `entry_computation_layout`
        in the header. XLA reads such text without an error. None if `errors` is not empty.
        """
    @property
    def columns(self) -> Columns:
        """Read-only NumPy arrays over the module's memory."""
    @property
    def op_names(self) -> tuple[str, ...]:
        """The distinct operation names, by the codes in `columns.op_name`."""
    @property
    def source_files(self) -> tuple[str, ...]:
        """The distinct source files, by the codes in `columns.source_file`."""
    @property
    def nbytes(self) -> int:
        """Bytes of memory beyond the text, including the results computed so far."""
    @property
    def text_bytes(self) -> int:
        """Bytes of the text."""
    @property
    def text(self) -> str:
        """The text, byte for byte."""
    def names(self) -> list[str]:
        """Returns the names of all instructions."""
    def opcodes(self) -> list[str]:
        """Returns the opcodes of all instructions."""
    def operand_names(self) -> list[list[str]]:
        """Returns the operand names of each instruction: a list of lists."""
    def post_order(self) -> ComputationSequence:
        """Returns the computations, callees before callers, otherwise in text order."""
    def _summary(self) -> dict[str, Any]:
        """Returns the facts of `hlofast.Summary`."""
    def _summary_rows(self, table: str) -> list[dict[str, Any]]:
        """Returns the rows of a table of `hlofast.Summary`."""
    def _misfit(self, backend: str) -> str | None:
        """Returns the backend that the module was compiled for, as `hlofast.Summary.backend` does,
        if it does not fit a device of `backend`; otherwise None.
        """
    def _is_library(self, file: str) -> bool:
        """Whether a source file belongs to a library, in the context of the module."""
    def _device_count(self) -> int:
        """Returns the number of devices: partitions times replicas, or the devices in the groups of
        collectives if the header has no partition count.

        Raises `ParseError` if a count in the header is not a 64-bit integer.
        """
    @staticmethod
    def _fits(devices: int, mesh: Mesh) -> bool:
        """Returns whether `mesh` fits a module for `devices` devices."""
    def _mesh_named_in(self, path: str) -> Mesh | None:
        """Returns the mesh in the header of the module at `path` if it names the axes of this
        module's mesh.
        """
    def mesh(self) -> Mesh | None:
        """Returns the mesh derived from the text; None if nothing in the text names several
        devices.

        The result says how it was derived (`source`) and whether the axis names are in the text
        (`invented_names`).
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
        """Returns the rows that meet all given conditions, as a NumPy array of row numbers
        (uint32).

        `opcode`, `computation`, `shape` and `element_type` take one value or several; `op_name` and
        `source_file` take a substring or a compiled regular expression; `min_bytes` and `max_bytes`
        are bytes of the result.
        """
    def to_text(
        self,
        *,
        form: typing.Literal["long", "short", "original"] = "long",
        metadata: bool = True,
        backend_config: bool = True,
        layouts: bool = True,
    ) -> str:
        """Returns the module as text.

        `form` is `long` or `short` for XLA's canonical forms, `original` for the bytes it was read
        from.
        """
    def to_proto(self, *, wrapped: bool = False, strict: bool = False) -> bytes:
        """Returns the module as a serialised `HloModuleProto`, which XLA loads.

        With `wrapped`, the result is an `HloProto`, which XLA dumps. Reading the bytes gives the
        same program.

        Names shared by several instructions are made unique, constants elided in the text have no
        values, and the device assignment is the default one. Raises `ParseError` for anything
        without a field in the protobuf. What XLA itself loses (compiler options in the header, a
        `channel_id` below 1, the grouping of `slice_sizes` that slice tuples) is left out; with
        `strict` it raises `ParseError` too.
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
        """Returns a stable digest of the computation of the module, as 32 hexadecimal digits.

        Modules that differ only in properties left out here have equal digests.
        """
    def same_program(self, other: Module, *, layouts: bool = True, metadata: bool = True) -> bool:
        """Returns whether `other` is the same program.

        Names, opcodes, shapes, operands, calls, attributes and header are compared. Spacing,
        comments, implied text and, unless the module is scheduled, the order of rows do not matter.
        `==` compares texts instead.
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
    """Read-only NumPy arrays, as attributes and as items.

    The arrays share memory with the module and stay valid after it is deleted. The columns of a
    computation are the slices of its rows; row numbers and offsets still count from the module's
    first row. `describe()` documents each column.
    """

    def keys(self) -> tuple[str, ...]:
        """Returns the names of all columns."""
    def describe(self) -> dict[str, str]:
        """Returns a description of each column, by name."""
    def buffer(self, name: str) -> Column:
        """Returns the column as a buffer, for code without NumPy.

        Raises `KeyError` for an unknown name.
        """
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
    """The description of a column or fact.

    A field has a name, the kind and unit of the values, a heading and one sentence of
    documentation. It also tells whether values may be unknown and whether they add up.
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
    """The name, identical wherever the values are shown."""
    kind: Final[str]
    """The kind of the values: one of `hlofast.kinds`."""
    unit: Final[str]
    """The unit of the values: B, FLOP, s; or empty."""
    label: Final[str]
    """The heading in tables."""
    doc: Final[str]
    """One sentence that describes the values."""
    nullable: Final[bool]
    """Whether a value may be unknown or absent: None, a null or a masked entry."""
    signed: Final[bool]
    """Whether negative numbers are valid values."""
    adds_up: Final[bool]
    """Whether the sum over all rows is meaningful."""
    unknown: Final[int | None]
    """The integer stored for a masked entry; None if there is none. Floats use NaN."""
    is_text: Final[bool]
    """Whether the values are texts."""
    is_amount: Final[bool]
    """Whether the values are amounts, which can be added."""
    def replace(
        self,
        *,
        name: str | None = None,
        doc: str | None = None,
        label: str | None = None,
        nullable: bool | None = None,
        adds_up: bool | None = None,
    ) -> Field:
        """Returns a copy of the field with other properties."""
    def values(self, column: Column | TextColumn) -> list[Any]:
        """Returns the values of a column of this field as a list, with None for unknown values."""
    def value(self, column: Column | TextColumn, index: int) -> Any:
        """Returns the value in row `index` of a column of this field; None if it is unknown."""

def _restore_field(
    kind: str, name: str, doc: str, label: str, properties: tuple[bool, bool, bool]
) -> Field:
    """Restores a field from the result of `Field.__reduce__`."""

@final
class Column:
    """A read-only column of numbers or flags. The memory is valid as long as this object exists.

    `numpy.asarray(column)` creates an array over the same memory, without a copy.
    """

    def __new__(cls, buffer: object) -> Column: ...
    dtype: Final[str]
    """The element type as a NumPy name, such as `int64`."""
    nbytes: Final[int]
    """Bytes of the items."""
    def tolist(self) -> list[Any]:
        """Returns the items as a list."""
    def take(self, rows: Sequence[int]) -> Column:
        """Returns the items of `rows`, in that order, as a column of the same type.

        Raises `IndexError` for a row that does not exist.
        """
    def __len__(self) -> int: ...
    def __getitem__(self, key: int, /) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class TextColumn:
    """A read-only column of texts; absent texts are None."""

    def __new__(cls, values: Sequence[str], codes: Column | None = None) -> TextColumn: ...
    def tolist(self) -> list[str | None]:
        """Returns the texts as a list of str, with None for absent texts."""
    def take(self, rows: Sequence[int]) -> TextColumn:
        """Returns the texts of `rows`, as a column.

        Raises `IndexError` for a row that does not exist.
        """
    def __len__(self) -> int: ...
    def __getitem__(self, key: int, /) -> str | None: ...

@final
class Shape:
    """A shape: an array's element type, dimensions and layout, or a tuple of shapes."""

    id: Final[int]
    """The shape number in its module."""
    is_array: Final[bool]
    """Whether it is an array; scalars, tokens and opaque values are arrays."""
    is_tuple: Final[bool]
    """Whether it is a tuple."""
    is_buffer: Final[bool]
    """Whether it is a buffer that contains an array."""
    element_type: Final[str | None]
    """The name of the element type, such as `f32`; None for tuples and buffers."""
    dimensions: Final[tuple[int | None, ...]]
    """The sizes of the dimensions; for dynamic dimensions the bound, or None without a bound."""
    dynamic_dimensions: Final[tuple[bool, ...]]
    """For each dimension, whether it is dynamic, with a size known only at run time."""
    rank: Final[int | None]
    """Number of dimensions; None for tuples and buffers."""
    layout: Final[Layout | None]
    """The layout; None if the text does not give one."""
    elements: Final[tuple[Shape, ...]]
    """The shapes of a tuple's elements, or of a buffer's content."""
    leaf_count: Final[int]
    """Number of leaves: 1 for an array."""
    element_count: Final[int | None]
    """Number of elements of an array, with dynamic dimensions at their bound; None if unknown."""
    bytes: Final[int | None]
    """Unpadded bytes of all leaves; None if a dimension has no bound."""
    def leaves(self) -> tuple[Shape, ...]:
        """Returns the shapes of all leaves, in order."""
    def is_compatible(self, other: Shape) -> bool:
        """Returns whether both have the same structure, element types and sizes; layouts may
        differ.
        """
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __getitem__(self, key: int, /) -> Shape: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class Layout:
    """The layout in the braces after an array shape."""

    minor_to_major: Final[tuple[int, ...]]
    """Dimension numbers from fastest-varying to slowest."""
    tiles: Final[tuple[tuple[int | None, ...], ...]]
    """The tiles, outermost first; None in a tile combines the dimension with the next minor one."""
    memory_space: Final[int]
    """Memory space; 0 is the default."""
    element_bits: Final[int]
    """Bits of one packed element; 0 if elements are not packed."""
    tail_padding_alignment: Final[int]
    """The end of the array is padded to a multiple of this many elements."""
    index_type: Final[str | None]
    """Element type of the indices of legacy sparse layouts; None if not given."""
    pointer_type: Final[str | None]
    """Element type of the pointers of legacy sparse layouts; None if not given."""
    splits: Final[tuple[tuple[int, tuple[int, ...]], ...]]
    """Split dimensions and their split points."""
    metadata_prefix_bytes: Final[int]
    """Bytes of dynamic-shape metadata before the data."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Metadata:
    """The origin of an instruction in the source program. Absent values are None."""

    op_name: Final[str | None]
    """The framework's name stack, such as `jit(f)/while/body/dot_general`."""
    op_type: Final[str | None]
    """The framework's operation type."""
    source_file: Final[str | None]
    """Source file as written, otherwise of the innermost stack frame."""
    source_line: Final[int | None]
    """First line in the file."""
    source_end_line: Final[int | None]
    """Last line in the file."""
    source_column: Final[int | None]
    """First column."""
    source_end_column: Final[int | None]
    """Last column."""
    profile_type: Final[tuple[int, ...] | None]
    """The kinds of profile guidance that were applied."""
    deduplicated_name: Final[str | None]
    """The name of the instruction that it was deduplicated into."""
    scheduling_name: Final[str | None]
    """The name used by the scheduler."""
    stack_frame_id: Final[int | None]
    """The number of its stack frame in the module's tables."""
    stack_frames: Final[tuple[StackFrame, ...]]
    """The call stack, innermost frame first; empty if there is none."""
    metadata_payload: Final[str | bytes | None]
    """Free-form payload; `bytes` if it is binary."""
    other: Final[dict[str, str]]
    """Unknown keys, with their values as written."""
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
