"""Definitions of scans, histograms, segment reductions and top-k."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable


def _directed(
    scan: Callable[[Tensor], Tensor],
    x: Tensor,
    dim: int,
    start: int,
    exclusive: bool,
    reverse: bool,
) -> Tensor:
    """A scan from either end; exclusive results are the others one step later, after `start`."""
    if x.dim() == 0:
        return _directed(scan, x.unsqueeze(0), dim, start, exclusive, reverse).squeeze(0)
    y = scan(x.flip(dim) if reverse else x)
    if exclusive and y.shape[dim] > 0:
        first = torch.full_like(y.narrow(dim, 0, 1), start)
        y = torch.cat([first, y.narrow(dim, 0, y.shape[dim] - 1)], dim)
    return y.flip(dim) if reverse else y


def cumsum(x: Tensor, dim: int = -1, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """y[i] = sum of x[j] over j <= i (j < i if exclusive; from the other end if reverse)."""
    return _directed(lambda t: t.cumsum(dim), x, dim, 0, exclusive, reverse)


def cumprod(x: Tensor, dim: int = -1, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """y[i] = product of x[j] over j <= i (j < i if exclusive; from the other end if reverse)."""
    return _directed(lambda t: t.cumprod(dim), x, dim, 1, exclusive, reverse)


def cummax(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """The largest element so far and the position of the last one that equals it."""
    values, indices = torch.cummax(x, dim)
    return values, indices


def cummin(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """The smallest element so far and the position of the last one that equals it."""
    values, indices = torch.cummin(x, dim)
    return values, indices


def bincount(x: Tensor, bins: int, weights: Tensor | None = None) -> Tensor:
    """y[b] = number, or sum of the weights, of the elements of x that equal b."""
    hit = x.reshape(1, -1) == torch.arange(bins, device=x.device).unsqueeze(1)
    if weights is None:
        return hit.sum(1)
    return torch.where(hit, weights.reshape(1, -1), 0).sum(1)


def histogram(x: Tensor, bins: int, low: float, high: float) -> Tensor:
    """y[b] = number of elements with floor((x - low) * bins / (high - low)) = b; high counts in
    the last bin."""
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    inside = x[(x >= low) & (x <= high)]
    bin_of = ((inside - low) * bins / (high - low)).long().clamp(max=bins - 1)
    return bincount(bin_of, bins)


def segment_reduce(x: Tensor, offsets: Tensor, reduce: str = "sum") -> Tensor:
    """y[s] = the sum, mean, max or min of rows offsets[s] .. offsets[s + 1], or 0 of none."""
    ends = offsets.tolist()
    rows = []
    for begin, end in itertools.pairwise(ends):
        part = x[begin:end]
        if end <= begin:
            rows.append(x.new_zeros(x.shape[1:]))
        elif reduce in ("sum", "mean"):
            rows.append(part.sum(0) if reduce == "sum" else part.mean(0))
        else:
            rows.append((part.max(0) if reduce == "max" else part.min(0)).values)
    return torch.stack(rows) if rows else x.new_zeros((0, *x.shape[1:]))


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The first k of a stable sort."""
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)
