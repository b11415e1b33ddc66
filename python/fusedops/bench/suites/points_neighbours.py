"""k-NN and ball query, of the suite `points`.

Results are compared on at most CHECKED queries of a cloud: every pair of the largest clouds would
take the reference minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fusedops.bench.suites.base import Call, Case, PeerUnavailableError, Selection, Suite, Work
from fusedops.bench.suites.points_clouds import CLOUDS, cloud, scan_size

if TYPE_CHECKING:
    from torch import Tensor

# B, N, M, k; M = N: the points themselves
KNN = (
    (8, 1024, 256, 16),
    (32, 1024, 512, 32),
    (32, 4096, 1024, 16),
    (16, 16384, 16384, 16),
    (1, 100_000, 100_000, 16),
    (1, 1_000_000, 1_000_000, 16),
    (1, 5_000_000, 5_000_000, 16),
)
KNN_CLOUDS = ((1, 100_000, 100_000, 16), (1, 1_000_000, 1_000_000, 16))
KNN_K = (1, 8, 32, 64, 128)
KNN_K_SIZES = ((32, 4096, 1024), (1, 100_000, 100_000))
# B, N, M, radius; k = 32
BALL = (
    (8, 1024, 256, 0.2),
    (32, 1024, 512, 0.2),
    (32, 4096, 1024, 0.1),
    (16, 16384, 4096, 0.05),
    (1, 100_000, 100_000, 0.03),
    (1, 1_000_000, 1_000_000, 0.0125),
)
BALL_K = 32
SCAN_K, SCAN_RADII = (1, 16, 32), (0.2, 0.5)  # metres
# B, N, D, k
FEATURES = ((8, 4096, 64, 20), (8, 4096, 128, 20), (8, 1024, 64, 20), (1, 16384, 64, 20))
CHECKED = 1024
TOPK_PAIRS = 2**30  # that torch compares in one call
TIMED_EAGER = 2**28  # pairs up to which comparing them all is worth its time


def checked(tensor: Tensor) -> Tensor:
    """Every n-th query, about CHECKED of them."""
    return tensor[:, :: max(1, tensor.shape[1] // CHECKED)]


def eager_knn(points: Tensor, queries: Tensor, k: int) -> Tensor:
    """cdist, then topk: squared distances, ascending."""
    math = points.dtype if points.dtype is torch.float64 else torch.float32
    mode = "donot_use_mm_for_euclid_dist" if points.shape[-1] <= 16 else "use_mm_for_euclid_dist"
    dist = torch.cdist(queries.to(math), points.to(math), compute_mode=mode)
    return dist.topk(k, largest=False).values.square()


def eager_ball(points: Tensor, queries: Tensor, radius: float, k: int) -> Tensor:
    """The first k indices in each ball, N for none."""
    inside = (queries[:, :, None] - points[:, None]).square().sum(-1) < radius * radius
    index = torch.arange(points.shape[1], device=points.device).expand_as(inside)
    return index.masked_fill(~inside, points.shape[1]).topk(k, largest=False).values


class NeighboursSuite(Suite):
    name = "points"
    default_dtypes = ("fp32",)

    def cases(self, selection: Selection) -> list[Case]:
        knn = [(*size, "uniform") for size in KNN]
        knn += [(*size, name) for name in CLOUDS if name != "uniform" for size in KNN_CLOUDS]
        knn += [(*size, k, "uniform") for size in KNN_K_SIZES for k in KNN_K]
        ball = [(*size, "uniform") for size in BALL]
        if size := scan_size():
            knn += [(1, size, size, k, "scan") for k in SCAN_K]
            ball += [(1, size, size, radius, "scan") for radius in SCAN_RADII]
        if selection.shapes:  # BxNxM
            knn = [(b, n, m, 16, "uniform") for b, n, m in selection.shapes]
            ball = [(b, n, m, 0.2, "uniform") for b, n, m in selection.shapes]
        return [
            Case(
                f"knn/B{b}_N{n}_M{m}_k{k}_{name}",
                {"op": "knn", "shape": (b, n, m), "k": min(k, n), "cloud": name},
            )
            for b, n, m, k, name in knn
        ] + [
            Case(
                f"ball/B{b}_N{n}_M{m}_r{radius}_k{BALL_K}_{name}",
                {
                    "op": "ball",
                    "shape": (b, n, m),
                    "k": min(BALL_K, n),
                    "radius": radius,
                    "cloud": name,
                },
            )
            for b, n, m, radius, name in ball
        ]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        b, n, m = case["shape"]
        points = cloud(case["cloud"], b, n, device).to(dtype)
        return (points,) if m == n else (points, points[:, :m].contiguous())

    def ours(self, case: Case, pass_: str) -> Call:
        from fusedops import points as ops

        k = case["k"]
        if case["op"] == "knn":

            def knn(points: Tensor, queries: Tensor | None = None) -> Tensor:
                dist = ops.knn(points, queries, k).dist2
                assert dist is not None
                return checked(dist)

            return knn
        radius = case["radius"]
        return lambda points, queries=None: checked(ops.ball_query(points, queries, radius, k).idx)

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        b, n, m = case["shape"]
        eager = ("eager",) if b * n * m <= TIMED_EAGER else ()
        return (*eager, "pytorch3d", "torch_cluster")

    def default_peers(self, pass_: str) -> tuple[str, ...]:
        return ("eager", "pytorch3d")

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        k = case["k"]
        if name == "eager":
            return _eager(case)
        if name == "pytorch3d":
            return _pytorch3d(case)
        if name == "torch_cluster" and case["op"] == "knn":
            from torch_cluster import knn  # type: ignore[import-not-found]

            b, n, m = case["shape"]
            of_points = torch.arange(b, device=device).repeat_interleave(n)
            of_queries = torch.arange(b, device=device).repeat_interleave(m)
            return lambda points, queries=None: knn(
                points.view(-1, 3),
                (points if queries is None else queries).view(-1, 3),
                k,
                of_points,
                of_queries,
                batch_size=b,
            )
        raise PeerUnavailableError(f"the suite has no peer {name!r} for {case.name}")

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        b, n, m = case["shape"]
        own = 0 if m == n else m
        return Work(b * ((n + own) * 3 * dtype.itemsize + m * case["k"] * 12), 0)


def _eager(case: Case) -> Call:
    k = case["k"]
    b, n, _ = case["shape"]
    if case["op"] == "knn":

        def knn(points: Tensor, queries: Tensor | None = None) -> Tensor:
            wanted = checked(points if queries is None else queries)
            parts = wanted.split(max(1, TOPK_PAIRS // (b * n)), dim=1)
            return torch.cat([eager_knn(points, part, k) for part in parts], 1)

        return knn
    radius = case["radius"]

    def ball(points: Tensor, queries: Tensor | None = None) -> Tensor:
        wanted = checked(points if queries is None else queries)
        parts = [eager_ball(points, part, radius, k) for part in wanted.split(256, dim=1)]
        index = torch.cat(parts, 1)
        return torch.where(index == n, -1, index)

    return ball


def _pytorch3d(case: Case) -> Call:
    k = case["k"]
    if case["op"] == "knn":
        from pytorch3d.ops import knn_points  # type: ignore[import-not-found]

        return lambda points, queries=None: checked(
            knn_points(points if queries is None else queries, points, K=k).dists
        )
    from pytorch3d.ops import ball_query

    radius = case["radius"]
    return lambda points, queries=None: checked(
        ball_query(
            points if queries is None else queries, points, K=k, radius=radius, return_nn=False
        ).idx
    )


class FeaturesSuite(Suite):
    """k-NN among the feature vectors themselves, as in DGCNN."""

    name = "points"
    default_dtypes = ("bf16", "fp32")

    def cases(self, selection: Selection) -> list[Case]:
        shapes = list(FEATURES)
        if selection.shapes:  # BxNxD
            shapes = [(b, n, d, min(20, n)) for b, n, d in selection.shapes]
        return [
            Case(f"knn/B{b}_N{n}_M{n}_D{d}_k{k}_normal", {"shape": (b, n, d), "k": k})
            for b, n, d, k in shapes
        ]

    def make_inputs(
        self, case: Case, dtype: torch.dtype, pass_: str, device: torch.device
    ) -> tuple[Tensor, ...]:
        return (torch.randn(case["shape"], dtype=dtype, device=device),)

    def ours(self, case: Case, pass_: str) -> Call:
        from fusedops import points as ops

        k = case["k"]

        def ours(features: Tensor) -> Tensor:
            dist = ops.knn(features, None, k).dist2
            assert dist is not None
            return dist[..., 1:]

        return ours

    def peers(self, case: Case, pass_: str) -> tuple[str, ...]:
        return ("eager",)

    def peer(self, name: str, case: Case, pass_: str, device: torch.device) -> Call:
        if name != "eager":
            raise PeerUnavailableError(f"the suite has no peer {name!r}")
        k = case["k"]
        # NOTE: without the point itself, whose distance the matrix product gets as noise
        return lambda features: eager_knn(features, features, k)[..., 1:]

    def work(self, case: Case, dtype: torch.dtype, pass_: str) -> Work:
        b, n, d = case["shape"]
        return Work(b * n * (d * dtype.itemsize + case["k"] * 12), 2 * b * n * n * d)


SUITE = NeighboursSuite
