"""Prints modules as HLO text in one of XLA's forms, or writes a module as a protobuf."""

from __future__ import annotations

import sys

from hlofast import _files, _text
from hlofast._fmt import Formatted
from hlofast.cli import USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast fmt step.txt                           canonical text, as XLA prints it today
  hlofast fmt --form short --no-metadata step.txt
  hlofast fmt --form original page.html          the dump inside the page, byte for byte
  hlofast fmt step.txt.xz -o step.txt
  hlofast fmt step.txt -o step.hlo.pb            an HloModuleProto, which XLA loads
  hlofast fmt step.txt -o step.hlo_proto.pb      an HloProto, which profilers load
  diff <(hlofast fmt a.txt) <(hlofast fmt b.txt)

The output is for reading, comparing and measuring, not for running: XLA would optimise the module
again, and the modules that `remat --apply` and `what-if -o` write are not valid programs.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    parser.add_argument(
        "--form",
        choices=("long", "short", "original"),
        default="long",
        help="long: with signatures, %% and layouts; short: without signatures and %%; "
        "original: the bytes of the file (default long)",
    )
    parser.add_argument("--no-metadata", action="store_true", help="leave out metadata")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="write to PATH atomically: .pb writes a protobuf, .gz compresses",
    )
    results.add_json(parser)
    inputs.add_context(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints every module of every file."""
    if arguments.form == "original" and arguments.no_metadata:
        inputs.complain("--no-metadata needs --form long or short")
        return USAGE
    if arguments.output is not None and _files.is_standard_output(arguments.output):
        arguments.output = None  # The text goes there anyway.
    if _is_proto(arguments.output):
        return _write_proto(arguments)
    reader = inputs.Reader(arguments, inputs.read_context(arguments))
    shower = results.Shower(Formatted, arguments) if arguments.json else None
    texts = []
    for loaded in reader:
        text = loaded.module.to_text(form=arguments.form, metadata=not arguments.no_metadata)
        if shower is not None:
            shower.show(Formatted(loaded.module, text), at=loaded)
            continue
        inputs.note_unmeasured(loaded.module, loaded.path)
        if arguments.output:
            texts.append(text)
        else:
            _write(text)
    if shower is not None:
        shower.end(reader.errors)
    elif arguments.output and reader.exit_code() == 0:
        _replace(arguments.output, _encoded("\n".join(texts)))
        results.note_to_measure(arguments.output, _text.counted(len(texts), "module"))
    return reader.exit_code()


def _is_proto(path: str | None) -> bool:
    return path is not None and path.removesuffix(".gz").endswith(".pb")


def _write_proto(arguments: argparse.Namespace) -> int:
    """Writes the one module that the arguments select as a protobuf."""
    import hlofast
    from hlofast._core import _proto

    if arguments.json or arguments.form != "long":
        inputs.complain("-o PATH.pb writes a protobuf: leave out --json and --form")
        return USAGE
    path = arguments.output
    wrapped = path.removesuffix(".gz").endswith(".hlo_proto.pb")
    reader = inputs.Reader(arguments, inputs.read_context(arguments))
    selected = list(reader)
    if reader.exit_code() or not selected:
        return reader.exit_code()
    if len(selected) > 1:
        inputs.complain(
            f"a protobuf holds one module, not {len(selected)}; choose it with --module"
        )
        return USAGE
    module = selected[0].module
    try:
        if arguments.no_metadata:
            bare = module.to_text(metadata=False).encode("utf-8", "surrogateescape")
            module = hlofast.loads(bare, path=selected[0].path)
        content, left_out = _proto(module, wrapped)
    except hlofast.ParseError as error:
        reader.failed(selected[0].path, error)
        return reader.exit_code()
    for line, what in left_out:
        inputs.complain(
            f"{selected[0].path}:{line}: left out, as protobufs have no field for {what}"
        )
    _replace(path, content)
    results.note_to_measure(path, "1 module")
    return 0


def _encoded(text: str) -> bytes:
    """Returns the bytes of `text`; bytes of the file that were not UTF-8 are restored."""
    return text.encode("utf-8", "surrogateescape")


def _write(text: str) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(_encoded(text))
    sys.stdout.buffer.flush()


def _replace(path: str, content: bytes) -> None:
    """Writes `content` atomically, compressed if `path` ends in .gz."""
    if path.endswith(".gz"):
        import gzip

        content = gzip.compress(content, mtime=0)
    with _files.replacing(path) as file:
        file.write(content)
