"""The layers in plain torch, as models write them: gathered rows, linear, batch norm, max."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

LEAK = 0.2  # of DGCNN's activation


def gather(x: Tensor, idx: Tensor) -> Tensor:
    """(B, ..., C): the rows idx (B, ...) of x (B, N, C)."""
    batch = torch.arange(len(x), device=x.device).view(-1, *[1] * (idx.ndim - 1))
    return x[batch, idx]


def grouped(xyz: Tensor, features: Tensor | None, centers: Tensor, idx: Tensor,
            dtype: torch.dtype) -> Tensor:  # fmt: skip
    """(B, M, K, 3 + F): offsets to the centre, formed before they are rounded, and features."""
    offsets = (gather(xyz, idx) - centers[:, :, None]).to(dtype)
    return offsets if features is None else torch.cat([offsets, gather(features, idx)], -1)


def edges(x: Tensor, idx: Tensor) -> Tensor:
    """(B, N, K, 2 F): f_j - f_i, f_i."""
    middle = x[:, :, None].expand(-1, -1, idx.shape[-1], -1)
    return torch.cat([gather(x, idx) - middle, middle], -1)


def batch_norm(y: Tensor, norm: Sequence[Tensor], training: bool) -> Tensor:
    """Over all rows of y (..., C); norm is weight, bias, running mean and variance."""
    weight, bias, mean, variance = norm
    flat = F.batch_norm(y.flatten(0, -2), mean, variance, weight, bias, training)
    return flat.view(y.shape)


def layers(
    y: Tensor,
    weights: Sequence[Tensor],
    norms: Sequence[Sequence[Tensor]],
    training: bool,
    leak: float = 0.0,
) -> Tensor:
    """Linear layers without bias, each with its batch norm and a ReLU with this slope below 0."""
    for weight, norm in zip(weights, norms, strict=True):
        y = batch_norm(F.linear(y, weight), norm, training)
        y = F.leaky_relu(y, leak) if leak else F.relu(y)
    return y
