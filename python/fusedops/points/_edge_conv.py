"""One layer over the edges of points among themselves in a few kernels: EdgeConv of one layer.

With W = [W_d, W_c] it is y = u_j + v_i, u = W_d f and v = (W_c - W_d) f, so that one pass over the
edges gathers u alone, for maxima and statistics; backward, the sums over the edges to a point and
of its group are closed forms but for the maxima's gradients (csrc/cuda/points/edges/edge_conv.cuh).
16-bit types on CUDA, batch norm or none, a maximum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._autograd.compose import no_autocast
from .._autograd.shared import distinct, needs_grad
from . import _edge_composed, _edge_fused
from ._edge_backward import norm_grads
from ._edge_input import EdgeInput, EdgeLayer, PointProduct, plain_product, product_by_point
from ._edge_problem import Norms, Plan, parameters_of
from .norms import BatchNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

_ops = torch.ops.fusedops
_CHANNELS = 8  # a multiple of it


def supports(
    features: Tensor,
    weight: Tensor,
    idx: Tensor,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    pool: str,
) -> bool:
    """Whether `edge_conv` has kernels for the call; weight: (C, 2 F)."""
    if len(layers) != 1 or weight.shape[0] % _CHANNELS != 0:
        return False
    product = PointProduct(features, weight[:, : features.shape[2]])
    given = EdgeInput(product, None, None, None, None, idx, weight.dtype)
    return _edge_fused.supports(given, layers, activation, negative_slope, pool)


def _stacked(weight: Tensor) -> Tensor:
    """(2 C, F) of (C, 2 F): W_d, then W_c."""
    return weight.unflatten(1, (2, -1)).transpose(0, 1).flatten(0, 1)


def _unstacked(weight: Tensor) -> Tensor:
    return weight.unflatten(0, (2, -1)).transpose(0, 1).flatten(1)


def _pooled(
    plan: Plan, features: Tensor, weight: Tensor, idx: Tensor, norms: Norms, infer: bool
) -> tuple[Tensor, ...]:
    """(products, affine, pooled activations, maxima, winners, sums by group, statistics)."""
    like = features.new_empty(0)
    products = plain_product(features, weight)
    _, _, affine = parameters_of(plan, (), norms, None, None, like)
    batch = plan.training[0]
    out, best, which, totals, normed, stats = _ops.edge_conv_forward_(
        products, idx, affine, like, plan.last_slope, infer, batch, plan.eps[0]
    )
    if batch:
        affine = normed
    if not infer:
        out = _ops.edge_pool_forward(best, which, affine, like, plan.last_slope)
    return products, affine, out, best, which, totals, stats


class EdgeConvMax(torch.autograd.Function):
    """(features, weight, idx, plan, one of each `Norms`) -> pooled activations, statistics."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, idx: Tensor, plan: Plan, *norms: Tensor | None
    ) -> tuple[Tensor, ...]:
        stacked, given = _stacked(weight), Norms(*((t,) for t in norms))
        kept = _pooled(plan, features, stacked, idx, given, False)
        products, affine, out, best, which, totals, stats = kept
        ctx.save_for_backward(
            features, weight, idx, *norms, stacked, products, affine, best, which, totals, stats
        )
        ctx.plan = plan
        ctx.mark_non_differentiable(stats)
        ctx.set_materialize_grads(False)
        return out, stats

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
        with no_autocast(dout):
            if torch.is_grad_enabled():
                return _composed_backward(ctx, dout)
            return _backward(ctx, dout)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    features, _, idx, *rest = ctx.saved_tensors
    norms, (stacked, products, affine, best, which, totals, stats) = rest[:5], rest[5:]
    plan, needs = ctx.plan, ctx.needs_input_grad
    batch = plan.training[0]
    winners, grads, dense = _ops.edge_pool_backward(
        dout, best, which, affine, stats if batch else None, plan.last_slope
    )
    dfeatures = dweight = None
    if needs[0] or needs[1]:
        entries, ranges = _ops.edge_lists(idx, features.shape[1])
        dproducts, used = _ops.edge_conv_backward(
            products, idx, winners, totals if batch else None, dense if batch else None, entries,
            ranges, features,
        )  # fmt: skip
        if needs[0]:
            dfeatures = dproducts @ stacked
        if needs[1]:
            # NOTE: a point in no edge may hold anything, even NaN.
            # torch does not batch flatten in a backward.
            count = used.numel()
            rows = torch.where(used.unsqueeze(-1), features, 0).reshape(count, features.shape[-1])
            dweight = _unstacked(dproducts.reshape(count, dproducts.shape[-1]).t() @ rows)
    return (dfeatures, dweight, None, None, *norm_grads(plan, norms, {0: grads}))


def _composed_backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    """A backward that can be differentiated again: that of the composed layer."""
    plan, needs = ctx.plan, ctx.needs_input_grad
    saved = ctx.saved_tensors
    # NOTE: aliases, because inputs may be made of each other: what leads from one to another is for
    # the engine to follow.
    features, weight, idx, *norms = (_edge_fused.alias(t) for t in saved[:8])
    assert features is not None
    assert weight is not None
    assert idx is not None
    gamma, beta, bias, mean, var = norms
    norm = BatchNorm(gamma, beta, mean, var, plan.training[0], eps=plan.eps[0])
    size = features.shape[2]
    rows = product_by_point(features, weight[:, :size])
    group_rows = product_by_point(features, weight[:, size:]) - rows
    given = EdgeInput(rows, group_rows, None, None, None, idx, dout.dtype)
    layer = EdgeLayer(None, bias, norm if plan.has_norm[0] else None)
    name = {0.0: "relu", 1.0: "none"}.get(plan.last_slope, "leaky_relu")
    out = _edge_composed.edge_mlp(given, [layer], name, plan.last_slope, True, "max")
    inputs = [features, weight, None, None, *norms]
    wanted = [t for t, need in zip(inputs, needs, strict=True) if need]
    grads = iter(torch.autograd.grad(out, wanted, dout, create_graph=True, allow_unused=True))
    return tuple(next(grads) if need else None for need in needs)


def edge_conv(
    features: Tensor,
    weight: Tensor,
    idx: Tensor,
    layer: EdgeLayer,
    activation: str,
    negative_slope: float,
    last_activation: bool,
) -> Tensor:
    """(B, N, C) of features (B, N, F) and weight (C, 2 F), in a call that `supports` knows."""
    with no_autocast(idx):
        slope = _edge_fused.slope_of(activation, negative_slope) if last_activation else 1.0
        norm = layer.norm if isinstance(layer.norm, BatchNorm) else None
        training = norm is not None and norm.training
        plan = Plan(
            (weight.shape[0],), (training,), (0.0 if norm is None else norm.eps,),
            (norm is not None,), slope, slope, True, False, idx.shape[0],
        )  # fmt: skip
        running = norm is not None and not training
        parameters = (
            None if norm is None else norm.weight,
            None if norm is None else norm.bias,
            layer.bias,
            norm.running_mean if running and norm is not None else None,
            norm.running_var if running and norm is not None else None,
        )
        out: Tensor
        if needs_grad(features, weight, *parameters):
            out, stats = EdgeConvMax.apply(*distinct(features, weight, idx, plan, *parameters))
        else:
            norms = Norms(*((t,) for t in parameters))
            found = _pooled(plan, features, _stacked(weight), idx, norms, not training)
            out, stats = found[2], found[-1]
        if training:
            _edge_fused.update_running([layer], [stats])
        return out
