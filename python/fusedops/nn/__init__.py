"""Modules: torch.nn's interface over the fused functions, and the layers of point clouds."""

from __future__ import annotations

from .conv import ConvBNAct
from .linear import Linear
from .mlp import MLP, GatedMLP
from .norm import LayerNorm, RMSNorm
from .points import (
    EdgeConv,
    FeaturePropagation,
    GlobalSetAbstraction,
    SetAbstraction,
    SharedMLP,
)
from .pre_norm import PreNorm

__all__ = [
    "MLP",
    "ConvBNAct",
    "EdgeConv",
    "FeaturePropagation",
    "GatedMLP",
    "GlobalSetAbstraction",
    "LayerNorm",
    "Linear",
    "PreNorm",
    "RMSNorm",
    "SetAbstraction",
    "SharedMLP",
]
