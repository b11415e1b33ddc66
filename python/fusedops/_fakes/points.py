"""Fakes of the sampling and grouping ops."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import fake
from .cloud import check_clouds, check_index_vector

_MAX_LENGTH = 2**31 - 1


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
