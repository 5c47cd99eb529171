"""`Memory`: what `Module.memory` finds alive, in figures, columns and tables."""

from __future__ import annotations

from hlofast import _core
from hlofast._core import Field
from hlofast.table import Table, column_of, with_source

TYPE_CHECKING = False  # The command line analyses memory; importing typing would slow its start.
if TYPE_CHECKING:
    from typing import Any

    import numpy
    import numpy.typing

    from hlofast._core import Instruction
    from hlofast._memory_data import MemoryData
    from hlofast._module import Module
    from hlofast.devices import Device

SPACES = {"hbm": 0, "vmem": 1, "host": 5}
"""Names of memory spaces, by the number in layouts, as TPU programs use them."""
KEYS = ("class", "phase", "scope", "source", "source_file", "op_name", "shape", "opcode", "name")
"""What `Memory.by` takes; source is file and line."""
RULES = ("in_place", "values", "xla")
"""Rules by which values share memory."""
ORDERS = {
    "text": "the order of the text",
    "post_order": "operands before users, from the instructions that nobody uses on",
    "list": "of what is ready, what frees most memory beyond what it makes",
}
_STEP = Field("index", "step", "The step of the schedule.")
_INSTRUCTION = Field("instruction", "instruction", "The row number of what runs in it.")
_BYTES = Field("bytes", "bytes", "Bytes alive while it runs.")
_SMALL_TABLES = ("tpu-v4", "tpu-v5p", "tpu-v6e", "tpu-v7")


def space_number(space: int | str | None) -> int | None:
    """The number of a memory space; None for all. The main memory by default."""
    if space is None:
        return 0
    if isinstance(space, int):
        return space
    if space == "all":
        return None
    if space in SPACES:
        return SPACES[space]
    digits = space[2:-1] if space.startswith("S(") and space.endswith(")") else space
    if digits.isdecimal() and len(digits) < 18:
        return int(digits)
    known = ", ".join(SPACES)
    raise ValueError(f"memory space is a number, all or one of {known}, not {space!r}")


def table_bytes(device: str | Device | None) -> int | None:
    """What a TPU rounds the pointer tables of tuples to; None without a device.

    An `UnknownDeviceError` for a name that no device has.
    """
    if device is None:
        return None
    from hlofast import devices

    return 32 if devices.get(device).name in _SMALL_TABLES else 512


def memory(
    module: Module,
    rule: str = "in_place",
    sizes: str = "device",
    constants: str = "last_use",
    space: int | str | None = None,
    schedule: str | None = None,
    device: str | Device | None = None,
) -> Memory:
    """See `Module.memory`."""
    # Names that no device has are refused now, not when XLA's account is asked.
    table_bytes(device)
    data = _core._memory(
        module,
        rule=rule,
        sizes=sizes,
        constants=constants,
        space=space_number(space),
        schedule="text" if schedule is None else schedule,
    )
    result = Memory(module, data, rule, sizes, constants, space_number(space), schedule, device)
    if result.contradictions:
        import warnings

        warnings.warn("; ".join(result.contradictions), stacklevel=3)
    return result


