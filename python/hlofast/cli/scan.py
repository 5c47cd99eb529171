"""Reads whole dump directories: prints a list of programs, or writes a dataset of all modules."""

from __future__ import annotations

import sys

from hlofast import _scan
from hlofast import _text as output
from hlofast.cli import UNREADABLE, USAGE, inputs, results, values
from hlofast.errors import WorkerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any, BinaryIO, NoReturn, TextIO

    from hlofast import Context
    from hlofast._scan import Scan, Scanner
    from hlofast.ray import Cluster

ENDS_ITSELF = True
"""Finished parts are kept, and a running file may end."""

EXAMPLES = """\
examples:
  hlofast scan dumps/                              programs, files and unreadable files
  hlofast scan dumps/ -o tables                    Parquet dataset; a second run adds new files
  hlofast scan dumps/ -o tables --format jsonl     the same as JSON lines
  hlofast scan dumps/ -o - | jq 'select(.table == "modules") | .flops'
  hlofast scan dumps/ -o tables --watch            follow a running job
  hlofast scan s3://runs/dumps -o s3://runs/tables needs hlofast[remote] and s3fs
  hlofast scan dumps/ -o tables --engine ray       on a Ray cluster; needs hlofast[ray]

Modules are timed on --device, by default on the device that their folder names; --device none omits
times. Modules compiled for another backend than --device have no times; a note counts them. --mesh,
--hosts and --slices apply to all modules.

A dataset has a manifest and one folder table=NAME per table. Running the same command again
continues an interrupted scan and reads new and changed files; files are compared by content. A file
that cannot be read does not stop the scan: its row in the table `files` has the reason, and the
exit code is 3, also in later scans that skip the unchanged file.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("paths", nargs="+", metavar="DIR", help="folders and files to read")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help='write a dataset to the folder OUT; "-" writes JSON lines to standard output',
    )
    parser.add_argument(
        "--format",
        choices=_scan.formats.FORMATS,
        default="parquet",
        help="format of the dataset (default parquet)",
    )
    parser.add_argument(
        "--tables",
        metavar="NAME,...",
        help=f"tables to write: {', '.join(_scan.TABLES)} (default: all but instructions)",
    )
    inputs.add_place(parser)
    inputs.add_names(parser)
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="threads (default: one per processor), or threads per Ray task (default: 1)",
    )
    parser.add_argument(
        "--engine",
        choices=("threads", "ray"),
        default="threads",
        help="read files with threads of this process or tasks of a Ray cluster (default threads)",
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help='Ray cluster; "auto" is the cluster of this machine (default: RAY_ADDRESS, otherwise '
        "a local cluster started for this scan)",
    )
    parser.add_argument(
        "--max-bytes",
        type=values.size,
        default=_scan.MAX_BYTES,
        metavar="1GiB",
        help="skip files larger than this (default 1GiB)",
    )
    parser.add_argument(
        "--max-seconds",
        type=values.seconds_or_none,
        default=_scan.MAX_SECONDS,
        metavar="5min",
        help="give up on a file after this time (default 5min)",
    )
    parser.add_argument(
        "--batch-bytes",
        type=values.size,
        default=_scan.BATCH_BYTES,
        metavar="32MiB",
        help="bytes of text per part of the dataset (default 32MiB)",
    )
    parser.add_argument(
        "--watch",
        nargs="?",
        type=values.seconds_or_none,
        const=5.0,
        metavar="5s",
        help="scan repeatedly, pausing this long in between (default 5s)",
    )
    results.add_json(parser)
    output.add_top(parser)


def run(arguments: argparse.Namespace) -> int:
    """Scans once, or with `--watch` until interrupted."""
    to_stdout = arguments.output == "-"
    if "-" in arguments.paths:
        inputs.complain(
            "scan reads folders and files, not standard input; `hlofast FILE` and most other verbs "
            "read - as standard input"
        )
        return USAGE
    if to_stdout and arguments.json:
        inputs.complain("-o - already prints JSON lines: leave out --json")
        return USAGE
    if arguments.watch is not None and (arguments.output is None or to_stdout):
        inputs.complain("--watch needs a dataset: -o OUT")
        return USAGE
    if arguments.address is not None and arguments.engine != "ray":
        inputs.complain("--address names a Ray cluster: add --engine ray")
        return USAGE
    try:
        if arguments.engine == "ray":
            scanned = _scan_on_ray(arguments)
        else:
            scanned = _scan_with(arguments, sys.stdout, None)
    except ImportError as error:
        inputs.complain(str(error))
        return USAGE
    except KeyboardInterrupt:
        if arguments.watch is None:
            inputs.complain(_interrupted(arguments.output))
        raise
    except WorkerError as error:
        inputs.complain(str(error))
        return UNREADABLE
    except (KeyError, ValueError) as error:
        inputs.complain(str(error.args[0]) if isinstance(error, KeyError) else str(error))
        return USAGE
    except OSError as error:
        if to_stdout and isinstance(error, BrokenPipeError):
            raise  # The reader closed the pipe.
        inputs.complain(f"{error.filename or arguments.output}: {error.strerror or error}")
        return UNREADABLE
    code = UNREADABLE if scanned.counts["failed"] or scanned.failed_before else 0
    if to_stdout:
        return code
    shower = results.Shower(_scan.Scan, arguments)
    shower.show(scanned)
    shower.end([])
    return code


def _interrupted(out: str | None) -> str:
    """Returns the message of an interrupted scan: the parts kept, and the way to continue."""
    if out is None or out == "-":
        return "interrupted: nothing was kept; with -o OUT a scan can be continued"
    return f"interrupted: finished parts are kept in {out}; run the same command to continue"


def _scan_on_ray(arguments: argparse.Namespace) -> Scan:
    from contextlib import redirect_stdout

    from hlofast.ray import Cluster

    stdout = sys.stdout
    # Ray logs to standard output, which is reserved for rows and documents.
    with redirect_stdout(sys.stderr), Cluster(arguments.address) as cluster:
        return _scan_with(arguments, stdout, cluster)


def _scan_with(arguments: argparse.Namespace, stdout: TextIO, cluster: Cluster | None) -> Scan:
    """Scans once, or with `--watch` until interrupted."""
    if arguments.output == "-":
        return _scanner(arguments, None, cluster).run(lambda part: _write(part, stdout.buffer))
    scanner = _scanner(arguments, arguments.output, cluster)
    if arguments.watch is None and arguments.output is not None:
        scanner.require_paths()
    return scanner.run() if arguments.watch is None else _watch(scanner, arguments)


def _scanner(arguments: argparse.Namespace, out: str | None, cluster: Cluster | None) -> Scanner:
    tables = None if arguments.tables is None else arguments.tables.split(",")
    if tables is None and arguments.output is None:
        tables = ["modules"]
    told = _told(arguments)
    is_none = arguments.device == "none"
    return _scan.Scanner(
        arguments.paths,
        out,
        format=arguments.format,
        tables=tables,
        device=told.device or (None if is_none else "auto"),
        mesh=told.mesh,
        libraries=told.libraries,
        frame=told.frame,
        merge_layers=bool(told.merge_layers),
        workers=arguments.workers,
        executor=cluster,
        max_bytes=arguments.max_bytes,
        max_text_bytes=arguments.max_bytes,
        max_seconds=arguments.max_seconds,
        batch_bytes=arguments.batch_bytes,
        progress=True,
    )


def _told(arguments: argparse.Namespace) -> Context:
    """Returns the context that applies to all modules."""
    named = dict(vars(arguments))
    if named["device"] in ("auto", "none"):
        named["device"] = None
    told = inputs.read_context(type(arguments)(**named))
    if told.mesh is None and (told.hosts, told.slices) != (None, None):
        raise ValueError(
            "--hosts and --slices need --mesh: without it each module has its own mesh"
        )
    return told


def _write(part: Any, stream: BinaryIO) -> None:
    """Writes the rows of a part as JSON lines."""
    for name in part.tables():
        stream.write(part.table(name).json_lines(name))
    stream.flush()


def _watch(scanner: Scanner, arguments: argparse.Namespace) -> NoReturn:
    """Scans until interrupted and reports changes.

    After a first success, a remote store that cannot be written is retried, because it may become
    available again.
    """
    import time

    went_well = False
    while True:
        begin = time.time()
        try:
            scanned = scanner.run()
        except OSError as error:
            if not went_well or "://" not in arguments.output:
                raise
            inputs.complain(f"{error.filename or arguments.output}: {error.strerror or error}")
            time.sleep(arguments.watch)
            continue
        went_well = True
        scanner.trust(scanned, begin)
        if any(count for name, count in scanned.counts.items() if name != "unchanged"):
            sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {_counts(scanned.counts)}\n")
        time.sleep(arguments.watch)


def _counts(counts: dict[str, int]) -> str:
    words = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f"{output.counted(sum(counts.values()), 'file')}: {', '.join(words) or 'none'}"
