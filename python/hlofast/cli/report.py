"""Writes one self-contained HTML page: verdict, charts, tables and every instruction."""

from __future__ import annotations

from importlib.util import find_spec

from hlofast import _files
from hlofast import _text as output
from hlofast.cli import DONE, UNREADABLE, USAGE, inputs, pages, results
from hlofast.cli.check import UsageError, read_declaration

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast import Context
    from hlofast._report import Report

EXAMPLES = """\
examples:
  hlofast report module_0042.jit_train_step.after_optimizations.txt -o report.html
  hlofast report --device tpu-v5p --mesh data=2,model=4 step.txt -o report.html
  hlofast report dumps/ -o dumps.html              ranked programs with their pages, hosts, passes
  hlofast report --config mesh.toml step.txt -o report.html
  hlofast report --config fuji-70B.txt --instance tpu-v6e-256-4 step.txt -o report.html

The page is one self-contained file for browsers from 2023 on: send it, archive it, open it from
disk. Figures that need --device or --mesh are unknown without them. --config takes a declaration,
like `hlofast check`. Interactive charts need bokeh (pip install 'hlofast[report]'); without it,
charts are static; with --no-charts, the page has only tables. The pages of a directory's programs
are in a folder next to PAGE. The findings of `hlofast lint` are followed by advice from `hlofast
remat`. The page is always HTML; names that end in other formats, such as .pdf or .json, are
refused. With -o -, the page goes to standard output, the verdict is not printed, and the page of a
directory has no links.
"""
SHOWN = 3
"""Default number of findings printed; the page has all."""
_READ = ("file", "config", "devices", "rules", "profile")
"""Arguments that name files to read."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser, several=False, top=SHOWN)
    parser.add_argument(
        "-o",
        "--output",
        metavar="PAGE",
        required=True,
        help='write the page to PAGE atomically; "-" is standard output',
    )
    parser.add_argument(
        "--config", metavar="CONFIG", help="declaration: a TOML description or a golden config"
    )
    inputs.add_instance(parser)
    parser.add_argument(
        "--pages",
        type=output.natural,
        default=12,
        metavar="N",
        help="programs of a directory that get a page of their own, most FLOPs first (default 12)",
    )
    parser.add_argument("--no-charts", action="store_true", help="leave out charts (and bokeh)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the page."""
    read = [getattr(arguments, name) for name in _READ]
    if (code := pages.check(arguments.output, read, is_json=arguments.json)) != DONE:
        return code
    context = inputs.read_context(arguments)
    declaration: Any = None
    for option in ("instance", "device_count"):
        if arguments.config is None and getattr(arguments, option) is not None:
            inputs.complain(f"--{option.replace('_', '-')} needs --config")
            return USAGE
    try:
        if arguments.config is not None:
            declaration = read_declaration(
                arguments.config, arguments.instance, arguments.device_count
            )
    except UsageError as error:
        inputs.complain(f"{arguments.config}: {error}")
        return USAGE
    except (OSError, ValueError) as error:
        inputs.Failures().failed(arguments.config, error)
        return UNREADABLE
    try:
        if _files.is_folder(arguments.file):
            report, code = _of_directory(arguments, context)
        else:
            report, code = _of_file(arguments, context, declaration)
    except OSError as error:
        inputs.Failures().failed(arguments.file, error)
        return UNREADABLE
    if report is None:
        return code
    try:
        report.save(arguments.output)
    except OSError as error:
        return pages.refused(arguments.output, error)
    for note in report.notes:
        if note.code == "no-page":
            inputs.complain(f"{arguments.file}: {note.text}")
    if not _files.is_standard_output(arguments.output):
        _say(arguments, report)
    if not arguments.no_charts and find_spec("bokeh") is None:
        from hlofast._report.chart import missing

        inputs.complain(f"note: the charts of the page are static, as {missing('bokeh')}")
    return code


def _of_directory(arguments: argparse.Namespace, context: Context) -> tuple[Report | None, int]:
    """Returns the page about a dump directory, and the exit code."""
    from hlofast._kinds import NoDumpsError
    from hlofast._report import of_directory

    if arguments.config is not None or arguments.module is not None:
        inputs.complain(f"{arguments.file}: a directory; --config and --module need a single file")
        return None, USAGE
    try:
        made = of_directory(
            arguments.file,
            arguments.output,
            device=context.device,
            mesh=context.mesh,
            plots=not arguments.no_charts,
            pages=arguments.pages,
        )
    except NoDumpsError as error:
        inputs.complain(str(error))
        return None, UNREADABLE
    return made, DONE


def _of_file(
    arguments: argparse.Namespace, context: Context, declaration: Any
) -> tuple[Report | None, int]:
    """Returns the page about the one module of a file, and the exit code."""
    from hlofast._report import of_module

    reader = inputs.Reader(arguments, context)
    selected = list(reader)
    if len(selected) > 1:
        names = output.names(inputs.choices(selected))
        inputs.complain(f"{arguments.file}: several modules; choose one with --module: {names}")
        return None, USAGE
    if not selected:
        _say_if_config(arguments.file)
        return None, reader.exit_code() or UNREADABLE
    report = of_module(
        selected[0].module,
        config=declaration,
        plots=not arguments.no_charts,
        source=selected[0].path,
    )
    return report, reader.exit_code()


def _say_if_config(path: str) -> None:
    """Names the verb that makes a page of a trainer config."""
    from hlofast import _kinds, config

    try:
        start = b"" if path == "-" else inputs.read(path, _kinds.SAMPLE)
    except OSError:
        return
    if start and b"HloModule" not in start and config.is_config(start, path=path):
        inputs.complain(f"note: {path} is a trainer config: hlofast plan writes a page about it")


def _say(arguments: argparse.Namespace, report: Report) -> None:
    """Prints the verdict of the page and the first findings."""
    from hlofast._report import Report as Kind

    shower = results.Shower(Kind, arguments)
    shower.show(report)
    shower.end([])
