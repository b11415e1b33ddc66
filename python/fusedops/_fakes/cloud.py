"""Checks of point clouds in fakes; the texts are those of csrc/common/checks/cloud_check.h."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._core.checks import dtype_name
from .checks import check_floating, check_like, shape_of


class Clouds(NamedTuple):
    """What a batch of clouds is, whichever form it has."""

    packed: bool
    batch: int  # B
    capacity: int  # N, or P where packed
    dim: int  # D


def check_index(op: str, name: str, tensor: Tensor, like_name: str, like: Tensor) -> None:
    torch._check(
        tensor.device == like.device,
        lambda: f"{op}: {name} must be on {like.device} like {like_name}; got {tensor.device}",
    )
    torch._check(
        tensor.dtype == torch.int64,
        lambda: f"{op}: {name} must have dtype int64; got {dtype_name(tensor.dtype)}",
    )


def check_index_vector(
    op: str, name: str, tensor: Tensor, size: int, like_name: str, like: Tensor
) -> None:
    def text() -> str:
        return f"{op}: {name} must have shape ({size},); got {shape_of(tensor)}"

    check_index(op, name, tensor, like_name, like)
    torch._check(tensor.dim() == 1, text)
    torch._check(tensor.shape[0] == size, text)


def check_dim(op: str, name: str, tensor: Tensor, dim: int, layout: str) -> None:
    torch._check(
        tensor.dim() == dim,
        lambda: f"{op}: {name} must be {dim}-dimensional, {layout}; got shape {shape_of(tensor)}",
    )


def check_clouds(
    op: str,
    points: Tensor,
    lengths: Tensor | None,
    offsets: Tensor | None,
    names: tuple[str, str, str] = ("points", "lengths", "offsets"),
) -> Clouds:
    """Padded points (B, N, D) with or without lengths (B,), or packed (P, D) with offsets."""
    points_name, lengths_name, offsets_name = names
    check_floating(op, points_name, points)
    if offsets is None:
        check_dim(op, points_name, points, 3, "(B, N, D)")
        count, capacity, dim = points.shape
        if lengths is not None:
            check_index_vector(op, lengths_name, lengths, count, points_name, points)
        return Clouds(False, count, capacity, dim)
    torch._check(
        lengths is None,
        lambda: f"{op}: {lengths_name} must be None where {offsets_name} is given; got a tensor",
    )
    check_dim(op, points_name, points, 2, "(P, D)")
    check_index(op, offsets_name, offsets, points_name, points)

    def text() -> str:
        return f"{op}: {offsets_name} must have shape (B + 1,); got {shape_of(offsets)}"

    torch._check(offsets.dim() == 1, text)
    torch._check(offsets.shape[0] > 0, text)
    return Clouds(True, offsets.shape[0] - 1, points.shape[0], points.shape[1])


def check_cloud_pair(
    op: str,
    queries: Tensor,
    query_clouds: Clouds,
    queries_name: str,
    points: Tensor,
    point_clouds: Clouds,
    points_name: str,
) -> None:
    """Both batches of clouds share device, dtype, form, B and D."""

    def form(clouds: Clouds) -> str:
        return "packed" if clouds.packed else "padded"

    check_like(op, queries_name, queries, points_name, points)
    torch._check(
        query_clouds.packed == point_clouds.packed,
        lambda: (
            f"{op}: {queries_name} must be {form(point_clouds)} like {points_name}; got "
            f"{form(query_clouds)}"
        ),
    )
    torch._check(
        query_clouds.batch == point_clouds.batch,
        lambda: (
            f"{op}: {queries_name} must have {point_clouds.batch} cloud(s) like {points_name}; "
            f"got {query_clouds.batch}"
        ),
    )
    torch._check(
        query_clouds.dim == point_clouds.dim,
        lambda: (
            f"{op}: {queries_name} must have D = {point_clouds.dim} like {points_name}; got D = "
            f"{query_clouds.dim}"
        ),
    )
