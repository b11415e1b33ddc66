"""Convolutions whose patches do not overlap, as our linear: the embeddings of ViT, CLIP and Swin.

Where the kernel is as large as the stride and nothing is padded, each element of x is in one patch,
and the convolution is `linear` of the patches, which are one copy of x.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import nn as torch_nn

from ..._core.dtensor import is_dtensor, own_class, set_own_class
from ..._core.precision import is_autocast_on, why_another_precision
from ...ops.linear import linear
from ..fused_class import Fused, fused_class

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_any_autocast = torch._C._is_any_autocast_enabled

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_PLAIN = (Tensor, torch_nn.Parameter)
# The classes with what their forwards call, as they came.
_CONVOLUTIONS: dict[type, tuple[Any, Any, str, Any]] = {
    kind: (kind.forward, kind._conv_forward, name, getattr(F, name))
    for kind, name in (
        (torch_nn.Conv1d, "conv1d"),
        (torch_nn.Conv2d, "conv2d"),
        (torch_nn.Conv3d, "conv3d"),
    )
}
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class FusedPatches(Fused):
    """Mixed into a convolution's class: the same object, its forward our linear of patches.

    Its own forward runs for an x of other dtypes, dims or channels than the layer has, for float32
    where torch's settings of precision differ for convolutions and products, under torch.compile
    (whose graph pass finds it), and after its settings or torch's function for it were changed.
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
        if _takes(x, weight, bias, tuple(self.stride)):  # type: ignore[attr-defined]
            return convolve(x, weight, bias)
        return self._conv_forward(x, weight, bias)  # type: ignore[attr-defined]


def _takes(x: Any, weight: Any, bias: Any, stride: tuple[int, ...]) -> bool:
    """Whether the product stands for a convolution of these."""
    if type(weight) not in _PLAIN or type(bias) not in (*_PLAIN, type(None)):
        return False
    if why_weight_left(weight, stride) is not None:
        return False
    if x.dim() != weight.dim() or x.shape[1] != weight.shape[1] or x.device != weight.device:
        return False
    if any(size < width for size, width in zip(x.shape[2:], weight.shape[2:], strict=True)):
        return False
    dtype = x.dtype
    if _any_autocast() and is_autocast_on(x.device.type):
        # NOTE: autocast makes one dtype of all that are not float64.
        return all(t is None or t.dtype in _DTYPES[:3] for t in (x, weight, bias))
    if dtype not in _DTYPES or any(t is not None and t.dtype is not dtype for t in (weight, bias)):
        return False
    return dtype is not torch.float32 or why_another_precision(x.device.type) is None


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution whose stride is its kernel.

    Args:
        x: (N, C, ...), any strides.
        weight: (O, C, ...), its last dims the kernel.
        bias: (O,), or None.

    Returns:
        (N, O, ...), a patch for each position, in memory as torch's convolutions lay it. What is
        left over of x behind the last patch is not read.
    """
    kernel, last = weight.shape[2:], _lies_last(x)
    split = [*x.shape[:2]]
    for dim, width in enumerate(kernel, 2):
        count = x.shape[dim] // width
        split += [count, width]
        if x.shape[dim] % width:
            x = x.narrow(dim, 0, count * width)
    rank = len(kernel)
    counts, widths = ([first + 2 * i for i in range(rank)] for first in (2, 3))
    # NOTE: features lie in a patch as they lie in x, so that the copy reads rows.
    order = [0, *counts, *widths, 1] if last else [0, *counts, 1, *widths]
    patches = x.view(split).permute(order).flatten(rank + 1)
    matrix = (weight.movedim(1, -1) if last else weight).flatten(1)
    y = linear(patches, matrix, bias).movedim(-1, 1)
    return y if last or _lies_last(weight) else y.contiguous()


def _lies_last(x: Tensor) -> bool:
    """Whether torch's convolutions say that a tensor has its channels last in memory."""
    form = _LAST.get(x.dim())
    return form is not None and not x.is_contiguous() and x.is_contiguous(memory_format=form)


def is_of_patches(module: torch_nn.Module) -> bool:
    """Whether a module is a convolution whose kernel is as large as its stride, and above 1."""
    kinds: Any = tuple(_CONVOLUTIONS)
    if not isinstance(module, kinds):
        return False
    same: bool = module.kernel_size == module.stride
    return same and max(module.kernel_size) > 1


def why_replaced(module: Any) -> str | None:
    """Why a convolution may compute something else than its class does; None where it does not."""
    kind = next(kind for kind in _CONVOLUTIONS if isinstance(module, kind))
    forward, inner, name, function = _CONVOLUTIONS[kind]
    base = getattr(type(module), "_base", None) or own_class(module)
    if base.forward is not forward or base._conv_forward is not inner:
        return f"a subclass of nn.{kind.__name__} may compute something else"
    if "forward" in vars(module) or "_conv_forward" in vars(module):
        return "its forward was replaced on the instance"
    if getattr(F, name) is not function:
        return f"torch.nn.functional.{name} was replaced"
    return None


def why_left(module: Any) -> str | None:
    """Why a convolution of patches stays what it is, by all but its weight; else None."""
    why = why_replaced(module)
    if why is not None:
        return why
    padding = module.padding
    settings = (module.stride, module.dilation, padding)
    if not all(isinstance(setting, (tuple, str)) for setting in settings):
        return "its stride, dilation or padding is no tuple"
    if padding != "valid" and (isinstance(padding, str) or any(padding)):
        return "it pads: a patch is not all of x"
    if any(d != 1 for d in module.dilation):
        return "its kernel is dilated: patches overlap"
    if module.groups != 1:
        return f"it has {module.groups} groups"
    return None


def why_weight_left(weight: Any, stride: tuple[int, ...]) -> str | None:
    """Why a weight is not a product's; None where it is."""
    if type(weight) not in _PLAIN and not is_dtensor(weight):
        return f"its weight is a {type(weight).__name__}"
    if tuple(weight.shape[2:]) != stride:
        return "its weight has another kernel than it says"
    if weight.dtype not in _DTYPES or math.prod(weight.shape) == 0:
        return "has a dtype or shape that the kernels do not have"
    return None


def fuse_patches(module: torch_nn.Module) -> str | None:
    """Make a convolution of patches run as our linear, in place.

    Returns:
        None where it does now, else the reason why it stays what it is.
    """
    if torch_nn.parameter.is_lazy(module._parameters.get("weight")):
        return "its weight is not made yet"
    if hasattr(module, "parametrizations"):  # torch takes the class away when they are removed
        return "has parametrizations"
    layer: Any = module
    why = why_left(layer) or why_weight_left(layer.weight, tuple(layer.stride))
    if why is None:
        set_own_class(module, fused_class(FusedPatches, own_class(module)))
    return why
