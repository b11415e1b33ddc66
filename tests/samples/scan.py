"""Samples of scans, histograms, segment reductions and top-k."""

from __future__ import annotations

import torch

from util import make

SHAPES = [((7,), 0), ((5, 9), -1), ((6, 4), 0), ((2, 3, 8), 1), ((), 0)]


def scan_samples(device, dtype, codes):
    for shape, dim in SHAPES:
        x = make(*shape, dtype=dtype, device=device)
        yield x, dim, False, False
        yield x, dim, True, True


def extreme_samples(device, dtype, codes):
    for shape, dim in SHAPES:
        yield make(*shape, dtype=dtype, device=device), dim


def bincount_samples(device, dtype, codes):
    for integer in (torch.uint8, torch.int64):
        yield torch.arange(40, device=device).to(integer).view(5, 8) % 7, 6


def histogram_samples(device, dtype, codes):
    yield make(6, 9, dtype=dtype, device=device), 5, -1.0, 2.5


def offsets(device):
    return torch.tensor([0, 3, 3, 8, 9], device=device)


def segment_samples(device, dtype, codes):
    for shape in [(9,), (9, 8), (9, 2, 3)]:
        for kind in range(4):
            yield make(*shape, dtype=dtype, device=device), offsets(device), kind


def segment_backward_samples(device, dtype, codes):
    for shape in [(4,), (4, 8)]:
        dy = make(*shape, dtype=dtype, device=device)
        yield dy, offsets(device), None, 9, False
        yield dy, offsets(device), None, 9, True
        first = offsets(device)[:-1].view(4, *[1] * (dy.dim() - 1))
        yield dy, offsets(device), first.expand(shape).contiguous(), 9, False


def topk_samples(device, dtype, codes):
    for shape, k in [((9,), 3), ((5, 40), 8)]:
        x = make(*shape, dtype=dtype, device=device)
        yield x, k, True
        yield x, k, False


SAMPLES = {
    "cumsum": scan_samples,
    "cumprod": scan_samples,
    "cummax": extreme_samples,
    "cummin": extreme_samples,
    "bincount": bincount_samples,
    "histogram": histogram_samples,
    "segment_reduce": segment_samples,
    "segment_reduce_backward": segment_backward_samples,
    "topk": topk_samples,
}

ELEMENTS = "x must be bool, an integer or a floating dtype up to 64 bits; got complex64"
INTEGERS = "x must be uint8, int8, int16, int32 or int64; got float32"
REFUSED = {
    "bincount": (torch.float32, f"^bincount: {INTEGERS}$"),
    **{
        op: (torch.complex64, f"^{op}: {ELEMENTS}$")
        for op in ("cumsum", "cumprod", "cummax", "cummin", "topk")
    },
}
