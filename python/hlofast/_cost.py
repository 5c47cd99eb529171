"""`Cost`: what `Module.cost` counts, in totals, columns and tables."""

from __future__ import annotations

from _collections_abc import Iterable, Mapping
from os import PathLike

from hlofast import _core
from hlofast._core import Field
from hlofast._cost_facts import FACTS
from hlofast._custom_calls import stated
from hlofast._names import unknown
from hlofast._result import Result
from hlofast._units import read_rate, read_seconds
from hlofast._utilization import Utilization
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

    Rules = Iterable[tuple[str, str]] | str | PathLike[str]


def read_rules(rules: Rules) -> list[tuple[str, str]]:
    """Pairs of pattern and phase: given as such, or read from a TOML file.

    Its form is `[[rule]]` / `pattern = "regular expression"` / `phase = "forward"`.
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
        raise ValueError(f"{rules}: rules are written [[rule]]")
    for number, rule in enumerate(tables, 1):
        if not isinstance(rule, dict) or set(rule) != {"pattern", "phase"}:
            raise ValueError(f"{rules}: rule {number} needs exactly pattern and phase")
        if not all(isinstance(text, str) for text in rule.values()):
            raise ValueError(f"{rules}: pattern and phase of rule {number} are texts")
        read.append((rule["pattern"], rule["phase"]))
    return read


_COLUMNS = (
    Field("flops", "flops", "FLOPs of one execution.", label="FLOP"),
    Field("count", "transcendentals", "Transcendental functions of one execution."),
    Field("bytes", "bytes_accessed", "Bytes that one execution reads and writes."),
    Field("bytes", "bytes_read", "Bytes that one execution reads from HBM."),
    Field("bytes", "bytes_written", "Bytes that one execution writes to HBM."),
    Field("count", "multiplicity", "Executions in one step.", label="calls", nullable=True),
    Field("word", "provenance", "How the FLOPs are known."),
    Field("word", "phase", "Forward, backward, recompute, optimizer or other."),
    Field("scope", "scope", "The scopes of the framework around it.", nullable=True),
)


class CostColumns(Mapping[str, "numpy.typing.NDArray[Any]"]):
    """Read-only NumPy arrays with one entry per instruction, as attributes and as items.

    `flops`, `transcendentals`, `bytes_accessed`, `bytes_read`, `bytes_written` (int64, of one
    execution; the last two of memory space 0, and not in XLA's way of counting), `multiplicity`
    (int64: how often the totals count the FLOPs and transcendentals of the instruction; -1 beyond
    64 bits; its bytes count only in executions outside fusions), `provenance` (uint8: position in
    `hlofast.provenances`, of the FLOPs), `phase` (uint8: position in `hlofast.phases`), `scope`
    (uint32: position in `Cost.scopes`).
    """

    __slots__ = ("_arrays", "_data", "_names", "fields")

    def __init__(self, data: _core.CostData, is_xla: bool) -> None:
        self._data = data
        split = ("bytes_read", "bytes_written")
        self.fields = tuple(field for field in _COLUMNS if not (is_xla and field.name in split))
        """What each column is."""
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

    As executed (the default): loops count as often as they run, library calls and kernels as far
    as they are known, each instruction by itself. With `xla=True`: what XLA's `HloCostAnalysis`
    says, where an instruction contains what it calls and a loop counts once.
    """

    __slots__ = (
        "_columns", "_data", "_matmuls", "_peak_flops", "_scopes", "_totals", "module", "xla",
    )  # fmt: skip

    VERB = "cost"
    FACTS = FACTS

    def __init__(
        self, module: Module, data: _core.CostData, xla: bool, peak_flops: float | None = None
    ) -> None:
        self.module = module
        """The module."""
        self.xla = xla
        """Whether it was counted as XLA does."""
        self._peak_flops = peak_flops
        self._data = data
        self._totals = data.totals()
        self._columns: CostColumns | None = None
        self._matmuls: Matmuls | None = None
        self._scopes: tuple[str, ...] | None = None

    @property
    def backend(self) -> str:
        """Whose sizes of shapes were used: cpu, gpu or tpu."""
        return self._data.backend

    @property
    def flops(self) -> int | float:
        """Operations of one run of the module, transcendentals apart.

        With `float32=True` the number XLA's 32-bit additions give.
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
        """Bytes read from memory space 0 (HBM); None in XLA's way of counting."""
        return None if self.xla else self._totals[2]

    @property
    def bytes_written(self) -> int | None:
        """Bytes written to memory space 0 (HBM); None in XLA's way of counting."""
        return None if self.xla else self._totals[3]

    @property
    def step_seconds(self) -> float | None:
        """How long a step took, as the context says."""
        from hlofast._context import told_in

        told = told_in(self.module)
        return None if told is None else told.step_seconds

    @property
    def peak_flops(self) -> float | None:
        """FLOP per second of a device: as given, or of the context's device for 16-bit floats."""
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
        """The scopes that `columns.scope` numbers: full operation names.

        Prefixes that no instruction is in are empty texts, which keep the numbers. A text is at
        most 4,096 bytes of UTF-8 long; what is longer is cut and ends in an ellipsis.
        """
        if self._scopes is None:
            self._scopes = tuple(self._data.scopes())
        return self._scopes

    @property
    def scopes_are_merged(self) -> bool:
        """Whether call sites were too many to tell their scopes apart.

        The operations of the computations called then stand under one call site each.
        """
        return self._data.is_merged

    def by(self, key: str, *, depth: int = 3) -> Table:
        """Totals by `key`.

        Keys: phase, scope (the first `depth` components), source (file and line), source_file,
        opcode, dtype (of the result) and computation.

        Columns: the key, instructions (of the text, each once), flops, transcendentals,
        bytes_accessed, and unless counted as XLA does bytes_read and bytes_written (memory space
        0), other_bytes_read, other_bytes_written (other spaces) and exact_flops: of the FLOPs those
        that are neither modelled nor stated nor inside a loop of unknown trip count
        (`flops_by_provenance["exact"]` in all). Every execution is in exactly one row, so columns
        add up to the module. The FLOPs of a fusion belong to the instructions
        inside it, its bytes to the fusion. A `KeyError` for other keys.
        """
        if depth < 0:
            raise ValueError(f"depth is {depth}")
        try:
            return Table(self._data.group(key, min(depth, 2**32 - 1)))
        except KeyError:
            from hlofast._cost_sections import KEYS

            raise unknown("key", key, KEYS) from None

    @property
    def computations(self) -> Table:
        """One execution of each computation with all that it calls, and its multiplicity.

        The multiplicity is how often the totals count it.
        """
        return Table(self._data.computations())

    @property
    def loops(self) -> Table:
        """The loops: instruction, name, trip_count, provenance, reason, multiplicity.

        A loop of unknown trip count counts once; the multiplicity is that of
        the loop instruction.
        """
        return Table(self._data.loops())

    @property
    def branches(self) -> Table:
        """The branches of conditionals with the cost of one execution.

        The totals count the branch with the most FLOPs (`is_counted`), the first among equals.
        """
        return Table(self._data.branches())

    @property
    def unpriced(self) -> Table:
        """Custom calls whose FLOPs are not known: target, instructions, executions, instruction.

        One row per target; `instruction` is the first of its rows.
        """
        return Table(self._data.unpriced())

    @property
    def unknown(self) -> numpy.typing.NDArray[Any]:
        """Row numbers of instructions whose FLOPs (custom calls apart) or bytes are unknown.

        That are shapes without bounds, attributes that cannot be read, unknown opcodes.
        """
        import numpy

        return numpy.asarray(self._data.unknown_rows())

    @property
    def unknown_products(self) -> numpy.typing.NDArray[Any]:
        """Row numbers of matrix products and convolutions whose size is not known.

        `matmuls` cannot list them: dots, ragged dots, scaled dots and convolutions with shapes or
        attributes that give no size, and library calls for such products whose operands or
        configuration are not understood and which nobody states FLOPs for.
        """
        import numpy

        return numpy.asarray(self._data.unknown_products())

    @property
    def dead(self) -> numpy.typing.NDArray[Any]:
        """Row numbers of instructions whose results nothing needs.

        They count, as XLA counts them, although the compiler removes such instructions before
        the program runs.
        """
        import numpy

        return numpy.asarray(self._data.dead_rows())

    @property
    def memory_spaces(self) -> Table:
        """Bytes read and written by memory space: `S(n)` of layouts, 0 without one."""
        return Table(self._data.memory_spaces())

    @property
    def flops_by_provenance(self) -> dict[str, int]:
        """How the FLOPs are known; the numbers add up to `flops`.

        exact, from_backend_config, modelled: so known per execution and in number. unknown: what
        was counted of instructions that are not known in full, often 0, always a lower bound.
        unknown_trip_count: FLOPs inside loops of unknown trip count, counted once, however one
        execution is known.
        """
        return dict(self._data.flops_by_provenance())

    def explain(self) -> Table:
        """Where figures differ from XLA's: rule, xla, executed, instructions.

        What XLA counts, what is counted here, and how many instructions of this module it
        concerns.
        """
        return Table(self._data.explain())

    def matmuls(self) -> Matmuls:
        """`Module.matmuls()` with the phases and multiplicities of this count.

        `is_lower_bound` holds where an execution may stand for more: inside loops of unknown trip
        count, which count once, and beyond 64 bits. `unknown_products` are missing.
        """
        if self._matmuls is None:
            from hlofast._matmuls import Matmuls

            rows = zip(self.loops.values("name"), self.loops.values("trip_count"), strict=True)
            endless = [name for name, trips in rows if trips is None]
            unknown = self._data.unknown_products().tolist()
            self._matmuls = Matmuls(self.module, self._data.matmuls(), unknown, endless)
        return self._matmuls

    def cost_analysis(self) -> dict[str, float]:
        """The dictionary that JAX's `cost_analysis()` gives; as there, zeros are left out.

        In XLA's way of counting it has XLA's keys: flops, transcendentals, `bytes accessed`,
        `optimal_seconds` (that of a client without a device: -1 per custom call) and sums over
        instructions by operand and by result: `bytes accessed0{}` and `utilization0{}` of all
        first operands, `bytes accessedout{}` of all results, `bytes accessedout{1}` of what
        fusions and infeeds write to the second element of a tuple, and so on. They are 32-bit
        floats like XLA's where the figures are, else 64-bit floats. They are left out of a module
        whose calls of calls make more of them than can be followed in time proportional to its
        text, which compilers do not write.

        With TPU sizes they are libtpu's for v5e, with two exceptions: `optimal_seconds`, since
        libtpu knows rates of its devices, and bytes that `cost` does not count as it does.

        As executed it has flops, transcendentals and `bytes accessed` only: the sums by operand
        are those of XLA's way of counting, and add up different things.
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
    ) -> Utilization:
        """Model FLOPs utilization of a device that runs this module in `step_seconds`.

        `peak_flops` is what the device could do, in FLOP per second. Without it `Cost.peak_flops`
        is meant, and without `step_seconds` that of the context.

        MFU = FLOPs / (seconds * peak), as defined for PaLM (Chowdhery et al., 2022, appendix B),
        but from the operations in the program instead of a formula; HFU counts recomputation too.

        The FLOPs of a module that is not partitioned yet (`num_partitions` above 1, status
        unoptimised or annotated) are those of all devices, and are divided by `num_partitions`.
        FLOPs that are not known are missing: see `Utilization.is_lower_bound`. A `ValueError` for
        `step_seconds` or `peak_flops` that are not positive, and in XLA's way of counting, where
        loops count once.
        """
        step_seconds = self.step_seconds if step_seconds is None else read_seconds(step_seconds)
        peak_flops = self.peak_flops if peak_flops is None else read_rate(peak_flops)
        if step_seconds is None or peak_flops is None:
            raise ContextError("mfu needs the seconds of a step and a device or its peak")
        if self.xla:
            raise ValueError("utilization is counted as executed, not with xla=True")
        products = self.matmuls().to_pylist()
        matmul = sum(row["flops"] or 0 for row in products)
        recomputed = sum(row["flops"] or 0 for row in products if row["phase"] == "recompute")
        collectives, recomputed_collectives = self._data.collective_flops()
        by_phase = {row["phase"]: row["flops"] for row in self.by("phase")}
        operations = self._totals[0] - collectives
        repeated = by_phase.get("recompute", 0) - recomputed_collectives
        devices = self._devices()
        budget = step_seconds * peak_flops * devices

        def share(flops: int) -> float:
            # The product of two tiny numbers is 0.
            return flops / budget if budget else float("inf")

        return Utilization(
            matmul_mfu=share(matmul - recomputed),
            matmul_hfu=share(matmul),
            mfu=share(operations - repeated),
            hfu=share(operations),
            step_seconds=step_seconds,
            peak_flops=peak_flops,
            num_devices=devices,
            is_lower_bound=self.misses_flops,
        )

    def _devices(self) -> int:
        """How many devices share the FLOPs of this module."""
        return max(self.module.num_partitions, 1) if self.module.summary().is_whole else 1

    @property
    def misses_flops(self) -> bool:
        """Whether something that is executed has FLOPs that are not known.

        It is inside a loop of unknown trip count, which counts once, or its cost is not known and
        counts as 0.
        """
        if self.flops_by_provenance["unknown_trip_count"]:
            return True
        if any(self.unpriced.values("executions")) or self.misses_bytes:
            return True
        times = self._data.column("multiplicity")
        return any(times[row] for row in self._data.unknown_products().tolist())

    @property
    def misses_bytes(self) -> bool:
        """Whether something that is executed moves bytes that are not known."""
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

    def __repr__(self) -> str:
        way = "as XLA counts" if self.xla else "as executed"
        return (
            f"<Cost of {self.module.name} {way}: {self.flops:,} FLOPs, "
            f"{self.transcendentals:,} transcendentals, {self.bytes_accessed:,} bytes>"
        )

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Totals, and how much of a device's peak a step of known length uses."""
        from hlofast._cost_facts import values

        return self._facts(values(self))

    @property
    def notes(self) -> tuple[Note, ...]:
        """What to keep in mind about the figures."""
        from hlofast._cost_facts import notes

        return tuple(notes(self))

    def sections(
        self, by: str = "phase", *, depth: int = 3, explain: bool = False
    ) -> tuple[Section, ...]:
        """Totals by `by` (scopes to `depth`), loops, branches and what is not known.

        With `explain` also XLA's totals, and where and why they differ.
        """
        from hlofast._cost_sections import sections

        return tuple(sections(self, by, depth, explain))

    def every_section(self) -> tuple[Section, ...]:
        """All tables, also those without rows."""
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
        raise ValueError("float32 goes with xla=True")
    peak = None if peak_flops is None else read_rate(peak_flops)
    data = _core._cost(
        module,
        xla=xla,
        backend=backend,
        float32=float32,
        custom_calls=None if xla else stated(module, custom_calls),
        rules=None if rules is None else read_rules(rules),
    )
    return Cost(module, data, xla, peak)
