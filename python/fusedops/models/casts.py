"""Weights that autocast casts, cast in inference before the layers ask for them.

A PointNet++ waits for its first centres before its first layer: the casts of all weights, most of
them in one launch, take that time instead of the layers'.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .._autograd.autocast import casts_ahead
from .._autograd.shared import sees_torch_functions_only
from ..points._edge_checks import cast_weights

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def weights_cast_ahead(model: nn.Module, xyz: Tensor) -> AbstractContextManager[None]:
    """A context in which the model's linear layers have their weights in autocast's dtype.

    NOTE: in training a cast has a gradient, which should leave its layer as soon as it is there.
    """
    device = xyz.device.type
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or device == "meta":
        return contextlib.nullcontext()
    if not torch.is_autocast_enabled(device) or sees_torch_functions_only(xyz):
        return contextlib.nullcontext()
    weights = [
        tensor
        for module in model.modules()
        if type(module) is nn.Linear
        for tensor in module._parameters.values()
        if type(tensor) is nn.Parameter and tensor.dtype is torch.float32
        if tensor.device == xyz.device
    ]
    made = cast_weights(weights, torch.get_autocast_dtype(device)) if weights else []
    return casts_ahead(weights, made)
