"""Arguments shared by several verbs: files, the modules in them, and the context of a run."""

from __future__ import annotations

import errno
import sys

import hlofast
from hlofast import _text as output
from hlofast._context import FRAMES
from hlofast.cli import UNREADABLE, USAGE, values

TYPE_CHECKING = False  # Importing typing would take longer than reading a small dump.
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any, TextIO

    from hlofast import Context, Mesh, Messages, Module, ProfileSummary
    from hlofast.cli.results import Shower
    from hlofast.devices import Device

OUT_OF_MEMORY = "out of memory while reading it"
_WITHOUT_MODULES = ("no-module", "not-hlo")
"""Kinds of errors of texts in which no module begins."""


def add_files(parser: argparse.ArgumentParser, *, several: bool = True) -> None:
    """Declares the arguments that select files and modules."""
    parser.add_argument(
        "files" if several else "file",
        nargs="+" if several else None,
        metavar="FILE",
        help="HLO text (plain, compressed or embedded in other text), a protobuf (.hlo.pb) or a "
        "profile (.xplane.pb); "
        '"-" is standard input',
    )
    parser.add_argument("--module", metavar="NAME", help="read only modules of this name")


def note_misfit(module: Module, path: str, mesh: Mesh | None) -> None:
    """Raises `ContextError` if the given mesh has another number of devices than the module."""
    if mesh is not None:
        from hlofast._context import refuse_misfit

        try:
            refuse_misfit(module, mesh)
        except hlofast.ContextError as error:
            raise hlofast.ContextError(f"{path}: {error}") from None


WITHOUT_CONTEXT = {
    "config": "reads no module; mesh, device and memory come from its mesh rules",
    "plan": "reads no module; mesh, device and memory are what it chooses or is given",
    "scan": "takes the options of `add_place` and `add_names` only: no table depends on a memory "
    "budget or a measured step, and datasets stay comparable when phases follow the frameworks' "
    "conventions",
    "profile": "its first argument is the profile",
    "calibrate": "its first argument is the profile",
    "query": "reads tables that a scan made in its own context",
    "schema": "reads no module",
    "mcp": "every call of a tool has its own",
    "guide": "reads no module",
    "completion": "reads no module",
}
"""Verbs without some options of `add_context`, and why these options would not change anything."""


