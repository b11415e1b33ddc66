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


SAMPLES = {"farthest_point_sample": farthest_point_sample_samples}
