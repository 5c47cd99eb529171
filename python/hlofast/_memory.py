"""`Memory`: what `Module.memory` finds alive, in figures, columns and tables."""

from __future__ import annotations

from hlofast import _core
from hlofast._core import Field
from hlofast._names import meant
from hlofast._result import Fact, Note, Result, Section
from hlofast.table import Table, column_of, of_rows, shares, with_source

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
_VALUES = Field("count", "values", "How many values.", adds_up=True)
_SHARE = Field("ratio", "share", "The part of all bytes alive there.", nullable=True)
_VALUE = Field("text", "value", "The instruction, and which part of its result it is.")
_FROM = Field(
    "text",
    "origin",
    "The source line, otherwise the name that the framework gave.",
    label="from",
    nullable=True,
)
_ACCOUNT = (
    Field("word", "part", "What takes memory, as `CompiledMemoryStats` names it."),
    Field("index", "memory_space", "The memory space: 0 is HBM, 5 that of the host."),
    Field("bytes", "bytes", "How much it takes."),
)
_GROUPED = ("values", "bytes", "share")
_SHOWN = ("value", "bytes", "share", "class", "first_step", "last_step", "phase", "shape", "origin")
_ON_DEVICE = ("argument", "output", "alias", "constant", "heap")
_ON_HOST = ("host_argument", "host_output", "host_alias")
"""What `Memory.xla` accounts for, without `_size_in_bytes`."""
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
    """What a TPU rounds the pointer tables of tuples to; None without one.

    An `UnknownDeviceError` for a name that no device has.
    """
    if device is None:
        return None
    from hlofast import devices

    found = devices.get(device)
    if found.backend != "tpu":
        return None
    return 32 if found.name in _SMALL_TABLES else 512


def quiet(
    module: Module,
    rule: str = "in_place",
    sizes: str = "device",
    constants: str = "last_use",
    space: int | str | None = None,
    schedule: str | None = None,
    device: str | Device | None = None,
) -> Memory:
    """`Module.memory` without a warning for contradictions, which notes say too."""
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
    return Memory(module, data, rule, sizes, constants, space_number(space), schedule, device)


def memory(
    module: Module,
    rule: str,
    sizes: str,
    constants: str,
    space: int | str | None,
    schedule: str | None,
    device: str | Device | None,
) -> Memory:
    """`Module.memory`."""
    result = quiet(module, rule, sizes, constants, space, schedule, device)
    if result.contradictions:
        import warnings

        warnings.warn("; ".join(map(str, result.contradictions)), stacklevel=3)
    return result


