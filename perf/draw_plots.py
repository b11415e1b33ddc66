"""Draws the pictures of all pages from the CSVs in perf/results: `make figures`.

    python perf/draw_plots.py            # docs/plots/*.svg and perf/results/*/plots/*.svg
    python perf/draw_plots.py FOLDER     # FOLDER/*.svg and FOLDER/*/plots/*.svg: a test compares

Those of docs/plots are shown by docs/performance.md, the others, which `bench --plot` draws as
well, by README.md and docs/benchmarks.md. Every number is a row of a committed CSV. Pictures of
docs/plots are as narrow as a telephone shows them.
"""

from __future__ import annotations

import csv
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusedops.bench.report.figures import geomean, shape
from fusedops.bench.report.model_bars import VARIANTS, models
from fusedops.bench.report.plot import plot
from fusedops.bench.report.results import NO_PEER, Row, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "perf/results"
LANGUAGE_MODELS = {"small": "26 M", "medium": "155 M"}  # presets of examples/train_lm.py
WIDTH = 5.2  # inches; a text of 9 points is legible at 360 pixels
MOST = 1.6  # doublings at the ends of the colour scale
BLUE, ORANGE, GREY, GREEN, PURPLE = "#2a6fbb", "#d9822b", "#8a94a0", "#3a8f5c", "#7b5aa6"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY, "#b0413e", "#4aa8b8", "#9a7b2f")

PEERS = {
    "eager": "eager",
    "cublaslt": "cuBLASLt",
    "compile": "compile",
    "quack": "QuACK",
    "compile_whole": "compile\nwhole",
    "compile_graphs": "compile\ngraphs",
    "liger": "Liger",
}
MODEL_PEERS = ("eager", "liger", "compile", "compile_whole", "compile_graphs")
ROW_BUCKETS = ((1, 16), (17, 128), (129, 1024), (1025, 8192), (8193, 32768), (32769, 1 << 30))
ROW_NAMES = ("to 16", "to 128", "to 1K", "to 8K", "to 32K", "more")
WEIGHT_LIMITS = (1 << 16, 1 << 20, 1 << 23, 1 << 25, 1 << 40)
WEIGHT_NAMES = ("64K", "1M", "8M", "32M", "more")


def rows_of(name: str, **wanted: str) -> list[Row]:
    found = read_rows(RESULTS / f"{name}.csv")
    return [r for r in found if all(r[key] == value for key, value in wanted.items())]


def machine(rows: Sequence[Row]) -> str:
    return rows[0]["gpu"].removeprefix("NVIDIA ").split(" ")[0]


