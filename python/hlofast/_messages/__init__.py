"""Out-of-memory messages and warnings of the partitioner: what they are, hold and ask for."""

from __future__ import annotations

from hlofast._messages.api import oom, read_bytes, read_file
from hlofast._messages.result import Messages

__all__ = ["Messages", "oom", "read_bytes", "read_file"]
