"""Depthwise convolutions of large kernels (ConvNeXt) on the kernels of `conv_bn_act`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import nn as torch_nn

from ..._core.dtensor import own_class, set_own_class
from ..._core.precision import is_autocast_on
from ...ops.conv import conv_bn_act
from ...ops.conv_problem import is_large_depthwise
from ..fused_class import Fused, fused_class
from .patches import why_replaced

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_any_autocast = torch._C._is_any_autocast_enabled

_HALVES = (torch.float16, torch.bfloat16)
_PLAIN = (Tensor, torch_nn.Parameter)
_LEAST = 1 << 20  # elements of x, from which the kernels and not the host are what takes time


class FusedDepthwise(Fused):
    """Mixed into nn.Conv2d: the same object, its forward our op.

    Its own forward runs where nothing is gained: on CPUs, for small x, for other dtypes than half
    precision, under torch.compile (whose graph pass finds it), and after its settings or torch's
    function for it were changed.
    """

    _base: Any
    weight: Any
    bias: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the convolution gives."""
        x = args[0] if len(args) == 1 and not kwargs else None
        if _is_dynamo_compiling() or type(x) not in _PLAIN or why_left(self) is not None:
            return self._base.forward(self, *args, **kwargs)
        weight, bias = self.weight, self.bias  # once: a parametrization computes them
        if _gains(x, weight, bias):
            return conv_bn_act(x, weight, bias, padding=self.padding, groups=len(weight))  # type: ignore[attr-defined]
        return self._conv_forward(x, weight, bias)  # type: ignore[attr-defined]


def _gains(x: Any, weight: Any, bias: Any) -> bool:
    """Whether the op takes these and is faster."""
    if not x.is_cuda or x.numel() < _LEAST or x.dim() != 4 or x.shape[1] != weight.shape[0]:
        return False
    if type(weight) not in _PLAIN or type(bias) not in (*_PLAIN, type(None)):
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
    """Why such a convolution stays what it is, by all but its weight; else None."""
    why = why_replaced(module)
    if why is not None:
        return why
    if not isinstance(module.padding, (tuple, str)) or not isinstance(module.dilation, tuple):
        return "its padding or dilation is no tuple"
    if module.padding_mode != "zeros":
        return f"it pads with {module.padding_mode}"
    if any(d != 1 for d in module.dilation):
        return "its kernel is dilated"
    return None


def fuse_depthwise(module: torch_nn.Module) -> str | None:
    """Make a depthwise convolution run as our op, in place.

    Returns:
        None where it does now, else the reason why it stays what it is.
    """
    if hasattr(module, "parametrizations"):  # torch takes the class away when they are removed
        return "has parametrizations"
    why = why_left(module)
    if why is None:
        set_own_class(module, fused_class(FusedDepthwise, own_class(module)))
    return why
