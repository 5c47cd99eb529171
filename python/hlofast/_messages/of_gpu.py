"""The phrases of messages of GPUs, of allocators and of the host."""

from __future__ import annotations

import re

from hlofast._messages.amounts import amount, exact
from hlofast._messages.message import MOST_ENTRIES, Message
from hlofast._messages.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._messages.tokens import Token

_BFC = {
    "Limit": "limit", "InUse": "in_use", "MaxInUse": "max_in_use",
    "MaxAllocSize": "max_allocation", "Reserved": "reserved", "PeakReserved": "peak_reserved",
    "LargestFreeBlock": "largest_free",
}  # fmt: skip


_HOST = re.compile(r"(?:bfc_)?cpu|mkl_cpu|(?:xla_)?(?:gpu|cuda)_host|(?:xla_)?cpu|host")
"""Names of the allocators of the host's memory."""


class OfGpu(State):
    """Handlers of phrases by pattern."""

    def _gpu(self, token: Token, size: str | None, *, ends: bool) -> Message:
        figure = None if size is None else amount(size)
        self._finish_entry()
        current = self._current
        is_open = current is not None and current.backend == "gpu" and self._is_near(token)
        if is_open and current is not None and ends and current.has_end:
            is_open = False
        if is_open and current is not None and figure is not None:
            has = current.figures.get("requested")
            is_open = has is None or has.agrees(figure)
        if not is_open or current is None:
            current = self._begin("gpu", "run", token)
            current.space = "gpu"
            for name, own in self._pending.items():
                current.figures[name] = own
            self._pending = {}
        if figure is not None:
            has = current.figures.get("requested")
            if has is None or figure.plus_minus < has.plus_minus:
                current.figures["requested"] = figure
        current.has_end = current.has_end or ends
        self._say(current, token)
        return current

    def _trying(self, token: Token) -> None:
        self._gpu(token, token.groups[0], ends=True)

    def _request(self, token: Token) -> None:
        size, count = token.groups
        current = self._gpu(token, f"{count}B" if count else size, ends=True)
        if count:
            self._set(current, "requested_rounded", size)

    def _driver(self, token: Token) -> None:
        size, count, where, error = token.groups
        if not (error or where or count):
            return  # Some other program's words.
        current = self._gpu(token, f"{count} bytes" if count else size, ends=False)
        self._set(current, "device", f"{count} bytes" if count else size)
        if count:
            self._set(current, "device_rounded", size)
        if where in ("host", "pinned host"):
            current.space = "host"

    def _allocator(self, token: Token) -> None:
        name, size, rounded = token.groups
        if _HOST.match(name or ""):
            current = self._begin("gpu", "run", token)
            current.space = "host"
            self._set(current, "requested", size)
            self._say(current, token)
        else:
            current = self._gpu(token, size, ends=False)
        if rounded is not None and (figure := exact(int(rounded))) is not None:
            current.figures.setdefault("rounded", figure)
        current.where = current.where or name
        current.is_hint = "not a failure" in self._cleaned.text[token.start : token.end]

    def _old_trying(self, token: Token) -> None:
        self._gpu(token, token.groups[0], ends=False)

    def _tensor(self, token: Token) -> None:
        current = self._gpu(token, None, ends=False)
        dimensions = ",".join((token.groups[0] or "").replace(",", " ").split())
        current.where = f"tensor {token.groups[1] or ''}[{dimensions}]".replace(" [", "[")

    def _cuda(self, token: Token) -> None:
        if self._current is None or self._current.backend != "gpu":
            self._gpu(token, None, ends=False)

    def _free_total(self, token: Token) -> None:
        current = self._current
        if current is not None and current.backend == "gpu":
            for name, text in zip(("free", "device_memory"), token.groups, strict=True):
                self._set_count(current, name, text)

    def _stat(self, token: Token) -> None:
        part, what, size, percent = token.groups
        current = self._current
        name = f"{part} {what}"
        account = "buffer assignment"
        self._finish_entry()
        if current is None or current.backend != "gpu" or (account, name) in current.parts:
            current = self._gpu(token, None, ends=False)
            if (account, name) in current.parts:
                current = self._begin("gpu", "run", token)
                current.space = "gpu"
        current.parts[account, name] = amount(size or "")
        if percent is not None:
            current.percents[f"{account}: {name}"] = float(percent)

    def _debugging(self, token: Token) -> None:
        current = self._current
        is_told = current is not None and any(
            account == "buffer assignment" for account, _ in current.parts
        )
        if current is None or current.backend != "gpu" or is_told:
            current = self._begin("gpu", "run", token)
            current.space = "gpu"
            self._say(current, token)

    # The BFC allocator.

    def _of_allocator(self, token: Token) -> Message:
        current = self._current
        if current is None or current.backend != "gpu":
            current = self._begin("gpu", "run", token)
            current.space = "gpu"
            self._say(current, token)
        return current

    def _bin(self, token: Token) -> None:
        size, chunks, in_use, allocated, used, asked = token.groups
        current = self._of_allocator(token)
        if int(chunks or 0) and ("bins", f"{size} allocated") not in current.parts:
            current.parts["bins", f"{size} allocated"] = amount(allocated or "")
            current.parts["bins", f"{size} in use"] = amount(used or "")
            if asked is not None:
                current.parts["bins", f"{size} requested"] = amount(asked)
            current.allocator[f"bin {size}: chunks"] = int(chunks or 0)
            current.allocator[f"bin {size}: chunks in use"] = int(in_use or 0)

    def _chunks(self, token: Token) -> None:
        current = self._of_allocator(token)
        if len(current.chunks) < MOST_ENTRIES:
            current.chunks.append((int(token.groups[0] or 0), int(token.groups[1] or 0)))

    def _sum(self, token: Token) -> None:
        self._set(self._of_allocator(token), "in_use_chunks", token.groups[0])

    def _pool(self, token: Token) -> None:
        current = self._of_allocator(token)
        names = ("pool", "limit", "available")
        for name, text in zip(names, token.groups, strict=True):
            self._set_count(current, name, text)

    def _bfc(self, token: Token) -> None:
        name, text = token.groups
        if name == "Limit" and text == "0":
            return  # The allocator of CUDA has no limit.
        if name == "Limit" or self._current is not None:
            current = self._of_allocator(token)
            if name in _BFC:
                self._set_count(current, _BFC[name], text)
            else:
                current.allocator.setdefault(str(name), int(text or 0))

    # The host.

    def _host_message(self, token: Token, size: str | None) -> Message:
        current = self._begin("cpu", "run", token)
        current.space = "host"
        self._set(current, "requested", size)
        self._say(current, token)
        return current

    def _host(self, token: Token) -> None:
        before = self._cleaned.text[max(token.start - 16, 0) : token.start]
        current = self._host_message(token, token.groups[0])
        if before.endswith("TPU embedding: "):
            current.backend, current.space, current.where = "tpu", "hbm", "TPU embedding"

    def _pinned(self, token: Token) -> None:
        self._host_message(token, None).where = "pinned host memory"

    def _numpy(self, token: Token) -> None:
        current = self._host_message(token, token.groups[0])
        shape = (token.groups[1] or "").replace(" ", "").rstrip(",")
        current.where = f"array {token.groups[2] or ''}[{shape}]".replace(" [", "[")

    def _killed(self, token: Token) -> None:
        current = self._host_message(token, None)
        current.where = f"process {token.groups[0]} ({token.groups[1]})"
        if token.groups[2] is not None:
            # The kernel's kB are KiB (Documentation/filesystems/proc.rst).
            figure = exact(int(token.groups[2]) * 1024, f"{token.groups[2]}kB")
            if figure is not None:
                current.figures["used"] = figure
