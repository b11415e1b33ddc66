"""`pytorch3d.ops`: k-NN, ball query and furthest point sampling of padded clouds."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import points
from ..._core.calls import public_with
from ..._fakes.cloud import check_dim
from ...reference.points import rows

__all__ = ["ball_query", "knn_gather", "knn_points", "sample_farthest_points"]


class KNN(NamedTuple):
    """What `knn_points` and `ball_query` return."""

    dists: Tensor
    idx: Tensor
    knn: Tensor | None


@public_with(points="p2", queries="p1", lengths="lengths2", query_lengths="lengths1", k="K")
def knn_points(
    p1: Tensor,
    p2: Tensor,
    lengths1: Tensor | None = None,
    lengths2: Tensor | None = None,
    norm: int = 2,
    K: int = 1,
    version: int = -1,
    return_nn: bool = False,
    return_sorted: bool = True,
) -> KNN:
    """Find the K points of p2 nearest to every point of p1.

    Args:
        p1: (N, P1, D), the queries.
        p2: (N, P2, D), the points.
        lengths1: (N,) int64, points of each cloud of p1. Default: P1.
        lengths2: (N,) int64, points of each cloud of p2. Default: P2.
        norm: 1 or 2.
        K: At least 1; at most 1024 unless P2 is smaller.
        version: Ignored: the method is chosen.
        return_nn: Also return the neighbours.
        return_sorted: Nearest first; otherwise farthest first, which costs more.

    Returns:
        dists (N, P1, K), squared for norm 2, differentiable in p1 and p2; idx (N, P1, K) int64;
        both 0 where a cloud of p2 has fewer than K points and beyond lengths1. knn (N, P1, K, D),
        ``knn_gather(p2, idx, lengths2)``, or None.

    Raises:
        ValueError: Batch or point dimensions differ, or another norm.
        RuntimeError: As `fusedops.points.knn`.
    """
    _check_pair("knn_points", p1, p2)
    if norm not in (1, 2):
        raise ValueError("Support for 1 or 2 norm.")
    k = _columns(K, p2)
    idx, dists = points.knn(p2, p1, k, lengths=lengths2, query_lengths=lengths1, norm=norm)
    assert dists is not None
    if not return_sorted and k > 1:
        idx, dists = _farthest_first(idx, dists)
    none = idx < 0
    idx, dists = _widen(idx.masked_fill(none, 0), K, 0), _widen(dists.masked_fill(none, 0), K, 0)
    return KNN(dists, idx, knn_gather(p2, idx, lengths2) if return_nn else None)


@public_with(features="x")
def knn_gather(x: Tensor, idx: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Rows of x by the indices of `knn_points`.

    Args:
        x: (N, M, U), any dtype.
        idx: (N, L, K) int64.
        lengths: (N,) int64, rows of each x. Default: M.

    Returns:
        (N, L, K, U), x[n, idx[n, l, k]], and 0 where k >= lengths[n] or idx is no row of x.
        Differentiable.

    Raises:
        ValueError: Batch dimensions differ.
    """
    check_dim("knn_gather", "x", x, 3, "(N, M, U)")
    check_dim("knn_gather", "idx", idx, 3, "(N, L, K)")
    if x.shape[0] != idx.shape[0]:
        raise ValueError("x and idx must have same batch dimension.")
    if lengths is not None and lengths.shape != x.shape[:1]:
        raise ValueError("x and lengths must have same batch dimension.")
    columns = torch.arange(idx.shape[2], device=idx.device)
    limit = x.shape[1] if lengths is None else lengths[:, None, None]
    idx = idx.masked_fill(columns >= limit, -1)
    if x.is_floating_point():
        return points.group(x, idx)
    return rows(x, idx)


