"""Samples of the reductions."""

from __future__ import annotations

import torch

from fusedops._core.reduction import (
    FLOATING_ONLY,
    GRADIENTS,
    NEEDS_ELEMENTS,
    REDUCTIONS,
    wide_dtype,
)
from util import make


def reduce_samples(device, dtype, codes):
    x = make(6, 8, dtype=dtype, device=device)
    for code in range(len(REDUCTIONS)):
        yield x, code, 0b10, False, True
    for code, dims in [(0, 0b01), (1, 0b11), (5, 0b00), (14, 0b11)]:
        yield x, code, dims, True, False
    yield make(2, 3, 5, dtype=dtype, device=device), 0, 0b101, False, False
    yield make(3, 0, dtype=dtype, device=device), 2, 0b10, False, False


def var_mean_samples(device, dtype, codes):
    x = make(6, 8, dtype=dtype, device=device)
    for dims, root, wide in [(0b01, False, False), (0b10, True, True), (0b11, True, False)]:
        yield x, dims, 1.0, root, wide, wide


def extremum_count_samples(device, dtype, codes):
    x = make(6, 8, dtype=dtype, device=device)
    for code in sorted(NEEDS_ELEMENTS & FLOATING_ONLY | {4, 5}):
        yield x, code, 0b10, False
    yield x, 4, 0b01, True


def reduce_backward_samples(device, dtype, codes):
    x = make(6, 8, dtype=dtype, device=device)
    wide = wide_dtype(dtype)
    for code in range(len(GRADIENTS)):
        for shape in [(6, 1), (1, 8)]:
            scale = make(*shape, dtype=wide, device=device, seed=1)
            shift = make(*shape, dtype=wide, device=device, seed=2)
            yield x, scale, shift, code
    yield x, torch.ones(1, 1, dtype=wide, device=device), None, 0


def bias_grad_samples(device, dtype, codes):
    for shape in [(6, 8), (2, 3, 5), (4,)]:
        for wide in (False, True):
            yield make(*shape, dtype=dtype, device=device), wide


SAMPLES = {
    "reduce": reduce_samples,
    "var_mean": var_mean_samples,
    "extremum_count": extremum_count_samples,
    "reduce_backward": reduce_backward_samples,
    "bias_grad": bias_grad_samples,
}

# A dtype that the op's first sample refuses, and the message.
REFUSED = {
    "reduce": (
        torch.complex64,
        "^sum: x must be float16, bfloat16, float32, float64, uint8, int8, int16, int32, int64 or "
        "bool; got complex64$",
    ),
    "var_mean": (
        torch.int32,
        "^var: x must be float16, bfloat16, float32 or float64; got int32$",
    ),
}
