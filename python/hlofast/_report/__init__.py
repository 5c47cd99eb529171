"""`Report`: an HTML page about a module or a dump directory."""

from __future__ import annotations

import os

from hlofast._core import Field
from hlofast._result import Fact, Note, Result, Section
from hlofast._text import counted
from hlofast._verdict_figures import FIGURES
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from hlofast._check import Declaration
    from hlofast._context import MeshLike, Told
    from hlofast._module import Module
    from hlofast._report.data import Contents
    from hlofast._verdict import Statement
    from hlofast.config import EffectiveConfig
    from hlofast.devices import Device

_HEIGHT = 720
"""Height of the page inside a notebook, in pixels."""


_ABOUT = (
    Field("word", "kind", "Subject of the page: module, directory or plan."),
    Field("path", "page", "The file that was written."),
)
_FINDINGS = (
    Field("word", "code", "The rule of the finding."),
    Field("text", "text", "What was found."),
    Field("text", "stake", "The stake per step.", nullable=True),
    Field("text", "remedy", "What to change.", nullable=True),
    Field("path", "place", "Source file and line.", nullable=True),
    Field("text", "names", "Evidence: instructions, joined by `, `.", label="evidence"),
    Field(
        "word",
        "verb",
        "The command that also lists the finding: lint or remat.",
        label="command",
        nullable=True,
    ),
)


class Report(Result):
    """A self-contained HTML page: `Module.report()` and `hlofast.report()`.

    It opens from disk or in a notebook and loads no other files. As a result it holds the verdict,
    which comes first on the page, and the findings.
    """

    __slots__ = ("_contents", "_pages", "html", "path")

    VERB = "report"
    FACTS = (*_ABOUT, *FIGURES.values())

    def __init__(
        self, contents: Contents, *, plots: bool = True, pages: Mapping[str, Report] | None = None
    ) -> None:
        from hlofast._report.page import html

        self._contents = contents
        self._pages = dict(pages or {})
        """Pages to which this page has links, by path."""
        self.html: str = html(contents, plots)
        """The page."""
        self.path: str | None = None
        """The path of the last `save`."""

    @property
    def title(self) -> str:
        """The name of the module or folder."""
        return self._contents.title

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Subject and path of the page, and the figures of the verdict."""
        values = (self._contents.kind, self.path)
        about = [Fact(*each) for each in zip(_ABOUT, values, strict=True) if each[1] is not None]
        return (*about, *(figure.fact for figure in self._contents.figures))

    @property
    def _module(self) -> Module | None:
        analyses = self._contents.module
        return None if analyses is None else analyses.module

    @property
    def shown_facts(self) -> tuple[tuple[str, str], ...]:
        """The facts as text: measured and modelled figures on one line each."""
        from hlofast._verdict_measured import beside

        return beside(self.facts, self.FACTS)

    @property
    def notes(self) -> tuple[Note, ...]:
        """The basis of each figure, or the way to supply missing input; the size of the page."""
        size = len(self.html.encode("utf-8", "replace"))
        text = "the page is one self-contained file"
        if self._pages:
            folder = os.path.dirname(next(iter(self._pages)))
            text = f"the pages of {counted(len(self._pages), 'program')} are in {folder}"
        page = Note("page", text, bytes=size)
        return (*(figure.said for figure in self._contents.figures), page)

    def sections(self) -> tuple[Section, ...]:
        """The findings of lint, then further advice of remat."""
        rows, paragraphs = [], []
        for finding in self._contents.findings:
            names = ", ".join(name for _, name in finding.proof)
            optional = (finding.stake or None, finding.remedy or None, finding.place or None)
            rows.append((finding.code, finding.text, *optional, names, finding.verb or None))
            verb = f" (hlofast {finding.verb})" if finding.verb else ""
            paragraphs.append((f"{finding.code}{verb}", _lines(finding)))
        table = of_rows(_FINDINGS, rows)
        return (Section("findings", "Findings", table, paragraphs=paragraphs),)

    @property
    def verdict(self) -> dict[str, float | None]:
        """The figures of the verdict by key; None if unknown.

        For a directory: `programs`, `step` (longest program, seconds), `flops`, `live_peak` and
        `wire_bytes` (maximum over programs), `differing` (programs that differ between hosts). For
        a module: `step` and `exposed` (seconds), `mfu` (between 0 and 1), `peak` and `bytes`
        (bytes) and `flops`, from `Module.time`, `memory` and `cost`.
        """
        return {figure.key: figure.value for figure in self._contents.figures}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to `path` atomically; raises `OSError` on failure.

        The pages of programs that the page of a directory links to are written first.
        """
        from hlofast._files import replacing

        for place, page in self._pages.items():
            os.makedirs(os.path.dirname(place), exist_ok=True)
            page.save(place)
        with replacing(os.fspath(path)) as file:
            file.write(self.html.encode("utf-8", "replace"))
        self.path = os.fspath(path)

    def _repr_html_(self) -> str:
        from hlofast._report.notebook import framed

        return framed(self.html, self.title, _HEIGHT)

    def __repr__(self) -> str:
        return f"<Report of {self.title}: {len(self.html):,} characters of HTML>"


