"""Processes on one GPU that prepare side by side and measure alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from fusedops._core.files import locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Turns:
    """A lock that all processes take on one file; without a file there is nobody to wait for."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def beside_others(self) -> contextlib.AbstractContextManager[None]:
        """For what is not timed, such as compiling: never while another process measures."""
        return self._held(exclusive=False)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """For what is timed: waits until every other process has prepared or ended."""
        return self._held(exclusive=True)

    @contextlib.contextmanager
    def _held(self, exclusive: bool) -> Iterator[None]:
        if self._path is None:
            yield
            return
        with self._path.open("a") as file, locked(file.fileno(), exclusive):
            yield  # the end of the process gives the lock back, too
