"""Elementwise ops and stencils: contiguous, rows of 16 bytes, rows of any width, odd addresses."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

import fusedops

if TYPE_CHECKING:
    from collections import Counter

    from options import Options

DTYPES = (torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((64, 512), (33, 4097), (9, 3), (1, 1003), (1003,), (3, 5, 40))
PLANES = ((7, 7), (14, 14), (33, 71))


def run(o: Options, count: Counter[str]) -> None:
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        x = o.randn(*shape, dtype=dtype)
        for view in (x, x.flatten()[1:].reshape(-1, 1).expand(-1, 3), x[..., 1:]):
            run_elementwise(view)
            count["elementwise"] += 8
    modes = ("zeros", "reflect", "circular")
    for dtype, (h, w), k, mode in itertools.product(DTYPES, PLANES, (3, 5), modes):
        plane, weight = (
            o.randn(3, 4, h, w, dtype=dtype, grad=True),
            o.randn(4, k, k, dtype=dtype, grad=True),
        )
        fusedops.stencil2d(plane, weight, mode).sum().backward()
        count["stencil2d"] += 1


def run_elementwise(x: torch.Tensor) -> None:
    bias, scale = (torch.randn_like(x[(0,) * (x.dim() - 1)]).requires_grad_() for _ in range(2))
    seed = torch.tensor([7], device=x.device)
    fusedops.fma(x, bias, x)
    fusedops.square(x)
    fusedops.relu(x)
    results = [
        fusedops.add(x, bias),
        fusedops.scale_bias_act(x, scale, bias, "gelu_tanh"),
        fusedops.bias_act(x, bias, "relu"),
        fusedops.bias_dropout_residual(x, bias, x, 0.3, seed=seed),
        fusedops.bias_dropout_residual(x, None, x, 0.3, seed=seed),
    ]
    torch.stack(results).sum().backward()
