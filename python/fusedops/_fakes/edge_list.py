"""Fakes of what the passes of an MLP over edges read: its edges and its parameters."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .checks import check_floating, fake, shape_of
from .cloud import check_dim
from .edges import MOST_FEATURES, PLANE, check_edge_tensor, check_half

_MOST_NEIGHBOURS = 2000  # kEdgeMaxNeighbours
_MOST = 2**31 - 1
_LAYERS = 4
_FP32, _INT32 = torch.float32, torch.int32


def _check_entries(op: str, idx: Tensor, n: int) -> None:
    torch._check(
        idx.dtype == torch.int64, lambda: f"{op}: idx must be int64; got {dtype_name(idx.dtype)}"
    )
    check_dim(op, "idx", idx, 3, "(B, M, K)")
    for good in (idx.numel() > 0, idx.numel() <= _MOST):
        torch._check(
            good, lambda: f"{op}: idx must have from 1 to {_MOST} entries; got {idx.numel()}"
        )
    for good in (n > 0, n * idx.shape[0] <= _MOST):
        torch._check(
            good,
            lambda: (
                f"{op}: the clouds must have from 1 to {_MOST} points together; got "
                f"{idx.shape[0]} of {n}"
            ),
        )
    torch._check(
        idx.shape[2] <= _MOST_NEIGHBOURS,
        lambda: f"{op}: idx must have at most {_MOST_NEIGHBOURS} neighbours; got {idx.shape[2]}",
    )


@fake("edge_counts")
def _edge_counts(idx: Tensor, n: int) -> Tensor:
    _check_entries("edge_counts", idx, n)
    return idx.new_empty((idx.shape[0] * idx.shape[1],), dtype=_INT32)


@fake("edge_list")
def _edge_list(
    idx: Tensor,
    ends: Tensor | None,
    n: int,
    points: Tensor | None,
    centers: Tensor | None,
    features: Tensor | None,
    like: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    op = "edge_list"
    _check_entries(op, idx, n)
    clouds, groups, k = idx.shape
    check_edge_tensor(op, "ends", ends, idx, _INT32, (clouds * groups,))
    count = 0
    if features is not None:
        check_dim(op, "features", features, 3, "(B, N, F)")
        count = features.shape[2]
        torch._check(
            0 < count <= MOST_FEATURES,
            lambda: f"{op}: features must have from 1 to {MOST_FEATURES} channels; got {count}",
        )
    check_edge_tensor(op, "points", points, idx, _FP32, (clouds, n, 3))
    check_edge_tensor(op, "centers", centers, idx, _FP32, (clouds, groups, 3))
    check_edge_tensor(op, "features", features, idx, like.dtype, (clouds, n, count))
    check_floating(op, "like", like)
    check_half(op, "like", like)
    planes = 2 if features is not None else int(points is not None)
    merged = (0 if ends is None else clouds, groups, k)
    return (
        idx.new_empty((clouds * groups * k, 4), dtype=_INT32),
        idx.new_empty(merged, dtype=torch.int64),
        idx.new_empty((clouds * groups if ends is None else 0,), dtype=_INT32),
        idx.new_empty((planes, clouds * groups * k, PLANE), dtype=like.dtype),
    )


@fake("edge_parameters")
def _edge_parameters(
    offset_weight: Tensor | None,
    feature_weight: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "edge_parameters"
    *layers, like = rest
    matrices, vectors = layers[: _LAYERS - 1], layers[_LAYERS - 1 : -2 * _LAYERS]
    widths = layers[-2 * _LAYERS : -_LAYERS]
    for i, width in enumerate(widths):
        torch._check(
            int(i == 0) <= width <= 1024,
            lambda w=width: f"{op}: widths must be from 1 to 1024, and 0 behind the last; got {w}",
        )
    check_floating(op, "like", like)
    check_half(op, "like", like)
    names = ("offset_weight", "feature_weight", "w2", "w3", "w4")
    limits = ((widths[0], 3), (widths[0], MOST_FEATURES), *pairwise(widths))
    limits = (*limits[:2], *((b, a) for a, b in limits[2:]))
    given = (offset_weight, feature_weight, *matrices)
    for name, matrix, limit in zip(names, given, limits, strict=True):
        _check_matrix(op, name, matrix, like, limit)
    for i, vector in enumerate(vectors):
        name = ("gamma", "beta", "bias", "mean", "var")[i // _LAYERS]
        _check_vector(op, name, vector, like, widths[i % _LAYERS])
    planes = 2 if feature_weight is not None else int(offset_weight is not None)
    return (
        like.new_empty((planes, widths[0] if planes else 0, PLANE)),
        like.new_empty((sum(a * b for a, b in pairwise(widths)),)),
        like.new_empty((sum(widths), 2), dtype=_FP32),
    )


def _check_matrix(
    op: str, name: str, matrix: Tensor | None, like: Tensor, limit: tuple[int, int]
) -> None:
    if matrix is None:
        return
    rows, columns = limit
    fits = matrix.dim() == 2 and matrix.shape[0] <= rows and matrix.shape[1] <= columns
    torch._check(
        fits,
        lambda: (
            f"{op}: {name} must have shape (O, I) with O up to {rows} and I up to {columns}; got "
            f"{shape_of(matrix)}"
        ),
    )
    torch._check(
        matrix.dtype == like.dtype and matrix.device == like.device,
        lambda: (
            f"{op}: {name} must be {dtype_name(like.dtype)} on {like.device}; got "
            f"{dtype_name(matrix.dtype)} on {matrix.device}"
        ),
    )


def _check_vector(op: str, name: str, vector: Tensor | None, like: Tensor, width: int) -> None:
    if vector is None:
        return
    torch._check(
        vector.dim() == 1 and vector.shape[0] <= width,
        lambda: f"{op}: {name} must have shape (C,) with C up to {width}; got {shape_of(vector)}",
    )
    torch._check(
        vector.dtype == _FP32 and vector.device == like.device,
        lambda: (
            f"{op}: {name} must be float32 on {like.device}; got {dtype_name(vector.dtype)} on "
            f"{vector.device}"
        ),
    )
    torch._check(vector.is_contiguous(), lambda: f"{op}: {name} must be contiguous")
