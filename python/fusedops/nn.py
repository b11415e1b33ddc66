"""Modules: torch.nn's interface over the fused functions."""

from __future__ import annotations

from ._nn_linear import Linear
from ._nn_mlp import MLP, GatedMLP
from ._norm_modules import LayerNorm, RMSNorm

__all__ = ["MLP", "GatedMLP", "LayerNorm", "Linear", "RMSNorm"]
