"""Stencils written out: padding, then a depthwise convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def stencil(
    x: Tensor, weight: Tensor, scale: float = 1.0, dims: int = 2, padding_mode: str = "zeros"
) -> Tensor:
    """y[p] = scale * sum over taps k of weight[k] x[p + k - taps / 2], per leading plane.

    x (..., [D,] [H,] W), weight ([C,] [kd,] [kh,] kw) with odd extents.
    """
    if x.numel() == 0:
        return x * weight.sum()  # empty, and a function of both
    groups = weight.shape[0] if weight.dim() > dims else 1
    space = x.shape[x.dim() - dims :]
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    planes = x.to(wide).reshape(-1, groups, *space)
    reach = [n // 2 for n in reversed(weight.shape[-dims:]) for _ in range(2)]
    own = padding_mode == "zeros"  # the convolution's own padding
    if not own:
        planes = F.pad(planes, reach, mode=padding_mode)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    taps = weight.to(wide).reshape(groups, 1, *weight.shape[-dims:])
    y = convolve(planes, taps, padding=[n if own else 0 for n in reach[::-2]], groups=groups)
    return (y if scale == 1 else y * scale).reshape(x.shape).to(x.dtype)
