"""Clouds of the suite `points`: each (B, N, 3) in float32, by name.

With FUSEDOPS_BENCH_SCAN=FILE a file of points (`fusedops.points.read_points`) is one more, `scan`:
real scans are less even than anything made up (perf/points/fetch_scans.py fetches two).
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
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


SCAN = "FUSEDOPS_BENCH_SCAN"


def scan_path() -> Path | None:
    """The file that the environment names."""
    named = os.environ.get(SCAN)
    return Path(named) if named else None


@functools.lru_cache(maxsize=1)
def read_scan(path: Path) -> Tensor:
    """(N, 3), around its mean, on the CPU."""
    from fusedops import points

    found: Tensor = points.read_points(path, dtype=torch.float64)
    return (found - found.mean(0)).float()


def scan_size() -> int:
    """The points of the scan; 0 without one."""
    path = scan_path()
    return len(read_scan(path)) if path else 0


def scan(b: int, n: int, device: torch.device) -> Tensor:
    """The scan, or n of its points; every cloud in an order of its own."""
    path = scan_path()
    if path is None:
        raise ValueError(f"{SCAN} names no file of points")
    whole = read_scan(path)
    if n > len(whole):
        raise ValueError(f"{path} has {len(whole)} points; asked for {n}")
    order = torch.stack([torch.randperm(len(whole))[:n] for _ in range(b)])
    return whole[order].to(device)


CLOUDS: dict[str, Callable[[int, int, torch.device], Tensor]] = {
    "uniform": uniform,
    "sphere": sphere,
    "planar": planar,
    "lidar": lidar,
    "clustered": clustered,
}


def cloud(name: str, b: int, n: int, device: torch.device) -> Tensor:
    """(b, n, 3): one of CLOUDS, or `scan`."""
    return scan(b, n, device) if name == "scan" else CLOUDS[name](b, n, device)
