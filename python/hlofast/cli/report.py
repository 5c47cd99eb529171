"""A page to open in a browser: verdict, charts, tables and every instruction, in one file."""

from __future__ import annotations

import os
from importlib.util import find_spec

from hlofast import _files
from hlofast import _text as output
from hlofast.cli import DONE, UNREADABLE, USAGE, inputs, results
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
  hlofast report dumps/ -o dumps.html              programs ranked, hosts that differ, passes
  hlofast report --config mesh.toml step.txt -o report.html
  hlofast report --config fuji-70B.txt --instance tpu-v6e-256-4 step.txt -o report.html

The page is one file that loads nothing, for any browser of 2023 or later: it can be sent, kept and
opened from disk. What is not known without --device or --mesh is said to be unknown. --config is
what was declared, as `hlofast check` reads it. Charts need bokeh (pip install 'hlofast[report]');
without it, and with --no-charts, there are the tables alone. Findings are those of `hlofast lint`,
then what else `hlofast remat` says is to be changed. What is written is HTML, whatever the name of
PAGE ends in; names that mean another format are refused.
"""
OTHERS = frozenset(
    f".{name}"
    for name in (
        *("csv", "docx", "gz", "ipynb", "jpeg", "jpg", "json", "md", "pdf", "png", "svg", "txt"),
        *("webp", "xlsx", "xml", "xz", "zip", "zst"),
    )
)
"""Endings of names whose owners expect something else than a page."""
SHOWN = 3
"""Findings that are printed unless `--top` says otherwise; the page has all."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser, several=False, top=SHOWN)
    parser.add_argument(
        "-o", "--output", metavar="PAGE", required=True, help="the page to write, all or nothing"
    )
    parser.add_argument(
        "--config", metavar="CONFIG", help="what was declared: a TOML description or golden config"
    )
    inputs.add_instance(parser)
    parser.add_argument("--no-charts", action="store_true", help="tables alone, without bokeh")


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    ending = os.path.splitext(arguments.output)[1].lower()
    if ending in OTHERS:
        inputs.complain(f"{arguments.output}: pages are HTML; give -o a name that ends in .html")
        return USAGE
    context = inputs.read_context(arguments)
    declaration: Any = None
    for option in ("instance", "device_count"):
        if arguments.config is None and getattr(arguments, option) is not None:
            inputs.complain(f"--{option.replace('_', '-')} goes with --config")
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
        inputs.complain(f"{arguments.output}: {error.strerror or error}")
        return UNREADABLE
    _say(arguments, report)
    if not arguments.no_charts and find_spec("bokeh") is None:
        from hlofast._report.chart import missing

        inputs.complain(f"note: the page has no charts, as {missing('bokeh')}")
    return code


def _of_directory(arguments: argparse.Namespace, context: Context) -> tuple[Report | None, int]:
    """The page about a dump directory, and the exit code."""
    from hlofast._report import report
    from hlofast._report.directory import NoDumpsError

    if arguments.config is not None or arguments.module is not None:
        inputs.complain(f"{arguments.file}: a directory; --config and --module are of one module")
        return None, USAGE
    try:
        made = report(
            arguments.file,
            device=context.device,
            mesh=context.mesh,
            plots=not arguments.no_charts,
        )
    except NoDumpsError as error:
        inputs.complain(str(error))
        return None, USAGE
    return made, DONE


def _of_file(
    arguments: argparse.Namespace, context: Context, declaration: Any
) -> tuple[Report | None, int]:
    """The page about the one module of a file, and the exit code."""
    from hlofast._report import of_module

    reader = inputs.Reader(arguments, context)
    found = list(reader)
    if len(found) > 1:
        names = output.names([one.module.name for one in found])
        inputs.complain(f"{arguments.file}: several modules, name one with --module: {names}")
        return None, USAGE
    if not found:
        return None, reader.exit_code() or UNREADABLE
    report = of_module(
        found[0].module,
        config=declaration,
        plots=not arguments.no_charts,
        source=found[0].path,
    )
    return report, reader.exit_code()


def _say(arguments: argparse.Namespace, report: Report) -> None:
    """Show what was written: its verdict and the first findings."""
    from hlofast._report import Report as Kind

    shower = results.Shower(Kind, arguments)
    shower.show(report)
    shower.end([])
