"""layer_norm and rms_norm, with an optional residual that is added first."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence  # noqa: TC003 (`public` reads annotations)
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.compose import no_autocast
from .._autograd.shared import (
    _eager_apply,
    distinct,
    needs_grad,
    sees_torch_functions_only,
)
from .._core.calls import public
from .._core.checks import check_tensors
from .._core.traced import alike, is_traced
from .softmax import HALF_CODES, autocast_gives_fp32

__all__ = ["layer_norm", "rms_norm"]

_ops = torch.ops.fusedops
_layer_norm = _ops.layer_norm.default
_layer_norm_backward = _ops.layer_norm_backward.default
_rms_norm = _ops.rms_norm.default
_rms_norm_backward = _ops.rms_norm_backward.default
_any_autocast = torch._C._is_any_autocast_enabled
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_OPTIONAL = ("weight", "bias", "residual")


def _compose_backward(
    norm: Callable[[Tensor, Tensor | None], Tensor],
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    needs: tuple[bool, bool],
) -> list[Tensor | None]:
    """[dx, dweight] in torch functions that are differentiable again."""
    with no_autocast(dy):
        wide = None if weight is None else weight.to(dy.dtype)
        inputs = [t for t, need in zip((x, weight), needs, strict=True) if need and t is not None]
        if not inputs:
            return [None, None]
        found = iter(torch.autograd.grad(norm(x.to(dy.dtype), wide), inputs, dy, create_graph=True))
    return [
        next(found) if need and t is not None else None
        for t, need in zip((x, weight), needs, strict=True)
    ]


def _plus(grad: Tensor | None, more: Tensor | None) -> Tensor | None:
    return more if grad is None else grad if more is None else grad + more


class LayerNormFunction(torch.autograd.Function):
    """(x, residual, weight, bias, norm_dims, eps, fp32_out) -> y, or (y, x + residual)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        norm_dims: int,
        eps: float,
        fp32_out: bool,
    ) -> Any:
        y, total, mean, rstd = _layer_norm(
            x, residual, weight, bias, norm_dims, eps, fp32_out, True
        )
        ctx.save_for_backward(x if residual is None else total, weight, mean, rstd)
        ctx.options = (norm_dims, eps)
        if residual is None:
            return y
        ctx.set_materialize_grads(False)  # either output may go without a gradient
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dtotal: Tensor | None = None) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        norm_dims, eps = ctx.options
        need_x, need_residual, need_w, need_b = ctx.needs_input_grad[:4]
        need_dx = need_x or need_residual
        dx, dw, db = dtotal, None, None
        if dy is not None and torch.is_grad_enabled():
            shape = x.shape[x.dim() - norm_dims :]
            dx, dw = _compose_backward(
                lambda t, w: F.layer_norm(t, shape, w, None, eps), dy, x, weight, (need_dx, need_w)
            )
            dx = _plus(dx, dtotal)
            if need_b:
                db = dy.flatten(0, -norm_dims - 1).sum(0) if dy.dim() > norm_dims else dy
        elif dy is not None:
            dx, dw, db = _layer_norm_backward(
                dy, dtotal, x, weight, mean, rstd, norm_dims, need_dx, need_w, need_b
            )
        return (
            dx if need_x else None,
            dx if need_residual else None,
            dw if need_w else None,
            db if need_b else None,
            None,
            None,
            None,
        )


