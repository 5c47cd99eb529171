"""`Cost`: FLOPs and bytes of a module, in totals, columns and tables."""

from __future__ import annotations

from _collections_abc import Iterable, Mapping
from os import PathLike

from hlofast import _core, _fragment
from hlofast._core import Field
from hlofast._cost_facts import FACTS
from hlofast._custom_calls import stated
from hlofast._names import unknown
from hlofast._result import Result
from hlofast._units import read_rate, read_seconds
from hlofast._utilization import Utilization, of_cost
from hlofast.errors import ContextError
from hlofast.table import Table

TYPE_CHECKING = False  # The command line counts costs; importing typing would slow its start.
if TYPE_CHECKING:
    from typing import Any

    import numpy
    import numpy.typing

    from hlofast._custom_calls import CustomCallFunction
    from hlofast._matmuls import Matmuls
    from hlofast._module import Module
    from hlofast._result import Fact, Note, Section
    from hlofast.devices import Device

    Rules = Iterable[tuple[str, str]] | str | PathLike[str]


def read_rules(rules: Rules) -> list[tuple[str, str]]:
    """Returns pairs of pattern and phase from an iterable or a TOML file.

    Each rule of the file is a table: `[[rule]]`, `pattern = "regular expression"`,
    `phase = "forward"`.
    """
    if not isinstance(rules, (str, PathLike)):
        return [(pattern, phase) for pattern, phase in rules]
    from hlofast._toml import read_file, read_tables

    document = read_tables(*read_file(rules))
    unknown = set(document) - {"rule"}
    if unknown:
        raise ValueError(f"{rules}: unknown keys: {', '.join(sorted(unknown))}")
    read = []
    tables = document.get("rule", [])
    if not isinstance(tables, list):
        raise ValueError(f"{rules}: `rule` must be an array of tables, written [[rule]]")
    for number, rule in enumerate(tables, 1):
        if not isinstance(rule, dict) or set(rule) != {"pattern", "phase"}:
            raise ValueError(f"{rules}: rule {number} needs exactly pattern and phase")
        if not all(isinstance(text, str) for text in rule.values()):
            raise ValueError(f"{rules}: pattern and phase of rule {number} must be strings")
        read.append((rule["pattern"], rule["phase"]))
    return read


_COLUMNS = (
    Field("flops", "flops", "FLOPs of one execution.", label="FLOP"),
    Field("count", "transcendentals", "Transcendental functions of one execution."),
    Field("bytes", "bytes_accessed", "Bytes that one execution reads and writes."),
    Field("bytes", "bytes_read", "Bytes that one execution reads from HBM."),
    Field("bytes", "bytes_written", "Bytes that one execution writes to HBM."),
    Field("count", "multiplicity", "Calls per step.", label="calls", nullable=True),
    Field("word", "provenance", "How the FLOPs are known."),
    Field("word", "phase", "Forward, backward, recompute, optimizer or unattributed."),
    Field("scope", "scope", "Framework scope (name stack).", nullable=True),
)


class CostColumns(Mapping[str, "numpy.typing.NDArray[Any]"]):
    """Read-only NumPy arrays with one entry per instruction, as attributes and as items.

    - `flops`, `transcendentals`, `bytes_accessed`, `bytes_read`, `bytes_written`: int64, per
      execution. The last two cover memory space 0 and are absent with `xla=True`.
    - `multiplicity`: int64, how often the totals count the instruction's FLOPs and
      transcendentals; -1 beyond 64 bits. Bytes count only for executions outside fusions.
    - `provenance`: uint8, how the FLOPs are known; index into `hlofast.provenances`.
    - `phase`: uint8, index into `hlofast.phases`.
    - `scope`: uint32, index into `Cost.scopes`.
    """

    __slots__ = ("_arrays", "_data", "_names", "fields")

    def __init__(self, data: _core.CostData, is_xla: bool) -> None:
        self._data = data
        split = ("bytes_read", "bytes_written")
        self.fields = tuple(field for field in _COLUMNS if not (is_xla and field.name in split))
        """Description of each column."""
        self._names = tuple(field.name for field in self.fields)
        self._arrays: dict[str, numpy.typing.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> numpy.typing.NDArray[Any]:
        array = self._arrays.get(name)
        if array is None:
            import numpy

            if name not in self._names:
                raise unknown("column", name, self._names)
            array = self._arrays.setdefault(name, numpy.asarray(self._data.column(name)))
        return array

    def __getattr__(self, name: str) -> numpy.typing.NDArray[Any]:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no column {name!r}") from None

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names]

    def __repr__(self) -> str:
        return f"<CostColumns: {', '.join(self._names)}>"


