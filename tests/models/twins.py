"""Models of other repositories, rewritten in plain torch with the names of their parameters.

Layouts are theirs: features (B, C, N).
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from models.twin_ops import ball, furthest, nearest_three, rows_at

# ---- erikwijmans/Pointnet2_PyTorch ----


def conv_block(widths, dims=2):
    conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv1d, nn.BatchNorm1d)
    layers = []
    for a, b in pairwise(widths):
        layers += [conv(a, b, 1, bias=False), norm(b), nn.ReLU()]
    return nn.Sequential(*layers)


class QueryAndGroup(nn.Module):
    """Offsets first."""

    def __init__(self, radius, nsample, use_xyz=True):
        super().__init__()
        self.radius, self.nsample, self.use_xyz = radius, nsample, use_xyz

    def forward(self, xyz, centers, features):
        idx = ball(xyz, centers, self.radius, self.nsample, closed=False)
        parts = [rows_at(xyz, idx) - centers.unsqueeze(2)] if self.use_xyz else []
        if features is not None:
            parts.append(rows_at(features.transpose(1, 2), idx))
        return torch.cat(parts, -1).permute(0, 3, 1, 2)


class GroupAll(nn.Module):
    def __init__(self, use_xyz=True):
        super().__init__()
        self.use_xyz = use_xyz

    def forward(self, xyz, centers, features):
        parts = [xyz.transpose(1, 2)] if self.use_xyz else []
        parts += [] if features is None else [features]
        return torch.cat(parts, 1).unsqueeze(2)


class WijmansAbstraction(nn.Module):
    """A count of None takes all points, without centres."""

    def __init__(self, channels, count, radii, ks, mlps, use_xyz=True):
        super().__init__()
        self.npoint = count
        first = channels + (3 if use_xyz else 0)
        self.mlps = nn.ModuleList(conv_block([first, *mlp]) for mlp in mlps)
        self.groupers = nn.ModuleList(
            [GroupAll(use_xyz)]
            if count is None
            else [QueryAndGroup(r, k, use_xyz) for r, k in zip(radii, ks, strict=True)]
        )

    def forward(self, xyz, features):
        centers = None
        if self.npoint is not None:
            centers = rows_at(xyz, furthest(xyz, self.npoint))
        found = [
            mlp(grouper(xyz, centers, features)).max(3)[0]
            for grouper, mlp in zip(self.groupers, self.mlps, strict=True)
        ]
        return centers, torch.cat(found, 1)


class PointnetFPModule(nn.Module):
    """Known features first, weights of 1 / distance."""

    def __init__(self, widths):
        super().__init__()
        self.mlp = conv_block(widths)

    def forward(self, xyz, known_xyz, features, known):
        dist2, idx = nearest_three(xyz, known_xyz)
        # NOTE: pointnet2_ops has no gradient for distances; here it is there, and 0 at 0.
        zero = dist2 == 0
        weight = 1 / (torch.where(zero, 1, dist2).sqrt().masked_fill(zero, 0) + 1e-8)
        weight = weight / weight.sum(-1, keepdim=True)
        x = (rows_at(known.transpose(1, 2), idx) * weight.unsqueeze(-1)).sum(2).transpose(1, 2)
        if features is not None:
            x = torch.cat([x, features], 1)
        return self.mlp(x.unsqueeze(3)).squeeze(3)


class WijmansClassifier(nn.Module):
    def __init__(self, classes, channels, stages, everything, head):
        super().__init__()
        self.SA_modules = nn.ModuleList()
        for count, radii, ks, mlps in stages:
            self.SA_modules.append(WijmansAbstraction(channels, count, radii, ks, mlps))
            channels = sum(mlp[-1] for mlp in mlps)
        self.SA_modules.append(WijmansAbstraction(channels, None, None, None, [everything]))
        a, b = head
        self.fc_layer = nn.Sequential(
            nn.Linear(everything[-1], a, bias=False), nn.BatchNorm1d(a), nn.ReLU(),
            nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.0),
            nn.Linear(b, classes),
        )  # fmt: skip

    def forward(self, xyz, features=None):
        features = None if features is None else features.transpose(1, 2)
        for layer in self.SA_modules:
            xyz, features = layer(xyz, features)
        return self.fc_layer(features.squeeze(2))


class WijmansSegmenter(nn.Module):
    def __init__(self, classes, channels, stages, propagations):
        super().__init__()
        self.SA_modules = nn.ModuleList()
        skips = [channels]
        for count, radii, ks, mlps in stages:
            self.SA_modules.append(WijmansAbstraction(skips[-1], count, radii, ks, mlps))
            skips.append(sum(mlp[-1] for mlp in mlps))
        self.FP_modules = nn.ModuleList()
        deeper = [mlp[-1] for mlp in propagations[1:]] + [skips[-1]]
        for mlp, below, skip in zip(propagations, deeper, skips, strict=False):
            self.FP_modules.append(PointnetFPModule([below + skip, *mlp]))
        width = propagations[0][-1]
        self.fc_lyaer = nn.Sequential(
            nn.Conv1d(width, width, 1, bias=False), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Dropout(0.0), nn.Conv1d(width, classes, 1),
        )  # fmt: skip

    def forward(self, xyz, features=None):
        levels = [(xyz, None if features is None else features.transpose(1, 2))]
        for layer in self.SA_modules:
            levels.append(layer(*levels[-1]))
        known_xyz, known = levels.pop()
        for layer in reversed(self.FP_modules):
            xyz, skip = levels.pop()
            known = layer(xyz, known_xyz, skip, known)
            known_xyz = xyz
        return self.fc_lyaer(known).transpose(1, 2)


# ---- yanx27/Pointnet_Pointnet2_pytorch ----


def convs_and_norms(widths, dims=2):
    conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv1d, nn.BatchNorm1d)
    pairs = list(pairwise(widths))
    return (
        nn.ModuleList(conv(a, b, 1) for a, b in pairs),
        nn.ModuleList(norm(b) for _, b in pairs),
    )


def run(convs, norms, x):
    for conv, norm in zip(convs, norms, strict=True):
        x = F.relu(norm(conv(x)))
    return x


class YanAbstraction(nn.Module):
    """One scale, offsets first; or all points."""

    random = False

    def __init__(self, channels, count, radius, k, mlp):
        super().__init__()
        self.npoint, self.radius, self.nsample = count, radius, k
        self.group_all = count is None
        self.mlp_convs, self.mlp_bns = convs_and_norms([channels, *mlp])

    def forward(self, xyz, features):
        xyz = xyz.transpose(1, 2)
        if self.group_all:
            centers, parts = torch.zeros_like(xyz[:, :1]), [xyz.unsqueeze(1)]
            idx = torch.arange(xyz.shape[1], device=xyz.device).expand(len(xyz), 1, -1)
        else:
            centers = rows_at(xyz, furthest(xyz, self.npoint, self.random))
            idx = ball(xyz, centers, self.radius, self.nsample, closed=True)
            parts = [rows_at(xyz, idx) - centers.unsqueeze(2)]
        if features is not None:
            parts.append(rows_at(features.transpose(1, 2), idx))
        x = torch.cat(parts, -1)
        y = run(self.mlp_convs, self.mlp_bns, x.permute(0, 3, 2, 1)).max(2)[0]
        return centers.transpose(1, 2), y


class YanAbstractionMsg(nn.Module):
    """Several scales, offsets last."""

    random = False

    def __init__(self, channels, count, radii, ks, mlps):
        super().__init__()
        self.npoint, self.radius_list, self.nsample_list = count, radii, ks
        made = [convs_and_norms([channels + 3, *mlp]) for mlp in mlps]
        self.conv_blocks = nn.ModuleList(convs for convs, _ in made)
        self.bn_blocks = nn.ModuleList(norms for _, norms in made)

    def forward(self, xyz, features):
        xyz = xyz.transpose(1, 2)
        centers = rows_at(xyz, furthest(xyz, self.npoint, self.random))
        found = []
        for i, (radius, k) in enumerate(zip(self.radius_list, self.nsample_list, strict=True)):
            idx = ball(xyz, centers, radius, k, closed=True)
            x = rows_at(xyz, idx) - centers.unsqueeze(2)
            if features is not None:
                x = torch.cat([rows_at(features.transpose(1, 2), idx), x], -1)
            y = run(self.conv_blocks[i], self.bn_blocks[i], x.permute(0, 3, 2, 1))
            found.append(y.max(2)[0])
        return centers.transpose(1, 2), torch.cat(found, 1)


class YanPropagation(nn.Module):
    """Skip features first, weights of 1 / squared distance."""

    def __init__(self, channels, mlp):
        super().__init__()
        self.mlp_convs, self.mlp_bns = convs_and_norms([channels, *mlp], dims=1)

    def forward(self, xyz, known_xyz, features, known):
        if known.shape[2] == 1:
            x = known.expand(-1, -1, xyz.shape[2])
        else:
            dist2, idx = nearest_three(xyz.transpose(1, 2), known_xyz.transpose(1, 2))
            weight = 1 / (dist2 + 1e-8)
            weight = weight / weight.sum(-1, keepdim=True)
            rows = rows_at(known.transpose(1, 2), idx) * weight.unsqueeze(-1)
            x = rows.sum(2).transpose(1, 2)
        if features is not None:
            x = torch.cat([features, x], 1)
        return run(self.mlp_convs, self.mlp_bns, x)


def yan_stages(model, channels, stages, everything):
    """The layers sa1, sa2, ... of a model; the widths of what they give."""
    widths = []
    for i, (count, radii, ks, mlps) in enumerate(stages, 1):
        if len(mlps) == 1:
            layer = YanAbstraction(channels + 3, count, radii[0], ks[0], mlps[0])
        else:
            layer = YanAbstractionMsg(channels, count, radii, ks, mlps)
        setattr(model, f"sa{i}", layer)
        channels = sum(mlp[-1] for mlp in mlps)
        widths.append(channels)
    last = YanAbstraction(channels + 3, None, None, None, everything)
    setattr(model, f"sa{len(stages) + 1}", last)
    return [*widths, everything[-1]]


class YanClassifier(nn.Module):
    """With normals."""

    def __init__(self, classes, stages, everything, head):
        super().__init__()
        self.depth = len(stages) + 1
        yan_stages(self, 3, stages, everything)
        widths = [everything[-1], *head]
        for i, (a, b) in enumerate(pairwise(widths), 1):
            setattr(self, f"fc{i}", nn.Linear(a, b))
            setattr(self, f"bn{i}", nn.BatchNorm1d(b))
        self.fc3 = nn.Linear(head[-1], classes)

    def forward(self, xyz, normals):
        at, x = xyz.transpose(1, 2), normals.transpose(1, 2)
        for i in range(self.depth):
            at, x = getattr(self, f"sa{i + 1}")(at, x)
        x = F.relu(self.bn1(self.fc1(x.flatten(1))))
        return F.log_softmax(self.fc3(F.relu(self.bn2(self.fc2(x)))), -1)


class YanSegmenter(nn.Module):
    """With normals and a category of the shape."""

    def __init__(self, parts, categories, stages, everything, propagations, width):
        super().__init__()
        self.categories, self.depth = categories, len(stages) + 1
        skips = [6 + 3 + categories, *yan_stages(self, 6, stages, everything)]
        deeper = [mlp[-1] for mlp in propagations[1:]] + [skips[-1]]
        for i, (mlp, below, skip) in enumerate(zip(propagations, deeper, skips, strict=False), 1):
            setattr(self, f"fp{i}", YanPropagation(below + skip, mlp))
        self.conv1 = nn.Conv1d(propagations[0][-1], width, 1)
        self.bn1 = nn.BatchNorm1d(width)
        self.conv2 = nn.Conv1d(width, parts, 1)

    def forward(self, xyz, normals, category):
        at = xyz.transpose(1, 2)
        x = torch.cat([at, normals.transpose(1, 2)], 1)
        one_hot = F.one_hot(category, self.categories).to(x).unsqueeze(2)
        levels = [(at, torch.cat([one_hot.expand(-1, -1, at.shape[2]), at, x], 1))]
        for i in range(self.depth):
            at, x = getattr(self, f"sa{i + 1}")(at, x)
            levels.append((at, x))
        known_xyz, known = levels.pop()
        for i in reversed(range(self.depth)):
            at, skip = levels.pop()
            known = getattr(self, f"fp{i + 1}")(at, known_xyz, skip, known)
            known_xyz = at
        x = self.conv2(F.relu(self.bn1(self.conv1(known))))
        return F.log_softmax(x, 1).transpose(1, 2)


# ---- WangYueFt/dgcnn ----


class WangDGCNN(nn.Module):
    """Every norm is registered twice."""

    def __init__(self, classes, widths, k, embedding, head):
        super().__init__()
        self.args, self.k = None, k
        channels = 3
        for i, width in enumerate(widths, 1):
            norm = nn.BatchNorm2d(width)
            setattr(self, f"bn{i}", norm)
            conv = nn.Conv2d(2 * channels, width, 1, bias=False)
            setattr(self, f"conv{i}", nn.Sequential(conv, norm, nn.LeakyReLU(0.2)))
            channels = width
        norm = nn.BatchNorm1d(embedding)
        last = nn.Conv1d(sum(widths), embedding, 1, bias=False)
        setattr(self, f"bn{len(widths) + 1}", norm)
        setattr(self, f"conv{len(widths) + 1}", nn.Sequential(last, norm, nn.LeakyReLU(0.2)))
        a, b = head
        self.linear1 = nn.Linear(2 * embedding, a, bias=False)
        self.linear2 = nn.Linear(a, b)
        self.linear3 = nn.Linear(b, classes)
        setattr(self, f"bn{len(widths) + 2}", nn.BatchNorm1d(a))
        setattr(self, f"bn{len(widths) + 3}", nn.BatchNorm1d(b))
        self.dp1, self.dp2 = nn.Dropout(0.0), nn.Dropout(0.0)

    @property
    def depth(self):
        return sum(name.startswith("conv") for name in self._modules) - 1

    def edges(self, x):
        x = x.transpose(1, 2)
        dist2 = (x.unsqueeze(2) - x.unsqueeze(1)).square().sum(-1)
        near = rows_at(x, dist2.topk(self.k, largest=False)[1])
        own = x.unsqueeze(2).expand_as(near)
        return torch.cat([near - own, own], -1).permute(0, 3, 1, 2)

    def forward(self, x):
        found = []
        for i in range(self.depth):
            x = getattr(self, f"conv{i + 1}")(self.edges(x)).max(3)[0]
            found.append(x)
        x = getattr(self, f"conv{self.depth + 1}")(torch.cat(found, 1))
        x = torch.cat([x.max(2)[0], x.mean(2)], 1)
        x = F.leaky_relu(getattr(self, f"bn{self.depth + 2}")(self.linear1(x)), 0.2)
        x = F.leaky_relu(getattr(self, f"bn{self.depth + 3}")(self.linear2(x)), 0.2)
        return self.linear3(x)
