"""Fakes of the neighbour searches; checks as in csrc/common/checks/neighbours_check.h."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .checks import check_floating, check_like, check_same_shape, fake, shape_of
from .cloud import (
    Clouds,
    check_cloud_pair,
    check_clouds,
    check_dim,
    check_index,
    check_index_vector,
)

_MAX_K = 1024
_MAX_GRID_DIM = 3
_NUM_ALGORITHMS = 4
_TENSOR = 3
_GRID = 2
_AUTO = 0
_MAX_BALL_SCALES = 4
_QUERY_NAMES = ("queries", "query_lengths", "query_offsets")


def _rows(clouds: Clouds) -> int:
    return clouds.capacity if clouds.packed else clouds.batch * clouds.capacity


def _grid_bytes(clouds: Clouds, itemsize: int) -> int:
    """The layout of csrc/common/point_grid.h."""
    rows = _rows(clouds)

    def aligned(size: int) -> int:
        return (size + 255) // 256 * 256

    levels = 1
    while (clouds.capacity + (1 << (5 * levels)) - 1) >> (5 * levels) > 32:
        levels += 1
    groups = [(rows >> (5 * (level + 1))) + clouds.batch for level in range(levels)]
    return (
        aligned(clouds.batch * 32)
        + aligned(rows * 4)
        + aligned(groups[0] * 32 * 4 * itemsize)
        + aligned(sum(groups) * 8 * itemsize)
    )


def _distance_dtype(points: Tensor) -> torch.dtype:
    return torch.float64 if points.dtype == torch.float64 else torch.float32


def _check_grid_form(op: str, points: Tensor, clouds: Clouds) -> None:
    torch._check(
        _rows(clouds) < 2**31,
        lambda: f"{op}: points must have fewer than 2^31 rows; got shape {shape_of(points)}",
    )
    torch._check(
        1 <= clouds.dim <= _MAX_GRID_DIM,
        lambda: (
            f"{op}: points must have 1 to {_MAX_GRID_DIM} coordinates for a grid; got shape "
            f"{shape_of(points)}"
        ),
    )


def _check_neighbours(
    op: str,
    points: Tensor,
    queries: Tensor,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    grid: Tensor | None,
    algorithm: int,
) -> None:
    torch._check(
        0 <= algorithm < _NUM_ALGORITHMS,
        lambda: f"{op}: algorithm must be a code from 0 to {_NUM_ALGORITHMS - 1}; got {algorithm}",
    )
    clouds = check_clouds(op, points, lengths, offsets)
    query_clouds = check_clouds(op, queries, query_lengths, query_offsets, _QUERY_NAMES)
    check_cloud_pair(op, queries, query_clouds, "queries", points, clouds, "points")
    if algorithm == _GRID or grid is not None:
        _check_grid_form(op, points, clouds)
    torch._check(
        clouds.capacity < 2**31,
        lambda: (
            f"{op}: points must have fewer than 2^31 rows a cloud; got shape {shape_of(points)}"
        ),
    )
    if grid is None:
        return
    size = _grid_bytes(clouds, _distance_dtype(points).itemsize)

    def text() -> str:
        return (
            f"{op}: grid must be what point_grid made of points, {size} bytes of uint8 on "
            f"{points.device}; got {dtype_name(grid.dtype)} of shape {shape_of(grid)} on "
            f"{grid.device}"
        )

    torch._check(grid.device == points.device, text)
    torch._check(grid.dtype == torch.uint8, text)
    torch._check(grid.dim() == 1, text)
    torch._check(grid.shape[0] == size, text)


def _check_k(op: str, k: int) -> None:
    torch._check(1 <= k <= _MAX_K, lambda: f"{op}: k must be from 1 to {_MAX_K}; got {k}")


def _check_norm(op: str, norm: int) -> None:
    torch._check(norm in (1, 2), lambda: f"{op}: norm must be 1 or 2; got {norm}")


def _check_radius(op: str, radius: float, algorithm: int) -> None:
    torch._check(
        algorithm != _TENSOR,
        lambda: f"{op}: algorithm must be auto, brute or grid; got tensor",
    )
    torch._check(
        radius >= 0, lambda: f"{op}: radius must not be negative; got {format(radius, 'g')}"
    )


@fake("point_grid")
def _point_grid(points: Tensor, lengths: Tensor | None, offsets: Tensor | None) -> Tensor:
    clouds = check_clouds("point_grid", points, lengths, offsets)
    _check_grid_form("point_grid", points, clouds)
    size = _grid_bytes(clouds, _distance_dtype(points).itemsize)
    return points.new_empty((size,), dtype=torch.uint8)


@fake("knn")
def _knn(
    points: Tensor,
    queries: Tensor,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    grid: Tensor | None,
    k: int,
    norm: int,
    algorithm: int,
) -> tuple[Tensor, Tensor]:
    _check_neighbours(
        "knn", points, queries, lengths, query_lengths, offsets, query_offsets, grid, algorithm
    )
    _check_k("knn", k)
    _check_norm("knn", norm)
    suits = (
        points.dtype != torch.float64 and norm == 2 and k <= 128 and 16 <= points.shape[-1] <= 512
    )
    torch._check(
        algorithm != _TENSOR or suits,
        lambda: (
            "knn: algorithm tensor needs 16 to 512 coordinates, norm 2, k of at most 128 and a "
            f"dtype other than float64; got points of shape {shape_of(points)} and "
            f"{dtype_name(points.dtype)}, norm {norm}, k {k}"
        ),
    )
    shape = (*queries.shape[:-1], k)
    return (
        queries.new_empty(shape, dtype=torch.int64),
        queries.new_empty(shape, dtype=_distance_dtype(points)),
    )


@fake("knn_backward")
def _knn_backward(
    grad: Tensor, points: Tensor, queries: Tensor, idx: Tensor, norm: int
) -> tuple[Tensor, Tensor]:
    op = "knn_backward"
    torch._check(
        grad.dtype in (torch.float32, torch.float64),
        lambda: (
            f"{op}: grad must be float16, bfloat16, float32 or float64; got "
            f"{dtype_name(grad.dtype)}"
        ),
    )
    check_floating(op, "points", points)
    check_like(op, "queries", queries, "points", points)
    check_index(op, "idx", idx, "points", points)
    _check_norm(op, norm)
    padded = points.dim() == 3
    check_dim(op, "points", points, 3 if padded else 2, "(P, D)")
    check_dim(op, "queries", queries, 3 if padded else 2, "(B, M, D)" if padded else "(Q, D)")
    torch._check(
        queries.shape[-1] == points.shape[-1] and (not padded or queries.shape[0] == len(points)),
        lambda: f"{op}: queries must match points {shape_of(points)}; got {shape_of(queries)}",
    )
    torch._check(
        idx.dim() == queries.dim() and idx.shape[:-1] == queries.shape[:-1] and idx.shape[-1] > 0,
        lambda: (
            f"{op}: idx must have a row for each of queries {shape_of(queries)}; got "
            f"{shape_of(idx)}"
        ),
    )
    check_same_shape(op, "grad", grad, tuple(idx.shape), f"shape {shape_of(idx)} like idx")
    torch._check(
        grad.device == points.device and grad.dtype == _distance_dtype(points),
        lambda: (
            f"{op}: grad must be {dtype_name(_distance_dtype(points))} on {points.device} like the "
            f"distances; got {dtype_name(grad.dtype)} on {grad.device}"
        ),
    )
    return points.new_empty(points.shape), queries.new_empty(queries.shape)


@fake("ball_query")
def _ball_query(
    points: Tensor,
    queries: Tensor,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    grid: Tensor | None,
    radius: float,
    k: int,
    nearest: bool,
    pad_first: bool,
    closed: bool,
    algorithm: int,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "ball_query"
    _check_neighbours(
        op, points, queries, lengths, query_lengths, offsets, query_offsets, grid, algorithm
    )
    _check_radius(op, radius, algorithm)
    _check_k(op, k)
    shape = (*queries.shape[:-1], k)
    return (
        queries.new_empty(shape, dtype=torch.int64),
        queries.new_empty(queries.shape[:-1], dtype=torch.int64),
        queries.new_empty(shape, dtype=_distance_dtype(points)),
    )


@fake("ball_query_scales")
def _ball_query_scales(
    points: Tensor,
    queries: Tensor,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    radii: list[float],
    ks: list[int],
    pad_first: bool,
    closed: bool,
) -> tuple[Tensor, Tensor]:
    op = "ball_query_scales"
    _check_neighbours(
        op, points, queries, lengths, query_lengths, offsets, query_offsets, None, _AUTO
    )
    torch._check(
        0 < len(radii) <= _MAX_BALL_SCALES and len(radii) == len(ks),
        lambda: (
            f"{op}: radii and ks must be 1 to {_MAX_BALL_SCALES} of each; got {len(radii)} and "
            f"{len(ks)}"
        ),
    )
    for radius in radii:
        _check_radius(op, radius, _AUTO)
    for k in ks:
        _check_k(op, k)
    shape = queries.shape[:-1]
    return (
        queries.new_empty((math.prod(shape) * sum(ks),), dtype=torch.int64),
        queries.new_empty((len(ks), *shape), dtype=torch.int64),
    )


@fake("radius_count")
def _radius_count(
    points: Tensor,
    queries: Tensor,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    grid: Tensor | None,
    radius: float,
    closed: bool,
    algorithm: int,
) -> Tensor:
    op = "radius_count"
    _check_neighbours(
        op, points, queries, lengths, query_lengths, offsets, query_offsets, grid, algorithm
    )
    _check_radius(op, radius, algorithm)
    return queries.new_empty(queries.shape[:-1], dtype=torch.int64)


@fake("radius_fill")
def _radius_fill(
    points: Tensor,
    queries: Tensor,
    lengths: Tensor | None,
    query_lengths: Tensor | None,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    grid: Tensor | None,
    starts: Tensor,
    radius: float,
    closed: bool,
    algorithm: int,
    total: int,
) -> tuple[Tensor, Tensor]:
    op = "radius_fill"
    _check_neighbours(
        op, points, queries, lengths, query_lengths, offsets, query_offsets, grid, algorithm
    )
    _check_radius(op, radius, algorithm)
    rows = math.prod(queries.shape[:-1])
    check_index_vector(op, "starts", starts, rows + 1, "points", points)
    torch._check(0 <= total < 2**31, lambda: f"{op}: total must be from 0 to 2^31 - 1; got {total}")
    return (
        queries.new_empty((total,), dtype=torch.int64),
        queries.new_empty((total,), dtype=_distance_dtype(points)),
    )
