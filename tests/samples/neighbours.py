"""Samples of the neighbour searches. No row is padded: padding holds infinite distances."""

from __future__ import annotations

import torch

from util import make

OPS = torch.ops.fusedops


def cloud_samples(device, dtype):
    """points, queries, lengths, query_lengths, offsets, query_offsets; 9 points a cloud at least"""
    points = make(2, 300, 3, dtype=dtype, device=device)
    queries = make(2, 40, 3, dtype=dtype, device=device, seed=1)
    edges = torch.tensor([0, 9, 200], device=device)
    query_edges = torch.tensor([0, 17, 30], device=device)
    yield points, queries, None, None, None, None
    yield points, points, torch.tensor([300, 300], device=device), None, None, None
    yield (
        make(200, 2, dtype=dtype, device=device),
        make(30, 2, dtype=dtype, device=device),
        None,
        None,
        edges,
        query_edges,
    )


def grid_samples(device, dtype, codes):
    for points, _, lengths, _, offsets, _ in cloud_samples(device, dtype):
        yield points, lengths, offsets


def knn_samples(device, dtype, codes):
    for i, clouds in enumerate(cloud_samples(device, dtype)):
        grid = OPS.point_grid(clouds[0], clouds[2], clouds[4])
        yield *clouds, None, 8, 2, 1
        yield *clouds, None, 9, 1 + i % 2, 2
        yield *clouds, grid, 3, 2, 0
    wide = make(1, 70, 24, dtype=dtype, device=device)
    yield wide, wide, None, None, None, None, None, 5, 2, 0
    yield wide, wide, None, None, None, None, None, 40, 2, 1


def knn_backward_samples(device, dtype, codes):
    for clouds in cloud_samples(device, dtype):
        for norm in (2, 1):
            idx, dist = OPS.knn(*clouds, None, 4, norm, 0)
            yield torch.cos(dist), clouds[0], clouds[1], idx, norm


def ball_query_samples(device, dtype, codes):
    for clouds in cloud_samples(device, dtype):
        for nearest in (False, True):
            for algorithm in (1, 2):
                yield *clouds, None, 1e3, 6, nearest, True, False, algorithm


def ball_query_scales_samples(device, dtype, codes):
    for clouds in cloud_samples(device, dtype):
        yield *clouds, [1e3, 0.8], [6, 3], True, False
        yield *clouds, [0.5, 1e3, 0.9], [2, 5, 40], False, True


def radius_count_samples(device, dtype, codes):
    for clouds in cloud_samples(device, dtype):
        for algorithm in (1, 2):
            yield *clouds, None, 0.8, True, algorithm


def radius_fill_samples(device, dtype, codes):
    for *arguments, closed, algorithm in radius_count_samples(device, dtype, codes):
        *clouds, radius = arguments
        counts = OPS.radius_count(*clouds, radius, closed, algorithm)
        starts = torch.nn.functional.pad(counts.reshape(-1).cumsum(0), (1, 0))
        yield *clouds, starts, radius, closed, algorithm, int(starts[-1])


SAMPLES = {
    "point_grid": grid_samples,
    "knn": knn_samples,
    "knn_backward": knn_backward_samples,
    "ball_query": ball_query_samples,
    "ball_query_scales": ball_query_scales_samples,
    "radius_count": radius_count_samples,
    "radius_fill": radius_fill_samples,
}