@public_with(points="p2", queries="p1", lengths="lengths2", query_lengths="lengths1", k="K")
def ball_query(
    p1: Tensor,
    p2: Tensor,
    lengths1: Tensor | None = None,
    lengths2: Tensor | None = None,
    K: int = 500,
    radius: float = 0.2,
    return_nn: bool = True,
    skip_points_outside_cube: bool = False,
) -> KNN:
    """Find the first K points of p2, by index, closer than radius to every point of p1.

    Args:
        p1, p2, lengths1, lengths2, K: As for `knn_points`.
        radius: A point at exactly this distance is outside.
        return_nn: Also return the neighbours.
        skip_points_outside_cube: Ignored; it changes no result.

    Returns:
        dists (N, P1, K), squared, 0 in unused places, differentiable; idx (N, P1, K) int64, -1 in
        unused places; knn (N, P1, K, D), 0 in unused places, or None.

    Raises:
        ValueError, RuntimeError: As `knn_points`.
    """
    _check_pair("ball_query", p1, p2)
    k = _columns(K, p2)
    idx, _, dists = points.ball_query(
        p2, p1, radius, k, lengths=lengths2, query_lengths=lengths1, return_dist=True
    )
    assert dists is not None
    dists = _widen(dists.masked_fill(idx < 0, 0), K, 0)
    idx = _widen(idx, K, -1)
    return KNN(dists, idx, points.group(p2, idx) if return_nn else None)


@public_with(n="K")
def sample_farthest_points(
    points: Tensor,
    lengths: Tensor | None = None,
    K: int | list[int] | Tensor = 50,
    random_start_point: bool = False,
) -> tuple[Tensor, Tensor]:
    """Furthest point sampling.

    Args:
        points: (N, P, D); taken as float32.
        lengths: (N,), points of each cloud. Default: P.
        K: Samples per cloud; a list or tensor (N,) for a number of each cloud's own.
        random_start_point: Begin anywhere instead of at point 0.

    Returns:
        The samples (N, max(K), D), 0 where a cloud has none, differentiable; their indices
        (N, max(K)) int64, -1 there.

    Raises:
        ValueError: lengths or K do not fit the batch, or a length exceeds P.
    """
    check_dim("sample_farthest_points", "points", points, 3, "(N, P, D)")
    count, capacity = points.shape[:2]
    if lengths is not None:
        if lengths.shape != (count,):
            raise ValueError("points and lengths must have same batch dimension.")
        if (lengths > capacity).any():
            raise ValueError("A value in lengths was too large.")
        lengths = lengths.long()
    if isinstance(K, list):
        K = torch.tensor(K, dtype=torch.int64, device=points.device)
    if isinstance(K, Tensor):
        if K.shape != (count,):
            raise ValueError("K and points must have the same batch dimension")
        K = K.long()
    points = points.float()
    start = "random" if random_start_point else 0
    idx = _sample(points, K, lengths, start)
    assert isinstance(idx, Tensor)
    return _gather(points, idx), idx


_sample, _gather = points.farthest_point_sample, points.gather


def _check_pair(op: str, p1: Tensor, p2: Tensor) -> None:
    check_dim(op, "p1", p1, 3, "(N, P1, D)")
    check_dim(op, "p2", p2, 3, "(N, P2, D)")
    if p1.shape[0] != p2.shape[0]:
        raise ValueError("pts1 and pts2 must have the same batch dimension.")
    if p1.shape[2] != p2.shape[2]:
        raise ValueError("pts1 and pts2 must have the same point dimension.")


def _columns(K: int, p2: Tensor) -> int:
    """K without the columns that no cloud of p2 can fill."""
    return min(K, max(int(p2.shape[1]), 1))


def _farthest_first(idx: Tensor, dists: Tensor) -> tuple[Tensor, Tensor]:
    """Turns the neighbours of each row around; unused places (-1) stay behind them."""
    found = (idx >= 0).sum(-1, keepdim=True)
    place = torch.arange(idx.shape[-1], device=idx.device)
    place = torch.where(place < found, found - 1 - place, place)
    return idx.gather(-1, place), dists.gather(-1, place)


def _widen(values: Tensor, K: int, pad: int) -> Tensor:
    """(N, P1, k) -> (N, P1, K)."""
    missing = K - values.shape[-1]
    return F.pad(values, (0, missing), value=pad) if missing else values
