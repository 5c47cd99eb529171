"""`Pages`: pages of the programs of a dump directory, in a folder beside the directory's page."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

from hlofast import _files
from hlofast._programs import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast import Module
    from hlofast._report import Report

GENERATOR = '<meta name="generator" content="hlofast">'
"""In the head of every page; without it a file is not taken for a page."""
_OWN = re.compile(r"\d{2,}_[A-Za-z0-9_.-]+\.html")
_HEAD = 4096
"""Bytes of a page that contain its head up to the generator."""


class Pages:
    """Pages of the programs with the most FLOPs."""

    __slots__ = ("_made", "_name", "_programs", "count", "links", "options", "refusals")

    def __init__(self, out: str | None, count: int, options: dict[str, Any]) -> None:
        self.count = count
        self.options = options
        """Further arguments of `of_module`."""
        self.links: dict[str, str] = {}
        """Addresses of pages by program; `place` changes them, and the table that shows them."""
        self.refusals: list[str] = []
        """Each program whose page could not be made, with the reason."""
        self._name = _name(out)
        """The name of the page that has the links; None for one without."""
        self._made: dict[str, Report] = {}
        """By name of the file."""
        self._programs: dict[str, str] = {}
        """Names of files by program."""

    def __len__(self) -> int:
        return len(self._made)

    def make(self, rows: list[dict[str, Any]]) -> None:
        """Makes the pages of the first `count` programs."""
        import hlofast
        from hlofast._report import of_module

        up = None if self._name is None else _up(self._name)
        for number, row in enumerate(rows[: self.count], 1):
            path = _files.named(row["canonical"] or "")
            try:
                module = hlofast.load(path)
                page = of_module(module, source=path, up=up, **self._fitting(module))
            except (OSError, ValueError) as error:
                why = reason(error).partition("\n")[0].removeprefix(f"{path}: error: ")
                self.refusals.append(f"{row['program']} has no page: {why}")
                continue
            safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", row["module_name"] or "module")[:64]
            name = f"{number:02}_{safe}.html"
            self._made[name] = page
            self._programs[row["program"]] = name

        self._link()

    def _fitting(self, module: Module) -> dict[str, Any]:
        """The options, without a device of another backend: the page of the directory says so."""
        device = self.options["device"]
        if device is not None:
            from hlofast import devices
            from hlofast._context import backend_misfit

            if backend_misfit(module, devices.get(device)) is not None:
                return self.options | {"device": None}
        return self.options

    def place(self, out: str | None) -> bool:
        """Makes the links those of the page `out`; returns whether they have changed.

        None is a page that has nothing beside it, and no links.
        """
        name = _name(out)
        if name == self._name:
            return False
        self._name = name
        self._link()
        if name is not None:
            for page in self._made.values():
                page._lead_to(*_up(name))
        return bool(self._made)

    def _link(self) -> None:
        self.links.clear()
        if self._name is None:
            return
        folder = self.folder(self._name)
        for program, own in self._programs.items():
            self.links[program] = quote(os.fsencode(f"{folder}/{own}"))

    @staticmethod
    def folder(out: str) -> str:
        """The folder of the pages beside the page `out`."""
        return f"{os.path.splitext(out)[0]}_programs"

    def paths(self, out: str) -> Iterator[str]:
        """The files that `save` writes."""
        return (os.path.join(self.folder(out), name) for name in self._made)

    def save(self, out: str) -> None:
        """Writes the pages into the folder beside `out`."""
        if self._made:
            os.makedirs(self.folder(out), exist_ok=True)
        for path, page in zip(self.paths(out), self._made.values(), strict=True):
            page._write(path)

    def clear(self, out: str) -> None:
        """Removes the pages of earlier runs to which the page `out` has no links."""
        folder = self.folder(out)
        try:
            names = os.listdir(folder)
        except OSError:
            return  # There are none.
        for name in names:
            path = os.path.join(folder, name)
            if name not in self._made and _OWN.fullmatch(name) and _is_page(path):
                os.unlink(path)
        if not self._made and not os.listdir(folder):
            os.rmdir(folder)


def _name(out: str | None) -> str | None:
    return None if out is None else os.path.basename(out)


def _up(name: str) -> tuple[str, str]:
    """Address and title of the page of the directory, for the pages of programs."""
    return quote(os.fsencode(f"../{name}")), "all programs"


def _is_page(path: str) -> bool:
    """Whether hlofast has written the file."""
    if not os.path.isfile(path):
        return False  # A pipe would be waited for.
    try:
        with open(path, "rb") as file:
            return GENERATOR.encode() in file.read(_HEAD)
    except OSError:
        return False
