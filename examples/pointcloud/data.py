"""Clouds by number: which one, and how it is turned and cut, is a function of seed and step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from .surfaces import Surface, draw

Kinds = Mapping[str, Callable[[Generator], list[Surface]]]
TEST_SEED = 2**40  # of items and views; those of training are smaller for seeds below a million
STRETCH, JITTER, LEAST_SEEN = 0.2, 0.01, 0.7


@dataclass(frozen=True)
class Shapes:
    """Items of every class, each of its own proportions or pose, as dense clouds."""

    points: Tensor  # (items, pool, 3)
    labels: Tensor  # (items,)
    names: tuple[str, ...]

    @classmethod
    def make(cls, kinds: Kinds, each: int, pool: int, seed: int) -> Shapes:
        """`each` items a class; pool points of each item."""
        clouds, labels = [], []
        for label, make in enumerate(kinds.values()):
            g = torch.Generator().manual_seed(1009 * seed + label)
            clouds += [draw(make(g), pool, g) for _ in range(each)]
            labels += [label] * each
        return cls(torch.stack(clouds), torch.tensor(labels), tuple(kinds))

    def to(self, device: torch.device) -> Shapes:
        return Shapes(self.points.to(device), self.labels.to(device), self.names)

    def __len__(self) -> int:
        return len(self.labels)


def batch_at(shapes: Shapes, step: int, size: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Clouds (size, count, 3) and labels of a step: of every epoch's own order of the items.

    An epoch ends with its last whole batch.
    """
    steps = len(shapes) // size
    epoch, place = divmod(step, steps)
    g = torch.Generator().manual_seed(1009 * seed + epoch)
    items = torch.randperm(len(shapes), generator=g)[place * size :][:size]
    return views(shapes, items, count, 1_000_003 * seed + step + 1)


def views(shapes: Shapes, items: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """The items as something saw them: turned about the vertical, stretched, cut by a plane,
    `count` points of the rest, with noise, moved into the unit sphere.
    """
    device = shapes.points.device
    g = torch.Generator(device).manual_seed(seed)
    items = items.to(device)
    points, b = shapes.points[items], len(items)

    def random(*size: int) -> Tensor:
        return torch.rand(*size, generator=g, device=device)

    angle = 2 * torch.pi * random(b)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    turn = torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, zero + 1], 1).view(b, 3, 3)
    points = points @ turn.mT * (1 + STRETCH * (2 * random(b, 1, 3) - 1))
    direction = torch.randn(b, 3, 1, generator=g, device=device)
    order = (points @ direction).squeeze(2).argsort(1).argsort(1)  # along the direction
    seen = order < (LEAST_SEEN + (1 - LEAST_SEEN) * random(b, 1)) * points.shape[1]
    chosen = (random(*order.shape) + ~seen).topk(count, largest=False, sorted=False).indices
    points = points.gather(1, chosen.unsqueeze(2).expand(-1, -1, 3))
    points = points - points.mean(1, keepdim=True)
    points = points / points.norm(dim=2).amax(1)[:, None, None].clamp_min(1e-6)
    noise = torch.randn(points.shape, generator=g, device=device)
    return points + JITTER * noise, shapes.labels[items]
