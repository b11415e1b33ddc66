"""Heat map of speed-ups and roofline, drawn from the CSV beside it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from fusedops.bench.report import speedup
from fusedops.bench.results import NO_PEER, Row, read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMATS = ("svg", "png")


def plot(paths: Sequence[Path]) -> list[Path]:
    """Writes <folder>/plots/<suite>_<pass>_{speedup,roofline}.{svg,png}; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fusedops"  # the same CSV gives the same file
    written: list[Path] = []
    for path in paths:
        groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in read_rows(path):
            groups[row["suite"], row["pass"]].append(row)
        folder = (path if path.is_dir() else path.parent) / "plots"
        for (suite, pass_), rows in groups.items():
            stem = f"{suite}_{pass_}"
            written += _save(
                _heat_map([r for r in rows if r["peer"] != NO_PEER]), folder, f"{stem}_speedup"
            )
            written += _save(_roofline(rows), folder, f"{stem}_roofline")
    return written


def _save(figure: Any, folder: Path, stem: str) -> list[Path]:
    if figure is None:
        return []
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{stem}.{suffix}" for suffix in FORMATS]
    for file in files:
        metadata = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, dpi=110, bbox_inches="tight", metadata=metadata)
    pyplot.close(figure)
    return files


def _heat_map(rows: Sequence[Row]) -> Any:
    """Cases down, dtype and peer across, the speed-up in each cell."""
    if not rows:
        return None
    import numpy as np
    from matplotlib import colors, pyplot

    cases = list(dict.fromkeys(row["case"] for row in rows))
    columns = sorted({f"{row['dtype']} {row['peer']}" for row in rows})
    values = np.full((len(cases), len(columns)), np.nan)
    for row in rows:
        values[cases.index(row["case"]), columns.index(f"{row['dtype']} {row['peer']}")] = speedup(
            row
        )
    figure, axes = pyplot.subplots(figsize=(2.5 + 0.9 * len(columns), 1.5 + 0.26 * len(cases)))
    norm = colors.TwoSlopeNorm(1.0, vmin=0.5, vmax=2.0)
    axes.imshow(values, cmap="RdYlGn", norm=norm, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right")
    axes.set_yticks(range(len(cases)), cases, fontsize=8)
    for (i, j), value in np.ndenumerate(values):
        if not np.isnan(value):
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7)
    axes.set_title(
        f"{rows[0]['suite']} {rows[0]['pass']} on {rows[0]['gpu']}: speed-up over", fontsize=10
    )
    return figure


def _roofline(rows: Sequence[Row]) -> Any:
    """Achieved rate over arithmetic intensity under the ceilings that the floors were made of."""
    from matplotlib import pyplot

    points = {(r["dtype"], r["case"]): r for r in rows if r["gbps"] and float(r["tflops"] or 0) > 0}
    if not points:
        return None
    figure, axes = pyplot.subplots(figsize=(6.4, 4.4))
    by_dtype: dict[str, list[Row]] = defaultdict(list)
    for (dtype, _), row in points.items():
        by_dtype[dtype].append(row)
    for (dtype, members), colour in zip(by_dtype.items(), pyplot.cm.tab10.colors, strict=False):
        intensity = [1e3 * float(r["tflops"]) / float(r["gbps"]) for r in members]
        axes.scatter(
            intensity, [float(r["tflops"]) for r in members], s=14, color=colour, label=dtype
        )
        # A floor is the larger of the two terms, so the largest quotient is the ceiling itself.
        floors = [float(r["floor_us"]) / float(r["ours_us"]) for r in members]
        rate = max(float(r["tflops"]) / f for r, f in zip(members, floors, strict=True))
        gbps = max(float(r["gbps"]) / f for r, f in zip(members, floors, strict=True))
        ridge = 1e3 * rate / gbps
        left, right = min(*intensity, ridge) / 2, max(*intensity, ridge) * 2
        axes.plot([left, ridge, right], [left * gbps * 1e-3, rate, rate], color=colour, lw=1)
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="TFLOP/s")
    axes.grid(True, which="both", lw=0.3)
    axes.legend(fontsize=8)
    axes.set_title(f"{rows[0]['suite']} {rows[0]['pass']} on {rows[0]['gpu']}: ours", fontsize=10)
    return figure
