"""Reductions by torch, in torch's own semantics: differentiable, any order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

Dims = tuple[int, ...]  # sorted, not negative


def _as_rows(x: Tensor, dims: Dims) -> Tensor:
    """The reduced dimensions as one, the last."""
    kept = [i for i in range(x.dim()) if i not in dims]
    row = math.prod([x.shape[i] for i in dims])
    return x.permute(*kept, *dims).reshape([*(x.shape[i] for i in kept), row])


def _keep(y: Tensor, x: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    if not keepdim:
        return y
    return y.reshape([1 if i in dims else size for i, size in enumerate(x.shape)])


def reduce(x: Tensor, name: str, dims: Dims, keepdim: bool = False) -> Tensor:
    """A reduction of reduction.REDUCTIONS over dims (none: no dimension)."""
    if not dims:
        return _keep(reduce(x.unsqueeze(-1), name, (x.dim(),)), x, (), keepdim)
    match name:
        case "sum":
            return x.sum(dims, keepdim)
        case "mean":
            return x.mean(dims, keepdim)
        case "prod":
            return _keep(_as_rows(x, dims).prod(-1), x, dims, keepdim)
        case "prod_nonzero":
            return reduce(x.masked_fill(x == 0, 1), "prod", dims, keepdim)
        case "amax":
            return x.amax(dims, keepdim)
        case "amin":
            return x.amin(dims, keepdim)
        case "norm_1" | "norm_2" | "norm_inf" | "norm_minus_inf":
            order = {"1": 1.0, "2": 2.0, "inf": math.inf, "minus_inf": -math.inf}
            return torch.linalg.vector_norm(x, order[name.removeprefix("norm_")], dims, keepdim)
        case "logsumexp":
            return x.logsumexp(dims, keepdim)
        case "count_nonzero":
            return _keep(torch.count_nonzero(x, dims), x, dims, keepdim)
        case "any":
            return _keep(_as_rows(x, dims).bool().any(-1), x, dims, keepdim)
        case "all":
            return _keep(_as_rows(x, dims).bool().all(-1), x, dims, keepdim)
        case _:  # argmax, argmin
            rows = _as_rows(x.byte() if x.dtype is torch.bool else x, dims)
            index = rows.argmax(-1) if name == "argmax" else rows.argmin(-1)
            return _keep(index, x, dims, keepdim)


def var(x: Tensor, dims: Dims, correction: float = 1, keepdim: bool = False) -> Tensor:
    """Sum of squared deviations over max(0, count - correction)."""
    if not dims:
        return _keep(var(x.unsqueeze(-1), (x.dim(),), correction), x, (), keepdim)
    return x.var(dims, correction=correction, keepdim=keepdim)


def std(x: Tensor, dims: Dims, correction: float = 1, keepdim: bool = False) -> Tensor:
    """The square root of `var`; gradient 0 where it is 0."""
    variance = var(x, dims, correction, keepdim)
    zero = variance == 0  # sqrt has no derivative there
    return variance.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)


def bias_grad(dy: Tensor) -> Tensor:
    """dy (..., N) summed to (N,)."""
    return dy.reshape(math.prod(dy.shape[:-1]), dy.shape[-1]).sum(0)
