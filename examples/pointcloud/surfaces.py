"""Surfaces that points can be drawn from, each as likely on any part of the same area."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Generator, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Surface(NamedTuple):
    area: float
    sample: Callable[[int, Generator], Tensor]  # (count, 3)


def uniform(g: Generator, *size: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(*size, generator=g)


def one(g: Generator, low: float, high: float) -> float:
    return float(uniform(g, 1, low=low, high=high))


def mesh(triangles: Tensor) -> Surface:
    """The surface of triangles (T, 3 corners, 3)."""
    a, b, c = triangles.double().unbind(1)
    areas = torch.linalg.cross(b - a, c - a).norm(dim=1) / 2

    def sample(count: int, g: Generator) -> Tensor:
        which = torch.multinomial(areas, count, replacement=True, generator=g)
        u, v = uniform(g, count, 1).sqrt(), uniform(g, count, 1)
        corners = triangles[which].float()
        return (1 - u) * corners[:, 0] + u * (1 - v) * corners[:, 1] + u * v * corners[:, 2]

    return Surface(float(areas.sum()), sample)


def box(x: float, y: float, z: float) -> Surface:
    """Around the origin, of these half sides."""
    sides = torch.tensor([x, y, z])
    faces = torch.tensor([y * z, x * z, x * y])

    def sample(count: int, g: Generator) -> Tensor:
        axis = torch.multinomial(faces, count, replacement=True, generator=g)
        inside = uniform(g, count, 3, low=-1.0)
        face = torch.nn.functional.one_hot(axis, 3).bool()
        return torch.where(face, inside.sign(), inside) * sides

    return Surface(8 * float(faces.sum()), sample)


def sphere(radius: float) -> Surface:
    def sample(count: int, g: Generator) -> Tensor:
        return radius * torch.nn.functional.normalize(torch.randn(count, 3, generator=g), dim=1)

    return Surface(4 * math.pi * radius**2, sample)


def cone(bottom: float, top: float, half: float) -> Surface:
    """The mantle of a cone along z between two radii; a cylinder's where they are equal."""

    def sample(count: int, g: Generator) -> Tensor:
        share = uniform(g, count)
        radius = torch.sqrt((1 - share) * bottom**2 + share * top**2)  # even by area
        along = share if bottom == top else (radius - bottom) / (top - bottom)
        return on_circle(radius, uniform(g, count), half * (2 * along - 1))

    slant = math.hypot(2 * half, bottom - top)
    return Surface(math.pi * (bottom + top) * slant, sample)


def disc(radius: float, height: float) -> Surface:
    def sample(count: int, g: Generator) -> Tensor:
        reach = radius * uniform(g, count).sqrt()
        return on_circle(reach, uniform(g, count), torch.full((count,), height))

    return Surface(math.pi * radius**2, sample)


def cylinder(radius: float, half: float) -> list[Surface]:
    return [cone(radius, radius, half), disc(radius, half), disc(radius, -half)]


def capsule(radius: float, half: float) -> list[Surface]:
    """A cylinder with half spheres for ends."""

    def ends(count: int, g: Generator) -> Tensor:
        points = sphere(radius).sample(count, g)
        return points + half * torch.nn.functional.pad(points[:, 2:].sign(), (2, 0))

    return [cone(radius, radius, half), Surface(4 * math.pi * radius**2, ends)]


def tube(curve: Callable[[Tensor], Tensor], length: float, radius: float) -> Surface:
    """Around a curve of [0, 1], which is taken to be run through evenly."""

    def sample(count: int, g: Generator) -> Tensor:
        t = uniform(g, count)
        tangent = torch.nn.functional.normalize(curve(t + 1e-3) - curve(t - 1e-3), dim=1)
        side = torch.randn(count, 3, generator=g)
        side = side - (side * tangent).sum(1, keepdim=True) * tangent
        return curve(t) + radius * torch.nn.functional.normalize(side, dim=1)

    return Surface(2 * math.pi * radius * length, sample)


def on_circle(radius: Tensor, turn: Tensor, height: Tensor) -> Tensor:
    angle = 2 * math.pi * turn
    return torch.stack([radius * angle.cos(), radius * angle.sin(), height], 1)


def moved(surface: Surface, shift: Tensor, rotation: Tensor | None = None) -> Surface:
    """Turned by a matrix, then shifted."""

    def sample(count: int, g: Generator) -> Tensor:
        points = surface.sample(count, g)
        return (points if rotation is None else points @ rotation.T) + shift

    return Surface(surface.area, sample)


def draw(surfaces: Sequence[Surface], count: int, g: Generator) -> Tensor:
    """(count, 3) of all of them, each as its area says."""
    areas = torch.tensor([surface.area for surface in surfaces])
    which = torch.multinomial(areas, count, replacement=True, generator=g)
    points = torch.empty(count, 3)
    for i, surface in enumerate(surfaces):
        mine = which == i
        if bool(mine.any()):
            points[mine] = surface.sample(int(mine.sum()), g)
    return points
