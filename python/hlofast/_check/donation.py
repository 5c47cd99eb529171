"""Compares donation: whether the new state takes the buffers of the old state."""

from __future__ import annotations

from hlofast._check.comparison import AGREES, ERROR, NOTE, Comparison
from hlofast._check.program import Program
from hlofast._text import counted, names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL_SHARE = 1e-3
"""State up to this share of the parameters may stay undonated: it matters little."""
_SHOWN = 3


def donation(program: Program) -> Iterator[Comparison]:
    """Compares the declaration with the parameters that the program could donate but does not."""
    if not program.declaration.donates or not program.is_partitioned:
        return
    undonated = program.undonated
    size = sum(undonated.values())
    whole = sum(parameter.bytes for parameter in program.parameters)
    given = program.memory().xla["alias_size_in_bytes"]
    if not size:
        severity, compiled = AGREES, f"{given:,} B donated"
        message = "no state that the step replaces is left undonated"
    else:
        severity = ERROR if size > SMALL_SHARE * whole else NOTE
        compiled = f"{size:,} B not donated"
        paths = [parameter.path for parameter in program.parameters if parameter.row in undonated]
        count = counted(len(undonated), "parameter")
        message = (
            f"{count} of {size:,} B and the results that replace them take memory at once: was "
            f"donate_argnums lost? {names(paths, most=_SHOWN)}"
        )
    yield Comparison(
        "donation",
        severity,
        "old state",
        "donated",
        compiled,
        message,
        size,
        max(undonated, key=lambda row: undonated[row]) if undonated else None,
        "modelled" if size else "exact",
    )
