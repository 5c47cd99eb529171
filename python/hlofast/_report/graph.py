"""The instructions of a module for a page: searchable columns, and edges."""

from __future__ import annotations

from hlofast import _core
from hlofast._report.pack import Block, Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._module import Module
    from hlofast._report.data import Analyses

MOST_TEXT = 24 << 20
"""Maximum bytes of the module's text in a page."""


def packed(analyses: Analyses, block: Block) -> dict[str, Any]:
    """Returns columns by row, and edges: operands, calls, control dependencies."""
    module = analyses.module
    columns = module.columns
    shapes = module.table().values("shape")
    cost = analyses.cost._data
    words = {
        "name": Words(module.names()),
        "opcode": Words.of(module.opcodes()),
        "shape": Words.of(shapes),
        "op_name": Words(module.op_names, columns.buffer("op_name")),
        "source_file": Words(module.source_files, columns.buffer("source_file")),
        "phase": Words(_core.phases, cost.column("phase")),
        "provenance": Words(_core.provenances, cost.column("provenance")),
    }
    numbers: dict[str, Any] = {
        name: columns.buffer(name)
        for name in ("computation", "flags", "parameter_number", "source_line", "shape_bytes")
    }
    for name in ("flops", "bytes_accessed", "multiplicity"):
        numbers[name] = cost.column(name)
    if analyses.time is not None:
        numbers["seconds"] = analyses.time._data.column("seconds")
    if analyses.measured is not None:
        numbers["measured_seconds"] = analyses.measured._data.column("seconds")
    for name in ("operand_offsets", "operands", "call_row", "call_computation"):
        numbers[name] = columns.buffer(name)
    for name in ("control_row", "control_predecessor"):
        numbers[name] = columns.buffer(name)
    return {
        "rows": len(module),
        "words": {name: block.words(column) for name, column in words.items()},
        "numbers": {name: block.place(column) for name, column in numbers.items()},
        "computations": block.texts([computation.name for computation in module.computations]),
        "text": _text(module, block),
    }


def _text(module: Module, block: Block) -> dict[str, Any] | None:
    """Returns the text with the position of each instruction; None if it is too long."""
    if module.text_bytes > MOST_TEXT:
        return None
    content = module.text.encode("utf-8", "surrogateescape")
    if len(content) != module.text_bytes:
        return None
    return {
        "bytes": block.place(content, "u8"),
        "starts": block.place(module.columns.buffer("name_starts")),
        "ends": block.place(module.columns.buffer("tail_ends")),
    }
