"""Neighbour searches: every pair compared, clouds in a loop."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


def _clouds(
    points: Tensor, lengths: Tensor | None, offsets: Tensor | None
) -> list[tuple[Tensor, int, int]]:
    """(rows of the cloud, its first row, what its indices count from)."""
    if offsets is not None:
        edges = offsets.tolist()
        return [(points[a:b], a, a) for a, b in itertools.pairwise(edges)]
    n = points.shape[1]
    sizes = [n] * len(points) if lengths is None else lengths.tolist()
    return [(points[b, :size], b * n, 0) for b, size in enumerate(sizes)]


def pair_distances(queries: Tensor, points: Tensor, norm: int = 2) -> Tensor:
    """(M, N) squared distances, or sums of absolute differences."""
    delta = queries[:, None] - points[None]
    return delta.abs().sum(-1) if norm == 1 else delta.square().sum(-1)


def search(
    points: Tensor,
    queries: Tensor,
    k: int,
    *,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    norm: int = 2,
    limit: float | None = None,
    closed: bool = False,
    first: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(idx, counts, dist): the k nearest, or the first k, of the points within the limit."""
    rows = queries.shape[:-1].numel()
    idx = torch.full((rows, k), -1, dtype=torch.int64, device=points.device)
    dist = torch.full((rows, k), float("inf"), dtype=points.dtype, device=points.device)
    pairs = zip(
        _clouds(points, lengths, offsets),
        _clouds(queries, query_lengths, query_offsets),
        strict=True,
    )
    for (cloud, _, base), (wanted, row, _) in pairs:
        if len(cloud) == 0 or len(wanted) == 0:
            continue
        d = pair_distances(wanted, cloud, norm)
        inside = ~d.isnan()
        if limit is not None:
            inside &= (d <= limit) if closed else (d < limit)
        key = torch.arange(len(cloud), device=d.device, dtype=d.dtype).expand_as(d) if first else d
        # Outside last, inside by key; stable, so that ties keep the order of their index
        order = torch.sort(key.masked_fill(~inside, float("inf")), dim=1, stable=True).indices
        order = torch.gather(
            order, 1, torch.sort((~inside).gather(1, order).int(), dim=1, stable=True).indices
        )[:, :k]
        kept = inside.gather(1, order)
        width = order.shape[1]
        where = slice(row, row + len(wanted))
        idx[where, :width] = torch.where(kept, order + base, -1)
        dist[where, :width] = d.gather(1, order).masked_fill(~kept, float("inf"))
    shape = (*queries.shape[:-1], k)
    idx = idx.reshape(shape)
    return idx, (idx >= 0).sum(-1), dist.reshape(shape)


def knn(
    points: Tensor, queries: Tensor, k: int, norm: int = 2, **clouds: Any
) -> tuple[Tensor, Tensor]:
    """(idx, dist) of `fusedops.points.knn`; differentiable in both clouds."""
    idx, _, dist = search(points, queries, k, norm=norm, **clouds)
    return idx, dist


def ball_query(
    points: Tensor,
    queries: Tensor,
    radius: float,
    k: int,
    select: str = "first",
    closed: bool = False,
    **clouds: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """(idx, counts, dist2) of `fusedops.points.ball_query`."""
    return search(
        points,
        queries,
        k,
        norm=2,
        limit=radius * radius,
        closed=closed,
        first=select == "first",
        **clouds,
    )


def ball_query_scales(
    points: Tensor,
    queries: Tensor,
    radii: Sequence[float],
    ks: Sequence[int],
    closed: bool = False,
    **clouds: Any,
) -> list[tuple[Tensor, Tensor]]:
    """(idx, counts) of `fusedops.points.ball_query_scales`, radius by radius."""
    return [
        ball_query(points, queries, radius, k, closed=closed, **clouds)[:2]
        for radius, k in zip(radii, ks, strict=True)
    ]