def _lines(statement: Statement) -> list[tuple[str, str]]:
    lines = [("found", statement.text), ("at stake", statement.stake), ("remedy", statement.remedy)]
    return [(label, text) for label, text in lines if text]


def of_module(
    module: Module,
    path: str | os.PathLike[str] | None = None,
    device: str | Device | None = None,
    mesh: MeshLike | None = None,
    config: Declaration | EffectiveConfig | str | os.PathLike[str] | None = None,
    plots: bool = True,
    source: str | None = None,
    up: tuple[str, str] | None = None,
) -> Report:
    """`Module.report`; `up` is address and title of a page that leads to this one."""
    from hlofast._report.data import Analyses, contents

    told: Told = {}
    if device is not None:
        told["device"] = device
    if mesh is not None:
        told["mesh"] = mesh
    analyses = Analyses(module.with_context(**told) if told else module, config)
    report = Report(contents(analyses, source, up), plots=plots)
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
    pages: int = 12,
) -> Report:
    """Returns a page about a dump or a dump directory, and writes it to `out` if given.

    `module` selects a module of the file; further arguments are the arguments of `Module.report`.
    The page about a directory ranks the programs by FLOPs and shows programs that differ between
    hosts and the effects of passes; it links to the pages of the first `pages` programs, which are
    written to a folder beside `out` (`dumps_programs` for `dumps.html`). Raises `ValueError` if
    `config` or `module` is given for a directory, or if the directory has no dumps, and the errors
    of `hlofast.load` and `hlofast.scan`.
    """
    import hlofast
    from hlofast._files import is_folder

    if not is_folder(os.fspath(path)):
        loaded = hlofast.load(path, module=module)
        return of_module(loaded, out, device, mesh, config, plots, os.fspath(path))
    if module is not None or config is not None:
        raise ValueError(
            f"{os.fspath(path)}: module and config need a file, but this is a directory"
        )
    made = of_directory(path, out, device=device, mesh=mesh, plots=plots, pages=pages)
    if out is not None:
        made.save(out)
    return made


def of_directory(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    *,
    device: str | Device | None,
    mesh: MeshLike | None,
    plots: bool,
    pages: int,
) -> Report:
    """Returns the page about a directory, which `save` will write to `out`."""
    from hlofast._context import read_mesh
    from hlofast._report.directory import Pages, contents

    read = None if mesh is None else read_mesh(mesh)
    programs = None
    if out is not None and pages > 0:
        told = {"device": device, "mesh": mesh, "plots": plots}
        programs = Pages(os.fspath(out), pages, told)
    found = contents(os.fspath(path), device, read, programs)
    return Report(found, plots=plots, pages=None if programs is None else programs.made)


__all__: list[str] = ["Report", "of_module", "report"]
