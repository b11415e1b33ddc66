"""Furthest point sampling."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from .. import _fakes  # noqa: F401  (registers the fakes)
from .._core.calls import as_int, public
from .._fakes.cloud import check_clouds
from ._cloud import check_cloud_arguments, cloud_lengths, num_clouds, read_sizes

__all__ = ["farthest_point_sample"]

_OP = "farthest_point_sample"
_sample = torch.ops.fusedops.farthest_point_sample.default


@public
def farthest_point_sample(
    points: Tensor,
    n: int | Tensor,
    lengths: Tensor | None = None,
    start: int | Tensor | Literal["random"] = 0,
    *,
    offsets: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Choose ``n`` points of each cloud, each as far as possible from those chosen before it.

    Exact: every step takes the point with the largest squared distance to the samples so far, the
    lowest index on ties. All indices of a cloud differ, whatever it holds: duplicates come when
    nothing else is left, points with a NaN after them; an infinite coordinate is infinitely far.
    Distances are formed in float32 (float64 for float64 points), one rounding per operation, so
    that CPU and GPU agree bit by bit. Eldar et al., "The farthest point strategy for progressive
    image sampling", 1997.

    Args:
        points: (B, N, D), or (P, D) with offsets; float16, bfloat16, float32 or float64; any D.
            Fastest with D <= 3 up to 1.6 million points a cloud; memory is linear in the points.
        n: Samples per cloud. A tensor (B,) gives each cloud its own number, at the cost of one
            synchronisation; padded results then have as many columns as the largest.
        lengths: (B,) int64, the points of each cloud; only without offsets.
        start: Position within its cloud of the first sample (a number, or a tensor (B,) of int64),
            clamped to the cloud; "random" draws one per cloud.
        offsets: (B + 1,) int64: the packed form.

    Returns:
        Of padded clouds indices (B, n) int64, -1 where one has fewer than n points. Of packed ones
        the pair (indices (S,), offsets (B + 1,)) of the same form, each cloud with min(n, length)
        samples; S is read from the device, which is one synchronisation.

    Raises:
        TypeError: an argument has another type.
        ValueError: start is negative or another word than "random".
        RuntimeError: shapes, dtypes or devices do not fit.
    """
    check_cloud_arguments(_OP, points, lengths, offsets)
    if offsets is not None or points.dim() != 3:  # else the op's checks come early enough
        check_clouds(_OP, points, lengths, offsets)
    points = points.detach()  # indices have no gradient
    n = _samples(n, points, offsets)
    first = _start(start, points, lengths, offsets)
    if offsets is None:
        columns, counts = _columns(n)
        indices: Tensor = _sample(points, lengths, None, first, None, columns, points.shape[-2])
        if counts is None:
            return indices
        beyond = torch.arange(columns, device=points.device) >= counts[:, None]
        return indices.masked_fill_(beyond, -1)
    sizes = cloud_lengths(points, None, offsets)
    wanted = n.clamp_min(0) if isinstance(n, Tensor) else torch.full_like(sizes, n)
    out_offsets = torch.cat([sizes.new_zeros(1), torch.minimum(sizes, wanted).cumsum(0)])
    longest = sizes.amax() if sizes.numel() else sizes.new_zeros(())
    total, max_length = read_sizes(torch.stack([out_offsets[-1], longest]))
    packed = _sample(points, lengths, offsets, first, out_offsets, total, max_length)
    return packed, out_offsets


def _number(name: str, value: Any) -> int | Tensor:
    """An int, or the tensor that gives one per cloud."""
    if isinstance(value, Tensor):
        return value
    return as_int(_OP, name, value, "an int or a Tensor")


def _samples(n: int | Tensor, points: Tensor, offsets: Tensor | None) -> int | Tensor:
    """n, checked."""
    n = _number("n", n)
    if not isinstance(n, Tensor):
        if n < 0:
            raise RuntimeError(f"{_OP}: n must be >= 0; got {n}")
        return n
    clouds = num_clouds(points, offsets)
    if n.device != points.device:
        raise RuntimeError(f"{_OP}: n must be on {points.device} like points; got {n.device}")
    if n.shape != (clouds,):
        raise RuntimeError(f"{_OP}: n must have shape ({clouds},); got {tuple(n.shape)}")
    if n.dtype.is_floating_point or n.dtype.is_complex:
        raise RuntimeError(f"{_OP}: n must hold integers; got {n.dtype}")
    return n


def _columns(n: int | Tensor) -> tuple[int, Tensor | None]:
    if isinstance(n, Tensor):
        return read_sizes(n.amax(0, keepdim=True).clamp_min(0))[0] if n.numel() else 0, n
    return n, None


def _start(
    start: int | Tensor | str, points: Tensor, lengths: Tensor | None, offsets: Tensor | None
) -> Tensor | None:
    if isinstance(start, Tensor):
        return start
    if isinstance(start, str):
        if start != "random":
            raise ValueError(f'{_OP}: start must be a number, a tensor or "random"; got {start!r}')
        sizes = cloud_lengths(points, lengths, offsets)
        # NOTE: float64 has a value for every index, and the op clamps what rounds up to the length.
        return (torch.rand(sizes.shape, dtype=torch.float64, device=sizes.device) * sizes).long()
    start = _number("start", start)
    assert isinstance(start, int)
    if start < 0:
        raise ValueError(f"{_OP}: start must be >= 0; got {start}")
    if start == 0:
        return None
    count = num_clouds(points, offsets)
    return torch.full((count,), start, dtype=torch.int64, device=points.device)
