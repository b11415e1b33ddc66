"""The function on which set abstraction, EdgeConv and feature propagation rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._autograd.compose import no_autocast
from . import _edge_composed, _edge_fused
from ._edge_input import PointProduct, product_by_point

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from ._edge_input import EdgeInput, EdgeLayer


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
