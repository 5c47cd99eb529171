"""`history`: the effect of each compiler pass on a module, from the dumps between passes."""

from __future__ import annotations

from contextlib import suppress

from hlofast._core import Field
from hlofast._cost import read_rules
from hlofast._memory import quiet
from hlofast._module import Module, load
from hlofast._pass_times import beside
from hlofast._pass_times import read as read_times
from hlofast._programs import Program, programs, reason, whole
from hlofast._result import Fact, Note, Result, Section
from hlofast._shares import devices_together
from hlofast._text import Whole, counted, names
from hlofast.table import Table, of_rows

TYPE_CHECKING = False  # The command line shows histories; importing typing would slow its start.
if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from typing import Any

    from hlofast._core import Mesh
    from hlofast._cost import Rules
    from hlofast._history_find import HistoryFound
    from hlofast._pass_times import PassTimes
    from hlofast._programs import File

_FIGURES = (
    Field("count", "instructions", "Instructions in the text, each counted once.", nullable=True),
    Field("count", "computations", "Computations.", nullable=True),
    Field("count", "fusions", "Fusion instructions.", nullable=True),
    Field("count", "collectives", "Collectives; an async pair counts once. Unknown before the "
          "partitioner has added them, as are their bytes.", nullable=True),
    Field("count", "devices_together",
          "Devices that FLOPs, bytes accessed and the live peak cover together: all devices before "
          "partitioning, 1 for the program of one device.", label="devices together",
          nullable=True),
    Field("flops", "flops", "Floating-point operations of one run.", label="FLOP", nullable=True),
    Field("bytes", "bytes_accessed", "Bytes read and written in one run.", nullable=True),
    Field("bytes", "live_peak", "Peak of live bytes.", nullable=True),
    Field("bytes", "wire_bytes", "Bytes that each device sends in one run.", nullable=True),
)  # fmt: skip
_SECONDS = Field(
    "seconds",
    "seconds",
    "Time of all runs of the pass in its pipeline, without nested passes.",
    nullable=True,
)
FIGURES = tuple(field.name for field in _FIGURES)
"""Figures of every step."""
KINDS = ("vanished", "appeared", "moved", "changed")
_FIELDS = (
    Field("index", "step", "The number of the pass.", nullable=True),
    Field("word", "stage", "The stage of the compilation."),
    Field("name", "pipeline", "The pipeline of the pass.", nullable=True),
    Field("name", "pass", "The pass that ran last.", nullable=True),
    Field("path", "file", "The file."),
    _SECONDS,
    *_FIGURES,
    *(
        Field(
            "count",
            kind,
            f"Differences of the kind {kind} from the previous dump, without consequences.",
            nullable=True,
            adds_up=True,
        )
        for kind in KINDS
    ),
    Field("flag", "is_same", "Whether the dump equals the previous one."),
    Field("text", "error", "Why the dump could not be read.", nullable=True),
)
_CHANGES = tuple(
    Field("count", kind, f"Differences of the kind {kind} in its dumps.", nullable=True,
          adds_up=True)
    for kind in KINDS
)  # fmt: skip
_TIMES = (
    Field("word", "kind", "The kind of range: pass, pipeline, or XLA's name of a compile stage."),
    Field("name", "pipeline", "The pipeline around it.", nullable=True),
    Field("name", "pass", "The pass; None for a pipeline itself and for stages.", nullable=True),
    Field("count", "runs", "Number of runs.", adds_up=True),
    Field("seconds", "seconds", "Time of all runs, without nested ranges.", adds_up=True),
    Field("seconds", "total_seconds", "Time of all runs.", label="with nested"),
    Field("count", "dumps", "Dumps after the pass.", nullable=True, adds_up=True),
    *_CHANGES,
)
_SHOWN = (
    *("step", "stage", "pipeline", "pass", "seconds", "instructions", "fusions", "collectives"),
    *("devices_together", "flops", "bytes_accessed", "live_peak", *KINDS),
)


_KINDS = {"XlaPass": "pass", "XlaPassPipeline": "pipeline"}
_COUNTED = ("dumps", *KINDS)


