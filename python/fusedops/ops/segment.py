"""Reductions over segments of rows that CSR offsets name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _fakes, reference  # noqa: F401  (registers the fakes)
from .._autograd.shared import sees_torch_functions_only
from .._core.calls import public
from .._core.checks import raise_not_tensor

__all__ = ["segment_reduce"]

_ops = torch.ops.fusedops
KINDS = ("sum", "mean", "max", "min")


@public
def segment_reduce(x: Tensor, offsets: Tensor, reduce: str = "sum") -> Tensor:
    """Reduce rows offsets[s] .. offsets[s + 1] of x to row s of the result.

    Work is shared by rows, not by segments: power-law lengths cost what equal ones do. Sums run in
    fp32 (fp64 for float64) in an order that depends on the shapes and offsets alone, and repeat
    bitwise. max and min send their gradient to the first row that holds the value; NaN wins.

    Args:
        x: (E, ...) rows; float16, bfloat16, float32 or float64. Rows may have any stride.
        offsets: (S + 1,) int64 on x's device, not falling, from 0 to E at most. Rows before the
            first and after the last offset belong to no segment. The contents are not checked.
        reduce: "sum", "mean", "max" or "min".

    Returns:
        (S, ...) in x's dtype. An empty segment gives 0, and takes no gradient.

    Raises:
        TypeError: x or offsets is not a tensor.
        ValueError: reduce is unknown.
        RuntimeError: a dtype, a shape or a device does not fit.
    """
    if not isinstance(x, Tensor) or not isinstance(offsets, Tensor):
        raise_not_tensor("segment_reduce", x=x, offsets=offsets)
    if reduce not in KINDS:
        raise ValueError(f"segment_reduce: reduce must be one of {', '.join(KINDS)}; got {reduce}")
    if sees_torch_functions_only(x, offsets):
        return reference.segment_reduce(x, offsets, reduce)
    kind = KINDS.index(reduce)
    if torch.is_grad_enabled() and x.requires_grad:
        out: Tensor = _SegmentReduce.apply(x, offsets, kind)
        return out
    return _ops.segment_reduce.default(x, offsets, kind)[0]


class _SegmentReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, offsets: Tensor, kind: int) -> Tensor:
        y, index = _ops.segment_reduce.default(x, offsets, kind)
        ctx.save_for_backward(offsets, index if kind >= 2 else None)
        ctx.rows, ctx.kind = x.shape[0], kind
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        offsets, index = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _spread(dy, offsets, index, ctx.rows, ctx.kind == 1), None, None
        dx = _ops.segment_reduce_backward.default(dy, offsets, index, ctx.rows, ctx.kind == 1)
        return dx, None, None


def _spread(dy: Tensor, offsets: Tensor, index: Tensor | None, rows: int, mean: bool) -> Tensor:
    """The backward in differentiable torch functions."""
    if index is not None:
        target = torch.where(index < 0, rows, index)
        return dy.new_zeros((rows + 1, *dy.shape[1:])).scatter(0, target, dy)[:rows]
    if mean:
        length = offsets.diff().clamp(min=1).view(-1, *[1] * (dy.dim() - 1))
        dy = dy / length.to(dy.dtype)
    row = torch.arange(rows, device=dy.device)
    segment = torch.searchsorted(offsets, row, right=True)  # 0: before the first
    outside = dy.new_zeros((1, *dy.shape[1:]))
    return torch.cat([outside, dy, outside]).index_select(0, segment)