class RMSNormFunction(torch.autograd.Function):
    """(x, residual, weight, norm_dims, eps) -> y, or (y, x + residual)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        norm_dims: int,
        eps: float,
    ) -> Any:
        y, total, rstd = _rms_norm(x, residual, weight, norm_dims, eps, False, True)
        ctx.save_for_backward(x if residual is None else total, weight, rstd)
        ctx.options = (norm_dims, eps)
        if residual is None:
            return y
        ctx.set_materialize_grads(False)  # either output may go without a gradient
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dtotal: Tensor | None = None) -> Any:
        x, weight, rstd = ctx.saved_tensors
        norm_dims, eps = ctx.options
        need_x, need_residual, need_w = ctx.needs_input_grad[:3]
        need_dx = need_x or need_residual
        dx, dw = dtotal, None
        if dy is not None and torch.is_grad_enabled():
            shape = x.shape[x.dim() - norm_dims :]
            dx, dw = _compose_backward(
                lambda t, w: F.rms_norm(t, shape, w, eps), dy, x, weight, (need_dx, need_w)
            )
            dx = _plus(dx, dtotal)
        elif dy is not None:
            dx, dw = _rms_norm_backward(dy, dtotal, x, weight, rstd, norm_dims, need_dx, need_w)
        return (
            dx if need_x else None,
            dx if need_residual else None,
            dw if need_w else None,
            None,
            None,
        )


_eager_layer_norm = _eager_apply(LayerNormFunction)
_eager_rms_norm = _eager_apply(RMSNormFunction)


def _as_autocast(x: Tensor, *parameters: Tensor | None) -> tuple[Tensor | None, ...]:
    """The parameters in float32, as CUDA's autocast hands them on, where the op has no mix of them.

    Under autocast a layer norm of torch computes whatever the dtypes are, float64 apart.
    """
    if not x.is_cuda or x.dtype is torch.float64 or not torch.is_autocast_enabled("cuda"):
        return parameters
    dtypes = {p.dtype for p in parameters if p is not None}
    if len(dtypes) < 2 and dtypes <= {x.dtype, torch.float32}:
        return parameters
    return tuple(p.float() if p is not None and p.dtype in HALF_CODES else p for p in parameters)


def _weight_beside(x: Tensor, weight: Tensor) -> Tensor:
    """An RMS norm's weight in a dtype that the op takes: torch's rms_norm takes any."""
    dtype = torch.float32 if x.dtype in HALF_CODES else x.dtype
    if weight.dtype is dtype or not weight.is_floating_point():
        return weight
    return weight.to(dtype)


def _adds_by_torch(x: Tensor, residual: Tensor) -> bool:
    """Whether torch promotes the sum of the two; the op has one dtype for them."""
    return residual.dtype is not x.dtype and residual.shape == x.shape


def _norm_dims(op: str, x: Tensor, normalized_shape: int | Sequence[int]) -> int:
    """How many dims are normalised; what the op never gets to see is checked here."""
    # NOTE: what nearly every call has, asked first: a slice of a shape costs as much as the rest.
    if isinstance(normalized_shape, tuple) and len(normalized_shape) == 1 and x.dim() > 0:  # noqa: SIM102
        if x.size(-1) == normalized_shape[0]:
            return 1
    if isinstance(normalized_shape, int):
        normalized_shape = (normalized_shape,)
    elif not hasattr(normalized_shape, "__len__") and hasattr(normalized_shape, "__index__"):
        normalized_shape = (operator.index(normalized_shape),)  # of NumPy
    count = len(normalized_shape)
    if count == 0 or tuple(x.shape[-count:]) != tuple(normalized_shape):
        raise RuntimeError(
            f"{op}: normalized_shape must be the last dimension(s) of x {tuple(x.shape)}; got "
            f"{tuple(normalized_shape)}"
        )
    return count


def _is_torchs(
    x: Tensor,
    norm_dims: int,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
) -> bool:
    """Whether torch's norm takes the arguments of a call that torch.compile traces."""
    if not is_traced() or not alike(x, weight, bias, residual):
        return False
    shape = x.shape[x.dim() - norm_dims :]
    if residual is not None and (residual.shape != x.shape or residual.dtype is not x.dtype):
        return False
    return all(t is None or (t.shape == shape and t.dtype is x.dtype) for t in (weight, bias))


