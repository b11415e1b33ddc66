"""Point clouds, one cloud at a time and written out."""

from __future__ import annotations

import torch
from torch import Tensor


def farthest_point_sample(points: Tensor, n: int, start: int = 0) -> Tensor:
    """min(n, N) indices into points (N, D): each the point furthest from those before it."""
    length = points.shape[0]
    x = points if points.dtype == torch.float64 else points.float()
    distance = torch.full((length,), torch.inf, dtype=x.dtype, device=x.device)
    distance[x.isnan().any(1)] = -1
    chosen: list[int] = []
    index = min(start, max(length - 1, 0))
    for _ in range(min(n, length)):
        chosen.append(index)
        distance[index] = -2
        squared = torch.zeros_like(distance)
        for d in range(x.shape[1]):  # in this order, each operation rounded
            squared = squared + (x[:, d] - x[index, d]).square()
        distance = torch.where(squared < distance, squared, distance)
        index = int((distance == distance.max()).nonzero()[0])
    return torch.tensor(chosen, dtype=torch.int64, device=points.device)
