"""Batch norm over the edges that count, with exact statistics, forward and backward.

Let n be the number of edges that count, x the normalised y, s = weight / sqrt(var + eps). From dz,
which is sparse where only the winners of a maximum were normalised:

    dbias = sum dz    dweight = sum dz x    dy = s (dz - [counts] (dbias + x dweight) / n)

The sums for dy are those of all ranks of the norm's process group, the gradients of weight and bias
this rank's own, as those of torch.nn.SyncBatchNorm.

Slots that do not count hold what the first slot of their group holds (`Edges`). So sums run over
all slots, as torch's kernels do it, and the first slot takes back what its copies put in too much:
its share of a sum is 1 - copies. In dy that gives each edge's point and weights what is theirs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._autograd.batch_norm import all_reduce
from .._autograd.shared import needs_grad, sees_torch_functions_only

if TYPE_CHECKING:
    from .norms import BatchNorm


class Slots(NamedTuple):
    """Which slots of (B, M, K) count."""

    valid: Tensor  # (B, M, K, 1) bool
    copies: Tensor | None  # (B, M, 1) int64, how many do not; None: all count


class Statistics(NamedTuple):
    """Statistics of the edges that count, in float32 (float64)."""

    mean: Tensor  # (C,)
    var: Tensor  # (C,), biased
    count: Tensor  # (), of the same dtype


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums and statistics of a dtype are formed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rows_of(y: Tensor) -> Tensor:
    """(..., C) as a matrix."""
    # NOTE: torch does not batch flatten in a backward, and reshape(-1, 0) is ambiguous.
    return y.reshape(math.prod(y.shape[:-1]), y.shape[-1])


def _column_sums(y: Tensor) -> Tensor:
    return rows_of(y).sum(0)


def _masked_statistics(y: Tensor, valid: Tensor, group: Any) -> Statistics:
    """Statistics of y (B, M, K, C) where valid, differentiable in y; by two passes.

    The second one also corrects the mean, which has the rounding errors of a sum.
    """
    y = y.to(wide_dtype(y.dtype))
    local = valid.sum().to(y.dtype)
    sums = _column_sums(torch.where(valid, y, 0))
    sums = all_reduce(torch.cat([sums, local[None]]), group)
    count = sums[-1].detach()
    some = count.clamp_min(1)
    mean = sums[:-1] / some
    centred = torch.where(valid, y - mean, 0)
    sums = torch.stack([_column_sums(centred), _column_sums(centred.square())])
    shift, square = all_reduce(sums, group) / some
    return Statistics(mean + shift, square - shift.square(), count)


def _moments(rows: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of the columns of (E, C), both by Welford's method."""
    wide = wide_dtype(rows.dtype)
    if rows.shape[0] == 0:
        return rows.new_zeros(rows.shape[1], dtype=wide), rows.new_zeros(rows.shape[1], dtype=wide)
    if rows.is_cuda:
        mean, rstd = torch.batch_norm_stats(rows, eps)
        return mean, (rstd.square().reciprocal() - eps).clamp_min(0)
    # NOTE: by distances to one of them, which hardly vary where the values do not.
    first = rows[0].to(wide)
    var, mean = torch.var_mean(rows - first, 0, correction=0)
    return first + mean, var


def _statistics(y: Tensor, slots: Slots, eps: float, group: Any) -> Statistics:
    """`_masked_statistics`, not differentiable; of halves with one tensor as large as y at most.

    NOTE: with few valid slots among many, what is taken back is most of a sum, and the mean has the
    rounding error of that sum. It is below that of halves, not of float32.
    """
    if slots.copies is not None and y.dtype.itemsize > 2:
        return _masked_statistics(y, slots.valid, group)
    rows = rows_of(y)
    mean, var = _moments(rows, eps)
    copies = None if slots.copies is None else slots.copies.to(mean.dtype)
    sums, count = mean * rows.shape[0], mean.new_full((), rows.shape[0])
    first = y[:, :, 0].to(mean.dtype)
    if copies is not None:
        sums = sums - _column_sums(copies * first)
        count = count - copies.sum()
    sums = all_reduce(torch.cat([sums, count[None]]), group)
    count = sums[-1]
    some = count.clamp_min(1)
    centre = sums[:-1] / some
    if copies is None:
        squares = (var + (mean - centre).square()) * rows.shape[0]
        return Statistics(centre, all_reduce(squares, group) / some, count)
    # NOTE: slots of groups without neighbours are far from the centre; taken back from a sum, they
    # would leave its rounding error. They take the centre's place, as halves have it.
    stand_in = centre.to(y.dtype)
    mean, var = _moments(rows_of(torch.where(slots.valid, y, stand_in)), eps)
    off, left = stand_in.to(mean.dtype) - centre, copies.sum()
    sums = torch.stack(
        [
            (mean - centre) * rows.shape[0] - off * left,
            (var + (mean - centre).square()) * rows.shape[0] - off.square() * left,
        ]
    )
    shift, square = all_reduce(sums, group) / some
    return Statistics(centre + shift, (square - shift.square()).clamp_min(0), count)


