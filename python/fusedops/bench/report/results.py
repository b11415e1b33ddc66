"""The result CSV: one row per (suite, case, dtype, pass, peer), merged, written atomically."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from fusedops._core.files import folder_for_one, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

Row = dict[str, str]

MACHINE = ("gpu", "torch", "cuda", "commit", "date")
MEASURED = ("ours_us", "peer", "peer_us", "speedup", "gbps", "tflops", "floor_us")
MEMORY = ("ours_extra_mb", "peer_extra_mb")
COLUMNS = ("suite", "case", "dtype", "pass", *MEASURED, *MEMORY, *MACHINE)
KEY = ("suite", "case", "dtype", "pass", "peer")
ERROR_KEY = ("case", "dtype", "contender")
ERROR_COLUMNS = (*ERROR_KEY, "rel_error", *MACHINE)
SHARES_KEY = ("case", "dtype", "pass", "contender")
SHARES_COLUMNS = (*SHARES_KEY, "busy_us", "gemm", "attention", "norm", "other", *MACHINE)
KERNELS_KEY = ("case", "dtype", "pass")
KERNELS_COLUMNS = (*KERNELS_KEY, "kernels", *MACHINE)
# Files beside the results
SIDECARS = {
    ERROR_COLUMNS: ERROR_KEY,
    SHARES_COLUMNS: SHARES_KEY,
    KERNELS_COLUMNS: KERNELS_KEY,
}
NO_PEER = "-"  # the peer of a row that holds our time alone


class ResultsError(ValueError):
    """A file that holds no results."""


def number(value: float | None, digits: int = 4) -> str:
    """`digits` significant digits, never an exponent; empty for None."""
    if value is None:
        return ""
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    text = f"{value:.{digits}g}"
    return text if "e" not in text else f"{value:.6f}"


def read_rows(path: Path) -> list[Row]:
    """Rows of a result CSV, or of every result CSV in a folder."""
    if path.is_dir():
        files = (_read_file(file) for file in sorted(path.glob("*.csv")))
        return [row for columns, rows in files if columns == list(COLUMNS) for row in rows]
    columns, rows = _read_file(path)
    if columns != list(COLUMNS):
        raise ResultsError(f"{path}: expected the columns {','.join(COLUMNS)}; got {columns}")
    return rows


def _read_file(path: Path) -> tuple[list[str], list[Row]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        return list(reader.fieldnames or []), list(reader)


def merge_rows(
    path: Path,
    new_rows: Iterable[Mapping[str, str]],
    columns: Sequence[str] = COLUMNS,
    key: Sequence[str] = KEY,
) -> None:
    """Replaces rows with the same key in place, appends the others; a crash leaves the old file.

    Several processes may merge into one file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with folder_for_one(path.parent):
        _merge(path, new_rows, columns, key)


def _merge(
    path: Path, new_rows: Iterable[Mapping[str, str]], columns: Sequence[str], key: Sequence[str]
) -> None:
    rows: dict[tuple[str, ...], Row] = {}
    if path.exists():
        with path.open(newline="") as file:
            rows = {tuple(row[k] for k in key): row for row in csv.DictReader(file)}
    for row in new_rows:
        if row.get("peer") != NO_PEER:
            rows.pop(tuple(NO_PEER if k == "peer" else row[k] for k in key), None)
        rows[tuple(row[k] for k in key)] = dict(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows.values())
    replace_file(path, text.getvalue())


def measured(rows: Iterable[Row]) -> set[tuple[str, ...]]:
    return {tuple(row[k] for k in KEY) for row in rows}


def merge_into(root: Path, source: Path, folder: Callable[[str], str]) -> list[Path]:
    """Merges result files brought from another machine into root/<gpu>/<file>.csv."""
    if not source.exists():
        raise ResultsError(f"{source} does not exist")
    files = sorted(source.glob("*.csv")) if source.is_dir() else [source]
    changed = []
    for file in files:
        columns, rows = _read_file(file)
        key = {COLUMNS: KEY, **SIDECARS}.get(tuple(columns))
        if key is None:
            continue  # another tool's
        groups: dict[Path, list[Row]] = {}
        for row in rows:
            name = f"{row['suite']}.csv" if key == KEY else file.name
            groups.setdefault(root / folder(row["gpu"]) / name, []).append(row)
        for path, group in groups.items():
            merge_rows(path, group, columns, key)
            changed.append(path)
    if not changed:
        raise ResultsError(f"{source} holds no rows with the columns {','.join(COLUMNS)}")
    return changed
