"""Counts of values: bins of integers, and of equal width over floats."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _fakes, reference  # noqa: F401  (registers the fakes)
from .._autograd.shared import sees_torch_functions_only
from .._core.calls import as_int, public
from .._core.checks import raise_not_tensor

__all__ = ["bincount", "histogram"]

_ops = torch.ops.fusedops


@public
def bincount(x: Tensor, bins: int, weights: Tensor | None = None) -> Tensor:
    """Count how often each of the integers 0 .. bins - 1 occurs in x, or add up their weights.

    Unlike torch.bincount it is told the number of bins, so that it never waits for the device, and
    values outside of them are left out instead of an error. Counts are made with integer atomics in
    privatised shared memory, weighted sums by a stable sort and sums in index order: both repeat
    bitwise.

    Args:
        x: Any shape; uint8, int8, int16, int32 or int64.
        bins: From 1 to 2^31 - 1.
        weights: One for each element, shape of x; floating. Gradients flow to it.

    Returns:
        (bins,) int64 counts, or sums of weights in their dtype (summed in fp32 or fp64).

    Raises:
        TypeError: x or weights is not a tensor.
        RuntimeError: bins is out of range, or a dtype, a shape or a device does not fit.
    """
    if not isinstance(x, Tensor):
        raise_not_tensor("bincount", x=x)
    if type(bins) is not int:
        bins = as_int("bincount", "bins", bins)
    if weights is None:
        return _ops.bincount.default(x, bins)
    if not isinstance(weights, Tensor):
        raise_not_tensor("bincount", weights=weights)
    if weights.shape != x.shape or weights.device != x.device:
        raise RuntimeError(
            f"bincount: weights must have shape {tuple(x.shape)} on {x.device} like x; got "
            f"{tuple(weights.shape)} on {weights.device}"
        )
    if sees_torch_functions_only(x, weights):
        return reference.bincount(x, bins, weights)
    if torch.is_grad_enabled() and weights.requires_grad:
        out: Tensor = _WeightedCount.apply(x, bins, weights)
        return out
    return _weighted(x, bins, weights)


@public
def histogram(x: Tensor, bins: int, low: float, high: float) -> Tensor:
    """Count the elements of x in bins of equal width over [low, high].

    The bins are those of torch.histc: closed below, open above, and high belongs to the last one;
    NaN and what lies outside are left out. The bin is found in fp32, in fp64 for float64.

    Args:
        x: Any shape; float16, bfloat16, float32 or float64.
        bins: From 1 to 2^31 - 1.
        low: Lower edge of the first bin.
        high: Upper edge of the last bin.

    Returns:
        (bins,) int64 counts. They have no gradient.

    Raises:
        TypeError: x is not a tensor.
        RuntimeError: bins is out of range, low is not less than high, or x has another dtype.
    """
    if not isinstance(x, Tensor):
        raise_not_tensor("histogram", x=x)
    if type(bins) is not int:
        bins = as_int("histogram", "bins", bins)
    return _ops.histogram.default(x.detach(), bins, low, high)


def _keys(x: Tensor, bins: int) -> Tensor:
    """The bin of every element as int32, `bins` for those that have none."""
    outside = (x < 0) | (x.long() >= bins)
    return torch.where(outside, bins, x.long()).to(torch.int32).reshape(-1)


def _weighted(x: Tensor, bins: int, weights: Tensor) -> Tensor:
    """Sums of weights per bin: equal keys become segments, in index order."""
    counts = _ops.bincount.default(x, bins)
    offsets = torch.nn.functional.pad(_ops.cumsum.default(counts, 0, False, False), (1, 0))
    order = torch.sort(_keys(x, bins), stable=True).indices
    return _ops.segment_reduce.default(weights.reshape(-1)[order], offsets, 0)[0]


class _WeightedCount(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bins: int, weights: Tensor) -> Tensor:
        ctx.bins = bins
        ctx.save_for_backward(x)
        return _weighted(x, bins, weights)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        padded = torch.nn.functional.pad(dy, (0, 1))
        return None, None, padded[_keys(x, ctx.bins).long()].reshape(x.shape)
