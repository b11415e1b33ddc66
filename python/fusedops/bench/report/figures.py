"""Figures of the CSVs' rows, and the line of a bar: what summaries, bars and plots share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fusedops.bench.report.results import Row

LARGE_M = 2048
GEMM_SUITES = ("linear", "mlp", "skinny", "wgrad", "fp32")


def select(rows: Sequence[Row], **wanted: str) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def bar(name: str, values: Sequence[float], of: Callable[..., float], least: float) -> str:
    if not values:
        return f"  no data  {name} >= {least:.2f}"
    value = of(values)
    verdict = "pass" if value >= least else "FAIL"
    return f"  {verdict:7}  {name} >= {least:.2f}: {value:.3f} over {len(values)}"


def first_size(row: Row) -> int:
    return shape(row)[0] if shape(row) else 0


def shape(row: Row) -> tuple[int, ...]:
    """M, N, K of a GEMM case, () of any other."""
    for part in row["case"].split("/"):
        sizes = part.split("x")
        if len(sizes) == 3 and all(size.isdigit() for size in sizes):
            return tuple(int(size) for size in sizes)
    return ()


def speedup(row: Row) -> float:
    return float(row["speedup"])


def ratios(pairs: Iterable[tuple[str | float, str]]) -> list[float]:
    """Quotients of cells, without those that are blank or have nothing to divide by."""
    return [float(a) / float(b) for a, b in pairs if a != "" and float(b or 0) > 0]


def activation(row: Row) -> str:
    return row["case"].split("/")[-1] if row["suite"] != "host" else row["case"].split("/")[-2]


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
