"""Batch norm over the edges that count, with exact statistics, forward and backward.

Let n be the number of edges that count, x the normalised y, s = weight / sqrt(var + eps). From dz,
which is sparse where only the winners of a maximum were normalised:

    dbias = sum dz    dweight = sum dz x    dy = s (dz - [counts] (dbias + x dweight) / n)

The sums for dy are those of all ranks of the norm's process group, the gradients of weight and bias
this rank's own, as those of torch.nn.SyncBatchNorm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._autograd.shared import sees_torch_functions_only
from ._autograd import needs_grad

if TYPE_CHECKING:
    from .norms import BatchNorm


class Statistics(NamedTuple):
    """Of the edges that count, in float32 (float64)."""

    mean: Tensor  # (C,)
    var: Tensor  # (C,), biased
    count: Tensor  # (), of the same dtype


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums and statistics of a dtype are formed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _all_reduce(x: Tensor, group: Any) -> Tensor:
    """The sum over the ranks of a group, differentiable; x itself without one."""
    if group is None:
        return x
    from torch.distributed.nn.functional import all_reduce

    total: Tensor = all_reduce(x, group=group)
    return total


def _column_sums(y: Tensor) -> Tensor:
    return y.flatten(0, -2).sum(0)


def statistics(y: Tensor, valid: Tensor, group: Any) -> Statistics:
    """Of y (B, M, K, C) where valid (B, M, K, 1), differentiable in y; by two passes."""
    y = y.to(wide_dtype(y.dtype))
    local = valid.sum().to(y.dtype)
    sums = _column_sums(torch.where(valid, y, 0))
    sums = _all_reduce(torch.cat([sums, local[None]]), group)
    count = sums[-1].detach()
    some = count.clamp_min(1)
    mean = sums[:-1] / some
    squares = _column_sums(torch.where(valid, y - mean, 0).square())
    return Statistics(mean, _all_reduce(squares, group) / some, count)


def chosen(y: Tensor, winners: Tensor | None) -> Tensor:
    """y (B, M, K, C), or its values (B, M, C) at winners (B, M, 1, C)."""
    return y if winners is None else y.gather(2, winners).squeeze(2)


def _compose(
    y: Tensor,
    valid: Tensor,
    winners: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    group: Any,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(z, mean, var, count) in torch functions that are differentiable to any order."""
    found = statistics(y, valid, group)
    z = (chosen(y, winners).to(found.mean.dtype) - found.mean) * (found.var + eps).rsqrt()
    z = z if weight is None else z * weight
    z = z if bias is None else z + bias
    return (z.to(dtype), *found)


