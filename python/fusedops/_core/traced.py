"""Torch functions in place of our ops while torch.compile traces: nothing of ours is a wall there.

Inductor fuses what stands around a product into plain ATen, and not into an op that it cannot see
into; `fusedops.inductor` puts our kernels back where they pay. Arguments that torch's functions
would treat otherwise keep the op, whose errors name them, and so do exported programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def is_exporting() -> bool:
    """Whether torch.export traces this."""
    return bool(torch.compiler.is_exporting())


# NOTE: torch.compiler.assume_constant_result without its import of torch._dynamo. Dynamo takes
# is_exporting() itself for true wherever it traces.
is_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_traced() -> bool:
    """Whether torch.compile traces this, not torch.export."""
    return torch.compiler.is_dynamo_compiling() and not is_exporting()


def _dtype(tensor: Tensor, compute: torch.dtype | None) -> torch.dtype:
    """The dtype that autocast makes of a tensor's, as `cast` does."""
    keeps = compute is None or tensor.dtype is torch.float64 or not tensor.is_floating_point()
    return tensor.dtype if keeps else compute


def alike(x: Tensor, *others: Tensor | None) -> bool:
    """Whether all tensors have x's device and, under autocast or without, its floating dtype."""
    device = x.device.type
    autocast = device != "meta" and torch.is_autocast_enabled(device)
    compute = torch.get_autocast_dtype(device) if autocast else None
    dtype = _dtype(x, compute)
    return dtype in _FLOATING and all(
        t is None or (t.device == x.device and _dtype(t, compute) is dtype) for t in others
    )


def projects(columns: Any, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether weight (N, columns) and bias (N,) are those of a linear layer."""
    if weight.dim() != 2 or weight.shape[1] != columns:
        return False
    return bias is None or (bias.dim() == 1 and bias.shape[0] == weight.shape[0])