class Cost(Result):
    """The cost of a module: `Module.cost()`.

    As executed (the default): loop bodies count once per iteration, library calls and kernels
    count where their cost is known, and an instruction's figures exclude the computations it
    calls. With `xla=True`: the figures of XLA's `HloCostAnalysis`, where an instruction includes
    the computations it calls and a loop counts once.
    """

    __slots__ = (
        "_asked", "_columns", "_data", "_matmuls", "_peak_flops", "_scopes", "_totals", "module",
        "xla",
    )  # fmt: skip

    VERB = "cost"
    FACTS = FACTS

    def __init__(
        self,
        module: Module,
        data: _core.CostData,
        xla: bool,
        peak_flops: float | None = None,
        asked: tuple[object, ...] = (),
    ) -> None:
        self.module = module
        """The module."""
        self.xla = xla
        """Whether the figures follow XLA's `HloCostAnalysis`."""
        self._peak_flops = peak_flops
        self._asked = asked
        self._data = data
        self._totals = data.totals()
        self._columns: CostColumns | None = None
        self._matmuls: Matmuls | None = None
        self._scopes: tuple[str, ...] | None = None

    @property
    def backend(self) -> str:
        """The backend whose shape sizes were used: cpu, gpu or tpu."""
        return self._data.backend

    @property
    def flops(self) -> int | float:
        """FLOPs of one run of the module, without transcendentals.

        With `float32=True`, summed in 32-bit floats as XLA does.
        """
        floats = self._data.float32_totals()
        return self._totals[0] if floats is None else floats[0]

    @property
    def transcendentals(self) -> int | float:
        """Transcendental functions of one run of the module."""
        floats = self._data.float32_totals()
        return self._totals[1] if floats is None else floats[1]

    @property
    def bytes_accessed(self) -> int | float:
        """Bytes read and written in all memory spaces by one run of the module."""
        floats = self._data.float32_totals()
        return sum(self._totals[2:]) if floats is None else floats[2]

    @property
    def bytes_read(self) -> int | None:
        """Bytes read from memory space 0 (HBM); None with `xla=True`."""
        return None if self.xla else self._totals[2]

    @property
    def bytes_written(self) -> int | None:
        """Bytes written to memory space 0 (HBM); None with `xla=True`."""
        return None if self.xla else self._totals[3]

    @property
    def step_seconds(self) -> float | None:
        """The measured step time in the module's context or its profile; None without one."""
        from hlofast._context import told_in

        told = told_in(self.module)
        if told is None or told.profile is None:
            return None if told is None else told.step_seconds
        return self.module.context.step_seconds

    @property
    def peak_flops(self) -> float | None:
        """FLOP/s of a device: the given figure, or the bfloat16 peak of the context's device."""
        if self._peak_flops is None and (device := self.module.context.device) is not None:
            return device.per_jax_device("flops.bf16")
        return self._peak_flops

    @property
    def columns(self) -> CostColumns:
        """The figures of every instruction as NumPy arrays."""
        if self._columns is None:
            self._columns = CostColumns(self._data, self.xla)
        return self._columns

    @property
    def scopes(self) -> tuple[str, ...]:
        """Full scope names, indexed by `columns.scope`.

        Prefixes that hold no instruction are empty strings, so that indices stay valid. Names over
        4,096 bytes of UTF-8 are truncated and end in an ellipsis.
        """
        if self._scopes is None:
            self._scopes = tuple(self._data.scopes())
        return self._scopes

    @property
    def scopes_are_merged(self) -> bool:
        """Whether there were too many call sites to separate their scopes.

        If so, the operations of a called computation are listed under one of its call sites.
        """
        return self._data.is_merged

    def by(self, key: str, *, depth: int = 3) -> Table:
        """Returns totals by `key`; raises `KeyError` for an unknown key.

        Keys: phase, scope (the first `depth` components), source (file and line), source_file,
        opcode, dtype (of the result) and computation.

        Columns: the key, instructions (of the text, each once), flops, transcendentals and
        bytes_accessed; without `xla=True` also bytes_read and bytes_written (memory space 0),
        other_bytes_read and other_bytes_written (other spaces), and exact_flops: FLOPs that are
        not modelled, not from a library's configuration and not inside a loop of unknown trip
        count (`flops_by_provenance["exact"]` in total). Every execution is in exactly one row, so
        columns add up to the module's totals. The FLOPs of a fusion belong to the instructions
        inside it, its bytes to the fusion.
        """
        if depth < 0:
            raise ValueError(f"depth must not be negative: {depth}")
        try:
            return Table(self._data.group(key, min(depth, 2**32 - 1)))
        except KeyError:
            from hlofast._cost_sections import KEYS

            raise unknown("key", key, KEYS) from None

    @property
    def computations(self) -> Table:
        """Cost of one execution of each computation, callees included, and its multiplicity.

        The multiplicity is how often the totals count the computation.
        """
        return Table(self._data.computations())

    @property
    def loops(self) -> Table:
        """The loops: instruction, name, trip_count, provenance, reason, multiplicity.

        A loop of unknown trip count counts as one iteration. `multiplicity` is the call count of
        the loop instruction.
        """
        return Table(self._data.loops())

    @property
    def branches(self) -> Table:
        """The branches of conditionals with the cost of one execution.

        The totals count the branch with the most FLOPs (`is_counted`); in a tie, the first.
        """
        return Table(self._data.branches())

    @property
    def unpriced(self) -> Table:
        """Custom calls of unknown FLOPs: target, instructions, executions, instruction.

        One row per target; `instruction` is the first call to it.
        """
        return Table(self._data.unpriced())

    @property
    def unknown(self) -> numpy.typing.NDArray[Any]:
        """Row numbers of instructions whose FLOPs (except custom calls) or bytes are unknown.

        The causes are unbounded shapes, unreadable attributes and unknown opcodes.
        """
        import numpy

        return numpy.asarray(self._data.unknown_rows())

    @property
    def unknown_products(self) -> numpy.typing.NDArray[Any]:
        """Row numbers of matmuls and convolutions of unknown size, which `matmuls` cannot list.

        These are dots, ragged dots, scaled dots and convolutions whose shapes or attributes give no
        size, and library matmuls whose operands or configuration are not understood and for which
        no registered function states FLOPs.
        """
        import numpy

        return numpy.asarray(self._data.unknown_products())

    @property
    def dead(self) -> numpy.typing.NDArray[Any]:
        """Row numbers of dead instructions, whose results are not used.

        They are counted, as in XLA's cost analysis, although the compiler removes dead code before
        the program runs.
        """
        import numpy

        return numpy.asarray(self._data.dead_rows())

    @property
    def memory_spaces(self) -> Table:
        """Bytes read and written by memory space: `S(n)` of the layout, 0 without a layout."""
        return Table(self._data.memory_spaces())

    @property
    def flops_by_provenance(self) -> dict[str, int]:
        """FLOPs by provenance; the values add up to `flops`.

        - exact, from_backend_config, modelled: the source of the FLOPs of one execution; the call
          count is known.
        - unknown: the counted part of instructions whose FLOPs are not fully known; a lower bound,
          often 0.
        - unknown_trip_count: FLOPs inside loops of unknown trip count, counted for one iteration,
          whatever the provenance of one execution.
        - assumed: FLOPs of branches, where another branch has another number and the one with the
          most is assumed to run; and of kernels known by name whose mask is assumed.
        """
        return dict(self._data.flops_by_provenance())

    def explain(self) -> Table:
        """Why the figures differ from XLA's: rule, xla, executed, instructions.

        Each row has a rule, XLA's way of counting, hlofast's way of counting, and the number of
        affected instructions.
        """
        return Table(self._data.explain())

    def matmuls(self) -> Matmuls:
        """`Module.matmuls()` with the phases and multiplicities of this count.

        `is_lower_bound` marks matmuls whose call count may be higher: inside loops of unknown trip
        count, which count once, and beyond 64 bits. `unknown_products` are not included.
        """
        if self._matmuls is None:
            import hlofast._matmuls as own

            endless = self._data.endless_loops()
            unknown = self._data.unknown_products().tolist()
            columns = self._data.matmuls()
            if self.module._told is not None and not self.xla:
                from hlofast._profile_columns import with_matmuls

                columns = with_matmuls(self.module, columns)
            self._matmuls = own.Matmuls(self.module, columns, unknown, endless)
        return self._matmuls

    def cost_analysis(self) -> dict[str, float]:
        """Returns the dictionary of JAX's `cost_analysis()`; as in JAX, zeros are left out.

        With `xla=True` it has XLA's keys: flops, transcendentals, `bytes accessed`,
        `optimal_seconds` (as from a client without a device: -1 per custom call), and sums over
        instructions by operand and result: `bytes accessed0{}` and `utilization0{}` for first
        operands, `bytes accessedout{}` for results, `bytes accessedout{1}` for the bytes that
        fusions and infeeds write to the second element of a tuple, and so on. The sums are 32-bit
        floats with `float32=True`, otherwise 64-bit floats. They are left out when nested calls
        would produce more of them than can be computed in time linear in the text; compilers do not
        write such modules.

        With TPU sizes the figures are libtpu's for v5e, except `optimal_seconds` (libtpu knows the
        rates of its devices) and bytes that `cost` counts differently.

        As executed it has only flops, transcendentals and `bytes accessed`: the sums by operand
        exist only in XLA's way of counting.
        """
        floats = self._data.float32_totals()
        seconds = self._data.optimal_seconds if floats is None else floats[3]
        figures = {
            "flops": float(self.flops),
            "transcendentals": float(self.transcendentals),
            "bytes accessed": float(self.bytes_accessed),
            "optimal_seconds": float(seconds),
        }
        if self.xla:
            figures.update(self._data.operand_sums() or ())
        return {name: value for name, value in figures.items() if value}

    def mfu(
        self,
        step_seconds: float | str | None = None,
        peak_flops: float | str | None = None,
        *,
        device: Device | None = None,
    ) -> Utilization:
        """Returns the model FLOPs utilization of a device that runs a step in `step_seconds`.

        The default of `step_seconds` is the context's. The peak is `peak_flops` in FLOP/s, for all
        operations; without it, the peaks of `device` or of the context's device by element type;
        without a device, `Cost.peak_flops`.

        MFU = FLOPs / (seconds * peak), as defined for PaLM (Chowdhery et al., 2022, appendix B),
        but from the operations in the program instead of a formula. HFU includes recomputation,
        and matmuls that the compiler copied into several fusions (`repeated_matmul_flops`).
        With peaks by element type, MFU = sum of (FLOPs of a type / its peak) / seconds: a matmul
        counts at the peak of the type that it multiplies, all else at the bfloat16 peak. Then
        `Utilization.peak_flops` is FLOPs over ideal seconds.

        The FLOPs of a module that is not partitioned yet cover all devices and are divided by
        their number. Unknown FLOPs are missing: see `Utilization.is_lower_bound`. Raises
        `ValueError` if `step_seconds` or `peak_flops` is not positive, with `xla=True`, where loops
        count once, and for a module that is not partitioned yet and writes no shardings: how much
        work its devices repeat is unknown.
        """
        step_seconds = self.step_seconds if step_seconds is None else read_seconds(step_seconds)
        if peak_flops is not None:
            peak_flops, device = read_rate(peak_flops), None
        elif device is not None:
            peak_flops = device.per_jax_device("flops.bf16")
        else:
            peak_flops = self.peak_flops
            device = None if self._peak_flops is not None else self.module.context.device
        if step_seconds is None or peak_flops is None:
            raise ContextError("mfu needs step_seconds, and peak_flops or a device in the context")
        if self.xla:
            raise ValueError("mfu needs a count as executed: call cost() without xla=True")
        _fragment.refuse(self.module, "the MFU")
        if self.refuses_mfu:
            from hlofast._shares import refusal

            raise ValueError(f"{refusal(self.module)}, and no shardings are written")
        return of_cost(self, step_seconds, peak_flops, device)

    @property
    def repeated_matmul_flops(self) -> int:
        """FLOPs of matmuls that the compiler copied into several fusions, without the first ones.

        They run, so they count in `flops` and in HFU, but not in MFU.
        """
        from hlofast._cost_facts import flops_of_copies

        return flops_of_copies(self)

    @property
    def refuses_mfu(self) -> bool:
        """Whether the share of one device is unknown, or the text is a fragment of a step.

        The share is unknown if shapes cover all devices and no shardings are written.
        """
        from hlofast._shares import shares

        if self.module.is_fragment:
            return True

        own = shares(self.module)
        return own is not None and not own.is_written

    def _devices(self) -> int:
        """Number of devices that share the FLOPs of this module."""
        from hlofast._shares import devices_together

        return devices_together(self.module)

    @property
    def misses_flops(self) -> bool:
        """Whether executed instructions have unknown FLOPs.

        They are inside a loop of unknown trip count, which counts once, or their cost is unknown
        and counts as 0.
        """
        if self.flops_by_provenance["unknown_trip_count"]:
            return True
        if any(self.unpriced.values("executions")) or self.misses_bytes:
            return True
        times = self._data.column("multiplicity")
        return any(times[row] for row in self._data.unknown_products().tolist())

    @property
    def misses_bytes(self) -> bool:
        """Whether executed instructions move an unknown number of bytes."""
        loops = zip(self.loops.values("trip_count"), self.loops.values("multiplicity"), strict=True)
        if any(trips is None and runs != 0 for trips, runs in loops):
            return True
        if None in self.computations.values("multiplicity"):
            return True
        times = self._data.column("multiplicity")
        return any(times[row] for row in self._data.unknown_rows().tolist())

    def table(self) -> Table:
        """The instruction table of the module with the columns of this count."""
        columns = _core._instruction_columns(self.module)
        words = {"provenance": _core.provenances, "phase": _core.phases, "scope": self.scopes}
        for field in self.columns.fields:
            column = self._data.column(field.name)
            texts = list(words.get(field.name, ()))
            columns.append((field, _core.TextColumn(texts, column) if texts else column))
        return Table(columns)

    def __reduce__(self) -> tuple[object, ...]:
        return cost, (self.module, *self._asked)

    def __repr__(self) -> str:
        way = "as XLA counts" if self.xla else "as executed"
        sums = f"{self.flops:,} FLOPs, {self.transcendentals:,} transcendentals"
        return f"<Cost of {self.module.name} {way}: {sums}, {self.bytes_accessed:,} bytes>"

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Totals, and MFU and HFU if the step time and a device are known."""
        from hlofast._cost_facts import values
        from hlofast._shares import labelled

        return labelled(self.module, self._facts(values(self)), ("flops", "bytes"))

    @property
    def notes(self) -> tuple[Note, ...]:
        """Assumptions and gaps behind the figures."""
        from hlofast._cost_facts import notes

        return (*_fragment.notes(self.module), *notes(self))

    def sections(
        self, by: str = "phase", *, depth: int = 3, explain: bool = False
    ) -> tuple[Section, ...]:
        """Totals by `by` (scopes to `depth`), loops, branches and unknown costs.

        `explain` adds XLA's totals, and where and why they differ.
        """
        from hlofast._cost_sections import sections

        return tuple(sections(self, by, depth, explain))

    def every_section(self) -> tuple[Section, ...]:
        """All tables, including tables without rows."""
        from hlofast._cost_sections import sections

        return tuple(sections(self, "phase", 3, True, all_of_them=True))


def cost(
    module: Module,
    xla: bool,
    backend: str | None,
    float32: bool,
    custom_calls: Mapping[str, CustomCallFunction] | None,
    rules: Rules | None,
    peak_flops: float | str | None = None,
) -> Cost:
    """`Module.cost`."""
    if float32 and not xla:
        raise ValueError("float32=True needs xla=True")
    peak = None if peak_flops is None else read_rate(peak_flops)
    data = _core._cost(
        module,
        xla=xla,
        backend=backend,
        float32=float32,
        custom_calls=None if xla else stated(module, custom_calls),
        rules=None if rules is None else read_rules(rules),
    )
    return Cost(module, data, xla, peak, (xla, backend, float32, custom_calls, rules, peak))
