"""Fakes of convolutions on kernels of ours; checks as in csrc/common/checks/batch_norm_check.h."""

from __future__ import annotations

import torch
from torch import Tensor

from .batch_norm import _check_channels, _check_outputs
from .checks import check_activation, check_floating, check_like, fake, shape_of
from .cloud import check_dim
from .gemm import check_linear

_MAX_EXTENT = 1 << 24


def _check_sizes(
    op: str, x: Tensor, weight: Tensor, stride: tuple[int, int], pad: tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns of the result."""
    h, w = x.shape[1:3]
    kh, kw = weight.shape[1:3]
    torch._check(
        kh > 0 and kw > 0,
        lambda: f"{op}: weight must have at least one tap; got shape {shape_of(weight)}",
    )
    numbers = (("stride_h", stride[0], 1), ("stride_w", stride[1], 1))
    for name, value, least in (*numbers, ("pad_h", pad[0], 0), ("pad_w", pad[1], 0)):
        torch._check(
            least <= value <= _MAX_EXTENT,
            lambda name=name, value=value, least=least: (
                f"{op}: {name} must be from {least} to {_MAX_EXTENT}; got {value}"
            ),
        )
    room_h, room_w = h + 2 * pad[0] - kh, w + 2 * pad[1] - kw
    torch._check(
        room_h >= 0 and room_w >= 0,
        lambda: (
            f"{op}: x {shape_of(x)} must be as large as weight after padding; got weight "
            f"{shape_of(weight)}"
        ),
    )
    torch._check(
        h <= _MAX_EXTENT and w <= _MAX_EXTENT,
        lambda: f"{op}: x {shape_of(x)} must have images of at most {_MAX_EXTENT} rows and columns",
    )
    return room_h // stride[0] + 1, room_w // stride[1] + 1


def _check_operands(
    op: str, x: Tensor, weight: Tensor, stride: tuple[int, int], pad: tuple[int, int]
) -> tuple[int, ...]:
    """The shape of the result."""
    check_floating(op, "x", x)
    check_like(op, "weight", weight, "x", x)
    check_dim(op, "x", x, 4, "(N, H, W, C)")
    check_dim(op, "weight", weight, 3, "(C, kh, kw)")
    channels = x.shape[3]
    torch._check(
        weight.shape[0] == channels,
        lambda: (
            f"{op}: weight must have shape ({channels}, kh, kw) to match x {shape_of(x)}; got "
            f"{shape_of(weight)}"
        ),
    )
    return x.shape[0], *_check_sizes(op, x, weight, stride, pad), channels


def _check_result(op: str, name: str, tensor: Tensor, x: Tensor, shape: tuple[int, ...]) -> None:
    check_like(op, name, tensor, "x", x)

    def text() -> str:
        return f"{op}: {name} must have the result's shape {shape}; got {shape_of(tensor)}"

    torch._check(tensor.dim() == len(shape), text)
    for size, want in zip(tensor.shape, shape, strict=True):
        torch._check(size == want, text)


@fake("depthwise_conv")
def _depthwise_conv(
    x: Tensor,
    weight: Tensor,
    conv_bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    bn_weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    eps: float,
    activation: int,
) -> Tensor:
    op = "depthwise_conv"
    check_activation(op, activation)
    shape = _check_operands(op, x, weight, (stride_h, stride_w), (pad_h, pad_w))
    vectors = {"conv_bias": conv_bias, "mean": mean, "var": var, "bn_weight": bn_weight}
    for name, vector in {**vectors, "bias": bias}.items():
        _check_channels(op, name, vector, x)
    if residual is not None:
        _check_result(op, "residual", residual, x, shape)
    return x.new_empty(shape)


@fake("depthwise_conv_backward")
def _depthwise_conv_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    need_dx: bool,
    need_dweight: bool,
) -> tuple[Tensor, Tensor]:
    op = "depthwise_conv_backward"
    check_floating(op, "dy", dy)
    shape = _check_operands(op, x, weight, (stride_h, stride_w), (pad_h, pad_w))
    _check_result(op, "dy", dy, x, shape)
    return (
        x.new_empty(x.shape if need_dx else (0,)),
        weight.new_empty(weight.shape if need_dweight else (0,)),
    )


def _check_first_operands(
    op: str, x: Tensor, weight: Tensor, stride: tuple[int, int], pad: tuple[int, int]
) -> tuple[int, ...]:
    """The shape of the result."""
    check_floating(op, "x", x)
    check_like(op, "weight", weight, "x", x)
    check_dim(op, "x", x, 4, "(N, H, W, C)")
    check_dim(op, "weight", weight, 4, "(O, kh, kw, C)")
    torch._check(
        weight.shape[3] == x.shape[3],
        lambda: (
            f"{op}: weight must have shape (O, kh, kw, {x.shape[3]}) to match x {shape_of(x)}; "
            f"got {shape_of(weight)}"
        ),
    )
    return x.shape[0], *_check_sizes(op, x, weight, stride, pad), weight.shape[0]


@fake("first_conv")
def _first_conv(
    x: Tensor,
    weight: Tensor,
    conv_bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    bn_weight: Tensor | None,
    bias: Tensor | None,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    eps: float,
    activation: int,
) -> Tensor:
    op = "first_conv"
    check_activation(op, activation)
    shape = _check_first_operands(op, x, weight, (stride_h, stride_w), (pad_h, pad_w))
    vectors = {"conv_bias": conv_bias, "mean": mean, "var": var, "bn_weight": bn_weight}
    _check_outputs(op, weight, {**vectors, "bias": bias})
    return x.new_empty(shape)


def _check_image_weight(op: str, weight: Tensor) -> None:
    torch._check(
        weight.shape[1] == weight.shape[2] == 3,
        lambda: f"{op}: weight must have shape (O, 3, 3, C); got {shape_of(weight)}",
    )


@fake("image_conv")
def _image_conv(
    x: Tensor,
    weight: Tensor,
    conv_bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    bn_weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: int,
) -> Tensor:
    op = "image_conv"
    check_activation(op, activation)
    shape = _check_first_operands(op, x, weight, (1, 1), (1, 1))
    vectors = {"conv_bias": conv_bias, "mean": mean, "var": var, "bn_weight": bn_weight}
    _check_outputs(op, weight, {**vectors, "bias": bias})
    _check_image_weight(op, weight)
    return x.new_empty(shape)


@fake("pointwise_conv")
def _pointwise_conv(
    x: Tensor,
    weight: Tensor,
    conv_bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    bn_weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    eps: float,
    activation: int,
) -> Tensor:
    op = "pointwise_conv"
    check_linear(op, x, weight, None, activation)
    vectors = {"conv_bias": conv_bias, "mean": mean, "var": var, "bn_weight": bn_weight}
    _check_outputs(op, weight, {**vectors, "bias": bias})
    outputs = weight.shape[0]
    if residual is not None:
        check_like(op, "residual", residual, "x", x)
        torch._check(
            residual.dim() == x.dim()
            and residual.shape[-1] == outputs
            and residual.shape[:-1] == x.shape[:-1],
            lambda: (
                f"{op}: residual must have shape (..., {outputs}) to match x {shape_of(x)}; got "
                f"{shape_of(residual)}"
            ),
        )
    return x.new_empty((*x.shape[:-1], outputs))


def _check_first_gradient(
    op: str,
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: tuple[int, int],
    pad: tuple[int, int],
) -> None:
    check_floating(op, "dy", dy)
    _check_result(op, "dy", dy, x, _check_first_operands(op, x, weight, stride, pad))


@fake("first_conv_image")
def _first_conv_image(
    dy: Tensor, x: Tensor, weight: Tensor, stride_h: int, stride_w: int, pad_h: int, pad_w: int
) -> Tensor:
    _check_first_gradient("first_conv_image", dy, x, weight, (stride_h, stride_w), (pad_h, pad_w))
    return x.new_empty(x.shape)


@fake("first_conv_weight")
def _first_conv_weight(
    dy: Tensor, x: Tensor, weight: Tensor, stride_h: int, stride_w: int, pad_h: int, pad_w: int
) -> Tensor:
    _check_first_gradient("first_conv_weight", dy, x, weight, (stride_h, stride_w), (pad_h, pad_w))
    return weight.new_empty(weight.shape)


@fake("image_conv_backward")
def _image_conv_backward(dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    _check_first_gradient("image_conv_backward", dy, x, weight, (1, 1), (1, 1))
    _check_image_weight("image_conv_backward", weight)
    return x.new_empty(x.shape)
