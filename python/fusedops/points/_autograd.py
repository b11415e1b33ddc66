"""The grouping ops as autograd.Functions, entered only when some input needs a gradient.

Grouping is linear, and its backward is the transposed op, whose backward is grouping again: so
derivatives of any order run on the fused kernels. Interpolation is linear in features and in
weights; a second derivative of it is composed of grouping and torch functions. torch.func
transforms and forward-mode AD, to which the ops are opaque, see the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.shared import distinct, needs_grad, sees_torch_functions_only
from ..reference import points as reference

_ops = torch.ops.fusedops
_group = _ops.group.default
_group_backward = _ops.group_backward.default
_interpolate = _ops.interpolate.default
_interpolate_backward = _ops.interpolate_backward.default


class Group(torch.autograd.Function):
    """(features, idx, points, centers) -> [points[idx] - centers, features[idx]]."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor | None,
        idx: Tensor,
        points: Tensor | None,
        centers: Tensor | None,
    ) -> Tensor:
        out: Tensor = _group(features, idx, points, centers)
        ctx.save_for_backward(idx)
        like = points if features is None else features
        assert like is not None
        ctx.rows = like.shape[1]
        ctx.dim = 0 if points is None else points.shape[2]
        ctx.point_dtype = None if points is None else points.dtype
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        (idx,) = ctx.saved_tensors
        need_features, _, need_points, need_centers = ctx.needs_input_grad
        dim = ctx.dim
        dfeatures = dpoints = dcenters = None
        if need_features:
            dfeatures = scatter(dout, idx, ctx.rows, dim, dout.shape[3] - dim, dout.dtype)
        if need_points:
            dpoints = scatter(dout, idx, ctx.rows, 0, dim, ctx.point_dtype)
        if need_centers:
            valid = ((idx >= 0) & (idx < ctx.rows)).unsqueeze(-1)
            wide = torch.float64 if dout.dtype == torch.float64 else torch.float32
            sums = torch.where(valid, dout.narrow(-1, 0, dim), 0).sum(2, dtype=wide)
            dcenters = -sums.to(ctx.point_dtype)
        return dfeatures, None, dpoints, dcenters


class Scatter(torch.autograd.Function):
    """(dout, idx, n, first, count, fp32) -> the sums of dout by idx: the transpose of Group."""

    @staticmethod
    def forward(
        ctx: Any, dout: Tensor, idx: Tensor, n: int, first: int, count: int, fp32: bool
    ) -> Tensor:
        ctx.save_for_backward(idx)
        ctx.dout_shape, ctx.dout_dtype, ctx.first = dout.shape, dout.dtype, first
        out: Tensor = _group_backward(dout, idx, n, first, count, fp32)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (idx,) = ctx.saved_tensors
        part = group(grad.to(ctx.dout_dtype), idx)
        after = ctx.dout_shape[3] - ctx.first - part.shape[3]
        return torch.nn.functional.pad(part, (ctx.first, after)), None, None, None, None, None


def group(
    features: Tensor | None,
    idx: Tensor,
    points: Tensor | None = None,
    centers: Tensor | None = None,
) -> Tensor:
    """[points[idx] - centers, features[idx]] for idx (B, M, K)."""
    if sees_torch_functions_only(features, idx, points, centers):
        return reference.group(features, idx, points, centers)
    if needs_grad(features, points, centers):
        result: Tensor = Group.apply(*distinct(features, idx, points, centers))
        return result
    return _group(features, idx, points, centers)


def scatter(
    dout: Tensor, idx: Tensor, n: int, first: int, count: int, dtype: torch.dtype
) -> Tensor:
    """Sums of channels first .. first + count of dout by idx, in dtype."""
    fp32 = dtype == torch.float32
    if sees_torch_functions_only(dout, idx):
        result = reference.scatter(dout[..., first : first + count].to(dtype), idx, n)
    elif needs_grad(dout):
        result = Scatter.apply(dout, idx, n, first, count, fp32)
    else:
        result = _group_backward(dout, idx, n, first, count, fp32)
    return result.to(dtype)


class Interpolate(torch.autograd.Function):
    """(features, idx, weights) -> sum over k of weights * features[idx]."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(features, idx, weights)
        out: Tensor = _interpolate(features, idx, weights)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        features, idx, weights = ctx.saved_tensors
        need_features, _, need_weights = ctx.needs_input_grad
        if needs_grad(dout, features, weights):
            return _compose_interpolate_backward(
                dout, features, idx, weights, need_features, need_weights
            )
        dfeatures, dweights = _interpolate_backward(
            dout, features, idx, weights, need_features, need_weights
        )
        return dfeatures if need_features else None, None, dweights if need_weights else None


def _compose_interpolate_backward(
    dout: Tensor,
    features: Tensor,
    idx: Tensor,
    weights: Tensor,
    need_features: bool,
    need_weights: bool,
) -> tuple[Tensor | None, None, Tensor | None]:
    dfeatures = dweights = None
    spread = dout.unsqueeze(2)
    if need_features:
        entries = spread * weights.unsqueeze(-1)
        count = features.shape[2]
        dfeatures = scatter(entries, idx, features.shape[1], 0, count, features.dtype)
    if need_weights:
        rows = group(features, idx)
        dweights = (rows.to(weights.dtype) * spread).sum(-1).to(weights.dtype)
    return dfeatures, None, dweights


def interpolate(features: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
    """Sum over k of weights * features[idx] for idx (B, M, K)."""
    if sees_torch_functions_only(features, idx, weights):
        return reference.interpolate(features, idx, weights)
    if needs_grad(features, weights):
        result: Tensor = Interpolate.apply(*distinct(features, idx, weights))
        return result
    return _interpolate(features, idx, weights)
