"""Neighbours in point clouds: k-NN, ball query, radius search."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 (`public` reads annotations)
from typing import NamedTuple

import torch
from torch import Tensor

from .._core.calls import as_int, public
from ._cloud import read_sizes
from ._search import Search, algorithm_code, detached, make_search, with_gradient

__all__ = [
    "BallQuery",
    "Neighbours",
    "RadiusSearch",
    "ball_query",
    "ball_query_scales",
    "knn",
    "radius_search",
]

_ops = torch.ops.fusedops


class Neighbours(NamedTuple):
    """What `knn` returns."""

    idx: Tensor
    dist2: Tensor | None


class BallQuery(NamedTuple):
    """What `ball_query` returns."""

    idx: Tensor
    counts: Tensor
    dist2: Tensor | None


class RadiusSearch(NamedTuple):
    """What `radius_search` returns: query row i's are offsets[i] to offsets[i + 1]."""

    offsets: Tensor
    idx: Tensor
    dist2: Tensor | None


@public
def knn(
    points: Tensor,
    queries: Tensor | None,
    k: int,
    *,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    norm: int = 2,
    return_dist: bool = True,
    sorted: bool = True,
    algorithm: str = "auto",
) -> Neighbours:
    """Find the k nearest points of every query, exactly.

    Neighbours come nearest first; equally far ones lowest index first. Distances are squared
    (norm 2) or sums of absolute differences (norm 1), computed in float32 (float64 for float64).
    Both results may differ from another device's in the last bit of a distance.

    Args:
        points: (B, N, D), or (P, D) with offsets; float16, bfloat16, float32 or float64, any D.
        queries: (B, M, D), or (Q, D) with query_offsets, like points. None: the points themselves.
        k: 1 to 1024. It may exceed a cloud's length.
        lengths: (B,) int64, points of each padded cloud. Default: N.
        query_lengths: (B,) int64, queries of each padded cloud. Default: M; with queries None those
            of the points.
        offsets: (B + 1,) int64: points are packed.
        query_offsets: (B + 1,) int64: queries are packed.
        norm: 1 or 2.
        return_dist: False leaves dist2 None.
        sorted: Ignored: results are always sorted.
        algorithm: "auto"; "brute" compares all pairs; "grid" builds an index first (D <= 3), which
            follows the points: time stays about M log N on clustered, planar and degenerate clouds;
            "tensor" (CUDA, 16 <= D <= 512, k <= 128, norm 2, not float64) finds candidates with
            Tensor Cores and ranks them by exact distances. "auto" takes the grid for large clouds
            with D <= 3, tensor for D > 16 where it can, else brute, which takes time N M.

    Returns:
        idx (B, M, k) or (Q, k) int64, dist2 like it in float32 (float64 for float64 points). Where
        a cloud has fewer than k points: -1 and infinity; so too for rows beyond query_lengths. A
        point with a NaN is nobody's neighbour, a query with a NaN has none. dist2 has a gradient
        for points and queries (norm 1: the sign, 0 at 0), summed in the same order in every run.

    Raises:
        TypeError: An argument is no tensor.
        ValueError: Unknown algorithm; query_lengths or query_offsets with queries None.
        RuntimeError: Shapes, dtypes, devices or k do not fit.

    Grid: the points sorted along a Hilbert curve (Skilling 2004), boxes over every 32.
    """
    search = make_search("knn", points, queries, lengths, query_lengths, offsets, query_offsets)
    return run_knn(search, k, norm, return_dist, algorithm_code("knn", algorithm))


def run_knn(search: Search, k: int, norm: int, return_dist: bool, algorithm: int) -> Neighbours:
    if type(k) is not int:
        k = as_int("knn", "k", k)
    idx, dist = _ops.knn.default(*detached(search), k, norm, algorithm)
    return Neighbours(idx, with_gradient(search, idx, dist, norm) if return_dist else None)


@public
def ball_query(
    points: Tensor,
    queries: Tensor | None,
    radius: float,
    k: int,
    *,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    select: str = "first",
    pad: int | str = -1,
    closed: bool = False,
    return_dist: bool = False,
    algorithm: str = "auto",
) -> BallQuery:
    """Find up to k points within a radius of every query.

    A point is inside where dist2 < radius * radius (with closed=True: <=), both rounded to float32
    (float64 for float64 points); PyTorch3D, torch-cluster and pointnet2_ops compare with <.

    Args:
        points, queries, lengths, query_lengths, offsets, query_offsets: As for `knn`.
        radius: Not negative; infinity is allowed.
        k: 1 to 1024.
        select: Which points a fuller ball keeps: the "first" k in index order, in that order, or
            the "nearest" k, nearest first.
        pad: What unused places of idx hold: -1, or "first" to repeat the row's first neighbour (an
            empty ball still holds -1).
        closed: Count a point exactly at the radius.
        return_dist: Also return squared distances.
        algorithm: "auto", "brute" or "grid", as for `knn`.

    Returns:
        idx (B, M, k) or (Q, k) int64; counts (B, M) or (Q,) int64, the used places of each row;
        dist2 like idx or None, infinite in unused places (with pad="first": the first's), with a
        gradient as in `knn`.

    Raises:
        TypeError, ValueError, RuntimeError: As `knn`.
    """
    search = make_search(
        "ball_query", points, queries, lengths, query_lengths, offsets, query_offsets
    )
    code = algorithm_code("ball_query", algorithm)
    return run_ball_query(search, radius, k, select, pad, closed, return_dist, code)