class History(Result, Table):
    """The effect of compiler passes on one module: `hlofast.history(folder, name)`.

    One row per dump, in the order of compilation: before optimisation, after passes, after all
    passes; `fields` describes the columns. Stages are before, pass, in-pass, partitioned, after and
    so on; figures describe the module at that point. Differences are counted against the previous
    dump, without consequences (see `hlofast.Diff`; order and layouts count as there). A row covers
    all passes since the previous dump: XLA writes a dump only if a pass changed something or was
    selected for dumping.
    """

    __slots__ = ("_files", "_mesh", "_pass_times", "_rules", "_times", "program")

    VERB = "history"
    FACTS = (
        Field("name", "module", "The name of the module."),
        Field("count", "dumps", "Dumps of the module."),
        Field("count", "same", "Dumps that equal the previous one."),
        Field("seconds", "compile_seconds", "Time of the compilation.", label="compile time"),
        Field("seconds", "pass_seconds", "Time of its passes and pipelines, each without nested "
                                         "ranges.",
              label="in passes"),
        Field("path", "pass_times", "The file with the times of passes.", label="times from"),
    )  # fmt: skip

    def __init__(
        self,
        program: Program,
        mesh: Mesh | None = None,
        rules: list[tuple[str, str]] | None = None,
        pass_times: PassTimes | None = None,
    ) -> None:
        self.program = program
        """The program of the folder."""
        self._mesh = mesh
        self._rules = rules
        self._pass_times = pass_times
        self._files = list(program.steps())
        self._times = {}
        if pass_times is not None:
            self._times = pass_times.of(program.name, program.module_id)
        rows = list(_rows(self._files, mesh, rules))
        for row in rows:
            time = self._times.get(("XlaPass", row["pipeline"] or "", row["pass"] or ""))
            row["seconds"] = None if time is None or not row["pass"] else time.seconds
        table = Table.of((field, [row[field.name] for row in rows]) for field in _FIELDS)
        super().__init__(table._described())

    @property
    def title(self) -> str:
        """The key that identifies the program within the folder."""
        return self.program.key

    @property
    def _module(self) -> None:
        """None, because every row belongs to another module."""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The module, the number of dumps, and the number of unchanged dumps."""
        same = sum(self.values("is_same"))
        values = (self.program.name, len(self), same, *self._compile_seconds())
        return tuple(
            Fact(field, value)
            for field, value in zip(self.FACTS, values, strict=True)
            if value is not None
        )

    def _compile_seconds(self) -> tuple[float | None, float | None, str | None]:
        """Seconds of the compilation and of its passes, and their file; None without times."""
        if self._pass_times is None or not self._times:
            return None, None, None
        whole = [time.total_seconds for key, time in self._times.items() if key[0] == "XlaCompile"]
        inside = [time.seconds for key, time in self._times.items() if key[0] in _KINDS]
        return sum(whole) if whole else None, sum(inside), self._pass_times.path

    @property
    def times(self) -> Table:
        """Seconds of every pass and stage of the compilation, the longest first.

        One row per pass and pipeline, also for passes without dumps; empty without pass times.
        """
        changed: dict[tuple[str, str, str], dict[str, int]] = {}
        dumps = (self.values(name) for name in ("pipeline", "pass", *KINDS))
        for pipeline, own, *counts in zip(*dumps, strict=True):
            if own:
                sums = changed.setdefault(("XlaPass", pipeline or "", own), {"dumps": 0})
                sums["dumps"] += 1
                for kind, count in zip(KINDS, counts, strict=True):
                    sums[kind] = sums.get(kind, 0) + (count or 0)
        rows = [
            (
                _KINDS.get(kind, kind),
                pipeline or None,
                own or None,
                time.runs,
                # Differences of nanoseconds may leave a residue below 0.
                max(time.seconds, 0.0),
                time.total_seconds,
                *(changed.get((kind, pipeline, own), {}).get(what) for what in _COUNTED),
            )
            for (kind, pipeline, own), time in self._times.items()
        ]
        return of_rows(_TIMES, sorted(rows, key=lambda row: -row[4]))

    @property
    def notes(self) -> tuple[Note, ...]:
        """Dumps that could not be read, and dumps whose figures cover all devices."""
        notes = []
        if self._pass_times is not None and not self._times:
            text = f"{self._pass_times.path} has no pass times of {self.program.name}"
            notes.append(Note("no-pass-times", text))
        if failed := sum(error is not None for error in self.values("error")):
            text = f"{counted(failed, 'dump')} could not be read"
            notes.append(Note("unreadable", text, dumps=failed))
        if together := sum((count or 1) > 1 for count in self.values("devices_together")):
            text = (
                f"{counted(together, 'dump is', 'dumps are')} not partitioned yet: FLOPs, bytes "
                "accessed and the live peak there cover all devices together; the collectives that "
                "the partitioner adds, and the bytes that they send, are unknown"
            )
            notes.append(Note("global", text, dumps=together))
        return tuple(notes)

    def sections(
        self, *, everything: bool = False, files: bool = False, whole: bool = True
    ) -> tuple[Section, ...]:
        """The passes that changed the module, or all passes.

        `files` shows the file of each; without `whole`, text output may show the first of them.
        """
        rows = [row for row, same in enumerate(self.values("is_same")) if everything or not same]
        table = self.take(rows)
        if not files:
            is_one = all((count or 1) == 1 for count in self.values("devices_together"))
            shown = [name for name in _SHOWN if not (is_one and name == "devices_together")]
            steps = Section("steps", "Passes", table, shown, is_whole=whole, named="pass")
            times = Section("times", "Compile time by pass", self.times, figure="seconds")
            return (steps, times)
        # File names have to stay whole, so that they can be given to other verbs.
        lines = [
            (f"{step if step is not None else '-'} {name or stage}", [("file", Whole(path))])
            for step, name, stage, path in zip(
                *(table.values(own) for own in ("step", "pass", "stage", "file")), strict=True
            )
        ]
        return (Section("steps", "Passes", table, paragraphs=lines, is_whole=whole),)

    def every_section(self) -> tuple[Section, ...]:
        """All passes."""
        return self.sections(everything=True)

    def find(self, what: str) -> HistoryFound:
        """Which passes made, cloned, split, merged, changed, moved or removed instructions.

        `what` is the name of an instruction in any of the dumps, an opcode, or `collective` for all
        collectives. An instruction is followed by structure, whatever passes call it. Raises
        `ValueError` for what no dump has.
        """
        from hlofast._history_find import HistoryFound

        return HistoryFound(self, what)

    def module(self, row: int) -> Module:
        """Loads the module of row `row`; raises the errors of `hlofast.load`."""
        return load(self._files[row].path)

    def __reduce__(self) -> tuple[object, ...]:
        return History, (self.program, self._mesh, self._rules, self._pass_times)


def _rows(
    files: list[File], mesh: Mesh | None, rules: list[tuple[str, str]] | None
) -> Iterator[dict[str, Any]]:
    last: Module | None = None
    last_figures: dict[str, int | None] = {}
    for file in files:
        row: dict[str, Any] = {
            "step": file.step,
            "stage": file.stage,
            "pipeline": file.pipeline,
            "pass": file.after,
            "file": file.path,
            "is_same": False,
            "error": None,
        }
        row |= dict.fromkeys((*FIGURES, *KINDS))
        try:
            module = whole(file.path)
        except (OSError, ValueError) as error:
            yield row | {"error": reason(error)}
            continue
        if last is None:
            row |= dict.fromkeys(KINDS, 0)
            last_figures = figures(module, mesh, rules)
        else:
            diff = last.diff(module)
            counts = dict.fromkeys(KINDS, 0)
            for cause in diff.causes:
                counts[cause["kind"]] += 1
            row |= counts
            row["is_same"] = diff.is_empty
            # The order of instructions affects the peak, so only equal texts have equal figures.
            if module != last:
                last_figures = figures(module, mesh, rules)
        row |= last_figures
        last = module
        yield row


def figures(
    module: Module, mesh: Mesh | None, rules: list[tuple[str, str]] | None
) -> dict[str, int | None]:
    """The figures of a module by name; None for unknown figures."""
    cost = module.cost(rules=rules)
    sent = Table(cost._data.collectives(mesh).columns())
    wire = sent.values("total_wire_bytes")
    live_peak: int | None = None
    with suppress(ValueError):
        live_peak = quiet(module).live_peak  # Rows have no room for doubts, so they are ignored.
    devices = devices_together(module)
    if devices > 1:  # The partitioner, which adds most collectives, has not run yet.
        collectives, wire_bytes = None, None
    else:
        collectives = len(set(sent.values("instruction")))
        wire_bytes = None if None in wire else sum(wire)
    return {
        "instructions": module.instruction_count,
        "computations": module.computation_count,
        "fusions": sum(opcode == "fusion" for opcode in module.opcodes()),
        "collectives": collectives,
        "devices_together": devices,
        "flops": int(cost.flops),
        "bytes_accessed": int(cost.bytes_accessed),
        "live_peak": live_peak,
        "wire_bytes": wire_bytes,
    }


def history(
    folder: str | os.PathLike[str],
    module: str | int | None = None,
    *,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
    pass_times: str | os.PathLike[str] | None = None,
) -> History:
    """The effect of each pass on a module, from dumps of `--xla_dump_hlo_pass_re` in `folder`.

    `module` is the module's name, number or key (`host1/module_0007.jit_step`); it may be omitted
    if the folder holds only one module. `mesh` and `rules` are as in `Module.cost` and
    `Module.collectives`. `pass_times` is the file of Nsight Systems with the times of XLA's passes
    (`report_nvtx_pushpop_trace.csv.xz` of an nsys-jax archive), or a folder with it; by default the
    file in the folder or beside it, if there is one. Raises `ValueError` with a list of the modules
    if none or several match, and `OSError` if the folder cannot be read.
    """
    read = None if rules is None else read_rules(rules)
    program = one_program(folder, module)
    found = pass_times if pass_times is not None else beside(str(folder))
    return History(program, mesh, read, None if found is None else read_times(found))


def one_program(folder: str | os.PathLike[str], module: str | int | None) -> Program:
    """The program that `module` names; see `history`."""
    candidates = programs(folder)
    matching = [program for program in candidates if module is None or program.answers_to(module)]
    if len(matching) > 1:
        # If only one program has dumps between passes, it is the requested program.
        with_passes = [
            program for program in matching if any(file.step is not None for file in program.files)
        ]
        matching = with_passes if len(with_passes) == 1 else matching
    if len(matching) == 1:
        return matching[0]
    named = f"no module {module!r}" if not matching else "several modules match"
    if not candidates:
        from hlofast._kinds import NO_DUMPS, NoDumpsError

        raise NoDumpsError(f"{folder}: {NO_DUMPS}")
    listed = names([program.key for program in matching or candidates], most=20)
    raise ValueError(f"{folder}: {named}: {listed}")
