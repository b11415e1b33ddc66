"""FeaturePropagation, the decoder layer of PointNet++."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...points.interpolation import interpolate
from ...points.propagation import feature_propagation, weighted_neighbours
from .mlp import SharedMLP, is_readable, widths_of
from .pooling import in_clouds, run_on_points

if TYPE_CHECKING:
    from collections.abc import Sequence

_ORDERS = ("known_first", "skip_first")


class FeaturePropagation(torch.nn.Module):
    """A feature propagation layer of PointNet++.

    Features of a coarser cloud are interpolated from the k nearest of its points, put beside the
    features that the finer cloud has already (the skip connection), and run through a `SharedMLP`.
    While a module inside has hooks or was replaced, the layers run one by one instead.

    Args:
        in_channels: Channels of the known and the skip features together.
        mlp: The widths of the layers.
        k: Neighbours to interpolate from.
        order: Order of the first layer's columns: "known_first" (pointnet2_ops, torch_geometric) or
            "skip_first" (Pointnet_Pointnet2_pytorch).
        power: Weights are 1 / distance ** power: 1 (pointnet2_ops) or 2 (the others).
        norm, bias, activation, negative_slope, last_norm, last_activation, device, dtype: As in
            `SharedMLP`.

    Raises:
        ValueError: A word or the power is unknown.

    Shape:
        xyz (B, N, 3), known_xyz (B, M, 3), features (B, N, F) or None, known_features (B, M, G);
        output (B, N, mlp[-1]); packed (P, 3), (R, 3), (P, F), (R, G) and (P, mlp[-1]).
    """

    __module__ = "fusedops.nn"  # what pickles name

    def __init__(
        self,
        in_channels: int,
        mlp: Sequence[int],
        *,
        k: int = 3,
        order: str = "known_first",
        power: int = 1,
        **options: Any,
    ) -> None:
        if order not in _ORDERS:
            raise ValueError(
                f"FeaturePropagation: order must be 'known_first' or 'skip_first'; got {order!r}"
            )
        if power not in (1, 2):
            raise ValueError(f"FeaturePropagation: power must be 1 or 2; got {power!r}")
        super().__init__()
        self.mlp = SharedMLP([in_channels, *widths_of("FeaturePropagation", "mlp", mlp)], **options)
        self.k, self.order, self.power = k, order, power

    def search(
        self,
        xyz: Tensor,
        known_xyz: Tensor,
        *,
        lengths: Tensor | None = None,
        known_lengths: Tensor | None = None,
        offsets: Tensor | None = None,
        known_offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Find the neighbours of every point among the known ones, and their weights.

        Both (B, N, k), or (P, k) packed: what `forward` takes as neighbours. They depend on the
        coordinates alone.
        """
        return weighted_neighbours(
            xyz, known_xyz, self.k, self.power, lengths, known_lengths, offsets, known_offsets
        )

    def forward(
        self,
        xyz: Tensor,
        known_xyz: Tensor | None,
        features: Tensor | None,
        known_features: Tensor,
        *,
        lengths: Tensor | None = None,
        known_lengths: Tensor | None = None,
        offsets: Tensor | None = None,
        known_offsets: Tensor | None = None,
        neighbours: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Apply the layer.

        Args:
            xyz: (B, N, D), where features are wanted; packed, everything is (P, ...) and (R, ...).
            known_xyz: (B, M, D), where they are known; None: known_features are (B, G) or
                (B, 1, G), the same for every point.
            features: (B, N, F), those that the points have already, or None.
            known_features: (B, M, G).
            lengths: (B,) int64, the points of each cloud; rows beyond count nowhere and are zeros.
            known_lengths: (B,) int64, the known points of each cloud.
            offsets: (B + 1,) int64, where packed clouds begin.
            known_offsets: (B + 1,) int64, those of the known points.
            neighbours: What `search` gives, where it is known already.
        """
        if offsets is None and known_features.dim() == 2:
            known_features = known_features.unsqueeze(1)
        if known_xyz is None:  # one point, wherever it is
            known_features = known_features if offsets is None else known_features.flatten(0, -2)
            known_xyz = xyz.new_zeros(*known_features.shape[:-1], xyz.shape[-1])
            known_lengths = None
            if offsets is None and not xyz.requires_grad:
                at = (*xyz.shape[:-1], 1)
                weights = xyz.new_ones(at, dtype=torch.promote_types(xyz.dtype, torch.float32))
                neighbours = xyz.new_zeros(at, dtype=torch.int64), weights
            if offsets is not None:
                known_offsets = torch.arange(len(known_features) + 1, device=xyz.device)
        mlp = self.mlp
        clouds: dict[str, Any] = {
            "lengths": lengths, "known_lengths": known_lengths,
            "offsets": offsets, "known_offsets": known_offsets, "neighbours": neighbours,
        }  # fmt: skip
        if not is_readable(mlp):
            return self._by_layers(xyz, known_xyz, features, known_features, **clouds)
        weights, biases, norms = mlp.arguments()
        return feature_propagation(
            xyz, known_xyz, features, known_features, weights, biases, norms, mlp.activation,
            k=self.k, order=self.order, power=self.power, negative_slope=mlp.negative_slope,
            last_activation=mlp.last_activation, **clouds,
        )  # fmt: skip

    def _by_layers(
        self,
        xyz: Tensor,
        known_xyz: Tensor,
        features: Tensor | None,
        known_features: Tensor,
        neighbours: tuple[Tensor, Tensor] | None,
        **clouds: Tensor | None,
    ) -> Tensor:
        idx, weights = neighbours or self.search(xyz, known_xyz, **clouds)
        wide = torch.promote_types(known_features.dtype, torch.float32)
        rows = interpolate(known_features, idx, weights.to(wide))
        if features is not None:
            parts = [rows, features.to(rows.dtype)]
            rows = torch.cat(parts if self.order == "known_first" else parts[::-1], dim=-1)
        inside = in_clouds(rows, clouds["lengths"], clouds["offsets"])
        return run_on_points(self.mlp, rows, inside)

    def extra_repr(self) -> str:
        """The interpolation."""
        return f"k={self.k}, order={self.order!r}, power={self.power}"
