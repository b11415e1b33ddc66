"""Fakes of the stencil ops; checks as in csrc/common/checks/stencil_check.h."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_floating, check_like, check_min_dim, check_same_shape, fake, shape_of

_MAX_TAPS = 15
_MAX_EXTENT = 1 << 30
_REFLECT, _CIRCULAR = 1, 3


def _check_stencil(op: str, name: str, x: Tensor, weight: Tensor, dims: int, padding: int) -> None:
    check_floating(op, name, x)
    check_like(op, "weight", weight, name, x)
    torch._check(1 <= dims <= 3, lambda: f"{op}: dims must be from 1 to 3; got {dims}")
    torch._check(
        0 <= padding <= 3, lambda: f"{op}: padding must be a code from 0 to 3; got {padding}"
    )
    check_min_dim(op, name, x, dims)
    per_channel = weight.dim() == dims + 1
    torch._check(
        weight.dim() == dims or per_channel,
        lambda: (
            f"{op}: weight must have {dims} dimension(s), or one more in front for channels; got "
            f"shape {shape_of(weight)}"
        ),
    )
    if per_channel:
        torch._check(
            x.dim() > dims and x.shape[-dims - 1] == weight.shape[0],
            lambda: (
                f"{op}: weight must have as many channels as {name} {shape_of(x)}; got "
                f"{shape_of(weight)}"
            ),
        )
    for i in range(1, dims + 1):
        k, n = weight.shape[-i], x.shape[-i]
        torch._check(
            k % 2 == 1 and k <= _MAX_TAPS,
            lambda: (
                f"{op}: weight must have odd extents from 1 to {_MAX_TAPS}; got shape "
                f"{shape_of(weight)}"
            ),
        )
        torch._check(
            n <= _MAX_EXTENT,
            lambda n=n: (
                f"{op}: {name} {shape_of(x)} must have spatial extents of at most 2^30; got {n}"
            ),
        )
        if padding in (_REFLECT, _CIRCULAR):
            most = n if padding == _CIRCULAR else n - 1  # of the border
            torch._check(
                n == 0 or k // 2 <= most,
                lambda n=n: (
                    f"{op}: {name} {shape_of(x)} must be larger than half of weight "
                    f"{shape_of(weight)} for this padding; got an extent of {n}"
                ),
            )


@fake("stencil")
def _stencil(x: Tensor, weight: Tensor, scale: float, dims: int, padding: int) -> Tensor:
    _check_stencil("stencil", "x", x, weight, dims, padding)
    return x.new_empty(x.shape)


@fake("stencil_backward")
def _stencil_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    scale: float,
    dims: int,
    padding: int,
    need_dx: bool,
    need_dweight: bool,
) -> tuple[Tensor, Tensor]:
    op = "stencil_backward"
    _check_stencil(op, "dy", dy, weight, dims, padding)
    check_like(op, "x", x, "dy", dy)
    check_same_shape(op, "x", x, tuple(dy.shape), f"shape {shape_of(dy)} like dy")
    return (
        dy.new_empty(dy.shape if need_dx else (0,)),
        dy.new_empty(weight.shape if need_dweight else (0,)),
    )
