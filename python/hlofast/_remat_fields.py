"""The fields of the tables of `Remat`."""

from __future__ import annotations

from hlofast._core import Field

CHANGE = Field("text", "change", "Change to the program with the same effect.")
NAME = Field("name", "name", "The residual: the instruction that produces it.")
STATEMENT = Field("index", "statement", "The number of the statement.")
PHASES = (
    Field("word", "phase", "The phase."),
    Field("count", "instructions", "Instructions of the text in this phase.", adds_up=True),
)
STATEMENTS = (
    STATEMENT,
    Field("word", "code", "The kind of statement."),
    Field("text", "text", "The statement."),
    Field("text", "advice", "What to change, and how to check the effect.", nullable=True),
)
PROOFS = (STATEMENT, Field("instruction", "instruction", "Evidence: an instruction."))
FIGURES = (
    STATEMENT,
    Field("word", "figure", "The name of the figure."),
    Field("number", "value", "Its value."),
)
KEPT_AS = (
    Field("name", "kept_as", "The residual.", nullable=True),
    Field("text", "kept_index", "Index into the result of `kept_as`; {} for all.", nullable=True),
    Field("bytes", "kept_bytes", "Bytes of the residual.", label="kept", nullable=True),
)
BY_OPERATION = (
    Field("word", "operation", "Last component of the operation name, otherwise the opcode."),
    Field(
        "word",
        "by",
        "Origin of the recomputation: program, compiler or twin.",
        label="recomputed by",
    ),
    Field("count", "instructions", "Instructions of the text.", adds_up=True),
    Field("count", "multiplicity", "Calls per step.", label="calls", adds_up=True),
    Field("flops", "flops", "FLOPs of all calls.", label="FLOP", adds_up=True),
    Field("path", "source", "Source file and line.", nullable=True),
)
PLAN = (
    Field("bytes", "peak", "Peak bytes of the unchanged module."),
    Field(
        "instruction",
        "peak_at",
        "The instruction that runs at the peak.",
        label="peak at",
        nullable=True,
    ),
    Field("bytes", "hbm", "Peak bytes to plan for.", label="target", nullable=True),
    Field("bytes", "peak_after", "Peak bytes with the plan.", label="with the plan"),
    Field(
        "word", "fits", "Whether the peak with the plan fits the target: yes or no.", nullable=True
    ),
    Field("text", "outcome", "Outcome of the plan."),
    Field("word", "rule", "Rule by which peaks are counted; see `Module.memory`."),
    Field("flag", "is_default", "Whether the rule is the default.", label="default rule"),
    Field("word", "sizes", "Sizes of arrays: device (tiles, padding) or logical."),
    Field("word", "space", "The fullest memory space at the peak."),
    Field("word", "constants", "Live range of constants: last_use or program."),
    Field("name", "device", "The device whose seconds order the candidates.", nullable=True),
)
STEPS = (
    Field("index", "number", "Position in the plan."),
    Field("index", "candidate", "The row in the table of candidates."),
    NAME,
    Field("bytes", "peak", "Peak bytes after this and all earlier steps."),
    CHANGE,
)

SHOWN_GATHERS = (
    "instruction fate tensor_kind tensor shape axes payload_out wire_bytes multiplicity source"
).split()
SHOWN_KEPT = (
    "instruction index kind widened_from shape bytes share memory_space span is_stacked trip_count "
    "is_in_flight last_use source from"
).split()
SHOWN_RECOMPUTED = (
    "instruction opcode by twin multiplicity flops bytes_read bytes_written source".split()
)
SHOWN_PLANNED = "peak peak_at hbm peak_after outcome rule space device".split()
SHOWN_CANDIDATES = (
    "name index kind shape bytes kept_instead saved flops wire_bytes seconds is_alive_at_peak "
    "refusal no_saving"
).split()
"""The columns shown of each table."""
