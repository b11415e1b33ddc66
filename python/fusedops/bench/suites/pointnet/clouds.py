"""Clouds of the suite `pointnet`: surfaces, as those that its layers are made for, and scans.

Points that fill a volume have about as many neighbours everywhere. On a surface balls are seldom
full, and the rest of a group repeats its first point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fusedops.bench.suites import points_clouds

if TYPE_CHECKING:
    from torch import Tensor


def surfaces(b: int, n: int, device: torch.device) -> Tensor:
    """(b, n, 3): spheres and boxes in turn, of random sides, turned and within the unit sphere."""
    sphere = points_clouds.sphere(b, n, device)
    sides = 0.3 + 0.7 * torch.rand(b, 1, 3, device=device)
    cloud = torch.where((torch.arange(b, device=device) % 2 == 0)[:, None, None], sphere,
                        _box(sides, n))  # fmt: skip
    turns = torch.linalg.qr(torch.randn(b, 3, 3, device=device)).Q
    return (cloud / cloud.norm(dim=-1).amax(1)[:, None, None]) @ turns


def _box(sides: Tensor, n: int) -> Tensor:
    """Points of the surfaces of boxes (b, 1, 3), as many on a face as its area says."""
    b = len(sides)
    areas = (sides.prod(-1, keepdim=True) / sides).squeeze(1)  # of the two faces across each axis
    axis = torch.multinomial(areas, n, replacement=True)
    inside = 2 * torch.rand(b, n, 3, device=sides.device) - 1
    face = torch.nn.functional.one_hot(axis, 3).bool()
    return torch.where(face, inside.sign(), inside) * sides


def cloud(name: str, b: int, n: int, device: torch.device) -> Tensor:
    """(b, n, 3) in float32: `surfaces`, or one of the suite `points`."""
    if name == "surfaces":
        return surfaces(b, n, device)
    return points_clouds.cloud(name, b, n, device)