def run_ball_query(
    search: Search,
    radius: float,
    k: int,
    select: str,
    pad: int | str,
    closed: bool,
    return_dist: bool,
    algorithm: int,
) -> BallQuery:
    if type(k) is not int:
        k = as_int("ball_query", "k", k)
    if select not in ("first", "nearest"):
        raise ValueError(f"ball_query: select must be 'first' or 'nearest'; got {select!r}")
    if pad not in (-1, "first"):
        raise ValueError(f"ball_query: pad must be -1 or 'first'; got {pad!r}")
    idx, counts, dist = _ops.ball_query.default(
        *detached(search), radius, k, select == "nearest", pad == "first", closed, algorithm
    )
    return BallQuery(idx, counts, with_gradient(search, idx, dist, 2) if return_dist else None)


@public
def ball_query_scales(
    points: Tensor,
    queries: Tensor | None,
    radii: Sequence[float],
    ks: Sequence[int],
    *,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    pad: int | str = -1,
    closed: bool = False,
) -> list[BallQuery]:
    """Find the first k points within each of several radii, by one pass over the points.

    The balls of a multi-scale layer (Qi et al., "PointNet++", 2017, section 3.3). The answer for
    every radius is exactly `ball_query`'s. CUDA compares every pair, once for all radii; for clouds
    of many ten thousand points a `GridIndex` serves several searches better.

    Args:
        points, queries, lengths, query_lengths, offsets, query_offsets: As for `knn`.
        radii: One to four; each not negative, infinity is allowed, in any order.
        ks: As many; each 1 to 1024.
        pad, closed: As for `ball_query`.

    Returns:
        For every radius what `ball_query` returns: idx (B, M, k) or (Q, k) int64, counts (B, M) or
        (Q,) int64, and no distances.

    Raises:
        TypeError, ValueError, RuntimeError: As `knn`.
    """
    op = "ball_query_scales"
    search = make_search(op, points, queries, lengths, query_lengths, offsets, query_offsets)
    if pad not in (-1, "first"):
        raise ValueError(f"{op}: pad must be -1 or 'first'; got {pad!r}")
    sizes = [k if type(k) is int else as_int(op, "ks", k, "ints") for k in ks]
    found, counts = _ops.ball_query_scales.default(
        *detached(search)[:-1], list(radii), sizes, pad == "first", closed
    )
    shape = search.queries.shape[:-1]
    rows = found.numel() // sum(sizes)
    parts = found.split([rows * k for k in sizes])
    return [
        BallQuery(part.view(*shape, k), count, None)
        for part, count, k in zip(parts, counts.unbind(0), sizes, strict=True)
    ]


@public
def radius_search(
    points: Tensor,
    queries: Tensor | None,
    radius: float,
    *,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    closed: bool = False,
    return_dist: bool = False,
    algorithm: str = "auto",
) -> RadiusSearch:
    """Find all points within a radius of every query, as compressed rows.

    The size of the result is data: this function waits for the device once to learn it, and cannot
    be captured in a CUDA graph. Membership is decided as in `ball_query`.

    Args:
        points, queries, lengths, query_lengths, offsets, query_offsets: As for `knn`.
        radius, closed, return_dist, algorithm: As for `ball_query`.

    Returns:
        offsets (B M + 1,) or (Q + 1,) int64; idx (E,) int64, ascending within a row; dist2 (E,) or
        None, without a gradient.

    Raises:
        TypeError, ValueError, RuntimeError: As `knn`; E must be below 2^31.
    """
    search = make_search(
        "radius_search", points, queries, lengths, query_lengths, offsets, query_offsets
    )
    code = algorithm_code("radius_search", algorithm)
    return run_radius_search(search, radius, closed, return_dist, code)


def run_radius_search(
    search: Search, radius: float, closed: bool, return_dist: bool, algorithm: int
) -> RadiusSearch:
    search = detached(search)
    counts = _ops.radius_count.default(*search, radius, closed, algorithm)
    starts = torch.nn.functional.pad(counts.reshape(-1).cumsum(0), (1, 0))
    (total,) = read_sizes(starts[-1:])
    idx, dist = _ops.radius_fill.default(*search, starts, radius, closed, algorithm, total)
    return RadiusSearch(starts, idx, dist if return_dist else None)
