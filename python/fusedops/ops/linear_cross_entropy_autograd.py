"""The autograd.Function of linear_cross_entropy, and what it computes by torch functions."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.autocast import cast
from .._autograd.compose import no_autocast
from .._autograd.main_grad import deliver, main_grad_owner
from .._autograd.shared import _eager_apply
from .cross_entropy import REDUCTIONS
from .cross_entropy import _compose as compose_cross_entropy
from .linear_cross_entropy_shard import ClassShard, run_shard

_linear_cross_entropy = torch.ops.fusedops.linear_cross_entropy.default
_scale_gradient = torch.ops.fusedops.scale_gradient_.default

NAME = "linear_cross_entropy"
# ignore_index, label_smoothing, softcap, z_loss, reduction, fp32_out, chunk_size
Options = tuple[int, float, float, float, str, bool, int]


def compose(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, options: Options
) -> Tensor:
    """The loss of x (M, K) by torch, a target out of range as in cross_entropy."""
    ignore_index, label_smoothing, softcap, z_loss, reduction, fp32_out, _ = options
    logits = F.linear(x, weight, bias)
    if fp32_out:
        logits = logits.float()
    if softcap != 0:
        logits = softcap * torch.tanh(logits / softcap)
    loss = compose_cross_entropy(
        logits,
        target,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction if z_loss == 0 else "none",
    )
    if z_loss == 0:
        return loss
    counted = target != ignore_index
    loss = loss + torch.where(counted, z_loss * logits.logsumexp(1).square(), 0.0).to(loss.dtype)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / counted.sum()


def raise_shared(what: str) -> NoReturn:
    """The error of what needs the logits of all classes."""
    raise RuntimeError(f"{NAME}: {what} must not be asked for where ranks share the classes")


def in_compute_dtype(
    weight: Tensor, bias: Tensor | None, compute: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias as autocast wants them; None: as they are."""
    if compute is None:
        return weight, bias
    return cast(weight, compute), None if bias is None else cast(bias, compute)


def run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    dloss: Tensor | None,
    options: Options,
    needs: tuple[bool, bool, bool],
    dweight_fp32: bool,
    allow_tf32: bool,
    shard: ClassShard | None = None,
) -> tuple[Tensor, ...]:
    """The op: (loss, scale, dx, dweight, dbias)."""
    if shard is not None:
        given = (x, weight, bias, target, dloss)
        return run_shard(*given, options, needs, dweight_fp32, allow_tf32, shard)
    *numbers, reduction, fp32_out, chunk_size = options
    result: tuple[Tensor, ...] = _linear_cross_entropy(
        x,
        weight,
        bias,
        target,
        dloss,
        *numbers,
        REDUCTIONS[reduction],
        fp32_out,
        chunk_size,
        *needs,
        dweight_fp32,
        allow_tf32,
    )
    return result


class LinearCrossEntropyFunction(torch.autograd.Function):
    """(x (M, K), weight, bias, target (M,), options, allow_tf32, compute, shard) -> loss.

    The loss of one number comes with its gradients, from the same logits; backward multiplies them
    by what arrives at the loss. Without a reduction, and in a second backward through the same
    graph, backward forms the logits again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        options: Options,
        allow_tf32: bool,
        compute: torch.dtype | None,
        shard: ClassShard | None,
    ) -> Tensor:
        w, b = in_compute_dtype(weight, bias, compute)
        needs = ctx.needs_input_grad[:3]
        owner = main_grad_owner(NAME, weight) if needs[1] else None
        dweight_fp32 = owner is not None or (w is not weight and weight.dtype is torch.float32)
        with_loss = options[4] != "none"
        loss, scale, *gradients = run(
            x,
            w,
            b,
            target,
            None,
            options,
            needs if with_loss else (False, False, False),
            dweight_fp32,
            allow_tf32,
            shard,
        )
        ctx.options = (options, allow_tf32, compute, dweight_fp32, owner, shard)
        ctx.gradients = None
        kept: list[Tensor] = []
        if with_loss and torch.compiler.is_compiling():
            kept = [scale, *gradients]
        elif with_loss:
            ctx.gradients = [scale, *gradients]
        ctx.save_for_backward(x, weight, bias, target, *kept)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> Any:
        x, weight, bias, target, *kept = ctx.saved_tensors
        options, allow_tf32, compute, dweight_fp32, owner, shard = ctx.options
        needs = ctx.needs_input_grad[:3]
        rest = (None,) * 5
        if torch.is_grad_enabled():
            return *_composed_gradients(x, weight, bias, target, dloss, ctx), *rest
        if kept:
            scale, *gradients = kept
            factor = dloss.to(scale.dtype) * scale
            gradients = [(g * factor).to(g.dtype) for g in gradients]
        elif ctx.gradients is not None:
            # NOTE: taken out: they become somebody's .grad, and are changed in place.
            (scale, *gradients), ctx.gradients = ctx.gradients, None
            for gradient in gradients:
                if gradient.numel() > 0:
                    _scale_gradient(gradient, dloss, scale)
        else:
            weight, bias = in_compute_dtype(weight, bias, compute)
            gradients = run(
                x, weight, bias, target, dloss, options, needs, dweight_fp32, allow_tf32, shard
            )[2:]
        dx, dw, db = (g if need else None for g, need in zip(gradients, needs, strict=True))
        if owner is not None:
            assert dw is not None
            dw = deliver(NAME, owner, dw)
        return dx, dw, db, *rest


def _composed_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, dloss: Tensor, ctx: Any
) -> list[Tensor | None]:
    """Gradients of x, weight and bias that can be differentiated again."""
    options, _, compute, _, _, shard = ctx.options
    if shard is not None:
        raise_shared("gradients of gradients")
    inputs = (x, weight, bias)
    wanted = [t for t, need in zip(inputs, ctx.needs_input_grad, strict=False) if need]
    with no_autocast(dloss):
        w, b = in_compute_dtype(weight, bias, compute)
        loss = compose(x, w, b, target, options)
        found = iter(torch.autograd.grad(loss, wanted, dloss, create_graph=True))
    return [next(found) if need else None for need in ctx.needs_input_grad[:3]]


linear_cross_entropy_eager = _eager_apply(LinearCrossEntropyFunction)
