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


class Browser:
    """Opens files in contexts of their own."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []

    def open(
        self, path: Path, *, until: str = COMPLETE, address: str = "", **options: Any
    ) -> Opened:
        """The page at `path` and a place in it, once an element like `until` is there."""
        options = {"viewport": {"width": 1280, "height": 900}} | options
        context = self._browser.new_context(**options)
        context.set_default_timeout(15_000)
        self._contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.goto(path.as_uri() + address)
        opened.page.wait_for_selector(until, state="attached", timeout=60_000)
        return opened

    def close_pages(self) -> None:
        """End what the last test opened."""
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
