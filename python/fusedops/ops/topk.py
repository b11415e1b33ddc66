"""The few largest or smallest elements of every row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _fakes, reference  # noqa: F401  (registers the fakes)
from .._autograd.shared import sees_torch_functions_only
from .._core.calls import as_int, public, shown
from .._core.checks import raise_not_tensor

__all__ = ["topk"]

_ops = torch.ops.fusedops


@public
def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Find the k largest or smallest elements along a dimension, best first.

    Equal elements come in the order of their indices, which torch.topk leaves open; NaN is larger
    than every number, as there.

    Args:
        x: Any shape; integer or floating dtype.
        k: From 0 to 128, at most the size of dim.
        dim: The dimension to search; any other than the last costs a copy.
        largest: The largest elements, or the smallest.
        sorted: Ignored: results are always sorted.

    Returns:
        torch's named tuple (values, indices) with size k in dim; values of x's dtype, int64
        positions along dim.

    Raises:
        TypeError: x is not a tensor.
        IndexError: dim is out of range.
        RuntimeError: k is out of range or x has another dtype (bool, complex).
    """
    if not isinstance(x, Tensor):
        raise_not_tensor("topk", x=x)
    if type(k) is not int or type(dim) is not int:
        k, dim = as_int("topk", "k", k), as_int("topk", "dim", dim)
    if type(largest) is not bool:
        raise TypeError(f"topk: largest must be a bool; got {shown(largest)}")
    count = max(x.dim(), 1)
    if not -count <= dim < count:
        raise IndexError(f"topk: dim must be from {-count} to {count - 1}; got {dim}")
    if x.dim() == 0:
        found = tuple(t.squeeze(0) for t in _topk(x.unsqueeze(0), k, 0, largest))
    else:
        found = _topk(x, k, dim, largest)
    result: tuple[Tensor, Tensor] = torch.return_types.topk(found)
    return result


def _topk(x: Tensor, k: int, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    if sees_torch_functions_only(x):
        return reference.topk(x, k, dim, largest)
    rows = x if dim in (-1, x.dim() - 1) else x.movedim(dim, -1)
    if torch.is_grad_enabled() and x.requires_grad:
        values, indices = _Topk.apply(rows, k, largest)
    else:
        values, indices = _ops.topk.default(rows, k, largest)
    if rows is not x:
        values, indices = values.movedim(-1, dim), indices.movedim(-1, dim)
    return values, indices


class _Topk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int, largest: bool) -> tuple[Tensor, Tensor]:
        values, indices = _ops.topk.default(x, k, largest)
        ctx.save_for_backward(indices)
        ctx.shape = x.shape
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor | None = None) -> Any:
        # The indices of a row differ: nothing is added, and the order does not matter
        (indices,) = ctx.saved_tensors
        return dy.new_zeros(ctx.shape).scatter(-1, indices, dy), None, None
