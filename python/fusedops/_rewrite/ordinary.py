"""Whether a linear layer is one that `fuse` may replace."""

from __future__ import annotations

import torch
from torch import nn as torch_nn

from .._core.checks import dtype_name
from .._core.dtensor import is_dtensor, own_class
from ..nn import Linear
from .blocks import hooked_by_others

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def reason_to_skip(module: torch_nn.Linear) -> str | None:
    """Why a linear layer must stay what it is, None where it may be replaced."""
    if own_class(module) not in (torch_nn.Linear, Linear):
        # NOTE: parametrize and weight_norm make subclasses too.
        if hasattr(module, "parametrizations"):
            return "has parametrizations"
        return "a subclass of nn.Linear may compute something else"
    if hooked_by_others(module):
        return "has hooks (weight_norm, spectral_norm and pruning are hooks too)"
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    extra = [*module._modules, *module._buffers, *(set(module._parameters) - {"weight", "bias"})]
    if extra:
        return f"has more than weight and bias: {', '.join(sorted(extra))}"
    for name in ("weight", "bias"):
        tensor = module._parameters.get(name)
        if tensor is None:
            if name == "weight":
                return "weight is not a parameter"
            continue
        if type(tensor) is not torch_nn.Parameter and not is_dtensor(tensor):
            return f"{name} is a {type(tensor).__name__}"
        if tensor.dtype not in _DTYPES:
            return f"{name} has dtype {dtype_name(tensor.dtype)}"
        if tensor.layout is not torch.strided:
            return f"{name} has layout {str(tensor.layout).removeprefix('torch.')}"
    return None
