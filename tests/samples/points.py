"""Samples of the point-cloud ops: sampling and grouping."""

from __future__ import annotations

import torch

from util import make


def index_vector(device, *values):
    """Lengths, offsets, starts."""
    return torch.tensor(values, dtype=torch.int64, device=device)


def farthest_point_sample_samples(device, dtype, codes):
    padded = make(3, 20, 3, dtype=dtype, device=device)
    lengths, start = index_vector(device, 20, 0, 7), index_vector(device, 4, 2, 6)
    yield padded, None, None, None, None, 8, 20
    yield padded, lengths, None, start, None, 9, 20
    packed = make(27, 5, dtype=dtype, device=device)
    offsets, out_offsets = index_vector(device, 0, 20, 20, 27), index_vector(device, 0, 6, 6, 10)
    yield packed, None, offsets, None, None, 4, 27
    yield packed, None, offsets, start, out_offsets, 10, 20


def neighbours(device, clouds, rows, groups, k):
    """Indices with repeats, -1 and one beyond the cloud."""
    generator = torch.Generator().manual_seed(7)
    idx = torch.randint(-1, rows + 1, (clouds, groups, k), generator=generator)
    return idx.to(device)


def group_samples(device, dtype, codes):
    idx = neighbours(device, 2, 9, 5, 4)
    features = make(2, 9, 16, dtype=dtype, device=device)
    points = make(2, 9, 3, dtype=dtype, device=device, seed=1)
    centers = make(2, 5, 3, dtype=dtype, device=device, seed=2)
    yield features, idx, None, None
    yield features[..., :5], idx, points, None
    yield features, idx, points, centers
    yield None, idx, points, centers
    if dtype.itemsize == 2:
        yield features, idx, points.float(), centers.float()


def group_backward_samples(device, dtype, codes):
    idx = neighbours(device, 2, 9, 5, 4)
    dout = make(2, 5, 4, 19, dtype=dtype, device=device)
    yield dout, idx, 9, 3, 16, False
    yield dout, idx, 9, 0, 3, True
    yield dout[..., :16], idx, 9, 0, 16, False


def interpolate_samples(device, dtype, codes):
    idx = neighbours(device, 2, 9, 5, 3)
    weights = make(2, 5, 3, dtype=dtype, device=device)
    for channels in (5, 16):
        features = make(2, 9, channels, dtype=dtype, device=device, seed=1)
        yield features, idx, weights
        if dtype.itemsize == 2:
            yield features, idx, weights.float()


def interpolate_backward_samples(device, dtype, codes):
    for features, idx, weights in interpolate_samples(device, dtype, codes):
        dout = make(2, 5, features.shape[2], dtype=dtype, device=device, seed=2)
        yield dout, features, idx, weights, True, True
        yield dout, features, idx, weights, False, True
        yield dout, features, idx, weights, True, False


SAMPLES = {
    "farthest_point_sample": farthest_point_sample_samples,
    "group": group_samples,
    "group_backward": group_backward_samples,
    "interpolate": interpolate_samples,
    "interpolate_backward": interpolate_backward_samples,
}
