"""A reusable index over point clouds."""

from __future__ import annotations

import torch
from torch import Tensor

from .._core.calls import public
from ._search import ALGORITHMS, Search, make_search
from .neighbours import (
    BallQuery,
    Neighbours,
    RadiusSearch,
    run_ball_query,
    run_knn,
    run_radius_search,
)

__all__ = ["GridIndex"]

_ops = torch.ops.fusedops
_GRID = ALGORITHMS["grid"]


class GridIndex:
    """An index over clouds of 1, 2 or 3 coordinates, for many searches in the same points.

    Points sorted along a Hilbert curve, with bounding boxes over every 32, 32 * 32, ... of them:
    linear memory (about 24 bytes a float32 point and 1/16 of that for the boxes), built without a
    synchronisation. The points must not change afterwards.

    Args:
        points: (B, N, D), or (P, D) with offsets; D from 1 to 3.
        lengths: (B,) int64, points of each padded cloud.
        offsets: (B + 1,) int64: points are packed.
    """

    @public
    def __init__(
        self, points: Tensor, lengths: Tensor | None = None, offsets: Tensor | None = None
    ) -> None:
        # Searches read the points again for gradients only, but recognise them as queries
        search = make_search("GridIndex", points, None, lengths, None, offsets, None)
        self.points, self.lengths, self.offsets = points, lengths, offsets
        self.bytes: Tensor = _ops.point_grid.default(search.points.detach(), lengths, offsets)

    def _search(
        self, op: str, queries: Tensor | None, lengths: Tensor | None, offsets: Tensor | None
    ) -> Search:
        return make_search(
            op, self.points, queries, self.lengths, lengths, self.offsets, offsets, self.bytes
        )

    @public
    def knn(
        self,
        queries: Tensor | None,
        k: int,
        *,
        query_lengths: Tensor | None = None,
        query_offsets: Tensor | None = None,
        norm: int = 2,
        return_dist: bool = True,
    ) -> Neighbours:
        """As `fusedops.points.knn`."""
        search = self._search("knn", queries, query_lengths, query_offsets)
        return run_knn(search, k, norm, return_dist, _GRID)

    @public
    def ball_query(
        self,
        queries: Tensor | None,
        radius: float,
        k: int,
        *,
        query_lengths: Tensor | None = None,
        query_offsets: Tensor | None = None,
        select: str = "first",
        pad: int | str = -1,
        closed: bool = False,
        return_dist: bool = False,
    ) -> BallQuery:
        """As `fusedops.points.ball_query`."""
        search = self._search("ball_query", queries, query_lengths, query_offsets)
        return run_ball_query(search, radius, k, select, pad, closed, return_dist, _GRID)

    @public
    def radius_search(
        self,
        queries: Tensor | None,
        radius: float,
        *,
        query_lengths: Tensor | None = None,
        query_offsets: Tensor | None = None,
        closed: bool = False,
        return_dist: bool = False,
    ) -> RadiusSearch:
        """As `fusedops.points.radius_search`."""
        search = self._search("radius_search", queries, query_lengths, query_offsets)
        return run_radius_search(search, radius, closed, return_dist, _GRID)
