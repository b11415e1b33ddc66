"""The function on which set abstraction, EdgeConv and feature propagation rest.

The first layer is linear in the offset x_j - c_i and in the features of neighbour and centre, so
its products with features are formed once a point and gathered; only the offsets' product belongs
to an edge. That is exact algebra, not an approximation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._autograd.compose import no_autocast
from .._autograd.gemm import linear_eager
from .._autograd.shared import sees_torch_functions_only
from ..ops.linear import linear
from . import _edge_composed, _edge_fused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._edge_checks import Layers
    from .norms import Norm


class PointProduct(NamedTuple):
    """Products of the first layer that are still to be formed, one a point."""

    features: Tensor  # (B, N, F)
    weight: Tensor  # (C1, F)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the product."""
        return (*self.features.shape[:2], self.weight.shape[0])


class EdgeInput(NamedTuple):
    """The first layer's products, by point and by group, and the edges (i, j) themselves.

    y_1 = rows[j] + group_rows[i] + offset_weight (xyz[j] - centers[i]) + bias.
    """

    rows: Tensor | PointProduct | None  # (B, N, C1), float32 beside half dtypes
    group_rows: Tensor | None  # (B, M, C1), like rows
    offset_weight: Tensor | None  # (C1, D), dtype
    xyz: Tensor | None  # (B, N, D), float32 (float64 where dtype is)
    centers: Tensor | None  # (B, M, D) like xyz, or None for 0
    idx: Tensor  # (B, M, K) int64; what is outside the cloud is no edge
    dtype: torch.dtype  # of hidden activations and of the result


class EdgeLayer(NamedTuple):
    """One layer; the product of the first one is in EdgeInput."""

    weight: Tensor | None  # (C_l, C_{l-1}) in EdgeInput.dtype; None for the first layer
    bias: Tensor | None  # (C_l,), any floating dtype
    norm: Norm | None


def edge_layers(layers: Layers) -> list[EdgeLayer]:
    """Checked layers as `edge_mlp` takes them."""
    weights = [None, *layers.weights[1:]]
    return [EdgeLayer(*layer) for layer in zip(weights, layers.biases, layers.norms, strict=True)]


def product_by_point(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., F) times weight (C, F) transposed; in float32 of halves.

    Rows that are summed with others must not be rounded before. Halves are exact in TF32.
    """
    if x.dtype.itemsize > 2:
        return linear(x, weight)
    x, weight = x.float(), weight.float()
    if torch.compiler.is_dynamo_compiling() or sees_torch_functions_only(x, weight):
        return F.linear(x, weight)
    product: Tensor = linear_eager(x, weight, None, 0, x.is_cuda, None)
    return product


def edge_mlp(
    given: EdgeInput,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    last_activation: bool,
    pool: str,
) -> Tensor:
    """Layers over edges, pooled over each group's neighbours: (B, M, C_L) in given.dtype.

    Arguments are checked by the callers, and cast where autocast is on.
    """
    with no_autocast(given.idx):
        if _edge_fused.supports(given, layers, activation, negative_slope, pool):
            return _edge_fused.edge_mlp(given, layers, activation, negative_slope, last_activation)
        if isinstance(given.rows, PointProduct):
            given = given._replace(rows=product_by_point(*given.rows))
        return _edge_composed.edge_mlp(
            given, layers, activation, negative_slope, last_activation, pool
        )


def point_mlp(
    y: Tensor,
    valid: Tensor | None,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    last_activation: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Layers over points from y_1 (B, N, C1), float32 (float64) and without the first bias.

    Points that are not valid (B, N) are in no statistics, and their results are 0; None: all are.
    """
    with no_autocast(y):
        return _edge_composed.point_mlp(
            y, valid, layers, activation, negative_slope, last_activation, dtype
        )
