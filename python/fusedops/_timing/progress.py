"""A bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any


class Progress:
    """Counts steps; `line` prints above the bar, or with a counter where there is no bar."""

    def __init__(self, total: int, label: str) -> None:
        self.total, self.done = total, 0
        self._start = time.perf_counter()
        self._bar: Any = None
        if sys.stderr.isatty() and sys.stdout.isatty():
            with contextlib.suppress(ImportError):
                from tqdm import tqdm

                self._bar = tqdm(total=total, desc=label, dynamic_ncols=True, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self, line: str = "") -> None:
        self.done += 1
        if self._bar is not None:
            self._bar.update()
        if line:
            self.line(f"[{self.done}/{self.total} {self._remaining()}] {line}")

    def line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text)
        else:
            print(text, flush=True)

    def _remaining(self) -> str:
        elapsed = time.perf_counter() - self._start
        return f"{elapsed * (self.total - self.done) / self.done:.0f}s left"