@overload
def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = ...,
    bias: Tensor | None = ...,
    eps: float = ...,
    *,
    residual: None = ...,
) -> Tensor: ...
@overload
def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = ...,
    bias: Tensor | None = ...,
    eps: float = ...,
    *,
    residual: Tensor,
) -> tuple[Tensor, Tensor]: ...
@public
def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute ``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dims.

    One read of x and one write of the result. The variance is the mean squared difference to the
    mean; the parts of a row are joined as in Chan, Golub and LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances" (1979). The backward reads x and dy once,
    writes dx, and sums the gradients of weight and bias in a fixed order, without atomics.

    Args:
        x: (..., normalized_shape); float16, bfloat16, float32 or float64. Rows may lie apart, other
            strides are copied first.
        normalized_shape: The sizes of the dims to normalise over, or one size.
        weight: Its shape is normalized_shape; or None for 1; x's dtype, or float32 beside a half x.
        bias: Like weight, or None for 0.
        eps: Added to the variance.
        residual: Like x: ``x + residual`` is normalised instead, in the same pass. Where it has
            another dtype (a float32 stream beside a half x), torch adds it, with its promotion.

    Returns:
        A new contiguous tensor like x, or ``(y, x + residual)`` where residual is given.

    Raises:
        TypeError: An argument is not a tensor.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.

    Under autocast on a GPU the result of a half x is float32 and parameters may have any float
    dtype but float64, as torch's. Gradients of any order,
    torch.func transforms and forward-mode AD are supported (the latter two by torch's kernels).

    Example:
        >>> y, residual = fusedops.layer_norm(x, 1024, weight, bias, residual=residual)
    """
    if not (
        isinstance(x, Tensor)
        and (weight is None or isinstance(weight, Tensor))
        and (bias is None or isinstance(bias, Tensor))
        and (residual is None or isinstance(residual, Tensor))
    ):
        check_tensors("layer_norm", _OPTIONAL, x=x, weight=weight, bias=bias, residual=residual)
    norm_dims = _norm_dims("layer_norm", x, normalized_shape)
    if residual is not None and _adds_by_torch(x, residual):
        x = x + residual
        return layer_norm(x, normalized_shape, weight, bias, eps), x
    traced = _is_dynamo_compiling()
    torchs = traced and _is_torchs(x, norm_dims, weight, bias, residual)
    if torchs or sees_torch_functions_only(x, weight, bias, residual):
        total = x if residual is None else x + residual
        y = F.layer_norm(total, x.shape[x.dim() - norm_dims :], weight, bias, eps)
        return y if residual is None else (y, total)
    if weight is None and bias is not None:
        weight = torch.ones_like(bias)
    fp32_out = False
    if _any_autocast():
        fp32_out = autocast_gives_fp32(x)
        weight, bias = _as_autocast(x, weight, bias)
    if needs_grad(x, weight, bias, residual):
        if traced:
            x, residual, weight, bias = distinct(x, residual, weight, bias)
        apply = LayerNormFunction.apply if traced else _eager_layer_norm
        out: Any = apply(x, residual, weight, bias, norm_dims, eps, fp32_out)
        return out
    y, total, _, _ = _layer_norm(x, residual, weight, bias, norm_dims, eps, fp32_out, False)
    return y if residual is None else (y, total)


@overload
def rms_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = ...,
    eps: float | None = ...,
    *,
    residual: None = ...,
) -> Tensor: ...
@overload
def rms_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = ...,
    eps: float | None = ...,
    *,
    residual: Tensor,
) -> tuple[Tensor, Tensor]: ...
@public
def rms_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute ``x / sqrt(mean(x^2) + eps) * weight`` over the last dims.

    Args, returns and errors are those of `layer_norm`, without a bias; the weight has any floating
    dtype, as in torch, and the result x's. eps None is the machine epsilon of what is computed in
    (float32, or float64 for float64), as in torch. Autocast leaves it alone, as torch does.

    Example:
        >>> y, residual = fusedops.rms_norm(x, 4096, weight, residual=residual)
    """
    if not (
        isinstance(x, Tensor)
        and (weight is None or isinstance(weight, Tensor))
        and (residual is None or isinstance(residual, Tensor))
    ):
        check_tensors("rms_norm", _OPTIONAL, x=x, weight=weight, residual=residual)
    norm_dims = _norm_dims("rms_norm", x, normalized_shape)
    if residual is not None and _adds_by_torch(x, residual):
        x = x + residual
        return rms_norm(x, normalized_shape, weight, eps), x
    if weight is not None and weight.dtype is not x.dtype:
        weight = _weight_beside(x, weight)
    traced = _is_dynamo_compiling()
    torchs = traced and _is_torchs(x, norm_dims, weight, None, residual)
    if torchs or sees_torch_functions_only(x, weight, residual):
        total = x if residual is None else x + residual
        y = F.rms_norm(total, x.shape[x.dim() - norm_dims :], weight, eps)
        return y if residual is None else (y, total)
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype is torch.float64 else torch.float32).eps
    if needs_grad(x, weight, residual):
        if traced:
            x, residual, weight = distinct(x, residual, weight)
        apply = RMSNormFunction.apply if traced else _eager_rms_norm
        out: Any = apply(x, residual, weight, norm_dims, eps)
        return out
    y, total, _ = _rms_norm(x, residual, weight, norm_dims, eps, False, False)
    return y if residual is None else (y, total)
