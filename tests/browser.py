"""A real browser for tests of pages, one per session; without one the tests are skipped."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = """
--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking
--disable-component-update --disable-sync
""".split()
COMPLETE = "body[data-state=complete]"


class Opened:
    """A page from disk, and what it did that it should not have."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", self._asked)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _asked(self, dialog: Any) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def text(self, selector: str) -> str:
        """The text of the one element that `selector` names."""
        return str(self.page.locator(selector).inner_text())


WINDOW = {"width": 1280, "height": 900}


class Browser:
    """Opens files: in a context of all pages, or alone in one of its own.

    An empty page stays open in the first, which spares a third of the work of a page.
    """

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self._pages: list[Any] = []
        self._context = browser.new_context()
        self._context.new_page()

    def open(
        self,
        path: Path,
        *,
        until: str = COMPLETE,
        address: str = "",
        viewport: dict[str, int] = WINDOW,
        color_scheme: str = "light",
        is_alone: bool = False,
        **options: Any,
    ) -> Opened:
        """The page at `path` and a place in it, once an element like `until` is there.

        Alone, it finds nothing that other pages stored; so are pages with further options.
        """
        context = self._context
        if options or is_alone:
            context = self._browser.new_context(**options)
            self._contexts.append(context)
        page = context.new_page()
        self._pages.append(page)
        page.set_default_timeout(15_000)
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=color_scheme)
        opened = Opened(page)
        opened.page.goto(path.as_uri() + address)
        opened.page.wait_for_selector(until, state="attached", timeout=60_000)
        return opened

    def close_pages(self) -> None:
        """End what the last test opened."""
        while self._pages:
            self._pages.pop().close()
        while self._contexts:
            self._contexts.pop().close()


def started() -> Iterator[Browser]:
    """The browser while it runs; the test is skipped where something for it is missing."""
    sync_api = pytest.importorskip("playwright.sync_api")
    pytest.importorskip("bokeh")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no browser: chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield Browser(browser)
        browser.close()
