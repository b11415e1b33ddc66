"""The function on which set abstraction, EdgeConv and feature propagation rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from .._autograd.compose import no_autocast
from . import _edge_composed, _edge_fused, _edge_rows
from ._edge_checks import check_layers, in_dtype
from ._edge_input import EdgeInput, PointProduct, product_by_point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ._edge_input import EdgeLayer
    from .norms import Norm


class EdgeMlpCall(NamedTuple):
    """The arguments of `edge_mlp`."""

    given: EdgeInput
    layers: Sequence[EdgeLayer]
    activation: str
    negative_slope: float
    last_activation: bool
    pool: str

    def has_kernels(self) -> bool:
        """Whether there are kernels for the call: others are composed of torch's functions."""
        given, layers, activation, slope, last_activation, pool = self
        with no_autocast(given.idx):
            if _edge_fused.supports(given, layers, activation, slope, pool, last_activation):
                return True
            return _edge_rows.supports(_with_products(given), layers, activation, slope, pool)

    def run(self) -> Tensor:
        """(B, M, C_L)."""
        return edge_mlp(*self)


def _with_products(given: EdgeInput) -> EdgeInput:
    """What is given, with products that are formed."""
    if isinstance(given.rows, PointProduct):
        return given._replace(rows=product_by_point(*given.rows))
    return given


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
        if _edge_fused.supports(given, layers, activation, negative_slope, pool, last_activation):
            return _edge_fused.edge_mlp(given, layers, activation, negative_slope, last_activation)
        given = _with_products(given)
        if _edge_rows.supports(given, layers, activation, negative_slope, pool):
            return _edge_rows.edge_mlp(given, layers, activation, negative_slope, last_activation)
        return _edge_composed.edge_mlp(
            given, layers, activation, negative_slope, last_activation, pool
        )


def point_mlp(
    y: Tensor,
    added: Tensor | None,
    valid: Tensor | None,
    layers: Sequence[EdgeLayer],
    activation: str,
    negative_slope: float,
    last_activation: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Layers over points from y_1 = y + added (B, N, C1), float32 (float64), without a bias.

    Points that are not valid (B, N) are in no statistics, and their results are 0; None: all are.
    """
    with no_autocast(y):
        at = torch.arange(y.shape[1], device=y.device).expand(y.shape[:2])
        if valid is not None:
            at = torch.where(valid, at, -1)
        given = EdgeInput(y, added, None, None, None, at.unsqueeze(2), dtype)
        if _edge_rows.supports(given, layers, activation, negative_slope, "max"):
            return _edge_rows.edge_mlp(
                given, layers, activation, negative_slope, last_activation,
                identity=True, whole=valid is None,
            )  # fmt: skip
        return _edge_composed.point_mlp(
            y if added is None else y + added,
            valid, layers, activation, negative_slope, last_activation, dtype,
        )  # fmt: skip


def shared_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    norms: Sequence[Norm | None],
    activation: str,
    negative_slope: float,
    last_activation: bool,
) -> Tensor | None:
    """Layers on rows x (..., C) by the kernels over rows; None: there are none for the call."""
    layers = check_layers("SharedMLP", weights, biases, norms, x.shape[-1], x)
    rows = in_dtype("SharedMLP", "x", x, layers).flatten(0, -2)
    y = _edge_rows.rows_mlp(rows, layers, activation, negative_slope, last_activation)
    return None if y is None else y.unflatten(0, x.shape[:-1])
