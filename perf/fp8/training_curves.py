"""Loss curves of examples/train_lm.py in bf16 and in FP8, as one CSV and a picture.

    python perf/fp8/training_curves.py LOGS perf/results/fp8/training_h100

LOGS holds, for each run, PRESET_MODE_sSEED.csv (what --log wrote) and PRESET_MODE_sSEED.txt (what
the run printed, with the validation loss in its last line). Writes OUT.csv and OUT.svg, and prints
by how much the validation losses differ.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
from pathlib import Path

TOKENS = {"small": 16 * 1024, "medium": 16 * 1024}  # of a step of the example's presets
COLUMNS = ("preset", "mode", "seed", "step", "tokens", "loss", "validation_loss")
NAME = re.compile(r"(?P<preset>\w+)_(?P<mode>bf16|fp8)_s(?P<seed>\d+)")
VALIDATION = re.compile(r"validation loss ([\d.]+)")
COLOURS = {"bf16": "#4477aa", "fp8": "#cc6677"}
SMOOTHED = 5  # logged losses, each of one batch, in a point of the picture

Row = dict[str, str]


def read(folder: Path) -> list[Row]:
    """A row for each logged step; the last one of a run has its validation loss."""
    rows: list[Row] = []
    for file in sorted(folder.glob("*.csv")):
        name = NAME.fullmatch(file.stem)
        if name is None:
            raise SystemExit(f"{file}: expected PRESET_MODE_sSEED.csv")
        found = VALIDATION.findall(file.with_suffix(".txt").read_text())
        if not found:
            raise SystemExit(f"{file.with_suffix('.txt')}: the run has not ended")
        with file.open(newline="") as source:
            run = [
                name.groupdict()
                | {"step": row["step"], "loss": row["loss"], "validation_loss": ""}
                | {"tokens": str(int(row["step"]) * TOKENS[name["preset"]])}
                for row in csv.DictReader(source)
            ]
        run[-1]["validation_loss"] = found[-1]
        rows += run
    if not rows:
        raise SystemExit(f"{folder}: no logs")
    return rows


def summary(rows: list[Row]) -> list[str]:
    """The validation losses of each preset, mean over its seeds."""
    lines = []
    for preset in sorted({row["preset"] for row in rows}):
        ends = [r for r in rows if r["preset"] == preset and r["validation_loss"]]
        losses = {
            mode: {r["seed"]: float(r["validation_loss"]) for r in ends if r["mode"] == mode}
            for mode in COLOURS
        }
        seeds = sorted(losses["bf16"].keys() & losses["fp8"].keys())
        if not seeds:
            continue
        bf16, fp8 = (statistics.mean(losses[mode][s] for s in seeds) for mode in COLOURS)
        lines.append(
            f"{preset}, {len(seeds)} seeds, {int(ends[0]['tokens']) * 1e-6:.0f} M tokens: "
            f"bf16 {bf16:.4f}, FP8 {fp8:.4f} ({100 * (fp8 / bf16 - 1):+.2f} %)"
        )
    return lines


def draw(rows: list[Row], file: Path) -> None:
    """A panel for each preset, a line for each run."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fusedops"  # the same CSV gives the same file
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    presets = sorted({row["preset"] for row in rows}, reverse=True)
    figure, axes = pyplot.subplots(
        1, len(presets), figsize=(5.5 * len(presets), 3.6), squeeze=False
    )
    for axis, preset in zip(axes[0], presets, strict=True):
        runs = sorted({(r["mode"], r["seed"]) for r in rows if r["preset"] == preset})
        for mode, seed in runs:
            run = [r for r in rows if (r["preset"], r["mode"], r["seed"]) == (preset, mode, seed)]
            losses = [float(r["loss"]) for r in run]
            means = [
                statistics.mean(losses[i : i + SMOOTHED]) for i in range(len(losses) - SMOOTHED + 1)
            ]
            tokens = [float(r["tokens"]) * 1e-6 for r in run[SMOOTHED - 1 :]]
            label = mode if seed == runs[0][1] else None
            style = {"color": COLOURS[mode], "linestyle": "-" if mode == "bf16" else "--"}
            axis.plot(tokens, means, linewidth=1, label=label, **style)
        axis.set(title=preset, xlabel="million tokens", ylabel="training loss", yscale="log")
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("logs", type=Path)
    parser.add_argument("out", type=Path, help="without suffix")
    options = parser.parse_args()
    rows = read(options.logs)
    with options.out.with_suffix(".csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, options.out.with_suffix(".svg"))
    print("\n".join(summary(rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
