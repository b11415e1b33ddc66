"""EdgeConv, the layer of DGCNN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...points.abstraction import edge_conv
from ...points.grouping import group
from ...points.neighbours import knn
from .abstraction import check_pool
from .mlp import SharedMLP, is_readable, widths_of
from .pooling import run_on_edges

if TYPE_CHECKING:
    from collections.abc import Sequence


class EdgeConv(torch.nn.Module):
    """An edge convolution: an MLP of (f_j - f_i, f_i) for the k nearest j of each point i, pooled.

    Neighbours are the nearest in the space of the features, the point itself among them, as in
    DGCNN (Wang et al., "Dynamic Graph CNN for Learning on Point Clouds", 2019); other ones may be
    given. All in `fusedops.points.edge_conv`, which forms no tensor of (B, N, k, 2 F). While a
    module inside has hooks or was replaced, the layers run one by one instead.

    Args:
        in_channels: F of the features.
        mlp: The widths of the layers.
        k: Neighbours.
        pool: "max", "mean" or "sum".
        activation: As in `SharedMLP`, here "leaky_relu" by default.
        negative_slope: Slope of "leaky_relu".
        norm, bias, last_norm, last_activation, device, dtype: As in `SharedMLP`.

    Raises:
        ValueError: A word is unknown.

    Shape:
        features (B, N, F), output (B, N, mlp[-1]); packed (P, F) and (P, mlp[-1]).
    """

    __module__ = "fusedops.nn"  # what pickles name

    def __init__(
        self,
        in_channels: int,
        mlp: Sequence[int],
        k: int = 20,
        *,
        pool: str = "max",
        activation: str | None = "leaky_relu",
        negative_slope: float = 0.2,
        **options: Any,
    ) -> None:
        check_pool("EdgeConv", pool)
        super().__init__()
        self.mlp = SharedMLP(
            [2 * in_channels, *widths_of("EdgeConv", "mlp", mlp)],
            activation=activation,
            negative_slope=negative_slope,
            **options,
        )
        self.k, self.pool = k, pool

    def forward(
        self,
        features: Tensor,
        idx: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """Apply the layer.

        Args:
            features: (B, N, F), or (P, F) packed.
            idx: (B, N, K) or (P, K) int64, the neighbours; None to search them among the features.
                -1 is none.
            lengths: (B,) int64, the points of each cloud, for that search.
            offsets: (B + 1,) int64, where packed clouds begin, for that search.
        """
        if idx is None:
            idx = knn(
                features.detach(), None, self.k, lengths=lengths, offsets=offsets, return_dist=False
            ).idx
        mlp = self.mlp
        if not is_readable(mlp):
            near, own = group(features, idx), features.unsqueeze(-2)
            rows = torch.cat([near - own, own.expand_as(near)], dim=-1)
            return run_on_edges(mlp, rows, idx >= 0, self.pool)
        weights, biases, norms = mlp.arguments()
        return edge_conv(
            features, idx, weights, biases, norms, mlp.activation, self.pool,
            negative_slope=mlp.negative_slope, last_activation=mlp.last_activation,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The neighbours and the pooling."""
        return f"k={self.k}, pool={self.pool!r}"
