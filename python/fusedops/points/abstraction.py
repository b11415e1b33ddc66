"""The layers of PointNet++ and DGCNN: an MLP over every neighbour of a group, and a pool."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 (`public` reads annotations)
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor  # noqa: TC002 (likewise)

from .._core.calls import public
from . import _edge_conv
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
from ._edge_input import EdgeInput, PointProduct, columns_of, edge_layers, product_by_point
from ._edge_mlp import EdgeMlpCall
from .norms import Norm  # noqa: TC001 (`public` reads annotations)

if TYPE_CHECKING:
    import torch

    from ._edge_input import EdgeLayer

__all__ = ["edge_conv", "set_abstraction"]


@public
def set_abstraction(
    xyz: Tensor | None,
    features: Tensor | None,
    centers: Tensor | None,
    idx: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    norms: Sequence[Norm | None] | None = None,
    activation: str | None = "relu",
    pool: str = "max",
    *,
    negative_slope: float = 0.01,
    last_activation: bool = True,
    normalize_radius: float | None = None,
) -> Tensor:
    """A set abstraction layer of PointNet++: an MLP over each group's neighbours, pooled.

    ``out[b, m] = pool over k of mlp([xyz[b, j] - centers[b, m], features[b, j]])`` with
    ``j = idx[b, m, k]``; a layer of the MLP is ``act(norm(x @ weight.T + bias))``. An index outside
    the cloud, -1 above all, is no neighbour: it counts in no pool and no statistics. An index that
    is repeated counts as often. A group without neighbours gives zeros and has no gradient.

    The features' part of the first layer is a product of N rows, not of M x K; offsets are formed
    in float32 before they are multiplied. Sums and statistics are float32 (float64 for float64).
    Under a maximum the lowest k wins among equal values, and NaN wins; the gradient goes to the
    winner. A batch norm in training has the exact statistics of the edges that count, and updates
    its running ones in place; one edge in all raises, as in torch (where idx leaves one, the
    variance is 0). The bias before such a norm moves the running mean alone, and its gradient is
    exactly 0. Derivatives of any order; deterministic.

    Qi, Yi, Su and Guibas, "PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric
    Space", 2017.

    Args:
        xyz: (B, N, D), or (P, D) packed: float32, float64 with float64 weights; halves beside half
            weights are taken as float32. None: features alone.
        features: (B, N, F) or (P, F) in the weights' dtype, or None: offsets alone.
        centers: (B, M, D) or (Q, D) like xyz, or None: coordinates are not relative.
        idx: (B, M, K) int64, or (Q, K) packed.
        weights: (C1, D + F), columns [offset, features], then (C_l, C_{l-1}); float16, bfloat16,
            float32 or float64.
        biases: (C_l,) each, any floating dtype, or None.
        norms: `BatchNorm`, `LayerNorm` or None for each layer.
        activation: As in `fusedops.linear`, after every layer.
        pool: "max", "mean" (over the neighbours there are) or "sum".
        negative_slope: Slope of "leaky_relu".
        last_activation: Whether the last layer has the activation.
        normalize_radius: Offsets are divided by it (PointNeXt's normalize_dp), or None.

    Returns:
        (B, M, C_L) or (Q, C_L), contiguous, in the weights' dtype; under autocast in its dtype.
        Coordinates stay float32 there, parameters of norms keep their dtypes.

    Raises:
        TypeError: an argument is no tensor, sequence or norm.
        ValueError: a word is unknown, sequences differ in length, a norm lacks statistics, or one
            edge is all that a batch norm in training sees.
        RuntimeError: shapes, dtypes or devices do not fit.

    Example:
        >>> idx = ball_query(xyz, centers, 0.2, 32).idx
        >>> y = set_abstraction(xyz, None, centers, idx, [w1, w2, w3], norms=[bn1, bn2, bn3])
    """
    call = abstraction_call(
        xyz, features, centers, idx, weights, biases, norms, activation, pool, negative_slope,
        last_activation, normalize_radius,
    )  # fmt: skip
    out = call.run()
    return out.squeeze(0) if idx.dim() == 2 else out


def abstraction_call(
    xyz: Tensor | None,
    features: Tensor | None,
    centers: Tensor | None,
    idx: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None,
    norms: Sequence[Norm | None] | None,
    activation: str | None,
    pool: str,
    negative_slope: float,
    last_activation: bool,
    normalize_radius: float | None,
) -> EdgeMlpCall:
    """The layers of `set_abstraction` over its edges; its errors."""
    op = "set_abstraction"
    activation = check_words(op, activation, pool)
    like = _check_groups(op, xyz, features, centers, idx)
    normalize_radius = None if normalize_radius is None else float(normalize_radius)
    if normalize_radius is not None and not normalize_radius > 0:
        raise ValueError(f"{op}: normalize_radius must be positive or None; got {normalize_radius}")
    dim = 0 if xyz is None else xyz.shape[-1]
    columns = dim + (0 if features is None else features.shape[-1])
    layers = check_layers(op, weights, biases, norms, columns, like)
    check_edge_count(op, layers.norms, idx.numel())
    product = offset_weight = None
    of_offsets, of_features = columns_of(layers.weights[0], dim)
    if features is not None:
        features = in_dtype(op, "features", features, layers)
        features = features.unsqueeze(0) if idx.dim() == 2 else features
        product = PointProduct(features, of_features)
    if xyz is not None:
        xyz = coordinates(op, "xyz", xyz, layers)
        centers = None if centers is None else coordinates(op, "centers", centers, layers)
        offset_weight = of_offsets
        if normalize_radius is not None:  # in float32: the weight may be a half
            xyz = xyz / normalize_radius
            centers = None if centers is None else centers / normalize_radius
    if idx.dim() == 2:
        xyz, centers = (None if t is None else t.unsqueeze(0) for t in (xyz, centers))
        idx = idx.unsqueeze(0)
    edges = EdgeInput(product, None, offset_weight, xyz, centers, idx, layers.dtype)
    slope = float(negative_slope)
    return EdgeMlpCall(edges, edge_layers(layers), activation, slope, last_activation, pool)


def _check_groups(
    op: str, xyz: Tensor | None, features: Tensor | None, centers: Tensor | None, idx: Tensor
) -> Tensor:
    """The errors of what is grouped; a tensor of the cloud."""
    like = features if xyz is None else xyz
    if like is None:
        raise ValueError(f"{op}: xyz or features must be given; got None for both")
    check_cloud(op, "features" if xyz is None else "xyz", like)
    if features is not None:
        check_cloud(op, "features", features, like)
    check_idx(op, idx, like)
    if centers is not None:
        if xyz is None:
            raise ValueError(f"{op}: centers must be None where xyz is; got a Tensor")
        check_tensor(op, "centers", centers, like)
        check_shape(op, "centers", centers, (*idx.shape[:-1], xyz.shape[-1]))
    return like


@public
def edge_conv(
    features: Tensor,
    idx: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    norms: Sequence[Norm | None] | None = None,
    activation: str | None = "leaky_relu",
    pool: str = "max",
    *,
    negative_slope: float = 0.2,
    last_activation: bool = True,
) -> Tensor:
    """EdgeConv of DGCNN: ``out[b, i] = pool over k of mlp([f_j - f_i, f_i])``, j = idx[b, i, k].

    Every point is the centre of a group. With weights[0] = [W_d, W_c] the first layer is
    W_d f_j + (W_c - W_d) f_i, two products of N rows instead of one of N x K, summed in float32.
    Neighbours that are none, repeats, norms, pools and derivatives are as in `set_abstraction`.

    Wang, Sun, Liu, Sarma, Bronstein and Solomon, "Dynamic Graph CNN for Learning on Point Clouds",
    2019, whose neighbours are `knn` of the features themselves.

    Args:
        features: (B, N, F), or (P, F) packed, in the weights' dtype.
        idx: (B, N, K) int64, or (P, K) packed.
        weights: (C1, 2 F), columns [f_j - f_i, f_i] (torch_geometric's are the other way round),
            then (C_l, C_{l-1}); float16, bfloat16, float32 or float64.
        biases: (C_l,) each, any floating dtype, or None.
        norms: `BatchNorm`, `LayerNorm` or None for each layer.
        activation: As in `fusedops.linear`, after every layer.
        pool: "max", "mean" or "sum".
        negative_slope: Slope of "leaky_relu".
        last_activation: Whether the last layer has the activation.

    Returns:
        (B, N, C_L) or (P, C_L), contiguous, in the weights' dtype; under autocast in its dtype.

    Raises:
        TypeError: an argument is no tensor, sequence or norm.
        ValueError: a word is unknown, sequences differ in length, a norm lacks statistics, or one
            edge is all that a batch norm in training sees.
        RuntimeError: shapes, dtypes or devices do not fit.

    Example:
        >>> idx = knn(features, None, 20).idx
        >>> y = edge_conv(features, idx, [weight], norms=[norm])
    """
    call = edge_conv_call(
        features, idx, weights, biases, norms, activation, pool, negative_slope, last_activation
    )
    out = call.run()
    return out.squeeze(0) if idx.dim() == 2 else out


class EdgeConvCall(NamedTuple):
    """The layers of `edge_conv` over its edges."""

    features: Tensor  # (B, N, F)
    idx: Tensor  # (B, N, K)
    weight: Tensor  # (C, 2 F), of the first layer
    layers: Sequence[EdgeLayer]
    activation: str
    negative_slope: float
    last_activation: bool
    pool: str
    dtype: torch.dtype

    def has_kernels(self) -> bool:
        """Whether there are kernels for the call: others are composed of torch's functions."""
        return self._is_one_layer() or self._over_edges().has_kernels()

    def run(self) -> Tensor:
        """(B, N, C_L)."""
        if not self._is_one_layer():
            return self._over_edges().run()
        return _edge_conv.edge_conv(
            self.features, self.weight, self.idx, self.layers[0], self.activation,
            self.negative_slope, self.last_activation,
        )  # fmt: skip

    def _is_one_layer(self) -> bool:
        return _edge_conv.supports(
            self.features, self.weight, self.idx, self.layers, self.activation,
            self.negative_slope, self.pool,
        )  # fmt: skip

    def _over_edges(self) -> EdgeMlpCall:
        of_own, of_others = columns_of(self.weight, self.features.shape[-1])
        rows = product_by_point(self.features, of_own)
        group_rows = product_by_point(self.features, of_others) - rows
        edges = EdgeInput(rows, group_rows, None, None, None, self.idx, self.dtype)
        return EdgeMlpCall(edges, *self[3:8])


def edge_conv_call(
    features: Tensor,
    idx: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None,
    norms: Sequence[Norm | None] | None,
    activation: str | None,
    pool: str,
    negative_slope: float,
    last_activation: bool,
) -> EdgeConvCall:
    """The layers of `edge_conv` over its edges; its errors."""
    op = "edge_conv"
    activation = check_words(op, activation, pool)
    check_cloud(op, "features", features)
    check_idx(op, idx, features)
    check_shape(op, "idx", idx, (*features.shape[:-1], "K"))
    layers = check_layers(op, weights, biases, norms, 2 * features.shape[-1], features)
    check_edge_count(op, layers.norms, idx.numel())
    features = in_dtype(op, "features", features, layers)
    if idx.dim() == 2:
        features, idx = features.unsqueeze(0), idx.unsqueeze(0)
    return EdgeConvCall(
        features, idx, layers.weights[0], edge_layers(layers), activation, float(negative_slope),
        last_activation, pool, layers.dtype,
    )  # fmt: skip
