"""Fakes of the passes over rows of wide layers; their checks are those of csrc/cuda/points."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_floating, fake, shape_of
from .cloud import check_dim
from .edges import check_edge_tensor, check_half

_FP32, _INT32 = torch.float32, torch.int32
_STATISTICS = 5  # kRowStatistics
_VECTOR = 8  # kRowVec


def _check_rows(op: str, name: str, y: Tensor) -> tuple[int, int]:
    check_dim(op, name, y, 2, "(R, C)")
    check_floating(op, name, y)
    check_half(op, name, y)
    rows, channels = y.shape
    torch._check(
        channels > 0 and channels % _VECTOR == 0,
        lambda: f"{op}: {name} must have a multiple of 8 channels; got {shape_of(y)}",
    )
    torch._check(
        0 < rows < 2**31, lambda: f"{op}: {name} must have 1 to 2^31 - 1 rows; got {shape_of(y)}"
    )
    return rows, channels


@fake("edge_rows_first")
def _edge_rows_first(
    rows: Tensor | None,
    group_rows: Tensor | None,
    offset_weight: Tensor | None,
    points: Tensor | None,
    centers: Tensor | None,
    idx: Tensor,
    like: Tensor,
    stats: Tensor | None,
    slope: float,
) -> tuple[Tensor, Tensor]:
    op = "edge_rows_first"
    torch._check(
        (offset_weight is None) == (points is None),
        lambda: f"{op}: offset_weight and points must come together",
    )
    torch._check(
        rows is not None or points is not None,
        lambda: f"{op}: rows or points must be given; got None for both",
    )
    if rows is not None:
        n, channels = rows.shape[1:]
    else:
        assert points is not None
        assert offset_weight is not None
        n, channels = points.shape[1], offset_weight.shape[0]
    torch._check(
        channels > 0 and channels % _VECTOR == 0,
        lambda: f"{op}: there must be a multiple of 8 channels; got {channels}",
    )
    clouds, groups, _ = _check_edges(op, idx, points, centers, n)
    check_edge_tensor(op, "rows", rows, idx, _FP32, (clouds, n, channels))
    check_edge_tensor(op, "group_rows", group_rows, idx, _FP32, (clouds, groups, channels))
    check_edge_tensor(op, "offset_weight", offset_weight, idx, _FP32, (channels, 3))
    check_edge_tensor(op, "stats", stats, idx, _FP32, (_STATISTICS, channels))
    check_half(op, "like", like)
    y = idx.new_empty((idx.numel(), channels), dtype=like.dtype)
    return y, idx.new_empty((idx.numel(),), dtype=torch.bool)


def _check_edges(
    op: str, idx: Tensor, points: Tensor | None, centers: Tensor | None, n: int
) -> tuple[int, int, int]:
    check_dim(op, "idx", idx, 3, "(B, M, K)")
    clouds, groups, k = idx.shape
    check_edge_tensor(op, "idx", idx, idx, torch.int64, (clouds, groups, k))
    check_edge_tensor(op, "points", points, idx, _FP32, (clouds, n, 3))
    check_edge_tensor(op, "centers", centers, idx, _FP32, (clouds, groups, 3))
    torch._check(
        0 < idx.numel() < 2**31,
        lambda: f"{op}: idx must have 1 to 2^31 - 1 entries; got {shape_of(idx)}",
    )
    return clouds, groups, k


@fake("edge_rows_statistics_")
def _edge_rows_statistics(
    y: Tensor,
    valid: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    shift: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    share: Tensor | None,
    momentum: float,
    eps: float,
    batch: bool,
    k: int,
) -> tuple[Tensor, Tensor, Tensor]:
    op = "edge_rows_statistics_"
    rows, channels = _check_rows(op, "y", y)
    check_edge_tensor(op, "valid", valid, y, torch.bool, (rows,))
    named = {"weight": weight, "bias": bias, "shift": shift}
    named |= {"running_mean": running_mean, "running_var": running_var}
    for name, vector in named.items():
        check_edge_tensor(op, name, vector, y, _FP32, (channels,))
    check_edge_tensor(op, "share", share, y, _FP32, ())
    torch._check(
        k >= 0 and (k == 0 or rows % k == 0),
        lambda: f"{op}: k must be 0 or divide the rows of y; got {k}",
    )
    pooled = (rows // k, channels) if k > 0 else (0,)
    stats = y.new_empty((_STATISTICS, channels), dtype=_FP32)
    return stats, y.new_empty(pooled), y.new_empty(pooled, dtype=_INT32)


@fake("edge_rows_apply")
def _edge_rows_apply(
    y: Tensor, stats: Tensor, which: Tensor | None, valid: Tensor | None, slope: float
) -> Tensor:
    _check_operands("edge_rows_apply", y, stats, which, valid)
    return y.new_empty(y.shape)


def _check_operands(
    op: str, y: Tensor, stats: Tensor, which: Tensor | None, valid: Tensor | None
) -> tuple[int, int]:
    rows, channels = _check_rows(op, "y", y)
    check_edge_tensor(op, "stats", stats, y, _FP32, (_STATISTICS, channels))
    check_edge_tensor(op, "which", which, y, _INT32, (rows, channels))
    check_edge_tensor(op, "valid", valid, y, torch.bool, (rows,))
    return rows, channels


@fake("edge_rows_sums")
def _edge_rows_sums(
    da: Tensor, y: Tensor, stats: Tensor, which: Tensor | None, valid: Tensor | None, slope: float
) -> Tensor:
    rows, channels = _check_operands("edge_rows_sums", y, stats, which, valid)
    check_edge_tensor("edge_rows_sums", "da", da, y, y.dtype, (rows, channels))
    return y.new_empty((2, channels), dtype=_FP32)


@fake("edge_rows_backward")
def _edge_rows_backward(
    da: Tensor,
    y: Tensor,
    stats: Tensor,
    sums: Tensor | None,
    best: Tensor | None,
    which: Tensor | None,
    valid: Tensor | None,
    slope: float,
) -> Tensor:
    op = "edge_rows_backward"
    rows, channels = _check_operands(op, y, stats, None, valid)
    torch._check(
        (best is None) == (which is None), lambda: f"{op}: best and which must come together"
    )
    groups = rows if which is None else _check_rows(op, "da", da)[0]
    torch._check(
        rows % groups == 0,
        lambda: f"{op}: da must have a row a group; got {shape_of(da)} for y {shape_of(y)}",
    )
    check_edge_tensor(op, "da", da, y, y.dtype, (groups, channels))
    check_edge_tensor(op, "sums", sums, y, _FP32, (2, channels))
    check_edge_tensor(op, "best", best, y, y.dtype, (groups, channels))
    check_edge_tensor(op, "which", which, y, _INT32, (groups, channels))
    return y.new_empty(y.shape)


@fake("edge_rows_offsets")
def _edge_rows_offsets(dy: Tensor, idx: Tensor, points: Tensor, centers: Tensor | None) -> Tensor:
    op = "edge_rows_offsets"
    _, channels = _check_rows(op, "dy", dy)
    check_dim(op, "points", points, 3, "(B, N, 3)")
    _check_edges(op, idx, points, centers, points.shape[1])
    check_edge_tensor(op, "dy", dy, idx, dy.dtype, (idx.numel(), channels))
    return dy.new_empty((3, channels), dtype=_FP32)


@fake("edge_rows_used")
def _edge_rows_used(x: Tensor, dout: Tensor) -> Tensor:
    op = "edge_rows_used"
    rows, channels = _check_rows(op, "x", x)
    _check_rows(op, "dout", dout)
    check_edge_tensor(op, "dout", dout, x, x.dtype, (rows, dout.shape[1]))
    return x.new_empty((rows, channels))


@fake("edge_rows_fold")
def _edge_rows_fold(
    weight: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    shift: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    op = "edge_rows_fold"
    check_dim(op, "weight", weight, 2, "(O, K)")
    named = {"gamma": gamma, "beta": beta, "shift": shift, "mean": mean, "var": var}
    for name, vector in named.items():
        check_edge_tensor(op, name, vector, weight, _FP32, (weight.shape[0],))
    check_half(op, "weight", weight)
    return weight.new_empty(weight.shape), weight.new_empty((weight.shape[0],))
