"""Runs the scans, histograms, segment reductions and top-k on small inputs, for compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 1 python scripts/sanitize_scan.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python scripts/sanitize_scan.py racecheck

racecheck fails inside itself on thread block clusters: it is spared those shapes. Sizes reach
every kernel and are ragged on every side.
"""

from __future__ import annotations

import sys

import torch

import fusedops

DTYPES = (torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int64)
CLUSTERED = ((2, 20001), 1)
SHAPES = (((70, 33), 1), ((70, 32), 1), ((3, 70003), 1), ((40, 70, 3), 1), ((3000, 8), 0))


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda").mul(9).to(dtype)


def scans(shapes: tuple[tuple[tuple[int, ...], int], ...]) -> None:
    for dtype in DTYPES:
        for shape, dim in shapes:
            x = values(shape, dtype)
            for reverse in (False, True):
                fusedops.cumsum(x, dim, reverse=reverse, exclusive=reverse)
                fusedops.cumprod(x, dim, reverse=reverse)
            fusedops.cummax(x, dim)
            fusedops.cummin(x, dim)
            fusedops.topk(x, 3, dim)
            fusedops.topk(x.reshape(1, -1), 100, largest=False)


def counts() -> None:
    for dtype in (torch.uint8, torch.int32, torch.int64):
        x = values((5003,), torch.float32).abs().to(dtype)
        for bins in (7, 256, 3000, 70000):
            fusedops.bincount(x[1:], bins)
            fusedops.bincount(x, bins, values((5003,), torch.float32))
    fusedops.histogram(values((5003,), torch.float16), 33, -3, 3)


def segments() -> None:
    offsets = torch.tensor([2, 2, 5, 5, 5, 9000, 9001, 20000, 20000], device="cuda")
    for dtype in (torch.bfloat16, torch.float64):
        for columns in ((), (3,), (16,)):
            x = values((20003, *columns), dtype).requires_grad_()
            for reduce in ("sum", "mean", "max", "min"):
                fusedops.segment_reduce(x, offsets, reduce).sum().backward()


if __name__ == "__main__":
    scans(SHAPES if "racecheck" in sys.argv else (*SHAPES, CLUSTERED))
    counts()
    segments()
    torch.cuda.synchronize()
    print("no error")
