"""Segmenters in plain torch: DGCNN's of parts (antao97/dgcnn.pytorch), PointNeXt's (openpoints)."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from models.twin_ops import nearest_three, rows_at
from models.twin_pointnext import Abstraction, Holder, Inverted, Stem, block


def edges(x, k):
    """x (B, C, N) to f_j - f_i and f_i of the k nearest: (B, 2 C, N, k)."""
    x = x.transpose(1, 2)
    dist2 = (x.unsqueeze(2) - x.unsqueeze(1)).square().sum(-1)
    near = rows_at(x, dist2.topk(k, largest=False)[1])
    own = x.unsqueeze(2).expand_as(near)
    return torch.cat([near - own, own], -1).permute(0, 3, 1, 2)


def leaky(a, b, dims):
    """(the norm, the Sequential that holds it, too)."""
    conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv1d, nn.BatchNorm1d)
    norm = norm(b)
    return norm, nn.Sequential(conv(a, b, 1, bias=False), norm, nn.LeakyReLU(0.2))


class Transform(nn.Module):
    """Its bn3 is another norm than that of conv3."""

    def __init__(self, widths, embedding, head):
        super().__init__()
        a, b = widths
        self.bn1, self.conv1 = leaky(6, a, 2)
        self.bn2, self.conv2 = leaky(a, b, 2)
        _, self.conv3 = leaky(b, embedding, 1)
        c, d = head
        self.linear1, self.bn3 = nn.Linear(embedding, c, bias=False), nn.BatchNorm1d(c)
        self.linear2, self.bn4 = nn.Linear(c, d, bias=False), nn.BatchNorm1d(d)
        self.transform = nn.Linear(d, 9)

    def forward(self, x):
        x = self.conv2(self.conv1(x)).max(3)[0]
        x = self.conv3(x).max(2)[0]
        x = F.leaky_relu(self.bn3(self.linear1(x)), 0.2)
        x = F.leaky_relu(self.bn4(self.linear2(x)), 0.2)
        return self.transform(x).view(-1, 3, 3)


class PartDGCNN(nn.Module):
    def __init__(self, parts, categories, k, width, embedding, head, transform):
        super().__init__()
        self.k, self.categories = k, categories
        self.transform_net = Transform(*transform)
        shapes = [(6, 2), (width, 2), (2 * width, 2), (width, 2), (2 * width, 2)]
        for i, (channels, dims) in enumerate(shapes, 1):
            norm, conv = leaky(channels, width, dims)
            setattr(self, f"bn{i}", norm)
            setattr(self, f"conv{i}", conv)
        self.bn6, self.conv6 = leaky(3 * width, embedding, 1)
        self.bn7, self.conv7 = leaky(categories, width, 1)
        a, b, c = head
        self.bn8, self.conv8 = leaky(embedding + 4 * width, a, 1)
        self.bn9, self.conv9 = leaky(a, b, 1)
        self.bn10, self.conv10 = leaky(b, c, 1)
        self.conv11 = nn.Conv1d(c, parts, 1, bias=False)

    def forward(self, points, category):
        matrix = self.transform_net(edges(points.transpose(1, 2), self.k))
        x = (points @ matrix).transpose(1, 2)
        x1 = self.conv2(self.conv1(edges(x, self.k))).max(3)[0]
        x2 = self.conv4(self.conv3(edges(x1, self.k))).max(3)[0]
        x3 = self.conv5(edges(x2, self.k)).max(3)[0]
        own = torch.cat([x1, x2, x3], 1)
        whole = self.conv6(own).max(2, keepdim=True)[0]
        label = self.conv7(F.one_hot(category, self.categories).to(x).unsqueeze(2))
        shared = torch.cat([whole, label], 1).expand(-1, -1, points.shape[1])
        x = self.conv8(torch.cat([shared, own], 1))
        return self.conv11(self.conv10(self.conv9(x))).transpose(1, 2)


class Propagation(nn.Module):
    """Skip features first, weights of 1 / distance."""

    def __init__(self, widths):
        super().__init__()
        self.convs = nn.Sequential(*(block(a, b, 1) for a, b in pairwise(widths)))

    def forward(self, xyz, f, known_xyz, known):
        dist2, idx = nearest_three(xyz, known_xyz)
        zero = dist2 == 0  # where the distance has no gradient
        distance = torch.where(zero, 1, dist2).sqrt().masked_fill(zero, 0)
        weight = 1 / (distance + 1e-8)
        weight = weight / weight.sum(-1, keepdim=True)
        x = (rows_at(known.transpose(1, 2), idx) * weight.unsqueeze(-1)).sum(2).transpose(1, 2)
        return self.convs(torch.cat([f, x], 1))


class PointNeXtScenes(nn.Module):
    """Features alone go into the stem."""

    def __init__(self, classes, channels, width, blocks, stride, layers, residual, radius, k):
        super().__init__()
        stages, widths = [nn.Sequential(Stem(channels, width))], [width]
        for count in blocks:
            first = Abstraction(widths[-1], 2 * widths[-1], layers, stride, radius, k, residual)
            widths.append(2 * widths[-1])
            radius = 2 * radius
            more = (Inverted(widths[-1], radius, k, 4) for _ in range(count - 1))
            stages.append(nn.Sequential(first, *more))
        self.encoder = Holder(encoder=nn.Sequential(*stages))
        steps = [
            nn.Sequential(Propagation([skip + known, skip, skip]))
            for skip, known in pairwise(widths)
        ]
        self.decoder = Holder(decoder=nn.Sequential(*steps))
        rows = [block(width, width, 1), nn.Dropout(0.0), block(width, classes, 1, False, False)]
        self.head = Holder(head=nn.Sequential(*rows))

    def forward(self, xyz, features):
        levels = [(xyz, features.transpose(1, 2))]
        for stage in self.encoder.encoder:
            at, f = levels[-1]
            for layer in stage:
                at, f = layer(at, f)
            levels.append((at, f))
        known_xyz, known = levels.pop()
        for step in reversed(self.decoder.decoder):
            at, f = levels.pop()
            known = step[0](at, f, known_xyz, known)
            known_xyz = at
        return self.head.head(known).transpose(1, 2)
