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
    from collections.abc import Iterable, Iterator, Sequence
    from typing import BinaryIO

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
    Field("bytes", "bytes", "Size of the file, decompressed.", nullable=True),
    Field("text", "command", "The command that prints its verdict."),
)
HOW_TO_DUMP = "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text'"
NO_DUMPS = f"no XLA dumps here; write them with {HOW_TO_DUMP}"
SAMPLE = 1 << 20
"""Bytes read from the start of a file to identify it."""
SHOWN = 10
"""Limit on the configs of a folder for which commands are listed."""
MOST_FILES = 200
"""Limit on the files that are examined in a folder without programs."""
_LINE = 240
"""Characters of an error message that are quoted."""
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Ran out of memory in memory space", "Out of memory")
"""Marks of out-of-memory errors of XLA's runtime and its TPU compiler."""


class NoDumpsError(ValueError):
    """A folder has no dumps."""


class Contents(Result):
    """Contents of a folder, a file with several modules or a config, and further commands."""

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
        """The kind of the file, and the amount of its contents."""
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
    """Returns programs by the decompressed size of their main file, largest first.

    Remote files keep their order, because each size would take a request.
    """
    return sorted(programs, key=lambda program: -(_size(program.files[0].path) or 0))


def _size(path: str) -> int | None:
    """Returns the decompressed size of a file, from its header or trailer; None if unreadable.

    If a compressed file does not state this size, its compressed size counts.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not loaded.
            start = file.read(18)
            own = file.seek(0, os.SEEK_END)
            stated = None
            if start.startswith(b"\x1f\x8b"):
                file.seek(-4, os.SEEK_END)
                stated = int.from_bytes(file.read(4), "little")
            elif start.startswith(b"\x28\xb5\x2f\xfd"):
                stated = _zstd_size(start)
            elif start.startswith(b"\xfd7zXZ\x00"):
                stated = _xz_size(file, own)
    except OSError:
        return None
    return stated or own


def _zstd_size(start: bytes) -> int | None:
    """Returns the content size in the header of a Zstandard frame."""
    flags = start[4]
    is_single, width = flags & 0x20, (0, 2, 4, 8)[flags >> 6]
    if not width and is_single:
        width = 1
    at = 5 + (0 if is_single else 1) + (0, 1, 2, 4)[flags & 3]
    value = int.from_bytes(start[at : at + width], "little") + (256 if width == 2 else 0)
    return value if width and len(start) >= at + width else None


def _xz_size(file: BinaryIO, end: int) -> int | None:
    """Returns the sum of the block sizes in the index of an xz stream."""
    file.seek(max(end - 12, 0))
    footer = file.read(12)
    length = 4 * (int.from_bytes(footer[4:8], "little") + 1)
    if footer[10:] != b"YZ" or length > min(end - 12, SAMPLE):
        return None
    file.seek(end - 12 - length)
    numbers = _numbers(file.read(length)[1:])
    count = next(numbers, 0)
    sizes = [number for _, number in zip(range(2 * count), numbers, strict=False)]
    return sum(sizes[1::2]) if len(sizes) == 2 * count else None


def _numbers(index: bytes) -> Iterator[int]:
    """The numbers of variable length in an index."""
    value, shift = 0, 0
    for byte in index:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value, shift = 0, 0


def several(
    path: str, modules: Sequence[Module], choices: Sequence[str], options: Sequence[str] = ()
) -> Contents:
    """Returns the contents of a file with several modules; `modules` start with the largest.

    `choices` are their values of `--module`.
    """
    rows = []
    for module, choice in zip(modules, choices, strict=True):
        command = shell("hlofast", "verdict", path, "--module", choice, *options)
        rows.append((module.name, None, None, len(module), None, command))
    note = Note(
        "largest",
        f"the verdict is for the largest module, {modules[0].name}; choose another with --module",
    )
    return Contents(path, "text with several modules", programs=rows, notes=[note])


def fragment(path: str, module: Module, options: Sequence[str] = ()) -> Contents:
    """Returns the contents of a text with pieces of a program."""
    from hlofast import _fragment

    first = next((one for one in module if not one.is_implicit), None)
    shown = (
        [] if first is None else [("an instruction", shell("hlofast", "show", path, first.name))]
    )
    verbs = (
        ("contents", "summary"),
        ("FLOPs and bytes", "cost"),
        ("collectives", "collectives"),
        ("operands and users", "graph"),
    )
    return Contents(
        path,
        "pieces of a program",
        commands=[
            *((what, shell("hlofast", verb, path, *options)) for what, verb in verbs),
            *shown,
        ],
        notes=_fragment.notes(module),
    )


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


def trainers(path: str, files: Sequence[str]) -> Contents:
    """Returns the contents of a folder of trainer configs."""
    shown = files[:SHOWN]
    note = Note("more", f"{len(files) - len(shown):,} more configs", configs=len(files))
    return Contents(
        path,
        "folder of trainer configs",
        commands=[
            (f"mesh rules of {_name(file)}", shell("hlofast", "config", file)) for file in shown
        ],
        notes=[note] if len(files) > len(shown) else (),
    )


def _name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def without_programs(path: str) -> tuple[list[str], str | None]:
    """Returns the trainer configs in a folder, and the description of another known file."""
    from hlofast import config

    configs: list[str] = []
    known: str | None = None
    with os.scandir(path) as entries:
        names = sorted(entry.path for entry in entries if entry.is_file())[:MOST_FILES]
    for file in names:
        try:
            with open(file, "rb") as content:  # noqa: PTH123 - pathlib is not loaded.
                start = content.read(SAMPLE)
        except OSError:
            continue
        if config.is_config(start):
            configs.append(file)
        elif known is None and (what := foreign(beginning(start))) is not None:
            known = f"{_name(file)} is {what}"
    return configs, known


def foreign(start: bytes) -> str | None:
    """Returns the kind of a file without modules, and advice on the input to give instead.

    None if unknown. `start` is the decompressed start of the file.
    """
    text = start.decode("utf-8", "replace")
    if b'"traceEvents"' in start:
        return (
            "a profile in Chrome's trace format, which holds no modules; give the *.xplane.pb next "
            "to it, or list what ran with hlofast summary FILE"
        )
    for line in text.splitlines():
        if any(words in line for words in _OUT_OF_MEMORY):
            said = _text.printable(line.strip())
            said = said if len(said) <= _LINE else f"{said[:_LINE]}…"
            return (
                f'an error message: "{said}"; hlofast oom reads it; dump the program with '
                f"{HOW_TO_DUMP}, then hlofast oom LOG DUMP joins them"
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
