"""Convolutions whose patches do not overlap, as our linear: the embeddings of ViT, CLIP and Swin.

Where the kernel is as large as the stride and nothing is padded, each element of x is in one patch,
and the convolution is `linear` of the patches, which are one copy of x.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch import nn as torch_nn

from ..._core.dtensor import is_dtensor
from ..._core.precision import is_autocast_on, why_another_precision
from ...ops.linear import linear
from .single import CONVOLUTIONS, PLAIN, FusedSingle, Single

_any_autocast = torch._C._is_any_autocast_enabled

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class FusedPatches(FusedSingle):
    """Runs as our linear of patches.

    Not for an x of other dtypes, dims or channels than the layer has, nor for float32 where torch's
    settings of precision differ for convolutions and products.
    """


def _takes(x: Any, weight: Any, bias: Any, stride: tuple[int, ...]) -> bool:
    """Whether the product stands for a convolution of these."""
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
    kinds: Any = tuple(CONVOLUTIONS)
    if not isinstance(module, kinds):
        return False
    same: bool = module.kernel_size == module.stride
    return same and max(module.kernel_size) > 1


def why_left(module: Any) -> str | None:
    """Why a convolution of patches stays what it is, by its settings; else None."""
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
    if type(weight) not in PLAIN and not is_dtensor(weight):
        return f"its weight is a {type(weight).__name__}"
    if tuple(weight.shape[2:]) != stride:
        return "its weight has another kernel than it says"
    if weight.dtype not in _DTYPES or math.prod(weight.shape) == 0:
        return "has a dtype or shape that the kernels do not have"
    return None


def _call(module: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    return convolve(x, weight, bias) if _takes(x, weight, bias, tuple(module.stride)) else None


FusedPatches._fused_kind = PATCHES = Single(
    "linear of patches of {}",
    FusedPatches,
    is_of_patches,
    why_left,
    lambda module: why_weight_left(module.weight, tuple(module.stride)),
    _call,
)
