"""The point ops: sampling, grouping and interpolation; neighbours by every algorithm."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

import fusedops
from options import DTYPES

if TYPE_CHECKING:
    from collections import Counter

    from options import Options


def run_sampling(o: Options, count: Counter[str]) -> None:
    """Sampling in each of its regimes, grouping and interpolation with their backward."""
    ops = fusedops.points
    sizes = [(100, 3), (400, 3), (1000, 3), (2000, 3), (3000, 3), (4000, 3), (10_000, 3), (500, 6)]
    if o.clusters:  # and grids of thread blocks
        sizes += [(20_000, 3), (70_000, 3), (150_000, 3), (300_000, 3), (300, 5000)]
    for (n, dim), dtype in itertools.product(sizes, (torch.float32, torch.float64)):
        ops.farthest_point_sample(o.rand(2, n, dim, dtype=dtype), 9)
        ops.farthest_point_sample(o.rand(2, n, dim, dtype=dtype), 1)
        count["fps"] += 2
    for dtype, channels in itertools.product(DTYPES, (5, 16, 40)):
        features = o.randn(2, 40, channels, dtype=dtype, grad=True)
        points = o.rand(2, 40, 3, dtype=dtype, grad=True)
        centers = o.rand(2, 60, 3, dtype=dtype)
        weights = o.rand(2, 60, 7, dtype=dtype, grad=True)
        idx = torch.randint(-1, 41, (2, 60, 7), device=o.device)
        idx[1] = 3  # a long list
        ops.group(features, idx, points=points, centers=centers).sum().backward()
        ops.group(features, idx).sum().backward()
        ops.interpolate(features, idx, weights).sum().backward()
        count["group"] += 3
    features = o.randn(1, 40, 8, grad=True)
    many = torch.randint(0, 40, (1, 300_000, 1), device=o.device)  # sorted, not counted
    ops.group(features, many).sum().backward()


def run_hostile_offsets(o: Options, count: Counter[str]) -> None:
    """Searches among packed clouds whose offsets fall, leave the tensor or leave rows out."""
    ops = fusedops.points
    for rows in (300, 9000):
        points = o.rand(rows, 3)
        for values in ((0, 200, 50, 120), (-5, 2**62, -1, rows + 1), (40, rows, 3), (0, 20)):
            offsets = torch.tensor(values, device=o.device)
            index = ops.GridIndex(points, offsets=offsets)
            for k in (5, 40):
                index.knn(None, k)
                index.ball_query(None, 0.1, k)
                for algorithm in ("brute", "grid"):
                    ops.knn(points, None, k, offsets=offsets, algorithm=algorithm)
                    ops.ball_query(points, None, 0.1, k, offsets=offsets, algorithm=algorithm)
                    ops.radius_search(points, None, 0.05, offsets=offsets, algorithm=algorithm)
            index.radius_search(None, 0.05)
            count["hostile offsets"] += 17


def run_neighbours(o: Options, count: Counter[str]) -> None:
    """k-NN, ball query and radius search by every algorithm, with their backward and the index."""
    ops = fusedops.points
    # Queries, neighbours: few and many of each
    few, many = ((45, 5), (45, 40)), ((9000, 16), (9000, 33), (30_000, 8))
    dtypes = o.some((torch.float32, torch.float16, torch.bfloat16, torch.float64), 2)
    cases = [*itertools.product(few, (2, 3), dtypes)]
    cases += [*itertools.product(o.some(many, 1), (3,), dtypes)]
    cases += [*itertools.product(o.some((few[0], many[0]), 1), (5, 40, 200), dtypes)]
    for (m, k), dim, dtype in cases:
        points = o.rand(2, 333, dim, dtype=dtype)
        queries = o.rand(2, m // 2, dim, dtype=dtype)
        clouds = {
            "lengths": o.integers(333, 20),
            "query_lengths": o.integers(m // 2, 3),
        }
        algorithms = ["brute"] + ["grid"] * (dim <= 3)
        for algorithm, norm in itertools.product(algorithms, (2, 1)):
            ops.knn(points, queries, k, norm=norm, algorithm=algorithm, **clouds)
            count[f"knn {algorithm}"] += 1
        if dtype is not torch.float64 and dim >= 16 and o.device != "cpu":
            ops.knn(points, queries, k, algorithm="tensor", **clouds)
            count["knn tensor"] += 1
        for algorithm, select in itertools.product(algorithms, ("first", "nearest")):
            ops.ball_query(points, queries, 0.2, k, select=select, algorithm=algorithm, **clouds)
            count[f"ball_query {algorithm}"] += 1
        for scales in (1, 2, 3, 4):
            radii, ks = (0.1, 0.3, 0.2, 2.0)[:scales], (k, 2 * k, 3, 400)[:scales]
            ops.ball_query_scales(points, queries, radii, ks, pad="first", **clouds)
            count["ball_query_scales"] += 1
        for algorithm in algorithms:
            ops.radius_search(points, queries, 0.1, algorithm=algorithm, **clouds)
            count[f"radius_search {algorithm}"] += 1
    for dtype in DTYPES:
        features = o.rand(1, 300, 64, dtype=dtype, grad=True)
        for k in (20, 50, 100):
            found = ops.knn(features, None, k)
            assert found.dist2 is not None
            found.dist2.sum().backward()
            count["knn backward"] += 1
        edges = o.integers(0, 0, 170, 300)
        index = ops.GridIndex(o.rand(300, 3, dtype=dtype), offsets=edges)
        at = o.rand(50, 3, dtype=dtype)
        query_edges = o.integers(0, 10, 40, 50)
        index.knn(at, 9, query_offsets=query_edges)
        index.ball_query(at, 0.1, 9, query_offsets=query_edges)
        index.radius_search(at, 0.1, query_offsets=query_edges)
        count["index"] += 3
