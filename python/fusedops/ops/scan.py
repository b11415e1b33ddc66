"""Running sums, products and extremes along one dimension of a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _fakes, reference  # noqa: F401  (registers the fakes)
from .._autograd.shared import sees_torch_functions_only
from .._core.calls import as_dtype, as_int, public
from .._core.checks import raise_not_tensor

__all__ = ["cummax", "cummin", "cumprod", "cumsum"]

_ops = torch.ops.fusedops
_HALVES = (torch.float16, torch.bfloat16)


@public
def cumsum(
    x: Tensor,
    dim: int = -1,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sum the elements of every line up to each of them.

    Sums run in fp32 (fp64 for float64, int64 modulo 2^64 for integers), in an order that depends on
    the shape alone: results repeat bitwise. A long line is one pass over memory; the scheme is the
    decoupled look-back of Merrill and Garland (2016), with a fixed order of additions.

    Args:
        x: Any shape; bool, integer or floating dtype. Outer strides are read as they are.
        dim: The dimension to walk along.
        exclusive: Leave the element itself out: the first result is 0.
        reverse: Walk from the end.
        dtype: Convert x first, and give the result in it.

    Returns:
        A new contiguous tensor of x's shape and floating dtype; int64 for bool and integers, unless
        dtype says otherwise.

    Raises:
        TypeError: x is not a tensor.
        IndexError: dim is out of range.
        RuntimeError: x has another dtype (complex).
    """
    x, dim = _prepare("cumsum", x, dim, dtype)
    if sees_torch_functions_only(x):
        y = reference.cumsum(x, dim, exclusive, reverse)
    elif torch.is_grad_enabled() and x.requires_grad:
        y = _Cumsum.apply(x, dim, exclusive, reverse)
    else:
        y = _ops.cumsum.default(x, dim, exclusive, reverse)
    return y if dtype is None else y.to(dtype=dtype)


