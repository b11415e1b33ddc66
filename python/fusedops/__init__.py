"""fusedops: fused PyTorch ops. Importing it registers `torch.ops.fusedops.*`."""

from __future__ import annotations

import torch  # noqa: F401  (loads libtorch, which _C is linked against)

from . import _C, nn, points, reference
from .explain import explain
from .fuse import FuseReport, fuse
from .linear import linear, matmul
from .mlp import gated_mlp, mlp
from .tune import tune

__all__ = [
    "_C",
    "FuseReport",
    "explain",
    "fuse",
    "gated_mlp",
    "linear",
    "matmul",
    "mlp",
    "nn",
    "points",
    "reference",
    "tune",
]
