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
    ("requirement", "global"): "global",
    ("requirement", "scoped"): "scoped",
    ("requirement", "reserved"): "program_reserved",
    ("requirement", "overlays"): "overlays",
    ("requirement", "HLO temp"): "hlo_temp",
    ("requirement", "HLO temp unpadded"): "unpadded",
    ("requirement", "HLO temp padded"): "padded",
    ("requirement", "HLO temp fragmentation"): "fragmentation",
    ("buffer", "parameter allocation"): "arguments",
    ("buffer", "constant allocation"): "constants",
    ("buffer", "maybe_live_out allocation"): "output",
    ("buffer", "preallocated temp allocation"): "temp",
    ("buffer", "preallocated temp fragmentation"): "temp_fragmentation",
    ("buffer", "total allocation"): "total",
    ("buffer", "total fragmentation"): "fragmentation",
}
"""Names of the truth for figures of accounts: by the account's first word and the part."""


def read(path: pathlib.Path) -> dict[str, Any]:
    """Reads one message file and returns it with the keys of `fixtures/messages/truth.json`.

    `kind`, `memory_space`, `cause`; `figures`: sizes in bytes by name; `buffers`: a list of
    dictionaries with `size` in bytes, `shape`, `label`, `op_name`, `source_file`, `source_line`,
    `allocation_type`, `unpadded`, `padding` in bytes and `padding_factor`; for warnings of the
    partitioner, `warnings`: a list with `instruction`, `shape`, `opcode`, `from`, `to`, `op_name`,
    `source_file`, `source_line`. Unknown is None or absent. `path` may end in `.xz`.
    """
    messages = hlofast.oom(path)
    main = messages.main
    rows = [row for row in messages.tables["buffers"] if row["message"] == messages.chosen]
    answer: dict[str, Any] = {
        "kind": None if main is None else main.kind,
        "memory_space": None if main is None else main.space,
        "cause": messages.cause or "rematerialization-warning",
        "figures": {},
        "buffers": [_buffer(row, own) for row, own in zip(rows, _entries(messages), strict=True)],
        "warnings": _warnings(messages),
    }
    for row in messages.tables["figures"]:
        if row["message"] == messages.chosen and row["bytes"] is not None:
            name = row["figure"]
            if row["account"]:
                name = ACCOUNTS.get((row["account"].split(" ")[0], name), f"{row['account']} {name}")
            answer["figures"].setdefault(name, row["bytes"])
    return answer


def _entries(messages: hlofast.Messages) -> list[Any]:
    return [] if messages.main is None else list(messages.main.entries)


def _buffer(row: dict[str, Any], entry: Any) -> dict[str, Any]:
    return {
        "size": row["bytes"],
        "shape": row["shape"],
        # A stack has no label: the message names its instruction.
        "label": row["name"] if row["allocation_type"] == "stack" else row["label"],
        "op_name": row["op_name"],
        "source_file": row["source_file"],
        "source_line": row["source_line"],
        "allocation_type": row["allocation_type"],
        "unpadded": row["unpadded"],
        # The truth has the padding that the text writes, the table also that which follows.
        "padding": None if entry.extra is None else entry.extra.bytes,
        "padding_factor": row["expansion"],
    }


def _warnings(messages: hlofast.Messages) -> list[dict[str, Any]]:
    """Every warning as often as the text has it, in the order of the text."""
    found = []
    for own in messages.warnings:
        record = {
            "instruction": own.name,
            "shape": own.shape,
            "opcode": own.opcode,
            "from": own.source,
            "to": own.target,
            "op_name": own.op_name,
            "source_file": own.source_file,
            "source_line": own.source_line,
        }
        found += [(line, record) for line in own.lines]
    return [record for _, record in sorted(found, key=lambda pair: pair[0])]
