"""Draws a set abstraction layer's time against K and against its width, ours and torch's.

    python -m fusedops bench pointnet --case 'sweep/*'
    python perf/points/draw_layers.py perf/results/h200/pointnet.csv --out FILE.svg

The layers are those of the suite's cases `sweep/`, B32 N1024 M512: 64-64-128 over K neighbours, and
three layers of one width behind 64 features over 32. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fusedops.bench.report.results import Row, read_rows

CASE = re.compile(r"sweep/B\d+_N\d+_M\d+_K(\d+)_C(\d+)_(\d+)-(\d+)-(\d+)")
PASSES = {"fwd": "forward, running statistics", "step": "training step, batch statistics"}
Line = list[tuple[int, float, float]]  # K or width, our us, eager's us


def lines(rows: list[Row], pass_: str) -> tuple[Line, Line]:
    """Against K, and against the width."""
    by_k: Line = []
    by_width: Line = []
    for row in rows:
        found = CASE.fullmatch(row["case"])
        if found is None or (row["pass"], row["peer"]) != (pass_, "eager"):
            continue
        k, features, width = int(found[1]), int(found[2]), int(found[3])
        times = float(row["ours_us"]), float(row["peer_us"])
        (by_width if features else by_k).append((width if features else k, *times))
    return sorted(by_k), sorted(by_width)


def draw(rows: list[Row], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")  # no display
    mpl.rcParams["svg.hashsalt"] = "fusedops"  # the same picture of the same rows
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for line_of_axes, (pass_, text) in zip(grid, PASSES.items(), strict=True):
        found = zip(line_of_axes, lines(rows, pass_), ("neighbours K", "width"), strict=True)
        for axes, line, what in found:
            if not line:
                raise SystemExit(f"draw_layers: no rows sweep/* of pass {pass_} beside eager")
            values, ours, eager = zip(*line, strict=True)
            axes.plot(values, ours, "o-", color="tab:blue", label="fusedops")
            axes.plot(values, eager, "s-", color="tab:orange", label="torch, eager")
            axes.set(xscale="log", yscale="log", xlabel=what, ylabel="us", title=text)
            axes.set_xticks(values, [str(v) for v in values], minor=False)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            axes.legend()
    figure.suptitle(f"Set abstraction, B32 N1024 M512, {rows[0]['gpu']}, {rows[0]['dtype']}")
    figure.savefig(file, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.svg")
    parser.add_argument("--dtype", default="bf16")
    options = parser.parse_args()
    rows = [r for r in read_rows(options.csv) if r["dtype"] == options.dtype]
    if not rows:
        raise SystemExit(f"draw_layers: {options.csv} has no rows in {options.dtype}")
    draw(rows, options.out)
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
