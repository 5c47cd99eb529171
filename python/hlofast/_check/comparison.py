"""`Comparison`: one declared property and its compiled counterpart."""

from __future__ import annotations

from dataclasses import dataclass

from hlofast._core import Field
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hlofast._module import Module

AGREES, NOTE, WARNING, ERROR = "agrees", "note", "warning", "error"
SEVERITIES = (ERROR, WARNING, NOTE, AGREES)
"""All severities, most severe first."""

CODES = {
    "not-declared": "parts that the declaration does not specify",
    "device-count": "devices of the mesh and of the program",
    "sizes": "batch, sequence length, element type or widths that explain other differences",
    "matmul-types": "element types that matmuls multiply",
    "attention": "whether attention is a kernel or matmuls",
    "collective-axes": "collectives whose groups follow no mesh axes",
    "parameter-sharding": "the sharding of a parameter",
    "parameter-missing": "a declared parameter that the program does not have",
    "parameter-undeclared": "parameters of the program that no pattern matches",
    "kept-values": "values that the policy keeps from forward to backward",
    "kept-undeclared": "residuals that are not declared",
    "layer-loops": "the trip count of the loop over layers",
    "accumulation-steps": "micro-batches per step",
    "donation": "state that the step replaces and does not donate",
    "state-bytes": "bytes of parameters and optimizer state",
    "offloaded-bytes": "bytes kept in host memory",
    "gathered-bytes": "bytes of weights gathered in a step",
    "flops": "FLOPs of matmuls in a step",
    "peak-bytes": "bytes at the peak",
    "unexplained-collective": "collectives that no declared sharding needs",
    "expectation": "the caller's expectations",
}
"""Descriptions of the comparisons, by code."""

_FIELDS = (
    Field("word", "code", "The kind of comparison."),
    Field("word", "severity", "The outcome: error, warning, note or agrees."),
    Field("text", "subject", "The subject: a parameter's path, a value's name, a collective."),
    Field("text", "declared", "The declared value."),
    Field("text", "compiled", "The compiled value."),
    Field("bytes", "bytes",
          "Bytes at stake per device (for collectives, per step); absent if there are none.",
          label="bytes at stake", nullable=True),
    Field("instruction", "instruction", "Evidence: an instruction.", nullable=True),
    Field("name", "name", "The name of that instruction.", nullable=True),
    Field("word", "provenance", "Provenance of the compiled value."),
    Field("text", "message", "The conclusion, with figures."),
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """One declared property and its compiled counterpart."""

    code: str
    """The kind of comparison: one of `hlofast.Check.CODES`."""
    severity: str
    """`agrees`, `note`, `warning` or `error`."""
    subject: str
    """The subject: a parameter's path, a value's name, a collective and its axes."""
    declared: str
    """The declared value."""
    compiled: str
    """The compiled value."""
    message: str
    """The conclusion, with figures."""
    bytes: int | None = None
    """Bytes at stake per device, and per step for collectives; None if there are none."""
    instruction: int | None = None
    """Row of an instruction that is evidence."""
    provenance: str = "exact"
    """Provenance of the compiled value."""


def table(comparisons: Sequence[Comparison], module: Module) -> Table:
    """One row per comparison, with the name of its instruction."""
    return of_rows(
        _FIELDS,
        [
            (
                comparison.code,
                comparison.severity,
                comparison.subject,
                comparison.declared,
                comparison.compiled,
                comparison.bytes,
                comparison.instruction,
                None if comparison.instruction is None else module[comparison.instruction].name,
                comparison.provenance,
                comparison.message,
            )
            for comparison in comparisons
        ],
    )
