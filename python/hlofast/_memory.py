"""`Memory`: live bytes and values of a module, in figures, columns and tables."""

from __future__ import annotations

from hlofast import _core, _memory_account
from hlofast._core import Field
from hlofast._fragment import refuse
from hlofast._memory_account import account, beside, hbm_of, packing, table_bytes, value_name
from hlofast._memory_file import MemoryFile
from hlofast._names import meant
from hlofast._result import Fact, Note, Result, Section
from hlofast.table import Table, column_of, shares, with_source

TYPE_CHECKING = False  # The command line analyses memory; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import numpy
    import numpy.typing

    from hlofast._core import Instruction
    from hlofast._memory_data import MemoryData
    from hlofast._module import Module
    from hlofast._policies import Policies
    from hlofast._shares import Shares
    from hlofast.devices import Device

SPACES = {"hbm": 0, "vmem": 1, "host": 5}
"""Names of memory spaces and their numbers in layouts, as TPU programs use them."""
KEYS = ("class", "phase", "scope", "source", "source_file", "op_name", "shape", "opcode", "name")
"""Keys of `Memory.by`; source is file and line."""
RULES = ("in_place", "values", "xla")
"""Rules by which values share memory."""
ORDERS = {
    "text": "text order",
    "post_order": "post-order: operands before users, starting at the unused instructions",
}
_STEP = Field("index", "step", "The step of the schedule.")
_INSTRUCTION = Field("instruction", "instruction", "Row number of the instruction of this step.")
_BYTES = Field("bytes", "bytes", "Live bytes at this step.")
_VALUES = Field("count", "values", "Number of values.", adds_up=True)
_SHARE = Field("ratio", "share", "Share of the live bytes at the step.", nullable=True)
_VALUE = Field("text", "value", "The instruction, and the index into its result.")
_FROM = Field(
    "text", "origin", "Source file and line, otherwise the framework's operation name.",
    label="source", nullable=True,
)  # fmt: skip
_GROUPED = ("values", "bytes", "share")
_SHOWN = ("value", "bytes", "share", "class", "first_step", "last_step", "phase", "shape", "origin")
_ARRAYS = ("parameters", "results", "annotated")
"""Tables of the share of one device before partitioning."""


def space_number(space: int | str | None) -> int | None:
    """Returns the number of a memory space: 0 (main memory) by default, None for all."""
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
    known, hint = ", ".join(SPACES), meant(space, [*SPACES, "all"])
    raise ValueError(f"memory space must be a number, all or one of {known}, not {space!r}{hint}")


