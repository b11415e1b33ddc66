"""The graph pass finds EdgeConv, whose groups' own rows stand beside the offsets."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from models.test_inductor_groups import B, C, K, Layers, N, assert_same, index_points
from models.twin_ops import shuffle_norms


def graph_feature(x, k):
    """WangYueFt's, of (B, C, N)."""
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    squares = torch.sum(x**2, dim=1, keepdim=True)
    idx = (-squares - inner - squares.transpose(2, 1)).topk(k=k, dim=-1)[1]
    idx = idx + torch.arange(0, B, device=x.device).view(-1, 1, 1) * N
    idx = idx.view(-1)
    dims = x.size(1)
    x = x.transpose(2, 1).contiguous()
    feature = x.view(B * N, -1)[idx, :].view(B, N, k, dims)
    x = x.view(B, N, 1, dims).repeat(1, 1, k, 1)
    return torch.cat((feature - x, x), dim=3).permute(0, 3, 1, 2).contiguous()


def of_images(mlp, x, idx):
    return mlp(graph_feature(x.transpose(1, 2), K)).max(dim=-1, keepdim=False)[0]


def own_first(mlp, x, idx):
    own = x[:, :, None].expand(-1, -1, K, -1)
    edges = torch.cat((own, index_points(x, idx) - own), -1)
    return mlp(edges.permute(0, 3, 2, 1)).amax(2)


def of_others(mlp, x, idx):
    """The group's own rows are not those of the offsets."""
    own = (2 * x)[:, :, None].expand(-1, -1, K, -1)
    edges = torch.cat((index_points(x, idx) - x[:, :, None], own), -1)
    return mlp(edges.permute(0, 3, 2, 1)).amax(2)


def of_other_rows(mlp, x, idx):
    """Rows of clouds one after the other, numbered as if they were shorter."""
    rows = torch.topk(x @ x.mT, K)[1] + torch.arange(B, device=x.device).view(-1, 1, 1) * (N - 1)
    edges = x.reshape(B * N, -1)[rows.view(-1)].view(B, N, K, -1) - x[:, :, None]
    own = x[:, :, None].expand(-1, -1, K, -1)
    return mlp(torch.cat((edges, own), -1).permute(0, 3, 2, 1)).amax(2)


def in_place(mlp, x, idx):
    """What topk found is changed where it lies."""
    rows = torch.topk(x @ x.mT, K)[1]
    rows += torch.arange(B, device=x.device).view(-1, 1, 1) * N
    edges = x.reshape(B * N, -1)[rows.view(-1)].view(B, N, K, -1) - x[:, :, None]
    own = x[:, :, None].expand(-1, -1, K, -1)
    return mlp(torch.cat((edges, own), -1).permute(0, 3, 2, 1)).amax(2)


@pytest.mark.parametrize("widths", [(8,), (8, 6)], ids=str)
@pytest.mark.parametrize(
    ("form", "found"),
    [
        (of_images, True),
        (own_first, True),
        (of_others, False),
        (of_other_rows, False),
        (in_place, False),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_edge_conv(device, form, found, widths):
    torch.manual_seed(3)
    mlp = Layers((2 * C, *widths), 2, act=lambda: nn.LeakyReLU(0.2))
    mlp = shuffle_norms(mlp).to(device, torch.float64)
    x = torch.randn(B, N, C, dtype=torch.float64).to(device).requires_grad_()
    idx = torch.randint(-N, N, (B, N, K)).to(device)
    assert ("edge_conv" in assert_same(form, mlp, (x, idx))) is found


def test_layers_of_one_index(device):
    """Several layers may read what topk found once."""
    torch.manual_seed(3)
    first = Layers((2 * C, C), 2, act=lambda: nn.LeakyReLU(0.2))
    mlp = shuffle_norms(nn.ModuleList([first, copy.deepcopy(first)])).to(device, torch.float64)
    x = torch.randn(B, N, C, dtype=torch.float64).to(device).requires_grad_()

    def run(mlp, x):
        base = torch.arange(B, device=x.device).view(-1, 1, 1) * N
        rows = (torch.topk(x @ x.mT, K)[1] + base).view(-1)
        for layer in mlp:
            own = x.view(B, N, 1, C).repeat(1, 1, K, 1)
            edges = x.view(B * N, -1)[rows, :].view(B, N, K, C) - own
            x = layer(torch.cat((edges, own), -1).permute(0, 3, 1, 2)).amax(-1).mT.contiguous()
        return x

    assert assert_same(run, mlp, (x,)).count("edge_conv") == 2
