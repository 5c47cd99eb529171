"""The one place where the corpus of messages meets the reader of the package."""

from __future__ import annotations

import pathlib
from typing import Any


def read(path: pathlib.Path) -> dict[str, Any]:
    """Reads one message file and returns it with the keys of `fixtures/messages/truth.json`.

    `kind`, `memory_space`, `cause`; `figures`: sizes in bytes by name; `buffers`: a list of
    dictionaries with `size` in bytes, `shape`, `label`, `op_name`, `source_file`, `source_line`,
    `allocation_type`, `unpadded`, `padding` in bytes and `padding_factor`; for warnings of the
    partitioner, `warnings`: a list with `instruction`, `shape`, `opcode`, `from`, `to`, `op_name`,
    `source_file`, `source_line`. Unknown is None or absent. `path` may end in `.xz`.
    """
    raise NotImplementedError(f"no reader of messages: {path}")
