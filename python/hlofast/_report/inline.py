"""What pages contain instead of loading it: scripts, styles, BokehJS, escaped text."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape

from hlofast import _text as output

_BOKEH = ("bokeh.min.js", "bokeh-api.min.js")


class Bokeh:
    """BokehJS from the installed bokeh package; empty without the package."""

    __slots__ = ("scripts", "version")

    def __init__(self) -> None:
        from importlib.util import find_spec

        # Importing bokeh takes longer than the whole report; only its files are needed.
        spec = find_spec("bokeh")
        self.scripts: list[str] = []
        self.version = ""
        if spec is None or not spec.submodule_search_locations:
            return
        (folder, *_) = spec.submodule_search_locations
        for name in _BOKEH:
            path = f"{folder}/server/static/js/{name}"
            with open(path, encoding="utf-8", newline="") as file:
                self.scripts.append(file.read())
        from importlib.metadata import version

        self.version = version("bokeh")


def asset(name: str) -> str:
    """Returns a script or the style of the page."""
    from importlib.resources import files

    return (files("hlofast._report") / "assets" / name).read_text(encoding="utf-8")


def hash_of(script: str) -> str:
    """Returns the hash by which a page's policy allows a script."""
    digest = b64encode(sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def micro(shown: str) -> str:
    """Returns a quantity with µs for us, which terminals get."""
    return shown.replace(" us", " µs") if shown.endswith(" us") else shown


def text(words: str) -> str:
    """Returns `words` escaped for HTML, with invisible and bidirectional characters spelt out."""
    return escape(output.printable(words), quote=True)
