"""DLRM and PointNet++, in plain torch with our sampling and neighbour search for everybody."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .spec import Data, Model, dtype_of

if TYPE_CHECKING:
    from collections.abc import Sequence

DENSE, TABLES = 13, 26  # of the Criteo data
CLASSES = 40  # of ModelNet


def mlp(sizes: Sequence[int], last: bool = True) -> nn.Sequential:
    """Linear layers with ReLUs between them, and behind the last one if asked."""
    steps: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        steps += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*(steps if last else steps[:-1]))


class DLRM(nn.Module):
    """Meta's: a bottom MLP, one row of each table, all dot products between them, a top MLP."""

    upper: Tensor

    def __init__(self, rows: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        dim = bottom[-1]
        self.tables = nn.Embedding(TABLES * rows, dim)  # one after the other
        self.bottom = mlp((DENSE, *bottom))
        pairs = torch.triu_indices(TABLES + 1, TABLES + 1, 1)
        self.register_buffer("upper", pairs[0] * (TABLES + 1) + pairs[1], persistent=False)
        self.top = mlp((dim + pairs.shape[1], *top, 1), last=False)

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.cat((x[:, None], self.tables(rows)), 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        y: Tensor = self.top(torch.cat((x, products[:, self.upper]), 1))
        return y.squeeze(1)


class SetAbstraction(nn.Module):
    """Furthest points, their neighbours in a ball, an MLP on each, the largest of each group."""

    def __init__(self, count: int, radius: float, k: int, sizes: Sequence[int], norm: bool) -> None:
        super().__init__()
        self.count, self.radius, self.k = count, radius, k
        steps: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            steps.append(nn.Linear(fan_in, fan_out, bias=not norm))
            steps += [nn.BatchNorm1d(fan_out)] if norm else []
            steps.append(nn.ReLU())
        self.mlp = nn.Sequential(*steps)

    def forward(self, xyz: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        from fusedops import points

        chosen = points.farthest_point_sample(xyz, self.count)
        centres = points.gather(xyz, chosen)
        neighbours = points.ball_query(xyz, centres, self.radius, self.k, pad="first")[0]
        batch = torch.arange(xyz.shape[0], device=xyz.device)[:, None, None]
        groups = xyz[batch, neighbours] - centres[:, :, None]
        groups = groups.to(dtype_of(self))
        if features is not None:
            groups = torch.cat((groups, features[batch, neighbours]), -1)
        y = self.mlp(groups.flatten(0, 2)).unflatten(0, groups.shape[:3])
        return centres, y.amax(2)


class PointNet2(nn.Module):
    """PointNet++ with one scale per level, for classification."""

    def __init__(self, norm: bool, tiny: bool) -> None:
        super().__init__()
        first, second, last = (64, 64, 128), (128, 128, 256), (256, 512, 1024)
        counts, k = (512, 128), (32, 64)
        if tiny:
            first, second, last, counts, k = (8, 8, 16), (16, 16, 16), (16, 32, 32), (32, 8), (8, 8)
        self.levels = nn.ModuleList(
            [
                SetAbstraction(counts[0], 0.2, k[0], (3, *first), norm),
                SetAbstraction(counts[1], 0.4, k[1], (3 + first[-1], *second), norm),
            ]
        )
        self.whole = mlp((second[-1], *last))
        self.head = mlp((last[-1], *((32,) if tiny else (512, 256)), CLASSES), last=False)

    def forward(self, xyz: Tensor) -> Tensor:
        features: Tensor | None = None
        for level in self.levels:
            xyz, features = level(xyz, features)
        scores: Tensor = self.head(self.whole(features).amax(1))
        return scores


def build_dlrm(tiny: bool) -> nn.Module:
    if tiny:
        return DLRM(16, (32, 16), (32, 16))
    return DLRM(40000, (512, 256, 128), (1024, 1024, 512, 256))


def dlrm_data(model: nn.Module, tiny: bool) -> Data:
    batch, rows = (8, 16) if tiny else (8192, 40000)
    picked = torch.randint(rows, (batch, TABLES)) + rows * torch.arange(TABLES)
    clicked = torch.rand(batch).round()
    return torch.randn(batch, DENSE, dtype=dtype_of(model)), picked, clicked.to(dtype_of(model))


def dlrm_loss(model: nn.Module, dense: Tensor, rows: Tensor, clicked: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(dense, rows), clicked)


def cloud_data(_: nn.Module, tiny: bool) -> Data:
    batch, count = (2, 64) if tiny else (32, 1024)
    return torch.rand(batch, count, 3), torch.randint(CLASSES, (batch,))


def class_loss(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(model(x).float(), target)


def class_output(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    scores: Tensor = model(x)
    return scores


def cloud_loss(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    return class_loss(model, x.float(), target)


def cloud_output(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    return class_output(model, x.float(), target)


MODELS = (
    Model("dlrm", build_dlrm, dlrm_data, dlrm_loss, lambda m, dense, rows, _: m(dense, rows)),
    Model("pointnet2", lambda tiny: PointNet2(False, tiny), cloud_data, cloud_loss, cloud_output),
    Model("pointnet2_bn", lambda tiny: PointNet2(True, tiny), cloud_data, cloud_loss, cloud_output),
)
