"""Furthest point sampling, of the suite `points`."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.points_clouds import CLOUDS, cloud, scan_size

# B, N, M: the table of the README; then the other clouds
SIZES = (
    (8, 1024, 256),
    (32, 1024, 512),
    (32, 2048, 256),
    (16, 4096, 1024),
    (16, 16384, 4096),
    (64, 16384, 1024),
    (1, 16384, 1024),
    (1, 100_000, 10_000),
    (8, 100_000, 1024),
    (1, 1_000_000, 4096),
    (1, 5_000_000, 1024),
)
OTHER_CLOUDS = ((16, 16384, 4096), (1, 100_000, 10_000), (1, 1_000_000, 4096))
SCAN_SAMPLES = 4096
TIMED_EAGER = 1024  # samples up to which the loop of small kernels is worth its graph


class SamplingSuite(Suite):
    name = "points"
    default_dtypes = ("fp32",)

    def cases(self, selection: Selection) -> list[Case]:
        shapes = [(*size, "uniform") for size in SIZES]
        shapes += [(*size, name) for name in CLOUDS if name != "uniform" for size in OTHER_CLOUDS]
        if size := scan_size():
            shapes += [(1, size, min(SCAN_SAMPLES, size), "scan")]
        if selection.shapes:  # BxNxM
            shapes = [(b, n, min(n, m), "uniform") for b, n, m in selection.shapes]
        return [
            Case(f"fps/B{b}_N{n}_M{m}_{name}", {"shape": (b, n, m), "cloud": name})
            for b, n, m, name in shapes
        ]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        b, n, _ = case["shape"]
        return (cloud(case["cloud"], b, n, device).to(dtype),)

    def ours(self, case: Case, pass_: str) -> Call:
        import fusedops

        m = case["shape"][2]
        return lambda points: fusedops.points.farthest_point_sample(points, m)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        eager = ("eager",) if case["shape"][2] <= TIMED_EAGER else ()
        return (*eager, "pytorch3d", "torch_cluster", "pointnet2_ops")

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "pytorch3d", "torch_cluster", "pointnet2_ops")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        b, n, m = case["shape"]
        if name == "eager":
            return lambda points: eager_fps(points, m)
        if name == "pytorch3d":
            from pytorch3d.ops import sample_farthest_points  # type: ignore[import-not-found]

            return lambda points: sample_farthest_points(points, K=m)[1]
        if name == "torch_cluster":
            from torch_cluster import fps  # type: ignore[import-not-found]

            batch = torch.arange(b, device=device).repeat_interleave(n)
            return lambda points: fps(points.view(-1, 3), batch, m / n, False, b).view(b, -1)
        if name == "pointnet2_ops":
            from pointnet2_ops.pointnet2_utils import (  # type: ignore[import-not-found]
                furthest_point_sample,
            )

            return lambda points: furthest_point_sample(points, m)
        raise PeerUnavailableError(f"the suite has no peer {name!r}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        b, n, m = case["shape"]
        return Work(b * (3 * n * dtype.itemsize + 8 * m), 9 * b * n * m)


def eager_fps(points: Tensor, m: int) -> Tensor:
    """The loop that a user writes: five kernels a sample."""
    count, n, _ = points.shape
    distance = torch.full((count, n), torch.inf, device=points.device)
    chosen = torch.zeros(count, 1, dtype=torch.int64, device=points.device)
    samples = [chosen]
    for _ in range(m - 1):
        center = points.gather(1, chosen[..., None].expand(-1, -1, 3))
        x, y, z = (points - center).square().unbind(-1)
        distance = torch.minimum(distance, x + y + z)
        chosen = distance.argmax(1, keepdim=True)
        samples.append(chosen)
    return torch.cat(samples, 1)


SUITE = SamplingSuite
