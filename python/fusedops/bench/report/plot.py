"""Heat map of speed-ups and roofline, drawn from the CSV beside it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from fusedops.bench.report.figures import shape, speedup
from fusedops.bench.report.model_plot import speed_chart
from fusedops.bench.report.results import NO_PEER, Row, read_rows
from fusedops.bench.report.wild import histogram

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMATS = ("svg", "png")
PANEL_LINES = 48


def plot(paths: Sequence[Path], into: Path | None = None) -> list[Path]:
    """Writes <suite>_<pass>_{speedup,roofline}.{svg,png} and returns the files.

    They lie in `into`, or in plots/ beside each CSV. The suite models has models_<pass>, the suite
    wild a histogram named wild.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fusedops"  # the same CSV gives the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text: a fifth of the size
    written: list[Path] = []
    for path in paths:
        groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in read_rows(path):
            groups[row["suite"], row["pass"]].append(row)
        folder = into or (path if path.is_dir() else path.parent) / "plots"
        random = [row for key, found in groups.items() if key[0] == "wild" for row in found]
        written += _save(histogram(random), folder, "wild")
        for (suite, pass_), rows in groups.items():
            stem = f"{suite}_{pass_}"
            if suite == "wild":
                continue
            if suite == "models":
                written += _save(speed_chart(rows, pass_), folder, stem)
                continue
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


def _cell(row: Row) -> tuple[str, str]:
    """Where a row stands: (line, column). A GEMM's activation goes across, beside its peers."""
    name, _, last = row["case"].rpartition("/")
    if row["suite"] != "host" and shape(row) and name:
        return name, f"{last} {row['dtype']} {row['peer']}"
    return row["case"], f"{row['dtype']} {row['peer']}"


def _heat_map(rows: Sequence[Row]) -> Any:
    """Cases down, in as many panels as it takes; the speed-up in each cell."""
    rows = [row for row in rows if not row["peer"].startswith("ours")]
    if not rows:
        return None
    from matplotlib import pyplot

    cells = {_cell(row): speedup(row) for row in rows}
    lines = list(dict.fromkeys(line for line, _ in cells))
    columns = sorted({column for _, column in cells})
    count = -(-len(lines) // PANEL_LINES)
    per_panel = -(-len(lines) // count)
    size = (count * (1.6 + 0.55 * len(columns)), 1.6 + 0.2 * per_panel)
    figure, panels = pyplot.subplots(1, count, figsize=size, squeeze=False, layout="constrained")
    for panel, axes in enumerate(panels[0]):
        part = lines[panel * per_panel : (panel + 1) * per_panel]
        _panel(axes, [[cells.get((line, column)) for column in columns] for line in part])
        axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=8)
        axes.set_yticks(range(len(part)), part, fontsize=7)
        axes.set_ylim(per_panel - 0.5, -0.5)  # lines of the same height in every panel
    title = f"{rows[0]['suite']} {rows[0]['pass']} on {rows[0]['gpu']}: speed-up over"
    figure.suptitle(title, fontsize=10)
    return figure


def _panel(axes: Any, values: Sequence[Sequence[float | None]]) -> None:
    from matplotlib import colors

    filled = [[float("nan") if v is None else v for v in line] for line in values]
    norm = colors.TwoSlopeNorm(1.0, vmin=0.5, vmax=2.0)
    axes.imshow(filled, cmap="RdYlGn", norm=norm, aspect="auto")
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            if value is not None:
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7)
    axes.spines[:].set_visible(False)


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
