"""The one place where the corpus of messages meets the reader of the package."""

from __future__ import annotations

import pathlib
from typing import Any

import hlofast

ACCOUNTS = {
    ("usage", "reserved"): "reserved",
    ("usage", "program"): "program",
    ("usage", "arguments"): "arguments",
    ("requirement", "total"): "program_requirement",
    ("requirement", "reserved"): "program_reserved",
    ("requirement", "HLO temp"): "hlo_temp",
    ("requirement", "HLO temp unpadded"): "unpadded",
    ("requirement", "HLO temp padded"): "padded",
    ("requirement", "HLO temp fragmentation"): "fragmentation",
    ("requirement", "overlays"): "overlays",
    ("usage", "heap allocations"): "in_use_rounded",
    ("persistent", "arguments"): "arguments",
    ("persistent", "output"): "output",
    ("buffer", "parameter allocation"): "arguments",
    ("buffer", "constant allocation"): "constants",
    ("buffer", "maybe_live_out allocation"): "output",
    ("buffer", "preallocated temp allocation"): "temp",
    ("buffer", "preallocated temp fragmentation"): "temp_fragmentation",
    ("buffer", "total allocation"): "total",
    ("buffer", "total fragmentation"): "fragmentation",
}
"""Names of the truth for figures of accounts: by the account's first word and the part."""
OTHERS = {
    "tensorcore": "tensor_core",
    "sparsecore": "sparse_core",
    "rematerialization_target": "limit",
    "rematerialized_to": "reduced",
    "rematerialized_from": "original",
}


def read(path: pathlib.Path) -> dict[str, Any]:
    """Reads one message file and returns it with the keys of `fixtures/messages/truth.json`.

    `kind`, `memory_space`, `cause`; `figures`: sizes in bytes by name; `buffers`: one dictionary for
    each listed buffer, in order, with the names of truth.json and sizes in bytes; for warnings of
    the partitioner, `warnings`: the distinct reshards in order of appearance, with their `count`.
    Unknown is None or absent. `path` may end in `.xz`. A log that holds one message several times
    (`copies`) is read as one message.
    """
    messages = hlofast.oom(path)
    main = messages.main
    return {
        "kind": None if main is None else main.kind,
        "memory_space": None if main is None else main.space,
        "cause": messages.cause or "rematerialization-warning",
        "figures": _figures(messages),
        "buffers": _buffers(messages),
        "warnings": [_warning(own) for own in messages.warnings],
    }


def _figures(messages: hlofast.Messages) -> dict[str, int]:
    found: dict[str, int] = {}
    # A sentence may give the reserved bytes of another moment than the account of the program.
    rows = sorted(
        messages.tables["figures"],
        key=lambda row: row["figure"] == "reserved" and not row["account"],
    )
    for row in rows:
        if row["message"] == messages.chosen and row["bytes"] is not None:
            account, name = row["account"].partition(" ")[0], row["figure"]
            found.setdefault(ACCOUNTS.get((account, name), OTHERS.get(name, name)), row["bytes"])
    return found


def _buffers(messages: hlofast.Messages) -> list[dict[str, Any]]:
    main = messages.main
    if main is None:
        return []
    if main.allocations:  # The truth of a buffer assignment is its allocations, not their values.
        return [
            {
                "rank": own.number,
                "size": own.bytes,
                "color": own.color,
                "shape": own.shape,
                "allocation_type": own.text,
                "values": own.values,
            }
            for own in main.allocations
        ]
    rows = list(messages.tables["buffers"])
    entries = [entry for own in messages.messages for entry in own.entries]
    if messages.is_file:
        rows.sort(key=lambda row: row["number"])
    elif main.entries:  # Otherwise those of the other messages.
        pairs = zip(rows, entries, strict=True)
        told = [pair for pair in pairs if pair[0]["message"] == messages.chosen]
        rows, entries = [row for row, _ in told], [entry for _, entry in told]
    pairs = zip(rows, entries, strict=True)
    return [_buffer(rank, *pair, is_file=messages.is_file) for rank, pair in enumerate(pairs, 1)]


def _buffer(rank: int, row: dict[str, Any], entry: Any, *, is_file: bool) -> dict[str, Any]:
    return {
        "rank": row["number"] or rank,
        "size": row["bytes"],
        # A usage report lists all shapes at a place.
        "shape": row["label"] if is_file else row["shape"],
        # A stack has no label: the message names its instruction.
        "label": row["name"] if row["allocation_type"] == "stack" else row["label"],
        "op_name": row["op_name"],
        "source_file": row["source_file"],
        "source_line": row["source_line"],
        "allocation_type": row["allocation_type"],
        "unpadded": row["unpadded"],
        # The truth has the padding that the text writes, the table also the padding that follows.
        "padding": None if entry.extra is None else entry.extra.bytes,
        "padding_factor": row["expansion"],
        "tag": row["tag"],
        "instruction": row["name"],
        "entry_parameter": row["shape"] if entry.is_parameter else None,
        "memory_space": row["allocation_type"],
        "offset": row["offset"],
        "values": row["values"],
    }


def _warning(own: Any) -> dict[str, Any]:
    return {
        "instruction": own.name,
        "shape": own.shape,
        "opcode": own.opcode,
        "from": own.source,
        "to": own.target,
        "op_name": own.op_name,
        "source_file": own.source_file,
        "source_line": own.source_line,
        "count": own.count,
    }
