"""Modules and fused models on the meta device, where torch raises if asked for autocast."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import fusedops
from fusedops import fp8


class Patches(nn.Module):
    """A convolution of patches, an MLP and a norm, as fuse replaces them."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, 4)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.mlp(self.conv(x).flatten(2).mT))


def fused():
    model = Patches()
    fusedops.fuse(model)
    return model, (torch.ones(2, 3, 8, 8),)


def pre_norm():
    recipe = fp8.Recipe(when="always")
    layer = fusedops.nn.Linear(32, 16, recipe=recipe)
    return fusedops.nn.PreNorm(fusedops.nn.RMSNorm(32), layer), (torch.ones(4, 32),)


def global_abstraction():
    layer = fusedops.nn.GlobalSetAbstraction(4, [6, 5])
    return layer, (torch.ones(2, 9, 3), torch.ones(2, 9, 4))


@pytest.mark.filterwarnings("ignore:fusedops.fp8")
@pytest.mark.parametrize("make", [fused, pre_norm, global_abstraction])
@pytest.mark.parametrize("autocast", [False, True])
def test_shapes_on_meta(make, autocast):
    model, inputs = make()
    expected = model(*inputs)
    model.to("meta")
    with torch.autocast("cpu") if autocast else contextlib.nullcontext():
        y = model(*(x.to("meta") for x in inputs))
    assert (y.shape, y.stride(), y.dtype) == (expected.shape, expected.stride(), expected.dtype)
