"""Scans, histograms, segment reductions and top-k on sizes that reach every kernel."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

import fusedops

if TYPE_CHECKING:
    from collections import Counter

    from options import Options

DTYPES = (torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int64)
SHAPES = (((70, 33), 1), ((70, 32), 1), ((3, 70003), 1), ((40, 70, 3), 1), ((3000, 8), 0))
CLUSTERED = (((2, 20001), 1),)


def run(o: Options, count: Counter[str]) -> None:
    run_scans(o, count)
    run_histograms(o, count)
    run_segments(o, count)


def run_scans(o: Options, count: Counter[str]) -> None:
    shapes = (*SHAPES, *(CLUSTERED if o.clusters else ()))
    for dtype, (shape, dim) in itertools.product(DTYPES, shapes):
        x = o.randn(*shape).mul(9).to(dtype)
        for reverse in (False, True):
            fusedops.cumsum(x, dim, reverse=reverse, exclusive=reverse)
            fusedops.cumprod(x, dim, reverse=reverse)
        fusedops.cummax(x, dim)
        fusedops.cummin(x, dim)
        fusedops.topk(x, 3, dim)
        fusedops.topk(x.reshape(1, -1), 100, largest=False)
        count["scan"] += 8


def run_histograms(o: Options, count: Counter[str]) -> None:
    for dtype, bins in itertools.product(
        (torch.uint8, torch.int32, torch.int64), (7, 256, 3000, 70000)
    ):
        x = o.randn(5003).mul(9).abs().to(dtype)
        fusedops.bincount(x[1:], bins)
        fusedops.bincount(x, bins, o.randn(5003))
        count["bincount"] += 2
    fusedops.histogram(o.randn(5003, dtype=torch.float16), 33, -3, 3)


def run_segments(o: Options, count: Counter[str]) -> None:
    offsets = o.integers(2, 2, 5, 5, 5, 9000, 9001, 40000, 40000)
    for dtype, columns in itertools.product((torch.bfloat16, torch.float64), ((), (3,), (16,))):
        x = o.randn(40003, *columns, dtype=dtype, grad=True)
        few = o.randn(50, *columns, dtype=dtype)
        for reduce in ("sum", "mean", "max", "min"):
            fusedops.segment_reduce(x, offsets, reduce).sum().backward()
            fusedops.segment_reduce(few, offsets[:5], reduce)
            fusedops.segment_reduce(x, torch.arange(0, 3001, 7, device=o.device), reduce)
            count[f"segment {reduce}"] += 1
