"""fusedops: fused PyTorch ops. Importing it registers `torch.ops.fusedops.*`."""

from __future__ import annotations

import torch  # noqa: F401  (loads libtorch, which _C is linked against)

from . import _C

__all__ = ["_C"]
