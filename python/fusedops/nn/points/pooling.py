"""Pooling of grouped rows by torch: what layers run while a module in them has hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..._core.precision import is_autocast_on
from .mlp import SharedMLP

if TYPE_CHECKING:
    from torch import Tensor, nn


def in_dtype_of(layers: nn.Module, rows: Tensor) -> Tensor:
    """Rows as the layers take them: in the dtype of their first parameter of floats.

    As they are where autocast is on, which casts them, and where there is no such parameter.
    """
    if is_autocast_on(rows.device.type):
        return rows
    for parameter in layers.parameters():
        if parameter.is_floating_point():
            return rows.to(parameter.dtype)
    return rows


def in_clouds(x: Tensor, lengths: Tensor | None, offsets: Tensor | None) -> Tensor | None:
    """(B, N) or (P,) bool: whether a row of x (B, N, C) or (P, C) is in a cloud; None: all are."""
    at = torch.arange(x.shape[-2], device=x.device)
    if offsets is not None:
        return (at >= offsets[0]) & (at < offsets[-1])
    return None if lengths is None else at < lengths[:, None]


def run_on_points(layers: Any, x: Tensor, inside: Tensor | None = None) -> Tensor:
    """Layers on x (B, N, C), cast to their dtype; another module than a `SharedMLP` gets rows.

    inside, (B, N) or (P,) bool: the rows that count; others give zeros.
    """
    x = in_dtype_of(layers, x)
    if inside is not None:
        some: Tensor = layers(x[inside])
        return some.new_zeros(*inside.shape, some.shape[-1]).index_put((inside,), some)
    if isinstance(layers, SharedMLP):
        y: Tensor = layers(x)
        return y
    rows: Tensor = layers(x.flatten(0, -2))
    return rows.view(*x.shape[:-1], rows.shape[-1])


def run_on_edges(layers: Any, rows: Tensor, valid: Tensor, pool: str) -> Tensor:
    """Layers on the rows of the edges that count, pooled over each group.

    Args:
        layers: A module of rows (E, C).
        rows: (..., K, C); cast to the layers' dtype.
        valid: (..., K) bool: the edges that count.
        pool: "max", "mean" or "sum"; a group without edges gives zeros.
    """
    y = layers(in_dtype_of(layers, rows)[valid])
    some = valid.any(-1, keepdim=True)
    fill = -torch.inf if pool == "max" else 0.0
    grouped = y.new_full((*valid.shape, y.shape[-1]), fill).index_put((valid,), y)
    if pool == "max":
        return torch.where(some, grouped.max(-2)[0], 0)
    total = grouped.sum(-2)
    return total if pool == "sum" else total / valid.sum(-1, keepdim=True).clamp_min(1)
