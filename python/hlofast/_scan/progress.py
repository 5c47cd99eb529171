"""The progress of a scan on a terminal."""

from __future__ import annotations

import sys
import time
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Progress:
    """On a terminal, a bar with rate and time left; drawn by `tqdm` if it is installed."""

    def __init__(self, files: int, size: int, *, is_wanted: bool) -> None:
        self.files = files
        self.size = size
        self._bar: Any = None
        self._begin = time.monotonic()
        self._shown = 0.0
        self._is_shown = is_wanted and sys.stderr.isatty()
        if self._is_shown:
            try:
                tqdm = import_module("tqdm").tqdm
            except ImportError:
                return
            self._bar = tqdm(
                total=size, unit="B", unit_scale=True, unit_divisor=1024, file=sys.stderr
            )

    def show(self, files: int, size: int) -> None:
        """Shows the number of files and bytes done."""
        if not self._is_shown:
            return
        now = time.monotonic()
        if now - self._shown < 0.1:
            return
        self._shown = now
        if self._bar is not None:
            self._bar.set_postfix_str(f"{files:,} of {self.files:,} files", refresh=False)
            self._bar.update(size - self._bar.n)
            return
        passed = max(now - self._begin, 1e-3)
        rate = size / passed
        left = (self.size - size) / rate if rate > 0 else 0
        share = 100 * size / self.size if self.size else 100
        sys.stderr.write(
            f"\r{share:3.0f} %  {files:,} of {self.files:,} files  {rate / 1e6:.1f} MB/s  "
            f"{left:.0f} s left \x1b[K"
        )
        sys.stderr.flush()

    def close(self) -> None:
        """Clears the bar."""
        if self._bar is not None:
            self._bar.close()
        elif self._is_shown and self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
