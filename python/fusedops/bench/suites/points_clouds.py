"""Clouds of the suite `points`: each (B, N, 3) in float32, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def uniform(b: int, n: int, device: torch.device) -> Tensor:
    """The unit cube."""
    return torch.rand(b, n, 3, device=device)


def sphere(b: int, n: int, device: torch.device) -> Tensor:
    """The unit sphere's surface."""
    return torch.nn.functional.normalize(torch.randn(b, n, 3, device=device), dim=-1)


def planar(b: int, n: int, device: torch.device) -> Tensor:
    """A square in a tilted plane, with 1e-3 of noise."""
    flat = torch.rand(b, n, 2, device=device)
    height = flat.sum(-1, keepdim=True) / 2 + 1e-3 * torch.randn(b, n, 1, device=device)
    return torch.cat([flat, height], -1)


def lidar(b: int, n: int, device: torch.device) -> Tensor:
    """A spinning lidar: 64 rings over ground and walls, density falling with the distance."""
    azimuth = 2 * torch.pi * torch.rand(b, n, device=device)
    ring = torch.randint(0, 64, (b, n), device=device)
    elevation = torch.deg2rad(-24.8 + 26.8 * ring / 63)
    ground = 1.73 / (-torch.sin(elevation)).clamp_min(1e-3)
    wall = 20 + 15 * torch.sin(3 * azimuth)
    distance = torch.minimum(ground, wall) + 0.02 * torch.randn(b, n, device=device)
    flat = distance * torch.cos(elevation)
    height = distance * torch.sin(elevation)
    return torch.stack([flat * torch.cos(azimuth), flat * torch.sin(azimuth), height], -1)


def clustered(b: int, n: int, device: torch.device) -> Tensor:
    """64 Gaussians of width 0.005 in the unit cube."""
    centers = torch.rand(b, 64, 3, device=device)
    which = torch.randint(0, 64, (b, n, 1), device=device).expand(-1, -1, 3)
    return centers.gather(1, which) + 0.005 * torch.randn(b, n, 3, device=device)


CLOUDS: dict[str, Callable[[int, int, torch.device], Tensor]] = {
    "uniform": uniform,
    "sphere": sphere,
    "planar": planar,
    "lidar": lidar,
    "clustered": clustered,
}
