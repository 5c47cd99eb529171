"""The tools over one module, one config or one folder, and the session that answers their calls."""

from __future__ import annotations

import os
from collections import OrderedDict

from hlofast import _kinds, _text
from hlofast._core import Field
from hlofast._mcp import rows, schema
from hlofast._mcp.answer import MOST_TOKENS, Answer, page
from hlofast._mcp.files import CACHE, Modules, RefusedError, Root, stamp
from hlofast._names import meant
from hlofast._result import Section
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, BinaryIO

    from hlofast._module import Module
    from hlofast._programs import Program
    from hlofast._result import Result
    from hlofast.config import Config
    from hlofast.config._front import Sources

_MOST_CURSORS = 200
"""Limit on the answers whose rest can be asked for."""
_MOST_ENTRIES = 2_000
"""Limit on the entries of a folder that are listed."""
MODULE = {
    "path": schema.text("File or dump folder (its largest program), below the root."),
    "module": schema.text("Module, if there are several."),
    "mesh": schema.text("Mesh axes, as data=2,model=4."),
    "device": schema.text("Chip, as tpu-v5p."),
    "hbm": schema.text("Memory budget, as 16GiB."),
    "step_time": schema.text("Measured step, as 300ms."),
    "profile": schema.text("Profile of the run: a path."),
}
"""Arguments of tools over one module."""
_COMMON = {
    "top": schema.number("Rows of a table.", 1, 10_000),
    "max_tokens": schema.number("Limit of the answer.", 100, 20_000),
}
_ENTRIES = (
    Field("word", "name", "The entry, relative to the root."),
    Field("word", "kind", "Folder, file or link."),
    Field("bytes", "bytes", "The size of a file.", nullable=True),
)
_PROGRAMS = (
    Field("name", "program", "The name of the module."),
    Field("name", "host", "The host that compiled it.", nullable=True),
    Field("word", "stage", "The stage of the compilation."),
    Field("word", "path", "The file of the last stage, relative to the root."),
)
_TOLD_MODULES = (
    Field("name", "module", "The name of the module."),
    Field("count", "instructions", "Instructions in the text."),
)


class Tool:
    """A tool: its name, its description, its arguments and the function that answers."""

    __slots__ = ("doc", "function", "name", "schema", "top")

    def __init__(
        self,
        name: str,
        doc: str,
        properties: Mapping[str, Any],
        required: Iterable[str],
        function: Callable[[Session, Answer, dict[str, Any]], None],
        top: int = 10,
    ) -> None:
        self.name = name
        self.doc = doc
        self.schema = schema.whole({**properties, **_COMMON}, tuple(required))
        self.function = function
        self.top = top
        """The default number of rows."""


TOOLS: dict[str, Tool] = {}
"""The tools by name."""


def tool(
    name: str, doc: str, properties: Mapping[str, Any], *required: str, top: int = 10
) -> Callable[
    [Callable[[Session, Answer, dict[str, Any]], None]],
    Callable[[Session, Answer, dict[str, Any]], None],
]:
    """Registers a function as a tool."""

    def register(
        function: Callable[[Session, Answer, dict[str, Any]], None],
    ) -> Callable[[Session, Answer, dict[str, Any]], None]:
        TOOLS[name] = Tool(name, doc, properties, required, function, top)
        return function

    return register


MORE_DOC = "The rest of a cut answer."
MORE = schema.whole(
    {
        "cursor": schema.text("The cursor at the end of a cut answer."),
        "max_tokens": _COMMON["max_tokens"],
    },
    ("cursor",),
)


