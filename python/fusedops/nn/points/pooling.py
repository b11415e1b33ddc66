"""Pooling of grouped rows by torch: what layers run while a module in them has hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def run_on_edges(
    layers: Callable[[Tensor], Tensor], rows: Tensor, valid: Tensor, pool: str
) -> Tensor:
    """Layers on the rows of the edges that count, pooled over each group.

    Args:
        layers: Of rows (E, C).
        rows: (..., K, C).
        valid: (..., K) bool: the edges that count.
        pool: "max", "mean" or "sum"; a group without edges gives zeros.
    """
    y = layers(rows[valid])
    some = valid.any(-1, keepdim=True)
    fill = -torch.inf if pool == "max" else 0.0
    grouped = y.new_full((*valid.shape, y.shape[-1]), fill).index_put((valid,), y)
    if pool == "max":
        return torch.where(some, grouped.max(-2)[0], 0)
    total = grouped.sum(-2)
    return total if pool == "sum" else total / valid.sum(-1, keepdim=True).clamp_min(1)
