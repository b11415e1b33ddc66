"""autograd.Functions of the reductions: entered only when the input needs a gradient.

Where a gradient reads the input, backward is one pass over it with per-result coefficients
(reduce_backward); sum and mean have views for gradients, as in torch. With create_graph=True
backward differentiates the reference instead, so that derivatives of any order are right.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .._core.reduction import CODE, GRADIENT_CODE, REDUCTIONS, wide_dtype
from ..reference import reduce as reference

if TYPE_CHECKING:
    from collections.abc import Callable

_ops = torch.ops.fusedops
_reduce = _ops.reduce.default
_var_mean = _ops.var_mean.default
_extremum_count = _ops.extremum_count.default
_reduce_backward = _ops.reduce_backward.default

_EXTREMA = ("amax", "amin", "norm_inf", "norm_minus_inf")
_WIDE_RESULT = ("norm_2", "logsumexp")  # those whose gradient reads the unrounded result


def dims_of(mask: int) -> tuple[int, ...]:
    """The dimensions of a bit mask."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def _with_dims(tensor: Tensor, x: Tensor, mask: int) -> Tensor:
    """A result with its reduced dimensions back, of size 1."""
    return tensor.reshape([1 if mask >> i & 1 else size for i, size in enumerate(x.shape)])


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # NOTE: under torch.compile an output of a Function that is a no-op `to` of what it saves gets
    # a gradient of zeros.
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def _count(x: Tensor, mask: int) -> int:
    return math.prod([x.shape[i] for i in dims_of(mask)])


def _through(function: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> Tensor:
    """The gradient of a torch function as a differentiable function of x and dy."""
    with torch.enable_grad():
        leaf = x if x.requires_grad else x.detach().requires_grad_()
        # NOTE: a view, so that autograd.grad stops here and x stays connected.
        inner = leaf.view_as(leaf)
        (dx,) = torch.autograd.grad(function(inner), inner, dy, create_graph=True)
    return dx


class ReduceFunction(torch.autograd.Function):
    """(x, code, mask, keepdim, wide) -> y for the differentiable reductions but sum and mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, code: int, mask: int, keepdim: bool, wide: bool) -> Tensor:
        name = REDUCTIONS[code]
        saved: tuple[Tensor | None, ...] = (None, None)
        if name in _EXTREMA:
            y, count = _extremum_count(x, code, mask, keepdim)
            y = _cast(y, wide_dtype(x.dtype)) if wide else y
            saved = (y, count)
        elif name in _WIDE_RESULT:
            exact = _reduce(x, code, mask, keepdim, True)
            y = exact if wide else _cast(exact, x.dtype)
            saved = (exact, None)
        else:
            y = _reduce(x, code, mask, keepdim, wide)
        ctx.save_for_backward(x, *saved)
        ctx.options = (name, mask)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, y, count = ctx.saved_tensors
        name, mask = ctx.options
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            dx = _through(
                lambda leaf: _with_dims(reference.reduce(leaf, name, dims_of(mask)), x, mask),
                x,
                _with_dims(dy, x, mask).to(x.dtype),
            )
            return dx, None, None, None, None
        wide = wide_dtype(x.dtype)
        scale = _with_dims(dy, x, mask).to(wide)
        shift = None if y is None else _with_dims(y, x, mask).to(wide)
        if count is not None:
            kind = "equal" if name in ("amax", "amin") else "equal_abs"
            scale = scale / _with_dims(count, x, mask)
        elif name == "norm_1":
            kind = "sign"
        elif name == "norm_2":
            assert shift is not None
            kind, scale, shift = "affine", (scale / shift).masked_fill_(shift == 0, 0), None
        elif name == "logsumexp":
            kind = "exp"
        else:  # prod
            kind = "prod"
            scale = scale * _reduce(x, CODE["prod_nonzero"], mask, True, True)
            zeros = _reduce(x, CODE["count_nonzero"], mask, True, False)
            shift = (_count(x, mask) - zeros).to(wide)
        return _reduce_backward(x, scale, shift, GRADIENT_CODE[kind]), None, None, None, None


class VarFunction(torch.autograd.Function):
    """(x, mask, correction, root, keepdim) -> variance or standard deviation."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: int, correction: float, root: bool, keepdim: bool
    ) -> Tensor:
        y, mean = _var_mean(x, mask, correction, root, keepdim, True)
        ctx.save_for_backward(x, mean, y if root else None)
        ctx.options = (mask, correction, root)
        return _cast(y, x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, mean, std = ctx.saved_tensors
        mask, correction, root = ctx.options
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            define = reference.std if root else reference.var
            dx = _through(
                lambda leaf: define(leaf, dims_of(mask), correction, True),
                x,
                _with_dims(dy, x, mask),
            )
            return dx, None, None, None, None
        left = max(0.0, _count(x, mask) - correction)
        factor = (1.0 if root else 2.0) / left if left else math.inf
        scale = _with_dims(dy, x, mask).to(wide_dtype(x.dtype)) * factor
        if std is not None:
            std = _with_dims(std, x, mask)
            scale = (scale / std).masked_fill_(std == 0, 0)
        dx = _reduce_backward(x, scale, _with_dims(mean, x, mask), GRADIENT_CODE["affine"])
        return dx, None, None, None, None


class SumFunction(torch.autograd.Function):
    """(x, code, mask, keepdim, wide) -> sum or mean; the gradient is a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, code: int, mask: int, keepdim: bool, wide: bool) -> Tensor:
        ctx.options = (x.shape, x.dtype, code, mask)
        return _reduce(x, code, mask, keepdim, wide)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        shape, dtype, code, mask = ctx.options
        kept = [1 if mask >> i & 1 else size for i, size in enumerate(shape)]
        dx = dy.reshape(kept)
        if code == CODE["mean"]:
            dx = dx / max(math.prod([shape[i] for i in dims_of(mask)]), 1)
        return dx.to(dtype).expand(shape), None, None, None, None


class BiasGradFunction(torch.autograd.Function):
    """(dy, wide) -> column sums."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, wide: bool) -> Tensor:
        ctx.options = (dy.shape, dy.dtype)
        return _ops.bias_grad.default(dy, wide)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        shape, dtype = ctx.options
        return grad.to(dtype).expand(shape), None
