"""Runs SQL over the tables of a scan: modules, collectives, matmuls, buffers, findings, files."""

from __future__ import annotations

import os
import sys

from hlofast import _scan
from hlofast import _text as output
from hlofast.cli import UNREADABLE, USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._scan.query import Query

EXAMPLES = f"""\
examples:
  hlofast query tables 'SELECT module, flops, live_peak FROM modules ORDER BY flops DESC'
  hlofast query tables 'DESCRIBE collectives'            columns and types of a table
  hlofast query tables "FROM files WHERE status = 'failed'" --json
  hlofast query tables 'FROM lint' -o findings.csv       or .jsonl, .parquet
  hlofast query dumps/ - < report.sql                    scans the dumps first, in memory

Tables: {", ".join(("programs", *_scan._TABLES))}.
The table instructions exists only if the scan included it (--tables). The SQL dialect is DuckDB's.
A query reads only these tables and cannot write. Unknown values are null.
"""
_SHOWN = 100
_FORMATS = _scan.formats.FORMATS


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("path", metavar="DIR", help="dataset of hlofast scan, or dumps")
    parser.add_argument("sql", metavar="SQL", help='SELECT statement; "-" is standard input')
    parser.add_argument("-o", "--output", metavar="FILE", help="write all rows to FILE")
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        help="format of the rows (default: by the ending of FILE; a table on standard output)",
    )
    parser.add_argument(
        "--top",
        type=output.natural,
        metavar="N",
        help=f"maximum number of rows, 0 for all (default: all; {_SHOWN} in a text table)",
    )
    results.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the query."""
    wrong = _contradiction(arguments)
    if wrong:
        inputs.complain(wrong)
        return USAGE
    from hlofast._scan import query

    try:
        sql = sys.stdin.read() if arguments.sql == "-" else arguments.sql
        query.needed()
        dataset = _dataset(arguments.path)
        with query.Query(dataset, sql) as answer:
            _give(answer, arguments)
        return _code(dataset, arguments.path)
    except query.QueryError as error:
        inputs.complain(str(error))
        return USAGE
    except ModuleNotFoundError as error:
        # The Parquet dataset was written on another machine; hlofast[duckdb] includes pyarrow.
        inputs.complain(str(error).replace("hlofast[arrow]", "hlofast[duckdb]"))
        return USAGE
    except BrokenPipeError:
        raise
    except OSError as error:
        name = error.filename or arguments.path
        inputs.complain(f"{name}: {error.strerror or error}")
        return UNREADABLE
    except ValueError as error:
        inputs.complain(str(error))
        return UNREADABLE


def _code(dataset: _scan.Scan, path: str) -> int:
    """Returns the exit code; says so where the rows lack files that could not be read."""
    if dataset.path is not None:
        return 0  # The scan that wrote the dataset has reported them.
    if dataset.has_no_modules:
        from hlofast._kinds import NO_DUMPS

        inputs.complain(f"{path}: {NO_DUMPS}")
        return UNREADABLE
    if failed := dataset.counts["failed"]:
        files = output.counted(failed, "file")
        inputs.complain(
            f"{path}: {files} could not be read and are left out; hlofast scan {path} lists them"
            if failed > 1
            else f"{path}: {files} could not be read and is left out; hlofast scan {path} names it"
        )
        return UNREADABLE
    return 0


def _contradiction(arguments: argparse.Namespace) -> str | None:
    """Sets the format; returns an error message for contradictory arguments."""
    if arguments.json and (arguments.output or arguments.format):
        return "--json prints one document, -o and --format write rows: choose one"
    if arguments.output == "-":
        arguments.output = None
        arguments.format = arguments.format or "jsonl"
    if arguments.output and arguments.format is None:
        ending = os.path.splitext(arguments.output)[1].removeprefix(".")
        if ending not in _FORMATS:
            return f"{arguments.output}: unknown ending; give --format {', '.join(_FORMATS)}"
        arguments.format = ending
    if arguments.format == "parquet" and not arguments.output:
        return "Parquet needs a file: -o FILE"
    return None


def _dataset(path: str) -> _scan.Scan:
    """Returns the dataset at `path`, or a scan of the dumps there."""
    from hlofast._scan.folder import DatasetError
    from hlofast._scan.query import is_dataset

    if "://" in path:
        try:
            return _scan.open_dataset(path)
        except DatasetError:
            return _scan.scan(path, progress=True)
    if is_dataset(path):
        dataset = _scan.open_dataset(path)
        _warn(dataset)
        return dataset
    os.stat(path)
    return _scan.scan(path, progress=True)


def _warn(dataset: _scan.Scan) -> None:
    damaged = dataset._stored().damaged
    if damaged:
        what = output.counted(damaged, "batch", "batches")
        inputs.complain(f"{dataset.path}: {what} left out: parts are missing or cut; scan again")


def _give(query: Query, arguments: argparse.Namespace) -> None:
    limit = arguments.top or None
    if arguments.format:
        query.write(arguments.format, arguments.output, limit)
        return
    from hlofast._scan.query import Answer

    if not arguments.json and arguments.top is None:
        limit = _SHOWN
    shower = results.Shower(Answer, arguments, limit=None)
    shower.show(query.answer(limit))
    shower.end([])
