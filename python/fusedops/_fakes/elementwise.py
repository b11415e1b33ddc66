"""Fakes of the elementwise ops; checks as in csrc/common/checks/elementwise_check.h."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .checks import (
    check_activation,
    check_floating,
    check_like,
    check_min_dim,
    check_same_shape,
    fake,
    shape_of,
)

_NUMERIC = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)

_Named = Sequence[tuple[str, Tensor]]


def _check_broadcast(op: str, inputs: _Named) -> torch.Size:
    first_name, first = inputs[0]
    torch._check(
        first.dtype in _NUMERIC,
        lambda: (
            f"{op}: {first_name} must be floating (16 to 64 bits) or an integer (8 to 64 bits); "
            f"got {dtype_name(first.dtype)}"
        ),
    )
    shape = first.shape
    for name, tensor in inputs[1:]:
        check_like(op, name, tensor, first_name, first)
        try:
            shape = torch.broadcast_shapes(shape, tensor.shape)
        except RuntimeError:
            raise RuntimeError(
                f"{op}: {name} must have a shape that broadcasts with {tuple(shape)}; got "
                f"{shape_of(tensor)}"
            ) from None
    return shape


def _new_result(shape: torch.Size, *inputs: Tensor) -> Tensor:
    """In the order of memory of the first input of that shape, as torch.empty_like keeps it."""
    for tensor in inputs:
        if tensor.shape != shape:
            continue
        if tensor.is_contiguous():  # whatever the strides of dimensions of one element are
            break
        return torch.empty_like(tensor)
    return inputs[0].new_empty(shape)


def _check_out(op: str, out: Tensor, shape: torch.Size, like_name: str, like: Tensor) -> None:
    check_like(op, "out", out, like_name, like)
    check_same_shape(op, "out", out, tuple(shape), f"shape {tuple(shape)}")


def _check_trailing(op: str, name: str, vector: Tensor | None, x: Tensor) -> None:
    if vector is None:
        return
    check_like(op, name, vector, "x", x)
    n = x.shape[-1]
    check_same_shape(op, name, vector, (n,), f"shape ({n},) to match x {shape_of(x)}")


@fake("add")
def _add(x: Tensor, y: Tensor) -> Tensor:
    return _new_result(_check_broadcast("add", [("x", x), ("y", y)]), x, y)


@fake("add_out")
def _add_out(x: Tensor, y: Tensor, out: Tensor) -> None:
    _check_out("add", out, _check_broadcast("add", [("x", x), ("y", y)]), "x", x)


@fake("fma")
def _fma(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    return _new_result(_check_broadcast("fma", [("a", a), ("x", x), ("b", b)]), a, x, b)


@fake("fma_out")
def _fma_out(a: Tensor, x: Tensor, b: Tensor, out: Tensor) -> None:
    _check_out("fma", out, _check_broadcast("fma", [("a", a), ("x", x), ("b", b)]), "a", a)


@fake("square")
def _square(x: Tensor) -> Tensor:
    return _new_result(_check_broadcast("square", [("x", x)]), x)


@fake("square_out")
def _square_out(x: Tensor, out: Tensor) -> None:
    _check_out("square", out, _check_broadcast("square", [("x", x)]), "x", x)


@fake("square_backward")
def _square_backward(dy: Tensor, x: Tensor) -> Tensor:
    op = "square_backward"
    check_floating(op, "dy", dy)
    check_like(op, "x", x, "dy", dy)
    check_same_shape(op, "x", x, tuple(dy.shape), f"shape {shape_of(dy)} like dy")
    return _new_result(dy.shape, dy, x)


@fake("relu")
def _relu(x: Tensor) -> Tensor:
    return _new_result(_check_broadcast("relu", [("x", x)]), x)


@fake("relu_out")
def _relu_out(x: Tensor, out: Tensor) -> None:
    _check_out("relu", out, _check_broadcast("relu", [("x", x)]), "x", x)


@fake("scale_bias_act")
def _scale_bias_act(
    x: Tensor, scale: Tensor | None, bias: Tensor | None, activation: int
) -> Tensor:
    op = "scale_bias_act"
    check_activation(op, activation)
    check_floating(op, "x", x)
    check_min_dim(op, "x", x, 1)
    _check_trailing(op, "scale", scale, x)
    _check_trailing(op, "bias", bias, x)
    return _new_result(x.shape, x)


@fake("scale_bias_act_out")
def _scale_bias_act_out(
    x: Tensor, scale: Tensor | None, bias: Tensor | None, activation: int, out: Tensor
) -> None:
    _scale_bias_act(x, scale, bias, activation)
    _check_out("scale_bias_act", out, x.shape, "x", x)


@fake("scale_bias_act_backward")
def _scale_bias_act_backward(
    dy: Tensor,
    x: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    activation: int,
    need_dx: bool,
    need_dscale: bool,
    need_dbias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "scale_bias_act_backward"
    check_activation(op, activation)
    check_floating(op, "dy", dy)
    check_min_dim(op, "dy", dy, 1)
    check_like(op, "x", x, "dy", dy)
    check_same_shape(op, "x", x, tuple(dy.shape), f"shape {shape_of(dy)} like dy")
    _check_trailing(op, "scale", scale, x)
    _check_trailing(op, "bias", bias, x)
    n = dy.shape[-1]
    return (
        dy.new_empty(dy.shape if need_dx else (0,)),
        dy.new_empty((n if need_dscale else 0,)),
        dy.new_empty((n if need_dbias else 0,)),
    )


def _check_seed(op: str, seed: Tensor | None, p: float, like_name: str, like: Tensor) -> None:
    torch._check(0 <= p <= 1, lambda: f"{op}: p must be from 0 to 1; got {p:g}")
    if p == 0:
        return
    torch._check(
        seed is not None, lambda: f"{op}: seed must be an int64 tensor of shape (1,); got None"
    )
    assert seed is not None
    torch._check(
        seed.dtype is torch.int64 and seed.dim() == 1 and seed.shape[0] == 1,
        lambda: (
            f"{op}: seed must be an int64 tensor of shape (1,); got {dtype_name(seed.dtype)} "
            f"{shape_of(seed)}"
        ),
    )
    torch._check(
        seed.device == like.device,
        lambda: f"{op}: seed must be on {like.device} like {like_name}; got {seed.device}",
    )


@fake("bias_dropout_residual")
def _bias_dropout_residual(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, seed: Tensor | None, p: float
) -> Tensor:
    op = "bias_dropout_residual"
    check_floating(op, "x", x)
    check_min_dim(op, "x", x, 1)
    _check_trailing(op, "bias", bias, x)
    if residual is not None:
        check_like(op, "residual", residual, "x", x)
        check_same_shape(op, "residual", residual, tuple(x.shape), f"shape {shape_of(x)} like x")
    _check_seed(op, seed, p, "x", x)
    return x.new_empty(x.shape)


@fake("bias_dropout_residual_out")
def _bias_dropout_residual_out(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    seed: Tensor | None,
    p: float,
    out: Tensor,
) -> None:
    _bias_dropout_residual(x, bias, residual, seed, p)
    _check_out("bias_dropout_residual", out, x.shape, "x", x)


@fake("bias_dropout_residual_backward")
def _bias_dropout_residual_backward(
    dy: Tensor, seed: Tensor | None, p: float, need_dx: bool, need_dbias: bool
) -> tuple[Tensor, Tensor]:
    op = "bias_dropout_residual_backward"
    check_floating(op, "dy", dy)
    check_min_dim(op, "dy", dy, 1)
    _check_seed(op, seed, p, "dy", dy)
    return (
        dy.new_empty(dy.shape if need_dx else (0,)),
        dy.new_empty((dy.shape[-1] if need_dbias else 0,)),
    )