class Memory:
    """What is alive when a module runs, from `Module.memory`.

    Steps are instructions in the order in which they run: the entry computation's, with those of
    loops, branches and calls once, in front of what calls them (as in XLA's `HloLiveRange`).
    Fragmentation is not modelled: an allocator may need more.
    """

    def __init__(
        self,
        module: Module,
        data: MemoryData,
        rule: str,
        sizes: str,
        constants: str,
        space: int | None,
        schedule: str | None,
        device: str | Device | None,
    ) -> None:
        self._module = module
        self._data = data
        self.rule = rule
        self.sizes = sizes
        self.constants = constants
        self.space = space
        self.schedule: str = "text" if schedule is None else schedule
        self.device = device
        self._is_chosen = schedule is not None
        self._live: Table | None = None
        self._xla: dict[str, int] | None = None

    @property
    def live_peak(self) -> int:
        """The most bytes alive at once in the chosen memory space.

        With `rule="values"` it is what XLA's live-range file says, at the step which that file
        calls the peak; `timeline.max()` may be more.
        """
        return self._data.live_peak

    @property
    def xla_peak(self) -> int:
        """Bytes as `compiled.memory_analysis().peak_memory_in_bytes` counts them on TPU.

        Parameters, results and constants, and the largest heap of any memory space, even where
        that is the one in fast memory. Other backends leave the heap out of their figure.
        """
        return self.xla["peak_memory_in_bytes"]

    @property
    def xla(self) -> dict[str, int]:
        """XLA's account in bytes, under the names of `CompiledMemoryStats`.

        Also `constant_size_in_bytes`, `heap_size_in_bytes` and `heap_memory_space`.
        """
        if self._xla is None:
            self._xla = _core._xla_memory(self._module, table_bytes=table_bytes(self.device))
        return dict(self._xla)

    @property
    def backend(self) -> str:
        """Whose sizes of shapes are meant: cpu or tpu."""
        return self._data.backend

    @property
    def at(self) -> Instruction | None:
        """The instruction that runs at the peak; None for a module without instructions."""
        row = self._data.peak_row
        return None if row is None else self._module[row]

    @property
    def live(self) -> Table:
        """The values alive at the peak, largest first; columns as of `live_at`."""
        if self._live is None:
            self._live = Table(self._data.live(self._data.peak_step))
        return self._live

    def live_at(self, instruction: Instruction | str | int) -> Table:
        """The values alive while `instruction` (or its name or row) runs, largest first.

        Columns: instruction (row of what makes the value), name, index (which part of its result),
        opcode, shape, bytes, memory_space, first_step, last_step, byte_steps (bytes times steps),
        buffer (values of one buffer share memory), class (parameter, optimizer_state, gradient,
        residual, gathered_weight, temporary, output, constant, unknown), phase, scope, op_name,
        source_file, source_line. A `ValueError` if the instruction takes no step, as inside a
        fusion.
        """
        row = (
            instruction.row
            if isinstance(instruction, _core.Instruction)
            else self._module[instruction].row
        )
        step = self._data.step_of(row)
        if step is None:
            name = self._module[row].name
            raise ValueError(f"{name} takes no step of its own: it is part of a fusion or dead")
        return Table(self._data.live(step))

    def values(self) -> Table:
        """Every value, by step; columns as of `live_at`."""
        return Table(self._data.live())

    @property
    def timeline(self) -> numpy.typing.NDArray[numpy.int64]:
        """Bytes alive at each step: a read-only int64 array of one entry per step."""
        import numpy

        array: numpy.typing.NDArray[numpy.int64] = numpy.asarray(self._data.timeline())
        return array

    def steps(self) -> Table:
        """One row per step: step, instruction (row), bytes alive."""
        timeline = self._data.timeline()
        return Table(
            [
                (_STEP, column_of(_STEP, range(len(timeline)))),
                (_INSTRUCTION, self._data.sequence()),
                (_BYTES, timeline),
            ]
        )

    def by(self, key: str) -> Table:
        """Bytes alive at the peak by `key`, largest first.

        Keys: `class`, `phase`, `scope`, `source` (file and line), `source_file`, `op_name`,
        `shape`, `opcode`, `name`; a `ValueError` for another. Columns: the key, rows (how many
        values), bytes, byte_steps.
        """
        if key not in KEYS:
            raise ValueError(f"by is one of {', '.join(KEYS)}, not {key!r}")
        table = self.live
        if key == "source":
            table = with_source(table)
        return table.by(key, totals=("bytes", "byte_steps")).sort_by("bytes", descending=True)

    def without_largest(self) -> dict[str, Any]:
        """What would be the peak if the largest buffer alive there went.

        `instruction` (the row that makes it), `index` (which part of its result: `{9}`), `bytes`,
        then `live_peak` and `at` (a row or None) without it. An empty dictionary if nothing is
        alive.
        """
        if not len(self.live):
            return {}
        largest = self.live.row(0)
        peak, row = self._data.peak_without(largest["buffer"])
        return {
            "instruction": largest["instruction"],
            "index": largest["index"],
            "bytes": largest["bytes"],
            "live_peak": peak,
            "at": row,
        }

    def file(self, content: bytes | str) -> MemoryFile:
        """XLA's own account, joined to this module, from the content of one of its files.

        `*-live-range.txt`, `*-buffer-assignment.txt` or `*-memory-usage-report.txt`. A
        `ValueError` says which line cannot be read, or does not fit this module.
        """
        data = content.encode() if isinstance(content, str) else content
        return MemoryFile(*_core._memory_file(self._module, data))

    @property
    def contradictions(self) -> list[str]:
        """What in the module contradicts itself, so that figures are doubtful."""
        doubts = self._data.doubts()
        found = []
        if doubts["contradictory_aliases"]:
            found.append(
                f"{doubts['contradictory_aliases']} entries of input_output_alias name what is not "
                "there or has another size; they are left out"
            )
        if doubts["has_unreadable_aliases"]:
            found.append("input_output_alias cannot be read; nothing counts as donated")
        if doubts["mismatched"]:
            found.append(
                f"{doubts['mismatched']} parts of results do not fit where they come from; they "
                "count as new values"
            )
        if doubts["disordered"]:
            found.append(
                f"{doubts['disordered']} instructions stand before one of their operands: this is "
                "no order in which the module can run"
            )
        if doubts["lacks_layouts"]:
            found.append("some arrays have no layout; their padding is not counted")
        return found

    @property
    def notes(self) -> list[str]:
        """What the figures rest on and leave out."""
        doubts = self._data.doubts()
        notes = list(self.contradictions)
        if doubts["is_unscheduled"]:
            order = ORDERS[self.schedule]
            notes.append(f"the module does not say that it is scheduled; steps follow {order}")
        elif self.schedule != "text":
            notes.append(f"not the module's own schedule: {ORDERS[self.schedule]}")
        unknown = doubts["unknown_sizes"]
        if unknown:
            shown = ", ".join(self._module[row].name for row in unknown[:5])
            notes.append(f"{len(unknown)} results of unknown size count as nothing: {shown}")
        repeated = doubts["repeated_calls"]
        if repeated:
            notes.append(
                f"{len(repeated)} calls of computations that run elsewhere too: their inner values "
                "count at the first call only"
            )
        highest, row = self._data.highest
        if highest > self.live_peak and row is not None:
            notes.append(
                f"XLA's file puts the peak here, weighing values in its own way; most, "
                f"{highest:,} B, is alive at {self._module[row].name}"
            )
        less = self._less_on_v6e()
        if less:
            notes.append(
                f"the text does not tell TPU v5e from v6e, whose XLA peak is {less:,} B less"
            )
        notes.append("fragmentation is not modelled")
        return notes

    def _less_on_v6e(self) -> int:
        """By how much the table of the result's tuple is smaller on v6e, if this could be one."""
        is_told = self.device is not None or self.backend != "tpu"
        if is_told or self.schedule != "text" or "megacore" in self._module.text:
            return 0
        root = self._module.entry.root
        if root is None or not root.shape.is_tuple:
            return 0
        table = 4 * len(root.shape.elements)
        return -table // 32 * 32 - -table // 512 * 512

    def __repr__(self) -> str:
        at = self.at
        where = "" if at is None else f" at {at.name}"
        return f"<Memory {self.live_peak:,} B{where}, rule {self.rule}, sizes {self.sizes}>"


class MemoryFile:
    """One of XLA's memory files, joined to its module by `Memory.file`."""

    kind: str
    """`live_range`, `buffer_assignment` or `memory_usage_report`."""
    table: Table
    """One row per value, or per line of a report, in the file's order.

    Columns: instruction (row), name, index, allocation, kind (parameter, constant, output,
    temporary, other), bytes, is_exact (reports round), offset, first_step, last_step, is_at_peak,
    values (that share a place); unknown is what the kind of file does not say.
    """
    total_bytes: int | None
    """Bytes of all allocations."""
    peak_step: int | None
    """The step that a live-range file calls the peak."""
    peak_bytes: int | None
    """Bytes of the values it lists there."""

    def __init__(
        self,
        kind: str,
        columns: list[tuple[Field, _core.Column | _core.TextColumn]],
        total_bytes: int | None,
        peak_step: int | None,
        peak_bytes: int | None,
    ) -> None:
        self.kind = kind
        self.table = Table(columns)
        self.total_bytes = total_bytes
        self.peak_step = peak_step
        self.peak_bytes = peak_bytes

    def __repr__(self) -> str:
        return f"<MemoryFile {self.kind}, {len(self.table)} rows>"
