"""`Contents`: folders, files with several modules, trainer configs and foreign files."""

from __future__ import annotations

import os

from hlofast import _text
from hlofast._core import Field
from hlofast._result import Fact, Note, Result, Section
from hlofast._verdict import COMMANDS, shell
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hlofast._module import Module
    from hlofast._programs import Program
    from hlofast.config import Config

_ABOUT = (
    Field("text", "kind", "The kind of file or folder."),
    Field("count", "programs", "Number of programs."),
)
_CONFIG = (
    Field("text", "axes", "Names of the config's mesh axes, joined by `, `."),
    Field("count", "parameters", "Parameters of the config's model."),
    Field("count", "mesh_rules", "Mesh rules of the config.", label="mesh rules"),
)
_PROGRAMS = (
    Field("name", "program", "Name of the module."),
    Field(
        "word", "host", "The host that compiled the program, from the folder name.", nullable=True
    ),
    Field("word", "stage", "Compilation stage of the dump.", nullable=True),
    Field("count", "instructions", "Number of instructions, if counted.", nullable=True),
    Field("bytes", "bytes", "File size.", nullable=True),
    Field("text", "command", "The command that prints its verdict."),
)
HOW_TO_DUMP = "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text'"
SAMPLE = 1 << 20
"""Bytes read from the start of a file to identify it."""
_LINE = 240
"""Characters of an error message that are quoted."""
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Ran out of memory in memory space", "Out of memory")
"""Marks of out-of-memory errors of XLA's runtime and its TPU compiler."""


class Contents(Result):
    """Contents of a folder, a file with several modules or a config, and commands to go on."""

    VERB = "verdict"
    FACTS = (*_ABOUT, *_CONFIG)

    def __init__(
        self,
        path: str,
        kind: str,
        *,
        programs: Iterable[Sequence[object]] = (),
        figures: Iterable[tuple[str, int | str]] = (),
        commands: Iterable[tuple[str, str]] = (),
        notes: Iterable[Note] = (),
    ) -> None:
        self._path = path
        self._kind = kind
        self.programs = of_rows(_PROGRAMS, programs)
        """One row per program: name, host, stage, size, and the command that prints its verdict."""
        self._figures = tuple(figures)
        self._commands = tuple(commands)
        self._notes = tuple(notes)

    @property
    def title(self) -> str:
        """The file or folder."""
        return self._path

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Its kind and the amount of its contents."""
        fields = {field.name: field for field in self.FACTS}
        counted = [("programs", len(self.programs))] if len(self.programs) else []
        values = [("kind", self._kind), *counted, *self._figures]
        return tuple(Fact(fields[name], value) for name, value in values)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The program that the verdict is about."""
        return self._notes

    def sections(self) -> tuple[Section, ...]:
        """The programs, largest first, and further commands."""
        shown = ("program", "host", "stage", "instructions", "bytes")
        lines = [(what, _text.Whole(command)) for what, command in self._commands]
        words = [("Further commands", lines)] if lines else ()
        return (
            Section("programs", "Programs", self.programs, shown),
            Section("commands", "", of_rows(COMMANDS, self._commands), paragraphs=words),
        )


def folder(path: str, programs: Sequence[Program], options: Sequence[str] = ()) -> Contents:
    """Returns the contents of a dump directory; `programs` are in the order of their size."""
    rows = []
    for program in programs:
        file = program.files[0]
        command = shell("hlofast", "verdict", file.path, *options)
        size = None if "://" in file.path else _size(file.path)
        rows.append((program.name, program.host or None, file.stage, None, size, command))
    largest = programs[0].files[0].path
    note = Note("largest", f"the verdict is for the largest program: {largest}")
    return Contents(
        path,
        "XLA dump directory",
        programs=rows,
        notes=[note] if len(programs) > 1 else (),
        commands=[
            ("every program", shell("hlofast", "scan", path)),
            ("all programs as a page", shell("hlofast", "report", path, "-o", "dumps.html")),
            ("SQL over all tables", shell("hlofast", "query", path, "DESCRIBE modules")),
        ],
    )


def by_size(programs: Sequence[Program]) -> list[Program]:
    """Returns programs by the size of their main file, largest first.

    Remote files keep their order: each size would take a request.
    """
    return sorted(programs, key=lambda one: -(_size(one.files[0].path) or 0))


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - pathlib is not loaded.
    except OSError:
        return None


def several(path: str, modules: Sequence[Module], options: Sequence[str] = ()) -> Contents:
    """Returns the contents of a file with several modules; `modules` start with the largest."""
    rows = []
    for module in modules:
        command = shell("hlofast", "verdict", path, "--module", module.name, *options)
        rows.append((module.name, None, None, len(module), None, command))
    note = Note(
        "largest",
        f"the verdict is for the largest module, {modules[0].name}; choose another with --module",
    )
    return Contents(path, "text with several modules", programs=rows, notes=[note])


def trainer(path: str, config: Config) -> Contents:
    """Returns a short description of a trainer config."""
    from hlofast.config._results import Described

    figures = {fact.name: fact.value for fact in Described(config).facts}
    counted = [(own.name, figures[own.name]) for own in _CONFIG if figures.get(own.name)]
    return Contents(
        path,
        "trainer config",
        figures=counted,
        commands=[
            ("all mesh rules and their meshes", shell("hlofast", "config", path)),
            ("on one instance", shell("hlofast", "config", path, "--instance", "NAME")),
            (
                "compared with a program",
                shell("hlofast", "check", path, "--instance", "NAME", "DUMP"),
            ),
        ],
    )


def foreign(path: str, start: bytes) -> str | None:
    """Returns the kind of a file without modules and what to give instead; None if unknown.

    `start` is the decompressed start of the file.
    """
    name = path.lower()
    text = start.decode("utf-8", "replace")
    if b'"traceEvents"' in start or name.endswith((".xplane.pb", ".trace.json.gz")):
        return (
            "a profile (xplane or trace events), which hlofast does not read yet; dump the program "
            f"with {HOW_TO_DUMP} and give the folder: hlofast DIR"
        )
    for line in text.splitlines():
        if any(words in line for words in _OUT_OF_MEMORY):
            said = _text.printable(line.strip())
            said = said if len(said) <= _LINE else f"{said[:_LINE]}…"
            return (
                f'an error message: "{said}"; hlofast does not read these yet; dump the program '
                f"with {HOW_TO_DUMP}, then list memory with hlofast memory DUMP --by scope and "
                "plan rematerialisation with hlofast remat --plan --hbm SIZE DUMP"
            )
    return None


def beginning(content: bytes) -> bytes:
    """Returns the start of a file, decompressed if it is gzip; empty if that fails."""
    if not content.startswith(b"\x1f\x8b"):
        return content[:SAMPLE]
    import zlib

    try:
        return zlib.decompressobj(31).decompress(content[:SAMPLE], SAMPLE)
    except zlib.error:
        return b""
