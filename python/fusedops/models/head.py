"""The layers behind an encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..nn import SharedMLP

if TYPE_CHECKING:
    from collections.abc import Sequence


class Head(nn.Module):
    """Layers with norm, activation and dropout, and a last one with a bias and nothing else.

    Args:
        channels: Widths, from the input's on.
        dropout: The probability behind each layer but the last.
        bias: Whether each layer but the last has a bias; None: where there is no norm.
        norm, activation, negative_slope, device, dtype: As in `fusedops.nn.SharedMLP`.
    """

    def __init__(
        self,
        channels: Sequence[int],
        dropout: Sequence[float],
        *,
        bias: Sequence[bool | None] | None = None,
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
        self.last = nn.Linear(channels[-2], channels[-1], device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Rows (..., channels[0]) to (..., channels[-1])."""
        for layer, dropout in zip(self.layers, self.dropouts, strict=True):
            x = dropout(layer(x))
        y: Tensor = self.last(x)
        return y
