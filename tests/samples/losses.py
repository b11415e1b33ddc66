"""Samples of linear_cross_entropy."""

from __future__ import annotations

import torch

from util import HALVES, linear_inputs, make


def linear_cross_entropy_samples(device, dtype, codes):
    for m, v, k in [(6, 16, 8), (5, 37, 7)]:
        x, weight, bias, _ = linear_inputs(m, v, k, dtype, device)
        target = torch.arange(m, device=device) % v
        target[1] = -100
        ones = (True, True, True)
        for reduction in range(3):
            loss = torch.full((m,) if reduction == 0 else (), 0.5, dtype=dtype, device=device)
            options = (-100, 0.1 * reduction, 5.0 * reduction, 0.01 * reduction, reduction, False)
            yield x, weight, bias, target, loss, *options, 0, *ones, False, False
            if reduction > 0:
                yield x, weight, None, target, None, *options, 2, *ones, dtype in HALVES, False
        yield x, weight, bias, target, None, *options, 4, True, False, True, False, True
        yield x, weight, None, target, None, *options, 0, False, False, False, False, False
    if dtype in HALVES:
        yield x, weight, None, target, None, -100, 0.0, 0.0, 0.0, 1, True, 2, *ones, True, False


def loss_shard_samples(device, dtype, codes):
    """(logits, target, then what both ops take) of the shards of 37 classes."""
    for first, width in [(0, 20), (20, 17), (37, 0)]:
        logits = make(6, 24, dtype=dtype, device=device, seed=first)
        target = torch.tensor([0, 36, -100, 20, 5, 19], device=device)
        yield logits, target, first, width, 37, -100


def loss_shard_parts_samples(device, dtype, codes):
    for given in list(loss_shard_samples(device, dtype, codes))[:2]:  # nothing has no finite top
        yield *given, 0.0, False
        yield *given, 5.0, True


def loss_shard_gradient_samples(device, dtype, codes):
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    for logits, target, *numbers in loss_shard_samples(device, dtype, codes):
        lse = torch.linspace(3, 5, 6, dtype=wide, device=device)
        yield logits, target, lse, lse[:1] * 0.1, *numbers, 0.0, 0.0, 0.0
        yield logits, target, lse, lse * 0.1, *numbers, 0.1, 5.0, 0.01


def scale_gradient_samples(device, dtype, codes):
    for shape in [(6, 8), (5, 37), (7,)]:
        gradient = make(*shape, dtype=dtype, device=device)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        scale = torch.full((1,), 0.25, dtype=wide, device=device)
        for dloss in (3.0, 4.0):
            yield gradient, torch.tensor(dloss, dtype=dtype, device=device), scale


SAMPLES = {
    "linear_cross_entropy": linear_cross_entropy_samples,
    "loss_shard_parts": loss_shard_parts_samples,
    "loss_shard_gradient_": loss_shard_gradient_samples,
    "scale_gradient_": scale_gradient_samples,
}
