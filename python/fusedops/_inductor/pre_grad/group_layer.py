"""What stands in a graph for the layers of groups: set abstraction, with the moves around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...points.abstraction import abstraction_call, edge_conv_call
from ...points.norms import BatchNorm

if TYPE_CHECKING:
    from torch import Tensor

    from ...points._edge_mlp import EdgeMlpCall
    from ...points.abstraction import EdgeConvCall


class GroupLayer(NamedTuple):
    """The arguments of `group_layer`: of the graph's nodes, or of their values."""

    kind: str  # "set_abstraction" or "edge_conv", whose features are one
    xyz: Any  # (B, N, D), or None
    features: list[Any]  # (B, N, F_i)
    centers: Any  # (B, M, D), or None
    idx: Any  # (B, M, K), as torch indexes: from the end where it is negative
    weights: list[Any]  # of linear layers, or of convolutions of one element
    biases: list[Any]
    norms: list[Any]  # the fields of BatchNorm as far as eps, or None
    first: int  # column of the first weight where those of offsets begin
    activation: str
    slope: float
    last_activation: bool
    radius: float | None
    order: tuple[int, ...]  # of (B, M, C) in the result
    shape: tuple[int, ...]  # of the result

    def call(self) -> EdgeMlpCall | EdgeConvCall:
        """The layers over their edges."""
        like = self.features[0] if self.xyz is None else self.xyz
        idx = torch.where(self.idx < 0, self.idx + like.shape[1], self.idx)
        weights = [weight.flatten(1) for weight in self.weights]
        if self.first > 0:  # our columns are those of offsets, then all others
            dim = like.shape[-1]
            behind = weights[0].shape[1] - self.first - dim
            before, of_offsets, after = weights[0].split((self.first, dim, behind), 1)
            weights[0] = torch.cat((of_offsets, before, after), 1)
        rows = None
        if self.features:
            rows = self.features[0] if len(self.features) == 1 else torch.cat(self.features, -1)
            if not torch.is_autocast_enabled(rows.device.type):
                rows = rows.to(weights[0].dtype)
        norms = [None if norm is None else BatchNorm(*norm) for norm in self.norms]
        layers = (weights, self.biases, norms, self.activation, "max")
        if self.kind == "edge_conv":
            assert rows is not None
            return edge_conv_call(rows, idx, *layers, self.slope, self.last_activation)
        return abstraction_call(
            self.xyz, rows, self.centers, idx, *layers, self.slope, self.last_activation,
            self.radius,
        )  # fmt: skip


def group_layer(*arguments: Any) -> Tensor:
    """The pooled layers of groups, in the order of a graph's own result."""
    layer = GroupLayer(*arguments)
    return layer.call().run().permute(layer.order).contiguous().view(layer.shape)
