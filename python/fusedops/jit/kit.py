"""Where this installation keeps what extensions are built with."""

from __future__ import annotations

import functools
import hashlib
import runpy
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
HEADERS = (".h", ".cuh", ".hpp", ".inl")


def include_dir() -> Path:
    """The folder to compile with: ``#include "csrc/common/..."`` is found in it.

    Returns:
        ``fusedops/include`` of an installed package, the repository of an editable one.

    Raises:
        FileNotFoundError: The installation has no headers.
    """
    return _found(PACKAGE / "include", PACKAGE.parents[1], "csrc/common/dispatch.h")


def cmake_dir() -> Path:
    """The folder of ``fusedopsConfig.cmake``, for ``find_package(fusedops)``.

    Returns:
        The folder, for ``-Dfusedops_DIR=...``: ``python -m fusedops info --cmake-dir`` prints it.

    Raises:
        FileNotFoundError: The installation has none.
    """
    return _found(PACKAGE / "cmake", PACKAGE.parents[1] / "cmake", "fusedopsConfig.cmake")


def _found(installed: Path, tree: Path, file: str) -> Path:
    for folder in (installed, tree):
        if (folder / file).is_file():
            return folder
    raise FileNotFoundError(
        f"fusedops.jit: this installation lacks {installed / file}; install fusedops again"
    )


@functools.cache
def probe() -> dict[str, Any]:
    """The functions of cmake/probe.py: how the build finds nvcc and reads architectures."""
    return runpy.run_path(str(cmake_dir() / "probe.py"))


@functools.cache
def headers_digest() -> str:
    """A digest of all that an extension may include or link of ours."""
    root, digest = include_dir(), hashlib.sha256()
    for folder in ("csrc/common", "csrc/cpu", "csrc/cuda/rows/team"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in HEADERS:
                digest.update(str(path.relative_to(root)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
