"""Confusion matrix and rendered clouds, as PNG files. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor


def pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")  # no display
    from matplotlib import pyplot as plt

    return plt


def draw_confusion(confusion: Tensor, names: Sequence[str], file: Path) -> None:
    """confusion[i, j]: how many of class i were taken for j."""
    plt = pyplot()
    shares = confusion.double() / confusion.sum(1, keepdim=True).clamp_min(1)
    size = 3 + 0.28 * len(names)
    figure, axes = plt.subplots(figsize=(size, size), dpi=110, layout="constrained")
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(shares.tolist()):
        for j, share in enumerate(row):
            if share >= 0.005:
                color = "white" if share > 0.5 else "black"
                text = f"{100 * share:.0f}"
                axes.text(j, i, text, ha="center", va="center", color=color, fontsize=7)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("taken for")
    axes.set_ylabel("is")
    accuracy = float(confusion.diagonal().sum() / confusion.sum().clamp_min(1))
    axes.set_title(f"{100 * accuracy:.1f} % of {int(confusion.sum())} clouds, percent of a row")
    figure.savefig(file)
    plt.close(figure)


def draw_clouds(
    clouds: Tensor, labels: Sequence[int], taken_for: Sequence[int], names: Sequence[str],
    file: Path
) -> None:  # fmt: skip
    """Each cloud with its class, and in red what it was taken for."""
    plt = pyplot()
    columns = min(8, len(clouds))
    lines = -(-len(clouds) // columns)
    figure = plt.figure(figsize=(2 * columns, 2.1 * lines), dpi=110)
    for i, cloud in enumerate(clouds.cpu().float().numpy()):
        axes = figure.add_subplot(lines, columns, i + 1, projection="3d", computed_zorder=False)
        axes.scatter(*cloud.T, s=2, c=cloud[:, 2], cmap="viridis", linewidths=0)
        axes.set_box_aspect((1, 1, 1), zoom=1.4)
        axes.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
        axes.set_axis_off()
        right = labels[i] == taken_for[i]
        text = names[labels[i]] if right else f"{names[labels[i]]}\n{names[taken_for[i]]}"
        axes.set_title(text, fontsize=9, color="black" if right else "tab:red", pad=-4)
    figure.subplots_adjust(left=0, right=1, bottom=0, top=0.95, wspace=0, hspace=0.1)
    figure.savefig(file)
    plt.close(figure)
