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
            count["elementwise"] += 14
    modes = ("zeros", "reflect", "circular")
    for dtype, (h, w), k, mode in itertools.product(DTYPES, PLANES, (3, 5), modes):
        plane, weight = (
            o.randn(3, 4, h, w, dtype=dtype, grad=True),
            o.randn(4, k, k, dtype=dtype, grad=True),
        )
        fusedops.stencil2d(plane, weight, mode).sum().backward()
        count["stencil2d"] += 1
    for dtype, mode, size in itertools.product(DTYPES, (*modes, "replicate"), (7, 300)):
        run_other_stencils(o, dtype, mode, size)
        count["stencil1d and stencil3d"] += 3


def run_other_stencils(o: Options, dtype: torch.dtype, mode: str, size: int) -> None:
    """Rows of few and of many elements, volumes of one tile and of several."""
    row, taps = o.randn(5, size, dtype=dtype, grad=True), o.randn(5, dtype=dtype, grad=True)
    fusedops.stencil1d(row, taps, mode).sum().backward()
    fusedops.box_filter1d(row.detach(), 3, padding_mode=mode)
    volume = o.randn(2, 5, 9, 7 if size < 100 else 40, dtype=dtype, grad=True)
    weight = o.randn(2, 3, 3, 3, dtype=dtype, grad=True)
    fusedops.stencil3d(volume, weight, mode).sum().backward()


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
    fusedops.square(x.detach().requires_grad_()).sum().backward()
    out = torch.empty_like(x.contiguous())
    with torch.no_grad():
        fusedops.add(x, bias, out=out)
        fusedops.fma(x, bias, x, out=out)
        fusedops.square(x, out=out)
        fusedops.relu(x, out=out)
        fusedops.scale_bias_act(x, scale, bias, "gelu_tanh", out=out)
        fusedops.bias_dropout_residual(x, bias, x, 0.3, seed=seed, out=out)
