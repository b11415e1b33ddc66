"""The template op: the thing to copy for a forward-only op (CONTRIBUTING.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._core.calls import public
from .._core.checks import raise_not_tensor, refuse_grad

__all__ = ["template_scale"]


@public
def template_scale(x: Tensor, scale: float) -> Tensor:
    """Compute ``x * scale``.

    Args:
        x: Any shape and strides; float16, bfloat16, float32 or float64.
        scale: The factor.

    Returns:
        A new contiguous tensor like x.

    Raises:
        TypeError: x is not a tensor.
        RuntimeError: x requires grad while grad mode is on (the op has no backward), or has another
            dtype.
    """
    if not isinstance(x, Tensor):
        raise_not_tensor("template_scale", x=x)
    refuse_grad("template_scale", x=x)
    return torch.ops.fusedops.template_scale.default(x, scale)
