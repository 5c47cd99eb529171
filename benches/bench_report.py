"""Time and size of a report, and how fast its page answers in a browser."""

import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

from harness import Figure, Record, against, say, seconds
from texts import generated, seed

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

DEVICE = "h100"


def bench_report(benchmark: Any, record: Record, quick: bool, tmp_path: Path) -> None:
    program = str(Path(sysconfig.get_path("scripts")) / "hlofast")
    page = tmp_path / "report.html"

    def write(path: Path) -> None:
        command = [program, "report", "--device", DEVICE, str(path), "-o", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)

    text = seed() or generated("instructions", 10_000)
    benchmark.group = f"report of {text.name}"
    say(f"report of {text.name}")
    times = against(benchmark, lambda: write(text.path), {}, 2 if quick else 7, turns=1)["ours"]
    size = page.stat().st_size
    what = f"report: the command, {text.name.replace('_', ' ')}"
    record.figures += [
        Figure(what, times.best, "s", at_most=1.5),
        Figure("report: size of that page", size / 1e6, "MB", at_most=3),
    ]
    record.details.append({"text": text.name, "bytes": size} | times.facts())
    count = 100_000 if quick else 1_000_000
    large = generated("instructions", count)
    say(f"report of {large.name}, and its page in a browser")
    best = min(seconds(lambda: write(large.path)) for _ in range(1 if quick else 2))
    record.figures.append(
        Figure(f"report: the command, {count:,} instructions", best, "s", at_most=20)
    )
    detail = {"text": large.name, "bytes": page.stat().st_size, "seconds": best}
    record.details.append(detail | _answers(page, record, count))


def _answers(page: Path, record: Record, count: int) -> dict[str, float]:
    """Seconds from loading the page to the first answer, and seconds of later answers."""
    pytest.importorskip("playwright")
    if shutil.which("chromium") is None:
        return {}
    from browser import started

    browsers = started()
    opened = next(browsers).open(page, until="#search")
    begun = time.perf_counter()
    opened.page.locator("#search").fill(f"op.{count // 2}")
    opened.page.wait_for_selector("#found li")
    first = time.perf_counter() - begun
    opened.page.wait_for_selector("body[data-state=complete]", timeout=120_000)
    begun = time.perf_counter()
    opened.page.locator("#search").fill(f"op.{count // 3}")
    opened.page.wait_for_selector(f'#found b:text-is("op.{count // 3}")')
    later = time.perf_counter() - begun
    next(browsers, None)
    record.figures.append(
        Figure(f"report: first search after load, {count:,} instructions", first, "s", at_most=1)
    )
    return {"first_search_seconds": first, "later_search_seconds": later}
