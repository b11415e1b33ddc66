"""Samples of softmax, cross entropy and norms."""

from __future__ import annotations

import torch

from util import HALVES, make

OPS = torch.ops.fusedops


def softmax_samples(device, dtype, codes):
    for shape, dim in [((6, 8), 1), ((5, 37), -1), ((3, 7, 4), 1), ((9,), 0)]:
        x = make(*shape, dtype=dtype, device=device)
        for log in (False, True):
            yield x, dim, log, False
    if dtype in HALVES:
        yield make(5, 37, dtype=dtype, device=device), 1, False, True


def softmax_backward_samples(device, dtype, codes):
    for x, dim, log, fp32_out in softmax_samples(device, dtype, codes):
        y = OPS.softmax(x, dim, log, fp32_out)
        dy = make(*x.shape, dtype=y.dtype, device=device, seed=1)
        yield dy, y, dim, log, (1 if dtype is torch.float16 else 2) if fp32_out else 0


def cross_entropy_samples(device, dtype, codes):
    for rows, classes in [(6, 8), (5, 37)]:
        logits = make(rows, classes, dtype=dtype, device=device)
        target = torch.arange(rows, device=device) % classes
        target[1] = -100
        for reduction in range(3):
            yield logits, target, -100, 0.1 * reduction, reduction, False
    if dtype in HALVES:
        yield logits, target, -100, 0.1, 1, True


def cross_entropy_backward_samples(device, dtype, codes):
    for arguments in cross_entropy_samples(device, dtype, codes):
        loss, lse, scale = OPS.cross_entropy(*arguments)
        logits, target, *options, _ = arguments
        yield torch.full_like(loss, 0.5), logits, target, lse, scale, *options


def norm_inputs(device, dtype):
    """(x, residual, weight, bias, norm_dims), with and without what is optional."""
    for shape, norm_dims in [((6, 8), 1), ((5, 37), 1), ((3, 4, 6), 2)]:
        x = make(*shape, dtype=dtype, device=device)
        weight, bias = (
            make(*shape[-norm_dims:], dtype=dtype, device=device, seed=s) for s in (1, 2)
        )
        yield x, None, weight, bias, norm_dims
        yield x, make(*shape, dtype=dtype, device=device, seed=3), None, None, norm_dims
        if dtype in HALVES:
            yield x, None, weight.float(), bias.float(), norm_dims


def layer_norm_samples(device, dtype, codes):
    for inputs in norm_inputs(device, dtype):
        for fp32_out in (False, True)[: 1 + (dtype in HALVES)]:
            yield *inputs, 1e-5, fp32_out, True
            yield *inputs, 1e-5, fp32_out, False


def rms_norm_samples(device, dtype, codes):
    for x, residual, weight, _, norm_dims in norm_inputs(device, dtype):
        yield x, residual, weight, norm_dims, 1e-5, False, True
        yield x, residual, weight, norm_dims, 1e-5, False, False


def norm_backward_samples(device, dtype, op):
    """What the backward ops take before their flags."""
    make_samples = layer_norm_samples if op == "layer_norm" else rms_norm_samples
    for arguments in make_samples(device, dtype, None):
        if not arguments[-1]:
            continue  # no statistics, no gradient
        y, total, *statistics = getattr(OPS, op)(*arguments)
        x, residual, weight = arguments[:3]
        dy = make(*x.shape, dtype=y.dtype, device=device, seed=4)
        dresidual = None if residual is None else torch.ones_like(x)
        norm_dims = arguments[4 if op == "layer_norm" else 3]
        yield dy, dresidual, x if residual is None else total, weight, *statistics, norm_dims


def layer_norm_backward_samples(device, dtype, codes):
    for arguments in norm_backward_samples(device, dtype, "layer_norm"):
        for needs in [(True, True, True), (True, False, False), (False, True, False)]:
            yield *arguments, *needs


def rms_norm_backward_samples(device, dtype, codes):
    for arguments in norm_backward_samples(device, dtype, "rms_norm"):
        for needs in [(True, True), (False, True)]:
            yield *arguments, *needs


SAMPLES = {
    "softmax": softmax_samples,
    "softmax_backward": softmax_backward_samples,
    "cross_entropy": cross_entropy_samples,
    "cross_entropy_backward": cross_entropy_backward_samples,
    "layer_norm": layer_norm_samples,
    "layer_norm_backward": layer_norm_backward_samples,
    "rms_norm": rms_norm_samples,
    "rms_norm_backward": rms_norm_backward_samples,
}