@public
def cumprod(
    x: Tensor,
    dim: int = -1,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Multiply the elements of every line up to each of them.

    Arguments, dtypes, order and errors are those of `cumsum`; an exclusive product starts with 1.
    The gradient is right where x holds zeros, as in torch.cumprod.
    """
    x, dim = _prepare("cumprod", x, dim, dtype)
    if sees_torch_functions_only(x):
        y = reference.cumprod(x, dim, exclusive, reverse)
    elif torch.is_grad_enabled() and x.requires_grad:
        y = _Cumprod.apply(x, dim, exclusive, reverse)
    else:
        y = _ops.cumprod.default(x, dim, exclusive, reverse)
    return y if dtype is None else y.to(dtype=dtype)


@public
def cummax(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Find the largest element of every line so far, and where it stands.

    As in torch.cummax: the last of equal elements is named, and a NaN is larger than every number.

    Args:
        x: Any shape; bool, integer or floating dtype.
        dim: The dimension to walk along.

    Returns:
        torch's named tuple (values, indices), both of x's shape, values of x's dtype and int64
        positions along dim.

    Raises:
        TypeError: x is not a tensor.
        IndexError: dim is out of range.
        RuntimeError: x has another dtype (complex).
    """
    result: tuple[Tensor, Tensor] = torch.return_types.cummax(_extreme("cummax", x, dim))
    return result


@public
def cummin(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Find the smallest element of every line so far, and where it stands; see `cummax`."""
    result: tuple[Tensor, Tensor] = torch.return_types.cummin(_extreme("cummin", x, dim))
    return result


def _prepare(op: str, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> tuple[Tensor, int]:
    if not isinstance(x, Tensor):
        raise_not_tensor(op, x=x)
    if type(dim) is not int:
        dim = as_int(op, "dim", dim)
    return x if dtype is None else x.to(dtype=as_dtype(op, dtype)), dim


def _extreme(op: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    x, dim = _prepare(op, x, dim)
    if sees_torch_functions_only(x):
        return (reference.cummax if op == "cummax" else reference.cummin)(x, dim)
    raw = _ops.cummax.default if op == "cummax" else _ops.cummin.default
    if torch.is_grad_enabled() and x.requires_grad:
        values, indices = _Extreme.apply(x, dim, raw)
        return values, indices
    values, indices = raw(x, dim)
    return values, indices


class _Cumsum(torch.autograd.Function):
    """The gradient of a running sum is the running sum from the other end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, exclusive: bool, reverse: bool) -> Tensor:
        ctx.options = (dim, exclusive, reverse)
        return _ops.cumsum.default(x, dim, exclusive, reverse)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        dim, exclusive, reverse = ctx.options
        return cumsum(dy, dim, exclusive=exclusive, reverse=not reverse), None, None, None


class _Cumprod(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, exclusive: bool, reverse: bool) -> Tensor:
        ctx.options = (dim, exclusive, reverse)
        ctx.save_for_backward(x)
        return _ops.cumprod.default(x, dim, exclusive, reverse)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        dim, exclusive, reverse = ctx.options
        if torch.is_grad_enabled():
            y = reference.cumprod(x, dim, exclusive, reverse)
            (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
        else:
            if exclusive:  # the last factor of a line reaches no result
                dy = _shifted(dy, dim, reverse)
            dx = _cumprod_backward(dy, x, dim, reverse)
        return dx, None, None, None


class _Extreme(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, raw: Any) -> tuple[Tensor, Tensor]:
        values, indices = raw(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor | None = None) -> Any:
        (indices,) = ctx.saved_tensors
        if dy.dim() == 0 or torch.is_grad_enabled():
            return torch.zeros_like(dy).scatter_add(ctx.dim, indices, dy), None, None
        return _sum_runs(dy, indices, ctx.dim), None, None


def _shifted(dy: Tensor, dim: int, reverse: bool) -> Tensor:
    """The inclusive result's gradient from the exclusive one's, which stands one step later."""
    out = torch.zeros_like(dy)
    n = dy.shape[dim] - 1 if dy.dim() > 0 else 0
    if n > 0:
        here, there = (1, 0) if reverse else (0, 1)
        out.narrow(dim, here, n).copy_(dy.narrow(dim, there, n))
    return out


def _cumprod_backward(dy: Tensor, x: Tensor, dim: int, reverse: bool) -> Tensor:
    """Gradient of an inclusive running product.

    Before the first zero of a line: the sum of dy * y from there on, over x. At the first zero: the
    same sum with that zero taken out of the product. After it: 0.
    """
    if x.dim() == 0:
        return dy.clone()
    wide = torch.float32 if x.dtype in _HALVES else x.dtype
    dy, x_wide = dy.to(wide), x.to(wide)

    def scan(op: Any, t: Tensor, backwards: bool) -> Tensor:
        result: Tensor = op(t, dim, False, backwards)
        return result

    zero = x_wide == 0
    count = scan(_ops.cumsum.default, zero, reverse)
    before, first = count == 0, zero & (count == 1)
    y = scan(_ops.cumprod.default, x_wide, reverse)
    sums = scan(_ops.cumsum.default, torch.where(before, dy * y, 0), not reverse)
    y = scan(_ops.cumprod.default, torch.where(first, 1, x_wide), reverse)
    at_zero = scan(_ops.cumsum.default, torch.where(count == 1, dy * y, 0), not reverse)
    out = torch.where(before, sums / x_wide, torch.where(first, at_zero, 0))
    return out.to(x.dtype)


def _sum_runs(dy: Tensor, indices: Tensor, dim: int) -> Tensor:
    """Add dy up where indices point, without atomics.

    The indices of a line do not fall, so that equal ones are a run, and runs are segments.
    """
    lines = dy.movedim(dim, -1)
    flat = lines.reshape(-1)
    if flat.numel() == 0:
        return torch.zeros_like(dy)
    n = lines.shape[-1]
    start = torch.arange(flat.numel() // n, device=dy.device).mul_(n).unsqueeze(1)
    targets = (indices.movedim(dim, -1).reshape(-1, n) + start).reshape(-1)
    offsets = torch.searchsorted(targets, torch.arange(flat.numel() + 1, device=dy.device))
    sums, _ = _ops.segment_reduce.default(flat, offsets, 0)
    return sums.view(lines.shape).movedim(-1, dim)
