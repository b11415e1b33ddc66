"""What the autograd.Functions of every family want, and the functions that enter them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_functorch_active = torch._C._are_functorch_transforms_active


def sees_torch_functions_only() -> bool:
    """Whether a torch.func transform or forward-mode AD is active, which our ops are opaque to."""
    return bool(_functorch_active() or forward_ad._current_level >= 0)


def distinct(*arguments: Any) -> tuple[Any, ...]:
    """The arguments of a Function, with views in place of repeated tensors under torch.compile.

    Dynamo makes one input of a tensor that comes twice, which loses a part of its gradient (pytorch
    #181146).
    """
    if not torch.compiler.is_dynamo_compiling():
        return arguments
    found: list[Any] = []
    for t in arguments:
        repeated = isinstance(t, Tensor) and any(t is other for other in found)
        found.append(t.view_as(t) if repeated else t)
    return tuple(found)


def _eager_apply(function: type[torch.autograd.Function]) -> Any:
    """function.apply without its Python wrapper, which costs 2 us of a call's 6."""
    return super(torch.autograd.Function, function).apply