def quiet(
    module: Module,
    rule: str = "in_place",
    sizes: str = "device",
    constants: str = "last_use",
    space: int | str | None = None,
    schedule: str | None = None,
    device: str | Device | None = None,
) -> Memory:
    """`Module.memory` without the warning for contradictions, which notes also report."""
    import hlofast._context as known

    refuse(module, "the memory peak")
    # Unknown device names are rejected here, and not only when XLA's account is read.
    device = known.device_for(module, device)
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
    """Live values and the memory peak of a module: `Module.memory()`.

    Steps are the instructions of the entry computation in schedule order; the instructions of
    loops, branches and calls come once, before their caller (as in XLA's `HloLiveRange`).
    `allocated_in_hbm` adds fragmentation, `live_peak` does not.
    """

    VERB = "memory"
    FACTS = (
        Field("bytes", "allocated_in_hbm",
              "Bytes that XLA allocates in HBM: from its file, or else modelled.",
              label="allocated in HBM"),
        Field("bytes", "modelled_peak",
              "Modelled peak of one device, for a module that XLA has not scheduled.",
              label="modelled peak of one device"),
        Field("bytes", "hbm", "Memory that a program may use on a device.", label="HBM"),
        Field("flag", "fits", "Whether the bytes allocated in HBM, or modelled, fit the device.",
              label="fits"),
        Field("bytes", "hbm_left", "HBM minus the allocated or modelled bytes.",
              label="left in HBM", signed=True),
        Field("bytes", "hbm_peak",
              "Parameters, results and constants in HBM, plus the peak of live temporaries.",
              label="HBM peak"),
        Field("bytes", "fragmentation",
              "Bytes allocated in HBM minus the HBM peak: gaps and tables of tuples.",
              signed=True),
        Field("bytes", "fast_peak", "The peak in fast on-chip memory.", label="fast memory peak"),
        Field("bytes", "host_peak", "The peak in the host's memory.", label="host memory peak"),
        Field("bytes", "live_peak", "Maximum of live bytes over the schedule."),
        Field("name", "at", "The instruction that runs at the peak.", label="peak at"),
        Field("count", "steps", "Steps of the schedule."),
        Field("bytes", "xla_peak",
              "The peak that `compiled.memory_analysis()` reports for a TPU program.",
              label="XLA peak"),
        Field("bytes", "undonated",
              "Bytes of parameters that are not donated although results of the same shape replace "
              "them."),
        Field("bytes", "allocated", "Bytes in XLA's file, in all memory spaces.",
              label="allocated in all memories"),
        Field("path", "allocation_file", "The file that gives the allocated bytes.",
              label="allocation file"),
        Field("text", "largest", "The largest value live at the peak.", label="largest value"),
        Field("bytes", "largest_bytes", "Bytes of the largest value.", label="largest value bytes"),
        Field("bytes", "next_peak", "The peak without the buffer of the largest value.",
              label="peak without it"),
        Field("name", "next_peak_at", "The instruction that runs at the peak without the value.",
              label="peak without it at"),
        Field("bytes", "device_argument_bytes", "Bytes of the parameters on one device.",
              label="parameters on one device"),
        Field("bytes", "device_output_bytes", "Bytes of the results on one device.",
              label="results on one device"),
        Field("word", "rule", "The rule by which values share memory."),
        Field("word", "sizes", "Sizes of arrays: device (tiles, padding) or logical."),
        Field("word", "backend", "The backend whose shape sizes are used.", label="shape sizes"),
        Field("text", "memory_space", "The number of the memory space."),
        Field("word", "constants", "Live range of constants: last_use or program."),
        Field("word", "schedule", "The schedule: text or post_order."),
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
        self._before: list[Policies | None] = []
        self._packing: list[tuple[int, int, int] | None] = []
        self._undonated: dict[int, int] | None = None
        self._has_looked = False
        self.unusable_file: str | None = None
        """Why the file with allocations beside the module is not used.

        None if there is no such file.
        """

    @property
    def allocated(self) -> MemoryFile | None:
        """XLA's buffer assignment or memory usage report; None if unknown.

        It comes from a protobuf dump, from a file beside the module's own, or from a file read with
        `file` and assigned here.
        """
        if not self._has_looked:
            self._has_looked = True
            try:
                content, path = self.module.buffer_assignment, self.module.path
                if content is None:
                    content, path = beside(self.module.path)
                self._allocated = None if content is None else self.file(content, path)
            except (OSError, ValueError) as error:
                self.unusable_file = str(error)
        return self._allocated

    @allocated.setter
    def allocated(self, file: MemoryFile | None) -> None:
        self._allocated, self._has_looked, self.unusable_file = file, True, None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The allocated bytes, the peaks, the largest value, and the rules of the count."""
        is_bound = bool(self._data.doubts()["unknown_sizes"])
        at, largest, allocated = self.at, self.without_largest(), self.allocated
        peak = self._account().get("peak_memory_in_bytes")
        values: list[tuple[str, Any, str]] = [
            *self._in_hbm(),
            ("live_peak", self.live_peak, "bound" if is_bound else "modelled"),
            ("at", None if at is None else at.name, "modelled"),
            ("steps", len(self._data.sequence()), "exact"),
            ("xla_peak", peak, "modelled"),
        ]
        if undonated := self.undonated:
            values.append(("undonated", sum(undonated.values()), "modelled"))
        if allocated is not None and allocated.total_bytes is not None:
            values += [("allocated", allocated.total_bytes, "exact")]
            if allocated.path is not None:
                values.append(("allocation_file", allocated.path, "exact"))
        if largest:
            row, name = largest["at"], self.module[largest["instruction"]].name
            values += [
                ("largest", value_name(name, largest["index"]), "modelled"),
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
        own = self._shares()
        if own is not None:
            values.append(("device_argument_bytes", *own.bytes_of(own.parameters)))
            values.append(("device_output_bytes", *own.bytes_of(own.results)))
        values += [(name, text, "configuration") for name, text in rules.items()]
        from hlofast._shares import labelled

        of_one = ("modelled_peak", "hbm", "hbm_left")
        return labelled(self.module, self._facts(values), ("bytes",), of_one)

    def _shares(self) -> Shares | None:
        """The share of one device; None if shapes already are the shapes of one device."""
        from hlofast._shares import shares

        return shares(self.module)

    def _in_hbm(self) -> Iterator[tuple[str, Any, str]]:
        """The bytes allocated in HBM, whether they fit, and the peaks of the three memories."""
        known_parts, needed = self._account(), self.needed
        allocated, how = self.allocated_in_hbm, "modelled" if needed is None else needed[1]
        if allocated is not None:
            yield "allocated_in_hbm", allocated, how
        elif self.peak_before is not None:
            yield "modelled_peak", self.peak_before.peak, "modelled"
        known = self.hbm
        if known is not None and needed is not None:
            yield "hbm", known[0], known[1]
            yield "fits", needed[0] <= known[0], "modelled" if needed[1] == "exact" else needed[1]
            yield "hbm_left", known[0] - needed[0], needed[1]
        if known_parts and self.backend == "tpu":
            yield "hbm_peak", known_parts["hbm_peak_in_bytes"], "modelled"
        if known_parts and allocated is not None:
            yield "fragmentation", allocated - known_parts["hbm_peak_in_bytes"], "modelled"
        if known_parts and self.backend == "tpu":
            yield "fast_peak", known_parts["fast_peak_in_bytes"], "modelled"
            yield "host_peak", known_parts["host_peak_in_bytes"], "modelled"

    @property
    def notes(self) -> tuple[Note, ...]:
        """Assumptions and gaps behind the figures."""
        from hlofast._memory_notes import notes

        return tuple(notes(self))

    def sections(
        self, by: str = "class", at: Instruction | str | int | None = None
    ) -> tuple[Section, ...]:
        """Totals at the peak by `by` (of `KEYS`), live values there or at `at`, XLA's accounting.

        Raises `KeyError` for an unknown instruction and `ValueError` for one without a step.
        """
        from hlofast import _shares

        arrays = _shares.sections(self._shares(), _ARRAYS)
        return (self._groups(by), self._alive(at), account(self), *arrays)

    def every_section(self) -> tuple[Section, ...]:
        """All tables, including tables that only modules before partitioning have."""
        from hlofast import _shares

        shown = (self._groups("class"), self._alive(None), account(self))
        return (*shown, *_shares.sections(_shares.every(self.module), _ARRAYS))

    def _groups(self, by: str) -> Section:
        grouped = self.by(by)
        title = by.replace("_", " ")
        key = Field("text", "key", "The value of the key.", label=title, nullable=True)
        sizes = grouped.values("bytes")
        columns = [(key, grouped.values(by)), (_VALUES, grouped.values("rows"))]
        columns += [(grouped.field(name), grouped.values(name)) for name in ("bytes", "byte_steps")]
        table = Table.of([*columns, (_SHARE, shares(sizes, self.live_peak))])
        return Section(
            "groups", f"At the peak{self._together}, by {title}", table, ("key", *_GROUPED)
        )

    def _alive(self, at: Instruction | str | int | None) -> Section:
        own = self.live if at is None else self.live_at(at)
        alive = with_source(own)
        texts = zip(*(alive.values(name) for name in ("source", "op_name", "scope")), strict=True)
        pairs = zip(own.values("name"), own.values("index"), strict=True)
        sizes = own.values("bytes")
        added = [
            (_VALUE, [value_name(name, index) for name, index in pairs]),
            (_FROM, [source or name or scope for source, name, scope in texts]),
            (_SHARE, shares(sizes, sum(sizes))),
        ]
        columns = [(field, column_of(field, values)) for field, values in added]
        table = Table([*own._described(), *columns])
        where = self.at if at is None else self._instruction(at)
        title = "Live at the peak" if where is None else f"Live at {where.name}"
        return Section("live", f"{title}{self._together}", table, _SHOWN)

    @property
    def _together(self) -> str:
        """Ends what tells of bytes, if they cover all devices together."""
        from hlofast import _shares

        return _shares.TOGETHER if _shares.devices_together(self.module) > 1 else ""

    def _account(self) -> dict[str, int]:
        """`xla`, or an empty dictionary if XLA's memory accounting cannot be computed."""
        try:
            return self.xla
        except (ValueError, OverflowError):
            return {}

    @property
    def live_peak(self) -> int:
        """Maximum of live bytes in the chosen memory space.

        With `rule="values"` these are the live bytes at the step that XLA's live-range file calls
        the peak; `timeline.max()` may be larger.
        """
        return self._data.live_peak

    @property
    def xla_peak(self) -> int:
        """The `compiled.memory_analysis().peak_memory_in_bytes` of a TPU program.

        It adds parameters, results and constants to the largest heap of any memory space, even if
        that heap is in fast memory. Other backends leave the heap out of their figure. Compare
        `allocated_in_hbm` with the memory of a device, not this figure.
        """
        return self.xla["peak_memory_in_bytes"]

    @property
    def hbm_peak(self) -> int:
        """The peak in HBM: parameters, results, constants, and the temporaries live at once."""
        return self.xla["hbm_peak_in_bytes"]

    @property
    def fast_peak(self) -> int:
        """The peak in fast on-chip memory."""
        return self.xla["fast_peak_in_bytes"]

    @property
    def host_peak(self) -> int:
        """The peak in the host's memory: parameters and results there, and temporaries."""
        return self.xla["host_peak_in_bytes"]

    @property
    def allocated_in_hbm(self) -> int | None:
        """Bytes that XLA allocates in HBM; None if unknown.

        They come from XLA's buffer assignment or memory usage report, if `allocated` has one. For
        other scheduled TPU programs they are modelled: `hbm_peak`, the fragmentation of the heap as
        XLA packs it, and the pointer tables of tuples.
        """
        if self.allocated is not None and self.allocated.default_bytes is not None:
            return self.allocated.default_bytes
        if not self._packing:
            self._packing.append(packing(self.module, self.device))
        parts = self._packing[0]
        peak = self._account().get("hbm_peak_in_bytes")
        return None if parts is None or peak is None else peak + parts[1] + parts[2]

    @property
    def fragmentation(self) -> int | None:
        """`allocated_in_hbm` minus `hbm_peak`; None if unknown."""
        allocated, peak = self.allocated_in_hbm, self._account().get("hbm_peak_in_bytes")
        return None if allocated is None or peak is None else allocated - peak

    @property
    def peak_before(self) -> Policies | None:
        """The model whose `peak` one device needs, of a module that is not scheduled.

        None if the module is scheduled, if a file of XLA gives the allocated bytes, or if no model
        covers the module.
        """
        if not self._before:
            known = None if self.allocated_in_hbm is not None else _memory_account.before(self)
            self._before.append(known)
        return self._before[0]

    @property
    def needed(self) -> tuple[int, str] | None:
        """Bytes to compare with the memory of a device, and their provenance.

        `allocated_in_hbm` where it is known; for TPU programs whose heap cannot be packed
        `hbm_peak`, a bound; before XLA has scheduled the module `peak_before.peak`; otherwise
        `live_peak`. None if the live peak counts all devices together, or another memory space.
        """
        return _memory_account.needed(self)

    @property
    def hbm(self) -> tuple[int, str] | None:
        """Bytes that a program may use on the device, and their provenance; None if unknown."""
        from hlofast import devices

        return hbm_of(self.module, None if self.device is None else devices.get(self.device))

    @property
    def xla(self) -> dict[str, int]:
        """XLA's memory accounting in bytes, under the names of `CompiledMemoryStats`.

        It adds `constant_size_in_bytes`, the heap that the peak counts (`heap_size_in_bytes`,
        `heap_memory_space`), and the heaps and peaks of each memory (`hbm_peak_in_bytes`,
        `fast_peak_in_bytes`, `host_peak_in_bytes`).
        """
        if self._xla is None:
            self._xla = _core._xla_memory(self.module, table_bytes=table_bytes(self.device))
        return dict(self._xla)

    @property
    def undonated(self) -> dict[int, int]:
        """Bytes of the parameters that could be donated and are not, by row.

        A result of the same shape and layout is computed from each of these parameters, as new
        state from old state. Donation (`donate_argnums` of `jax.jit`) lets the result take the
        parameter's memory.
        """
        if self._undonated is None:
            self._undonated = {}
            for row, size in self._data.donatable():
                self._undonated[row] = self._undonated.get(row, 0) + size
        return dict(self._undonated)

    @property
    def backend(self) -> str:
        """The backend whose shape sizes are used: cpu or tpu."""
        return self._data.backend

    @property
    def at(self) -> Instruction | None:
        """The instruction that runs at the peak; None for a module without instructions."""
        row = self._data.peak_row
        return None if row is None else self.module[row]

    @property
    def live(self) -> Table:
        """The values live at the peak, largest first; columns as in `live_at`."""
        if self._live is None:
            self._live = Table(self._data.live(self._data.peak_step))
        return self._live

    def live_at(self, instruction: Instruction | str | int) -> Table:
        """Returns the values live while `instruction` (or its name or row) runs, largest first.

        The table's `fields` describe the columns. Raises `ValueError` if the instruction has no
        step of its own, as inside a fusion.
        """
        row = self._instruction(instruction).row
        step = self._data.step_of(row)
        if step is None:
            name = self.module[row].name
            raise ValueError(f"{name} has no step of its own: it is inside a fusion or dead")
        return Table(self._data.live(step))

    def _instruction(self, wanted: Instruction | str | int) -> Instruction:
        if isinstance(wanted, _core.Instruction):
            return wanted
        try:
            return self.module[wanted]
        except KeyError as error:
            if isinstance(wanted, str) and not any(own.name == wanted for own in self.module):
                from hlofast._show import unknown_instruction

                raise unknown_instruction(self.module, wanted) from error
            raise  # Several instructions share the name.

    def values(self) -> Table:
        """Returns every value, by step; columns as in `live_at`."""
        return Table(self._data.live())

    @property
    def timeline(self) -> numpy.typing.NDArray[numpy.int64]:
        """Live bytes at each step: a read-only int64 array of one entry per step."""
        import numpy

        array: numpy.typing.NDArray[numpy.int64] = numpy.asarray(self._data.timeline())
        return array

    def steps(self) -> Table:
        """Returns one row per step: step, instruction (row), live bytes."""
        timeline = self._data.timeline()
        return Table(
            [
                (_STEP, column_of(_STEP, range(len(timeline)))),
                (_INSTRUCTION, self._data.sequence()),
                (_BYTES, timeline),
            ]
        )

    def by(self, key: str) -> Table:
        """Returns live bytes at the peak by `key`, largest first.

        Keys: `class`, `phase`, `scope`, `source` (file and line), `source_file`, `op_name`,
        `shape`, `opcode`, `name`; raises `ValueError` for another. Columns: the key, rows (number
        of values), bytes, byte_steps.
        """
        if key not in KEYS:
            hint = meant(key, KEYS)
            raise ValueError(f"by must be one of {', '.join(KEYS)}, not {key!r}{hint}")
        table = self.live
        if key == "source":
            table = with_source(table)
        return table.by(key, totals=("bytes", "byte_steps")).sort_by("bytes", descending=True)

    def without_largest(self) -> dict[str, Any]:
        """Returns the peak without the largest buffer that is live there.

        Keys: `instruction` (the row that produces the buffer), `index` (the index into its result,
        such as `{9}`) and `bytes` of the buffer; `live_peak` and `at` (a row or None) without it.
        The dictionary is empty if no value is live.
        """
        if not len(self.live):
            return {}
        largest = self.live.row(0)
        peak, row = self._data.peak_without(largest["buffer"])
        own = {key: largest[key] for key in ("instruction", "index", "bytes")}
        return own | {"live_peak": peak, "at": row}

    def file(self, content: bytes | str, path: str | None = None) -> MemoryFile:
        """Reads the content of one of XLA's memory files and joins it to this module.

        The files are `*-live-range.txt`, `*-buffer-assignment.txt` and
        `*-memory-usage-report.txt`; `path` is the name shown in facts. Raises `ValueError` with the
        line that cannot be read or does not fit this module.
        """
        data = content.encode() if isinstance(content, str) else content
        return MemoryFile(*_core._memory_file(self.module, data), path)

    @property
    def contradictions(self) -> tuple[Note, ...]:
        """Contradictions in the module that make figures doubtful."""
        import hlofast._memory_notes as own

        return tuple(own.contradictions(self))

    def __reduce__(self) -> tuple[object, ...]:
        chosen = (self.rule, self.sizes, self.constants, self.space, self.schedule, self.device)
        known = {"_allocated": self.allocated, "_has_looked": True}
        return quiet, (self.module, *chosen), known | {"unusable_file": self.unusable_file}

    def __repr__(self) -> str:
        at = self.at
        where = "" if at is None else f" at {at.name}"
        return f"<Memory {self.live_peak:,} B{where}, rule {self.rule}, sizes {self.sizes}>"
