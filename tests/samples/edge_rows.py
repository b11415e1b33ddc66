"""Samples of the passes over rows of wide layers, which run on CUDA only."""

from __future__ import annotations

import torch

from util import make

from .edges import CLOUDS, GROUPS, POINTS, K, coordinates, fp32, neighbours, on_cuda

ROWS, CHANNELS = CLOUDS * GROUPS * K, 24


def rows_of(device, dtype, seed=0, count=ROWS):
    return make(count, CHANNELS, dtype=dtype, device=device, seed=seed)


def valid_of(device):
    return torch.arange(ROWS, device=device) % 5 != 3


def statistics(device):
    """Means, reciprocal deviations, scales, shifts and counts."""
    deviation = fp32(CHANNELS, device=device, seed=9).abs() + 0.5
    mean, shift = (fp32(CHANNELS, device=device, seed=seed) for seed in (10, 11))
    return torch.stack(
        [mean, 1 / deviation, 1.5 / deviation, shift, torch.full_like(mean, ROWS - 30)]
    )


def places(device):
    at = torch.arange(CHANNELS, device=device).remainder(K).int()
    return at.expand(CLOUDS * GROUPS, CHANNELS).contiguous()


def edge_rows_first_samples(device, dtype):
    like = make(1, dtype=dtype, device=device)
    rows = fp32(CLOUDS, POINTS, CHANNELS, device=device, seed=3)
    group_rows = fp32(CLOUDS, GROUPS, CHANNELS, device=device, seed=4)
    weight, idx = fp32(CHANNELS, 3, device=device, seed=5), neighbours(device)
    points, centers = coordinates(device)
    yield rows, group_rows, weight, points, centers, idx, like, None, 0.0
    yield rows, None, None, None, None, idx, like, None, 0.0
    yield None, None, weight, points, None, idx, like, None, 0.0
    yield rows, group_rows, weight, points, centers, idx, like, statistics(device), 0.2


def edge_rows_statistics__samples(device, dtype):
    y, valid = rows_of(device, dtype), valid_of(device)
    weight, bias, shift, mean = (fp32(CHANNELS, device=device, seed=i) for i in range(1, 5))
    var, share = mean.abs() + 0.5, torch.full((), 0.25, device=device)
    yield y, valid, weight, bias, shift, mean, var, None, 0.1, 1e-5, True, K
    yield y, None, None, None, None, mean, var, share, 0.0, 1e-5, True, 0
    yield y, None, weight, bias, None, mean, var, None, 0.0, 1e-5, False, K
    yield y, valid, None, None, shift, None, None, None, 0.0, 0.0, False, 0


def edge_rows_fold_samples(device, dtype):
    weight = make(CHANNELS, 13, dtype=dtype, device=device)
    gamma, beta, shift, mean = (fp32(CHANNELS, device=device, seed=i) for i in range(1, 5))
    yield weight, gamma, beta, shift, mean, mean.abs() + 0.5, 1e-5
    yield weight, None, None, None, mean, mean.abs() + 0.5, 1e-3


def edge_rows_apply_samples(device, dtype):
    yield rows_of(device, dtype), statistics(device), None, valid_of(device), 0.0
    groups = rows_of(device, dtype, count=CLOUDS * GROUPS)
    yield groups, statistics(device), places(device), None, 0.2


def edge_rows_sums_samples(device, dtype):
    da, y = (rows_of(device, dtype, seed) for seed in (1, 2))
    yield da, y, statistics(device), None, valid_of(device), 0.2
    da, y = (rows_of(device, dtype, seed, CLOUDS * GROUPS) for seed in (1, 2))
    yield da, y, statistics(device), places(device), None, 0.0


def edge_rows_backward_samples(device, dtype):
    da, y = (rows_of(device, dtype, seed) for seed in (1, 2))
    stats, sums = statistics(device), fp32(2, CHANNELS, device=device, seed=6)
    yield da, y, stats, sums, None, None, valid_of(device), 0.0
    yield da, y, stats, None, None, None, None, 0.2
    da, best = (rows_of(device, dtype, seed, CLOUDS * GROUPS) for seed in (1, 3))
    yield da, y, stats, sums, best, places(device), valid_of(device), 0.0


def edge_rows_offsets_samples(device, dtype):
    points, centers = coordinates(device)
    yield rows_of(device, dtype), neighbours(device), points, centers
    yield rows_of(device, dtype), neighbours(device), points, None


def edge_rows_used_samples(device, dtype):
    dout = rows_of(device, dtype)
    dout[::3] = 0
    yield rows_of(device, dtype)[:, :8], dout
    yield rows_of(device, dtype), dout[:, 8:]


OF_HALVES = {
    name.removesuffix("_samples"): samples
    for name, samples in list(globals().items())
    if name.endswith("_samples")
}
SAMPLES = {op: on_cuda(samples) for op, samples in OF_HALVES.items()}

_NOT_FLOATING = "must be float16, bfloat16, float32 or float64; got int32$"

# The first argument that int32 tensors are wrong for.
REFUSED = {
    op: (torch.int32, f"^{op}: {text}")
    for op, text in {
        "edge_rows_first": "idx must have dtype int64; got int32$",
        "edge_rows_statistics_": f"y {_NOT_FLOATING}",
        "edge_rows_fold": "gamma must have dtype float32; got int32$",
        "edge_rows_apply": f"y {_NOT_FLOATING}",
        "edge_rows_sums": f"y {_NOT_FLOATING}",
        "edge_rows_backward": f"y {_NOT_FLOATING}",
        "edge_rows_offsets": f"dy {_NOT_FLOATING}",
        "edge_rows_used": f"x {_NOT_FLOATING}",
    }.items()
}
