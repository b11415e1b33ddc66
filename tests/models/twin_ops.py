"""What the twins of other repositories' models share: sampling and search in plain torch."""

from __future__ import annotations

import torch
from torch import nn


def rows_at(x, idx):
    """x (B, N, C) at idx (B, ...)."""
    return torch.stack([one[i] for one, i in zip(x, idx, strict=True)])


def furthest(xyz, count, random=False):
    """Furthest point sampling from point 0 on, or from one drawn at random: (B, count)."""
    start = torch.randint(0, xyz.shape[1] if random else 1, (len(xyz),), dtype=torch.long)
    chosen = [start.to(xyz.device)]
    nearest = torch.full(xyz.shape[:2], torch.inf, dtype=xyz.dtype, device=xyz.device)
    for _ in range(count - 1):
        last = rows_at(xyz, chosen[-1].unsqueeze(1))
        nearest = torch.minimum(nearest, (xyz - last).square().sum(-1))
        chosen.append(nearest.argmax(1))
    return torch.stack(chosen, 1)


def ball(xyz, centers, radius, k, closed):
    """The first k points of each ball, filled up with the first one: (B, M, k)."""
    dist2 = (centers.unsqueeze(2) - xyz.unsqueeze(1)).square().sum(-1)
    inside = dist2 <= radius**2 if closed else dist2 < radius**2
    count = xyz.shape[1]
    at = torch.where(inside, torch.arange(count, device=xyz.device), count)
    first = at.sort(-1)[0][..., :k]
    return torch.where(first == count, first[..., :1], first)


def nearest_three(xyz, known_xyz):
    """Squared distances and indices of the three nearest known points."""
    dist2 = (xyz.unsqueeze(2) - known_xyz.unsqueeze(1)).square().sum(-1)
    return dist2.topk(min(3, known_xyz.shape[1]), largest=False)


def shuffle_norms(model, seed=0):
    """Norms whose parameters and statistics are none that another model has by chance."""
    generator = torch.Generator().manual_seed(seed)

    def draw(like, low, high):
        values = torch.rand(like.shape, generator=generator) * (high - low) + low
        like.data.copy_(values)

    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            draw(module.weight, -0.5, 1.5)
            draw(module.bias, -0.5, 0.5)
            draw(module.running_mean, -0.3, 0.3)
            draw(module.running_var, 0.5, 1.5)
            module.num_batches_tracked.fill_(3)
    return model
