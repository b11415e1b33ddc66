"""Table and picture of trainings of one model, ours and in plain torch, over seeds.

    for s in 0 1 2; do
      python examples/train_pointcloud.py --data metaworld --seed $s --out runs/fused_$s
      python examples/train_pointcloud.py --data metaworld --seed $s --plain --out runs/plain_$s
    done
    python perf/points/compare_training.py runs --out perf/results/pointcloud/training_cpu.csv

Writes the last test of every run, and an SVG of that name with the curves (matplotlib), and prints
means with their standard deviations and Welch's t, the difference of the means in its own standard
error: around 2 and below it is noise.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from pathlib import Path

KINDS = ("fused", "plain")
COLUMNS = ("kind", "seed", "epoch", "loss", "accuracy", "class_accuracy", "train_loss")
TAIL = 10  # logged steps that the last training loss is the mean of
Rows = list[dict[str, str]]


def read(file: Path) -> Rows:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def find_runs(folder: Path) -> dict[tuple[str, str], tuple[Rows, Rows]]:
    """(kind, seed) to the rows of test.csv and train.csv."""
    runs = {}
    for kind in KINDS:
        for path in sorted(folder.glob(f"{kind}_*")):
            if (path / "test.csv").exists():
                seed = path.name.removeprefix(f"{kind}_")
                runs[kind, seed] = read(path / "test.csv"), read(path / "train.csv")
    if {kind for kind, _ in runs} != {*KINDS}:
        raise SystemExit(f"compare_training: {folder} lacks runs fused_SEED and plain_SEED")
    return runs


def table(runs: dict[tuple[str, str], tuple[Rows, Rows]]) -> Rows:
    found = []
    for (kind, seed), (test, train) in runs.items():
        last = {name: test[-1][name] for name in ("epoch", "loss", "accuracy", "class_accuracy")}
        loss = statistics.mean(float(row["loss"]) for row in train[-TAIL:])
        found.append({"kind": kind, "seed": seed, **last, "train_loss": f"{loss:.5g}"})
    return found


def summary(rows: Rows, name: str) -> str:
    values = [[float(r[name]) for r in rows if r["kind"] == kind] for kind in KINDS]
    means = [statistics.mean(v) for v in values]
    deviations = [statistics.stdev(v) if len(v) > 1 else math.nan for v in values]
    squares = sum(d**2 / len(v) for d, v in zip(deviations, values, strict=True))
    t = (means[0] - means[1]) / math.sqrt(squares) if squares > 0 else math.nan
    texts = (f"{k} {m:.4f} +- {d:.4f}" for k, m, d in zip(KINDS, means, deviations, strict=True))
    return f"{name}: {', '.join(texts)}; difference {means[0] - means[1]:+.4f}, t {t:+.2f}"


def draw(runs: dict[tuple[str, str], tuple[Rows, Rows]], file: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")  # no display
    mpl.rcParams["svg.hashsalt"] = "fusedops"  # the same picture of the same runs
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for (kind, seed), (test, train) in runs.items():
        color = {"fused": "tab:blue", "plain": "tab:orange"}[kind]
        first = seed == min(s for k, s in runs if k == kind)
        style = {"color": color, "alpha": 0.75, "lw": 1.3, "label": kind if first else None}
        left.plot(*columns(train, "loss"), **style)
        right.plot(*columns(test, "accuracy"), **style)
    left.set(xlabel="epoch", ylabel="training loss")
    right.set(xlabel="epoch", ylabel="test accuracy")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(file, metadata={"Date": None})


def columns(rows: Rows, name: str) -> tuple[list[float], list[float]]:
    return [float(row["epoch"]) for row in rows], [float(row[name]) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    options = parser.parse_args()
    runs = find_runs(options.runs)
    rows = table(runs)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(runs, options.out.with_suffix(".svg"))
    for name in ("accuracy", "class_accuracy", "loss", "train_loss"):
        print(summary(rows, name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
