"""Where a run's figures go: CSV files that a resumed run continues, and TensorBoard."""

from __future__ import annotations

import csv
import importlib
from typing import TYPE_CHECKING, Any

from .errors import failure, reading

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = ("step", "epoch", "loss", "lr", "grad_norm", "clouds_per_s")
TEST = ("step", "epoch", "loss", "accuracy", "class_accuracy")


class Log:
    """A CSV file; a run that goes on behind a step drops what the last one wrote after it."""

    def __init__(self, file: Path, columns: tuple[str, ...], behind: int) -> None:
        self.file, self.columns = file, columns
        rows = []
        if behind and file.exists():
            with reading(file, "log of a run", KeyError, ValueError, TypeError, csv.Error):
                rows = [row for row in read(file) if int(row["step"]) <= behind]
                if any(row.keys() != set(columns) for row in rows):
                    raise ValueError(f"expected the columns {', '.join(columns)}")
        with reading(file, "log of a run"), file.open("w", newline="") as out:
            writer = csv.DictWriter(out, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def write(self, *values: float) -> None:
        with self.file.open("a", newline="") as out:
            csv.writer(out, lineterminator="\n").writerow(f"{value:.8g}" for value in values)


class Board:
    """TensorBoard's files, or nothing."""

    def __init__(self, folder: Path | None, behind: int) -> None:
        self.writer: Any = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder), purge_step=behind + 1)

    def write(self, kind: str, columns: tuple[str, ...], values: tuple[float, ...]) -> None:
        if self.writer is not None:
            for name, value in zip(columns[2:], values[2:], strict=True):
                self.writer.add_scalar(f"{kind}/{name}", value, int(values[0]))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as rows:
        return list(csv.DictReader(rows))


def need(module: str, option: str) -> None:
    """Before the run, not behind it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0] if module != "torch.utils.tensorboard" else "tensorboard"
        raise failure(f"{option} needs {package}: pip install {package} ({error})") from None
