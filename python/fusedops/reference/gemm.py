"""linear and matmul with their backward, written out: what every kernel has to compute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .activation import activate, activate_grad

if TYPE_CHECKING:
    from torch import Tensor


def matmul_preact(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """z = a b + bias for a (M, K), b (K, N), bias (N,)."""
    z = a @ b
    return z if bias is None else z + bias


def matmul(
    a: Tensor, b: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """y = act(a b + bias) for a (M, K), b (K, N), bias (N,)."""
    return activate(matmul_preact(a, b, bias), activation)


def matmul_backward(
    dy: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients (da, db, dbias) of `matmul` for the output gradient dy (M, N)."""
    dz = dy * activate_grad(matmul_preact(a, b, bias), activation)
    return dz @ b.t(), a.t() @ dz, dz.sum(0)


def linear_preact(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """z = x weight^T + bias for x (..., K), weight (N, K), bias (N,)."""
    z = x @ weight.t()
    return z if bias is None else z + bias


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """y = act(x weight^T + bias) for x (..., K), weight (N, K), bias (N,)."""
    return activate(linear_preact(x, weight, bias), activation)


def linear_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients (dx, dweight, dbias) of `linear` for the output gradient dy (..., N)."""
    dz = dy * activate_grad(linear_preact(x, weight, bias), activation)
    rows = math.prod(x.shape[:-1])
    dz_rows = dz.reshape(rows, weight.shape[0])
    return dz @ weight, dz_rows.t() @ x.reshape(rows, weight.shape[1]), dz_rows.sum(0)
