"""Fakes of scans, histograms, segment reductions and top-k; checks as in csrc/common/checks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .checks import check_floating, check_min_dim, fake, shape_of

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MOST = 128
_KINDS = 4


def _check_element(op: str, x: Tensor) -> None:
    torch._check(
        x.dtype in (torch.bool, *_INTEGERS, *_FLOATS),
        lambda: (
            f"{op}: x must be bool, an integer or a floating dtype up to 64 bits; got "
            f"{dtype_name(x.dtype)}"
        ),
    )


def _check_dim(op: str, x: Tensor, dim: int) -> None:
    count = max(x.dim(), 1)
    torch._check(
        -count <= dim < count,
        lambda: f"{op}: dim must be from {-count} to {count - 1}; got {dim}",
    )


def _accumulate(op: str, x: Tensor, dim: int) -> Tensor:
    _check_element(op, x)
    _check_dim(op, x, dim)
    dtype = x.dtype if x.dtype.is_floating_point else torch.int64
    return x.new_empty(x.shape, dtype=dtype)


def _extreme(op: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    _check_element(op, x)
    _check_dim(op, x, dim)
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.int64)


@fake("cumsum")
def _cumsum(x: Tensor, dim: int, exclusive: bool, reverse: bool) -> Tensor:
    return _accumulate("cumsum", x, dim)


@fake("cumprod")
def _cumprod(x: Tensor, dim: int, exclusive: bool, reverse: bool) -> Tensor:
    return _accumulate("cumprod", x, dim)


@fake("cummax")
def _cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extreme("cummax", x, dim)


@fake("cummin")
def _cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extreme("cummin", x, dim)


def _check_bins(op: str, bins: int) -> None:
    torch._check(1 <= bins < 2**31, lambda: f"{op}: bins must be from 1 to 2147483647; got {bins}")


@fake("bincount")
def _bincount(x: Tensor, bins: int) -> Tensor:
    torch._check(
        x.dtype in _INTEGERS,
        lambda: (
            f"bincount: x must be uint8, int8, int16, int32 or int64; got {dtype_name(x.dtype)}"
        ),
    )
    _check_bins("bincount", bins)
    return x.new_empty((bins,), dtype=torch.int64)


@fake("histogram")
def _histogram(x: Tensor, bins: int, low: float, high: float) -> Tensor:
    check_floating("histogram", "x", x)
    _check_bins("histogram", bins)
    torch._check(
        math.isfinite(low) and math.isfinite(high) and low < high,
        lambda: f"histogram: low must be less than high, both finite; got {low:g} and {high:g}",
    )
    return x.new_empty((bins,), dtype=torch.int64)


def _check_offsets(op: str, offsets: Tensor, like_name: str, like: Tensor) -> None:
    torch._check(
        offsets.device == like.device,
        lambda: f"{op}: offsets must be on {like.device} like {like_name}; got {offsets.device}",
    )
    torch._check(
        offsets.dtype == torch.int64,
        lambda: f"{op}: offsets must have dtype int64; got {dtype_name(offsets.dtype)}",
    )
    torch._check(
        offsets.dim() == 1 and offsets.shape[0] >= 1,
        lambda: f"{op}: offsets must have shape (S + 1,); got shape {shape_of(offsets)}",
    )


@fake("segment_reduce")
def _segment_reduce(x: Tensor, offsets: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    op = "segment_reduce"
    check_floating(op, "x", x)
    check_min_dim(op, "x", x, 1)
    _check_offsets(op, offsets, "x", x)
    torch._check(
        0 <= kind < _KINDS, lambda: f"{op}: kind must be from 0 to {_KINDS - 1}; got {kind}"
    )
    shape = (offsets.shape[0] - 1, *x.shape[1:])
    return x.new_empty(shape), x.new_empty(shape if kind >= 2 else (0,), dtype=torch.int64)


@fake("segment_reduce_backward")
def _segment_reduce_backward(
    dy: Tensor, offsets: Tensor, index: Tensor | None, rows: int, mean: bool
) -> Tensor:
    op = "segment_reduce_backward"
    check_floating(op, "dy", dy)
    check_min_dim(op, "dy", dy, 1)
    _check_offsets(op, offsets, "dy", dy)
    torch._check(
        dy.shape[0] == offsets.shape[0] - 1,
        lambda: (
            f"{op}: dy must have {offsets.shape[0] - 1} row(s) like offsets; got shape "
            f"{shape_of(dy)}"
        ),
    )
    if index is not None:
        torch._check(
            index.device == dy.device and index.dtype == torch.int64,
            lambda: (
                f"{op}: index must be int64 on {dy.device}; got {dtype_name(index.dtype)} on "
                f"{index.device}"
            ),
        )
        torch._check(
            index.shape == dy.shape,
            lambda: f"{op}: index must have shape {shape_of(dy)} like dy; got {shape_of(index)}",
        )
    torch._check(rows >= 0, lambda: f"{op}: rows must not be negative; got {rows}")
    return dy.new_empty((rows, *dy.shape[1:]))


@fake("topk")
def _topk(x: Tensor, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    _check_element("topk", x)
    torch._check(x.dtype != torch.bool, lambda: "topk: x must not be bool; got bool")
    check_min_dim("topk", "x", x, 1)
    n = x.shape[-1]
    torch._check(
        0 <= k <= _MOST and k <= n,
        lambda: (
            f"topk: k must be from 0 to {min(_MOST, n)}, the smaller of 128 and the row length; "
            f"got {k}"
        ),
    )
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)
