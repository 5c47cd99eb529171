"""`Report`: a page for a browser about a module or a dump directory."""

from __future__ import annotations

import os

from hlofast._core import Field
from hlofast._result import Fact, Note, Result, Section
from hlofast._verdict import FIGURES
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._check import Declaration
    from hlofast._context import MeshLike, Told
    from hlofast._module import Module
    from hlofast._report.data import Contents
    from hlofast._verdict import Statement
    from hlofast.config import EffectiveConfig
    from hlofast.devices import Device

_HEIGHT = 720
"""Of the page inside a notebook, in pixels."""


_ABOUT = (
    Field("word", "kind", "What the page is about: a module or a directory."),
    Field("path", "page", "The file that was written."),
)
_FINDINGS = (
    Field("word", "code", "What kind of finding it is."),
    Field("text", "text", "What was found."),
    Field("text", "stake", "What is at stake in a step.", nullable=True),
    Field("text", "remedy", "What to change.", nullable=True),
    Field("path", "place", "File and line of the program.", nullable=True),
    Field("text", "names", "Instructions that show it, joined by `, `."),
    Field("word", "verb", "The verb that lists it too: lint or remat.", nullable=True),
)


class Report(Result):
    """A page: one HTML file that loads nothing, to open from disk or in a notebook.

    Made by `Module.report` and `hlofast.report`. As a result it has the verdict, which stands
    first on the page, and the findings.
    """

    __slots__ = ("_contents", "html", "path")

    VERB = "report"
    FACTS = (*_ABOUT, *FIGURES.values())

    def __init__(self, contents: Contents, *, plots: bool = True) -> None:
        from hlofast._report.page import html

        self._contents = contents
        self.html: str = html(contents, plots)
        """The page."""
        self.path: str | None = None
        """Where it was saved last."""

    @property
    def title(self) -> str:
        """What the page is about: the module's or the folder's name."""
        return self._contents.title

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What the page is about, where it is, and the figures that stand first."""
        values = (self._contents.kind, self.path)
        about = [Fact(*each) for each in zip(_ABOUT, values, strict=True) if each[1] is not None]
        return (*about, *(figure.fact for figure in self._contents.figures))

    @property
    def notes(self) -> tuple[Note, ...]:
        """What each figure rests on, or how to give what is missing; the size of the page."""
        size = len(self.html.encode("utf-8", "replace"))
        page = Note("page", "the page is one file that loads nothing", bytes=size)
        return (*(figure.said for figure in self._contents.figures), page)

    def sections(self) -> tuple[Section, ...]:
        """The findings: those of lint, then what else remat says is to be changed."""
        rows, paragraphs = [], []
        for one in self._contents.findings:
            names = ", ".join(name for _, name in one.proof)
            optional = (one.stake or None, one.remedy or None, one.place or None)
            rows.append((one.code, one.text, *optional, names, one.verb or None))
            verb = f" (hlofast {one.verb})" if one.verb else ""
            paragraphs.append((f"{one.code}{verb}", _lines(one)))
        table = of_rows(_FINDINGS, rows)
        return (Section("findings", "Findings", table, paragraphs=paragraphs),)

    @property
    def verdict(self) -> dict[str, float | None]:
        """The figures that stand first, by key; None for what is not known.

        Of a directory `programs`, `step` (of the longest program, seconds), `flops`, `live_peak`
        and `wire_bytes` (the most of any program), `differing` (programs that hosts compiled
        differently). Of a module `step` and `exposed` (seconds), `mfu` (between 0 and 1), `peak`
        and `bytes` (bytes), `flops`: those of `Module.time`, `memory` and `cost`.
        """
        return {figure.key: figure.value for figure in self._contents.figures}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to `path`, all or nothing; an `OSError` if that cannot be."""
        from hlofast._files import replacing

        with replacing(os.fspath(path)) as file:
            file.write(self.html.encode("utf-8", "replace"))
        self.path = os.fspath(path)

    def _repr_html_(self) -> str:
        from html import escape

        # A frame of its own keeps the page's policy, and the notebook out of its reach.
        return (
            f'<iframe title="{escape(self.title)}" sandbox="allow-scripts" '
            f'style="width:100%;height:{_HEIGHT}px;border:0" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<Report of {self.title}: {len(self.html):,} characters of HTML>"


def _lines(one: Statement) -> list[tuple[str, str]]:
    lines = [("found", one.text), ("at stake", one.stake), ("remedy", one.remedy)]
    return [(label, text) for label, text in lines if text]


def of_module(
    module: Module,
    path: str | os.PathLike[str] | None = None,
    device: str | Device | None = None,
    mesh: MeshLike | None = None,
    config: Declaration | EffectiveConfig | str | os.PathLike[str] | None = None,
    plots: bool = True,
    source: str | None = None,
) -> Report:
    """`Module.report`."""
    from hlofast._report.data import Analyses, contents

    told: Told = {}
    if device is not None:
        told["device"] = device
    if mesh is not None:
        told["mesh"] = mesh
    found = Analyses(module.with_context(**told) if told else module, config)
    report = Report(contents(found, source), plots=plots)
    if path is not None:
        report.save(path)
    return report


def report(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    module: str | int | None = None,
    device: str | Device | None = None,
    mesh: MeshLike | None = None,
    config: Declaration | EffectiveConfig | str | os.PathLike[str] | None = None,
    plots: bool = True,
) -> Report:
    """A page about a dump, or about a dump directory, written to `out` if that is given.

    `module` is the one of a file that is meant; the other arguments are those of `Module.report`.
    Of a directory the page ranks the programs, says which hosts compiled something else and what
    passes did; `config` and `module` are of no use there, a `ValueError` says so, also of a folder
    without dumps. What `hlofast.load` and `hlofast.scan` raise besides.
    """
    import hlofast
    from hlofast._files import is_folder

    if not is_folder(os.fspath(path)):
        found = hlofast.load(path, module=module)
        return of_module(found, out, device, mesh, config, plots, os.fspath(path))
    if module is not None or config is not None:
        raise ValueError(f"{os.fspath(path)}: a directory; module and config are of one module")
    from hlofast._context import read_mesh
    from hlofast._report.directory import contents

    read = None if mesh is None else read_mesh(mesh)
    made = Report(contents(os.fspath(path), device, read), plots=plots)
    if out is not None:
        made.save(out)
    return made


__all__: list[str] = ["Report", "of_module", "report"]
