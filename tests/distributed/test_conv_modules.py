"""Convolutions with SyncBatchNorm: two ranks train as one does on all images."""

from __future__ import annotations

import copy
from unittest import mock

import torch
from torch import nn

import fusedops
from fusedops._rewrite.convs import unit as units

IMAGES = 4


class Two(nn.Module):
    """Our module, and torch's modules that `fuse` finds."""

    def __init__(self):
        super().__init__()
        self.first = fusedops.nn.ConvBNAct(3, 6, 3, padding=1, activation="silu")
        self.second = nn.Sequential(nn.Conv2d(6, 5, 1), nn.BatchNorm2d(5, momentum=None), nn.ReLU())

    def forward(self, x):
        return self.second(self.first(x))


def images(device):
    generator = torch.Generator().manual_seed(5)
    shape = (IMAGES, 3, 6, 5)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)


def train(model, x):
    """Gradients of the sum of squares, and the state after two forwards."""
    for _ in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
    return [p.grad for p in model.parameters()], list(model.state_dict().values())


def rank(device):
    torch.manual_seed(1)
    whole = Two().to(device, torch.float64)
    mine = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole))
    assert len(fusedops.fuse(mine).convs) == 1
    half = IMAGES // 2
    start = half * torch.distributed.get_rank()
    # NOTE: torch's DDP takes SyncBatchNorm on GPUs alone; the sum is what it forms.
    always = {"may_pay": mock.Mock(return_value=True), "pays": mock.Mock(return_value=True)}
    with mock.patch.multiple(units, **always):  # on a CPU and for small images, too
        grads, state = train(mine, images(device)[start : start + half])
    for grad in grads:
        torch.distributed.all_reduce(grad)
    want_grads, want_state = train(whole, images(device))
    return [t.cpu() for t in (*grads, *state)], [t.cpu() for t in (*want_grads, *want_state)]


def test_two_ranks_are_one(ranks):
    for got, want in ranks.run(rank, ranks.device):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
