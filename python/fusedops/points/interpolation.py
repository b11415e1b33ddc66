"""Features at query points from those of their neighbours."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .._core.calls import public
from .._core.checks import check_tensors, raise_not_tensor
from . import _autograd
from .neighbours import Neighbours, knn

__all__ = [
    "interpolate",
    "interpolation_weights",
    "knn_interpolate",
    "three_interpolate",
    "three_nn",
]

Weights = Literal["inverse_distance", "inverse_square", "uniform"]


@public
def interpolate(features: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of neighbours' features: ``out[b, m] = sum_k weights[b, m, k] * features[b, i]``
    with ``i = idx[b, m, k]``; an index outside the cloud, -1 above all, adds nothing.

    Sums run in float32 (float64 for float64). Differentiable in features and weights, to any
    order, deterministic. Qi et al., "PointNet++", 2017, for K = 3.

    Args:
        features: (B, N, C), or (P, C) with packed indices; float16, bfloat16, float32 or float64.
        idx: (B, M, K) int64, or (Q, K).
        weights: like idx; of the dtype of features, or float32 beside half features.

    Returns:
        (B, M, C) or (Q, C), contiguous, of the dtype of features.

    Raises:
        TypeError: an argument is no tensor.
        RuntimeError: shapes, dtypes or devices do not fit.
    """
    arguments = (features, idx, weights)
    if not all(isinstance(argument, Tensor) for argument in arguments):
        raise_not_tensor("interpolate", features=features, idx=idx, weights=weights)
    packed = idx.dim() == 2
    if packed:
        features, idx, weights = (argument.unsqueeze(0) for argument in arguments)
    out = _autograd.interpolate(features, idx, weights)
    return out.squeeze(0) if packed else out


@public
def three_interpolate(features: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
    """`interpolate` by the name under which PointNet++ knows it (K = 3 there, any K here)."""
    return interpolate(features, idx, weights)


@public
def interpolation_weights(
    dist2: Tensor, idx: Tensor, weights: Weights = "inverse_distance", eps: float = 1e-8
) -> Tensor:
    """Weights (..., K) that sum to 1 from squared distances (..., K).

    ``inverse_distance``: 1 / (sqrt(dist2) + eps), as PointNet++ does. ``inverse_square``:
    1 / (dist2 + eps). ``uniform``: 1. A neighbour with idx -1 weighs nothing; a query without
    neighbours gets zeros. Differentiable in dist2 for the first two, with gradient 0 at distance 0
    for inverse_distance.

    Raises:
        ValueError: weights is another word.
    """
    if dist2.shape != idx.shape or dist2.device != idx.device:
        raise RuntimeError(
            f"interpolation_weights: idx must have shape {tuple(dist2.shape)} on {dist2.device} "
            f"like dist2; got {tuple(idx.shape)} on {idx.device}"
        )
    if weights == "inverse_distance":
        zero = dist2 == 0  # sqrt has no derivative there
        distance = torch.where(zero, 0, torch.where(zero, 1, dist2).sqrt())
        inverse = 1 / (distance + eps)
    elif weights == "inverse_square":
        inverse = 1 / (dist2 + eps)
    elif weights == "uniform":
        inverse = torch.ones_like(dist2)
    else:
        raise ValueError(
            'interpolation_weights: weights must be "inverse_distance", "inverse_square" or '
            f'"uniform"; got {weights!r}'
        )
    inverse = torch.where(idx >= 0, inverse, 0)
    total = inverse.sum(-1, keepdim=True)
    return inverse / torch.where(total > 0, total, 1)


@public
def three_nn(
    points: Tensor,
    queries: Tensor,
    *,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
) -> Neighbours:
    """Find the three nearest points of every query: `knn` with k = 3.

    Returns idx and dist2, (B, M, 3) or (Q, 3): squared distances (PointNet++'s function of this
    name returns their roots), -1 and infinity where a cloud has fewer points.
    """
    return knn(
        points,
        queries,
        3,
        lengths=lengths,
        query_lengths=query_lengths,
        offsets=offsets,
        query_offsets=query_offsets,
    )


@public
def knn_interpolate(
    features: Tensor,
    points: Tensor,
    queries: Tensor,
    k: int = 3,
    weights: Weights = "inverse_distance",
    *,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    eps: float = 1e-8,
) -> Tensor:
    """Features at the queries from those of their k nearest points, by weights that sum to 1.

    `knn`, `interpolation_weights` and `interpolate` in a row; differentiable in features, and
    through the weights in points and queries.

    Args:
        features: (B, N, C), or (P, C) with offsets; float16, bfloat16, float32 or float64.
        points: (B, N, D) or (P, D), where the features are.
        queries: (B, M, D) or (Q, D), where they are wanted.
        k: Neighbours; with fewer points in a cloud, those.
        weights: see `interpolation_weights`.
        lengths: (B,) int64, points of each padded cloud.
        query_lengths: (B,) int64, queries of each padded cloud; rows beyond are zeros.
        offsets: (B + 1,) int64: points are packed.
        query_offsets: (B + 1,) int64: queries are packed.
        eps: Added to the distances.

    Returns:
        (B, M, C) or (Q, C) of the dtype of features; zeros for a query without neighbours.

    Raises:
        TypeError: an argument is no tensor.
        ValueError: weights is an unknown word.
        RuntimeError: shapes, dtypes, devices or k do not fit.
    """
    check_tensors("knn_interpolate", (), features=features, points=points)
    if features.shape[:-1] != points.shape[:-1]:
        raise RuntimeError(
            f"knn_interpolate: features must have one row for each of points {tuple(points.shape)};"
            f" got {tuple(features.shape)}"
        )
    idx, dist2 = knn(
        points,
        queries,
        k,
        lengths=lengths,
        query_lengths=query_lengths,
        offsets=offsets,
        query_offsets=query_offsets,
    )
    assert dist2 is not None
    blend = interpolation_weights(dist2, idx, weights, eps)
    dtype = torch.float32 if features.dtype.itemsize == 2 else features.dtype
    return interpolate(features, idx, blend.to(dtype))
