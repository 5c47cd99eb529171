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
    from collections.abc import Iterable

    from hlofast._check import Declaration
    from hlofast._context import MeshLike, Told
    from hlofast._module import Module
    from hlofast._report.data import Contents
    from hlofast._report.pages import Pages
    from hlofast._verdict_statements import Statement
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

    __slots__ = ("_contents", "_html", "_inputs", "_pages", "_plots", "path")

    VERB = "report"
    FACTS = (*_ABOUT, *FIGURES.values())

    def __init__(
        self,
        contents: Contents,
        *,
        plots: bool = True,
        pages: Pages | None = None,
        inputs: Iterable[str] = (),
    ) -> None:
        self._contents = contents
        self._plots = plots
        self._pages = pages
        """Pages to which this page has links; None for the page of a module."""
        self._inputs = tuple(inputs)
        """Files from which the page was made."""
        self._html = self._made()
        self.path: str | None = None
        """The path of the last `save`."""

    def _made(self) -> str:
        from hlofast._report.page import html

        return html(self._contents, self._plots)

    @property
    def html(self) -> str:
        """The page; its links to the pages of programs are those of the last `save`."""
        return self._html

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
        refused: list[Note] = []
        if (pages := self._pages) is not None:
            if pages.links and self.path is not None:
                text = f"the pages of {counted(len(pages), 'program')} are in "
                text += pages.folder(self.path)
            refused = [Note("no-page", said) for said in pages.refusals]
        page = Note("page", text, bytes=size)
        return (*(figure.said for figure in self._contents.figures), *refused, page)

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

        For a directory: `programs`, `step` (longest program, seconds), `flops`, `live_peak`,
        `modelled_peak` (one device, of programs that XLA has not scheduled) and `wire_bytes`
        (maximum over programs), `differing` (programs that differ between hosts). For a module:
        `step` and `exposed` (seconds), `mfu` (between 0 and 1), `peak` and `bytes` (bytes) and
        `flops`, from `Module.time`, `memory` and `cost`.
        """
        return {figure.key: figure.value for figure in self._contents.figures}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to `path` atomically; `-` is standard output.

        The pages of programs that the page of a directory links to are written first, to a folder
        beside it (`dumps_programs` for `dumps.html`), from which pages of earlier runs are removed.
        Beside standard output, a pipe or a device nothing is written, and the page has no links.
        Raises `OSError` on failure: for a missing folder with its name, and
        `shutil.SameFileError` for a path that is one of the files from which the page was made.
        """
        from hlofast import _files

        out = os.fspath(path)
        pages, is_stream = self._pages, _files.is_stream(out)
        if not is_stream:
            _files.check_place(out)
            written = [out] if pages is None else [out, *pages.paths(out)]
            _files.refuse_inputs(written, self._inputs)
        if pages is not None and pages.place(None if is_stream else out):
            self._html = self._made()
        if pages is not None and not is_stream:
            pages.save(out)
        self._write(out)
        if pages is not None and not is_stream:
            pages.clear(out)
        self.path = out

    def _write(self, out: str) -> None:
        """Writes this page alone."""
        from hlofast import _files

        content = self.html.encode("utf-8", "replace")
        if _files.is_standard_output(out):
            import sys

            sys.stdout.flush()
            buffer = getattr(sys.stdout, "buffer", None)
            if buffer is None:  # In a notebook.
                sys.stdout.write(content.decode("utf-8"))
                return
            buffer.write(content)
            buffer.flush()
            return
        with _files.replacing(out) as file:
            file.write(content)

    def _lead_to(self, address: str, title: str) -> None:
        """Makes another page the one that leads here."""
        self._contents.up = (address, title)
        self._html = self._made()

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
    inputs = [source, module.path, *_profile(analyses.module)]
    if isinstance(config, str | os.PathLike):
        inputs.append(os.fspath(config))
    report = Report(contents(analyses, source, up), plots=plots, inputs=filter(None, inputs))
    if path is not None:
        report.save(path)
    return report


def _profile(module: Module) -> tuple[str | None, ...]:
    """The files of the profile that a module was given."""
    from hlofast._context import told_in

    told = told_in(module)
    return () if told is None or told.profile is None else told.profile.paths


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
    written to a folder beside `out` (see `Report.save`). Raises `ValueError` if `config` or
    `module` is given for a directory, or if the directory has no dumps, and the errors of
    `hlofast.load` and `hlofast.scan`.
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
    from hlofast._files import is_stream
    from hlofast._report.directory import contents
    from hlofast._report.pages import Pages

    read = None if mesh is None else read_mesh(mesh)
    place = None if out is None or is_stream(os.fspath(out)) else os.fspath(out)
    told = {"device": device, "mesh": mesh, "plots": plots}
    programs = Pages(place, pages if place is not None else 0, told)
    found, files = contents(os.fspath(path), device, read, programs)
    return Report(found, plots=plots, pages=programs, inputs=files)


__all__: list[str] = ["Report", "of_module", "report"]
