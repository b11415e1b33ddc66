"""Samples of the GEMM ops."""

from __future__ import annotations

import torch

from fusedops._core.activation import SAVES_OUTPUT, SAVES_PREACT
from util import linear_inputs, make

OPS = torch.ops.fusedops


def saved(code, y, z):
    """What the backward ops read."""
    return y if SAVES_OUTPUT[code] else z if SAVES_PREACT[code] else None


def forward_samples(device, dtype, codes, transposed):
    for m, n, k in [(6, 8, 16), (5, 3, 7)]:
        x, weight, bias, _ = linear_inputs(m, n, k, dtype, device)
        second = weight.t() if transposed else weight
        for code in codes:
            yield x, second, bias, code, False
            yield x, second, None, code, True


def linear_backward_samples(device, dtype, codes):
    for m, n, k in [(6, 8, 16), (5, 3, 7)]:
        x, weight, bias, dy = linear_inputs(m, n, k, dtype, device)
        for code in codes:
            y, z = OPS.linear_preact(x, weight, bias, code, False)
            keep = saved(code, y, z)
            master = dtype in (torch.float16, torch.bfloat16)
            yield dy, x, weight, keep, code, True, True, True, master, False
            yield dy, x, weight, keep, code, False, True, False, False, False
            yield dy, x, weight, keep, code, True, False, True, False, True
            yield dy, x, weight, keep, code, False, False, False, False, False


def act_backward_samples(device, dtype, codes):
    for shape in [(6, 8), (2, 3, 7)]:
        dy = make(*shape, dtype=dtype, device=device)
        z = make(*shape, dtype=dtype, device=device, seed=5)
        for code in codes:
            keep = saved(code, torch.sigmoid(z), z)
            yield dy, keep, code, True, False
            yield dy, keep, code, True, True
            yield dy, keep, code, False, False


def linear_moments_samples(device, dtype, codes):
    for m, n, k in [(6, 8, 16), (5, 3, 7), (8200, 8, 16)]:
        x, weight, _, _ = linear_inputs(m, n, k, dtype, device)
        yield x, weight
        yield x.t().contiguous().t(), weight.t().contiguous().t()


def linear_input_backward_samples(device, dtype, codes):
    for m, n, k in [(6, 8, 16), (5, 3, 7)]:
        x, weight, _, dz = linear_inputs(m, n, k, dtype, device)
        yield dz, weight, x, False
        yield dz, weight.t().contiguous().t(), x.t().contiguous().t(), True


def linear_wgrad_samples(device, dtype, codes):
    for m, n, k in [(6, 8, 16), (5, 3, 7)]:
        x, _, _, dz = linear_inputs(m, n, k, dtype, device)
        for accumulate in (True, False):
            yield dz, x, torch.ones(n, k, device=device), accumulate, False
            yield dz, x, torch.ones(k, n, device=device).t(), accumulate, True


SAMPLES = {
    "linear": lambda *a: forward_samples(*a, transposed=False),
    "linear_preact": lambda *a: forward_samples(*a, transposed=False),
    "matmul": lambda *a: forward_samples(*a, transposed=True),
    "matmul_preact": lambda *a: forward_samples(*a, transposed=True),
    "linear_backward": linear_backward_samples,
    "linear_moments": linear_moments_samples,
    "linear_input_backward": linear_input_backward_samples,
    "linear_wgrad_": linear_wgrad_samples,
    "act_backward_bias_grad": act_backward_samples,
}
