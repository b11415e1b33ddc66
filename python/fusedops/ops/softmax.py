"""softmax and log_softmax: one read and one write of memory, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.compose import no_autocast
from .._autograd.shared import _eager_apply, sees_torch_functions_only
from .._core.calls import as_dtype, as_int, public
from .._core.checks import raise_not_tensor

__all__ = ["log_softmax", "softmax"]

_softmax = torch.ops.fusedops.softmax.default
_softmax_backward = torch.ops.fusedops.softmax_backward.default
_is_grad_enabled = torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

HALF_CODES = {torch.float16: 1, torch.bfloat16: 2}


def autocast_gives_fp32(x: Tensor) -> bool:
    """Whether torch's autocast runs a function of its float32 list on x in float32."""
    # NOTE: these functions are on the list of CUDA's autocast, not of the CPU's.
    return x.is_cuda and x.dtype in HALF_CODES and torch.is_autocast_enabled("cuda")


class SoftmaxFunction(torch.autograd.Function):
    """(x, dim, log, fp32_out) -> y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, log: bool, fp32_out: bool) -> Tensor:
        y = _softmax(x, dim, log, fp32_out)
        ctx.save_for_backward(y)
        ctx.options = (dim, log, HALF_CODES[x.dtype] if fp32_out else 0, x.dtype)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        dim, log, dx_dtype, dtype = ctx.options
        if not torch.is_grad_enabled():
            return _softmax_backward(dy, y, dim, log, dx_dtype), None, None, None
        with no_autocast(dy):
            if log:
                dx = dy - y.exp() * dy.sum(dim, keepdim=True)
            else:
                dx = y * (dy - (dy * y).sum(dim, keepdim=True))
        return dx.to(dtype), None, None, None


_eager = _eager_apply(SoftmaxFunction)


def _apply(op: str, x: Tensor, dim: int, dtype: torch.dtype | None, log: bool) -> Tensor:
    if not isinstance(x, Tensor):
        raise_not_tensor(op, x=x)
    if type(dim) is not int:
        dim = as_int(op, "dim", dim)
    if sees_torch_functions_only(x):
        return (F.log_softmax if log else F.softmax)(x, dim, dtype=dtype)
    if dtype is not None:
        dtype = as_dtype(op, dtype)
    elif _any_autocast() and autocast_gives_fp32(x):
        dtype = torch.float32
    fp32_out = dtype is torch.float32 and x.dtype in HALF_CODES
    if dtype is not None and not fp32_out:
        x = x.to(dtype=dtype)
    if _is_grad_enabled() and x.requires_grad:
        apply = SoftmaxFunction.apply if _is_dynamo_compiling() else _eager
        y: Tensor = apply(x, dim, log, fp32_out)
        return y
    return _softmax(x, dim, log, fp32_out)


@public
def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """Compute ``exp(x) / sum(exp(x))`` over one dim.

    A row waits in registers between the two reads that the formula needs, so memory is read once
    and written once; the backward reads ``dy`` and the result and writes ``dx``. Rows of up to
    131072 16-bit elements stay on the chip on Hopper (thread-block clusters); longer ones, and dims
    that are not the innermost, are read twice. The warps of a row exchange maximum and sum once, as
    in Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).

    Args:
        x: Any shape; float16, bfloat16, float32 or float64. Rows may lie apart; other strides are
            copied first.
        dim: The dim to normalise over.
        dtype: As in ``F.softmax``: the dtype to compute in and to return. float32 from a half x
            costs no extra pass.

    Returns:
        A new contiguous tensor of x's shape. A row of -inf alone gives NaN, as in torch.

    Raises:
        TypeError: x is not a tensor.
        IndexError: x has no such dim.
        RuntimeError: The dtype is another one.

    Under autocast on a GPU the result of a half x is float32, as torch's. Gradients of any order,
    torch.func transforms and forward-mode AD are supported (the latter two by torch's kernels).

    Example:
        >>> p = fusedops.softmax(scores, dim=-1)
    """
    return _apply("softmax", x, dim, dtype, False)


@public
def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """Compute ``x - log(sum(exp(x)))`` over one dim.

    Everything else is as in `softmax`.

    Example:
        >>> log_p = fusedops.log_softmax(scores, dim=-1)
    """
    return _apply("log_softmax", x, dim, dtype, True)
