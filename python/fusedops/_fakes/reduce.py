"""Fakes of the reductions; checks as in csrc/common/checks/reduce_check.h."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .._core.reduction import (
    FLOATING_ONLY,
    GRADIENTS,
    NEEDS_ELEMENTS,
    REDUCTIONS,
    public_name,
    result_dtype,
    wide_dtype,
)
from .checks import check_floating, check_min_dim, check_same_shape, fake, shape_of

_ELEMENTS = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
)


def _check_reduction(op: str, reduction: int) -> None:
    torch._check(
        0 <= reduction < len(REDUCTIONS),
        lambda: f"{op}: reduction must be a code from 0 to {len(REDUCTIONS) - 1}; got {reduction}",
    )


def _check_element(op: str, x: Tensor, floating_only: bool) -> None:
    if floating_only:
        check_floating(op, "x", x)
    torch._check(
        x.dtype in _ELEMENTS,
        lambda: (
            f"{op}: x must be float16, bfloat16, float32, float64, uint8, int8, int16, int32, "
            f"int64 or bool; got {dtype_name(x.dtype)}"
        ),
    )


def _reduced_shape(
    op: str, x: Tensor, dims: int, keepdim: bool, needs_elements: bool
) -> tuple[int, ...]:
    torch._check(
        0 <= dims < 1 << x.dim(),
        lambda: f"{op}: dims must be a bit mask of the {x.dim()} dimension(s) of x; got {dims}",
    )
    shape = []
    for i, size in enumerate(x.shape):
        if not dims >> i & 1:
            shape.append(size)
            continue
        if needs_elements:
            torch._check(
                size > 0,
                lambda: (
                    f"{op}: x must have at least one element along the reduced dimensions; got "
                    f"shape {shape_of(x)}"
                ),
            )
        if keepdim:
            shape.append(1)
    return tuple(shape)


@fake("reduce")
def _reduce(x: Tensor, reduction: int, dims: int, keepdim: bool, wide: bool) -> Tensor:
    _check_reduction("reduce", reduction)
    op = public_name(reduction)
    _check_element(op, x, reduction in FLOATING_ONLY)
    shape = _reduced_shape(op, x, dims, keepdim, reduction in NEEDS_ELEMENTS)
    return x.new_empty(shape, dtype=result_dtype(reduction, x.dtype, wide))


@fake("var_mean")
def _var_mean(
    x: Tensor, dims: int, correction: float, root: bool, keepdim: bool, wide: bool
) -> tuple[Tensor, Tensor]:
    op = "std" if root else "var"
    _check_element(op, x, True)
    shape = _reduced_shape(op, x, dims, keepdim, False)
    dtype = wide_dtype(x.dtype) if wide else x.dtype
    return x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)


@fake("extremum_count")
def _extremum_count(x: Tensor, reduction: int, dims: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    _check_reduction("extremum_count", reduction)
    torch._check(
        reduction in NEEDS_ELEMENTS and not REDUCTIONS[reduction].startswith("arg"),
        lambda: (
            f"extremum_count: reduction must be amax, amin or an infinity norm; got "
            f"{public_name(reduction)}"
        ),
    )
    check_floating("extremum_count", "x", x)
    shape = _reduced_shape(public_name(reduction), x, dims, keepdim, True)
    return x.new_empty(shape), x.new_empty(shape, dtype=wide_dtype(x.dtype))


def _check_coefficient(name: str, tensor: Tensor, x: Tensor) -> None:
    op = "reduce_backward"
    torch._check(
        tensor.device == x.device,
        lambda: f"{op}: {name} must be on {x.device} like x; got {tensor.device}",
    )
    wide = wide_dtype(x.dtype)
    torch._check(
        tensor.dtype == wide,
        lambda: (
            f"{op}: {name} must have dtype {dtype_name(wide)} for x of {dtype_name(x.dtype)}; got "
            f"{dtype_name(tensor.dtype)}"
        ),
    )

    def text() -> str:
        return (
            f"{op}: {name} must have the shape of x {shape_of(x)} or 1 in each dimension; got "
            f"{shape_of(tensor)}"
        )

    torch._check(tensor.dim() == x.dim(), text)
    for own, size in zip(tensor.shape, x.shape, strict=True):
        torch._check(own in (1, size), text)


@fake("reduce_backward")
def _reduce_backward(x: Tensor, scale: Tensor, shift: Tensor | None, gradient: int) -> Tensor:
    op = "reduce_backward"
    torch._check(
        0 <= gradient < len(GRADIENTS),
        lambda: f"{op}: gradient must be a code from 0 to {len(GRADIENTS) - 1}; got {gradient}",
    )
    check_floating(op, "x", x)
    _check_coefficient("scale", scale, x)
    if shift is not None:
        _check_coefficient("shift", shift, x)
        check_same_shape(
            op, "shift", shift, tuple(scale.shape), f"shape {shape_of(scale)} like scale"
        )
    torch._check(
        shift is not None or GRADIENTS[gradient] in ("affine", "sign"),
        lambda: f"{op}: shift must be given for gradient code {gradient}; got None",
    )
    return x.new_empty(x.shape)


@fake("bias_grad")
def _bias_grad(dy: Tensor, wide: bool) -> Tensor:
    check_floating("bias_grad", "dy", dy)
    check_min_dim("bias_grad", "dy", dy, 1)
    return dy.new_empty((dy.shape[-1],), dtype=wide_dtype(dy.dtype) if wide else dy.dtype)
