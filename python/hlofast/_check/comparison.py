"""`Comparison`: one thing that was declared beside what was compiled."""

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
"""From what must not be to what is as declared."""

CODES = {
    "not-declared": "what the declaration leaves open, which is not compared",
    "device-count": "devices of the mesh and of the program",
    "collective-axes": "groups of devices that follow no axes of the mesh",
    "parameter-sharding": "how a parameter is split",
    "parameter-missing": "a declared parameter that the program has not",
    "parameter-undeclared": "parameters of the program that no pattern matches",
    "kept-values": "what the policy keeps and what crosses from forward to backward",
    "kept-undeclared": "what crosses from forward to backward though nobody declares it",
    "layer-loops": "how often the loop over layers runs",
    "accumulation-steps": "micro-batches per step",
    "state-bytes": "bytes of parameters and optimizer state",
    "offloaded-bytes": "bytes kept in host memory",
    "gathered-bytes": "bytes of weights gathered in a step",
    "flops": "FLOPs of matrix products in a step",
    "peak-bytes": "bytes at the peak",
    "unexplained-collective": "collectives that no declared split asks for",
    "expectation": "what the caller expects of the program",
}
"""What is compared, by code."""

_FIELDS = (
    Field("word", "code", "What is compared."),
    Field("word", "severity", "Whether it agrees: error, warning, note or agrees."),
    Field("text", "subject", "Whose it is: a parameter's path, a value's name, a collective."),
    Field("text", "declared", "What was declared."),
    Field("text", "compiled", "What was compiled."),
    Field("bytes", "bytes",
          "Bytes at stake on each device, in a step where they are sent; absent if there are none.",
          label="bytes at stake", nullable=True),
    Field("instruction", "instruction", "The instruction that shows it.", nullable=True),
    Field("name", "name", "The name of that instruction.", nullable=True),
    Field("word", "provenance", "How what was compiled is known."),
    Field("text", "message", "What follows, with the numbers."),
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """One thing that was declared beside what was compiled."""

    code: str
    """What is compared: one of `hlofast.Check.CODES`."""
    severity: str
    """`agrees`, `note`, `warning` or `error`."""
    subject: str
    """Whose: a parameter's path, a value's name, a collective and its axes."""
    declared: str
    """What was declared."""
    compiled: str
    """What was compiled."""
    message: str
    """What follows, with the numbers."""
    bytes: int | None = None
    """Bytes at stake on each device, in a step where they are sent; None if there are none."""
    instruction: int | None = None
    """The row that shows it."""
    provenance: str = "exact"
    """How what was compiled is known."""


def table(comparisons: Sequence[Comparison], module: Module) -> Table:
    """One row per comparison, with the name of the instruction that shows it."""
    return of_rows(
        _FIELDS,
        [
            (
                one.code,
                one.severity,
                one.subject,
                one.declared,
                one.compiled,
                one.bytes,
                one.instruction,
                None if one.instruction is None else module[one.instruction].name,
                one.provenance,
                one.message,
            )
            for one in comparisons
        ],
    )
