"""linear_cross_entropy: the last layer of a language model and its loss, without the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._autograd.autocast import cast
from .._autograd.shared import distinct, sees_torch_functions_only
from .._core.calls import public
from .._core.checks import raise_not_tensor
from .cross_entropy import REDUCTIONS
from .linear import _any_autocast, _autocast_dtype, _float32, _tf32_allowed
from .linear_cross_entropy_autograd import (
    NAME,
    LinearCrossEntropyFunction,
    compose,
    in_compute_dtype,
    linear_cross_entropy_eager,
    raise_shared,
    run,
)
from .linear_cross_entropy_shard import ClassShard, is_shared, share
from .softmax import HALF_CODES

if TYPE_CHECKING:
    from .linear_cross_entropy_autograd import Options

__all__ = ["linear_cross_entropy"]

_is_grad_enabled = torch.is_grad_enabled
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


def _as_rows(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """x (..., K) and target (...) as (M, K) and (M,)."""
    if x.dim() == 0:
        raise RuntimeError(f"{NAME}: x must have at least 1 dimension(s); got shape ()")
    if target.shape != x.shape[:-1]:
        raise RuntimeError(
            f"{NAME}: target must have shape {tuple(x.shape[:-1])} to match x {tuple(x.shape)}; "
            f"got {tuple(target.shape)}"
        )
    return x.reshape(target.numel(), x.shape[-1]), target.reshape(-1)


@public
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    chunk_size: int | None = None,
    group: Any = None,
) -> Tensor:
    """Compute ``cross_entropy(x @ weight.T + bias, target)`` without the logits of all rows.

    Rows go through in chunks. The logits of a chunk are formed once: one kernel reads them for the
    loss and puts their gradient in their place, from which the chunk's part of all gradients is
    formed at once. These wait for backward, which multiplies them by what arrives at the loss; that
    is free where it is 1, as in ``loss.backward()``. Nothing is left out or approximated.

    Args:
        x: Hidden states of shape (..., K), any number of leading dimensions (none too).
        weight: Weight of shape (V, K), as in ``torch.nn.Linear``.
        target: Class indices, int64, of shape (...).
        bias: Bias of shape (V,), or None.
        ignore_index: Rows with this target count for nothing.
        reduction: "mean" over the rows that count, "sum" or "none".
        label_smoothing: From 0 to 1.
        softcap: The logits become ``softcap * tanh(logits / softcap)``; None or 0: they stay.
        z_loss: ``z_loss * logsumexp(logits) ** 2`` is added to the loss of each row (Liger's
            lse_square_scale).
        chunk_size: Rows whose logits are in memory together. None: as many as fit 896 MiB.
        group: ProcessGroup of the ranks that share the classes: each has as many rows of weight
            and bias, in the order of the ranks, and the same x and target, whose indices are those
            of all classes. None: weight has all classes.

    Returns:
        The loss in x's dtype, a scalar or of target's shape for "none".

    Raises:
        TypeError: An argument is not a tensor.
        ValueError: The reduction is unknown.
        RuntimeError: Shapes, dtypes or devices do not fit; the message names op, argument, what was
            expected and what came.
        IndexError: On the CPU, a target is neither a class nor ignore_index.

    Dtypes, TF32 and autocast are as in `linear`, ``main_grad`` as well (from an fp32 gradient of
    its own); under autocast the loss is float32. Softmax and losses are formed in fp32 (fp64 for
    float64) from logits rounded to x's dtype, as torch's. A half weight gradient of two chunks is
    the sum of two that are rounded; one of more chunks is added up in float32, which takes twice
    the memory of the gradient. Sums have a fixed order: the same bits every time. Nothing waits for
    the GPU: there a target out of range gives NaN, as in `cross_entropy`.

    Where ranks share the classes, each forms the logits of its own, and they exchange four numbers
    for each row: the log-sum-exp is that of all classes, and every rank has the same loss. The
    gradient of x is then this rank's part of a sum, which the caller adds up over the group (in
    Megatron's terms: copy x to, or gather it from, the tensor parallel region). A DTensor weight
    with placement Shard(0) on a mesh of one dimension does all of it without a group: the loss is
    replicated and the gradient of x partial.

    Without a reduction backward forms the logits again, since it needs what arrives at each row
    first; so does a second backward through the same graph. Where nothing requires a gradient only
    the loss is formed. Gradients of any order, torch.func transforms and forward-mode AD are
    supported, those by torch's own kernels, which hold all logits; not where ranks share the
    classes.

    Example:
        >>> loss = fusedops.linear_cross_entropy(hidden, lm_head.weight, labels)
    """
    if not (
        isinstance(x, Tensor)
        and isinstance(weight, Tensor)
        and isinstance(target, Tensor)
        and (bias is None or isinstance(bias, Tensor))
    ):
        raise_not_tensor(NAME, x=x, weight=weight, target=target, bias=bias)
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        raise ValueError(
            f"{NAME}: reduction must be one of {', '.join(REDUCTIONS)}; got {reduction!r}"
        )
    shape = target.shape
    shard = None
    if is_shared(weight, group):
        (x, weight, bias, target), shard, whole = share(x, weight, bias, target, group)
    x, target = _as_rows(x, target)
    numbers = (ignore_index, label_smoothing, softcap or 0.0, z_loss)
    loss = _loss(x, weight, bias, target, numbers, reduction, chunk_size or 0, shard)
    loss = loss.reshape(shape) if reduction == "none" else loss
    return loss if shard is None else whole(loss)


def _loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    numbers: tuple[int, float, float, float],
    reduction: str,
    chunk_size: int,
    shard: ClassShard | None,
) -> Tensor:
    """The loss of x (M, K) and target (M,)."""
    traced = _is_dynamo_compiling()
    composed = sees_torch_functions_only(x, weight, bias, target)
    compute = _autocast_dtype(x) if _any_autocast() and not composed else None
    if compute is not None:
        x = cast(x, compute)
    fp32_out = compute is not None and x.dtype in HALF_CODES
    options: Options = (*numbers, reduction, fp32_out, chunk_size)
    if composed:
        if shard is not None:
            raise_shared("transforms")
        return compose(x, weight, bias, target, options)
    allow_tf32 = x.dtype is _float32 and x.is_cuda and _tf32_allowed()
    if _is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        if traced:
            x, weight, bias = distinct(x, weight, bias)
        apply = LinearCrossEntropyFunction.apply if traced else linear_cross_entropy_eager
        loss: Tensor = apply(x, weight, bias, target, options, allow_tf32, compute, shard)
        return loss
    weight, bias = in_compute_dtype(weight, bias, compute)
    needs = (False, False, False)
    return run(x, weight, bias, target, None, options, needs, False, allow_tf32, shard)[0]