class Session:
    """Answers calls of tools; keeps modules, and the calls whose answers were cut."""

    def __init__(self, root: str, most_tokens: int = MOST_TOKENS, cache: int = CACHE) -> None:
        self.root = Root(root)
        self.modules = Modules(self.root, cache)
        self._most = most_tokens
        self._cut: OrderedDict[str, tuple[str, dict[str, Any], int, list[Any]]] = OrderedDict()
        self._count = 0
        self._read: list[Any] = []

    def call(self, name: str, given: Mapping[str, Any]) -> tuple[str, bool]:
        """Returns the answer of a tool, and whether it is an error.

        Every fault becomes an answer, so that no file and no call ends the server.
        """
        try:
            return self._call(name, given), False
        except (OSError, ValueError, KeyError, OverflowError, ModuleNotFoundError) as error:
            text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
            if isinstance(error, OSError) and error.filename:
                text = f"{error.filename}: {error.strerror}"
            return self._fault(text), True
        except MemoryError:
            return self._fault("out of memory; ask about a smaller file"), True
        except BaseException as error:  # A panic of the core is not an `Exception`.
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return self._fault(f"internal error: {type(error).__name__}: {error}"), True
        finally:
            self.modules.trim()

    def _fault(self, text: str) -> str:
        shown = _text.printable(self.root.words(text).replace("\n", " "))
        return f"error: {_text.label(shown, 1_000)}"

    def _call(self, name: str, given: Mapping[str, Any]) -> str:
        if name == "more":
            arguments = schema.read(MORE, given)
            cut = self._cut.get(arguments["cursor"])
            if cut is None:
                raise RefusedError("unknown or old cursor; repeat the call that gave it")
            name, own, start, read = cut
            if any(_changed(each) for each in read):
                raise RefusedError("a file has changed since; repeat the call")
            own = own | {"max_tokens": arguments.get("max_tokens", own.get("max_tokens"))}
            return self._answer(TOOLS[name], own, start)
        chosen = TOOLS.get(name)
        if chosen is None:
            names = [*TOOLS, "more"]
            hint = meant(name, names) or ";"
            raise RefusedError(f"no tool {name!r}{hint} known: {', '.join(names)}")
        return self._answer(chosen, schema.read(chosen.schema, given), 0)

    def _answer(self, chosen: Tool, arguments: dict[str, Any], start: int) -> str:
        answer = Answer(arguments.get("top", chosen.top))
        self._read = []
        chosen.function(self, answer, arguments)
        self._count += 1
        cursor = f"c{self._count}"
        most = arguments.get("max_tokens") or self._most
        lines = list(map(self.root.words, answer.lines()))
        text, following = page(lines, start, most, cursor)
        if following is not None:
            self._cut[cursor] = (chosen.name, arguments, following, self._read)
            while len(self._cut) > _MOST_CURSORS:
                self._cut.popitem(last=False)
        return text

    def path(self, name: str) -> str:
        """Returns the path of an argument, and notes the file for later pages."""
        path = self.root.resolve(name)
        self._read.append(stamp(path))
        return path

    def module(self, arguments: Mapping[str, Any]) -> tuple[Module, str]:
        """Returns the module that the arguments choose, in its context, and what it was chosen of.

        Of a folder, the largest program or the one that `module` names; of a file, likewise its
        modules.
        """
        path = self.path(arguments["path"])
        wanted = arguments.get("module")
        told = ""
        if os.path.isdir(path):
            programs = self.programs(path)
            named = [one for one in programs if wanted is None or one.answers_to(wanted)]
            if not named:
                names = list(dict.fromkeys(one.name for one in programs))
                hint = meant(str(wanted), names) or ";"
                raise RefusedError(f"no program {wanted!r}{hint} the folder has {_listed(names)}")
            path = named[0].files[0].path
            if wanted is None and len(programs) > 1:
                told = f", the largest of {len(programs):,} programs; files lists them"
            wanted = None
        modules = self.modules.of_file(path)
        chosen = [one for one in modules if wanted in (None, one.name)]
        if not chosen:
            names = [one.name for one in modules]
            hint = meant(str(wanted), names) or ";"
            raise RefusedError(f"no module {wanted!r}{hint} the file has {_listed(names)}")
        if wanted is None and len(modules) > 1:
            told = f", the largest of {len(modules):,} modules; module chooses another"
        return self.told(chosen[0], arguments), self.root.shown(path) + told

    def told(self, module: Module, arguments: Mapping[str, Any]) -> Module:
        """Returns a module in the context of the arguments."""
        changes = {
            own: arguments[name]
            for name, own in (
                *((name, name) for name in ("mesh", "device", "hbm")),
                ("step_time", "step_seconds"),
            )
            if name in arguments
        }
        if "profile" in arguments:
            changes["profile"] = self.profile(arguments["profile"])
        return module.with_context(**changes) if changes else module

    def profile(self, name: str) -> str:
        """Returns the path of a profile whose files may all be read."""
        from hlofast import _profiles

        path = self.path(name)
        for file in _profiles.files_of(path):
            self.path(file)
        return path

    def opened(self, path: str) -> BinaryIO:
        """Opens a file that a config needs, and notes it for later pages."""
        file = self.root.open(path)
        self._read.append(stamp(os.path.normpath(os.path.join(self.root.path, path))))
        return file

    def sources(self, overrides: Sequence[str] = ()) -> Sources:
        """Returns what changes the values of a config; files are opened below the root alone."""
        from hlofast.config._front import Sources

        return Sources(overrides, opened=self.opened)

    def config(self, path: str, overrides: Sequence[str] = ()) -> Config:
        """Reads a trainer config, and the files that it inherits from, below the root."""
        from hlofast.config import _load

        with self.root.open(path) as file:
            text = file.read(_load.MOST_BYTES + 1)
        return _load.read(text, path, self.sources(overrides))

    def programs(self, folder: str) -> list[Program]:
        """Returns the programs of a dump folder, largest first; refuses links among their files."""
        from hlofast._programs import listed

        programs = listed(folder)[0]
        if not programs:
            raise RefusedError(
                f"{self.root.shown(folder)}: no XLA dumps in this folder; files lists it, and "
                f"{_kinds.HOW_TO_DUMP} writes dumps"
            )
        for file in (file for program in programs for file in program.files):
            self.root.admit(file.path)
        return _kinds.by_size(programs)

    def is_admitted(self, program: Program) -> bool:
        """Whether all files of a program may be read."""
        try:
            for file in program.files:
                self.root.admit(file.path)
        except RefusedError:
            return False
        return True


