"""PointNeXt's classifier in plain torch, with the names of guochengqian/openpoints."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from models.twin_ops import ball, furthest, rows_at


def block(a, b, dims, norm=True, act=True):
    """A convolution of size 1, its norm and activation."""
    conv, norms = {
        0: (lambda a, b, bias: nn.Linear(a, b, bias=bias), nn.BatchNorm1d),
        1: (lambda a, b, bias: nn.Conv1d(a, b, 1, bias=bias), nn.BatchNorm1d),
        2: (lambda a, b, bias: nn.Conv2d(a, b, 1, bias=bias), nn.BatchNorm2d),
    }[dims]
    layers = [conv(a, b, bias=not norm)]
    layers += [norms(b)] if norm else []
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))


def grouped(xyz, f, centers, radius, k):
    """Offsets in units of the radius, then features: (B, 3 + C, M, K)."""
    idx = ball(xyz, centers, radius, k, closed=False)
    offsets = (rows_at(xyz, idx) - centers.unsqueeze(2)) / radius
    return torch.cat([offsets, rows_at(f.transpose(1, 2), idx)], -1).permute(0, 3, 1, 2)


class Abstraction(nn.Module):
    def __init__(self, a, b, layers, stride, radius, k, residual):
        super().__init__()
        self.stride, self.radius, self.k = stride, radius, k
        widths = [a + 3, *[b // 2] * (layers - 1), b]
        last = len(widths) - 2
        self.convs = nn.Sequential(
            *(
                block(x, y, 2, act=i < last or not residual)
                for i, (x, y) in enumerate(pairwise(widths))
            )
        )
        self.skipconv = block(a, b, 1, norm=False, act=False) if residual else None

    def forward(self, xyz, f):
        idx = furthest(xyz, xyz.shape[1] // self.stride)
        centers = rows_at(xyz, idx)
        y = self.convs(grouped(xyz, f, centers, self.radius, self.k)).max(3)[0]
        if self.skipconv is not None:
            own = rows_at(f.transpose(1, 2), idx).transpose(1, 2)
            y = F.relu(y + self.skipconv(own))
        return centers, y


class Local(nn.Module):
    def __init__(self, width, radius, k):
        super().__init__()
        self.radius, self.k = radius, k
        self.convs = nn.Sequential(block(width + 3, width, 2))

    def forward(self, xyz, f):
        return self.convs(grouped(xyz, f, xyz, self.radius, self.k)).max(3)[0]


class Inverted(nn.Module):
    def __init__(self, width, radius, k, expansion):
        super().__init__()
        self.convs = Local(width, radius, k)
        middle = width * expansion
        self.pwconv = nn.Sequential(block(width, middle, 1), block(middle, width, 1, act=False))

    def forward(self, xyz, f):
        return xyz, F.relu(self.pwconv(self.convs(xyz, f)) + f)


class Stem(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.convs = nn.Sequential(block(a, b, 1, norm=False, act=False))

    def forward(self, xyz, f):
        return xyz, self.convs(f)


class Everything(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        widths = [width + 3, *[width] * layers]
        self.convs = nn.Sequential(*(block(a, b, 2) for a, b in pairwise(widths)))

    def forward(self, xyz, f):
        x = torch.cat([xyz.transpose(1, 2), f], 1).unsqueeze(2)
        return xyz, self.convs(x).max(3)[0]


class Holder(nn.Module):
    """A module under a name."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


class PointNeXtTwin(nn.Module):
    def __init__(self, classes, channels, width, blocks, layers, residual, radius, k, head):
        super().__init__()
        stages = [nn.Sequential(Stem(3 + channels, width))]
        for count in blocks:
            first = Abstraction(width, 2 * width, layers, 2, radius, k, residual)
            width, radius = 2 * width, 1.5 * radius
            more = (Inverted(width, radius, k, 4) for _ in range(count - 1))
            stages.append(nn.Sequential(first, *more))
        stages.append(nn.Sequential(Everything(width, layers)))
        self.encoder = Holder(encoder=nn.Sequential(*stages))
        rows = []
        for a, b in pairwise([width, *head]):
            rows += [block(a, b, 0), nn.Dropout(0.0)]
        rows.append(block(head[-1], classes, 0, norm=False, act=False))
        self.prediction = Holder(head=nn.Sequential(*rows))

    def forward(self, xyz, features=None):
        f = xyz if features is None else torch.cat([xyz, features], -1)
        f = f.transpose(1, 2)
        for stage in self.encoder.encoder:
            for layer in stage:
                xyz, f = layer(xyz, f)
        return self.prediction.head(f.squeeze(2))
