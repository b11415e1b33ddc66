"""cross_entropy: the loss and its gradient straight from the logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.compose import no_autocast
from .._autograd.shared import _eager_apply, is_subclass, sees_torch_functions_only
from .._core.calls import public
from .._core.checks import raise_not_tensor
from .._core.dtensor import is_dtensor
from .softmax import HALF_CODES

__all__ = ["cross_entropy"]

_cross_entropy = torch.ops.fusedops.cross_entropy.default
_cross_entropy_backward = torch.ops.fusedops.cross_entropy_backward.default
_is_grad_enabled = torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _compose(logits: Tensor, target: Tensor, *, ignore_index: int, **options: Any) -> Tensor:
    """F.cross_entropy, where on the GPU a target out of range makes its row NaN and no error."""
    dim = 1 if logits.dim() > 1 else 0
    ignored = target == ignore_index
    if logits.device.type == "cpu":
        return F.cross_entropy(logits, target.masked_fill(ignored, -100), **options)
    outside = ~ignored & ((target < 0) | (target >= logits.shape[dim]))
    poison = torch.where(outside, torch.nan, 1.0).to(logits.dtype).unsqueeze(dim)
    safe = target.masked_fill(ignored, -100).masked_fill(outside, 0)
    return F.cross_entropy(logits * poison, safe, **options)


class CrossEntropyFunction(torch.autograd.Function):
    """(logits (M, V), target (M,), ignore_index, label_smoothing, reduction, fp32_out) -> loss."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        ignore_index: int,
        label_smoothing: float,
        reduction: str,
        fp32_out: bool,
    ) -> Tensor:
        code = REDUCTIONS[reduction]
        loss, lse, scale = _cross_entropy(
            logits, target, ignore_index, label_smoothing, code, fp32_out
        )
        ctx.save_for_backward(logits, target, lse, scale)
        ctx.options = (ignore_index, label_smoothing, reduction)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> Any:
        logits, target, lse, scale = ctx.saved_tensors
        ignore_index, label_smoothing, reduction = ctx.options
        if not torch.is_grad_enabled():
            code = REDUCTIONS[reduction]
            dlogits = _cross_entropy_backward(
                dloss, logits, target, lse, scale, ignore_index, label_smoothing, code
            )
            return dlogits, None, None, None, None, None
        with no_autocast(dloss):
            loss = _compose(
                logits.to(dloss.dtype),
                target,
                ignore_index=ignore_index,
                label_smoothing=label_smoothing,
                reduction=reduction,
            )
            (dlogits,) = torch.autograd.grad(loss, logits, dloss, create_graph=True)
        return dlogits, None, None, None, None, None


_eager = _eager_apply(CrossEntropyFunction)


def loss_of_rows(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    fp32_out: bool = False,
) -> Tensor:
    """The loss of logits (M, V), by the op; fp32_out: float32 from half logits, unrounded."""
    if _is_grad_enabled() and logits.requires_grad:
        apply = CrossEntropyFunction.apply if _is_dynamo_compiling() else _eager
        loss: Tensor = apply(logits, target, ignore_index, label_smoothing, reduction, fp32_out)
        return loss
    code = REDUCTIONS[reduction]
    return _cross_entropy(logits, target, ignore_index, label_smoothing, code, fp32_out)[0]


def _as_matrix(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(V,), (M, V) or (M, V, ...) logits as (M, V), with targets to match."""
    if logits.dim() == 0:
        raise RuntimeError("cross_entropy: logits must have 1 dimension at least; got shape ()")
    expected = logits.shape[:1] + logits.shape[2:] if logits.dim() > 1 else ()
    if target.shape != expected:
        raise RuntimeError(
            f"cross_entropy: target must have shape {tuple(expected)} to match logits "
            f"{tuple(logits.shape)}; got {tuple(target.shape)}"
        )
    if logits.dim() > 2:
        logits = logits.movedim(1, -1)
    return logits.reshape(target.numel(), logits.shape[-1]), target.reshape(-1)


def _of_subclass(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> Tensor:
    """torch's loss, which loss_parallel is a mode of."""
    # NOTE: of a DTensor's rows torch takes the mean of each rank's means, whatever they ignore.
    mean = reduction == "mean"
    loss = F.cross_entropy(
        logits,
        target,
        ignore_index=ignore_index,
        reduction="sum" if mean else reduction,
        label_smoothing=label_smoothing,
    )
    return loss / (target != ignore_index).sum() if mean else loss


@public
def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the cross entropy between logits and class indices.

    Loss and log-sum-exp come from one read of the logits; the backward reads them once more and
    writes their gradient. No probabilities are stored. The loss of a row is
    ``(1 - s) (lse - x[target]) + s (lse - mean(x))`` with ``s = label_smoothing``.

    Args:
        logits: (M, V), (V,) or (M, V, ...), as in ``F.cross_entropy``; float16, bfloat16, float32
            or float64. V may be any number, rows may lie apart.
        target: Class indices, int64, of shape (M,), () or (M, ...).
        ignore_index: Rows with this target count for nothing.
        reduction: "mean" over the rows that count, "sum" or "none".
        label_smoothing: From 0 to 1.

    Returns:
        The loss in the logits' dtype, a scalar or of target's shape for "none". Rows are summed in
        a fixed order.

    Raises:
        TypeError: An argument is not a tensor.
        ValueError: The reduction is unknown.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.
        IndexError: On the CPU, a target is neither a class nor ignore_index.

    On the GPU a target outside of [0, V) that is not ignore_index gives NaN, for the loss and for
    the row's gradient: nothing waits for the GPU to look. Under autocast the loss of half logits is
    float32, as torch's. Class weights and class probabilities as targets are not supported.

    The gradient takes a row's log-sum-exp as one fp32 number (fp64 for float64): its relative error
    is about ``2**-24`` times the largest logit's magnitude.

    Example:
        >>> loss = fusedops.cross_entropy(logits, labels, label_smoothing=0.1)
    """
    if not (isinstance(logits, Tensor) and isinstance(target, Tensor)):
        raise_not_tensor("cross_entropy", logits=logits, target=target)
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        raise ValueError(
            f"cross_entropy: reduction must be one of {', '.join(REDUCTIONS)}; got {reduction!r}"
        )
    if type(logits) is not Tensor and (is_dtensor(logits) or is_subclass(logits)):
        return _of_subclass(logits, target, ignore_index, label_smoothing, reduction)
    if sees_torch_functions_only():
        return _compose(
            logits,
            target,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
    fp32_out = (
        _any_autocast()
        and logits.dtype in HALF_CODES
        and logits.device.type != "meta"  # has no autocast
        and torch.is_autocast_enabled(logits.device.type)
    )
    shape = target.shape
    if logits.dim() != 2:
        logits, target = _as_matrix(logits, target)
    loss = loss_of_rows(logits, target, ignore_index, label_smoothing, reduction, fp32_out)
    return loss.reshape(shape) if reduction == "none" else loss
