"""The user guide: questions answered from a dump to a decision, and the dumps to try it on."""

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
  hlofast guide                    what there is
  hlofast guide memory             one page
  hlofast guide --all | less       all of it
  hlofast guide -o guide           all of it, the pictures and the dumps, into the folder `guide`
  hlofast guide -o guide.html      all of it and the pictures, as one page for a browser
  hlofast guide --json | jq -r '.results[].tables.commands[].command'

Commands behind a `$` can be typed in the folder that -o writes. The pages are Markdown, for any
editor or viewer; where the output is no terminal they are printed as they are. The page for a
browser needs markdown-it-py (pip install 'hlofast[guide]').
"""
PAGES = ("start", "mfu", "memory", "axes", "remat", "compiler", "protobuf")
"""Names of the pages, in the order of reading."""
ARCHIVE = "examples.tar.xz"
STEP = "train.py"
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "guide")
_PROMPT = "$ "


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    what = parser.add_mutually_exclusive_group()
    what.add_argument("page", nargs="?", metavar="NAME", help=f"a page: {', '.join(PAGES)}")
    what.add_argument("--all", action="store_true", help="all pages")
    what.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="write pages, pictures and dumps into a folder, or a page that ends in .html",
    )
    results.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print pages, or write all of them."""
    name = arguments.page
    if name is not None and name not in PAGES:
        inputs.complain(f"no page {name!r}; one of {', '.join(PAGES)}")
        return USAGE
    written: list[str] | None = None
    if arguments.output is not None:
        try:
            written = _write(arguments.output)
        except ImportError as error:
            is_page = arguments.output.endswith(".html")
            needed = "markdown-it-py: pip install 'hlofast[guide]'" if is_page else error.name
            inputs.complain(f"{arguments.output}: this needs {needed}")
            return USAGE
        except _TakenError as taken:
            inputs.complain(f"{taken}: there is another file of this name; name a new folder")
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
        printer.line("`hlofast guide NAME` prints one, `hlofast guide -o FOLDER` writes all of it.")
    return DONE


class Page:
    """A page as it lies in the package."""

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
        """The commands whose output it shows."""
        lines = self.text.splitlines()
        return [line.removeprefix(_PROMPT) for line in lines if line.startswith(_PROMPT)]

    def show(self, printer: output.Printer, *, is_first: bool) -> None:
        """Print the page; a terminal gets headings and commands in bold instead of their marks."""
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
    Field("text", "title", "The question that it answers, or what it is about."),
    Field("text", "text", "The page in Markdown."),
)
_COMMAND = (_NAME, Field("text", "command", "A command whose output the page shows."))
_FILE = (Field("path", "file", "A file that -o wrote, or had written before."),)


class Guide(Result):
    """Pages of the guide, and the files that were written."""

    __slots__ = ("files", "pages")

    VERB = "guide"
    FACTS = (Field("count", "files", "Files that -o wrote, or had written before."),)

    def __init__(self, pages: Iterable[Page], files: list[str] | None = None) -> None:
        self.pages = tuple(pages)
        self.files = files

    @property
    def title(self) -> str:
        """What it is."""
        return "the user guide"

    @property
    def facts(self) -> tuple[Fact, ...]:
        """How many files were written."""
        return () if self.files is None else (Fact(self.FACTS[0], len(self.files)),)

    def sections(self) -> tuple[Section, ...]:
        """The pages, the commands in them, the files."""
        pages = [(page.name, page.title, page.text) for page in self.pages]
        commands = [(page.name, command) for page in self.pages for command in page.commands]
        files = [(name,) for name in self.files or ()]
        return (
            Section("pages", "Pages", of_rows(_PAGE, pages), ("page", "title")),
            Section("commands", "Commands", of_rows(_COMMAND, commands)),
            Section("files", "Files", of_rows(_FILE, files)),
        )


class _TakenError(Exception):
    """A file of the user has the name of one that would be written."""


def _content(name: str) -> bytes:
    """A file of the guide."""
    with open(os.path.join(_FOLDER, name), "rb") as file:
        return file.read()


def _contents() -> dict[str, bytes]:
    """All files of the guide by the paths that they get; dumps are unpacked."""
    import lzma  # noqa: F401 - some builds of Python lack it, which tarfile says less plainly.
    import tarfile

    pictures = sorted(os.listdir(os.path.join(_FOLDER, "pictures")))
    names = [*(f"{page}.md" for page in PAGES), STEP, *(f"pictures/{each}" for each in pictures)]
    found = {name: _content(name) for name in names}
    with tarfile.open(os.path.join(_FOLDER, ARCHIVE)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                found[member.name] = file.read()
    return found


def _write(target: str) -> list[str]:
    """Write a page, or a folder in which nothing is replaced; returns the paths of files."""
    from hlofast import _files

    if target.endswith(".html"):
        page = _html().encode()
        with _files.replacing(target) as file:
            file.write(page)
        return [target]
    contents = {os.path.join(target, name): content for name, content in _contents().items()}
    # Looked at before anything is written, so that nothing is if one cannot be.
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
    """All pages as one that loads nothing."""
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
        # What is wider than the window is scrolled by keyboard too.
        body = markdown.render(text).replace("<pre>", '<pre tabindex="0">')
        sections.append(f'<section id="{name}">\n{body}</section>\n')
    head = _content("page_head.html").decode()
    return f"{head}{''.join(sections)}</main>\n"


def _is_there(path: str, content: bytes) -> bool:
    """Whether the file is there with this content; another file there is an error."""
    if not os.path.lexists(path):
        return False
    if os.path.isfile(path) and os.path.getsize(path) == len(content):
        with open(path, "rb") as file:
            if file.read() == content:
                return True
    raise _TakenError(path)
