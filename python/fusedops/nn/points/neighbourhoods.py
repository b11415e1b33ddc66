"""The neighbourhoods of centres, for all scales of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.dtensor import is_dtensor
from ...points.grid import GridIndex
from ...points.neighbours import ball_query, ball_query_scales, knn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

# From how many points on a cloud is indexed once for all scales.
_INDEXED = 16384
_MAX_SCALES = 4  # of one search


def neighbourhoods(
    xyz: Tensor,
    centers: Tensor,
    radii: Sequence[float | None],
    ks: Sequence[int],
    *,
    lengths: Tensor | None,
    center_lengths: Tensor | None,
    offsets: Tensor | None,
    center_offsets: Tensor | None,
    pad: int | str,
    closed: bool,
) -> list[Tensor]:
    """Neighbour indices (B, M, K) or (Q, K) of every scale; a radius of None: the K nearest.

    NOTE: The first K points of a ball are not among the first K of a larger one, so that each
    radius has a list of its own; one search fills them. Large clouds are indexed once for all.
    """
    tight = centers.detach()
    queries: dict[str, Any] = {"query_lengths": center_lengths, "query_offsets": center_offsets}
    if len(ks) > 1 and xyz.shape[-2] >= _INDEXED and xyz.shape[-1] <= 3:
        index = GridIndex(xyz.detach(), lengths, offsets)
        return [
            index.knn(tight, k, return_dist=False, **queries).idx
            if radius is None
            else index.ball_query(tight, radius, k, pad=pad, closed=closed, **queries).idx
            for radius, k in zip(radii, ks, strict=True)
        ]
    clouds: dict[str, Any] = {"lengths": lengths, "offsets": offsets, **queries}
    balls = [radius for radius in radii if radius is not None]
    # NOTE: the clouds of a DTensor stay where they are in searches of one radius alone
    if 1 < len(balls) == len(ks) <= _MAX_SCALES and xyz.shape[-1] == 3 and not is_dtensor(xyz):
        found = ball_query_scales(xyz.detach(), tight, balls, ks, pad=pad, closed=closed, **clouds)
        return [scale.idx for scale in found]
    return [
        knn(xyz.detach(), tight, k, return_dist=False, **clouds).idx
        if radius is None
        else ball_query(xyz.detach(), tight, radius, k, pad=pad, closed=closed, **clouds).idx
        for radius, k in zip(radii, ks, strict=True)
    ]
