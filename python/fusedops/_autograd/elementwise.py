"""autograd.Functions of the elementwise ops: entered only when some input needs a gradient.

With create_graph=True a backward is composed of differentiable functions, so that derivatives of
any order are right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .._core.activation import CODES, SAVES_OUTPUT, SAVES_PREACT
from .._core.reduction import CODE
from .compose import act_grad, activate

_ops = torch.ops.fusedops
_RELU = CODES["relu"]


def _sum_to(grad: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of an input of `shape` that was broadcast."""
    if grad.shape == shape:
        return grad
    if torch.is_grad_enabled():
        return grad.sum_to_size(shape)
    kept = (1,) * (grad.dim() - len(shape)) + tuple(shape)
    mask = sum(1 << i for i, size in enumerate(grad.shape) if kept[i] != size)
    if mask:
        grad = _ops.reduce.default(grad, CODE["sum"], mask, True, False)
    return grad.reshape(shape)


def _product_sum_to(dy: Tensor, other: Tensor, shape: torch.Size) -> Tensor:
    """`_sum_to` of dy * other, whose terms are not rounded to half precision."""
    if dy.shape == shape or dy.dtype not in (torch.float16, torch.bfloat16):
        return _sum_to(dy * other, shape)
    if other.shape == dy.shape and shape == dy.shape[-1:] and not torch.is_grad_enabled():
        dscale: Tensor = _ops.scale_bias_act_backward.default(
            dy, other, None, None, 0, False, True, False
        )[1]
        return dscale
    return _sum_to(dy.float() * other, shape).to(dy.dtype)


class AddFunction(torch.autograd.Function):
    """(x, y) -> x + y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.shapes = x.shape, y.shape
        result: Tensor = _ops.add.default(x, y)
        return result

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        pairs = zip(ctx.shapes, ctx.needs_input_grad, strict=True)
        return tuple(_sum_to(dy, shape) if need else None for shape, need in pairs)


class FmaFunction(torch.autograd.Function):
    """(a, x, b) -> a * x + b."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor, b: Tensor) -> Tensor:
        need_a, need_x, _ = ctx.needs_input_grad
        ctx.save_for_backward(a if need_x else None, x if need_a else None)
        ctx.shapes = a.shape, x.shape, b.shape
        result: Tensor = _ops.fma.default(a, x, b)
        return result

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        a, x = ctx.saved_tensors
        need_a, need_x, need_b = ctx.needs_input_grad
        return (
            _product_sum_to(dy, x, ctx.shapes[0]) if need_a else None,
            _product_sum_to(dy, a, ctx.shapes[1]) if need_x else None,
            _sum_to(dy, ctx.shapes[2]) if need_b else None,
        )


class SquareFunction(torch.autograd.Function):
    """x -> x * x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        result: Tensor = _ops.square.default(x)
        return result

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return 2 * x * dy
        return _ops.square_backward.default(dy, x)


class ReluFunction(torch.autograd.Function):
    """x -> max(x, 0)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y: Tensor = _ops.relu.default(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        if torch.is_grad_enabled() or y.dim() == 0:
            return act_grad(dy, y, _RELU)
        if not y.is_contiguous():
            return _relu_gradient_along_memory(dy, y)
        return _ops.act_backward_bias_grad.default(dy, y, _RELU, False, False)[0]


def _relu_gradient_along_memory(dy: Tensor, y: Tensor) -> Tensor:
    """The gradient of a permuted y (dense: relu's result), with y's strides."""
    order = sorted(range(y.dim()), key=y.stride, reverse=True)
    back = sorted(range(y.dim()), key=order.__getitem__)
    dx = _ops.act_backward_bias_grad.default(
        dy.permute(order), y.permute(order), _RELU, False, False
    )[0]
    result: Tensor = dx.permute(back)
    return result


def affine(x: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """x * scale + bias by torch."""
    z = x if scale is None else x * scale
    return z if bias is None else z + bias


class ScaleBiasActFunction(torch.autograd.Function):
    """(x, scale, bias, code) -> act(x * scale + bias)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor | None, bias: Tensor | None, code: int
    ) -> Tensor:
        # What is linear in x has a backward without x, unless the scale wants its gradient.
        keep = code != 0 or ctx.needs_input_grad[1]
        ctx.save_for_backward(x if keep else None, scale, bias)
        ctx.code = code
        result: Tensor = _ops.scale_bias_act.default(x, scale, bias, code)
        return result

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, scale, bias = ctx.saved_tensors
        code = ctx.code
        need_x, need_s, need_b, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():
            saved = None
            if code != 0:
                z = affine(x, scale, bias)
                saved = activate(z, code) if SAVES_OUTPUT[code] else z
                assert SAVES_OUTPUT[code] or SAVES_PREACT[code]
            dz = act_grad(dy, saved, code)
            return (
                (dz if scale is None else dz * scale) if need_x else None,
                _sum_to(dz * x, dz.shape[-1:]) if need_s else None,
                _sum_to(dz, dz.shape[-1:]) if need_b else None,
                None,
            )
        dx, dscale, dbias = _ops.scale_bias_act_backward.default(
            dy, dy if x is None else x, scale, bias, code, need_x, need_s, need_b
        )
        return (
            dx if need_x else None,
            dscale if need_s else None,
            dbias if need_b else None,
            None,
        )


class DropoutFunction(torch.autograd.Function):
    """(x, bias, residual, seed, p) -> dropout(x + bias) + residual."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        seed: Tensor | None,
        p: float,
    ) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.p = p
        result: Tensor = _ops.bias_dropout_residual.default(x, bias, residual, seed, p)
        return result

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (seed,) = ctx.saved_tensors
        need_x, need_b, need_r, _, _ = ctx.needs_input_grad
        dx = db = None
        if torch.is_grad_enabled():  # dropout is linear: its derivative is itself
            dx = DropoutFunction.apply(dy, None, None, seed, ctx.p)
            db = _sum_to(dx, dy.shape[-1:]) if need_b else None
        elif need_x or need_b:
            dx, db = _ops.bias_dropout_residual_backward.default(dy, seed, ctx.p, need_x, need_b)
        return (
            dx if need_x else None,
            db if need_b else None,
            dy if need_r else None,
            None,
            None,
        )
