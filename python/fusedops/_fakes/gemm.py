"""Fakes of the GEMM ops; checks as in csrc/common/checks/linear_check.h."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._core.activation import SAVES_OUTPUT, SAVES_PREACT
from .checks import (
    check_activation,
    check_exactly,
    check_floating,
    check_like,
    check_matrix,
    check_min_dim,
    check_same_shape,
    fake,
    shape_of,
)


def _check_bias(op: str, bias: Tensor, n: int, like_name: str, like: Tensor) -> None:
    def text() -> str:
        return (
            f"{op}: bias must have shape ({n},) to match {like_name} {shape_of(like)}; got "
            f"{shape_of(bias)}"
        )

    torch._check(bias.dim() == 1, text)
    torch._check(bias.shape[0] == n, text)


def check_linear(op: str, x: Tensor, weight: Tensor, bias: Tensor | None, activation: int) -> None:
    check_activation(op, activation)
    check_floating(op, "x", x)
    check_like(op, "weight", weight, "x", x)
    if bias is not None:
        check_like(op, "bias", bias, "x", x)
    check_min_dim(op, "x", x, 1)
    check_matrix(op, "weight", weight, "(N, K)")
    k = x.shape[-1]
    torch._check(
        weight.shape[1] == k,
        lambda: (
            f"{op}: weight must have shape (N, {k}) to match x (..., {k}); got {shape_of(weight)}"
        ),
    )
    if bias is not None:
        _check_bias(op, bias, weight.shape[0], "weight", weight)


def _check_matmul(op: str, a: Tensor, b: Tensor, bias: Tensor | None, activation: int) -> None:
    check_activation(op, activation)
    check_floating(op, "a", a)
    check_like(op, "b", b, "a", a)
    if bias is not None:
        check_like(op, "bias", bias, "a", a)
    check_matrix(op, "a", a, "(M, K)")
    check_matrix(op, "b", b, "(K, N)")
    torch._check(
        b.shape[0] == a.shape[1],
        lambda: (
            f"{op}: b must have shape ({a.shape[1]}, N) to match a {shape_of(a)}; got {shape_of(b)}"
        ),
    )
    if bias is not None:
        _check_bias(op, bias, b.shape[1], "b", b)


def _check_saved(op: str, dy: Tensor, saved: Tensor | None, activation: int) -> None:
    if not (SAVES_OUTPUT[activation] or SAVES_PREACT[activation]):
        return
    what = "the forward output y" if SAVES_OUTPUT[activation] else "the pre-activation z"
    torch._check(
        saved is not None,
        lambda: f"{op}: saved must be {what} for activation code {activation}; got None",
    )
    assert saved is not None
    check_like(op, "saved", saved, "dy", dy)
    check_same_shape(op, "saved", saved, tuple(dy.shape), f"shape {shape_of(dy)} like dy")


@fake("linear")
def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: int, allow_tf32: bool
) -> Tensor:
    check_linear("linear", x, weight, bias, activation)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@fake("linear_preact")
def _linear_preact(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: int, allow_tf32: bool
) -> tuple[Tensor, Tensor]:
    y = _linear(x, weight, bias, activation, allow_tf32)
    return y, torch.empty_like(y)


MOMENT_ROWS = 2048  # as in csrc/common/checks/batch_norm_check.h


def moments_shape(x: Tensor) -> tuple[int, int, int]:
    """The shape of the moments of x (..., C) as products give them."""
    rows = math.prod(x.shape[:-1])
    return 2, x.shape[-1], (rows + MOMENT_ROWS - 1) // MOMENT_ROWS


@fake("linear_moments")
def _linear_moments(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    check_linear("linear_moments", x, weight, None, 0)
    y = x.new_empty((*x.shape[:-1], weight.shape[0]))
    return y, y.new_empty(moments_shape(y), dtype=torch.float64)


@fake("matmul")
def _matmul(a: Tensor, b: Tensor, bias: Tensor | None, activation: int, allow_tf32: bool) -> Tensor:
    _check_matmul("matmul", a, b, bias, activation)
    return a.new_empty((a.shape[0], b.shape[1]))


@fake("matmul_preact")
def _matmul_preact(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: int, allow_tf32: bool
) -> tuple[Tensor, Tensor]:
    y = _matmul(a, b, bias, activation, allow_tf32)
    return y, torch.empty_like(y)


@fake("linear_backward")
def _linear_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    saved: Tensor | None,
    activation: int,
    need_dx: bool,
    need_dweight: bool,
    need_dbias: bool,
    dweight_fp32: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "linear_backward"
    check_linear(op, x, weight, None, activation)
    check_like(op, "dy", dy, "x", x)
    n = weight.shape[0]
    check_same_shape(
        op,
        "dy",
        dy,
        (*x.shape[:-1], n),
        f"the shape of x {shape_of(x)} with a last dimension of {n}",
    )
    _check_saved(op, dy, saved, activation)
    parameter_dtype = torch.float32 if dweight_fp32 else x.dtype
    return (
        x.new_empty(x.shape if need_dx else (0,)),
        x.new_empty(weight.shape if need_dweight else (0,), dtype=parameter_dtype),
        x.new_empty((n if need_dbias else 0,), dtype=parameter_dtype),
    )


def check_rows_like(
    op: str, name: str, tensor: Tensor, x_name: str, x: Tensor, columns: int
) -> None:
    check_like(op, name, tensor, x_name, x)
    expected = f"the shape of {x_name} {shape_of(x)} with a last dimension of {columns}"
    check_same_shape(op, name, tensor, (*x.shape[:-1], columns), expected)


@fake("linear_input_backward")
def _linear_input_backward(dz: Tensor, weight: Tensor, added: Tensor, allow_tf32: bool) -> Tensor:
    op = "linear_input_backward"
    check_floating(op, "dz", dz)
    check_min_dim(op, "dz", dz, 1)
    check_like(op, "weight", weight, "dz", dz)
    check_like(op, "added", added, "dz", dz)
    check_matrix(op, "weight", weight, "(N, K)")
    n = dz.shape[-1]
    torch._check(
        weight.shape[0] == n,
        lambda: (
            f"{op}: weight must have shape ({n}, K) to match dz (..., {n}); got {shape_of(weight)}"
        ),
    )
    check_rows_like(op, "added", added, "dz", dz, weight.shape[1])
    return added.new_empty(added.shape)


def check_main_grad(op: str, main_grad: Tensor, n: int, k: int, like: Tensor) -> None:
    check_exactly(op, "main_grad", main_grad, torch.float32, (n, k), like.device)


@fake("linear_wgrad_")
def _linear_wgrad(
    dz: Tensor, x: Tensor, main_grad: Tensor, accumulate: bool, allow_tf32: bool
) -> None:
    op = "linear_wgrad_"
    check_floating(op, "dz", dz)
    check_min_dim(op, "dz", dz, 1)
    check_like(op, "x", x, "dz", dz)
    expected = f"the leading dimensions of dz {shape_of(dz)}"
    check_same_shape(op, "x", x, (*dz.shape[:-1], x.shape[-1]), expected)
    check_main_grad(op, main_grad, dz.shape[-1], x.shape[-1], dz)


@fake("act_backward_bias_grad")
def _act_backward_bias_grad(
    dy: Tensor, saved: Tensor | None, activation: int, need_dbias: bool, dbias_fp32: bool
) -> tuple[Tensor, Tensor]:
    op = "act_backward_bias_grad"
    check_activation(op, activation)
    check_floating(op, "dy", dy)
    check_min_dim(op, "dy", dy, 1)
    _check_saved(op, dy, saved, activation)
    dbias_dtype = torch.float32 if dbias_fp32 else dy.dtype
    return (
        dy.new_empty(dy.shape),
        dy.new_empty((dy.shape[-1] if need_dbias else 0,), dtype=dbias_dtype),
    )
