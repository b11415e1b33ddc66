"""Modules: torch.nn's interface over the fused functions."""

from __future__ import annotations

from .linear import Linear
from .mlp import MLP, GatedMLP
from .norm import LayerNorm, RMSNorm

__all__ = ["MLP", "GatedMLP", "LayerNorm", "Linear", "RMSNorm"]