def heat_map(axes: Any, cells: list[list[float | None]], across: list[str], down: list[str]) -> Any:
    """Speed-ups on a diverging scale in doublings: blue is faster, red slower, white as fast."""
    import numpy as np

    values = [[float("nan") if v is None else np.log2(v) for v in line] for line in cells]
    image = axes.imshow(values, cmap="RdBu", vmin=-MOST, vmax=MOST, aspect="auto")
    for i, line in enumerate(cells):
        for j, value in enumerate(line):
            if value is not None:
                dark = abs(np.log2(value)) > 0.7 * MOST
                text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
                colour = "white" if dark else "black"
                axes.text(j, i, text, ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(across)), across, fontsize=8)
    axes.set_yticks(range(len(down)), down, fontsize=8)
    axes.set_xticks([j + 0.5 for j in range(len(across) - 1)], minor=True)
    axes.set_yticks([i + 0.5 for i in range(len(down) - 1)], minor=True)
    axes.grid(which="minor", color="white", lw=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    return image


def scale(figure: Any, image: Any, axes: Any) -> None:
    ticks = [-1.58, -1, 0, 1, 1.58]
    bar = figure.colorbar(image, ax=axes, location="bottom", aspect=40, pad=0.02, ticks=ticks)
    bar.ax.set_xticklabels(["1/3", "1/2", "as fast", "2 times", "3 times"], fontsize=8)
    bar.outline.set_visible(False)


def linear_speedup(plt: Any) -> Any:
    """Rows of x down, entries of the weight across; a cell is a geometric mean of its cases."""
    rows = rows_of("h200/linear", **{"pass": "fwd", "dtype": "bf16"})
    names = ("eager", "cublaslt", "quack")
    figure, panels = plt.subplots(
        3, 1, figsize=(WIDTH, 7.2), sharex=True, layout="constrained", squeeze=False
    )
    image = None
    for axes, peer in zip(panels[:, 0], names, strict=True):
        groups: dict[tuple[int, int], list[float]] = defaultdict(list)
        for row in (r for r in rows if r["peer"] == peer):
            m, n, k = shape(row)
            down = next(i for i, (a, b) in enumerate(ROW_BUCKETS) if a <= m <= b)
            across = next(i for i, most in enumerate(WEIGHT_LIMITS) if n * k <= most)
            groups[down, across].append(float(row["speedup"]))
        cells: list[list[float | None]] = [
            [geomean(groups[i, j]) if (i, j) in groups else None for j in range(len(WEIGHT_LIMITS))]
            for i in range(len(ROW_BUCKETS))
        ]
        image = heat_map(axes, cells, [*WEIGHT_NAMES], [*ROW_NAMES])
        axes.set_title(f"over {PEERS[peer]}", fontsize=9, loc="left")
        axes.set_ylabel("rows", fontsize=8)
    panels[-1, 0].set_xlabel("entries of the weight, up to", fontsize=8)
    scale(figure, image, panels[:, 0])
    figure.suptitle(f"linear with relu or gelu_tanh, bf16, forward, {machine(rows)}", fontsize=10)
    return figure


def models_speedup(plt: Any) -> Any:
    """Models down, what one could do else across, over the fastest of ours."""
    rows = rows_of("h100/models", **{"pass": "step", "dtype": "bf16"})
    measured = {row["peer"] for row in rows}
    peers = [p for p in PEERS if p in MODEL_PEERS and p in measured]
    lines: dict[str, list[float | None]] = {}
    for model in models(rows, "step"):
        if model.over(VARIANTS) is None:
            continue
        name = model.fastest()
        own = {peer: row for (variant, peer), row in model.rows.items() if variant == name}
        lines[model.model] = [float(own[p]["speedup"]) if p in own else None for p in peers]
    ordered = sorted(lines, key=lambda name: -(lines[name][0] or 0))
    figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.27 * len(ordered)), layout="constrained")
    titles = [PEERS[p] for p in peers]
    image = heat_map(axes, [lines[name] for name in ordered], titles, ordered)
    axes.xaxis.tick_top()
    scale(figure, image, axes)
    figure.suptitle(f"Training steps, bf16, {machine(rows)}: ours over", fontsize=10)
    return figure


def rows_speedup(plt: Any) -> Any:
    """What memory bounds: ops down, passes and peers across, geometric means."""
    columns = [("fwd", "eager"), ("fwd", "compile"), ("fwd", "quack")]
    columns += [("bwd", "eager"), ("bwd", "compile"), ("bwd", "quack")]
    groups: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    rows = [r for name in ("norm", "reduce", "scan") for r in rows_of(f"h200/{name}")]
    rows += rows_of("h200/elementwise")
    for row in rows:
        pass_ = "bwd" if row["pass"] == "step" else row["pass"]
        if (pass_, row["peer"]) in columns and row["speedup"]:
            groups[row["case"].split("/")[0]][pass_, row["peer"]].append(float(row["speedup"]))
    ops = [*groups]
    cells: list[list[float | None]] = [
        [geomean(groups[op][c]) if groups[op].get(c) else None for c in columns] for op in ops
    ]
    figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.23 * len(ops)), layout="constrained")
    titles = [f"{PEERS[peer]}\n{pass_}" for pass_, peer in columns]
    image = heat_map(axes, cells, titles, ops)
    axes.xaxis.tick_top()
    scale(figure, image, axes)
    figure.suptitle(f"What memory bounds, {machine(rows)}: ours over", fontsize=10)
    return figure


def roofline(plt: Any) -> Any:
    """What every bf16 case reached, under the ceilings of the runs that measured them."""
    figure, axes = plt.subplots(figsize=(WIDTH, 4.6), layout="constrained")
    kinds = (
        ("linear", "linear", ("fwd", "step")),
        ("mlp", "mlp", ("fwd", "step")),
        ("skinny", "linear, few rows", ("fwd",)),
    )
    flops = bandwidth = 0.0
    gpu = ""
    for (suite, label, passes), colour in zip(kinds, COLOURS, strict=False):
        rows = [r for r in rows_of(f"h200/{suite}", dtype="bf16") if r["pass"] in passes]
        rows = [r for r in rows if r["floor_us"] and float(r["tflops"] or 0) > 0]
        if not rows:
            continue
        gpu = machine(rows)
        x = [1e3 * float(r["tflops"]) / float(r["gbps"]) for r in rows]
        y = [float(r["tflops"]) for r in rows]
        axes.scatter(x, y, s=9, color=colour, label=label, alpha=0.7, lw=0)
        for row in rows:
            share = float(row["floor_us"]) / float(row["ours_us"])
            flops = max(flops, float(row["tflops"]) / share)
            bandwidth = max(bandwidth, float(row["gbps"]) / share)
    ridge = 1e3 * flops / bandwidth
    axes.plot([0.5, ridge, 1e4], [5e-4 * bandwidth, flops, flops], color="black", lw=1)
    axes.text(2, 1.2e-3 * bandwidth, f"copy {bandwidth / 1e3:.1f} TB/s", fontsize=8)
    axes.text(1e4, flops * 1.1, f"matmul {flops:.0f} TFLOP/s", fontsize=8, ha="right")
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="TFLOP/s")
    axes.set(xlim=(0.5, 1.2e4), ylim=(1, 1.5e3))
    axes.grid(True, which="major", lw=0.3)
    axes.legend(fontsize=8, loc="lower right")
    axes.set_title(f"bf16 on {gpu}: ours under the rooflines", fontsize=10)
    return figure