def add_place(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments that say where modules run: the device mesh and the chip."""
    parser.add_argument(
        "--mesh", metavar="data=2,model=4", help="mesh axes (default: the mesh in the text)"
    )
    parser.add_argument(
        "--hosts", type=values.part, metavar="N", help="number of hosts in the mesh"
    )
    add_slices(parser)
    add_device(parser)
    parser.add_argument(
        "--devices", metavar="FILE.toml", help="file that adds devices or changes built-in ones"
    )


def add_slices(parser: argparse.ArgumentParser) -> None:
    """Declares the argument that gives the number of slices."""
    parser.add_argument(
        "--slices", type=values.part, metavar="N", help="number of slices in the mesh"
    )


def add_device(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Declares the argument that names the chip; it may be repeated if `several`."""
    parser.add_argument(
        "--device",
        action="append" if several else "store",
        default=[] if several else None,
        metavar="NAME",
        help="chip, such as tpu-v5p or h100",
    )


def add_context(parser: argparse.ArgumentParser, *, profile: bool = True) -> None:
    """Declares the arguments that describe the run, the same for every verb over modules.

    `profile` is false for a verb whose first argument is the profile.
    """
    add_place(parser)
    parser.add_argument(
        "--rules", metavar="FILE.toml", help="file that assigns phases to operation names"
    )
    parser.add_argument("--hbm", metavar="16GiB", help="memory budget of a device")
    parser.add_argument(
        "--step-time",
        "--step-seconds",
        dest="step_seconds",
        metavar="300ms",
        help="measured step time",
    )
    if profile:
        parser.add_argument(
            "--profile",
            metavar="PATH",
            help="profile of the run (*.xplane.pb, its folder, nsys-jax): adds measured times",
        )
    add_names(parser)


def add_names(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments that select source lines and scopes."""
    parser.add_argument(
        "--frame",
        choices=FRAMES,
        help="stack frame in source columns and sums: the first outside libraries (user, default), "
        "the innermost, or the whole stack",
    )
    parser.add_argument(
        "--library",
        dest="libraries",
        action="append",
        metavar="PREFIX",
        help="further package or folder to treat as a library, in addition to installed packages, "
        "flax, haiku, praxis, optax, equinox and jax; may be repeated",
    )
    parser.add_argument(
        "--merge-layers",
        action="store_true",
        default=None,
        help="write layer_* for layer_0 to layer_47 in scopes, so that sums count layers as one",
    )


def read_context(arguments: argparse.Namespace) -> Context:
    """Returns the context that the arguments of `add_context` or `add_place` describe.

    Raises `ContextError`, which ends the command with exit code 2, for an invalid value.
    """
    told = hlofast.Context()
    named = ("libraries", "frame", "merge_layers")
    usual = ("mesh", "device", "rules", "hbm", "step_seconds", "hosts", "slices")
    for name in (*usual, "profile", *named):
        text = getattr(arguments, name, None)
        if text is None or (name in ("hosts", "slices") and arguments.mesh is not None):
            continue
        called = {"step_seconds": "step-time", "libraries": "library"}.get(name, name)
        option = text if name == "rules" else f"--{called} {text}"
        if name == "libraries":
            option = f"--library {' '.join(text)}"
        try:
            changes: dict[str, Any] = {name: text}
            if name == "mesh":
                changes |= {"hosts": arguments.hosts, "slices": arguments.slices}
            elif name == "device":
                changes[name] = _device(text, arguments.devices)
            told = told.replace(**changes)
        except OSError as error:
            place = error.filename or option
            raise hlofast.ContextError(f"{place}: {error.strerror or error}") from None
        except (ValueError, OverflowError) as error:
            # Messages from file readers already start with the file or the option.
            others = ("devices", "rules", "profile")
            files = (getattr(arguments, other, None) for other in others)
            named = (*filter(None, files), f"{option}:")
            text = str(error) if str(error).startswith(named) else f"{option}: {error}"
            raise hlofast.ContextError(text) from None
    if getattr(arguments, "hbm", None) is not None:
        note_small(arguments.hbm)
    if getattr(arguments, "devices", None) is not None and arguments.device is None:
        told = told.replace(device=_only_device(arguments.devices))
    return told


def _device(name: str, table: str | None) -> Device:
    from hlofast import devices

    return (devices.load(table) if table else devices.built_in())[name]


def _only_device(table: str) -> Device:
    """Returns the device that a file adds or changes, if there is one only."""
    from hlofast import devices

    try:
        loaded = devices.load(table)
    except OSError as error:
        raise hlofast.ContextError(f"{table}: {error.strerror or error}") from None
    except ValueError as error:
        raise hlofast.ContextError(str(error)) from None
    usual = dict(devices.built_in())
    own = [device for name, device in loaded.items() if usual.get(name) != device]
    if len(own) != 1:
        names = output.names([device.name for device in own]) if own else "none"
        raise hlofast.ContextError(
            f"{table} adds or changes {output.counted(len(own), 'device')} ({names}): "
            "choose with --device NAME"
        )
    return own[0]


def note_small(size: str) -> None:
    """Prints a note for an `--hbm` without a unit that is below 1 MiB: it is read as bytes."""
    number = size.strip()
    is_number = number.isascii() and number.isdigit() and len(number) <= values.MOST_DIGITS
    if is_number and 0 < int(number) < 1 << 20:
        complain(f"note: --hbm {number} is read as bytes; did you mean {number}GiB or {number}MiB?")


class Found:
    """A module and its place: file, line and label."""

    __slots__ = ("label", "line", "module", "number", "path")

    def __init__(self, module: Module, path: str, line: int, label: str | None) -> None:
        self.module = module
        self.path = path
        self.line = line
        self.label = label
        self.number = 0
        """The place of the module among those of the file, from 0, as `hlofast.load` counts."""

    def place(self) -> dict[str, Any]:
        """The place of the module as JSON."""
        return {"path": self.path, "line": self.line, "label": self.label}

    def describe(self) -> dict[str, Any]:
        """The place and name of the module as JSON."""
        return {"path": self.path, "line": self.line, "label": self.label, "name": self.module.name}


class Failures:
    """Collects the inputs that could not be read; each is reported on standard error at once."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []
        self._is_unread = False

    def refused(self, path: str, message: str) -> None:
        """Records and reports that the arguments do not apply to an input: exit code 2."""
        complain(message)
        self.errors.append(_record(path, "ValueError", message))

    def failed(self, path: str, error: Exception, reason: str | None = None) -> None:
        """Records and reports an input that cannot be read or analysed."""
        record = _record(path, type(error).__name__, str(error))
        if isinstance(error, hlofast.ParseError):
            record |= {"line": error.line, "column": error.column, "kind": error.kind}
            complain(str(error))
        else:
            reason = reason or getattr(error, "strerror", None) or str(error)
            # Errors of the reader already begin with the path.
            complain(reason if reason.startswith(f"{path}:") else f"{path}: {reason}")
        self.errors.append(record)
        self._is_unread = True


def _record(path: str, kind: str, message: str) -> dict[str, Any]:
    """An error as JSON."""
    return {"path": path, "line": None, "column": None, "kind": kind, "message": message}


class Reader(Failures):
    """Iterates over the modules that the arguments select; reports inputs that cannot be read."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        context: Context | None = None,
        *,
        shower: Shower | None = None,
    ) -> None:
        super().__init__()
        self.context = context
        """The context of the run, from `read_context`."""
        self.shower = shower
        """Shows messages that stand in texts beside modules, or instead of them; None for verbs
        that point to `hlofast oom`."""
        self.files: list[str] = getattr(arguments, "files", None) or [arguments.file]
        self.wanted: str | None = arguments.module
        self._nothing_matched: list[str] = []
        self._content = b""

    def exit_code(self) -> int:
        """Returns the exit code that the inputs require."""
        if self._is_unread:
            return UNREADABLE
        return USAGE if self._nothing_matched or self.errors else 0

    def __iter__(self) -> Iterator[Found]:
        for path in self.files:
            yield from self.modules_of(path)

    def modules_of(self, path: str) -> Iterator[Found]:
        """The selected modules of one file."""
        names: list[str] = []
        matched = False
        for loaded in self._find(path):
            loaded.number = len(names)
            names.append(loaded.module.name)
            # Profiles tell programs of one name apart by their labels, logs by their order.
            own = (loaded.module.name, loaded.label, str(loaded.number))
            if self.wanted is None or self.wanted in own:
                matched = True
                yield loaded
        if names and not matched:
            self._nothing_matched.append(path)
            held = ", ".join(sorted(set(names)))
            complain(f"{path}: no module {self.wanted!r}; the file holds {held}")

    def _find(self, path: str) -> Iterator[Found]:
        if path != "-" and "://" not in path and is_profile(path):
            yield from self._in_profile(path)
            return
        name = "<stdin>" if path == "-" else path
        try:
            self._content = content = read(path)
            modules = hlofast.find_modules(content, path=name)
        except IsADirectoryError as error:
            self.failed(name, error, "is a folder: `hlofast FOLDER` names its programs")
            return
        except OSError as error:
            self.failed(name, error)
            return
        except hlofast.ParseError as error:
            if not self._holds_messages(path, name, error):
                self.failed(name, error)
            return
        except MemoryError as error:
            self.failed(name, error, OUT_OF_MEMORY)
            return
        if modules and modules[0].line > 1:
            self._beside(name)
        for part in modules:
            if part.error is not None:
                self.failed(name, part.error)
            elif part.module is not None:
                if (fault := part.module.missing_entry) is not None:
                    # The module is still shown, but a note tells that it is not a whole program.
                    self.failed(name, fault)
                module = part.module
                if self.context is not None:
                    module = told(module, self.context, name)
                yield Found(module, name, part.line, part.label)

    def _in_profile(self, path: str) -> Iterator[Found]:
        """The modules of a profile, measured by it.

        Without `--module` the one with the most device time; a note names the others, which are
        mostly small programs that JAX runs on the way.
        """
        from hlofast import _profile_modules, _profiles

        count = 0
        others: list[str] = []
        main = ""
        try:
            profile = _profiles.load_profile(path)
            with _profile_modules.modules_of(profile, path) as modules:
                for label, module in modules:
                    count += 1
                    if isinstance(module, hlofast.ParseError):
                        self.failed(path, module)
                        continue
                    if main and self.wanted is None:
                        others.append(label or module.name)
                        continue
                    main = label or module.name
                    if (context := self.context) is not None:
                        if context.profile is None:
                            context = context.replace(profile=profile)
                        module = told(module, context, path)
                        _ = module.context  # Reads the files beside the module while they exist.
                    yield Found(module, path, 1, label)
        except hlofast.ContextError:
            raise
        except (OSError, ValueError, ModuleNotFoundError) as error:
            self.failed(path, error)
            return
        except MemoryError as error:
            self.failed(path, error, OUT_OF_MEMORY)
            return
        if others:
            listed = output.names(others)
            programs = output.counted(len(others), "further program")
            complain(
                f"{path}: note: {main} has the most device time; {programs} with --module: {listed}"
            )
        if not count:
            reason = "a profile without modules (the *.xplane.pb next to it has those of a "
            reason += f"*.trace.json.gz); give the dump, with --profile {_shell(path)}"
            self.failed(path, ValueError(reason))

    def _holds_messages(self, path: str, name: str, error: hlofast.ParseError) -> bool:
        """Whether a file without modules holds messages; passes them to `found_messages`."""
        if error.kind not in _WITHOUT_MODULES:
            return False
        messages = self._messages(name)
        if messages is not None:
            self.found_messages(path, messages)
        return messages is not None

    def _messages(self, name: str) -> Messages | None:
        """Returns the messages of the file that was read last; None without any."""
        from io import BytesIO

        from hlofast._messages.api import try_stream

        try:
            return try_stream(BytesIO(self._content), path=name, context=self.context)
        except hlofast.ParseError:
            return None  # Compressed in a form that this Python does not read.

    def found_messages(self, path: str, messages: Messages) -> None:
        """Shows the messages of a file without modules, or says which verb reads them."""
        if self.shower is not None:
            self.shower.show(messages)
            return
        what = "one of XLA's memory files" if messages.is_file else "messages of a compiler"
        hint = "" if path == "-" else f": {_shell('hlofast', 'oom', path)}"
        self.failed(
            messages.title, ValueError(f"no HLO module found, but {what}; oom reads them{hint}")
        )

    def _beside(self, name: str) -> None:
        """Shows the messages in a text that holds more than modules."""
        from hlofast._messages.find import contains

        if self.shower is not None and contains(self._content):
            messages = self._messages(name)
            if messages is not None:
                self.shower.show(messages)


def _shell(*words: str) -> str:
    import shlex

    return shlex.join(words)


def profile(path: str, wanted: str | None = None) -> ProfileSummary | None:
    """Returns the summary of a profile: a file, or a folder with recordings; None for other paths.

    With `wanted`, the name of a module in it, the path stands for that module. Raises `OSError` and
    `ValueError` for a profile that cannot be read.
    """
    if wanted is not None or path == "-" or not is_profile(path):
        return None
    from hlofast import _profiles

    return _profiles.load_profile(path).summary(path)


def is_profile(path: str) -> bool:
    """Whether a path is a profile: a file, or a folder with recordings."""
    from hlofast import _files, _nsys, _profiles

    is_found = _profiles.runs(path) if _files.is_folder(path) else _profiles.is_profile(path)
    return bool(is_found) or _nsys.is_archive(path)


def told(module: Module, context: Context, path: str) -> Module:
    """Returns the module with the context of its run; a `ContextError` names the file."""
    try:
        return module.with_context(context)
    except hlofast.ContextError as error:
        raise type(error)(f"{path}: {error}") from None


def note_unmeasured(module: Module, path: str) -> None:
    """Prints a note if the profile of the context does not measure the module.

    For verbs whose output has no notes; results have the note themselves.
    """
    from hlofast._context import unmeasured

    if (text := unmeasured(module)) is not None:
        complain(f"{path}: note: {text}")


def choices(selected: list[Found]) -> list[str]:
    """Returns what `--module` takes for each module of a file: its name, label or number."""
    names = [loaded.module.name for loaded in selected]
    labels = [str(loaded.label) for loaded in selected if loaded.label]
    numbers = [str(loaded.number) for loaded in selected]
    return next(own for own in (names, labels, numbers) if len(set(own)) == len(selected))


def only(reader: Reader) -> Found | None:
    """Returns the selected module, or None unless exactly one is selected.

    Reports several modules as an error; the reader reports unreadable modules.
    """
    selected = list(reader)
    if len(selected) > 1:
        complain(
            f"{selected[0].path} holds {len(selected)} modules; choose one with --module: "
            f"{output.names(choices(selected))}"
        )
    return selected[0] if len(selected) == 1 else None


def add_instance(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Declares the arguments that select the instance for a trainer config."""
    parser.add_argument(
        "--instance",
        action="append" if several else "store",
        default=[] if several else None,
        metavar="NAME",
        help="instance for a trainer config, such as tpu-v5litepod-256-4"
        + ("; may be repeated" if several else ""),
    )
    parser.add_argument(
        "--device-count",
        type=values.count,
        metavar="N",
        help="number of devices, if the instance name does not give it or gives another number",
    )


def read(path: str, most: int | None = None) -> bytes:
    """Returns the bytes of a FILE argument, at most `most`; raises `OSError` if reading fails."""
    try:
        if path == "-":
            return _standard_input()
        if "://" in path:
            from hlofast import _remote

            return _remote.read(path, most=most)
        with open(path, "rb") as file:
            return file.read(-1 if most is None else most)
    except MemoryError:
        raise OSError(errno.ENOMEM, OUT_OF_MEMORY, path) from None


_consumed: list[TextIO] = []
"""Standard inputs that were read to their end; tests replace `sys.stdin`."""


def _standard_input() -> bytes:
    content = sys.stdin.buffer.read()
    if not content and any(own is sys.stdin for own in _consumed):
        raise OSError(errno.EINVAL, "standard input is read already; give - once", "-")
    _consumed.append(sys.stdin)
    return content


def complain(message: str) -> None:
    """Prints an error to standard error."""
    output.complain(message)
