"""Fakes of the passes of an MLP over edges; their checks are those of csrc/cuda/points/edges."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .checks import check_floating, check_same_shape, dtype_of, fake, shape_of
from .cloud import check_dim

_STATS = 4  # kEdgeStats
_OFFSET_COLUMNS = 8  # kEdgeOffsetColumns
_VECTOR = 8  # kEdgeVector
_MOST_NEIGHBOURS = 2000  # kEdgeMaxNeighbours
_MOST = 2**31 - 1
_HALVES = (torch.float16, torch.bfloat16)
_FP32, _INT32 = torch.float32, torch.int32


class _Edges(NamedTuple):
    """The sizes of a problem."""

    clouds: int
    groups: int  # of a cloud
    edges: int  # room for rows
    widths: tuple[int, ...]


def _check_tensor(
    op: str,
    name: str,
    tensor: Tensor | None,
    like: Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
) -> None:
    if tensor is None:
        return
    torch._check(
        tensor.device == like.device,
        lambda: f"{op}: {name} must be on {like.device}; got {tensor.device}",
    )
    torch._check(
        tensor.dtype == dtype,
        lambda: f"{op}: {name} must have dtype {dtype_of(dtype)}; got {dtype_of(tensor.dtype)}",
    )
    check_same_shape(op, name, tensor, shape, f"shape ({', '.join(map(str, shape))})")


def _check_half(op: str, name: str, tensor: Tensor) -> None:
    torch._check(
        tensor.dtype in _HALVES,
        lambda: f"{op}: {name} must be float16 or bfloat16; got {dtype_of(tensor.dtype)}",
    )


def _check_list(op: str, edges: Tensor, ends: Tensor) -> None:
    torch._check(
        edges.dim() == 2, lambda: f"{op}: list must have shape (E, 4); got {shape_of(edges)}"
    )
    _check_tensor(op, "list", edges, ends, _INT32, (edges.shape[0], 4))
    _check_tensor(op, "ends", ends, ends, _INT32, (ends.numel(),))

    def text() -> str:
        return (
            f"{op}: there must be groups of as many rows; got {ends.numel()} groups and "
            f"{edges.shape[0]} rows"
        )

    torch._check(ends.numel() > 0, text)
    torch._check(edges.shape[0] > 0, text)
    torch._check(edges.shape[0] % ends.numel() == 0, text)


def _check_groups(op: str, ends: Tensor, clouds: int) -> int:
    """The number of groups of each cloud."""

    def text() -> str:
        return (
            f"{op}: ends must have as many groups for each of {clouds} clouds; got {ends.numel()}"
        )

    torch._check(clouds > 0, text)
    torch._check(ends.numel() % clouds == 0, text)
    groups: int = ends.numel() // clouds
    return groups


def _check_widths(op: str, given: tuple[int, ...]) -> tuple[int, ...]:
    """The widths up to the first 0."""
    count = next((i for i, width in enumerate(given) if width <= 0), len(given))
    torch._check(count > 0, lambda: f"{op}: there must be 1 to 4 widths; got 0")
    *hidden, last = given[:count]
    for width in hidden:
        torch._check(
            width == given[0] and width in (32, 64, 128),
            lambda w=width: f"{op}: widths but the last must all be 32, 64 or 128; got {w}",
        )
    torch._check(
        last in (32, 64) or (last % 128 == 0 and last <= 1024),
        lambda: f"{op}: the last width must be 32, 64 or a multiple of 128 up to 1024; got {last}",
    )
    return given[:count]


def _check_edges(
    op: str,
    gathered: tuple[Tensor | None, ...],
    edges: Tensor,
    ends: Tensor,
    weights: Tensor,
    affine: Tensor,
    given_widths: tuple[int, ...],
) -> _Edges:
    rows, group_rows, offset_weight, points, centers = gathered
    _check_list(op, edges, ends)
    cloud, name = (points, "points") if rows is None else (rows, "rows")
    torch._check(
        cloud is not None,
        lambda: f"{op}: points must be a tensor where rows is None; got None",
    )
    assert cloud is not None
    torch._check(
        (points is None) == (offset_weight is None),
        lambda: f"{op}: points and offset_weight must come together",
    )
    check_dim(op, name, cloud, 3, "(B, N, C)")
    clouds, n = cloud.shape[:2]
    torch._check(n > 0, lambda: f"{op}: clouds must have points; got {shape_of(cloud)}")
    groups = _check_groups(op, ends, clouds)
    check_floating(op, "weights", weights)
    _check_half(op, "weights", weights)
    widths = _check_widths(op, given_widths)
    first = widths[0]
    values = sum(a * b for a, b in pairwise(widths))
    _check_tensor(op, "rows", rows, edges, _FP32, (clouds, n, first))
    _check_tensor(op, "group_rows", group_rows, edges, _FP32, (clouds, groups, first))
    offset_shape = (first, _OFFSET_COLUMNS)
    _check_tensor(op, "offset_weight", offset_weight, edges, weights.dtype, offset_shape)
    _check_tensor(op, "points", points, edges, _FP32, (clouds, n, 3))
    _check_tensor(op, "centers", centers, edges, _FP32, (clouds, groups, 3))
    _check_tensor(op, "weights", weights, edges, weights.dtype, (values,))
    _check_tensor(op, "affine", affine, edges, _FP32, (sum(widths), 2))
    return _Edges(clouds, groups, edges.shape[0], widths)


def _check_entries(op: str, idx: Tensor, n: int) -> None:
    torch._check(
        idx.dtype == torch.int64, lambda: f"{op}: idx must be int64; got {dtype_of(idx.dtype)}"
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
def _edge_list(idx: Tensor, ends: Tensor, n: int) -> tuple[Tensor, Tensor]:
    op = "edge_list"
    _check_entries(op, idx, n)
    _check_tensor(op, "ends", ends, idx, _INT32, (idx.shape[0] * idx.shape[1],))
    return idx.new_empty((idx.numel(), 4), dtype=_INT32), idx.new_empty(idx.shape)


@fake("edge_mlp_forward")
def _edge_mlp_forward(
    rows: Tensor | None,
    group_rows: Tensor | None,
    offset_weight: Tensor | None,
    points: Tensor | None,
    centers: Tensor | None,
    list: Tensor,
    ends: Tensor,
    weights: Tensor,
    affine: Tensor,
    c1: int,
    c2: int,
    c3: int,
    c4: int,
    slope: float,
    channels: int,
    infer: bool,
    pool: bool,
    sums: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    op = "edge_mlp_forward"
    gathered = (rows, group_rows, offset_weight, points, centers)
    sizes = _check_edges(op, gathered, list, ends, weights, affine, (c1, c2, c3, c4))
    width = sizes.widths[-1]
    torch._check(
        0 < channels <= width,
        lambda: f"{op}: channels must be from 1 to {width}; got {channels}",
    )
    torch._check(
        width >= 64 or not (infer or pool),
        lambda: f"{op}: the last width must be at least 64 where it is pooled; got {width}",
    )
    torch._check(
        not (pool or sums) if infer else (pool or sums),
        lambda: f"{op}: infer alone, pool or sums must be asked for",
    )

    def empty(wanted: bool, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return list.new_empty(shape if wanted else (0,), dtype=dtype)

    pooled = (sizes.clouds, sizes.groups, channels)
    return (
        empty(infer, pooled, weights.dtype),
        empty(pool, pooled, _FP32),
        empty(pool, pooled, torch.int16),
        empty(sums, (width, 2), _FP32),
        empty(sums, (_STATS, width), _FP32),
    )


@fake("edge_mlp_backward")
def _edge_mlp_backward(
    rows: Tensor | None,
    group_rows: Tensor | None,
    offset_weight: Tensor | None,
    points: Tensor | None,
    centers: Tensor | None,
    list: Tensor,
    ends: Tensor,
    weights: Tensor,
    affine: Tensor,
    c1: int,
    c2: int,
    c3: int,
    c4: int,
    slope: float,
    winners: Tensor | None,
    above: Tensor | None,
    dense: Tensor | None,
    below_stats: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    op = "edge_mlp_backward"
    gathered = (rows, group_rows, offset_weight, points, centers)
    sizes = _check_edges(op, gathered, list, ends, weights, affine, (c1, c2, c3, c4))
    torch._check(len(sizes.widths) > 1, lambda: f"{op}: there must be 2 to 4 widths; got 1")
    torch._check(
        (winners is None) != (above is None),
        lambda: f"{op}: winners or above must be given, and not both",
    )
    below, width = sizes.widths[-2:]
    _check_tensor(op, "winners", winners, list, _INT32, (sizes.clouds, sizes.groups, width))
    _check_tensor(op, "above", above, list, weights.dtype, (sizes.edges, width))
    _check_tensor(op, "dense", dense, list, _FP32, (width, 2))
    _check_tensor(op, "below_stats", below_stats, list, _FP32, (_STATS, below))
    return (
        list.new_empty((sizes.edges, below), dtype=weights.dtype),
        list.new_empty((below, 2), dtype=_FP32),
        list.new_empty((0 if below_stats is None else below, 2), dtype=_FP32),
        list.new_empty((width, below), dtype=_FP32),
    )


@fake("edge_affine")
def _edge_affine(values: Tensor) -> Tensor:
    op = "edge_affine"
    check_dim(op, "values", values, 2, "(6, C)")
    _check_tensor(op, "values", values, values, _FP32, (6, values.shape[1]))
    return values.new_empty((values.shape[1], 2))


def _check_pool(op: str, best: Tensor, which: Tensor, affine: Tensor) -> None:
    check_dim(op, "best", best, 3, "(B, M, C)")
    channels = best.shape[2]

    def text() -> str:
        return (
            f"{op}: affine must have shape (C, 2) with C at least {channels} and a multiple of 32; "
            f"got {shape_of(affine)}"
        )

    torch._check(affine.dim() == 2, text)
    torch._check(affine.shape[0] >= channels, text)
    torch._check(affine.shape[0] % 32 == 0, text)
    shape = tuple(best.shape)
    _check_tensor(op, "best", best, best, _FP32, shape)
    _check_tensor(op, "which", which, best, torch.int16, shape)
    _check_tensor(op, "affine", affine, best, _FP32, (affine.shape[0], 2))


@fake("edge_pool_forward")
def _edge_pool_forward(
    best: Tensor, which: Tensor, affine: Tensor, like: Tensor, slope: float
) -> Tensor:
    op = "edge_pool_forward"
    _check_pool(op, best, which, affine)
    _check_half(op, "like", like)
    return best.new_empty(best.shape, dtype=like.dtype)


@fake("edge_pool_backward")
def _edge_pool_backward(
    dout: Tensor, best: Tensor, which: Tensor, affine: Tensor, stats: Tensor | None, slope: float
) -> tuple[Tensor, Tensor, Tensor]:
    op = "edge_pool_backward"
    _check_pool(op, best, which, affine)
    _check_half(op, "dout", dout)
    check_same_shape(op, "dout", dout, tuple(best.shape), f"shape {shape_of(best)} like best")
    width = affine.shape[0]
    _check_tensor(op, "stats", stats, best, _FP32, (_STATS, width))
    return (
        best.new_empty((*best.shape[:2], width), dtype=_INT32),
        best.new_empty((width, 2)),
        best.new_empty((0 if stats is None else width, 2)),
    )


@fake("edge_moments")
def _edge_moments(
    list: Tensor,
    ends: Tensor,
    points: Tensor | None,
    centers: Tensor | None,
) -> Tensor:
    op = "edge_moments"
    _check_list(op, list, ends)
    for name, tensor in (("points", points), ("centers", centers)):
        if tensor is not None:
            check_dim(op, name, tensor, 3, "(B, N, 3)")
            _check_tensor(op, name, tensor, list, _FP32, (*tensor.shape[:2], 3))
    return list.new_empty((list.shape[0], 4), dtype=_FP32)


@fake("edge_winners")
def _edge_winners(
    winners: Tensor,
    list: Tensor,
    ends: Tensor,
    like: Tensor,
) -> Tensor:
    op = "edge_winners"
    _check_list(op, list, ends)
    check_dim(op, "winners", winners, 3, "(B, M, C)")
    clouds, _, width = winners.shape
    groups = _check_groups(op, ends, clouds)
    _check_tensor(op, "winners", winners, list, _INT32, (clouds, groups, width))
    torch._check(
        width % _VECTOR == 0,
        lambda: f"{op}: winners must have a multiple of {_VECTOR} channels; got {width}",
    )
    check_floating(op, "like", like)
    _check_half(op, "like", like)
    return list.new_empty((list.shape[0], width), dtype=like.dtype)


@fake("edge_group_sums")
def _edge_group_sums(
    rows: Tensor,
    list: Tensor,
    ends: Tensor,
    gathers: bool,
) -> Tensor:
    op = "edge_group_sums"
    _check_list(op, list, ends)
    check_floating(op, "rows", rows)
    torch._check(rows.dtype != torch.float64, lambda: f"{op}: rows must not be float64")

    def text() -> str:
        return (
            f"{op}: rows must have shape (B, N, C) where they are gathered, else (E, C); got "
            f"{shape_of(rows)}"
        )

    torch._check(rows.dim() == (3 if gathers else 2), text)
    if not gathers:
        torch._check(rows.shape[0] == list.shape[0], text)
    width = rows.shape[-1]
    torch._check(
        width * rows.dtype.itemsize % 16 == 0,
        lambda: f"{op}: rows must be multiples of 16 bytes; got {width} channels",
    )
    return list.new_empty((ends.numel(), width), dtype=_FP32)


@fake("edge_offset_products")
def _edge_offset_products(
    rows: Tensor,
    list: Tensor,
    ends: Tensor,
    points: Tensor,
    centers: Tensor | None,
) -> Tensor:
    op = "edge_offset_products"
    _check_list(op, list, ends)

    def text() -> str:
        return (
            f"{op}: rows must have shape ({list.shape[0]}, C) with C a multiple of 32; got "
            f"{shape_of(rows)}"
        )

    torch._check(rows.dim() == 2, text)
    torch._check(rows.shape[0] == list.shape[0], text)
    torch._check(rows.shape[1] % 32 == 0, text)
    check_dim(op, "points", points, 3, "(B, N, 3)")
    clouds = points.shape[0]
    groups = _check_groups(op, ends, clouds)
    _check_tensor(op, "points", points, list, _FP32, (clouds, points.shape[1], 3))
    _check_tensor(op, "centers", centers, list, _FP32, (clouds, groups, 3))
    check_floating(op, "rows", rows)
    _check_half(op, "rows", rows)
    return list.new_empty((rows.shape[1] + 32, 3), dtype=_FP32)


@fake("edge_close")
def _edge_close(
    sums: Tensor,
    affine: Tensor | None,
    dense: Tensor | None,
    moments: Tensor | None,
    own: Tensor | None,
    others: Tensor | None,
    offset_weight: Tensor | None,
    coordinates: Tensor | None,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    op = "edge_close"
    check_dim(op, "sums", sums, 2, "(R, C)")
    rows, width = sums.shape
    torch._check(
        width % 32 == 0,
        lambda: f"{op}: sums must have a multiple of 32 channels; got {width}",
    )
    torch._check(
        dense is None or moments is not None,
        lambda: f"{op}: moments must be given where dense is",
    )
    _check_tensor(op, "sums", sums, sums, _FP32, (rows, width))
    _check_tensor(op, "affine", affine, sums, _FP32, (width, 2))
    _check_tensor(op, "dense", dense, sums, _FP32, (width, 2))
    _check_tensor(op, "moments", moments, sums, _FP32, (rows, 4))
    _check_tensor(op, "own", own, sums, _FP32, (rows, width))
    _check_tensor(op, "others", others, sums, _FP32, (rows, width))
    shape = (width, _OFFSET_COLUMNS)
    _check_tensor(op, "offset_weight", offset_weight, sums, like.dtype, shape)
    _check_tensor(op, "coordinates", coordinates, sums, _FP32, (rows, 3))
    check_floating(op, "like", like)
    _check_half(op, "like", like)
    products = (0 if coordinates is None else width, 3)
    return sums.new_empty((rows, width)), sums.new_empty(products)
