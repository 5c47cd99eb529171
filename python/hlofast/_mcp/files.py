"""Files that the server reads: below one folder, parsed once while they do not change."""

from __future__ import annotations

import os
import re
import stat
from collections import OrderedDict

import hlofast
from hlofast._names import meant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from hlofast import Module

CACHE = 512 << 20
"""Default limit on the memory of modules that are kept, in bytes of their columns and texts."""
MOST_BYTES = 1 << 30
"""Limit on the size of a file that is read, and of a dump after decompression."""
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NEAR = 500
"""Limit on the entries of a folder whose names are compared with an unknown name."""
_Stamp = tuple[str, int, int]


class RefusedError(ValueError):
    """A call that cannot be answered; the message says what to do instead."""


class Root:
    """The folder below which files may be read."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.realpath(folder)
        """The folder, without symbolic links."""
        # Not the start of another name, as /data of /data2 or of /srv/data.
        self._own = re.compile(
            rf"(?<![\w.-]){re.escape(self.path)}(?:({re.escape(os.sep)})|(?![\w.-]))"
        )

    def resolve(self, name: str) -> str:
        """Returns the path of a file or folder; raises `RefusedError` if it may not be read.

        Parts `..`, symbolic links, addresses and special files are refused.
        """
        if "\0" in name or "://" in name:
            raise RefusedError("path: give the path of a local file, relative to the root")
        if os.path.isabs(name):
            if not self._holds(name):
                raise RefusedError(f"path: {name} is outside the root; give a path relative to it")
            name = os.path.relpath(name, self.path)
        if os.pardir in name.replace("\\", "/").split("/"):
            raise RefusedError("path: '..' is not allowed; give a path relative to the root")
        path = os.path.normpath(os.path.join(self.path, name))
        self.admit(path)
        return path

    def open(self, path: str) -> BinaryIO:
        """Opens a file that another file names or that lies beside it; the caller closes it.

        Raises `RefusedError` if it may not be read.
        """
        path = os.path.normpath(os.path.join(self.path, path))
        self.admit(path)
        file = open(path, "rb", opener=_opened)  # noqa: SIM115 - the caller closes it.
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES:
            return file
        file.close()
        raise RefusedError(f"{self.shown(path)}: changed while it was opened")

    def _holds(self, path: str) -> bool:
        return path == self.path or path.startswith(self.path.rstrip(os.sep) + os.sep)

    def admit(self, path: str) -> None:
        """Raises `RefusedError` if a path may not be read.

        It lies outside the root, does not exist, passes a link, or is a special or too large file.
        """
        if not self._holds(os.path.normpath(path)):
            raise RefusedError(
                f"{os.path.relpath(path, self.path)} is outside the root; start hlofast mcp with "
                "--root at a folder above it"
            )
        at = self.path
        for part in os.path.relpath(path, self.path).split(os.sep):
            parent, at = at, os.path.normpath(os.path.join(at, part))
            try:
                found = os.lstat(at)
            except OSError as error:
                reason = error.strerror or "cannot be read"
                raise RefusedError(
                    f"{self.shown(at)}: {reason}{_near(parent, part)}; files lists a folder"
                ) from None
            if stat.S_ISLNK(found.st_mode):
                raise RefusedError(
                    f"{self.shown(at)}: symbolic links are refused; start hlofast mcp with --root "
                    "at the folder that the link leads to"
                )
        if stat.S_ISREG(found.st_mode):
            if found.st_size > MOST_BYTES:
                text = f"larger than {MOST_BYTES:,} bytes, the limit of the server"
                raise RefusedError(f"{self.shown(path)}: {text}")
        elif not stat.S_ISDIR(found.st_mode):
            raise RefusedError(f"{self.shown(path)}: neither a file nor a folder")

    def shown(self, path: str) -> str:
        """Returns a path relative to the root, as callers give it."""
        shown = os.path.relpath(path, self.path)
        return path if shown.startswith(os.pardir) else shown

    def words(self, text: str) -> str:
        """Returns a message with paths relative to the root."""
        if self.path == os.sep:
            return text
        return self._own.sub(lambda found: "" if found[1] else os.curdir, text)


def _opened(path: str, flags: int) -> int:
    """Opens the file itself, even if it was replaced by a link or a pipe since it was admitted."""
    return os.open(path, flags | _NO_LINK)


def _near(folder: str, name: str) -> str:
    """The entries of a folder that are like an unknown name."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_NEAR), strict=False)]
    except OSError:
        return ""
    return meant(name, names)


def _has_links(folder: str) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.is_symlink() for entry in entries)


def _instead(content: bytes, path: str) -> str:
    """The tool for a file without modules, as the end of a message."""
    from hlofast import config
    from hlofast._messages.find import contains

    if config.is_config(content, path=path):
        return "; this is a trainer config: plan and check read it"
    return "; it holds messages of a compiler: oom reads them" if contains(content) else ""


def stamp(path: str) -> _Stamp:
    """Returns what tells that a file changed: path, time of change, size."""
    found = os.stat(path)
    return path, found.st_mtime_ns, found.st_size


class Modules:
    """The modules of files, kept while the files do not change and memory allows."""

    def __init__(self, root: Root, most: int = CACHE) -> None:
        self.root = root
        self._most = most
        self._kept: OrderedDict[_Stamp, list[Module]] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes of the modules that are kept, with their results."""
        kept = (module for modules in self._kept.values() for module in modules)
        return sum(module.nbytes + module.text_bytes for module in kept)

    def of_file(self, path: str) -> list[Module]:
        """Returns the modules of a file, largest first; raises `RefusedError` if there is none."""
        key = stamp(path)
        if key not in self._kept:
            for old in [own for own in self._kept if own[0] == path]:
                del self._kept[old]
            self._kept[key] = list(self._read(path))
        self._kept.move_to_end(key)
        self.trim()
        return self._kept[key]

    def trim(self) -> None:
        """Drops the files that were used longest ago until the rest fits; the last one stays."""
        while len(self._kept) > 1 and self.size > self._most:
            self._kept.popitem(last=False)

    def _read(self, path: str) -> Iterator[Module]:
        with self.root.open(path) as file:
            content = file.read()
        # The context of a module comes from files beside it, unless there are links among them.
        own = None if _has_links(os.path.dirname(path)) else path
        try:
            found = hlofast.find_modules(
                content, path=own, on_error="collect", max_bytes=MOST_BYTES
            )
        except hlofast.ParseError as error:
            raise RefusedError(f"{error}{_instead(content, path)}") from None
        modules = [part.module for part in found if part.module is not None]
        if not modules:
            faults = [str(part.error) for part in found if part.error is not None]
            raise RefusedError(faults[0] if faults else f"{path}: no HLO module")
        yield from sorted(modules, key=len, reverse=True)
