"""The documentation site: built strictly, complete, and shown without a network or a server."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT
from hlofast.cli import VERBS, guide

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site: that of the gate (HLOFAST_SITE), or built here."""
    if built := os.environ.get("HLOFAST_SITE"):
        return Path(built)
    for package in ("mkdocs", "material", "mkdocstrings", "nbclient", "ipykernel", "bokeh"):
        pytest.importorskip(package)
    if shutil.which("hlofast", path=Path(sys.executable).parent) is None:
        pytest.skip("the notebook of the site runs the installed command")
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=CHECKOUT, check=True, env=environment)
    return folder


class Loaded(HTMLParser):
    """What a page loads by itself, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.places: list[str] = []
        self.ids: set[str] = set()
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        place = values.get(LOADS.get(tag, ""))
        # Of links, these are only addresses.
        if place and values.get("rel") not in ("canonical", "next", "prev"):
            self.places.append(place)
        if "id" in values:
            self.ids.add(values["id"] or "")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        for place in Loaded(page.read_text()).places:
            assert not re.match(r"(https?:)?//", place), (page.name, place)
            assert place.startswith(("data:", "/")) or (page.parent / place.split("?")[0]).exists()
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", style.read_text()), style


def test_it_has_every_page(site: Path) -> None:
    for name in guide.PAGES:
        page = "".join(Loaded((site / "guide" / f"{name}.html").read_text()).text)
        text = (CHECKOUT / "python" / "hlofast" / "guide" / f"{name}.md").read_text()
        # The text of the wheel, with its outputs.
        for block in re.findall(r"^```console\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
            assert block.strip() in page, name
    for verb in VERBS:
        assert (site / "commands" / f"{verb}.html").is_file()
    ids: set[str] = set()
    for page in (site / "api").glob("*.html"):
        ids |= Loaded(page.read_text()).ids
    names = {f"hlofast.{name}" for name in hlofast.__all__ if not name.startswith("__")}
    shown = {f"hlofast.{own.rpartition('.')[2]}" for own in ids}
    assert names <= shown


def test_public_names_have_their_docstrings(site: Path) -> None:
    text = " ".join(
        " ".join("".join(Loaded(page.read_text()).text).split())
        for page in (site / "api").glob("*.html")
    )
    for name in hlofast.__all__:
        own = None if name.startswith("__") else getattr(hlofast, name)
        if not callable(own):
            continue
        first = " ".join((own.__doc__ or "").split("\n\n")[0].split()).replace("`", "")
        assert first and first in text, name


def test_it_opens_from_disk(site: Path, browser: Any) -> None:
    places = ("index", "guide/slow", "commands/cost", "api/analyses", "figures", "notebook")
    for name in places:
        for theme, width in (("light", 1440), ("dark", 420)):
            opened = browser.open(
                site / f"{name}.html",
                until="article",
                viewport={"width": width, "height": 900},
                color_scheme=theme,
                is_alone=True,  # The theme is stored.
            )
            page = opened.page
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            scheme = page.evaluate("document.body.dataset.mdColorScheme")
            assert scheme == ("slate" if theme == "dark" else "default")
            assert all(url.startswith(("file:", "data:", "about:")) for url in opened.requests)
            assert [said for said in opened.errors if "bokeh" not in said] == []


def test_the_search_works_from_disk(site: Path, browser: Any) -> None:
    opened = browser.open(site / "index.html", until="article", is_alone=True)
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("fragmentation")
    opened.page.wait_for_selector(".md-search-result__item")
    assert "memory" in opened.page.locator(".md-search-result__list").inner_text()
    assert all(url.startswith("file:") for url in opened.requests)
    assert opened.errors == []
