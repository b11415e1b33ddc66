"""Models of `fusedops.models` in plain torch: the same parameters under the same names.

`as_plain` gives a copy whose layers are torch's functions alone, over our searches or over torch's;
state dicts fit both. examples/train_pointcloud.py trains it for comparison, and `bench pointnet`
times it.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from fusedops.nn import EdgeConv, FeaturePropagation, SetAbstraction, SharedMLP

from . import eager

if TYPE_CHECKING:
    from torch import Tensor

    from .search import Search

SQUARES_LEAST = 1e-8  # added to distances, as the published models do


def as_plain(model: nn.Module, search: Search) -> nn.Module:
    """A copy of a model with layers in plain torch over this search.

    Raises:
        ValueError: A layer has an option that the plain one lacks.
    """
    found = copy.deepcopy(model)
    for module in found.modules():
        kind = PLAIN.get(type(module))
        if kind is not None:
            module.__class__ = kind
            module.search = search
            if isinstance(module, PlainSetAbstraction):
                module.check()
    return found


class PlainMLP(SharedMLP):
    """Linear, norm, activation, one by one."""

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.linears):
            x = layer(x)
            if i < len(self.norms):
                x = self.norms[i](x.flatten(0, -2)).view(x.shape)
            if i < len(self.linears) - 1 or self.last_activation:
                if self.activation not in ("relu", "leaky_relu"):
                    raise ValueError(
                        f"as_plain: activation must be relu or leaky_relu; got {self.activation!r}"
                    )
                leaky = self.activation == "leaky_relu"
                x = F.leaky_relu(x, self.negative_slope) if leaky else F.relu(x)
        return x


class PlainSetAbstraction(SetAbstraction):
    search: Any

    def check(self) -> None:
        plain = {"pool": "max", "pad": "first", "use_xyz": True, "normalize_offsets": False,
                 "closed": False, "random_start": False}  # fmt: skip
        for name, value in plain.items():
            if getattr(self, name) != value:
                raise ValueError(f"as_plain: {name} must be {value!r}; got {getattr(self, name)!r}")

    def forward(self, xyz: Tensor, features: Tensor | None = None, centers: Tensor | None = None,
                **lengths: Tensor | None) -> tuple[Tensor, Tensor]:  # fmt: skip
        assert centers is None
        assert all(value is None for value in lengths.values())
        chosen = self.search.sample(xyz, self.num_points)
        centers = eager.gather(xyz, chosen)
        scales = []
        for mlp, radius, k in zip(self.scales, self.radii, self.ks, strict=True):
            idx = self.search.ball(xyz, centers, radius, k)
            rows = eager.grouped(xyz, features, centers, idx, compute_dtype(mlp, xyz))
            scales.append(mlp(rows).max(2).values)
        return centers, torch.cat(scales, -1)


class PlainEdgeConv(EdgeConv):
    search: Any

    def forward(self, features: Tensor, idx: Tensor | None = None, *,
                lengths: Tensor | None = None,
                offsets: Tensor | None = None) -> Tensor:  # fmt: skip
        assert idx is None
        assert lengths is None
        assert offsets is None
        if self.pool != "max":
            raise ValueError(f"as_plain: pool must be 'max'; got {self.pool!r}")
        still = features.detach()
        idx, _ = self.search.knn(still, still, self.k)
        features = features.to(compute_dtype(self.mlp, features))
        out: Tensor = self.mlp(eager.edges(features, idx)).max(2).values
        return out


class PlainFeaturePropagation(FeaturePropagation):
    search: Any

    def forward(self, xyz: Tensor, known_xyz: Tensor | None, features: Tensor | None,
                known_features: Tensor, **lengths: Tensor | None) -> Tensor:  # fmt: skip
        assert all(value is None for value in lengths.values())
        dtype = compute_dtype(self.mlp, xyz)
        if known_xyz is None:
            known = known_features.view(len(xyz), 1, -1).expand(-1, xyz.shape[1], -1)
        else:
            idx, dist2 = self.search.knn(known_xyz, xyz, self.k)
            distance = dist2 if self.power == 2 else dist2.sqrt()
            weights = 1 / (distance + SQUARES_LEAST)
            weights = (weights / weights.sum(-1, keepdim=True)).to(dtype)
            known = (eager.gather(known_features, idx) * weights[..., None]).sum(2)
        parts = [known.to(dtype), *([] if features is None else [features.to(dtype)])]
        rows = torch.cat(parts if self.order == "known_first" else parts[::-1], -1)
        out: Tensor = self.mlp(rows)
        return out


def compute_dtype(mlp: Any, x: Tensor) -> torch.dtype:
    """In which the products run: autocast's, or the weights'."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    dtype: torch.dtype = mlp.linears[0].weight.dtype
    return dtype


PLAIN: dict[type[nn.Module], Any] = {
    SharedMLP: PlainMLP,
    SetAbstraction: PlainSetAbstraction,
    EdgeConv: PlainEdgeConv,
    FeaturePropagation: PlainFeaturePropagation,
}
