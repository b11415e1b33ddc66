"""What is wrong with arguments or files, in one line and without a traceback."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEEDS = 1_000_000  # those of clouds follow from them


def failure(text: str) -> SystemExit:
    """An exit with status 1 and this line."""
    return SystemExit(f"train_pointcloud: {text}")


@contextlib.contextmanager
def reading(file: Path, kind: str, *errors: type[Exception]) -> Iterator[None]:
    """Says which file is missing, or is not of its kind where one of these errors comes."""
    try:
        yield
    except OSError as error:
        raise failure(f"{file}: {error.strerror or error}") from None
    except errors as error:
        line = (str(error).splitlines() or [""])[0]
        raise failure(f"{file} is no {kind}: {type(error).__name__}: {line}") from None


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failure(f"--out {folder}: {error.strerror or error}") from None


# ---- arguments ----


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1; got {text}")
    return int(text)


def seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= SEEDS:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to {SEEDS - 1}; got {text}")
    return int(text)


def device(text: str) -> torch.device:
    """One that is here."""
    try:
        found = torch.device(text)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"expected cpu, cuda or cuda:N; got {text}")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise argparse.ArgumentTypeError(f"{text} is none of the {count} GPU(s) that torch sees")
    return found
