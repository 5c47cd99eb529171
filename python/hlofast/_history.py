"""`history`: the effect of each compiler pass on a module, from the dumps between passes."""

from __future__ import annotations

from contextlib import suppress

from hlofast._core import Field
from hlofast._cost import read_rules
from hlofast._memory import quiet
from hlofast._module import Module, load
from hlofast._programs import Program, programs, reason, whole
from hlofast._result import Fact, Note, Result, Section
from hlofast._text import Whole, counted, names
from hlofast.table import Table

TYPE_CHECKING = False  # The command line shows histories; importing typing would slow its start.
if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from typing import Any

    from hlofast._core import Mesh
    from hlofast._cost import Rules
    from hlofast._programs import File

_FIGURES = (
    Field("count", "instructions", "Instructions in the text, each counted once.", nullable=True),
    Field("count", "computations", "Computations.", nullable=True),
    Field("count", "fusions", "Fusion instructions.", nullable=True),
    Field("count", "collectives", "Collectives; an async pair counts once.", nullable=True),
    Field("flops", "flops", "Floating-point operations of one run.", label="FLOP", nullable=True),
    Field("bytes", "bytes_accessed", "Bytes read and written in one run.", nullable=True),
    Field("bytes", "live_peak", "Peak of live bytes.", nullable=True),
    Field("bytes", "wire_bytes", "Bytes that each device sends in one run.", nullable=True),
)
FIGURES = tuple(field.name for field in _FIGURES)
"""Figures of every step."""
KINDS = ("vanished", "appeared", "moved", "changed")
_FIELDS = (
    Field("index", "step", "The number of the pass.", nullable=True),
    Field("word", "stage", "The stage of the compilation."),
    Field("name", "pipeline", "The pipeline of the pass.", nullable=True),
    Field("name", "pass", "The pass that had just run.", nullable=True),
    Field("path", "file", "The file."),
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
_SHOWN = (
    *("step", "stage", "pipeline", "pass", "instructions", "fusions", "collectives"),
    *("flops", "bytes_accessed", "live_peak", *KINDS),
)


class History(Result, Table):
    """The effect of compiler passes on one module: `hlofast.history(folder, name)`.

    One row per dump, in the order of compilation: before optimisation, after passes, after all
    passes; `fields` describes the columns. Stages are before, pass, in-pass, partitioned, after and
    so on; figures describe the module at that point. Differences are counted against the previous
    dump, without consequences (see `hlofast.Diff`; order and layouts count as there). A row covers
    all passes since the previous dump: XLA writes a dump only if a pass changed something or was
    selected for dumping.
    """

    __slots__ = ("_files", "_mesh", "_rules", "program")

    VERB = "history"
    FACTS = (
        Field("name", "module", "The name of the module."),
        Field("count", "dumps", "Dumps of the module."),
        Field("count", "same", "Dumps that equal the previous one."),
    )

    def __init__(
        self, program: Program, mesh: Mesh | None = None, rules: list[tuple[str, str]] | None = None
    ) -> None:
        self.program = program
        """The program of the folder."""
        self._mesh = mesh
        self._rules = rules
        self._files = list(program.steps())
        rows = list(_rows(self._files, mesh, rules))
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
        return tuple(map(Fact, self.FACTS, (self.program.name, len(self), same)))

    @property
    def notes(self) -> tuple[Note, ...]:
        """A note if dumps could not be read."""
        failed = sum(error is not None for error in self.values("error"))
        if not failed:
            return ()
        text = f"{counted(failed, 'dump')} could not be read"
        return (Note("unreadable", text, dumps=failed),)

    def sections(self, *, everything: bool = False, files: bool = False) -> tuple[Section, ...]:
        """The passes that changed the module, or all passes; `files` shows the file of each."""
        rows = [row for row, same in enumerate(self.values("is_same")) if everything or not same]
        table = self.take(rows)
        if not files:
            return (Section("steps", "Passes", table, _SHOWN, is_whole=True, named="pass"),)
        # File names have to stay whole, so that they can be given to other verbs.
        lines = [
            (f"{step if step is not None else '-'} {name or stage}", [("file", Whole(path))])
            for step, name, stage, path in zip(
                *(table.values(own) for own in ("step", "pass", "stage", "file")), strict=True
            )
        ]
        return (Section("steps", "Passes", table, paragraphs=lines, is_whole=True),)

    def every_section(self) -> tuple[Section, ...]:
        """All passes."""
        return self.sections(everything=True)

    def module(self, row: int) -> Module:
        """Loads the module of row `row`; raises the errors of `hlofast.load`."""
        return load(self._files[row].path)

    def __reduce__(self) -> tuple[object, ...]:
        return History, (self.program, self._mesh, self._rules)


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
    return {
        "instructions": module.instruction_count,
        "computations": module.computation_count,
        "fusions": sum(opcode == "fusion" for opcode in module.opcodes()),
        "collectives": len(set(sent.values("instruction"))),
        "flops": int(cost.flops),
        "bytes_accessed": int(cost.bytes_accessed),
        "live_peak": live_peak,
        "wire_bytes": None if None in wire else sum(wire),
    }


def history(
    folder: str | os.PathLike[str],
    module: str | int | None = None,
    *,
    mesh: Mesh | None = None,
    rules: Rules | None = None,
) -> History:
    """The effect of each pass on a module, from dumps of `--xla_dump_hlo_pass_re` in `folder`.

    `module` is the module's name, number or key (`host1/module_0007.jit_step`); it may be omitted
    if the folder holds only one module. `mesh` and `rules` are as in `Module.cost` and
    `Module.collectives`. Raises `ValueError` with a list of the modules if none or several match,
    and `OSError` if the folder cannot be read.
    """
    read = None if rules is None else read_rules(rules)
    return History(one_program(folder, module), mesh, read)


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
        raise ValueError(f"{folder}: no modules")
    listed = names([program.key for program in matching or candidates], most=20)
    raise ValueError(f"{folder}: {named}: {listed}")