def _changed(read: tuple[str, int, int]) -> bool:
    try:
        return stamp(read[0]) != read
    except OSError:
        return True


def _listed(names: list[str]) -> str:
    return _text.names([_text.label(name) for name in names])


@tool(
    "files",
    "Contents of a folder or file: programs of a dump folder, modules, entries. Start here.",
    {"path": schema.text("Folder or file, relative to the root (default: the root).")},
)
def _files(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    path = session.path(arguments.get("path", "."))
    shown = session.root.shown(path)
    if os.path.isfile(path):
        _file(session, answer, path, shown)
        return
    from hlofast._programs import listed

    # Programs behind links would be refused; their entries say that they are links.
    listed_here = [one for one in listed(path)[0] if session.is_admitted(one)]
    programs = _kinds.by_size(listed_here)
    answer.line(f"{shown}: {_text.counted(len(programs), 'program')}")
    told = [
        (one.name, one.host or None, one.files[0].stage, session.root.shown(one.files[0].path))
        for one in programs
    ]
    names = ("program", "host", "stage", "path")
    answer.section(
        Section("programs", "Programs", of_rows(_PROGRAMS, told), names), None, answer.top
    )
    with os.scandir(path) as found:
        first = zip(found, range(_MOST_ENTRIES), strict=False)
        entries = sorted(_entry(session, entry) for entry, _ in first)
    if not programs or len(entries) <= answer.top:
        answer.rows(Section("entries", "Entries", of_rows(_ENTRIES, entries)), None)


def _entry(session: Session, entry: os.DirEntry[str]) -> tuple[str, str, int | None]:
    if entry.is_symlink():
        return session.root.shown(entry.path), "link", None
    if entry.is_dir(follow_symlinks=False):
        return session.root.shown(entry.path), "folder", None
    return session.root.shown(entry.path), "file", entry.stat(follow_symlinks=False).st_size


def _file(session: Session, answer: Answer, path: str, shown: str) -> None:
    """The modules in a file, or what else it is."""
    from hlofast import _profiles, config

    if _profiles.is_profile(path):
        answer.line(f"{shown}: a profile; give it as the argument profile, with a dump as path")
        return
    with session.root.open(path) as file:
        start = file.read(_kinds.SAMPLE)
    if b"HloModule" not in start and config.is_config(start, path=path):
        answer.show(_kinds.trainer(shown, session.config(path)), ())
        return
    modules = session.modules.of_file(path)
    answer.line(f"{shown}: {_text.counted(len(modules), 'module')}")
    told = [(one.name, one.instruction_count) for one in modules]
    answer.rows(Section("modules", "Modules", of_rows(_TOLD_MODULES, told)), None)


def show(
    session: Session,
    answer: Answer,
    arguments: Mapping[str, Any],
    analyse: Callable[[Module], tuple[Result, Iterable[Section]]],
) -> None:
    """Writes the result of an analysis of the module that the arguments choose."""
    module, path = session.module(arguments)
    result, sections = analyse(module)
    answer.show(result, sections, path=path)


@tool(
    "verdict",
    "Step time, MFU, peak memory, exposed communication of a program, and what to change.",
    MODULE,
    "path",
    top=5,
)
def _verdict(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    def analyse(module: Module) -> tuple[Result, Iterable[Section]]:
        verdict = module.verdict()
        return verdict, [own for own in verdict.sections(answer.top) if own.name == "findings"]

    show(session, answer, arguments, analyse)


@tool(
    "cost",
    "FLOPs and bytes of a step, as executed, by phase, scope, source line or opcode; MFU.",
    {
        **MODULE,
        "by": schema.text("Key of the rows (default phase).", (
            "phase", "scope", "source", "source_file", "opcode", "dtype", "computation"
        )),
    },
    "path",
)  # fmt: skip
def _cost(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    def analyse(module: Module) -> tuple[Result, Iterable[Section]]:
        cost = module.cost()
        return cost, _named(cost.sections(arguments.get("by", "phase")), "groups", "unpriced")

    show(session, answer, arguments, analyse)


@tool(
    "time",
    "Modelled step time on a device: parts, what it waits for, and seconds by a key.",
    {
        **MODULE,
        "by": schema.text("Key of the rows (default bound).", (
            "bound", "phase", "scope", "source", "opcode", "computation"
        )),
    },
    "path",
)  # fmt: skip
def _time(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    def analyse(module: Module) -> tuple[Result, Iterable[Section]]:
        time = module.time()
        return time, _named(time.sections(arguments.get("by", "bound")), "parts", "groups")

    show(session, answer, arguments, analyse)


@tool(
    "memory",
    "Peak memory of a program, and the live values there (or while an instruction runs).",
    {
        **MODULE,
        "by": schema.text("Key of the sums (default class).", (
            "class", "phase", "scope", "source", "source_file", "op_name", "shape", "opcode", "name"
        )),
        "at": schema.text("Instruction: list the values live while it runs."),
        "space": schema.text("Memory space: hbm (default), vmem, host, or all."),
    },
    "path",
    top=5,
)  # fmt: skip
def _memory(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    def analyse(module: Module) -> tuple[Result, Iterable[Section]]:
        from hlofast._memory import quiet

        space = arguments.get("space")
        memory = quiet(module, space=space)
        sections = memory.sections(arguments.get("by", "class"), arguments.get("at"))
        return memory, [own for own in sections if own.name != "xla"]

    show(session, answer, arguments, analyse)


@tool(
    "collectives",
    "Collectives of a step: totals by mesh axis (or another key), then the largest ones.",
    {
        **MODULE,
        "by": schema.text("Show only totals by this key.", (
            "axis", "kind", "phase", "source", "tensor_kind", "scope"
        )),
    },
    "path",
    top=5,
)  # fmt: skip
def _collectives(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    def analyse(module: Module) -> tuple[Result, Iterable[Section]]:
        sent = module.collectives()
        return sent, sent.sections(arguments.get("by"))

    show(session, answer, arguments, analyse)


@tool(
    "lint",
    "What to change in the model, its sharding or checkpoint policy: findings with their cost.",
    {**MODULE, "only": schema.texts("Codes of findings to show.")},
    "path",
    top=5,
)
def _lint(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    def analyse(module: Module) -> tuple[Result, Iterable[Section]]:
        from hlofast._lint import RULES

        only = arguments.get("only", list(RULES))
        for code in only:
            if code not in RULES:
                hint = meant(code, RULES) or ";"
                raise RefusedError(f"only: unknown {code!r}{hint} known: {', '.join(RULES)}")
        findings = module.lint()
        return findings, _named(findings.sections(only), "codes", "findings")

    show(session, answer, arguments, analyse)


@tool(
    "remat",
    "Recomputation and residuals of a step; with hbm, the checkpoint policy that fits, as code.",
    {
        **MODULE,
        "policy": schema.text("Also show this policy of JAX, such as nothing_saveable."),
        "frontier": schema.flag("Also the best policies, memory against time."),
    },
    "path",
    top=5,
)
def _remat(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    def analyse(module: Module) -> tuple[Result, Iterable[Section]]:
        remat = module.remat()
        named, is_frontier = arguments.get("policy"), arguments.get("frontier", False)
        policy = None
        if (named or is_frontier) and remat.policies is None:
            raise RefusedError(str(remat.no_policies))
        if named and remat.policies is not None:
            policy = remat.policies.policy(named)
        if not (named or is_frontier or "hbm" in arguments):
            return remat, _named(remat.sections(), "phases", "statements", "residuals", "gathers")
        known = remat.sections(plan=True, policy=policy, frontier=is_frontier)
        usual = {own.name for own in remat.sections()}
        return remat, [own for own in known if own.name not in usual]

    show(session, answer, arguments, analyse)


@tool(
    "show",
    "One instruction or computation: shape, FLOPs, operands, users, attributes, source, text.",
    {**MODULE, "name": schema.text("Name, COMPUTATION/NAME, or #ROW as find gives it.")},
    "path",
    "name",
)
def _show(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    def analyse(module: Module) -> tuple[Result, Iterable[Section]]:
        from hlofast._show import Shown

        name = arguments["name"]
        if name[:1] == "#" and name[1:].isdecimal() and len(name) < 12:
            if int(name[1:]) >= len(module):
                raise RefusedError(f"no row {name}; the module has {len(module):,} rows")
            shown = Shown(module, module[int(name[1:])])
        else:
            shown = module.show(name)
        return shown, shown.sections()

    show(session, answer, arguments, analyse)


@tool(
    "find",
    "Instructions by opcode, name, scope, source file, shape or size; rows, and how many.",
    {
        **MODULE,
        "opcode": schema.texts("Opcodes, such as all-gather."),
        "name": schema.text("Part of the name."),
        "scope": schema.text("Part of the operation name (framework scope)."),
        "source": schema.text("Part of the source file."),
        "shape": schema.text("The shape, such as bf16[8,128]."),
        "computation": schema.text("Name of the computation."),
        "min_bytes": schema.text("Least size of the result, such as 1MiB."),
        "sort": schema.text("Column to sort by; -COLUMN puts the largest first."),
    },
    "path",
)
def _find(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    module, path = session.module(arguments)
    table = rows.found(module, arguments)
    answer.facts([("file", path), ("instructions", f"{len(table):,}")])
    answer.rows(Section("instructions", "Instructions", table), module)


@tool(
    "table",
    "Any table of any analysis, with columns, filter, sort, sums. Without table: their names.",
    {
        **MODULE,
        "analysis": schema.text("The analysis.", rows.ANALYSES),
        "table": schema.text("Name of the table."),
        "columns": schema.texts("Columns to show (default: the main ones; * for all)."),
        "where": schema.texts("Conditions that all hold: COLUMN=VALUE, != > >= < <= or ~ (contains)"
                              ", such as axes=model or total_wire_bytes>=1MiB."),
        "sort": schema.text("Column to sort by; -COLUMN puts the largest first."),
        "by": schema.text("Group by this column and add up."),
    },
    "path",
    "analysis",
)  # fmt: skip
def _table(session: Session, answer: Answer, arguments: dict[str, Any]) -> None:
    module, path = session.module(arguments)
    sections = rows.sections(module, arguments["analysis"])
    answer.facts([("file", path)])
    wanted = arguments.get("table")
    if wanted is None and len(sections) > 1:
        for name, own in sections.items():
            answer.line(f"{name} ({len(own.table):,} rows): {', '.join(own.table.columns)}")
        return
    section = sections.get(wanted) if wanted is not None else next(iter(sections.values()))
    if section is None:
        hint = meant(str(wanted), sections) or ";"
        raise RefusedError(f"no table {wanted!r}{hint} known: {', '.join(sections)}")
    answer.rows(rows.chosen(section, module, arguments), module)


def _named(sections: Iterable[Section], *names: str) -> list[Section]:
    return [own for own in sections if own.name in names]
