"""Modules: torch.nn's interface over the fused functions."""

from __future__ import annotations

import torch
from torch import Tensor

from ._nn_mlp import MLP, GatedMLP
from ._norm_modules import LayerNorm, RMSNorm
from .activation import activation_code
from .linear import linear

__all__ = ["MLP", "GatedMLP", "LayerNorm", "Linear", "RMSNorm"]


class Linear(torch.nn.Linear):
    """``torch.nn.Linear`` with an activation applied in the same kernel.

    A subclass: parameters, initialisation, state dict and device moves are nn.Linear's, so
    checkpoints load either way.

    Args:
        in_features: Size K of the last dimension of the input.
        out_features: Size N of the last dimension of the output.
        bias: Whether to learn an additive bias.
        device: Where the parameters are made.
        dtype: Of the parameters.
        activation: As in `fusedops.linear`; part of the module's configuration, not of its state
            dict.

    Raises:
        ValueError: The activation is unknown.

    Shape:
        Input (..., K), output (..., N).

    Example:
        >>> layer = fusedops.nn.Linear(784, 256, activation="relu")
    """

    activation: str | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        activation: str | None = None,
    ) -> None:
        activation_code(activation, op="fusedops.nn.Linear")
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to input (..., K)."""
        return linear(input, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        """nn.Linear's line, with the activation where there is one."""
        base = super().extra_repr()
        return base if self.activation is None else f"{base}, activation={self.activation!r}"