class Memory(Result):
    """What is alive when a module runs, from `Module.memory`.

    Steps are instructions in the order in which they run: the entry computation's, with those of
    loops, branches and calls once, in front of what calls them (as in XLA's `HloLiveRange`).
    Fragmentation is not modelled: an allocator may need more.
    """

    VERB = "memory"
    FACTS = (
        Field("bytes", "live_peak", "The most bytes alive at once."),
        Field("name", "at", "The instruction that runs at the peak."),
        Field("count", "steps", "Steps of the schedule."),
        Field("bytes", "xla_peak",
              "The peak as `compiled.memory_analysis()` of a TPU program counts it.",
              label="XLA peak"),
        Field("bytes", "allocated", "What XLA's allocator took, as its file says."),
        Field("bytes", "fragmentation", "What the allocator took beyond the XLA peak.",
              signed=True),
        Field("path", "allocation_file", "The file that says so.", label="allocated in"),
        Field("text", "largest", "The largest value alive at the peak."),
        Field("bytes", "largest_bytes", "Bytes of the largest value."),
        Field("bytes", "next_peak", "The peak if the buffer of the largest value went."),
        Field("name", "next_peak_at", "The instruction that runs there."),
        Field("word", "rule", "By which rule values share memory."),
        Field("word", "sizes", "Which sizes count: device (tiles, padding) or logical."),
        Field("word", "backend", "The backend whose sizes of shapes are meant."),
        Field("text", "memory_space", "The memory space, by its number."),
        Field("word", "constants", "How long constants stay: last_use or program."),
        Field("word", "schedule", "The order: text, post_order or list.", label="order"),
    )  # fmt: skip

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
        self.module = module
        """The module."""
        self._data = data
        self.rule = rule
        self.sizes = sizes
        self.constants = constants
        self.space = space
        self.schedule: str = "text" if schedule is None else schedule
        self.device = device
        self._live: Table | None = None
        self._xla: dict[str, int] | None = None
        self._allocated: MemoryFile | None = None

    @property
    def allocated(self) -> MemoryFile | None:
        """What XLA's allocator took; None where nothing says so.

        A protobuf says it; what `file` reads can be put here.
        """
        content = self.module.buffer_assignment if self._allocated is None else None
        if content is not None:
            try:
                self._allocated = self.file(content)
            except ValueError:
                return None
        return self._allocated

    @allocated.setter
    def allocated(self, file: MemoryFile | None) -> None:
        self._allocated = file

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The peaks, what makes them, and by which rules they are counted."""
        is_bound = bool(self._data.doubts()["unknown_sizes"])
        at, largest, allocated = self.at, self.without_largest(), self.allocated
        peak = self._account().get("peak_memory_in_bytes")
        values: list[tuple[str, Any, str]] = [
            ("live_peak", self.live_peak, "bound" if is_bound else "modelled"),
            ("at", None if at is None else at.name, "modelled"),
            ("steps", len(self._data.sequence()), "exact"),
            ("xla_peak", peak, "modelled"),
        ]
        if allocated is not None and allocated.total_bytes is not None:
            more = None if peak is None else allocated.total_bytes - peak
            values += [("allocated", allocated.total_bytes, "exact")]
            values += [("fragmentation", more, "modelled")]
            if allocated.path is not None:
                values.append(("allocation_file", allocated.path, "exact"))
        if largest:
            row, name = largest["at"], self.module[largest["instruction"]].name
            values += [
                ("largest", _value(name, largest["index"]), "modelled"),
                ("largest_bytes", largest["bytes"], "modelled"),
                ("next_peak", largest["live_peak"], "bound" if is_bound else "modelled"),
                ("next_peak_at", None if row is None else self.module[row].name, "modelled"),
            ]
        rules = {
            "rule": self.rule,
            "sizes": self.sizes,
            "backend": self.backend,
            "memory_space": "all" if self.space is None else str(self.space),
            "constants": "program" if self.rule == "xla" else self.constants,
            "schedule": self.schedule,
        }
        values += [(name, text, "configuration") for name, text in rules.items()]
        return self._facts(values)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the figures rest on and leave out."""
        from hlofast._memory_notes import notes

        return tuple(notes(self))

    def sections(
        self, by: str = "class", at: Instruction | str | int | None = None
    ) -> tuple[Section, ...]:
        """Sums at the peak by `by` (of `KEYS`), the values alive there or at `at`, XLA's account.

        A `KeyError` or a `ValueError` for an instruction that is not there or takes no step.
        """
        return (self._groups(by), self._alive(at), self._accounted())

    def _groups(self, by: str) -> Section:
        grouped = self.by(by)
        title = by.replace("_", " ")
        key = Field("text", "key", "The value that the row is about.", label=title, nullable=True)
        sizes = grouped.values("bytes")
        columns = [(key, grouped.values(by)), (_VALUES, grouped.values("rows"))]
        columns += [(grouped.field(name), grouped.values(name)) for name in ("bytes", "byte_steps")]
        table = Table.of([*columns, (_SHARE, shares(sizes, self.live_peak))])
        return Section("groups", f"At the peak, by {title}", table, ("key", *_GROUPED))

    def _alive(self, at: Instruction | str | int | None) -> Section:
        own = self.live if at is None else self.live_at(at)
        alive = with_source(own)
        texts = zip(*(alive.values(one) for one in ("source", "op_name", "scope")), strict=True)
        pairs = zip(own.values("name"), own.values("index"), strict=True)
        sizes = own.values("bytes")
        added = [
            (_VALUE, [_value(name, index) for name, index in pairs]),
            (_FROM, [source or name or scope for source, name, scope in texts]),
            (_SHARE, shares(sizes, sum(sizes))),
        ]
        columns = [(field, column_of(field, values)) for field, values in added]
        table = Table([*own._described(), *columns])
        where = self.at if at is None else self._instruction(at)
        title = "Alive at the peak" if where is None else f"Alive at {where.name}"
        return Section("live", title, table, _SHOWN)

    def _accounted(self) -> Section:
        account = self._account()
        spaces = {"heap": account.get("heap_memory_space", 0)}
        rows = [
            (part, spaces.get(part, 0), account[f"{part}_size_in_bytes"])
            for part in (_ON_DEVICE if account else ())
        ]
        rows += [
            (part, SPACES["host"], size)
            for part in _ON_HOST
            if (size := account.get(f"{part}_size_in_bytes"))
        ]
        return Section("xla", "XLA's account", of_rows(_ACCOUNT, rows), is_whole=True)

    def _account(self) -> dict[str, int]:
        """`xla`, empty where XLA could not count."""
        try:
            return self.xla
        except (ValueError, OverflowError):
            return {}

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
            self._xla = _core._xla_memory(self.module, table_bytes=table_bytes(self.device))
        return dict(self._xla)

    @property
    def backend(self) -> str:
        """Whose sizes of shapes are meant: cpu or tpu."""
        return self._data.backend

    @property
    def at(self) -> Instruction | None:
        """The instruction that runs at the peak; None for a module without instructions."""
        row = self._data.peak_row
        return None if row is None else self.module[row]

    @property
    def live(self) -> Table:
        """The values alive at the peak, largest first; columns as of `live_at`."""
        if self._live is None:
            self._live = Table(self._data.live(self._data.peak_step))
        return self._live

    def live_at(self, instruction: Instruction | str | int) -> Table:
        """The values alive while `instruction` (or its name or row) runs, largest first.

        `fields` of the table says what the columns are. A `ValueError` if the instruction takes no
        step, as inside a fusion.
        """
        row = self._instruction(instruction).row
        step = self._data.step_of(row)
        if step is None:
            name = self.module[row].name
            raise ValueError(f"{name} takes no step of its own: it is part of a fusion or dead")
        return Table(self._data.live(step))

    def _instruction(self, one: Instruction | str | int) -> Instruction:
        if isinstance(one, _core.Instruction):
            return one
        try:
            return self.module[one]
        except KeyError as error:
            if isinstance(one, str) and not any(own.name == one for own in self.module):
                from hlofast._show import unknown_instruction

                raise unknown_instruction(self.module, one) from error
            raise  # Several have the name.

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
            hint = meant(key, KEYS)
            raise ValueError(f"by is one of {', '.join(KEYS)}, not {key!r}{hint}")
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

    def file(self, content: bytes | str, path: str | None = None) -> MemoryFile:
        """XLA's own account, joined to this module, from the content of one of its files.

        `*-live-range.txt`, `*-buffer-assignment.txt` or `*-memory-usage-report.txt`; `path` is what
        facts call it. A `ValueError` says which line cannot be read, or does not fit this module.
        """
        data = content.encode() if isinstance(content, str) else content
        return MemoryFile(*_core._memory_file(self.module, data), path)

    @property
    def contradictions(self) -> tuple[Note, ...]:
        """What in the module contradicts itself, so that figures are doubtful."""
        from hlofast._memory_notes import contradictions

        return tuple(contradictions(self))

    def __repr__(self) -> str:
        at = self.at
        where = "" if at is None else f" at {at.name}"
        return f"<Memory {self.live_peak:,} B{where}, rule {self.rule}, sizes {self.sizes}>"


def _value(name: str, index: str) -> str:
    """A value as people call it: `while.85{9}`."""
    return name if index == "{}" else f"{name}{index}"


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
    path: str | None
    """Where it was read, as far as that was said."""

    def __init__(
        self,
        kind: str,
        columns: list[tuple[Field, _core.Column | _core.TextColumn]],
        total_bytes: int | None,
        peak_step: int | None,
        peak_bytes: int | None,
        path: str | None = None,
    ) -> None:
        self.kind = kind
        self.table = Table(columns)
        self.total_bytes = total_bytes
        self.peak_step = peak_step
        self.peak_bytes = peak_bytes
        self.path = path

    def __repr__(self) -> str:
        return f"<MemoryFile {self.kind}, {len(self.table)} rows>"
