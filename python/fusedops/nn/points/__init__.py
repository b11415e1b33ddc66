"""Layers of point clouds: shared MLPs, set abstraction, feature propagation, edge convolution."""

from __future__ import annotations

from .abstraction import GlobalSetAbstraction, SetAbstraction
from .edge import EdgeConv
from .mlp import SharedMLP
from .propagation import FeaturePropagation

__all__ = [
    "EdgeConv",
    "FeaturePropagation",
    "GlobalSetAbstraction",
    "SetAbstraction",
    "SharedMLP",
]
