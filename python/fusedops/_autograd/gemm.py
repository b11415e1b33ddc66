"""autograd.Functions around the GEMM ops: entered only when some input needs a gradient.

The ops themselves are silent about autograd. A Function saves what the inputs that require grad
need, and no more, and its backward is the fused op. With create_graph=True backward is composed of
differentiable torch functions instead, so that derivatives of any order are right.

NOTE: Activations whose derivative reads z return (y, z) from forward. z never reaches the user; as
an output it stays connected to the graph, which is what makes a second derivative see z(x, w, b).
Under torch.compile, which has no second derivatives, z is no output: it would get a gradient of
zeros, and backward could not be the fused op.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .._core.activation import SAVES_OUTPUT, SAVES_PREACT
from .autocast import cast_weight
from .compose import compose_dz, compose_linear_backward, no_autocast
from .main_grad import accumulate, main_grad_owner
from .shared import _eager_apply

_ops = torch.ops.fusedops
_linear = _ops.linear.default
_linear_preact = _ops.linear_preact.default
_linear_backward = _ops.linear_backward.default
_matmul = _ops.matmul.default
_matmul_preact = _ops.matmul_preact.default
_act_backward_bias_grad = _ops.act_backward_bias_grad.default


def placeholder(like: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of a shape without its memory, for an op argument that will not be read."""
    return like.new_empty_strided(shape, (0,) * len(shape))


class LinearFunction(torch.autograd.Function):
    """(x, weight, bias, code, allow_tf32, compute) -> y, or (y, z) when backward reads z.

    compute is the autocast dtype or None. Weight and bias are cast here, not by the caller: the
    gradient of an fp32 master weight then leaves the kernel in fp32, without a half-precision stop.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        code: int,
        allow_tf32: bool,
        compute: torch.dtype | None,
    ) -> Any:
        w = weight
        if compute is not None:
            w = cast_weight(weight, compute)
            bias = None if bias is None else cast_weight(bias, compute)
        saved = z = None
        if SAVES_PREACT[code]:
            y, z = _linear_preact(x, w, bias, code, allow_tf32)
            saved = z
            ctx.set_materialize_grads(False)  # either output may go without a gradient
        else:
            y = _linear(x, w, bias, code, allow_tf32)
            if SAVES_OUTPUT[code]:
                saved = y
        need_x, need_w = ctx.needs_input_grad[:2]
        # NOTE: the master weight is saved next to its cast for second derivatives only; it is a
        # parameter, alive anyway.
        master = weight if need_x and w is not weight else None
        ctx.save_for_backward(x if need_w else None, w if need_x else None, saved, master)
        owner = main_grad_owner("linear", weight) if need_w else None
        master_fp32 = w is not weight and weight.dtype is torch.float32
        ctx.options = (code, allow_tf32, owner, master_fp32)
        if not need_w:
            ctx.x_shape = x.shape
        if not need_x:
            ctx.weight_shape = w.shape
        return y if z is None or torch.compiler.is_compiling() else (y, z)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dz: Tensor | None = None) -> Any:
        x, weight, saved, master = ctx.saved_tensors
        code, allow_tf32, owner, dweight_fp32 = ctx.options
        need_x, need_w, need_b, _, _, _ = ctx.needs_input_grad
        if torch.is_grad_enabled() or dz is not None or dy is None:
            grad = dz if dy is None else dy
            if grad is None:
                return None, None, None, None, None, None
            w = weight if master is None else master
            with no_autocast(grad):
                grads = compose_linear_backward(
                    compose_dz(dy, dz, saved, code), x, w, need_x, need_w, need_b
                )
            return (*grads, None, None, None)
        if x is None:
            x = placeholder(dy, ctx.x_shape)
        if weight is None:
            weight = placeholder(dy, ctx.weight_shape)
        if owner is None:
            dx, dw, db = _linear_backward(
                dy, x, weight, saved, code, need_x, need_w, need_b, dweight_fp32, allow_tf32
            )
        else:
            dz, db = dy, None
            if code != 0 or need_b:
                dz, db = _act_backward_bias_grad(dy, saved, code, need_b, dweight_fp32)
            dx, _, _ = _linear_backward(
                dz, x, weight, None, 0, need_x, False, False, False, allow_tf32
            )
            dw = accumulate(owner, dz, x, allow_tf32)
        return (
            dx if need_x else None,
            dw if need_w else None,
            db if need_b else None,
            None,
            None,
            None,
        )


class MatmulFunction(torch.autograd.Function):
    """(a, b, bias, code, allow_tf32) -> y, or (y, z) when backward reads z."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, code: int, allow_tf32: bool
    ) -> Any:
        saved = z = None
        if SAVES_PREACT[code]:
            y, z = _matmul_preact(a, b, bias, code, allow_tf32)
            saved = z
            ctx.set_materialize_grads(False)  # either output may go without a gradient
        else:
            y = _matmul(a, b, bias, code, allow_tf32)
            if SAVES_OUTPUT[code]:
                saved = y
        need_a, need_b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(a if need_b else None, b if need_a else None, saved)
        ctx.options = (code, allow_tf32)
        return y if z is None or torch.compiler.is_compiling() else (y, z)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dz: Tensor | None = None) -> Any:
        a, b, saved = ctx.saved_tensors
        code, allow_tf32 = ctx.options
        need_a, need_b, need_bias, _, _ = ctx.needs_input_grad
        da = db = dbias = None
        if torch.is_grad_enabled() or dz is not None or dy is None:
            grad = dz if dy is None else dy
            if grad is None:
                return None, None, None, None, None
            with no_autocast(grad):
                dz = compose_dz(dy, dz, saved, code)
                da = dz @ b.t() if need_a else None
                db = a.t() @ dz if need_b else None
                dbias = dz.sum(0) if need_bias else None
            return da, db, dbias, None, None
        dz = dy
        if code != 0 or need_bias:
            dz, dbias = _act_backward_bias_grad(dy, saved, code, need_bias, False)
        if need_a:
            da = _matmul(dz, b.t(), None, 0, allow_tf32)
        if need_b:
            db = _matmul(a.t(), dz, None, 0, allow_tf32)
        return da, db, dbias if need_bias else None, None, None


# NOTE: not for Dynamo, which knows Functions by Function.apply.
linear_eager = _eager_apply(LinearFunction)
matmul_eager = _eager_apply(MatmulFunction)
