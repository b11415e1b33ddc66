"""Layers of point clouds with SyncBatchNorm: two ranks train as one does on all clouds."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fusedops.nn import EdgeConv, SetAbstraction

CLOUDS = 4


class Two(nn.Module):
    """A set abstraction of two scales, and an edge convolution of its centres."""

    def __init__(self):
        super().__init__()
        self.first = SetAbstraction(3, [[8, 9], [6]], [0.4, 0.7], [4, 6], 10)
        self.second = EdgeConv(15, [8, 7], 4)

    def forward(self, xyz, features):
        return self.second(self.first(xyz, features)[1])


def inputs(device):
    generator = torch.Generator().manual_seed(5)
    shape = (CLOUDS, 24, 3)
    return [
        torch.rand(shape, generator=generator, dtype=torch.float64).to(device) for _ in range(2)
    ]


def train(model, xyz, features):
    """Gradients of the sum of squares, and the state after two forwards."""
    for _ in range(2):
        model.zero_grad()
        model(xyz, features).square().sum().backward()
    return [p.grad for p in model.parameters()], list(model.state_dict().values())


def rank(device):
    torch.manual_seed(1)
    whole = Two().to(device, torch.float64)
    mine = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole))
    half = CLOUDS // 2
    start = half * torch.distributed.get_rank()
    given = inputs(device)
    # NOTE: torch's DDP takes SyncBatchNorm on GPUs alone; the sum is what it forms.
    grads, state = train(mine, *(x[start : start + half] for x in given))
    for grad in grads:
        torch.distributed.all_reduce(grad)
    want_grads, want_state = train(whole, *given)
    return [t.cpu() for t in (*grads, *state)], [t.cpu() for t in (*want_grads, *want_state)]


def test_two_ranks_are_one(ranks):
    for got, want in ranks.run(rank, ranks.device):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
