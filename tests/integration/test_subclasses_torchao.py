"""torchao's quantised weights, before and after `fuse`."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops

torchao = pytest.importorskip("torchao.quantization")

D, H = 64, 128


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(D, H), nn.Linear(D, H)
        self.down = nn.Linear(H, D)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("order", ["before", "after"])
def test_int8_weights(device, order):
    torch.manual_seed(0)
    mlp = [nn.Linear(D, H), nn.GELU(), nn.Linear(H, D)]
    model = nn.Sequential(nn.LayerNorm(D), *mlp, Gated()).to(device, torch.bfloat16)
    plain = copy.deepcopy(model)
    torchao.quantize_(plain, torchao.Int8WeightOnlyConfig())
    if order == "before":
        fusedops.fuse(model)
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    if order == "after":
        fusedops.fuse(model)
    x = torch.randn(8, D, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x), rtol=0.02, atol=0.02)
    weight = next(m for m in model.modules() if isinstance(m, nn.Linear)).weight
    assert type(weight) not in (torch.Tensor, nn.Parameter)
