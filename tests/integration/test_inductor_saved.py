"""What is saved for backward beside our ops: their results, and nothing computed from them."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from fusedops._inductor import graph_pass
from fusedops._inductor.decide import Verdict
from fusedops._inductor.graph import bare
from integration.test_inductor import assert_close

B, C, SIDE = 2, 16, 8


class Block(nn.Module):
    """ConvNeXt's: channels last between two permutations."""

    def __init__(self, act):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3, padding=1, groups=C)
        self.norm, self.act = nn.LayerNorm(C), act
        self.fc1, self.fc2 = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.fc2(self.act(self.fc1(y))).permute(0, 3, 1, 2)


def saved_by(model, x, options):
    """(loss and gradients, what the forward graph returns besides)."""
    from torch._inductor.compile_fx import compile_fx

    graphs = []

    def run(graph, inputs, **kwargs):
        graphs.append(graph)

        def call(args):
            taken = list(args)
            args.clear()
            return graph(*taken)

        call._boxed_call = True
        return call

    def backend(graph, xs):
        return compile_fx(graph, xs, inner_compile=run, config_patches=options)

    torch.compiler.reset()
    loss = torch.compile(model, backend=backend, fullgraph=True)(x).float().square().mean()
    results = [loss, *torch.autograd.grad(loss, list(model.parameters()))]
    (output,) = graphs[0].graph.find_nodes(op="output")
    return results, output.args[0][1:]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("act", [F.gelu, lambda z: z * torch.sigmoid(1.702 * z)])
def test_a_preactivation_is_saved_as_it_is(device, dtype, act, monkeypatch):
    def layers_alone(site, force):
        return Verdict(site.kind == "linear", "the layer alone")

    monkeypatch.setattr(graph_pass, "decide", layers_alone)
    torch.manual_seed(0)
    model = nn.Sequential(Block(act), Block(act)).to(device, dtype)
    x = torch.randn(B, C, SIDE, SIDE, device=device, dtype=dtype)
    ours = fusedops.inductor()
    got, saved = saved_by(model, x, ours["options"])
    assert ours.report.kinds() == ["linear"] * 2
    wide = [n for n in saved if n.meta["val"].numel() == B * SIDE * SIDE * 4 * C]
    assert len(wide) == 4  # z and act(z) of each
    assert all(bare(n).target is operator.getitem for n in wide)
    assert all(n.meta["val"].shape[-2:] == (B * SIDE * SIDE, 4 * C) for n in wide)
    loss = model(x).float().square().mean()
    want = [loss, *torch.autograd.grad(loss, list(model.parameters()))]
    assert_close(got, want, 6e-2 if dtype is torch.bfloat16 else 2e-5)
