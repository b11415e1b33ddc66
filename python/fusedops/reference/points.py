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


def rows(table: Tensor, idx: Tensor) -> Tensor:
    """table (B, N, C) at idx (B, M, K); zeros where idx is no row."""
    count = table.shape[1]
    valid = (idx >= 0) & (idx < count)
    if count == 0:
        return table.new_zeros((*idx.shape, table.shape[2]))
    cloud = torch.arange(idx.shape[0], device=idx.device)[:, None, None]
    return torch.where(valid[..., None], table[cloud, torch.where(valid, idx, 0)], 0)


def scatter(entries: Tensor, idx: Tensor, count: int) -> Tensor:
    """The transpose of `rows`: entries (B, M, K, C) summed into (B, count, C) by idx (B, M, K)."""
    clouds, channels = idx.shape[0], entries.shape[-1]
    valid = (idx >= 0) & (idx < count)
    first = torch.arange(clouds, device=idx.device)[:, None, None] * count
    target = torch.where(valid, idx + first, clouds * count)  # the last row takes what is no row
    sums = entries.new_zeros(clouds * count + 1, channels)
    sums = sums.index_add(0, target.reshape(-1), entries.flatten(0, 2))
    return sums[:-1].reshape(clouds, count, channels)


def group(
    features: Tensor | None,
    idx: Tensor,
    points: Tensor | None = None,
    centers: Tensor | None = None,
) -> Tensor:
    """[points[idx] - centers, features[idx]] for idx (B, M, K); zeros where idx is no row."""
    parts = [] if features is None else [rows(features, idx)]
    if points is not None:
        coordinates = rows(points, idx)
        if centers is not None:
            valid = (idx >= 0) & (idx < points.shape[1])
            coordinates = torch.where(valid[..., None], coordinates - centers[:, :, None], 0)
        parts.insert(0, coordinates if features is None else coordinates.to(features.dtype))
    return torch.cat(parts, -1)


def interpolate(features: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
    """Sum over k of weights (B, M, K) * features (B, N, C)[idx]."""
    wide = torch.float64 if features.dtype is torch.float64 else torch.float32
    products = weights.to(wide)[..., None] * rows(features, idx).to(wide)
    return products.sum(2).to(features.dtype)
