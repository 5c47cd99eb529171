"""What a file or folder is that holds no module of its own, or several: `Contents`."""

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
    Field("text", "kind", "What the file or folder is."),
    Field("count", "programs", "The programs in it."),
)
_CONFIG = (
    Field("text", "axes", "The names of the mesh axes of a config, joined by `, `."),
    Field("count", "parameters", "Parameters of the model of a config."),
    Field("count", "mesh_rules", "Mesh rules of a config.", label="mesh rules"),
)
_PROGRAMS = (
    Field("name", "program", "The name of the module."),
    Field("word", "host", "The host that compiled it, where folders tell.", nullable=True),
    Field("word", "stage", "How far the compilation was.", nullable=True),
    Field("count", "instructions", "Its instructions, where they are counted.", nullable=True),
    Field("bytes", "bytes", "Size of its file.", nullable=True),
    Field("text", "command", "The command line that gives its verdict."),
)
HOW_TO_DUMP = "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text'"
SAMPLE = 1 << 20
"""Bytes at the beginning of a file that say what it is."""
_LINE = 240
"""Characters of an error message that are repeated."""
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Ran out of memory in memory space", "Out of memory")
"""How XLA's runtime and its TPU compiler begin to say so."""


class Contents(Result):
    """What a folder, a file of several modules or a config holds, and what to ask of it."""

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
        """One row per program: name, host, stage, size, the command that gives its verdict."""
        self._figures = tuple(figures)
        self._commands = tuple(commands)
        self._notes = tuple(notes)

    @property
    def title(self) -> str:
        """The file or folder."""
        return self._path

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What it is, how much is in it."""
        fields = {field.name: field for field in self.FACTS}
        counted = [("programs", len(self.programs))] if len(self.programs) else []
        values = [("kind", self._kind), *counted, *self._figures]
        return tuple(Fact(fields[name], value) for name, value in values)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Which program was taken."""
        return self._notes

    def sections(self) -> tuple[Section, ...]:
        """The programs, the largest first; commands."""
        shown = ("program", "host", "stage", "instructions", "bytes")
        lines = [(what, _text.Whole(command)) for what, command in self._commands]
        words = [("What shows more", lines)] if lines else ()
        return (
            Section("programs", "Programs", self.programs, shown),
            Section("commands", "", of_rows(COMMANDS, self._commands), paragraphs=words),
        )


def folder(path: str, programs: Sequence[Program], options: Sequence[str] = ()) -> Contents:
    """What is in a dump directory; the programs in the order of their size."""
    rows = []
    for program in programs:
        file = program.files[0]
        command = shell("hlofast", "verdict", file.path, *options)
        size = None if "://" in file.path else _size(file.path)
        rows.append((program.name, program.host or None, file.stage, None, size, command))
    largest = programs[0].files[0].path
    note = Note("largest", f"the verdict is that of the largest program: {largest}")
    return Contents(
        path,
        "XLA dump directory",
        programs=rows,
        notes=[note] if len(programs) > 1 else (),
        commands=[
            ("every program", shell("hlofast", "scan", path)),
            ("all of them in a page", shell("hlofast", "report", path, "-o", "dumps.html")),
            ("SQL over all tables", shell("hlofast", "query", path, "DESCRIBE modules")),
        ],
    )


def by_size(programs: Sequence[Program]) -> list[Program]:
    """Programs by the size of the file that stands for each, the largest first.

    Files of another place count as they come: asking for their sizes takes a request each.
    """
    return sorted(programs, key=lambda one: -(_size(one.files[0].path) or 0))


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - pathlib is not loaded.
    except OSError:
        return None


def several(path: str, modules: Sequence[Module], options: Sequence[str] = ()) -> Contents:
    """What is in a file of several modules, the largest first."""
    rows = []
    for module in modules:
        command = shell("hlofast", "verdict", path, "--module", module.name, *options)
        rows.append((module.name, None, None, len(module), None, command))
    note = Note(
        "largest",
        f"the verdict is that of the largest module, {modules[0].name}; --module names another",
    )
    return Contents(path, "text with several modules", programs=rows, notes=[note])


def trainer(path: str, config: Config) -> Contents:
    """What a trainer config is, in brief."""
    from hlofast.config._results import Described

    figures = {fact.name: fact.value for fact in Described(config).facts}
    counted = [(own.name, figures[own.name]) for own in _CONFIG if figures.get(own.name)]
    return Contents(
        path,
        "trainer config",
        figures=counted,
        commands=[
            ("its mesh rules, what fits where", shell("hlofast", "config", path)),
            ("on one instance", shell("hlofast", "config", path, "--instance", "NAME")),
            (
                "beside what was compiled",
                shell("hlofast", "check", path, "--instance", "NAME", "DUMP"),
            ),
        ],
    )


def foreign(path: str, start: bytes) -> str | None:
    """What a file is that holds no module, and what to give instead; None if nobody knows.

    `start` is how it begins, decompressed.
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
                f"with {HOW_TO_DUMP}: what holds memory, hlofast memory DUMP --by scope; what to "
                "recompute instead, hlofast remat --plan --hbm SIZE DUMP"
            )
    return None


def beginning(content: bytes) -> bytes:
    """How a file begins, decompressed if that is gzip; empty where it cannot be."""
    if not content.startswith(b"\x1f\x8b"):
        return content[:SAMPLE]
    import zlib

    try:
        return zlib.decompressobj(31).decompress(content[:SAMPLE], SAMPLE)
    except zlib.error:
        return b""
