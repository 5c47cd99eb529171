"""Print modules as HLO text in one of XLA's forms."""

from __future__ import annotations

import sys

from hlofast.cli import USAGE, inputs, output

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast fmt step.txt                           canonical text, as XLA prints it today
  hlofast fmt --form short --no-metadata step.txt
  hlofast fmt --form original page.html          the dump inside the page, byte for byte
  hlofast fmt step.txt.xz -o step.txt
  diff <(hlofast fmt a.txt) <(hlofast fmt b.txt)
"""
VERSION = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    parser.add_argument(
        "--form",
        choices=("long", "short", "original"),
        default="long",
        help="long: signatures, %% and layouts; short: without signatures and %%; "
        "original: the bytes of the file (default long)",
    )
    parser.add_argument("--no-metadata", action="store_true", help="leave metadata out")
    parser.add_argument("-o", "--output", metavar="PATH", help="write to PATH, all or nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print every module of every file."""
    if arguments.form == "original" and arguments.no_metadata:
        inputs.complain("--no-metadata needs --form long or short")
        return USAGE
    reader = inputs.Reader(arguments)
    modules = []
    texts = []
    for found in reader:
        text = found.module.to_text(form=arguments.form, metadata=not arguments.no_metadata)
        if arguments.json:
            fingerprint = found.module.fingerprint()
            modules.append(found.describe() | {"fingerprint": fingerprint, "text": text})
        elif arguments.output:
            texts.append(text)
        else:
            _write(text)
    if arguments.json:
        output.print_json("fmt", VERSION, {"modules": modules, "errors": reader.errors})
    elif arguments.output and reader.exit_code() == 0:
        from hlofast._files import replacing

        with replacing(arguments.output) as file:
            file.write(_encoded("\n".join(texts)))
    return reader.exit_code()


def _encoded(text: str) -> bytes:
    """The bytes of `text`; what was not UTF-8 in the file comes out as it was."""
    return text.encode("utf-8", "surrogateescape")


def _write(text: str) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(_encoded(text))
    sys.stdout.buffer.flush()
