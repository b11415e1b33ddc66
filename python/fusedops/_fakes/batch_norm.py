"""Fakes of batch norm; checks as in csrc/common/checks/batch_norm_check.h."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.checks import dtype_name
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
from .gemm import moments_shape
from .rows import _check_grad_like, _compute_dtype


def _check_channels(op: str, name: str, vector: Tensor | None, x: Tensor) -> None:
    if vector is None:
        return
    _check_grad_like(op, name, vector, "x", x)
    n = x.shape[-1]
    check_same_shape(op, name, vector, (n,), f"shape ({n},) to match x {shape_of(x)}")


def _check_running(op: str, name: str, vector: Tensor | None, x: Tensor) -> None:
    _check_channels(op, name, vector, x)
    torch._check(
        vector is None or vector.is_contiguous(),
        lambda: f"{op}: {name} must be contiguous, since it is written; got another stride",
    )


def _check_rows_like(
    op: str, name: str, tensor: Tensor | None, like_name: str, like: Tensor
) -> None:
    if tensor is None:
        return
    check_like(op, name, tensor, like_name, like)
    check_same_shape(
        op, name, tensor, tuple(like.shape), f"shape {shape_of(like)} like {like_name}"
    )


def _check_moments(op: str, moments: Tensor | None, x: Tensor) -> None:
    if moments is not None:
        check_exactly(op, "moments", moments, torch.float64, moments_shape(x), x.device)


@fake("batch_norm_statistics_")
def _batch_norm_statistics(
    x: Tensor,
    moments: Tensor | None,
    shift: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
) -> tuple[Tensor, Tensor]:
    op = "batch_norm_statistics_"
    check_floating(op, "x", x)
    check_min_dim(op, "x", x, 1)
    _check_moments(op, moments, x)
    _check_channels(op, "shift", shift, x)
    _check_running(op, "running_mean", running_mean, x)
    _check_running(op, "running_var", running_var, x)
    wide = _compute_dtype(x)
    return x.new_empty(x.shape[-1:], dtype=wide), x.new_empty(x.shape[-1:], dtype=wide)


def _check_vectors(
    op: str,
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
) -> None:
    _check_channels(op, "mean", mean, x)
    _check_channels(op, "var", var, x)
    _check_channels(op, "weight", weight, x)
    _check_channels(op, "bias", bias, x)


@fake("batch_norm_apply")
def _batch_norm_apply(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    eps: float,
    activation: int,
) -> Tensor:
    op = "batch_norm_apply"
    check_activation(op, activation)
    check_floating(op, "x", x)
    check_min_dim(op, "x", x, 1)
    _check_vectors(op, x, mean, var, weight, bias)
    _check_rows_like(op, "residual", residual, "x", x)
    return x.new_empty(x.shape)


def _check_backward(
    op: str,
    dy: Tensor,
    x: Tensor,
    vectors: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    saved: Tensor | None,
    activation: int,
) -> None:
    check_activation(op, activation)
    check_floating(op, "dy", dy)
    check_min_dim(op, "dy", dy, 1)
    _check_rows_like(op, "x", x, "dy", dy)
    _check_vectors(op, x, *vectors)
    _check_rows_like(op, "saved", saved, "dy", dy)


@fake("batch_norm_sums")
def _batch_norm_sums(
    dy: Tensor,
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    saved: Tensor | None,
    eps: float,
    activation: int,
    need_dz: bool,
) -> tuple[Tensor, Tensor]:
    _check_backward("batch_norm_sums", dy, x, (mean, var, weight, bias), saved, activation)
    sums = dy.new_empty((2, dy.shape[-1]), dtype=_compute_dtype(dy))
    return sums, dy.new_empty(dy.shape if need_dz else (0,))


def _check_sums(op: str, name: str, tensor: Tensor, shape: tuple[int, ...], x: Tensor) -> None:
    wide = _compute_dtype(x)
    torch._check(
        tensor.device == x.device,
        lambda: f"{op}: {name} must be on {x.device} like x; got {tensor.device}",
    )
    torch._check(
        tensor.dtype is wide,
        lambda: f"{op}: {name} must have dtype {dtype_name(wide)}; got {dtype_name(tensor.dtype)}",
    )
    check_same_shape(op, name, tensor, shape, f"shape {shape}")


@fake("batch_norm_backward")
def _batch_norm_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    saved: Tensor | None,
    sums: Tensor | None,
    count: Tensor | None,
    eps: float,
    activation: int,
    need_dz: bool,
) -> tuple[Tensor, Tensor]:
    op = "batch_norm_backward"
    _check_backward(op, dy, x, (mean, var, weight, bias), saved, activation)
    if sums is not None:
        _check_sums(op, "sums", sums, (2, x.shape[-1]), x)
    if count is not None:
        _check_sums(op, "count", count, (), x)
    return dy.new_empty(dy.shape), dy.new_empty(dy.shape if need_dz else (0,))


@fake("batch_norm_train_")
def _batch_norm_train(
    x: Tensor,
    moments: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    shift: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    activation: int,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "batch_norm_train_"
    check_floating(op, "x", x)
    check_min_dim(op, "x", x, 1)
    _check_moments(op, moments, x)
    _check_channels(op, "shift", shift, x)
    _check_running(op, "running_mean", running_mean, x)
    _check_running(op, "running_var", running_var, x)
    check_activation(op, activation)
    _check_vectors(op, x, None, None, weight, bias)
    _check_rows_like(op, "residual", residual, "x", x)
    wide = _compute_dtype(x)
    mean, var = (x.new_empty(x.shape[-1:], dtype=wide) for _ in range(2))
    return x.new_empty(x.shape), mean, var


@fake("batch_norm_train_backward")
def _batch_norm_train_backward(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    saved: Tensor | None,
    eps: float,
    activation: int,
    need_dz: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "batch_norm_train_backward"
    _check_backward(op, dy, x, (mean, var, weight, bias), saved, activation)
    sums = dy.new_empty((2, dy.shape[-1]), dtype=_compute_dtype(dy))
    return dy.new_empty(dy.shape), dy.new_empty(dy.shape if need_dz else (0,)), sums


def _check_outputs(op: str, weight: Tensor, vectors: dict[str, Tensor | None]) -> None:
    n = weight.shape[0]
    for name, vector in vectors.items():
        if vector is not None:
            _check_grad_like(op, name, vector, "weight", weight)
            text = f"shape ({n},) to match weight {shape_of(weight)}"
            check_same_shape(op, name, vector, (n,), text)


@fake("batch_norm_fold")
def _batch_norm_fold(
    weight: Tensor,
    conv_bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    bn_weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    op = "batch_norm_fold"
    check_floating(op, "weight", weight)
    check_matrix(op, "weight", weight, "(O, K)")
    vectors = {"conv_bias": conv_bias, "mean": mean, "var": var}
    _check_outputs(op, weight, {**vectors, "bn_weight": bn_weight, "bias": bias})
    return weight.new_empty(weight.shape), weight.new_empty(weight.shape[:1])
