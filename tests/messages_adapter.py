"""The one place where the corpus of messages meets the reader of the package."""

from __future__ import annotations

import pathlib
from typing import Any


def read(path: pathlib.Path) -> dict[str, Any]:
    """Reads one message file and returns it with the keys of `fixtures/messages/truth.json`.

    `kind`, `memory_space`, `cause`; `figures`: sizes in bytes by name; `buffers`: one dictionary for
    each listed buffer, in order, with the names of truth.json and sizes in bytes; for warnings of
    the partitioner, `warnings`: the distinct reshards in order of appearance, with their `count`.
    Unknown is None or absent. `path` may end in `.xz`. A log that holds one message several times
    (`copies`) is read as one message.
    """
    raise NotImplementedError(f"no reader of messages: {path}")
