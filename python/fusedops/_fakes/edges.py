"""Fakes of the passes of an MLP over edges; their checks are those of csrc/cuda/points/edges."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .checks import check_floating, check_same_shape, fake, shape_of
from .cloud import check_dim

_STATS = 4  # kEdgeStats
PLANE = 8  # kEdgePlane
MOST_FEATURES = 10  # kEdgeMostFeatures
_HALVES = (torch.float16, torch.bfloat16)
_FP32, _INT32 = torch.float32, torch.int32
# Widths of three layers with ReLU that have kernels of their own for inference on sm_90a, by work.
INFER_SHAPES = (
    (32, 32, 64), (64, 64, 64), (64, 64, 128), (64, 96, 128), (128, 128, 128), (128, 128, 256),
    (128, 208, 256),
)  # kEdgeShapes  # fmt: skip
TAPER = (64, 128, 128)  # kEdgeTaper: those of training, likewise


class _Edges(NamedTuple):
    """The sizes of a problem."""

    clouds: int
    groups: int  # of a cloud
    edges: int  # room for rows
    widths: tuple[int, ...]


def check_edge_tensor(
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
        lambda: f"{op}: {name} must have dtype {dtype_name(dtype)}; got {dtype_name(tensor.dtype)}",
    )
    check_same_shape(op, name, tensor, shape, f"shape ({', '.join(map(str, shape))})")


def check_half(op: str, name: str, tensor: Tensor) -> None:
    torch._check(
        tensor.dtype in _HALVES,
        lambda: f"{op}: {name} must be float16 or bfloat16; got {dtype_name(tensor.dtype)}",
    )


def check_list(op: str, edges: Tensor, ends: Tensor) -> None:
    torch._check(
        edges.dim() == 2, lambda: f"{op}: list must have shape (E, 4); got {shape_of(edges)}"
    )
    check_edge_tensor(op, "list", edges, ends, _INT32, (edges.shape[0], 4))
    check_edge_tensor(op, "ends", ends, ends, _INT32, (ends.numel(),))

    def text() -> str:
        return (
            f"{op}: there must be groups of as many rows; got {ends.numel()} groups and "
            f"{edges.shape[0]} rows"
        )

    torch._check(ends.numel() > 0, text)
    torch._check(edges.shape[0] > 0, text)
    torch._check(edges.shape[0] % ends.numel() == 0, text)


def check_groups(op: str, ends: Tensor, clouds: int) -> int:
    """The number of groups of each cloud."""

    def text() -> str:
        return (
            f"{op}: ends must have as many groups for each of {clouds} clouds; got {ends.numel()}"
        )

    torch._check(clouds > 0, text)
    torch._check(ends.numel() % clouds == 0, text)
    groups: int = ends.numel() // clouds
    return groups


def _check_widths(op: str, given: tuple[int, ...], infers: bool) -> tuple[int, ...]:
    """The widths up to the first 0."""
    if given[3] <= 0 and (given[:3] == TAPER or (infers and given[:3] in INFER_SHAPES)):
        return given[:3]
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
    clouds: int,
    given_widths: tuple[int, ...],
    infers: bool = False,
) -> _Edges:
    rows, group_rows, first_weight, operands = gathered
    check_list(op, edges, ends)
    torch._check(
        rows is not None or operands is not None,
        lambda: f"{op}: operands must be a tensor where rows is None; got None",
    )
    torch._check(
        (operands is None) == (first_weight is None),
        lambda: f"{op}: operands and first_weight must come together",
    )
    if rows is not None:
        check_dim(op, "rows", rows, 3, "(B, N, C)")
        torch._check(
            rows.shape[1] > 0, lambda: f"{op}: clouds must have points; got {shape_of(rows)}"
        )
    planes = 0
    if operands is not None:
        check_dim(op, "operands", operands, 3, "(planes, E, 8)")
        planes = operands.shape[0]
    torch._check(planes <= 2, lambda: f"{op}: operands must have 1 or 2 planes; got {planes}")
    groups = check_groups(op, ends, clouds)
    check_floating(op, "weights", weights)
    check_half(op, "weights", weights)
    widths = _check_widths(op, given_widths, infers)
    first = widths[0]
    values = sum(a * b for a, b in pairwise(widths))
    if rows is not None:
        check_edge_tensor(op, "rows", rows, edges, _FP32, (clouds, rows.shape[1], first))
    check_edge_tensor(op, "group_rows", group_rows, edges, _FP32, (clouds, groups, first))
    first_shape = (planes, first, PLANE)
    check_edge_tensor(op, "first_weight", first_weight, edges, weights.dtype, first_shape)
    operands_shape = (planes, edges.shape[0], PLANE)
    check_edge_tensor(op, "operands", operands, edges, weights.dtype, operands_shape)
    check_edge_tensor(op, "weights", weights, edges, weights.dtype, (values,))
    channels = max(sum(widths), affine.shape[0] if affine.dim() == 2 else 0)
    check_edge_tensor(op, "affine", affine, edges, _FP32, (channels, 2))
    return _Edges(clouds, groups, edges.shape[0], widths)


@fake("edge_mlp_forward")
def _edge_mlp_forward(
    rows: Tensor | None,
    group_rows: Tensor | None,
    first_weight: Tensor | None,
    operands: Tensor | None,
    list: Tensor,
    ends: Tensor,
    weights: Tensor,
    affine: Tensor,
    clouds: int,
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
    gathered = (rows, group_rows, first_weight, operands)
    given_widths = (c1, c2, c3, c4)
    sizes = _check_edges(op, gathered, list, ends, weights, affine, clouds, given_widths, infer)
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
        empty(sums, (affine.shape[0], 2), _FP32),
        empty(sums, (_STATS, width), _FP32),
    )


@fake("edge_mlp_backward_")
def _edge_mlp_backward(
    rows: Tensor | None,
    group_rows: Tensor | None,
    first_weight: Tensor | None,
    operands: Tensor | None,
    list: Tensor,
    ends: Tensor,
    weights: Tensor,
    affine: Tensor,
    clouds: int,
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
    op = "edge_mlp_backward_"
    gathered = (rows, group_rows, first_weight, operands)
    sizes = _check_edges(op, gathered, list, ends, weights, affine, clouds, (c1, c2, c3, c4))
    torch._check(len(sizes.widths) > 1, lambda: f"{op}: there must be 2 to 4 widths; got 1")
    torch._check(
        (winners is None) != (above is None),
        lambda: f"{op}: winners or above must be given, and not both",
    )
    below, width = sizes.widths[-2:]
    check_edge_tensor(op, "winners", winners, list, _INT32, (sizes.clouds, sizes.groups, width))
    check_edge_tensor(op, "above", above, list, weights.dtype, (sizes.edges, width))
    torch._check(
        above is None or above.is_contiguous(),
        lambda: (
            f"{op}: above must be contiguous and aligned to 16 bytes: where it is as wide as what "
            "is below, that is written there; got shape "
            f"{shape_of(list if above is None else above)}"
        ),
    )
    check_edge_tensor(op, "dense", dense, list, _FP32, (width, 2))
    check_edge_tensor(op, "below_stats", below_stats, list, _FP32, (_STATS, below))
    in_place = above is not None and width == below
    return (
        list.new_empty((0 if in_place else sizes.edges, below), dtype=weights.dtype),
        list.new_empty((below, 2), dtype=_FP32),
        list.new_empty((0 if below_stats is None else below, 2), dtype=_FP32),
        list.new_empty((width, below), dtype=_FP32),
    )


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
    check_edge_tensor(op, "best", best, best, _FP32, shape)
    check_edge_tensor(op, "which", which, best, torch.int16, shape)
    check_edge_tensor(op, "affine", affine, best, _FP32, (affine.shape[0], 2))


@fake("edge_pool_forward")
def _edge_pool_forward(
    best: Tensor, which: Tensor, affine: Tensor, like: Tensor, slope: float
) -> Tensor:
    op = "edge_pool_forward"
    _check_pool(op, best, which, affine)
    check_half(op, "like", like)
    return best.new_empty(best.shape, dtype=like.dtype)


@fake("edge_pool_backward")
def _edge_pool_backward(
    dout: Tensor, best: Tensor, which: Tensor, affine: Tensor, stats: Tensor | None, slope: float
) -> tuple[Tensor, Tensor, Tensor]:
    op = "edge_pool_backward"
    _check_pool(op, best, which, affine)
    check_half(op, "dout", dout)
    check_same_shape(op, "dout", dout, tuple(best.shape), f"shape {shape_of(best)} like best")
    width = affine.shape[0]
    check_edge_tensor(op, "stats", stats, best, _FP32, (_STATS, width))
    return (
        best.new_empty((*best.shape[:2], width), dtype=_INT32),
        best.new_empty((width, 2)),
        best.new_empty((0 if stats is None else width, 2)),
    )
