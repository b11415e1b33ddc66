"""Plain-text tables of the reports."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def run_command(main: Callable[[], int]) -> int:
    """What `main` returns; a reader that has seen enough (`| head`) ends it without a word."""
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # NOTE: Python flushes again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as if by SIGPIPE


def shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """`MxNxK,...` of a command line, with any number of sizes."""
    words = [word.split("x") for word in text.split(",")]
    if not all(size.isdecimal() for word in words for size in word):
        raise argparse.ArgumentTypeError(f"expected MxNxK,...; got {text}")
    return tuple(tuple(int(size) for size in word) for word in words)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a table with left-aligned columns and a rule under the header."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    rule = tuple("-" * width for width in widths)
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, rule, *rows]
    ]
