"""Twelve kinds of shapes, every one of proportions of its own: these need no files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from .surfaces import Surface, box, capsule, cone, cylinder, disc, mesh, moved, one, sphere, tube

if TYPE_CHECKING:
    from collections.abc import Callable


def at(x: float, y: float, z: float) -> Tensor:
    return torch.tensor([x, y, z])


def ball(g: Generator) -> list[Surface]:
    return [sphere(1.0)]


def brick(g: Generator) -> list[Surface]:
    return [box(one(g, 0.4, 1), one(g, 0.4, 1), one(g, 0.4, 1))]


def can(g: Generator) -> list[Surface]:
    return cylinder(1.0, one(g, 0.6, 2))


def spike(g: Generator) -> list[Surface]:
    half = one(g, 0.7, 1.5)
    return [cone(1.0, 0.0, half), disc(1.0, -half)]


def ring(g: Generator) -> list[Surface]:
    def circle(t: Tensor) -> Tensor:
        angle = 2 * math.pi * t
        return torch.stack([angle.cos(), angle.sin(), torch.zeros_like(t)], 1)

    return [tube(circle, 2 * math.pi, one(g, 0.15, 0.45))]


def pyramid(g: Generator) -> list[Surface]:
    corners = torch.tensor([[-1.0, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
    top = at(one(g, -0.2, 0.2), one(g, -0.2, 0.2), one(g, 1, 2))
    sides = [torch.stack([corners[i], corners[(i + 1) % 4], top]) for i in range(4)]
    return [mesh(torch.stack([*sides, corners[[0, 1, 2]], corners[[0, 2, 3]]]))]


def spring(g: Generator) -> list[Surface]:
    turns, pitch = one(g, 2.5, 5), one(g, 0.4, 0.7)

    def helix(t: Tensor) -> Tensor:
        angle = 2 * math.pi * turns * t
        return torch.stack([angle.cos(), angle.sin(), pitch * turns * (t - 0.5)], 1)

    return [tube(helix, turns * math.hypot(2 * math.pi, pitch), one(g, 0.06, 0.14))]


def cross(g: Generator) -> list[Surface]:
    thin = one(g, 0.1, 0.25)
    return [box(1.0, thin, thin), box(thin, 1.0, thin), box(thin, thin, one(g, 0.6, 1))]


def table(g: Generator) -> list[Surface]:
    x, y, leg, height = one(g, 0.7, 1), one(g, 0.5, 1), one(g, 0.04, 0.1), one(g, 0.4, 0.8)
    corners = [(x - leg, y - leg), (leg - x, y - leg), (x - leg, leg - y), (leg - x, leg - y)]
    legs = [moved(box(leg, leg, height), at(a, b, 0)) for a, b in corners]
    return [moved(box(x, y, 0.06), at(0, 0, height)), *legs]


def mug(g: Generator) -> list[Surface]:
    half, reach = one(g, 0.7, 1.3), one(g, 0.35, 0.6)

    def handle(t: Tensor) -> Tensor:
        angle = math.pi * (t - 0.5)
        zero = torch.zeros_like(t)
        return torch.stack([1 + reach * angle.cos(), zero, 0.7 * half * angle.sin()], 1)

    return [cone(1.0, 1.0, half), disc(1.0, -half), tube(handle, math.pi * 0.6, 0.12)]


def stairs(g: Generator) -> list[Surface]:
    width, rise = one(g, 0.4, 0.9), one(g, 0.2, 0.4)
    steps = [box(0.25, width, rise * (i + 1) / 2) for i in range(4)]
    return [moved(s, at(0.5 * i, 0, rise * (i + 1) / 2)) for i, s in enumerate(steps)]


def dumbbell(g: Generator) -> list[Surface]:
    end, half = one(g, 0.35, 0.6), one(g, 0.8, 1.2)
    return [
        moved(sphere(end), at(0, 0, half)),
        moved(sphere(end), at(0, 0, -half)),
        *capsule(one(g, 0.1, 0.2), half),
    ]


KINDS: dict[str, Callable[[Generator], list[Surface]]] = {
    kind.__name__: kind
    for kind in (
        ball,
        brick,
        can,
        spike,
        ring,
        pyramid,
        spring,
        cross,
        table,
        mug,
        stairs,
        dumbbell,
    )
}
