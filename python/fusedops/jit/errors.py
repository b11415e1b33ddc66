"""What a compiler said, in terms of the user's own lines."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_ERRORS = 5

# g++ and clang++: file:line:column: error: text; nvcc: file(line): error: text.
_ERROR = re.compile(
    r"^(?P<file>[^\s:(][^:(\n]*)(?::(?P<line>\d+)(?::\d+)?:|\((?P<other>\d+)\):)"
    r" (?:fatal )?(?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$"
)
# Lines that lead from an error in a header to who included or instantiated it.
_FRAME = re.compile(r"(?P<file>/?[\w./+~-]+\.\w+)[:(](?P<line>\d+)")
_AT_LINE = re.compile(r"at line (?P<line>\d+) of (?P<file>\S+)")


class BuildError(RuntimeError):
    """An extension cannot be built.

    Attributes:
        log: All that the compiler printed; empty where it did not run.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class Finding:
    """One error: where in the user's files, where in a header if there, and what."""

    file: str
    line: int
    text: str
    inner: str = ""  # file:line in a header


def findings(log: str, own: Iterable[Path]) -> list[Finding]:
    """The errors of a compiler's log; one in a header counts where a file of `own` led to it."""
    mine = {os.path.realpath(path): str(path) for path in own}
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if _ERROR.match(line)]
    found: list[Finding] = []
    for number, at in enumerate(starts):
        match = _ERROR.match(lines[at])
        assert match is not None
        file, line = match["file"], int(match["line"] or match["other"])
        text = match["text"]
        if os.path.realpath(file) in mine:
            found.append(Finding(mine[os.path.realpath(file)], line, text))
            continue
        before = lines[starts[number - 1] + 1 if number else 0 : at]
        after = lines[at + 1 : starts[number + 1] if number + 1 < len(starts) else len(lines)]
        frame = _frame([*reversed(before), *after], mine)
        inner = f"{file}:{line}"
        found.append(Finding(*frame, text, inner) if frame else Finding(file, line, text))
    return found


def _frame(lines: Sequence[str], mine: dict[str, str]) -> tuple[str, int] | None:
    for line in lines:
        for match in (*_AT_LINE.finditer(line), *_FRAME.finditer(line)):
            path = os.path.realpath(match["file"])
            if path in mine:
                return mine[path], int(match["line"])
    return None


def compile_error(name: str, source: Path, log: str, own: Iterable[Path], kept: Path) -> BuildError:
    """The error of a failed compilation, with the user's lines."""
    own = list(own)
    errors = findings(log, own)
    parts = [f"fusedops.jit: {name}: {source.name} does not compile"]
    for error in errors[:MOST_ERRORS]:
        parts.append(f"{error.file}:{error.line}: {error.text}")
        if line := _line(Path(error.file), error.line):
            parts.append(f"{error.line:>6} | {line}")
        if error.inner:
            parts.append(f"        in {error.inner}")
    if len(errors) > MOST_ERRORS:
        parts.append(f"and {len(errors) - MOST_ERRORS} more")
    if not errors:
        parts.append("\n".join(log.strip().splitlines()[-20:]) or "the compiler said nothing")
    parts.append(f"all that the compiler said is in {kept}")
    return BuildError("\n".join(parts), log)


def _line(path: Path, number: int) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[number - 1].rstrip() if 0 < number <= len(lines) else ""
