"""Runs the elementwise ops and the stencils on small inputs, for compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 1 python scripts/sanitize_elementwise.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python scripts/sanitize_elementwise.py

Shapes reach every kernel: contiguous, rows of 16 bytes, rows of any width, views at odd addresses.
"""

from __future__ import annotations

import itertools

import torch

import fusedops

DTYPES = (torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((64, 512), (33, 4097), (9, 3), (1, 1003), (1003,), (3, 5, 40))


def elementwise(x: torch.Tensor) -> None:
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


def stencils(dtype: torch.dtype) -> None:
    for (h, w), k, mode in itertools.product(
        ((7, 7), (14, 14), (33, 71)), (3, 5), ("zeros", "reflect", "circular")
    ):
        x = torch.randn(3, 4, h, w, device="cuda", dtype=dtype, requires_grad=True)
        weight = torch.randn(4, k, k, device="cuda", dtype=dtype, requires_grad=True)
        fusedops.stencil2d(x, weight, mode).sum().backward()


if __name__ == "__main__":
    for dtype in DTYPES:
        for shape in SHAPES:
            x = torch.randn(*shape, device="cuda", dtype=dtype)
            elementwise(x)
            elementwise(x.flatten()[1:].reshape(-1, 1).expand(-1, 3))
            elementwise(x[..., 1:])
        stencils(dtype)
    torch.cuda.synchronize()
    print("no error")
