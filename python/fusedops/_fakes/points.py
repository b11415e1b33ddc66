"""Fakes of the sampling and grouping ops."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .checks import check_floating, check_like, check_same_shape, fake, shape_of
from .cloud import check_clouds, check_dim, check_index, check_index_vector

_MAX_LENGTH = 2**31 - 1
_MAX_ROWS = 2**32 - 2


@fake("farthest_point_sample")
def _farthest_point_sample(
    points: Tensor,
    lengths: Tensor | None,
    offsets: Tensor | None,
    start: Tensor | None,
    out_offsets: Tensor | None,
    n: int,
    max_length: int,
) -> Tensor:
    op = "farthest_point_sample"
    clouds = check_clouds(op, points, lengths, offsets)
    if start is not None:
        check_index_vector(op, "start", start, clouds.batch, "points", points)
    if out_offsets is not None:
        check_index_vector(op, "out_offsets", out_offsets, clouds.batch + 1, "points", points)
    torch._check(n >= 0, lambda: f"{op}: n must be >= 0; got {n}")
    torch._check(max_length >= 0, lambda: f"{op}: max_length must be >= 0; got {max_length}")
    longest = torch.sym_min(max_length, clouds.capacity)
    torch._check(
        longest <= _MAX_LENGTH,
        lambda: f"{op}: a cloud must have at most {_MAX_LENGTH} points; got {longest}",
    )
    shape = (clouds.batch, n) if out_offsets is None else (n,)
    return points.new_empty(shape, dtype=torch.int64)


def _check_neighbours(op: str, idx: Tensor, like_name: str, like: Tensor) -> None:
    check_index(op, "idx", idx, like_name, like)
    check_dim(op, "idx", idx, 3, "(B, M, K)")
    torch._check(
        idx.shape[0] == like.shape[0],
        lambda: (
            f"{op}: idx must have {like.shape[0]} cloud(s) like {like_name}; got {idx.shape[0]}"
        ),
    )


def _check_side_input(op: str, name: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    torch._check(
        tensor.device == like.device,
        lambda: f"{op}: {name} must be on {like.device} like {like_name}; got {tensor.device}",
    )
    check_floating(op, name, tensor)
    half = like.dtype.itemsize == 2
    torch._check(
        tensor.dtype == like.dtype or (half and tensor.dtype == torch.float32),
        lambda: (
            f"{op}: {name} must have dtype {dtype_name(like.dtype)}{' or float32' if half else ''} "
            f"like {like_name}; got {dtype_name(tensor.dtype)}"
        ),
    )


def _check_shape(op: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    check_same_shape(op, name, tensor, shape, f"shape ({', '.join(map(str, shape))})")


def _check_scatter_size(op: str, idx: Tensor, n: int) -> None:
    torch._check(
        idx.numel() <= _MAX_LENGTH,
        lambda: f"{op}: idx must have at most {_MAX_LENGTH} entries; got {idx.numel()}",
    )
    torch._check(
        n * idx.shape[0] <= _MAX_ROWS,
        lambda: (
            f"{op}: the clouds must have at most {_MAX_ROWS} points together; got {idx.shape[0]} "
            f"of {n}"
        ),
    )


@fake("group")
def _group(
    features: Tensor | None, idx: Tensor, points: Tensor | None, centers: Tensor | None
) -> Tensor:
    op = "group"
    first = points if features is None else features
    torch._check(
        first is not None,
        lambda: f"{op}: features must be a tensor where points is None; got None",
    )
    assert first is not None
    name, layout = ("points", "(B, N, D)") if features is None else ("features", "(B, N, C)")
    check_floating(op, name, first)
    check_dim(op, name, first, 3, layout)
    _check_neighbours(op, idx, name, first)
    torch._check(
        centers is None or points is not None,
        lambda: f"{op}: centers must be None where points is None; got a tensor",
    )
    width = 0 if features is None else features.shape[2]
    if points is not None:
        if features is not None:
            _check_side_input(op, "points", points, name, first)
            check_dim(op, "points", points, 3, "(B, N, D)")
            _check_shape(op, "points", points, (*first.shape[:2], points.shape[2]))
        if centers is not None:
            check_like(op, "centers", centers, "points", points)
            _check_shape(op, "centers", centers, (*idx.shape[:2], points.shape[2]))
        width = width + points.shape[2]
    return first.new_empty((*idx.shape, width))


@fake("group_backward")
def _group_backward(
    dout: Tensor, idx: Tensor, n: int, first: int, count: int, fp32: bool
) -> Tensor:
    op = "group_backward"
    check_floating(op, "dout", dout)
    check_dim(op, "dout", dout, 4, "(B, M, K, C)")
    _check_neighbours(op, idx, "dout", dout)
    for axis in (1, 2):
        torch._check(
            dout.shape[axis] == idx.shape[axis],
            lambda: (
                f"{op}: dout must have shape (B, M, K, C) with (B, M, K) that of idx "
                f"{shape_of(idx)}; got {shape_of(dout)}"
            ),
        )
    torch._check(n >= 0, lambda: f"{op}: n must be >= 0; got {n}")
    for good in (first >= 0, count >= 0, first + count <= dout.shape[3]):
        torch._check(
            good,
            lambda: (
                f"{op}: first and count must name channels of dout {shape_of(dout)}; got {first} "
                f"and {count}"
            ),
        )
    _check_scatter_size(op, idx, n)
    wide = fp32 and dout.dtype != torch.float64
    dtype = torch.float32 if wide else dout.dtype
    return dout.new_empty((idx.shape[0], n, count), dtype=dtype)


def _check_interpolate(op: str, features: Tensor, idx: Tensor, weights: Tensor) -> None:
    check_floating(op, "features", features)
    check_dim(op, "features", features, 3, "(B, N, C)")
    _check_neighbours(op, idx, "features", features)
    _check_side_input(op, "weights", weights, "features", features)
    check_same_shape(op, "weights", weights, tuple(idx.shape), f"shape {shape_of(idx)} like idx")


@fake("interpolate")
def _interpolate(features: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
    _check_interpolate("interpolate", features, idx, weights)
    return features.new_empty((*idx.shape[:2], features.shape[2]))


@fake("interpolate_backward")
def _interpolate_backward(
    dout: Tensor,
    features: Tensor,
    idx: Tensor,
    weights: Tensor,
    need_dfeatures: bool,
    need_dweights: bool,
) -> tuple[Tensor, Tensor]:
    op = "interpolate_backward"
    check_floating(op, "dout", dout)
    _check_interpolate(op, features, idx, weights)
    check_like(op, "dout", dout, "features", features)
    _check_shape(op, "dout", dout, (*idx.shape[:2], features.shape[2]))
    _check_scatter_size(op, idx, features.shape[1])
    return (
        features.new_empty(features.shape if need_dfeatures else (0,)),
        weights.new_empty(weights.shape if need_dweights else (0,)),
    )
