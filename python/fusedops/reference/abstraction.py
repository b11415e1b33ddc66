"""Layers over grouped points, with the grouped tensor and every layer of it written to memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .activation import activate
from .neighbours import knn
from .points import group, rows

if TYPE_CHECKING:
    from collections.abc import Sequence


def edge_norm(y: Tensor, valid: Tensor, norm: Any) -> Tensor:
    """A `BatchNorm` or `LayerNorm` of fusedops.points, or None, of y (..., C).

    Statistics of the batch are torch's, over the rows where valid (...); others become 0.
    """
    if norm is None:
        return y
    if not hasattr(norm, "training"):
        return F.layer_norm(y, y.shape[-1:], norm.weight, norm.bias, norm.eps)
    statistics = (norm.running_mean, norm.running_var)
    weight = norm.weight
    if weight is None and norm.bias is not None:  # torch's CUDA kernel has no bias gradient then
        weight = torch.ones_like(norm.bias)
    parameters = (weight, norm.bias)
    if not norm.training:
        flat = y.flatten(0, -2)
        return F.batch_norm(flat, *statistics, *parameters, eps=norm.eps).reshape(y.shape)
    momentum = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        momentum = 1 / int(norm.num_batches_tracked) if momentum is None else momentum
    if not valid.any():
        return torch.where(valid.unsqueeze(-1), y, 0)
    z = F.batch_norm(y[valid], *statistics, *parameters, True, float(momentum or 0), norm.eps)
    return torch.zeros_like(y, dtype=z.dtype).index_put((valid,), z)


def _activate(z: Tensor, activation: str | None, negative_slope: float) -> Tensor:
    if activation == "leaky_relu":
        return F.leaky_relu(z, negative_slope)
    # NOTE: a clamp has gradient 1 at 0, torch's relu has 0.
    return torch.relu(z) if activation == "relu" else activate(z, activation)


def edge_mlp(
    x: Tensor,
    valid: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None,
    norms: Sequence[Any] | None,
    activation: str | None,
    negative_slope: float,
    last_activation: bool,
) -> Tensor:
    """act(norm(x W^T + b)), layer by layer, of x (..., C) with rows where valid (...)."""
    last = len(weights) - 1
    for i, weight in enumerate(weights):
        y = F.linear(x, weight, None if biases is None else biases[i])
        x = edge_norm(y, valid, None if norms is None else norms[i])
        if i < last or last_activation:
            x = _activate(x, activation, negative_slope)
    return x


def pool_neighbours(z: Tensor, valid: Tensor, pool: str) -> Tensor:
    """z (B, M, K, C) where valid (B, M, K), pooled over k; 0 for a group without neighbours."""
    mask, count = valid.unsqueeze(3), valid.sum(2).unsqueeze(2)
    if z.shape[2] == 0:
        return z.sum(2)
    if pool == "max":
        highest = torch.where(mask, z, -torch.inf).max(2).values
        return torch.where(count > 0, highest, 0)
    total = torch.where(mask, z, 0).sum(2)
    return total if pool == "sum" else total / count.clamp_min(1)


def _is_row(idx: Tensor, count: int) -> Tensor:
    return (idx >= 0) & (idx < count)


def set_abstraction(
    xyz: Tensor | None,
    features: Tensor | None,
    centers: Tensor | None,
    idx: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    norms: Sequence[Any] | None = None,
    activation: str | None = "relu",
    pool: str = "max",
    *,
    negative_slope: float = 0.01,
    last_activation: bool = True,
    normalize_radius: float | None = None,
) -> Tensor:
    """(B, M, C_L) of `fusedops.points.set_abstraction`, padded clouds only."""
    parts = []
    like = features if xyz is None else xyz
    assert like is not None
    dtype = weights[0].dtype
    if xyz is not None:
        offsets = group(None, idx, xyz, centers)
        scale = 1.0 if normalize_radius is None else normalize_radius
        parts.append((offsets / scale).to(dtype))
    if features is not None:
        parts.append(rows(features, idx))
    valid = _is_row(idx, like.shape[1])
    z = edge_mlp(
        torch.cat(parts, -1),
        valid,
        weights,
        biases,
        norms,
        activation,
        negative_slope,
        last_activation,
    )
    return pool_neighbours(z, valid, pool).to(dtype)


def edge_conv(
    features: Tensor,
    idx: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    norms: Sequence[Any] | None = None,
    activation: str | None = "leaky_relu",
    pool: str = "max",
    *,
    negative_slope: float = 0.2,
    last_activation: bool = True,
) -> Tensor:
    """(B, N, C_L) of `fusedops.points.edge_conv`, padded clouds only."""
    own = features.unsqueeze(2)
    x = torch.cat([rows(features, idx) - own, own.expand(-1, -1, idx.shape[2], -1)], -1)
    valid = _is_row(idx, features.shape[1])
    z = edge_mlp(x, valid, weights, biases, norms, activation, negative_slope, last_activation)
    return pool_neighbours(z, valid, pool).to(features.dtype)


def feature_propagation(
    xyz: Tensor,
    known_xyz: Tensor,
    features: Tensor | None,
    known_features: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    norms: Sequence[Any] | None = None,
    activation: str | None = "relu",
    *,
    k: int = 3,
    order: str = "known_first",
    power: int = 2,
    negative_slope: float = 0.01,
    last_activation: bool = True,
    lengths: Tensor | None = None,
    known_lengths: Tensor | None = None,
) -> Tensor:
    """(B, N, C_L) of `fusedops.points.feature_propagation`, padded clouds only."""
    idx, dist2 = knn(known_xyz, xyz, k, lengths=known_lengths, query_lengths=lengths)
    inverse = 1 / ((dist2 if power == 2 else dist2.sqrt()) + 1e-8)
    inverse = torch.where(idx >= 0, inverse, 0)
    total = inverse.sum(2, keepdim=True)
    blend = (inverse / torch.where(total > 0, total, 1)).unsqueeze(3)
    known = (blend * rows(known_features, idx)).sum(2).to(known_features.dtype)
    parts = [known] if features is None else [known, features]
    x = torch.cat(parts if order == "known_first" else parts[::-1], -1)
    sizes = xyz.shape[1] if lengths is None else lengths.unsqueeze(1)
    valid = (torch.arange(xyz.shape[1], device=xyz.device) < sizes).expand(xyz.shape[:2])
    z = edge_mlp(x, valid, weights, biases, norms, activation, negative_slope, last_activation)
    return torch.where(valid.unsqueeze(2), z, 0).to(known_features.dtype)
