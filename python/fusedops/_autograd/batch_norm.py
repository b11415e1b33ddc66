"""Batch norm with residual and activation over the rows of (..., C), and its backward.

From dz = dy act'(z), x the normalised input and s = weight / sqrt(var + eps):

    dbias = sum dz    dweight = sum dz x    dx = s (dz - (dbias + x dweight) / n)    dresidual = dz

One pass sums, and writes dz where the residual wants its gradient; one writes dx. Kept are the
input, the statistics, and where there is a residual what z is found again from: y, for activations
whose derivative it tells, or the residual. (Ioffe and Szegedy, Batch normalization, 2015.)
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _C  # noqa: F401  (registers torch.ops.fusedops)
from .._core.activation import SAVES_OUTPUT, SAVES_PREACT
from .compose import act_grad, activate, no_autocast
from .shared import _eager_apply, _functorch_active, _is_dynamo_compiling, needs_grad

_ops = torch.ops.fusedops


class BatchNormOptions(NamedTuple):
    """What a norm does beside its tensors."""

    code: int  # of the activation
    training: bool
    momentum: float
    eps: float
    group: Any  # the process group whose ranks share statistics, or None


class _Statistics(NamedTuple):
    mean: Tensor | None
    var: Tensor | None  # biased
    rows: Tensor | None  # how many of all ranks; None: this rank's


def all_reduce(x: Tensor, group: Any) -> Tensor:
    """The sum over the ranks of a group, differentiable; x itself without one."""
    if group is None:
        return x
    from torch.distributed.nn.functional import all_reduce as reduce

    total: Tensor = reduce(x, group=group)
    return total


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _written(*running: Tensor | None) -> None:
    """Tell autograd, and what was made of them, that running statistics changed."""
    changed = [t for t in running if t is not None and not t.is_inference()]
    if changed:
        torch.autograd.graph.increment_version(changed)


def _mix(running: Tensor | None, value: Tensor, count: Tensor, momentum: float) -> None:
    if running is not None:
        mixed = (1 - momentum) * running.to(value.dtype) + momentum * value
        running.copy_(torch.where(count > 0, mixed, running))


def _shared(mean: Tensor, var: Tensor, rows: int, group: Any) -> _Statistics:
    """The statistics of all ranks' rows from those of this rank's."""
    sums = all_reduce(torch.cat([mean * rows, mean.new_full((1,), rows)]), group)
    count = sums[-1]
    some = count.clamp_min(1)
    centre = sums[:-1] / some
    squares = all_reduce((var + (mean - centre).square()) * rows, group)
    return _Statistics(centre, squares / some, count)


def _statistics(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    shift: Tensor | None,
    moments: Tensor | None,
    options: BatchNormOptions,
) -> _Statistics:
    """What x is normalised by: the running statistics, in training those of the group's rows, of
    which the running ones take their part.
    """
    if not options.training:
        return _Statistics(running_mean, running_var, None)
    momentum, group = options.momentum, options.group
    mean, var = _ops.batch_norm_statistics_.default(x, moments, None, None, None, 0.0)
    found = _shared(mean, var, math.prod(x.shape[:-1]), group)
    assert found.mean is not None
    assert found.var is not None
    assert found.rows is not None
    unbiased = found.var * (found.rows / (found.rows - 1).clamp_min(1))
    moved = found.mean if shift is None else found.mean + shift
    _mix(running_mean, moved, found.rows, momentum)
    _mix(running_var, unbiased, found.rows, momentum)
    return found


def _forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    shift: Tensor | None,
    moments: Tensor | None,
    options: BatchNormOptions,
) -> tuple[Tensor, _Statistics]:
    """y for x (..., C), without a gradient, and what x was normalised by."""
    eps, code = options.eps, options.code
    y: Tensor
    if options.training and options.group is None:
        y, mean, var = _ops.batch_norm_train_.default(
            x, moments, weight, bias, residual, shift, running_mean, running_var, options.momentum,
            eps, code,
        )  # fmt: skip
        _written(running_mean, running_var)
        return y, _Statistics(mean, var, None)
    found = _statistics(x, running_mean, running_var, shift, moments, options)
    y = _ops.batch_norm_apply.default(x, found.mean, found.var, weight, bias, residual, eps, code)
    return y, found


class BatchNormFunction(torch.autograd.Function):
    """`_forward`, whose running statistics are constants.

    residual and y are like x (..., C). NOTE: shift, the bias of a convolution in front, moves the
    running mean alone: statistics of the batch take it out again, and its gradient is exactly 0.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        shift: Tensor | None,
        moments: Tensor | None,
        options: BatchNormOptions,
    ) -> Tensor:
        code = options.code
        arguments = (x, residual, weight, bias, running_mean, running_var, shift, moments, options)
        y, found = _forward(*arguments)
        kept = None  # what z is found again from, beside x
        if residual is not None:
            kept = y if SAVES_OUTPUT[code] else residual if SAVES_PREACT[code] else None
        linear = code == 0 or (kept is not None and SAVES_OUTPUT[code])
        constant = not options.training and not ctx.needs_input_grad[2]
        ctx.save_for_backward(None if linear and constant else x, kept, weight, bias, *found)
        ctx.options = options
        ctx.shift = None if shift is None else (shift.shape, shift.dtype)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        needs = ctx.needs_input_grad[:4]
        dshift = None
        if ctx.needs_input_grad[6]:
            shape, dtype = ctx.shift
            dshift = dy.new_zeros(shape, dtype=dtype)
        if torch.is_grad_enabled():
            with no_autocast(dy):
                grads = _compose_backward(dy, ctx.saved_tensors, needs, ctx.options)
        else:
            grads = _backward(dy, ctx.saved_tensors, needs, ctx.options)
        return (*grads, None, None, dshift, None, None)


