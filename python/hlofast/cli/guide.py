"""Prints the user guide: worked answers from dump to decision, with the dumps to try them on."""

from __future__ import annotations

import os

from hlofast import _text as output
from hlofast._core import Field
from hlofast._result import Fact, Result, Section
from hlofast.cli import DONE, UNREADABLE, USAGE, inputs, results
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

EXAMPLES = """\
examples:
  hlofast guide                    list the pages
  hlofast guide memory             print one page
  hlofast guide --all | less       print all pages
  hlofast guide -o guide           write pages, pictures and dumps to the folder `guide`
  hlofast guide -o guide.html      write all pages, with pictures, as one HTML page
  hlofast guide --json | jq -r '.results[].tables.commands[].command'

Commands after a `$` run in the folder that -o writes. The pages are Markdown; unless standard
output is a terminal they are printed unchanged. The HTML page needs markdown-it-py
(pip install 'hlofast[guide]').
"""
PAGES = (
    *("start", "slow", "memory", "axes", "remat", "compiler", "profile", "mfu", "plan", "protobuf"),
)
"""Names of the pages, in reading order."""
ARCHIVE = "examples.tar.xz"
STEP = "train.py"
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "guide")
_PROMPT = "$ "


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    what = parser.add_mutually_exclusive_group()
    what.add_argument("page", nargs="?", metavar="NAME", help=f"page: {', '.join(PAGES)}")
    what.add_argument("--all", action="store_true", help="print all pages")
    what.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="write pages, pictures and dumps to the folder PATH, or one page to PATH.html",
    )
    results.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints pages, or writes all pages."""
    name = arguments.page
    if name is not None and name not in PAGES:
        inputs.complain(f"no page {name!r}; choose one of {', '.join(PAGES)}")
        return USAGE
    written: list[str] | None = None
    if arguments.output is not None:
        from hlofast.cli.pages import refuse_standard_output

        if (code := refuse_standard_output(arguments.output)) != DONE:
            return code
        try:
            written = _write(arguments.output)
        except ImportError as error:
            is_page = arguments.output.endswith(".html")
            needed = "markdown-it-py: pip install 'hlofast[guide]'" if is_page else error.name
            inputs.complain(f"{arguments.output}: this needs {needed}")
            return USAGE
        except _TakenError as taken:
            inputs.complain(f"{taken}: exists with other content; choose a new folder")
            return USAGE
        except OSError as error:
            inputs.complain(f"{error.filename or arguments.output}: {error.strerror or error}")
            return UNREADABLE
    pages = [Page(each) for each in PAGES if name is None or each == name]
    if arguments.json:
        shower = results.Shower(Guide, arguments)
        shower.show(Guide(pages, written))
        shower.end([])
        return DONE
    printer = output.Printer()
    if written is not None:
        printer.line(f"{output.counted(len(written), 'file')}; begin with {written[0]}")
    elif name is not None or arguments.all:
        for page in pages:
            page.show(printer, is_first=page is pages[0])
    else:
        printer.facts([(page.name, page.title) for page in pages])
        printer.line()
        printer.line("`hlofast guide NAME` prints a page, `hlofast guide -o FOLDER` writes all.")
    return DONE


class Page:
    """A page of the guide."""

    __slots__ = ("name", "text")

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = _content(f"{name}.md").decode()

    @property
    def title(self) -> str:
        """The page's heading."""
        return self.text.partition("\n")[0].lstrip("# ")

    @property
    def commands(self) -> list[str]:
        """The commands whose output the page shows."""
        lines = self.text.splitlines()
        return [line.removeprefix(_PROMPT) for line in lines if line.startswith(_PROMPT)]

    def show(self, printer: output.Printer, *, is_first: bool) -> None:
        """Prints the page; on a terminal headings and commands are bold and lose their markers."""
        if not is_first:
            printer.stream.write("\n")
        if not printer.stream.isatty():
            printer.stream.write(self.text)
            return
        for line in self.text.splitlines():
            if line.startswith("```"):
                continue
            if line.startswith(("#", _PROMPT)):
                line = printer.styled(line.lstrip("# "), "1")
            printer.stream.write(line + "\n")


