"""The option -o: where a page or another file may be written, and why it may not."""

from __future__ import annotations

import os

from hlofast import _files
from hlofast.cli import DONE, UNREADABLE, USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

OTHERS = frozenset(
    f".{name}"
    for name in (
        *("csv", "docx", "gz", "ipynb", "jpeg", "jpg", "json", "md", "pdf", "png", "svg", "txt"),
        *("webp", "xlsx", "xml", "xz", "zip", "zst"),
    )
)
"""Endings of other formats, which -o refuses."""


def check(out: str, read: Iterable[str | None], *, is_json: bool) -> int:
    """Returns the exit code if no page can be written to `out`, after saying why.

    Called before the work for the page. `read` are the files from which it is made.
    """
    if not out:
        inputs.complain("-o: the name is empty; give a name ending in .html")
        return USAGE
    ending = os.path.splitext(out)[1].lower()
    if ending in OTHERS:
        inputs.complain(f"{out}: the page is HTML; give -o a name ending in .html")
        return USAGE
    if _files.is_standard_output(out):
        if is_json:
            inputs.complain("-o - writes the page to standard output: leave --json out")
            return USAGE
        return DONE
    return check_place(out, read)


def check_place(out: str, read: Iterable[str | None]) -> int:
    """Returns the exit code if no file can be written to `out`, after saying why.

    The reason may be that `out` is one of the files `read`, or standard output, which has the
    report.
    """
    if (code := refuse_standard_output(out)) != DONE:
        return code
    try:
        if not out or not _files.is_stream(out):
            _files.check_place(out)
        _files.refuse_inputs([out], [0 if path == "-" else path for path in read if path])
    except OSError as error:
        return refused(out or "-o", error)
    return DONE


def refuse_standard_output(out: str) -> int:
    """Returns the exit code if `out` is standard output, where it would mix with the report."""
    if not _files.is_standard_output(out):
        return DONE
    inputs.complain(f"-o {out}: standard output has the report; give -o the name of a file")
    return USAGE


def refused(out: str, error: OSError) -> int:
    """Says why the file is not written, and returns the exit code."""
    from shutil import SameFileError

    if isinstance(error, BrokenPipeError):
        raise error  # The reader of standard output has had enough.
    if isinstance(error, SameFileError):
        inputs.complain(str(error))
        return USAGE
    inputs.complain(f"{error.filename or out}: {error.strerror or error}")
    return UNREADABLE
