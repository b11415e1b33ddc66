"""Fakes of one layer over the edges of points among themselves, and of sums over edges by point."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .checks import check_floating, fake, shape_of
from .cloud import check_dim
from .edges import check_edge_tensor, check_half, check_list

_STATS = 4  # kEdgeStats
_MAX_NEIGHBOURS = 2000  # kEdgeMaxNeighbours
_MOST = 2**31 - 1
_FP32, _INT32 = torch.float32, torch.int32


@fake("edge_lists")
def _edge_lists(idx: Tensor, n: int) -> tuple[Tensor, Tensor]:
    op = "edge_lists"
    check_dim(op, "idx", idx, 3, "(B, M, K)")
    torch._check(
        idx.dtype == torch.int64,
        lambda: f"{op}: idx must be int64; got {dtype_name(idx.dtype)}",
    )
    _check_entries(op, idx)
    clouds = idx.shape[0]

    def text() -> str:
        return f"{op}: the clouds must have from 1 to {_MOST} points together; got {clouds} of {n}"

    torch._check(n > 0, text)
    torch._check(n <= _MOST // clouds, text)
    entries = idx.new_empty((idx.numel(),), dtype=_INT32)
    return entries, idx.new_empty((clouds * n, 2), dtype=_INT32)


def _check_entries(op: str, idx: Tensor) -> None:
    def text() -> str:
        return f"{op}: idx must have from 1 to {_MOST} entries; got {idx.numel()}"

    torch._check(idx.numel() > 0, text)
    torch._check(idx.numel() <= _MOST, text)


def _check_lists(op: str, rows: Tensor, entries: Tensor, ranges: Tensor) -> None:
    check_floating(op, "rows", rows)
    lists = entries.dtype == ranges.dtype == _INT32 and entries.dim() == 1 and ranges.dim() == 2
    torch._check(
        lists and ranges.shape[1] == 2,
        lambda: (
            f"{op}: entries and ranges must be what edge_lists gives; got shapes "
            f"{shape_of(entries)} and {shape_of(ranges)}"
        ),
    )


def _check_devices(op: str, rows: Tensor, *others: Tensor | None) -> None:
    for tensor in others:
        torch._check(
            tensor is None or tensor.device == rows.device,
            lambda t=tensor: f"{op}: all tensors must be on {rows.device}; got {t.device}",
        )


@fake("edge_message_sums")
def _edge_message_sums(rows: Tensor, entries: Tensor, ranges: Tensor) -> Tensor:
    op = "edge_message_sums"
    _check_lists(op, rows, entries, ranges)
    check_dim(op, "rows", rows, 2, "(N, C)")
    _check_devices(op, rows, entries, ranges)
    return rows.new_empty((ranges.shape[0], rows.shape[1]))


@fake("edge_point_sums")
def _edge_point_sums(
    rows: Tensor,
    entries: Tensor,
    ranges: Tensor,
    weights: Tensor | None,
    per_row: int,
) -> Tensor:
    op, edges = "edge_point_sums", entries.numel()
    _check_lists(op, rows, entries, ranges)

    def text() -> str:
        return f"{op}: rows must have shape ({edges} / per_row, C); got {shape_of(rows)}"

    torch._check(per_row > 0, text)
    torch._check(rows.dim() == 2, text)
    torch._check(rows.shape[0] * per_row == edges, text)
    if weights is None:
        torch._check(
            per_row == 1,
            lambda: f"{op}: weights must be given where per_row is not 1; got {per_row}",
        )
    else:

        def of_weights() -> str:
            return f"{op}: weights must be {edges} float32 values; got {shape_of(weights)}"

        torch._check(weights.dtype == _FP32, of_weights)
        torch._check(weights.numel() == edges, of_weights)
    _check_devices(op, rows, entries, ranges, weights)
    wide = torch.float64 if rows.dtype is torch.float64 else _FP32
    return rows.new_empty((ranges.shape[0], rows.shape[1]), dtype=wide)


@fake("edge_point_moments")
def _edge_point_moments(
    entries: Tensor,
    ranges: Tensor,
    list: Tensor,
    ends: Tensor,
    points: Tensor | None,
    centers: Tensor | None,
) -> Tensor:
    op = "edge_point_moments"
    check_list(op, list, ends)
    check_dim(op, "ranges", ranges, 2, "(P, 2)")
    count = ranges.shape[0]
    check_edge_tensor(op, "entries", entries, list, _INT32, (list.shape[0],))
    check_edge_tensor(op, "ranges", ranges, list, _INT32, (count, 2))
    check_edge_tensor(op, "points", points, list, _FP32, (count, 3))
    check_edge_tensor(op, "centers", centers, list, _FP32, (ends.numel(), 3))
    return list.new_empty((count, 4), dtype=_FP32)


def _check_conv(op: str, products: Tensor, idx: Tensor, width: int) -> tuple[int, int, int]:
    """(clouds, points of each, channels)."""
    check_dim(op, "products", products, 3, "(B, N, 2 C)")
    clouds, n, columns = products.shape

    def text() -> str:
        return f"{op}: products must have twice a multiple of 8 channels; got {columns}"

    torch._check(columns > 0, text)
    torch._check(columns % 16 == 0, text)
    channels = columns // 2
    torch._check(
        (width == 64 or width % 128 == 0) and channels <= width,
        lambda: (
            f"{op}: affine must have 64 or a multiple of 128 rows, at least {channels}; got {width}"
        ),
    )
    check_dim(op, "idx", idx, 3, "(B, N, K)")
    _check_entries(op, idx)
    torch._check(
        idx.shape[2] <= _MAX_NEIGHBOURS,
        lambda: f"{op}: idx must have at most {_MAX_NEIGHBOURS} neighbours; got {idx.shape[2]}",
    )
    check_edge_tensor(op, "products", products, idx, _FP32, (clouds, n, columns))
    check_edge_tensor(op, "idx", idx, products, torch.int64, (clouds, n, idx.shape[2]))
    return clouds, n, channels


@fake("edge_conv_forward_")
def _edge_conv_forward(
    products: Tensor,
    idx: Tensor,
    affine: Tensor,
    like: Tensor,
    slope: float,
    infer: bool,
    sums: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    op = "edge_conv_forward_"
    check_dim(op, "affine", affine, 2, "(C, 2)")
    width = affine.shape[0]
    pooled = _check_conv(op, products, idx, width)
    torch._check(
        products.is_contiguous(),
        lambda: f"{op}: products are written: they must be contiguous and aligned to 16 bytes",
    )
    torch._check(
        not (infer and sums),
        lambda: f"{op}: infer or sums must be asked for, and not both",
    )
    check_edge_tensor(op, "affine", affine, products, _FP32, (width, 2))
    check_floating(op, "like", like)
    check_half(op, "like", like)

    def empty(wanted: bool, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return products.new_empty(shape if wanted else (0,), dtype=dtype)

    return (
        empty(infer, pooled, like.dtype),
        empty(not infer, pooled, _FP32),
        empty(not infer, pooled, torch.int16),
        empty(sums, pooled, _FP32),
        empty(sums, (width, 2), _FP32),
        empty(sums, (_STATS, width), _FP32),
    )


@fake("edge_conv_backward")
def _edge_conv_backward(
    products: Tensor,
    idx: Tensor,
    winners: Tensor,
    totals: Tensor | None,
    dense: Tensor | None,
    entries: Tensor,
    ranges: Tensor,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    op = "edge_conv_backward"
    check_dim(op, "winners", winners, 3, "(B, N, C)")
    width = winners.shape[2]
    clouds, n, channels = _check_conv(op, products, idx, width)
    torch._check(
        (totals is None) == (dense is None),
        lambda: f"{op}: totals and dense must come together",
    )
    check_edge_tensor(op, "winners", winners, products, _INT32, (clouds, n, width))
    check_edge_tensor(op, "totals", totals, products, _FP32, (clouds, n, channels))
    check_edge_tensor(op, "dense", dense, products, _FP32, (width, 2))
    check_edge_tensor(op, "entries", entries, products, _INT32, (idx.numel(),))
    check_edge_tensor(op, "ranges", ranges, products, _INT32, (clouds * n, 2))
    check_floating(op, "like", like)
    check_half(op, "like", like)
    out = products.new_empty((clouds, n, 2 * channels), dtype=like.dtype)
    return out, products.new_empty((clouds, n), dtype=torch.bool)
