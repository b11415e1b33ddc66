"""Files that other processes may read at any time."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def cache_dir() -> Path:
    """$FUSEDOPS_CACHE_DIR, else the user's cache directory of this platform."""
    if given := os.environ.get("FUSEDOPS_CACHE_DIR"):
        return Path(os.path.expanduser(given))  # as it is where there is no such user
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "fusedops"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/fusedops"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusedops"


def replace_file(path: Path, text: str) -> None:
    """Put text in place of the file's content at once: a crash leaves the old file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextlib.contextmanager
def locked(handle: int, exclusive: bool = True) -> Iterator[None]:
    """Hold a lock on an open file among all processes that ask; on Unix only."""
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
    finally:
        # NOTE: closing would not give it back: children forked meanwhile have the file open, too.
        fcntl.flock(handle, fcntl.LOCK_UN)


@contextlib.contextmanager
def folder_for_one(folder: Path) -> Iterator[None]:
    """Only one process at a time is in here with a folder that exists."""
    if os.name != "posix":  # where no bench runs beside another one
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with locked(handle):
            yield
    finally:
        os.close(handle)
