"""Identifies a file and gives the verdict: step time, MFU, peak memory, what to change."""

from __future__ import annotations

from hlofast import _kinds, _text
from hlofast._verdict import SHOWN, Verdict
from hlofast.cli import UNREADABLE, USAGE, inputs, results
from hlofast.errors import ConfigError, ContextError, ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from hlofast._context import Context
    from hlofast._programs import Program

EXAMPLES = """\
examples:
  hlofast step.txt                               the same as hlofast verdict step.txt
  hlofast dump/                                  the largest program of a dump directory
  hlofast dump/ --module jit_train_step
  hlofast --device tpu-v5p --mesh data=2,model=4 step.txt
  hlofast step.txt --json | jq '.results[].facts.step.value'

Times need a device: --device, or a dump folder that names it. Step time, MFU and exposed
communication are modelled, not measured (see hlofast time); --step-time adds the MFU of a measured
step. A note lists the unknown figures and the options that provide them.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    results.add_json(parser)
    _text.add_top(parser, SHOWN)
    inputs.add_context(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows the verdict of each file."""
    from hlofast import _files

    context = inputs.read_context(arguments)
    shower = results.Shower(Verdict, arguments)
    reader = _Reader(arguments, context, shower)
    code = 0
    for path in arguments.files:
        reader.files = [path]
        try:
            is_folder = _files.is_folder(path)
        except OSError as error:
            reader.failed(path, error)
            continue
        code = max(code, (_folder if is_folder else _file)(path, reader, shower, arguments))
    shower.end(reader.errors)
    return reader.exit_code() or code


def _file(path: str, reader: _Reader, shower: results.Shower, arguments: argparse.Namespace) -> int:
    """Shows the largest module of a file, or what a profile holds."""
    if _profile(path, reader, shower, arguments):
        return 0
    selected = sorted(reader, key=lambda loaded: -len(loaded.module))
    if not selected:
        return 0  # The reader has already reported the reason.
    options = _options(arguments)
    if len(selected) > 1:
        modules = [loaded.module for loaded in selected]
        shower.show(_kinds.several(path, modules, inputs.choices(selected), options))
    if len(selected) > 1:
        options = ["--module", inputs.choices(selected)[0], *options]
    elif arguments.module is not None:
        options = ["--module", arguments.module, *options]
    _show(selected[0], options, reader, shower, arguments)
    return 0


def _profile(
    path: str, reader: _Reader, shower: results.Shower, arguments: argparse.Namespace
) -> bool:
    """Shows the measured step of a profile's main program; returns whether `path` is a profile."""
    from hlofast._profile_modules import measured_of
    from hlofast._profile_verdict import ProfileVerdict

    try:
        summary = inputs.profile(path)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        inputs.Reader.failed(reader, path, error)  # The kind of file is known.
        return True
    if summary is None:
        return False
    profile = summary.profile
    if arguments.module is not None:
        # The module is read from the profile like any other, and measured by it.
        if reader.context_given.profile is None:
            reader.context = reader.context_given = reader.context_given.replace(profile=profile)
            arguments.profile = path
        return False
    measured, reason = None, ""
    try:
        measured = measured_of(profile, path, None, None, reader.context_given)
    except ContextError:
        raise
    except (OSError, ValueError) as error:
        reason = str(error)
    arguments.profile = None  # The file takes its place in the commands.
    options = _options(arguments)
    shower.show(ProfileVerdict(profile, measured, path=path, options=options, reason=reason))
    return True


def _folder(
    path: str, reader: _Reader, shower: results.Shower, arguments: argparse.Namespace
) -> int:
    """Shows the programs of a dump directory, and the verdict of the largest."""
    from hlofast._programs import listed, whole

    try:
        programs, _ = listed(path)
    except (OSError, ValueError) as error:
        reader.failed(path, error)
        return UNREADABLE
    if arguments.module is not None:
        wanted = arguments.module
        named = [program for program in programs if _answers(program, wanted)]
        if programs and not named:
            from hlofast._names import meant

            hint = meant(wanted, [program.name for program in programs])
            inputs.complain(f"{path}: no program {wanted!r}{hint}")
            return USAGE
        programs = named
    if not programs:
        if _profile(path, reader, shower, arguments):
            return 0
        configs, known = ([], None) if "://" in path else _kinds.without_programs(path)
        if configs:
            shower.show(_kinds.trainers(path, configs))
            return 0
        why = f"no XLA dumps here: {known}" if known else _kinds.NO_DUMPS
        reader.failed(path, ValueError(why))
        return UNREADABLE
    programs = _kinds.by_size(programs)
    options = _options(arguments)
    shower.show(_kinds.folder(path, programs, options))
    file = programs[0].files[0].path
    try:
        module = inputs.told(whole(file), reader.context_given, file)
    except (OSError, ValueError) as error:
        if isinstance(error, ContextError):
            raise
        reader.failed(file, error)
        return UNREADABLE
    _show(inputs.Found(module, file, 1, programs[0].key), options, reader, shower, arguments)
    return 0


def _answers(program: Program, name: str) -> bool:
    return program.answers_to(int(name) if name.isdecimal() and len(name) < 10 else name)


def _show(
    loaded: inputs.Found,
    options: Sequence[str],
    reader: _Reader,
    shower: results.Shower,
    arguments: argparse.Namespace,
) -> None:
    path = "-" if loaded.path == "<stdin>" else loaded.path
    if loaded.module.is_fragment:
        shower.show(_kinds.fragment(path, loaded.module, options))
        return
    try:
        verdict = Verdict(loaded.module, path=path, options=options)
    except (ValueError, OverflowError) as error:
        if isinstance(error, ContextError):
            raise
        reader.failed(loaded.path, error)
        return
    shower.show(verdict, verdict.sections(arguments.top or None), loaded)


def _options(arguments: argparse.Namespace) -> list[str]:
    """Returns the context options of this run, to repeat them in suggested commands."""
    words = []
    for name in ("mesh", "hosts", "slices", "device", "devices", "rules", "hbm", "profile"):
        if (value := getattr(arguments, name)) is not None:
            words += [f"--{name}", str(value)]
    if arguments.step_seconds is not None:
        words += ["--step-time", arguments.step_seconds]
    return words


class _Reader(inputs.Reader):
    """A reader that identifies files without modules."""

    def __init__(
        self, arguments: argparse.Namespace, context: Context, shower: results.Shower
    ) -> None:
        super().__init__(arguments, context, shower=shower)
        self.context_given = context
        self._shower = shower

    def failed(self, path: str, error: Exception, reason: str | None = None) -> None:
        """Records a file without modules, with its kind if hlofast recognises it."""
        if isinstance(error, ParseError) and path != "<stdin>":
            try:
                content = inputs.read(path, _kinds.SAMPLE)
            except OSError:
                content = b""
            if self._is_config(path, content):
                return
            known = _kinds.foreign(_kinds.beginning(content))
            if known is not None:
                super().failed(path, ValueError(known))
                return
        super().failed(path, error, reason)

    def _is_config(self, path: str, start: bytes) -> bool:
        """Shows a file if it is a trainer config; returns whether it is."""
        if b"HloModule" in start:
            return False
        from hlofast import config

        if not config.is_config(start, path=path):
            return False
        try:
            self._shower.show(_kinds.trainer(path, config.loads(inputs.read(path), path=path)))
        except (OSError, ConfigError) as error:
            super().failed(path, error)
        return True