_NAME = Field("name", "page", "The name of the page.")
_PAGE = (
    _NAME,
    Field("text", "title", "The question that the page answers, or its subject."),
    Field("text", "text", "The page in Markdown."),
)
_COMMAND = (_NAME, Field("text", "command", "A command whose output the page shows."))
_FILE = (Field("path", "file", "A file that -o wrote, now or earlier."),)


class Guide(Result):
    """Pages of the guide, and the files that were written."""

    __slots__ = ("files", "pages")

    VERB = "guide"
    FACTS = (Field("count", "files", "Files that -o wrote, now or earlier."),)

    def __init__(self, pages: Iterable[Page], files: list[str] | None = None) -> None:
        self.pages = tuple(pages)
        self.files = files

    @property
    def title(self) -> str:
        """The heading."""
        return "the user guide"

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The number of files written, if any."""
        return () if self.files is None else (Fact(self.FACTS[0], len(self.files)),)

    def sections(self) -> tuple[Section, ...]:
        """The pages, their commands and the written files."""
        pages = [(page.name, page.title, page.text) for page in self.pages]
        commands = [(page.name, command) for page in self.pages for command in page.commands]
        files = [(name,) for name in self.files or ()]
        return (
            Section("pages", "Pages", of_rows(_PAGE, pages), ("page", "title")),
            Section("commands", "Commands", of_rows(_COMMAND, commands)),
            Section("files", "Files", of_rows(_FILE, files)),
        )


class _TakenError(Exception):
    """An existing file has the name of a file to write, but other content."""


def _content(name: str) -> bytes:
    """Returns the content of a file of the guide."""
    with open(os.path.join(_FOLDER, name), "rb") as file:
        return file.read()


def _contents() -> dict[str, bytes]:
    """Returns all files of the guide by output path, with the dumps unpacked."""
    import lzma  # noqa: F401 - some Python builds lack lzma, and tarfile's error is less clear.
    import tarfile

    pictures = sorted(os.listdir(os.path.join(_FOLDER, "pictures")))
    names = [*(f"{page}.md" for page in PAGES), STEP, *(f"pictures/{each}" for each in pictures)]
    files = {name: _content(name) for name in names}
    with tarfile.open(os.path.join(_FOLDER, ARCHIVE)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                files[member.name] = file.read()
    return files


def _write(target: str) -> list[str]:
    """Writes the HTML page, or a folder without replacing files; returns the paths of the files."""
    from hlofast import _files

    if target.endswith(".html"):
        page = _html().encode()
        with _files.replacing(target) as file:
            file.write(page)
        return [target]
    contents = {os.path.join(target, name): content for name, content in _contents().items()}
    # All files are checked before any file is written, so that a conflict leaves the folder
    # unchanged.
    missing = [path for path, content in contents.items() if not _is_there(path, content)]
    for parent in {os.path.dirname(path) for path in missing}:
        if os.path.lexists(parent) and not os.path.isdir(parent):
            raise _TakenError(parent)
    for path in missing:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with _files.replacing(path) as file:
            file.write(contents[path])
    return list(contents)


def _html() -> str:
    """Returns all pages as one self-contained HTML page."""
    import re
    from base64 import b64encode

    from markdown_it import MarkdownIt

    def inlined(match: re.Match[str]) -> str:
        return f"](data:image/png;base64,{b64encode(_content(match[1])).decode()})"

    markdown = MarkdownIt("commonmark").enable("table")
    sections = []
    for name in PAGES:
        text = re.sub(r"\]\((\w+)\.md\)", r"](#\1)", Page(name).text)
        text = re.sub(r"\]\((pictures/[\w.]+)\)", inlined, text)
        # Makes blocks wider than the window scrollable by keyboard.
        body = markdown.render(text).replace("<pre>", '<pre tabindex="0">')
        sections.append(f'<section id="{name}">\n{body}</section>\n')
    head = _content("page_head.html").decode()
    return f"{head}{''.join(sections)}</main>\n"


def _is_there(path: str, content: bytes) -> bool:
    """Whether the file exists with this content; raises `_TakenError` if its content differs."""
    if not os.path.lexists(path):
        return False
    if os.path.isfile(path) and os.path.getsize(path) == len(content):
        with open(path, "rb") as file:
            if file.read() == content:
                return True
    raise _TakenError(path)
