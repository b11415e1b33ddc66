"""The searches under a layer, ours and torch's, with one interface: a model takes either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from fusedops import points

if TYPE_CHECKING:
    from torch import Tensor


class Search(Protocol):
    def sample(self, xyz: Tensor, count: int) -> Tensor:
        """(B, count) of furthest points, the first point first."""

    def ball(self, xyz: Tensor, centers: Tensor, radius: float, k: int) -> Tensor:
        """(B, M, k) the first k within the radius; what is missing repeats the first."""

    def knn(self, x: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(B, M, k) the nearest, and their squared distances."""


class OurSearch:
    def sample(self, xyz: Tensor, count: int) -> Tensor:
        return points.farthest_point_sample(xyz, count)

    def ball(self, xyz: Tensor, centers: Tensor, radius: float, k: int) -> Tensor:
        return points.ball_query(xyz, centers, radius, k, pad="first").idx

    def knn(self, x: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        found = points.knn(x, None if queries is x else queries, k)
        assert found.dist2 is not None
        return found.idx, found.dist2


class TorchSearch:
    """In torch's functions alone, as models without an extension search."""

    def sample(self, xyz: Tensor, count: int) -> Tensor:
        batch = torch.arange(len(xyz), device=xyz.device)
        chosen = torch.zeros(len(xyz), count, dtype=torch.long, device=xyz.device)
        nearest = torch.full(xyz.shape[:2], torch.inf, device=xyz.device, dtype=xyz.dtype)
        last = chosen[:, 0]
        for i in range(1, count):
            to_last = (xyz - xyz[batch, last][:, None]).square().sum(-1)
            nearest = torch.minimum(nearest, to_last)
            last = nearest.argmax(-1)
            chosen[:, i] = last
        return chosen

    def ball(self, xyz: Tensor, centers: Tensor, radius: float, k: int) -> Tensor:
        n = xyz.shape[1]
        outside = torch.cdist(centers, xyz) >= radius
        idx = torch.arange(n, device=xyz.device).expand(outside.shape).masked_fill(outside, n)
        idx = idx.topk(min(k, n), largest=False, sorted=True).values
        idx = torch.nn.functional.pad(idx, (0, k - idx.shape[-1]), value=n)
        return torch.where(idx == n, idx[..., :1], idx)

    def knn(self, x: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(x.dtype, torch.float32)
        found = torch.cdist(queries.to(wide), x.to(wide)).topk(k, largest=False)
        return found.indices, found.values.square()


OURS: Search = OurSearch()
TORCH: Search = TorchSearch()
