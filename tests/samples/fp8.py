"""Samples of the FP8 ops."""

from __future__ import annotations

import torch

from fusedops._core.activation import SAVES_OUTPUT, SAVES_PREACT
from util import make

OPS = torch.ops.fusedops
WANTED = "float8_e4m3fn or float8_e5m2"


def quantize_samples(device, dtype, codes):
    for m, k in [(5, 7), (130, 150)]:
        x, z, factor = (make(m, k, dtype=dtype, device=device, seed=s) for s in range(3))
        for rows, columns in [(3, 4), (4, 4), (3, 3), (2, 2), (1, 1), (0, 3), (3, 0)]:
            yield x, None, None, 0, False, 0, rows, columns, False, False, False
        yield x, None, None, 0, True, 1, 3, 3, True, True, True
        for code in codes:
            saved = torch.sigmoid(z) if SAVES_OUTPUT[code] else z if SAVES_PREACT[code] else None
            yield x, saved, None, code, True, 0, 3, 3, False, True, False
            yield x, None, factor, code, False, 1, 4, 3, False, False, True


def norm_samples(device, dtype, codes):
    for m, k in [(5, 7), (130, 264)]:
        x, residual = (make(m, k, dtype=dtype, device=device, seed=s) for s in range(2))
        weight, bias = (make(k, dtype=dtype, device=device, seed=s) for s in (3, 4))
        yield x, None, weight, None, True, 1e-6, 0, 3, 4, False
        yield x, residual, weight, bias, False, 1e-5, 1, 3, 3, True
        yield x, residual, None, None, True, 1e-5, 0, 4, 0, False


def pair_samples(device, dtype, codes):
    for n, k, format, columns, power_of_two in [(128, 7, 0, True, False), (256, 200, 1, True, True),
                                                (128, 128, 0, False, False)]:  # fmt: skip
        a, b = (make(n, k, dtype=dtype, device=device, seed=s) for s in range(2))
        yield a, b, format, columns, power_of_two


def hidden_samples(device, dtype, codes):
    for m, k in [(5, 7), (130, 152)]:
        dh, z, factor = (make(m, k, dtype=dtype, device=device, seed=s) for s in range(3))
        yield dh, z, None, 0, 1, False, True, 3, True, False, False
        for code in codes:
            saved = torch.sigmoid(z) if SAVES_OUTPUT[code] else z
            yield dh, saved, None, code, 0, True, True, 4, False, True, True
            yield dh, z, factor, code, 0, True, True, 4, False, True, False
        yield dh, z, factor, codes[-1], 1, True, False, 0, True, False, False


def operand(rows, k, scaling, device, seed, format=0):
    """An FP8 matrix and its scale, as _fp8_matmul takes them."""
    x = make(rows, k, dtype=torch.float32, device=device, seed=seed)
    q, scale, *_ = OPS.fp8_quantize(
        x, None, None, 0, False, format, scaling, 0, False, False, False
    )
    if scaling == 3:
        scale = scale[:, :rows].t()
    return q, scale


def matmul_samples(device, dtype, codes):
    out = {torch.float16: 0, torch.bfloat16: 1}.get(dtype, 2)
    of = (torch.float16, torch.bfloat16, torch.float32)[out]
    for m, n, k in [(6, 8, 16), (150, 136, 272)]:
        bias = make(n, dtype=of, device=device, seed=9)
        for scalings in [(3, 4), (1, 1), (2, 2), (3, 3), (4, 3), (4, 4)]:
            a, scale_a = operand(m, k, scalings[0], device, 1)
            b, scale_b = operand(n, k, scalings[1], device, 2)
            yield a, b, scale_a, scale_b, None, 0, out
        a, scale_a = operand(m, k, 3, device, 1, format=1)
        b, scale_b = operand(n, k, 4, device, 2)
        for code in codes:
            yield a, b, scale_a, scale_b, bias, code, out


def wgrad_samples(device, dtype, codes):
    for m, n, k in [(6, 8, 16), (150, 135, 272)]:
        for scalings in [(3, 4), (3, 3), (2, 2)]:
            a, scale_a = operand(m, k, scalings[0], device, 1)
            b, scale_b = operand(n, k, scalings[1], device, 2)
            yield a, b, scale_a, scale_b, torch.ones(m, n, device=device), True
            yield a, b, scale_a, scale_b, torch.ones(n, m, device=device).t(), False


SAMPLES = {
    "fp8_quantize": quantize_samples,
    "_fp8_norm": norm_samples,
    "_fp8_quantize_pair": pair_samples,
    "_fp8_hidden_grads": hidden_samples,
    "_fp8_matmul": matmul_samples,
    "_fp8_wgrad_": wgrad_samples,
}

REFUSED = {
    op: (torch.int32, rf"^{op}: a must be {WANTED}; got int32$")
    for op in ("_fp8_matmul", "_fp8_wgrad_")
}