_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def _backward(
    dy: Tensor, saved: tuple[Any, ...], needs: tuple[bool, ...], options: BatchNormOptions
) -> _Gradients:
    x, kept, weight, bias, mean, var, count = saved
    need_x, need_residual, need_weight, need_bias = needs
    code, eps = options.code, options.eps
    vectors = (mean, var, weight, bias)
    dy = dy.contiguous()  # once for both passes
    x = dy if x is None else x  # which nothing reads
    need_dz = need_residual and code != 0
    sums = total = dz = dx = None
    if need_x and options.training and options.group is None:
        dx, dz, sums = _ops.batch_norm_train_backward.default(
            dy, x, *vectors, kept, eps, code, need_dz
        )
        need_x = need_dz = False
    elif need_weight or need_bias or (need_x and options.training):
        sums, dz = _ops.batch_norm_sums.default(dy, x, *vectors, kept, eps, code, need_dz)
        dy, code, kept = (dz, 0, None) if need_dz else (dy, code, kept)
        if options.training:
            total = all_reduce(sums, options.group)
        need_dz = False
    if need_x or need_dz:
        dx, own = _ops.batch_norm_backward.default(
            dy, x, *vectors, kept, total, count, eps, code, need_dz
        )
        dz = own if need_dz else dz
        dx = dx if need_x else None
    dresidual = None if not need_residual else dy if options.code == 0 else dz
    if sums is None:
        return dx, dresidual, None, None
    if need_weight and need_bias and weight.dtype is bias.dtype:
        dbias, dweight = sums.to(weight.dtype).unbind()  # one kernel
        return dx, dresidual, dweight, dbias
    dweight = sums[1].to(weight.dtype) if need_weight else None
    return dx, dresidual, dweight, sums[0].to(bias.dtype) if need_bias else None


def _normalised(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    options: BatchNormOptions,
) -> Tensor:
    """The norm of x in differentiable torch functions, in float32 (float64)."""
    wide = _wide(x)
    z = x.to(wide)
    if options.training:
        group = options.group
        sums = torch.cat([z.flatten(0, -2).sum(0), z.new_full((1,), math.prod(z.shape[:-1]))])
        sums = all_reduce(sums, group)
        count = sums[-1].detach().clamp_min(1)
        mean = sums[:-1] / count
        var = all_reduce((z - mean).square().flatten(0, -2).sum(0), group) / count
    z = z if mean is None else z - mean.to(wide)
    z = z if var is None else z * (var.to(wide) + options.eps).rsqrt()
    z = z if weight is None else z * weight.to(wide)
    return z if bias is None else z + bias.to(wide)


def _compose_backward(
    dy: Tensor, saved: tuple[Any, ...], needs: tuple[bool, ...], options: BatchNormOptions
) -> _Gradients:
    """The gradients in torch functions that are differentiable to any order."""
    x, kept, weight, bias, mean, var, _ = saved
    need_x, need_residual, need_weight, need_bias = needs
    code = options.code
    x = torch.zeros_like(dy).requires_grad_() if x is None else x  # whose values do not matter
    z = _normalised(x, weight, bias, mean, var, options)
    if SAVES_OUTPUT[code] and kept is not None:
        through = kept.to(z.dtype)
    else:
        through = z if kept is None else z + kept
        if SAVES_OUTPUT[code]:
            through = activate(through, code)
    dz = act_grad(dy.to(z.dtype), through, code) if code else dy.to(z.dtype)
    wanted = [(x, need_x), (weight, need_weight), (bias, need_bias)]
    inputs = [t for t, need in wanted if need]
    found = iter(torch.autograd.grad(z, inputs, dz, create_graph=True) if inputs else ())
    dx, dweight, dbias = (next(found) if need else None for _, need in wanted)
    return dx, dz.to(dy.dtype) if need_residual else None, dweight, dbias


_eager = _eager_apply(BatchNormFunction)


def batch_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    shift: Tensor | None,
    options: BatchNormOptions,
    moments: Tensor | None = None,
) -> Tensor:
    """y for x (..., C), with a gradient where something wants one. moments: x's, or None."""
    arguments = (x, residual, weight, bias, running_mean, running_var, shift, moments, options)
    if needs_grad(x, residual, weight, bias, shift):
        traced = _is_dynamo_compiling() or _functorch_active()
        y: Tensor = (BatchNormFunction.apply if traced else _eager)(*arguments)
        return y
    return _forward(*arguments)[0]
