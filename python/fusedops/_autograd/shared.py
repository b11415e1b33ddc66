"""What the autograd.Functions of every family want, and the functions that enter them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function_variadic

_functorch_active = torch._C._are_functorch_transforms_active
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_no_dispatch = Tensor.__torch_dispatch__
_no_function = torch._C._disabled_torch_function_impl

# Whether a gradient is one of a batch, by autograd.grad(is_grads_batched=True).
is_batched = torch._C._functorch.is_legacy_batchedtensor


def sees_torch_functions_only(*tensors: Tensor | None) -> bool:
    """Whether a call is for torch's functions: a torch.func transform or forward-mode AD, which our
    ops are opaque to, or a tensor subclass that knows torch's (nested, quantised).
    """
    return bool(
        _functorch_active()
        or forward_ad._current_level >= 0
        or (has_torch_function_variadic(*tensors) and is_subclass(*tensors))
    )


def is_subclass(*tensors: Tensor | None) -> bool:
    """Whether one of the tensors runs torch's functions and ops in its own way.

    Not fake tensors and DTensors, which know our ops, and no tensors under a mode.
    """
    return not _is_dynamo_compiling() and any(
        type(t).__torch_dispatch__ is not _no_dispatch
        and type(t).__torch_function__ is not _no_function
        for t in tensors
        if t is not None
    )


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether autograd wants to see a call: the modes allow it and a tensor requires a gradient."""
    if torch.is_grad_enabled():
        for t in tensors:  # written out: each call asks
            if t is not None and t.requires_grad:
                return True
    return False


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
