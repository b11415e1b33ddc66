"""softmax, norms and cross entropy, forward and backward."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

import fusedops
from options import DTYPES

if TYPE_CHECKING:
    from collections import Counter

    from options import Options

SHAPES = (*((37, n) for n in (1, 40, 255, 1023, 4093)), (600, 255), (600, 1024))
CLUSTERED = ((37, 4097), (3, 32768), (37, 20001), (37, 140001))
FEW_IN_BLOCK = 2048  # the longest of few fp32 rows that softmax gives a block each
ONE_BLOCK = 8192  # the longest rows whose gradient of softmax no cluster holds
# Enough data that threads hold several chunks of a row.
MUCH = (
    *((28000, 40), (4300, 256), (4200, 300), (2200, 511), (1200, 1023), (1101, 1024), (300, 4097)),
    *((240, 5000), (90, 12345), (70, 16384), (60, 20000), (34, 32769), (34, 32776), (23, 50257)),
)
MUCH_CLUSTERED = ((18, 65536),)  # one beside a residual
# Short rows, many to a warp: staged in shared memory, the last tile in part.
SHORT = ((36_005, 7), (18_003, 16), (9_001, 31), (4_501, 64), (2_401, 127), (1_201, 200))


def run_short(o: Options, count: Counter[str]) -> None:
    for dtype, (rows, n) in itertools.product(DTYPES, SHORT):
        x = o.randn(rows, n, dtype=dtype, grad=True)
        for y in (fusedops.softmax(x, 1), fusedops.log_softmax(x, 1, torch.float32)):
            y.backward(torch.ones_like(y))
        count[f"{rows} rows of {n}"] += 2


def run(o: Options, count: Counter[str]) -> None:
    run_short(o, count)
    shapes = (*SHAPES, *(CLUSTERED if o.clusters else ()))
    for dtype, (rows, n) in itertools.product(DTYPES, shapes):
        if not o.clusters and dtype == torch.float32 and n > FEW_IN_BLOCK:
            continue
        x, r = (o.randn(rows, n, dtype=dtype, grad=True) for _ in range(2))
        w, b = (o.randn(n, dtype=dtype, grad=True) for _ in range(2))
        target = torch.arange(rows, device=o.device) % n
        outputs = [
            fusedops.softmax(x, 1),
            fusedops.log_softmax(x, 0),
            *fusedops.layer_norm(x, n, w, b, residual=r),
            fusedops.rms_norm(x, n, w),
            fusedops.cross_entropy(x, target, label_smoothing=0.1),
        ]
        for y in outputs:
            y.backward(torch.ones_like(y), retain_graph=True)
        count[f"rows of {n}"] += len(outputs)
    for rows, n in MUCH:
        fusedops.softmax(o.randn(rows, n), 1)
        count[f"{rows} rows of {n}"] += 1
    shapes = (*MUCH, *(MUCH_CLUSTERED if o.clusters else ()))
    for dtype, (rows, n) in itertools.product((torch.float16, torch.bfloat16), shapes):
        x, r = (o.randn(rows, n, dtype=dtype, grad=True) for _ in range(2))
        w, b = (o.randn(n, dtype=dtype) for _ in range(2))
        outputs = [
            fusedops.softmax(x, 1),
            *fusedops.layer_norm(x, n, w, b, residual=r),
            fusedops.rms_norm(x, n, w),
        ]
        if n <= ONE_BLOCK or o.clusters:
            outputs[0].backward(torch.ones_like(x))
        count[f"{rows} rows of {n}"] += len(outputs)
