"""The columns and facts of `Messages`."""

from __future__ import annotations

from hlofast._core import Field

FACTS = (
    Field("word", "kind", "The kind of message: backend and stage, such as tpu-compile; host; "
          "memory-usage-report or buffer-assignment; partitioner."),
    Field("text", "ran_out", "What ran out, and when.", label="ran out"),
    Field("word", "memory_space", "The memory that ran out: hbm, vmem, smem, gpu, host; for a "
          "SparseCore, tilespmem or spmem."),
    Field("word", "stage", "When it ran out: compile, load or run."),
    Field("word", "error_code", "The error code of openxla.org/xla/errors.", label="error code"),
    Field("name", "program", "The program that was loaded."),
    Field("bytes", "used", "Bytes that the program needs."),
    Field("bytes", "requested", "Bytes of the allocation that failed."),
    Field("bytes", "limit", "Bytes of the memory that may be used."),
    Field("bytes", "free", "Free bytes when the allocation failed."),
    Field("bytes", "exceeded", "Bytes by which the limit is exceeded.", label="over the limit"),
    Field("bytes", "total", "Bytes of the whole program in that memory."),
    Field("bytes", "padding", "Bytes of padding in temporaries."),
    Field("bytes", "fragmentation", "Bytes of gaps between allocations."),
    Field("word", "cause", "The cause of the failure, as one word."),
    Field("text", "reason", "Why this is the cause."),
    Field("count", "messages", "Distinct messages in the text."),
    Field("count", "occurrences", "Messages in the text, including repetitions."),
    Field("count", "warnings", "Distinct warnings of the partitioner."),
    Field("bytes", "allocated_in_hbm", "Bytes that XLA allocates in HBM for the given module.",
          label="module in HBM"),
    Field("bytes", "live_peak", "Maximum of live bytes of the given module.",
          label="live peak of the module"),
    Field("bytes", "modelled_peak", "Modelled peak of one device, for a module that XLA has not "
          "scheduled.", label="modelled peak of the module"),
    Field("count", "joined", "Listed allocations that are found in the given module.",
          label="matched to module"),
)  # fmt: skip
_MESSAGE = Field("index", "message", "The number of the message, from 0.")
_BYTES = Field(
    "bytes", "bytes", "The number of bytes nearest to the figure in the text.", nullable=True
)
_PLUS_MINUS = Field(
    "bytes", "plus_minus", "The true value lies within this many bytes; 0 if it is exact.",
    label="±", nullable=True,
)  # fmt: skip
MESSAGES = (
    _MESSAGE,
    Field("word", "kind", "Backend and stage, such as tpu-compile."),
    Field("word", "memory_space", "The memory that ran out.", nullable=True),
    Field("word", "stage", "compile, load or run.", nullable=True),
    Field("bytes", "used", "Bytes that the program needs.", nullable=True),
    Field("bytes", "requested", "Bytes of the allocation that failed.", nullable=True),
    Field("bytes", "limit", "Bytes of the memory that may be used.", nullable=True),
    Field("bytes", "free", "Free bytes when the allocation failed.", nullable=True),
    Field(
        "bytes",
        "exceeded",
        "Bytes by which the limit is exceeded.",
        label="over the limit",
        nullable=True,
    ),
    Field("word", "cause", "The cause, as one word."),
    Field("text", "reason", "Why this is the cause."),
    Field("name", "program", "The program that was loaded.", nullable=True),
    Field("text", "where", "The instruction or array that the text names.", nullable=True),
    Field("word", "error_code", "The error code.", label="code", nullable=True),
    Field("count", "count", "Number of occurrences in the text."),
    Field("index", "line", "The line of its first occurrence."),
    Field("text", "text", "Its first sentence.", nullable=True),
)
FIGURES = (
    _MESSAGE,
    Field("text", "account", "The account that the figure belongs to; empty for the message."),
    Field("text", "figure", "The name of the figure."),
    _BYTES,
    _PLUS_MINUS,
    Field("text", "written", "The text of the figure.", nullable=True),
    Field("number", "percent", "A share that the text gives, in per cent.", nullable=True),
)
BUFFERS = (
    _MESSAGE,
    Field("index", "number", "Its number in the list; 0 without one."),
    Field("bytes", "bytes", "Bytes, with padding.", nullable=True, adds_up=True),
    _PLUS_MINUS,
    Field("word", "class", "The class of the allocation; see the documentation of `hlofast oom`."),
    Field("text", "reason", "Why it has this class."),
    Field("name", "name", "The name of the instruction.", nullable=True),
    Field("word", "opcode", "The opcode of the instruction.", nullable=True),
    Field("shape", "shape", "The shape with its layout.", nullable=True),
    Field("bytes", "unpadded", "Bytes without padding.", nullable=True, adds_up=True),
    Field("bytes", "padding", "Bytes of padding.", nullable=True, adds_up=True),
    Field("number", "expansion", "Size with padding divided by the size without.", nullable=True),
    Field("scope", "scope", "The scope of the operation.", nullable=True),
    Field("word", "phase", "The phase of the operation.", nullable=True),
    Field("text", "op_name", "The framework's name of the operation.", nullable=True),
    Field("path", "source", "Source file and line.", nullable=True),
    Field("path", "source_file", "Source file.", nullable=True),
    Field("index", "source_line", "Source line.", nullable=True),
    Field("text", "label", "The instruction as the message prints it.", nullable=True),
    Field("text", "tag", "The purpose of an allocation without instruction.", nullable=True),
    Field("word", "allocation_type", "The kind of allocation, such as HLO temp, scoped or stack.",
          label="type", nullable=True),
    Field("bytes", "offset", "Its offset in its allocation, in a memory file.", nullable=True),
    Field("count", "values", "Number of values at this offset, in a memory file.", nullable=True),
    Field("instruction", "instruction", "The instruction in the given module.", nullable=True),
    Field("index", "first_step", "First step of its live range in the module.", nullable=True),
    Field("index", "last_step", "Last step of its live range in the module.", nullable=True),
    Field("word", "at_peak", "Whether it is live at the module's peak: yes or no.",
          label="at the peak", nullable=True),
    Field("word", "module_class", "Its class in the memory analysis of the module.",
          label="class in the module", nullable=True),
)  # fmt: skip
BUFFERS_SHOWN = (
    "number", "bytes", "class", "name", "shape", "expansion", "phase", "at_peak", "first_step",
    "last_step", "module_class", "reason",
    "source", "scope",
)  # fmt: skip
CLASSES = (
    Field("word", "class", "The class of allocations."),
    Field("count", "buffers", "Listed allocations.", adds_up=True),
    Field("bytes", "bytes", "Bytes of these allocations.", adds_up=True),
    Field("ratio", "share", "Share of the listed bytes.", nullable=True),
    Field("bytes", "padding", "Bytes of padding in them.", adds_up=True),
    Field("text", "meaning", "Description of the class."),
)
ADVICE = (
    Field("word", "code", "The cause that the change removes."),
    Field("bytes", "bytes", "Bytes that the change affects: an upper bound of what it saves.",
          nullable=True),
    Field("flag", "is_listed", "Whether the bytes cover only the listed allocations."),
    Field("text", "advice", "What to change."),
)  # fmt: skip
ALLOCATIONS = (
    Field("index", "number", "The number of the allocation in the file."),
    Field("bytes", "bytes", "Bytes.", adds_up=True),
    Field("index", "color", "The number of the memory space."),
    Field("count", "values", "Number of values in it.", adds_up=True),
    Field("shape", "shape", "The shape of a parameter or result.", nullable=True),
    Field("text", "text", "The file's description."),
)
CHUNKS = (
    _MESSAGE,
    Field("count", "chunks", "Chunks of this size in use.", adds_up=True),
    Field("bytes", "size", "Bytes per chunk."),
    Field("bytes", "bytes", "Bytes of all chunks.", adds_up=True),
)
WARNINGS = (
    Field("word", "what", "involuntary-rematerialization or other."),
    Field("name", "name", "The name of the instruction.", nullable=True),
    Field("word", "opcode", "Its opcode.", nullable=True),
    Field("shape", "shape", "Its shape on one device.", nullable=True),
    Field("shape", "whole_shape", "The shape of the whole array; too large where dimensions are "
          "not multiples of their tiles.", label="whole array", nullable=True),
    Field("bytes", "bytes", "Bytes of the whole array, which every device receives.",
          nullable=True, adds_up=True),
    Field("text", "from_sharding", "The sharding that the array has.", label="from",
          nullable=True),
    Field("text", "to_sharding", "The sharding that is needed.", label="to", nullable=True),
    Field("text", "from_spec", "The sharding that it has, in axis names.", label="from",
          nullable=True),
    Field("text", "to_spec", "The sharding that is needed, in axis names.", label="to",
          nullable=True),
    Field("text", "op_name", "The framework's name of the operation.", nullable=True),
    Field("path", "source", "Source file and line.", nullable=True),
    Field("instruction", "instruction", "The instruction in the given module.", nullable=True),
    Field("text", "constraint", "The sharding constraint to add.", nullable=True),
    Field("count", "count", "Number of occurrences in the text."),
    Field("index", "line", "The line of its first occurrence."),
    Field("text", "text", "Its first sentence."),
)  # fmt: skip
