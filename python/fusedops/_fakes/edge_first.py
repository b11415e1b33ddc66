"""Fakes of the gradient of the first layer of an MLP over edges (csrc/cuda/points/edges)."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_floating, fake, shape_of
from .cloud import check_dim
from .edges import MOST_FEATURES, PLANE, check_edge_tensor, check_groups, check_half, check_list

_MOMENT_ROWS = 32  # kEdgeMomentRows
_VECTOR = 8  # kEdgeVector
_FP32, _INT32 = torch.float32, torch.int32


@fake("edge_moments")
def _edge_moments(
    list: Tensor,
    ends: Tensor,
    points: Tensor | None,
    centers: Tensor | None,
) -> Tensor:
    op = "edge_moments"
    check_list(op, list, ends)
    for name, tensor in (("points", points), ("centers", centers)):
        if tensor is not None:
            check_dim(op, name, tensor, 3, "(B, N, 3)")
            check_edge_tensor(op, name, tensor, list, _FP32, (*tensor.shape[:2], 3))
    return list.new_empty((list.shape[0], 4), dtype=_FP32)


@fake("edge_winners")
def _edge_winners(
    winners: Tensor,
    list: Tensor,
    ends: Tensor,
    like: Tensor,
) -> Tensor:
    op = "edge_winners"
    check_list(op, list, ends)
    check_dim(op, "winners", winners, 3, "(B, M, C)")
    clouds, _, width = winners.shape
    groups = check_groups(op, ends, clouds)
    check_edge_tensor(op, "winners", winners, list, _INT32, (clouds, groups, width))
    torch._check(
        width % _VECTOR == 0,
        lambda: f"{op}: winners must have a multiple of {_VECTOR} channels; got {width}",
    )
    check_floating(op, "like", like)
    check_half(op, "like", like)
    return list.new_empty((list.shape[0], width), dtype=like.dtype)


@fake("edge_group_sums")
def _edge_group_sums(
    rows: Tensor,
    list: Tensor,
    ends: Tensor,
    gathers: bool,
) -> Tensor:
    op = "edge_group_sums"
    check_list(op, list, ends)
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


@fake("edge_products")
def _edge_products(
    rows: Tensor,
    list: Tensor,
    ends: Tensor,
    operands: Tensor,
) -> Tensor:
    op = "edge_products"
    check_list(op, list, ends)

    def text() -> str:
        return (
            f"{op}: rows must have shape ({list.shape[0]}, C) with C a multiple of 32; got "
            f"{shape_of(rows)}"
        )

    torch._check(rows.dim() == 2, text)
    torch._check(rows.shape[0] == list.shape[0], text)
    torch._check(rows.shape[1] % 32 == 0, text)
    check_dim(op, "operands", operands, 3, "(planes, E, 8)")
    planes = operands.shape[0]
    torch._check(planes in (1, 2), lambda: f"{op}: operands must have 1 or 2 planes; got {planes}")
    shape = (planes, list.shape[0], PLANE)
    check_edge_tensor(op, "operands", operands, list, rows.dtype, shape)
    check_floating(op, "rows", rows)
    check_half(op, "rows", rows)
    return list.new_empty((rows.shape[1] + _MOMENT_ROWS, 2 * PLANE), dtype=_FP32)


@fake("edge_first_grads")
def _edge_first_grads(
    products: Tensor, affine: Tensor | None, dense: Tensor | None, weight: Tensor
) -> Tensor:
    op = "edge_first_grads"
    check_dim(op, "weight", weight, 3, "(planes, C, 8)")
    planes, width, _ = weight.shape
    torch._check(planes in (1, 2), lambda: f"{op}: weight must have 1 or 2 planes; got {planes}")
    shape = (width + _MOMENT_ROWS, 2 * PLANE)
    check_edge_tensor(op, "products", products, products, _FP32, shape)
    check_edge_tensor(op, "affine", affine, products, _FP32, (width, 2))
    check_edge_tensor(op, "dense", dense, products, _FP32, (width, 2))
    check_floating(op, "weight", weight)
    check_half(op, "weight", weight)
    check_edge_tensor(op, "weight", weight, products, weight.dtype, (planes, width, PLANE))
    return weight.new_empty((width, 2 * PLANE))


@fake("edge_close")
def _edge_close(
    sums: Tensor,
    affine: Tensor | None,
    dense: Tensor | None,
    moments: Tensor | None,
    own: Tensor | None,
    others: Tensor | None,
    first_weight: Tensor | None,
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
    planes = 0 if first_weight is None else first_weight.shape[0]
    check_edge_tensor(op, "sums", sums, sums, _FP32, (rows, width))
    check_edge_tensor(op, "affine", affine, sums, _FP32, (width, 2))
    check_edge_tensor(op, "dense", dense, sums, _FP32, (width, 2))
    check_edge_tensor(op, "moments", moments, sums, _FP32, (rows, 4))
    check_edge_tensor(op, "own", own, sums, _FP32, (rows, width))
    check_edge_tensor(op, "others", others, sums, _FP32, (rows, width))
    shape = (planes, width, PLANE)
    check_edge_tensor(op, "first_weight", first_weight, sums, like.dtype, shape)
    check_edge_tensor(op, "coordinates", coordinates, sums, _FP32, (rows, 3))
    check_floating(op, "like", like)
    check_half(op, "like", like)
    products = (0 if coordinates is None else width, 3)
    return sums.new_empty((rows, width)), sums.new_empty(products)


@fake("edge_feature_grads")
def _edge_feature_grads(
    sums: Tensor,
    affine: Tensor | None,
    dense: Tensor | None,
    moments: Tensor | None,
    first_weight: Tensor,
    features: Tensor,
) -> Tensor:
    op = "edge_feature_grads"
    check_dim(op, "sums", sums, 2, "(R, C)")
    check_dim(op, "features", features, 2, "(R, F)")
    rows, width = sums.shape
    count = features.shape[1]
    torch._check(
        width % 4 == 0,
        lambda: f"{op}: sums must have a multiple of 4 channels; got {width}",
    )
    torch._check(
        dense is None or moments is not None,
        lambda: f"{op}: moments must be given where dense is",
    )
    torch._check(
        count <= MOST_FEATURES,
        lambda: f"{op}: features must have up to {MOST_FEATURES} channels; got {count}",
    )
    check_edge_tensor(op, "sums", sums, sums, _FP32, (rows, width))
    check_edge_tensor(op, "affine", affine, sums, _FP32, (width, 2))
    check_edge_tensor(op, "dense", dense, sums, _FP32, (width, 2))
    check_edge_tensor(op, "moments", moments, sums, _FP32, (rows, 4))
    check_floating(op, "first_weight", first_weight)
    check_half(op, "first_weight", first_weight)
    half = first_weight.dtype
    check_edge_tensor(op, "first_weight", first_weight, sums, half, (2, width, PLANE))
    check_edge_tensor(op, "features", features, sums, half, (rows, count))
    return features.new_empty((rows, count))
