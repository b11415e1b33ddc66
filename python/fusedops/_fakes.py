"""Fake (shape-only) implementations of every op: what torch.compile, torch.export and meta tensors
run. Checks and their texts are those of csrc/common/{tensor_check,linear_check}.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import _C  # noqa: F401  (registers torch.ops.fusedops)
from .activation import ACTIVATIONS, SAVES_OUTPUT, SAVES_PREACT

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_F = TypeVar("_F", bound=Callable[..., Any])


def _fake(name: str) -> Callable[[_F], _F]:
    def register(function: _F) -> _F:
        torch.library.register_fake(f"fusedops::{name}", function)
        return function

    return register


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_activation(op: str, activation: int) -> None:
    torch._check(
        0 <= activation < len(ACTIVATIONS),
        lambda: (
            f"{op}: activation must be a code from 0 to {len(ACTIVATIONS) - 1}; got {activation}"
        ),
    )


def _check_floating(op: str, name: str, tensor: Tensor) -> None:
    torch._check(
        tensor.dtype in _FLOATING,
        lambda: (
            f"{op}: {name} must be float16, bfloat16, float32 or float64; got "
            f"{_dtype(tensor.dtype)}"
        ),
    )


def _check_like(op: str, name: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    torch._check(
        tensor.device == like.device,
        lambda: f"{op}: {name} must be on {like.device} like {like_name}; got {tensor.device}",
    )
    torch._check(
        tensor.dtype == like.dtype,
        lambda: (
            f"{op}: {name} must have dtype {_dtype(like.dtype)} like {like_name}; got "
            f"{_dtype(tensor.dtype)}"
        ),
    )


def _check_min_dim(op: str, name: str, tensor: Tensor, dim: int) -> None:
    torch._check(
        tensor.dim() >= dim,
        lambda: f"{op}: {name} must have at least {dim} dimension(s); got shape {_shape(tensor)}",
    )


def _check_matrix(op: str, name: str, tensor: Tensor, layout: str) -> None:
    torch._check(
        tensor.dim() == 2,
        lambda: f"{op}: {name} must be 2-dimensional, {layout}; got shape {_shape(tensor)}",
    )


def _check_bias(op: str, bias: Tensor, n: int, like_name: str, like: Tensor) -> None:
    def text() -> str:
        return (
            f"{op}: bias must have shape ({n},) to match {like_name} {_shape(like)}; got "
            f"{_shape(bias)}"
        )

    torch._check(bias.dim() == 1, text)
    torch._check(bias.shape[0] == n, text)


def _check_linear(op: str, x: Tensor, weight: Tensor, bias: Tensor | None, activation: int) -> None:
    _check_activation(op, activation)
    _check_floating(op, "x", x)
    _check_like(op, "weight", weight, "x", x)
    if bias is not None:
        _check_like(op, "bias", bias, "x", x)
    _check_min_dim(op, "x", x, 1)
    _check_matrix(op, "weight", weight, "(N, K)")
    k = x.shape[-1]
    torch._check(
        weight.shape[1] == k,
        lambda: (
            f"{op}: weight must have shape (N, {k}) to match x (..., {k}); got {_shape(weight)}"
        ),
    )
    if bias is not None:
        _check_bias(op, bias, weight.shape[0], "weight", weight)


def _check_matmul(op: str, a: Tensor, b: Tensor, bias: Tensor | None, activation: int) -> None:
    _check_activation(op, activation)
    _check_floating(op, "a", a)
    _check_like(op, "b", b, "a", a)
    if bias is not None:
        _check_like(op, "bias", bias, "a", a)
    _check_matrix(op, "a", a, "(M, K)")
    _check_matrix(op, "b", b, "(K, N)")
    torch._check(
        b.shape[0] == a.shape[1],
        lambda: (
            f"{op}: b must have shape ({a.shape[1]}, N) to match a {_shape(a)}; got {_shape(b)}"
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
    _check_like(op, "saved", saved, "dy", dy)
    _check_same_shape(op, "saved", saved, tuple(dy.shape), f"shape {_shape(dy)} like dy")


def _check_same_shape(
    op: str, name: str, tensor: Tensor, shape: tuple[int, ...], expected: str
) -> None:
    def text() -> str:
        return f"{op}: {name} must have {expected}; got {_shape(tensor)}"

    torch._check(tensor.dim() == len(shape), text)
    for size, want in zip(tensor.shape, shape, strict=True):
        torch._check(size == want, text)


@_fake("linear")
def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: int, allow_tf32: bool
) -> Tensor:
    _check_linear("linear", x, weight, bias, activation)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@_fake("linear_preact")
def _linear_preact(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: int, allow_tf32: bool
) -> tuple[Tensor, Tensor]:
    y = _linear(x, weight, bias, activation, allow_tf32)
    return y, torch.empty_like(y)


@_fake("matmul")
def _matmul(a: Tensor, b: Tensor, bias: Tensor | None, activation: int, allow_tf32: bool) -> Tensor:
    _check_matmul("matmul", a, b, bias, activation)
    return a.new_empty((a.shape[0], b.shape[1]))


@_fake("matmul_preact")
def _matmul_preact(
    a: Tensor, b: Tensor, bias: Tensor | None, activation: int, allow_tf32: bool
) -> tuple[Tensor, Tensor]:
    y = _matmul(a, b, bias, activation, allow_tf32)
    return y, torch.empty_like(y)


@_fake("linear_backward")
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
    _check_linear(op, x, weight, None, activation)
    _check_like(op, "dy", dy, "x", x)
    n = weight.shape[0]
    _check_same_shape(
        op,
        "dy",
        dy,
        (*x.shape[:-1], n),
        f"the shape of x {_shape(x)} with a last dimension of {n}",
    )
    _check_saved(op, dy, saved, activation)
    parameter_dtype = torch.float32 if dweight_fp32 else x.dtype
    return (
        x.new_empty(x.shape if need_dx else (0,)),
        x.new_empty(weight.shape if need_dweight else (0,), dtype=parameter_dtype),
        x.new_empty((n if need_dbias else 0,), dtype=parameter_dtype),
    )


@_fake("act_backward_bias_grad")
def _act_backward_bias_grad(
    dy: Tensor, saved: Tensor | None, activation: int, need_dbias: bool, dbias_fp32: bool
) -> tuple[Tensor, Tensor]:
    op = "act_backward_bias_grad"
    _check_activation(op, activation)
    _check_floating(op, "dy", dy)
    _check_min_dim(op, "dy", dy, 1)
    _check_saved(op, dy, saved, activation)
    dbias_dtype = torch.float32 if dbias_fp32 else dy.dtype
    return (
        dy.new_empty(dy.shape),
        dy.new_empty((dy.shape[-1] if need_dbias else 0,), dtype=dbias_dtype),
    )


@_fake("template_scale")
def _template_scale(x: Tensor, scale: float) -> Tensor:
    _check_floating("template_scale", "x", x)
    return x.new_empty(x.shape)
