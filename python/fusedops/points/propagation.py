"""Feature propagation of PointNet++: from few points back to many."""

from __future__ import annotations

import math
from collections.abc import Sequence  # noqa: TC003 (`public` reads annotations)

import torch
from torch import Tensor

from .._autograd.compose import no_autocast
from .._core.calls import public_with
from .._core.checks import dtype_name
from ._edge_checks import (
    check_cloud,
    check_edge_count,
    check_idx,
    check_layers,
    check_shape,
    check_tensor,
    check_words,
    coordinates,
    in_dtype,
)
from ._edge_input import columns_of, edge_layers, product_by_point
from ._edge_mlp import point_mlp
from .interpolation import Weights, interpolate, interpolation_weights
from .neighbours import knn
from .norms import Norm  # noqa: TC001 (`public` reads annotations)

__all__ = ["feature_propagation"]

_WEIGHTS: dict[int, Weights] = {1: "inverse_distance", 2: "inverse_square"}


@public_with(
    points="known_xyz",
    queries="xyz",
    lengths="known_lengths",
    query_lengths="lengths",
    offsets="known_offsets",
    query_offsets="offsets",
)
def feature_propagation(
    xyz: Tensor,
    known_xyz: Tensor,
    features: Tensor | None,
    known_features: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    norms: Sequence[Norm | None] | None = None,
    activation: str | None = "relu",
    *,
    k: int = 3,
    order: str = "known_first",
    power: int = 2,
    negative_slope: float = 0.01,
    last_activation: bool = True,
    lengths: Tensor | None = None,
    known_lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    known_offsets: Tensor | None = None,
    neighbours: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Feature propagation of PointNet++: ``mlp([interpolate(known_features), features])``.

    Every point takes the features of its k nearest known points, by weights that sum to 1 (of fewer
    known points, those), beside its own; an MLP follows. Interpolation is linear, so the first
    layer's product with known features has M rows, and its result is interpolated, in float32.
    Norms and derivatives are as in `set_abstraction`, with points in the place of edges.

    Qi, Yi, Su and Guibas, "PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric
    Space", 2017.

    Args:
        xyz: (B, N, D), or (P, D) with offsets: float32, float64 with float64 weights; halves beside
            half weights are taken as float32.
        known_xyz: (B, M, D), or (R, D) with known_offsets.
        features: (B, N, F) or (P, F) in the weights' dtype, or None.
        known_features: (B, M, E) or (R, E) in the weights' dtype.
        weights: (C1, E + F), columns as order says, then (C_l, C_{l-1}); float16, bfloat16, float32
            or float64.
        biases: (C_l,) each, any floating dtype, or None.
        norms: `BatchNorm`, `LayerNorm` or None for each layer.
        activation: As in `fusedops.linear`, after every layer.
        k: Neighbours.
        order: "known_first", columns [known_features, features], or "skip_first".
        power: Weights are 1 / (distance^power + 1e-8), power 1 or 2.
        negative_slope: Slope of "leaky_relu".
        last_activation: Whether the last layer has the activation.
        lengths: (B,) int64, points of each padded cloud; rows beyond count nowhere and are zeros.
        known_lengths: (B,) int64, known points of each padded cloud.
        offsets: (B + 1,) int64: points are packed.
        known_offsets: (B + 1,) int64: known points are packed.
        neighbours: idx (B, N, K) int64 among the known points, and their weights alike in float32
            (float64), where they are found already; nothing is searched, and k and power are not
            read. Packed: (P, K).

    Returns:
        (B, N, C_L) or (P, C_L), contiguous, in the weights' dtype; under autocast in its dtype.

    Raises:
        TypeError: an argument is no tensor, sequence or norm.
        ValueError: order, power or a word is unknown, sequences differ in length, neighbours are
            not two, a norm lacks statistics, or one point is all that a batch norm in training
            sees.
        RuntimeError: shapes, dtypes, devices or k do not fit.

    Example:
        >>> y = feature_propagation(xyz, known_xyz, skip, known, [w1, w2], norms=[bn1, bn2])
    """
    op = "feature_propagation"
    activation = check_words(op, activation, "max")
    _check_choices(op, order, power)
    _check_clouds(op, xyz, known_xyz, features, known_features)
    of_known = known_features.shape[-1]
    of_skip = 0 if features is None else features.shape[-1]
    layers = check_layers(op, weights, biases, norms, of_known + of_skip, xyz)
    check_edge_count(op, layers.norms, math.prod(xyz.shape[:-1]))
    xyz = coordinates(op, "xyz", xyz, layers)
    known_xyz = coordinates(op, "known_xyz", known_xyz, layers)
    if neighbours is not None:
        _check_neighbours(op, neighbours, xyz)
    known_weight, skip_weight = _parts(layers.weights[0], of_known, of_skip, order)

    rows = product_by_point(in_dtype(op, "known_features", known_features, layers), known_weight)
    if neighbours is None:
        neighbours = weighted_neighbours(
            xyz, known_xyz, k, power, lengths, known_lengths, offsets, known_offsets
        )
    with no_autocast(rows):  # whose casts would round them
        y = interpolate(rows, *neighbours)
    added = None
    if features is not None:
        added = product_by_point(in_dtype(op, "features", features, layers), skip_weight)
    valid = _of_a_cloud(xyz, lengths, offsets)
    packed = y.dim() == 2
    if packed:
        y, added, valid = (None if t is None else t.unsqueeze(0) for t in (y, added, valid))
        assert y is not None
    slope, dtype = float(negative_slope), layers.dtype
    out = point_mlp(y, added, valid, edge_layers(layers), activation, slope, last_activation, dtype)
    return out.squeeze(0) if packed else out


def _parts(weight: Tensor, of_known: int, of_skip: int, order: str) -> tuple[Tensor, Tensor]:
    """The first weight's columns of known features, and of those that points have."""
    if order == "known_first":
        return columns_of(weight, of_known)
    skip_weight, known_weight = columns_of(weight, of_skip)
    return known_weight, skip_weight


def _check_choices(op: str, order: str, power: int) -> None:
    if order not in ("known_first", "skip_first"):
        raise ValueError(f'{op}: order must be "known_first" or "skip_first"; got {order!r}')
    if power not in _WEIGHTS:
        raise ValueError(f"{op}: power must be 1 or 2; got {power!r}")


def _check_clouds(
    op: str, xyz: Tensor, known_xyz: Tensor, features: Tensor | None, known_features: Tensor
) -> None:
    check_cloud(op, "xyz", xyz)
    check_tensor(op, "known_xyz", known_xyz, xyz)
    like = (xyz.shape[0], "M", xyz.shape[2]) if xyz.dim() == 3 else ("R", xyz.shape[1])
    check_shape(op, "known_xyz", known_xyz, like)
    check_cloud(op, "known_features", known_features, known_xyz)
    if features is not None:
        check_cloud(op, "features", features, xyz)


def _check_neighbours(op: str, neighbours: tuple[Tensor, Tensor], xyz: Tensor) -> None:
    """The errors of neighbours that are given; xyz: in the dtype that weights have."""
    if len(neighbours) != 2:
        raise ValueError(
            f"{op}: neighbours must be two Tensors, idx and weights; got {len(neighbours)}"
        )
    idx, weights = neighbours
    check_idx(op, idx, xyz)
    check_shape(op, "idx", idx, (*xyz.shape[:-1], "K"))
    check_tensor(op, "weights of neighbours", weights, xyz)
    check_shape(op, "weights of neighbours", weights, tuple(idx.shape))
    if weights.dtype != xyz.dtype:
        want, got = dtype_name(xyz.dtype), dtype_name(weights.dtype)
        raise RuntimeError(f"{op}: weights of neighbours must have dtype {want}; got {got}")


def weighted_neighbours(
    xyz: Tensor,
    known_xyz: Tensor,
    k: int,
    power: int,
    lengths: Tensor | None = None,
    known_lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    known_offsets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The k nearest known points of every point, and their weights, as feature propagation has."""
    with no_autocast(xyz):
        idx, dist2 = knn(
            known_xyz,
            xyz,
            k,
            lengths=known_lengths,
            query_lengths=lengths,
            offsets=known_offsets,
            query_offsets=offsets,
        )
        assert dist2 is not None
        return idx, interpolation_weights(dist2, idx, _WEIGHTS[power])


def _of_a_cloud(xyz: Tensor, lengths: Tensor | None, offsets: Tensor | None) -> Tensor | None:
    """(B, N) or (P,) bool: whether a row is a point of a cloud; None: all are."""
    if lengths is None and offsets is None:
        return None
    at = torch.arange(xyz.shape[-2], device=xyz.device)
    if offsets is not None:
        return (at >= offsets[0]) & (at < offsets[-1])
    assert lengths is not None
    return at < lengths.unsqueeze(1)