def _sizes(row: Row) -> tuple[int, int, int, str]:
    """B, N, k and the kind of cloud of `knn/B1_N100000_M100000_k16_planar`; k 0 for features."""
    parts = row["case"].split("/")[1].split("_")
    k = parts[3][1:] if parts[3][0] == "k" else "0"
    return int(parts[0][1:]), int(parts[1][1:]), int(k), parts[-1]


def knn_scaling(plt: Any) -> Any:
    """Time of one search over the points of a cloud, and over k."""
    rows = [r for r in rows_of("h200/points", dtype="fp32") if r["case"].startswith("knn/")]
    sized = [(*_sizes(r), float(r["ours_us"]) / 1e3) for r in rows]
    figure, (left, right) = plt.subplots(2, 1, figsize=(WIDTH, 6.4), layout="constrained")
    kinds = dict.fromkeys(kind for b, n, k, kind, _ in sized if (b, k) == (1, 16))
    for kind, colour in zip(kinds, COLOURS, strict=False):
        points = sorted((n, ms) for b, n, k, other, ms in sized if (b, k, other) == (1, 16, kind))
        left.plot(*zip(*points, strict=True), "o-", color=colour, label=kind, lw=1.2, ms=4)
    left.set(xscale="log", yscale="log", xlabel="points = queries, k = 16", ylabel="ms")
    for batch, size, colour in ((1, 100000, BLUE), (32, 4096, ORANGE)):
        uniform = {k: ms for b, n, k, kind, ms in sized if (b, n, kind) == (batch, size, "uniform")}
        best = dict(sorted(uniform.items()))
        label = f"{batch} x {size} points"
        right.plot([*best], [*best.values()], "o-", color=colour, label=label, lw=1.2, ms=4)
    right.set(xscale="log", yscale="log", xlabel="k", ylabel="ms")
    right.set_xticks([1, 8, 16, 32, 64, 128], ["1", "8", "16", "32", "64", "128"])
    for axes in (left, right):
        axes.grid(True, lw=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(f"Exact k-NN in three dimensions, fp32, {machine(rows)}", fontsize=10)
    return figure


def mlp_memory(plt: Any) -> Any:
    """What a training step of an MLP allocates at most, beyond its operands."""
    rows = rows_of("h200/mlp", **{"pass": "step", "dtype": "bf16"})
    cases: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["ours_extra_mb"] and row["peer_extra_mb"]:
            cases[row["case"]]["fusedops"] = float(row["ours_extra_mb"])
            cases[row["case"]][row["peer"]] = float(row["peer_extra_mb"])
    names = [*cases][::-1]
    figure, axes = plt.subplots(figsize=(WIDTH, 0.8 + 0.42 * len(names)), layout="constrained")
    series = (("fusedops", BLUE), ("compile", GREY), ("eager", "#d5d9de"))
    for place, (label, colour) in enumerate(series):
        at = [i + 0.27 * (1 - place) for i in range(len(names))]
        axes.barh(at, [cases[n].get(label, 0) for n in names], 0.26, color=colour, label=label)
    axes.set_yticks(range(len(names)), [n.replace("/", "\n") for n in names], fontsize=7)
    axes.set_xlabel("MB above the operands", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="upper right")
    axes.set_title(f"Memory of an MLP's training step, bf16, {machine(rows)}", fontsize=10)
    return figure


def random_shapes(plt: Any) -> Any:
    """Every random case of a family over its fastest peer: no list chose them."""
    rows = [r for r in rows_of("h200/wild") if r["peer"] != NO_PEER and r["speedup"]]
    fastest: dict[tuple[str, ...], float] = {}
    for row in rows:
        key = (row["case"], row["dtype"], row["pass"])
        fastest[key] = min(fastest.get(key, float("inf")), float(row["speedup"]))
    families: dict[str, list[float]] = defaultdict(list)
    for (case, _, _), value in fastest.items():
        families[case.split("/")[0]].append(value)
    names = sorted(families, key=lambda name: geomean(families[name]))
    figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.28 * len(names)), layout="constrained")
    for i, name in enumerate(names):
        axes.scatter(families[name], [i] * len(families[name]), s=10, color=BLUE, alpha=0.5, lw=0)
        axes.plot([geomean(families[name])] * 2, [i - 0.35, i + 0.35], color=ORANGE, lw=2)
    axes.axvline(1.0, color="black", lw=0.8)
    axes.set_yticks(range(len(names)), [f"{n} ({len(families[n])})" for n in names], fontsize=8)
    axes.set(xscale="log", xlabel="times as fast as the fastest peer; orange: geometric mean")
    axes.grid(True, axis="x", lw=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"Random shapes (cases), {machine(rows)}", fontsize=10)
    return figure


