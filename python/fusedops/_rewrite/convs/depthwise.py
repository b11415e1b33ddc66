"""Depthwise convolutions of large kernels (ConvNeXt) on the kernels of `conv_bn_act`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import nn as torch_nn

from ..._core.precision import is_autocast_on
from ...ops.conv import conv_bn_act
from ...ops.conv_problem import is_large_depthwise
from .single import FusedSingle, Single

_any_autocast = torch._C._is_any_autocast_enabled

_HALVES = (torch.float16, torch.bfloat16)
_LEAST = 1 << 20  # elements of x, from which the kernels and not the host are what takes time


class FusedDepthwise(FusedSingle):
    """Runs as our op, where something is gained: not on CPUs, for small x and other dtypes."""


def _gains(x: Any, weight: Any, bias: Any) -> bool:
    """Whether the op takes these and is faster."""
    if not x.is_cuda or x.numel() < _LEAST or x.dim() != 4 or x.shape[1] != weight.shape[0]:
        return False
    if not is_large_depthwise(weight.shape, (1, 1), weight.shape[0]):
        return False
    if _any_autocast() and is_autocast_on("cuda"):
        return torch.get_autocast_dtype("cuda") in _HALVES
    return x.dtype in _HALVES and all(t is None or t.dtype is x.dtype for t in (weight, bias))


def is_depthwise(module: torch_nn.Module) -> bool:
    """Whether a module is a convolution that the kernels are for."""
    if not isinstance(module, torch_nn.Conv2d):
        return False
    weight = (module.out_channels, module.in_channels // module.groups, *module.kernel_size)
    return is_large_depthwise(weight, module.stride, module.groups)


def why_left(module: Any) -> str | None:
    """Why such a convolution stays what it is, by its settings; else None."""
    if not isinstance(module.padding, (tuple, str)) or not isinstance(module.dilation, tuple):
        return "its padding or dilation is no tuple"
    if module.padding_mode != "zeros":
        return f"it pads with {module.padding_mode}"
    if any(d != 1 for d in module.dilation):
        return "its kernel is dilated"
    return None


def _call(module: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    if not _gains(x, weight, bias):
        return None
    return conv_bn_act(x, weight, bias, padding=module.padding, groups=len(weight))


FusedDepthwise._fused_kind = DEPTHWISE = Single(
    "depthwise of {}", FusedDepthwise, is_depthwise, why_left, lambda _: None, _call
)
