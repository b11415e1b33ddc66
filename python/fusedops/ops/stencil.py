"""Stencils: weighted sums of neighbours in 1, 2 or 3 dimensions, in every plane of a tensor."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._autograd.shared import distinct, sees_torch_functions_only
from .._core.calls import public
from .._core.checks import raise_not_tensor
from ..reference import stencil as _torch_stencil

__all__ = [
    "box_filter1d",
    "box_filter2d",
    "box_filter3d",
    "stencil1d",
    "stencil2d",
    "stencil3d",
]

_ops = torch.ops.fusedops

# NOTE: csrc/common/stencil.h holds the same table; tests/stencil/test_stencil.py compares them.
PADDINGS: dict[str, int] = {"zeros": 0, "reflect": 1, "replicate": 2, "circular": 3}


MOST_TAPS = 15  # kMaxTaps of csrc/common/stencil.h


class StencilFunction(torch.autograd.Function):
    """(x, weight, scale, dims, padding_mode) -> y."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, scale: float, dims: int, padding_mode: str
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.options = scale, dims, padding_mode
        y: Tensor = _ops.stencil.default(x, weight, scale, dims, PADDINGS[padding_mode])
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        scale, dims, padding_mode = ctx.options
        need_x, need_w = ctx.needs_input_grad[:2]
        dx = dw = None
        if torch.is_grad_enabled():  # for derivatives of higher order
            wanted = [t for t, need in ((x, need_x), (weight, need_w)) if need]
            y = _torch_stencil(x, weight, scale, dims, padding_mode)
            grads = list(torch.autograd.grad(y, wanted, dy, create_graph=True))
            dx = grads.pop(0) if need_x else None
            dw = grads.pop(0) if need_w else None
        else:
            dx, dw = _ops.stencil_backward.default(
                dy, x, weight, scale, dims, PADDINGS[padding_mode], need_x, need_w
            )
        return dx if need_x else None, dw if need_w else None, None, None, None


def _stencil(
    op: str, x: Tensor, weight: Tensor, padding_mode: str, dims: int, scale: float = 1.0
) -> Tensor:
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        raise_not_tensor(op, x=x, weight=weight)
    if not isinstance(padding_mode, str) or padding_mode not in PADDINGS:
        known = ", ".join(repr(name) for name in PADDINGS)
        raise ValueError(f"{op}: padding_mode must be one of {known}; got {padding_mode!r}")
    if sees_torch_functions_only(x, weight):
        return _torch_stencil(x, weight, scale, dims, padding_mode)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        y: Tensor = StencilFunction.apply(*distinct(x, weight), scale, dims, padding_mode)
        return y
    return _ops.stencil.default(x, weight, scale, dims, PADDINGS[padding_mode])


@public
def stencil2d(x: Tensor, weight: Tensor, padding_mode: str = "zeros") -> Tensor:
    """Compute ``y[i, j] = sum over a, b of weight[a, b] x[i + a - kh // 2, j + b - kw // 2]``.

    The correlation that ``F.conv2d`` computes with one group per channel and "same" padding, in
    every plane of the leading dimensions. Tiles with their halo lie in shared memory; 3x3, 5x5 and
    7x7 taps are held in registers, other sizes up to 15x15 are loops. The border is part of the
    kernel: no padded copy. Backward is one op; its sums have a fixed order.

    Args:
        x: (..., H, W); float16, bfloat16, float32 or float64, fp32 (fp64) arithmetic.
        weight: (kh, kw) for all planes, or (C, kh, kw) for x (..., C, H, W); odd extents up to 15.
        padding_mode: What lies beyond the border: "zeros", "reflect", "replicate" or "circular", as
            in ``torch.nn.functional.pad``.

    Returns:
        A new contiguous tensor like x.

    Raises:
        ValueError: The padding mode is unknown.
        TypeError: An argument is not a tensor.
        RuntimeError: Shapes, dtypes or devices do not fit; a plane is too small for the padding.
    """
    return _stencil("stencil2d", x, weight, padding_mode, 2)


@public
def stencil1d(x: Tensor, weight: Tensor, padding_mode: str = "zeros") -> Tensor:
    """`stencil2d` along the last dimension: x (..., W), weight (kw,) or (C, kw)."""
    return _stencil("stencil1d", x, weight, padding_mode, 1)


@public
def stencil3d(x: Tensor, weight: Tensor, padding_mode: str = "zeros") -> Tensor:
    """`stencil2d` in volumes: x (..., D, H, W), weight (kd, kh, kw) or (C, kd, kh, kw)."""
    return _stencil("stencil3d", x, weight, padding_mode, 3)


def _box_filter(op: str, x: Tensor, size: int, padding_mode: str, dims: int) -> Tensor:
    if not isinstance(x, Tensor):
        raise_not_tensor(op, x=x)
    try:
        taps = operator.index(size)
    except TypeError:
        taps = 0
    if taps not in range(1, MOST_TAPS + 1, 2):
        raise ValueError(f"{op}: size must be odd and from 1 to {MOST_TAPS}; got {size!r}")
    # NOTE: ones and an exact factor: 1 / 9 rounded to bf16 would change the mean by 0.2 %.
    return _stencil(op, x, x.new_ones((taps,) * dims), padding_mode, dims, 1.0 / taps**dims)


@public
def box_filter2d(x: Tensor, size: int, padding_mode: str = "zeros") -> Tensor:
    """The mean of the size x size neighbourhood: `stencil2d` with equal weights, errors alike.

    size is odd and from 1 to 15; another one is a ValueError.
    """
    return _box_filter("box_filter2d", x, size, padding_mode, 2)


@public
def box_filter1d(x: Tensor, size: int, padding_mode: str = "zeros") -> Tensor:
    """`box_filter2d` along the last dimension: the mean of `size` neighbours."""
    return _box_filter("box_filter1d", x, size, padding_mode, 1)


@public
def box_filter3d(x: Tensor, size: int, padding_mode: str = "zeros") -> Tensor:
    """`box_filter2d` in volumes: the mean of the size x size x size neighbourhood."""
    return _box_filter("box_filter3d", x, size, padding_mode, 3)
