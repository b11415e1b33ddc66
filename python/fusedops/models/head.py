"""The layers behind an encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..nn import SharedMLP
from ..nn.linear import plain
from ..ops.linear import linear

if TYPE_CHECKING:
    from collections.abc import Sequence


class Head(nn.Module):
    """Layers with norm, activation and dropout, and a last linear one.

    Args:
        channels: Widths, from the input's on.
        dropout: The probability behind each layer but the last.
        bias: Whether each layer but the last has a bias; None: where there is no norm.
        last_bias: Whether the last one has.
        norm, activation, negative_slope, device, dtype: As in `fusedops.nn.SharedMLP`.
    """

    def __init__(
        self,
        channels: Sequence[int],
        dropout: Sequence[float],
        *,
        bias: Sequence[bool | None] | None = None,
        last_bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        hidden = len(channels) - 2
        if len(dropout) != hidden:
            raise ValueError(f"Head: dropout must have {hidden} value(s); got {len(dropout)}")
        super().__init__()
        biases = [None] * hidden if bias is None else list(bias)
        self.layers = nn.ModuleList(
            SharedMLP(channels[i : i + 2], bias=biases[i], device=device, dtype=dtype, **options)
            for i in range(hidden)
        )
        self.dropouts = nn.ModuleList(nn.Dropout(p) for p in dropout)
        self.last = nn.Linear(
            channels[-2], channels[-1], bias=last_bias, device=device, dtype=dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        """Rows (..., channels[0]) to (..., channels[-1])."""
        for layer, dropout in zip(self.layers, self.dropouts, strict=True):
            x = dropout(layer(x))
        if plain(self.last):
            return linear(x, self.last.weight, self.last.bias)
        y: Tensor = self.last(x)
        return y


def run_head(head: nn.Module, x: Tensor, inside: Tensor | None) -> Tensor:
    """The head on the rows of x that count, inside; others give zeros. None: all count."""
    if inside is None:
        y: Tensor = head(x)
        return y
    rows: Tensor = head(x[inside])
    return rows.new_zeros(*inside.shape, rows.shape[-1]).index_put((inside,), rows)


def of_points(x: Tensor, points: Tensor, offsets: Tensor | None) -> Tensor:
    """x (B, C), one row a cloud, for every point (B, N, D) or, with offsets, (P, D)."""
    if offsets is None:
        return x.unsqueeze(1).expand(-1, points.shape[1], -1)
    at = torch.arange(points.shape[0], device=points.device)
    cloud = torch.searchsorted(offsets[1:].contiguous(), at, right=True)
    return x[cloud.clamp(max=x.shape[0] - 1)]