def fp8_curve(plt: Any) -> Any:
    """The loss of language models in bf16 and in FP8, every seed."""
    with (RESULTS / "fp8/training_h100.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["loss"]]
    presets = sorted({row["preset"] for row in rows}, reverse=True)
    figure, places = plt.subplots(1, len(presets), figsize=(WIDTH, 3.2), layout="constrained")
    for axes, preset in zip(places, presets, strict=True):
        runs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for row in rows:
            if row["preset"] == preset:
                point = float(row["tokens"]) / 1e6, float(row["loss"])
                runs[row["mode"], row["seed"]].append(point)
        modes = dict.fromkeys(mode for mode, _ in runs)
        for mode, colour in zip(modes, (ORANGE, BLUE), strict=False):
            curves = [points for (of, _), points in runs.items() if of == mode]
            seeds = f"{len(curves)} seed{'s' * (len(curves) > 1)}"
            for i, points in enumerate(curves):
                label = f"{mode}, {seeds}" if i == 0 else None
                axes.plot(*zip(*points, strict=True), color=colour, lw=0.7, alpha=0.8, label=label)
        axes.set(xlabel="million tokens", yscale="log")
        axes.grid(True, which="both", lw=0.3)
        axes.legend(fontsize=8)
        axes.set_title(f"{LANGUAGE_MODELS[preset]} parameters", fontsize=9)
    places[0].set_ylabel("training loss, nats a byte")
    figure.suptitle("Byte-level language models, H100", fontsize=10)
    return figure


PICTURES: dict[str, Callable[[Any], Any]] = {
    draw.__name__: draw
    for draw in (
        *(linear_speedup, models_speedup, rows_speedup, roofline),
        *(knn_scaling, mlp_memory, random_shapes, fp8_curve),
    )
}
COPIED = {"training_curve": RESULTS / "pointcloud/training_cpu.svg"}  # compare_training.py drew it
# Charts of `bench --plot` that README.md and docs/benchmarks.md show.
CHARTS = {
    "h200/linear": ("linear_fwd_speedup", "linear_fwd_roofline", "linear_step_speedup"),
    "h200/skinny": ("skinny_fwd_speedup",),
    "h200/models": ("models_step",),
}


def charts(folder: Path) -> list[Path]:
    """Draws the CHARTS into `folder`/<card>/plots."""
    written = []
    for source, names in CHARTS.items():
        card = source.split("/")[0]
        with tempfile.TemporaryDirectory() as scratch:
            drawn = {f.name: f for f in plot([RESULTS / f"{source}.csv"], Path(scratch))}
            for name in (f"{n}.svg" for n in names):
                (folder / card / "plots").mkdir(parents=True, exist_ok=True)
                written.append(Path(shutil.copyfile(drawn[name], folder / card / "plots" / name)))
    return written


def main(folder: Path) -> list[Path]:
    """Draws the PICTURES and copies the COPIED."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "fusedops", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in PICTURES.items():
        figure = draw(plt)
        file = folder / f"{name}.svg"
        figure.savefig(file, metadata={"Date": None}, facecolor="white")
        plt.close(figure)
        written.append(file)
    for name, source in COPIED.items():
        written.append(Path(shutil.copyfile(source, folder / f"{name}.svg")))
    return written


if __name__ == "__main__":
    elsewhere = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    # NOTE: the charts come first; `main` sets a smaller font than `bench --plot` has.
    files = charts(elsewhere or RESULTS)
    for path in [*files, *main(elsewhere or ROOT / "docs/plots")]:
        print(f"wrote {path}")
