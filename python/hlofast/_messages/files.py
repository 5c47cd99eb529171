"""XLA's memory files without their module: usage reports and buffer assignments."""

from __future__ import annotations

import re

from hlofast._messages.amounts import amount, exact
from hlofast._messages.entries import SHAPE, Entry, shape_in
from hlofast._messages.message import MOST_ENTRIES, Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SPACE = re.compile(r"\s*Memory Space: (\w{1,40}) \(color=(\d{1,4})\)")
_TOTAL = re.compile(r"\s*Total bytes: (\d{1,19})")
_ALLOCATION = re.compile(r"\s*allocation (\d{1,9}): size (\d{1,19})(?:, (.*?))?:?\s*$")
_VALUE = re.compile(
    r"\s*value: <(\d{1,12}) (\S{1,500})(?: \(phi\))? @(\d{1,4})> "
    r"\(size=(\d{1,19}),offset=(\d{1,19})\):\s*(.*)"
)
_COLOR = re.compile(r"color (\d{1,4})")
_OF_SHAPE = re.compile(r"shape (?:is )?\|([^|]{1,2000})\|")
_INDEX = re.compile(r"\{[\d,]*\}$")
_LISTED = re.compile(rf"(?:(\d{{1,9}})×)?({SHAPE})")
_TILED = re.compile(r":T\(\d")
_GPU_FILE = re.compile(r"(?:^|[._-])(?:gpu|sm_\d)")
_GPU_NAME = re.compile(r"gemm_fusion|cublas|cudnn|triton|nccl|(?:loop|input)_\w{1,60}_fusion")
_SPACES = {0: "hbm", 1: "vmem", 2: "smem", 3: "sflag", 5: "host"}
"""Memory spaces by colour, as TPU programs use them."""
REPORT, ASSIGNMENT = "memory-usage-report", "buffer-assignment"
_TPU_SIZE, _GPU_PLACE, _CPU_PLACE = 512, 128, 64
"""Sizes on TPU are multiples of 512 (the smallest tile); GPU buffers start at multiples of 128
(`kXlaAllocatedBufferAlignBytes`), CPU buffers at multiples of 64 (`MinAlign`)."""


class Allocation:
    """An allocation of a memory file: what several values share."""

    __slots__ = ("bytes", "color", "number", "shape", "text", "values")

    def __init__(self, number: int, size: int, text: str) -> None:
        self.number = number
        """Its number in the file."""
        self.bytes = size
        """Its bytes."""
        self.text = text
        """What the file says of it: parameter 0, constant, maybe-live-out, preallocated-temp."""
        color = _COLOR.search(text)
        self.color = 0 if color is None else int(color[1])
        """The number of the memory space."""
        shape = _OF_SHAPE.search(text)
        self.shape = None if shape is None else shape[1]
        """The shape of a parameter or result."""
        self.values = 0
        """Number of values in it."""


def kind_of(start: str) -> str | None:
    """Returns which memory file a text is, from its beginning; None if it is none of them."""
    head = start[:4096].lstrip("\ufeff \r\n\t")
    if head.startswith(("BufferAssignment:", "allocation 0: size ")):
        return ASSIGNMENT
    starts = ("Memory Space:", "Total bytes", "cumulative_size")
    if "cumulative_size;" in head and head.startswith(starts):
        return REPORT
    return None


def read(kind: str, lines: Iterable[str], path: str | None = None) -> Message:
    """Reads a memory file, by `kind_of`; the name of the file may tell the backend."""
    message = Message(None, "report", 1, 0)
    message.text = "memory usage report" if kind == REPORT else "buffer assignment"
    sizes: list[tuple[int, int]] = []
    is_of_tpu = (_report if kind == REPORT else _assignment)(message, lines, sizes)
    message.space = _memory(sizes, is_of_tpu=is_of_tpu, is_gpu=_of_gpu(message, path))
    message.is_space_assumed = True
    return message


def _memory(sizes: list[tuple[int, int]], *, is_of_tpu: bool, is_gpu: bool) -> str | None:
    """The memory of a program that has buffers of these sizes and offsets; None if unknown.

    The files do not name the backend. Without a sign of a GPU, other sizes than those of TPUs are
    taken to be the host's.
    """
    if is_of_tpu:
        return "hbm"
    if not sizes:
        return None
    if all(size % _TPU_SIZE == 0 for size, _ in sizes):
        return "hbm"
    is_of_cpu = any(place % _GPU_PLACE == _CPU_PLACE for _, place in sizes)
    return "gpu" if is_gpu and not is_of_cpu else "host"