class BatchNormFunction(torch.autograd.Function):
    """(y, valid, winners, weight, bias, eps, group, dtype) -> z, and its statistics.

    y, the one large tensor that is kept, is (B, M, K, C); z is as large, or (B, M, C) where winners
    are given. weight and bias are float32 (float64).
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        valid: Tensor,
        winners: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        group: Any,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found = statistics(y, valid, group)
        used = chosen(y, winners)
        if used.dtype.itemsize < dtype.itemsize:
            used = used.to(dtype)
        z = F.batch_norm(
            used.flatten(0, -2), found.mean, found.var, weight, bias, False, 0.0, eps
        ).reshape(used.shape)
        ctx.save_for_backward(y, valid, winners, weight, bias, *found)
        ctx.options = (eps, group, dtype)
        ctx.mark_non_differentiable(*found)
        return (z.to(dtype), *found)

    @staticmethod
    def backward(ctx: Any, dz: Tensor, *_: Any) -> Any:
        y, valid, winners, weight, bias, mean, var, count = ctx.saved_tensors
        eps, group, dtype = ctx.options
        needs = [ctx.needs_input_grad[i] for i in (0, 3, 4)]
        if torch.is_grad_enabled():
            z = _compose(y, valid, winners, weight, bias, eps, group, dtype)[0]
            inputs = [t for t, need in zip((y, weight, bias), needs, strict=True) if need]
            grads = iter(torch.autograd.grad(z, inputs, dz, create_graph=True))
            dy, dweight, dbias = (next(grads) if need else None for need in needs)
            return dy, None, None, dweight, dbias, None, None, None
        rstd = (var + eps).rsqrt()
        dz = dz.to(mean.dtype)
        centred = y.to(mean.dtype) - mean
        dbias = _column_sums(dz)
        dweight = _column_sums(dz * chosen(centred, winners)) * rstd
        dy = None
        if needs[0]:
            scale = rstd if weight is None else weight * rstd
            total, total_x = _all_reduce(torch.stack([dbias, dweight]), group) / count.clamp_min(1)
            dy = torch.where(valid, centred.mul_(total_x * rstd).add_(total).mul_(-scale), 0)
            if winners is None:
                dy.addcmul_(dz, scale)
            else:
                won = dy.gather(2, winners) + (dz * scale).unsqueeze(2)
                dy.scatter_(2, winners, won)
            dy = dy.to(y.dtype)
        return (
            dy, None, None, dweight if needs[1] else None, dbias if needs[2] else None,
            None, None, None,
        )  # fmt: skip


def _update_running(norm: BatchNorm, found: Statistics, bias: Tensor | None) -> None:
    """Mix this batch into the running statistics; not where no edge counts."""
    if norm.running_mean is None or norm.running_var is None:
        return
    mean = found.mean if bias is None else found.mean + bias
    unbiased = found.var * (found.count / (found.count - 1).clamp_min(1))
    for running, value in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        mixed = (1 - norm.momentum) * running.to(value.dtype) + norm.momentum * value
        running.copy_(torch.where(found.count > 0, mixed, running))


def batch_norm(
    y: Tensor,
    valid: Tensor,
    norm: BatchNorm,
    linear_bias: Tensor | None,
    dtype: torch.dtype,
    winners: Tensor | None = None,
) -> Tensor:
    """The norm, in training, of y (B, M, K, C) without the bias of its linear layer.

    That bias shifts the mean alone: it is in the running mean, and its gradient is exactly 0.

    Args:
        y: Pre-activations.
        valid: (B, M, K, 1) bool, what counts.
        norm: With training True.
        linear_bias: (C,) or None.
        dtype: Of the result.
        winners: (B, M, 1, C) int64: normalise only the values there.

    Returns:
        Like y, or (B, M, C) where winners are given.
    """
    wide = wide_dtype(y.dtype)
    weight = None if norm.weight is None else norm.weight.to(wide)
    bias = None if norm.bias is None else norm.bias.to(wide)
    if needs_grad(linear_bias):
        assert linear_bias is not None
        unmoved = linear_bias.to(wide) * 0
        bias = unmoved if bias is None else bias + unmoved
    arguments = (y, valid, winners, weight, bias, norm.eps, norm.group, dtype)
    if torch.compiler.is_dynamo_compiling() or sees_torch_functions_only(y, weight, bias):
        z, *found = _compose(*arguments)
    else:
        z, *found = BatchNormFunction.apply(*arguments)
    with torch.no_grad():
        shift = None if linear_bias is None else linear_bias.detach()
        _update_running(norm, Statistics(*(t.detach() for t in found)), shift)
    return z


def running_norm(y: Tensor, norm: BatchNorm) -> Tensor:
    """The norm of y (..., C) with its running statistics."""
    wide = wide_dtype(y.dtype)
    mean, var, weight, bias = (
        None if t is None else t.to(wide)
        for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    return F.batch_norm(y.flatten(0, -2), mean, var, weight, bias, False, 0.0, norm.eps).reshape(
        y.shape
    )


def running_affine(
    norm: BatchNorm, linear_bias: Tensor | None, wide: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(scale, shift), (C,) each, of the norm with its running statistics: z = y scale + shift.

    y is without the bias of its linear layer, which is in the shift.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.to(wide) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.to(wide)
    below = norm.running_mean.to(wide)
    if linear_bias is not None:
        below = below - linear_bias.to(wide)
    shift = -below * scale
    return scale, shift if norm.bias is None else shift + norm.bias.to(wide)