def chosen(y: Tensor, winners: Tensor | None) -> Tensor:
    """y (B, M, K, C), or its values (B, M, C) at winners (B, M, 1, C)."""
    return y if winners is None else y.gather(2, winners).squeeze(2)


def _compose(
    y: Tensor,
    slots: Slots,
    winners: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    group: Any,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(z, mean, var, count) in torch functions that are differentiable to any order."""
    found = _masked_statistics(y, slots.valid, group)
    z = (chosen(y, winners).to(found.mean.dtype) - found.mean) * (found.var + eps).rsqrt()
    z = z if weight is None else z * weight
    z = z if bias is None else z + bias
    return (z.to(dtype), *found)


def _reduce_backward(
    dz: Tensor, y: Tensor, winners: Tensor | None, mean: Tensor, rstd: Tensor
) -> Tensor:
    """(2, C): the sums of dz and of dz x."""
    if winners is None and y.is_cuda and y.numel() > 0:
        flat = rows_of(dz.to(y.dtype).contiguous())
        rows, ones = rows_of(y.contiguous()), torch.ones_like(rstd)
        sums = torch.batch_norm_backward_reduce(flat, rows, mean, rstd, ones, True, True, True)
        return torch.stack([sums[3], sums[2]])
    dz = dz.to(mean.dtype)
    normalised = (chosen(y, winners).to(mean.dtype) - mean) * rstd
    return torch.stack([_column_sums(dz), _column_sums(dz * normalised)])


class _Gradient(NamedTuple):
    """dy = scale (dz - share (mean_dz + x mean_dzx)), where share is what a slot counts."""

    mean: Tensor
    rstd: Tensor
    weight: Tensor
    mean_dz: Tensor
    mean_dzx: Tensor

    @property
    def scale(self) -> Tensor:
        return self.weight * self.rstd

    def of_statistics(self, y: Tensor, share: Tensor | float) -> Tensor:
        """The term of the statistics for values y (..., C), in float32 (float64)."""
        x = (y.to(self.mean.dtype) - self.mean) * self.rstd
        return -share * self.scale * (self.mean_dz + x * self.mean_dzx)

    def dense(self, dz: Tensor, y: Tensor, copies: Tensor | None) -> Tensor:
        """dy where every slot was normalised."""
        if y.is_cuda and y.numel() > 0:
            count = torch.ones(1, dtype=torch.int32, device=y.device)
            flat = rows_of(dz.to(y.dtype).contiguous())
            sums = (self.mean_dz, self.mean_dzx / self.rstd)
            dy = torch.batch_norm_backward_elemt(
                flat, rows_of(y), self.mean, self.rstd, self.weight, *sums, count
            ).reshape(y.shape)
        else:
            dy = (dz * self.scale + self.of_statistics(y, 1.0)).to(y.dtype)
        if copies is not None:
            share = (1 - copies).to(self.mean.dtype)
            first = dz[:, :, 0] * self.scale + self.of_statistics(y[:, :, 0], share)
            dy[:, :, 0] = first.to(y.dtype)
        return dy

    def sparse(self, dz: Tensor, y: Tensor, copies: Tensor | None, winners: Tensor) -> Tensor:
        """dy where the winners alone were normalised."""
        scale, half = self.scale, torch.full_like(self.rstd, 0.5)
        slope, shift = -scale * self.mean_dzx * self.rstd, -scale * self.mean_dz
        # NOTE: one pass with one rounding; the variance is 0.5 + 0.5, as eps must not be 0.
        rows = F.batch_norm(rows_of(y), self.mean, half, slope, shift, False, 0.0, 0.5)
        dy, share = rows.reshape(y.shape), None
        if copies is not None:
            of_first = (1 - copies).to(self.mean.dtype)
            dy[:, :, 0] = self.of_statistics(y[:, :, 0], of_first).to(y.dtype)
            share = torch.where(winners.squeeze(2) == 0, of_first, 1)
        won = dz * scale + self.of_statistics(chosen(y, winners), 1.0 if share is None else share)
        return dy.scatter_(2, winners, won.to(y.dtype).unsqueeze(2))


class BatchNormFunction(torch.autograd.Function):
    """(y, valid, copies, winners, weight, bias, eps, group, dtype) -> z, and its statistics.

    y, the one large tensor that is kept, is (B, M, K, C); z is as large, or (B, M, C) where winners
    are given. weight and bias are float32 (float64).
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        valid: Tensor,
        copies: Tensor | None,
        winners: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        group: Any,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y = y.contiguous()
        found = _statistics(y, Slots(valid, copies), eps, group)
        used = chosen(y, winners)
        if used.dtype.itemsize < dtype.itemsize:
            used = used.to(dtype)
        mean = found.mean
        if not used.is_cuda:
            # NOTE: torch's CPU kernel has scale y + (bias - scale mean), which cancels where the
            # mean is many standard deviations away.
            used, mean = used - mean, torch.zeros_like(mean)
        z = F.batch_norm(rows_of(used), mean, found.var, weight, bias, False, 0.0, eps).reshape(
            used.shape
        )
        ctx.save_for_backward(y, valid, copies, winners, weight, bias, *found)
        ctx.options = (eps, group, dtype)
        ctx.mark_non_differentiable(*found)
        return (z.to(dtype), *found)

    @staticmethod
    def backward(ctx: Any, dz: Tensor, *_: Any) -> Any:
        y, valid, copies, winners, weight, bias, mean, var, count = ctx.saved_tensors
        eps, group, dtype = ctx.options
        needs = [ctx.needs_input_grad[i] for i in (0, 4, 5)]
        if torch.is_grad_enabled():
            slots = Slots(valid, copies)
            z = _compose(y, slots, winners, weight, bias, eps, group, dtype)[0]
            inputs = [t for t, need in zip((y, weight, bias), needs, strict=True) if need]
            grads = iter(torch.autograd.grad(z, inputs, dz, create_graph=True))
            dy, dweight, dbias = (next(grads) if need else None for need in needs)
            return dy, None, None, None, dweight, dbias, None, None, None
        rstd = (var + eps).rsqrt()
        sums = _reduce_backward(dz, y, winners, mean, rstd)
        dy = None
        if needs[0]:
            means = all_reduce(sums, group) / count.clamp_min(1)
            gradient = _Gradient(
                mean, rstd, torch.ones_like(rstd) if weight is None else weight, *means
            )
            if winners is None:
                dy = gradient.dense(dz, y, copies)
            else:
                dy = gradient.sparse(dz, y, copies, winners)
        return (
            dy, None, None, None, sums[1] if needs[1] else None, sums[0] if needs[2] else None,
            None, None, None,
        )  # fmt: skip


def _update_running(norm: BatchNorm, found: Statistics, bias: Tensor | None) -> None:
    """Mix this batch into the running statistics; not where no edge counts."""
    if norm.running_mean is None or norm.running_var is None:
        return
    assert norm.momentum is not None
    mean = found.mean if bias is None else found.mean + bias
    unbiased = found.var * (found.count / (found.count - 1).clamp_min(1))
    for running, value in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        mixed = (1 - norm.momentum) * running.to(value.dtype) + norm.momentum * value
        running.copy_(torch.where(found.count > 0, mixed, running))


def batch_norm(
    y: Tensor,
    slots: Slots,
    norm: BatchNorm,
    linear_bias: Tensor | None,
    dtype: torch.dtype,
    winners: Tensor | None = None,
    sign: Tensor | None = None,
) -> Tensor:
    """The norm, in training, of y (B, M, K, C) without the bias of its linear layer.

    That bias shifts the mean alone: it is in the running mean, and its gradient is exactly 0.

    Args:
        y: Pre-activations.
        slots: What counts.
        norm: With training True.
        linear_bias: (C,) or None.
        dtype: Dtype of the result.
        winners: (B, M, 1, C) int64: normalise only the values there.
        sign: (C,) of 1 and -1: y is the pre-activation times that.

    Returns:
        Like y, or (B, M, C) where winners are given.
    """
    wide = wide_dtype(y.dtype)
    weight = None if norm.weight is None else norm.weight.to(wide)
    if sign is not None:
        weight = sign.to(wide) if weight is None else weight * sign
    bias = None if norm.bias is None else norm.bias.to(wide)
    if needs_grad(linear_bias):
        assert linear_bias is not None
        unmoved = linear_bias.to(wide) * 0
        bias = unmoved if bias is None else bias + unmoved
    rest = (winners, weight, bias, norm.eps, norm.group, dtype)
    if torch.compiler.is_dynamo_compiling() or sees_torch_functions_only(y, weight, bias):
        z, *found = _compose(y, slots, *rest)
    else:
        z, *found = BatchNormFunction.apply(y, *slots, *rest)
    with torch.no_grad():
        shift = None if linear_bias is None else linear_bias.detach()
        statistics = Statistics(*(t.detach() for t in found))
        if sign is not None:
            statistics = statistics._replace(mean=statistics.mean * sign)
        _update_running(norm, statistics, shift)
    return z


def running_norm(y: Tensor, norm: BatchNorm) -> Tensor:
    """The norm of y (..., C) with its running statistics."""
    wide = wide_dtype(y.dtype)
    mean, var, weight, bias = (
        None if t is None else t.to(wide)
        for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    if weight is None and bias is not None:  # torch's CUDA kernel has no bias gradient then
        weight = torch.ones_like(bias)
    return F.batch_norm(rows_of(y), mean, var, weight, bias, False, 0.0, norm.eps).reshape(y.shape)


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
