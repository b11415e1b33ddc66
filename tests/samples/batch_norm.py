"""Samples of the ops of batch norm."""

from __future__ import annotations

import torch

from fusedops._core.activation import SAVES_OUTPUT, SAVES_PREACT
from util import make

SHAPES = [(6, 8), (5, 7), (3, 2, 40), (2, 3, 2, 3)]


def wide(dtype):
    return torch.float64 if dtype is torch.float64 else torch.float32


def vectors(n, dtype, device):
    """mean, var, weight, bias."""
    mean, weight, bias = (make(n, dtype=dtype, device=device, seed=s) for s in (11, 12, 13))
    return mean, make(n, dtype=dtype, device=device, seed=14).abs() + 0.5, weight, bias


def moments_of(x):
    """Those that a product would have given of x (..., C)."""
    blocks = x.double().flatten(0, -2).split(2048)
    means = torch.stack([block.mean(0) for block in blocks], 1)
    squares = [block.var(0, correction=0) * len(block) for block in blocks]
    return torch.stack([means, torch.stack(squares, 1)])


def statistics(device, dtype, codes):
    for shape in SHAPES:
        x = make(*shape, dtype=dtype, device=device)
        mean, var, shift, _ = vectors(shape[-1], dtype, device)
        yield x, None, None, None, None, 0.1
        yield x, None, shift, mean, var, 0.25
        yield x, moments_of(x), None, mean.to(wide(dtype)), var.to(wide(dtype)), 1.0


def apply(device, dtype, codes):
    for shape in SHAPES:
        x, residual = (make(*shape, dtype=dtype, device=device, seed=s) for s in (1, 2))
        mean, var, weight, bias = vectors(shape[-1], dtype, device)
        for code in codes:
            yield x, mean, var, weight, bias, residual, 1e-5, code
            yield x, mean.to(wide(dtype)), var.to(wide(dtype)), None, None, None, 1e-5, code
            yield x, None, None, None, bias, residual, 1e-5, code


def _backward(device, dtype, codes):
    for shape in SHAPES:
        dy, x, residual = (make(*shape, dtype=dtype, device=device, seed=s) for s in (3, 1, 2))
        norm = vectors(shape[-1], dtype, device)
        for code in codes:
            y = torch.ops.fusedops.batch_norm_apply(x, *norm, residual, 1e-5, code)
            saved = y if SAVES_OUTPUT[code] else residual if SAVES_PREACT[code] else None
            yield dy, x, *norm, saved, 1e-5, code
            yield dy, x, *norm, None, 1e-5, code
            yield dy, x, None, None, None, norm[3], None, 1e-5, code


def sums(device, dtype, codes):
    for i, arguments in enumerate(_backward(device, dtype, codes)):
        yield *arguments, i % 2 == 0


def backward(device, dtype, codes):
    for i, (dy, x, *rest, eps, code) in enumerate(_backward(device, dtype, codes)):
        total = make(2, x.shape[-1], dtype=wide(dtype), device=device, seed=5)
        count = torch.full((), 9.0, dtype=wide(dtype), device=device)
        for some in [(None, None), (total, None), (total, count)]:
            yield dy, x, *rest, *some, eps, code, i % 2 == 0


def train(device, dtype, codes):
    for i, shape in enumerate([*SHAPES, (200, 24)]):
        x, residual = (make(*shape, dtype=dtype, device=device, seed=s) for s in (1, 2))
        mean, var, weight, bias = vectors(shape[-1], dtype, device)
        shift = None if i % 2 else make(shape[-1], dtype=dtype, device=device, seed=6)
        for code in codes:
            yield x, None, weight, bias, residual, shift, mean, var, 0.25, 1e-5, code
            yield x, moments_of(x), None, None, None, None, None, None, 0.1, 1e-3, code


def train_backward(device, dtype, codes):
    for dy, x, mean, var, weight, bias, saved, eps, code in _backward(device, dtype, codes):
        if mean is not None:
            yield dy, x, mean, var, weight, bias, saved, eps, code, saved is not None
            yield dy, x, mean, var, None, None, None, eps, code, False


def fold(device, dtype, codes):
    for shape in [(6, 8), (5, 7), (3, 300)]:
        weight = make(*shape, dtype=dtype, device=device)
        mean, var, scale, bias = vectors(shape[0], dtype, device)
        conv_bias = make(shape[0], dtype=dtype, device=device, seed=6)
        yield weight, conv_bias, mean, var, scale, bias, 1e-5
        yield weight, None, mean.to(wide(dtype)), var.to(wide(dtype)), None, None, 1e-3
        yield weight, None, None, None, None, None, 1e-5


SAMPLES = {
    "batch_norm_statistics_": statistics,
    "batch_norm_apply": apply,
    "batch_norm_sums": sums,
    "batch_norm_backward": backward,
    "batch_norm_train_": train,
    "batch_norm_train_backward": train_backward,
    "batch_norm_fold": fold,
}
