"""Renders furthest point sampling, k-NN and ball query on a generated surface to a PNG.

    python examples/point_clouds.py [--out point_clouds.png] [--points 20000] [--device cuda]

The cloud is a tube around a trefoil knot. Needs matplotlib; without it nothing is written.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from fusedops import points

SEED = 0
SAMPLES = 300
QUERIES = 6
NEIGHBOURS = 200
RADIUS = 0.45
COLUMNS = 1024  # room for a ball


def trefoil_tube(count: int, thickness: float = 0.5) -> Tensor:
    """(count, 3): points of a tube around a trefoil knot, in every direction at random."""
    generator = torch.Generator().manual_seed(SEED)
    along, around = (2 * math.pi * torch.rand(2, count, generator=generator)).unbind()
    radius = 2 + torch.cos(3 * along)
    curve = torch.stack(
        [radius * torch.cos(2 * along), radius * torch.sin(2 * along), torch.sin(3 * along)], 1
    )
    turn = torch.stack(  # the derivative of the curve
        [
            -3 * torch.sin(3 * along) * torch.cos(2 * along) - 2 * curve[:, 1],
            -3 * torch.sin(3 * along) * torch.sin(2 * along) + 2 * curve[:, 0],
            3 * torch.cos(3 * along),
        ],
        1,
    )
    tangent = F.normalize(turn, dim=1)
    side = F.normalize(torch.linalg.cross(tangent, torch.tensor([[0.0, 0.0, 1.0]])), dim=1)
    up = torch.linalg.cross(side, tangent)
    return curve + thickness * (side * around.cos()[:, None] + up * around.sin()[:, None])


def panels(cloud: Tensor) -> list[tuple[str, Tensor, Tensor]]:
    """(title, indices to highlight, their group) for each picture; cloud (N, 3)."""
    batch = cloud[None]
    samples = points.farthest_point_sample(batch, min(SAMPLES, len(cloud)))
    centers = samples[0, :QUERIES]
    queries = batch[:, centers]
    near = points.knn(batch, queries, min(NEIGHBOURS, len(cloud))).idx[0]
    ball = points.ball_query(batch, queries, RADIUS, COLUMNS)
    inside, counts = ball.idx[0], ball.counts[0].tolist()
    groups = torch.arange(len(centers), device=cloud.device)[:, None]
    used = inside >= 0
    return [
        (f"furthest points: {samples.shape[1]}", samples[0], torch.zeros_like(samples[0])),
        (
            f"{near.shape[1]} nearest of {len(centers)}",
            near.flatten(),
            groups.repeat_interleave(near.shape[1], 1).flatten(),
        ),
        (
            f"within {RADIUS}: {min(counts)} to {max(counts)} points",
            inside[used],
            groups.expand_as(inside)[used],
        ),
    ]


def draw(cloud: Tensor, path: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")  # no display
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(15, 5), dpi=110)
    xyz = cloud.cpu().numpy()
    for place, (title, idx, group) in enumerate(panels(cloud), 1):
        axes = figure.add_subplot(1, 3, place, projection="3d", computed_zorder=False)
        axes.scatter(*xyz.T, s=1, c=xyz[:, 2], cmap="Greys", vmin=-8, vmax=4, linewidths=0)
        chosen, colors = xyz[idx.cpu().numpy()], group.cpu().numpy()
        axes.scatter(*chosen.T, s=9, c=colors, cmap="Set1", vmin=0, vmax=8, linewidths=0)
        axes.set_title(title)
        axes.set_box_aspect((xyz.max(0) - xyz.min(0)).tolist(), zoom=1.3)
        axes.view_init(60, -60)
        axes.set_axis_off()
    figure.subplots_adjust(left=0, right=1, bottom=0, top=0.92, wspace=0)
    figure.savefig(path)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="point_clouds.png", help="file to write")
    parser.add_argument("--points", type=int, default=20000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        print("point_clouds.py: skipped: matplotlib is not installed (pip install matplotlib)")
        return 0
    draw(trefoil_tube(arguments.points).to(arguments.device), arguments.out)
    print(f"wrote {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