def _of_gpu(message: Message, path: str | None) -> bool:
    """Whether the file's name, or the names of its values, are those of a GPU program."""
    name = "" if path is None else path.replace("\\", "/").rpartition("/")[2]
    if _GPU_FILE.search(name):
        return True
    return any(own.name and _GPU_NAME.search(own.name) for own in message.entries[:10_000])


def _report(message: Message, lines: Iterable[str], sizes: list[tuple[int, int]]) -> bool:
    space, in_list = "default", 0
    is_default_told = is_of_tpu = False
    for number, line in enumerate(lines, 1):
        if (found := _SPACE.match(line)) is not None:
            space = _SPACES.get(int(found[2]), found[1]) if found[2] != "0" else found[1]
            is_default_told = found[2] != "0"
            # Only TPU programs have several memories in one report.
            is_of_tpu = is_of_tpu or is_default_told
        elif (found := _TOTAL.match(line)) is not None:
            total = exact(int(found[1]))
            if total is not None:
                message.parts[f"report {space}", "total"] = total
                if not is_default_told:
                    message.figures.setdefault("total", total)
        elif line.count(";") >= 4 and "cumulative_size" not in line:
            cells = [own.strip() for own in line.split(";", 4)]
            size = amount(cells[1])
            if size is None:
                continue
            in_list += 1
            entry = Entry(in_list, number, size)
            # Of several shapes at one place, the one that tells most stands for it.
            entry.shape = _largest_shape(cells[4])
            entry.label = cells[4][:2000]
            entry.allocation_type = space
            entry.offset = int(cells[2]) if cells[2].isdecimal() and len(cells[2]) < 19 else None
            entry.values = int(cells[3]) if cells[3].isdecimal() and len(cells[3]) < 10 else None
            if size.is_exact and size.bytes < 1024 and entry.offset is not None:
                sizes.append((size.bytes, entry.offset))
            elif entry.offset is not None:
                sizes.append((0, entry.offset))
            message.add(entry)
    return is_of_tpu


def _largest_shape(cell: str) -> str | None:
    if cell.lstrip("0123456789×").startswith("("):
        return None
    shapes = [found[2] for found in _LISTED.finditer(cell[:4000])]
    return max(shapes, key=len) if shapes else shape_in(cell)


def _assignment(message: Message, lines: Iterable[str], sizes: list[tuple[int, int]]) -> bool:
    own: Allocation | None = None
    total, default, is_tiled, in_list = 0, 0, False, 0
    for number, line in enumerate(lines, 1):
        if (found := _ALLOCATION.match(line)) is not None:
            own = Allocation(int(found[1]), int(found[2]), found[3] or "")
            if len(message.allocations) < MOST_ENTRIES:
                message.allocations.append(own)
            total += own.bytes
            default += own.bytes if own.color == 0 else 0
        elif (found := _VALUE.match(line)) is not None:
            in_list += 1
            entry = Entry(in_list, number, exact(int(found[4])))
            entry.name = _INDEX.sub("", found[2])
            entry.label = found[2]
            entry.allocation_type = "other" if own is None else _purpose(own.text)
            entry.fill_shape(found[6], is_parameter=entry.allocation_type == "parameter")
            entry.offset = int(found[5])
            if own is not None:
                own.values += 1
            is_tiled = is_tiled or _TILED.search(found[6]) is not None
            sizes.append((int(found[4]), int(found[5])))
            message.add(entry)
        elif line.startswith("Used values:"):
            break
    if (figure := exact(total)) is not None:
        message.parts["buffer assignment", "total"] = figure
    if (figure := exact(default)) is not None:
        message.figures["total"] = figure
    return is_tiled


def _purpose(text: str) -> str:
    if text.startswith("parameter "):
        return "parameter"
    if text.startswith("constant"):
        return "constant"
    if "maybe-live-out" in text:
        return "output"
    return "temporary" if "preallocated-temp" in text else "other"
