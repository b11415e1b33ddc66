"""The graph pass of torch.compile: depthwise convolutions of 7 x 7 become our op."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from fusedops._inductor import depthwise
from fusedops._inductor.decide import decide_depthwise
from integration.test_inductor import assert_close, compiled
from integration.test_inductor_patches import last, results, strides

CHANNELS = 8


def make(device, dtype=torch.float64, padding=3, **options):
    torch.manual_seed(0)
    layer = nn.Conv2d(CHANNELS, CHANNELS, 7, padding=padding, groups=CHANNELS, **options)
    return layer.to(device, dtype), torch.randn(2, CHANNELS, 9, 11, device=device, dtype=dtype)


def check(layer, x, leaves=None, tolerance=1e-12, kinds=("depthwise",)):
    """Compile, compare with the layer, and return the report."""
    leaves = [x.requires_grad_(), *layer.parameters()] if leaves is None else leaves
    ours = fusedops.inductor(force=True)
    got = results(compiled(layer, ours), x, leaves)
    want = results(layer, x, leaves)
    assert_close(got, want, tolerance)
    assert ours.report.kinds() == [*kinds]
    assert strides(got) == strides(want)
    return ours.report


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lies", ["first", "last"])
@pytest.mark.parametrize("padding", [3, 0, (1, 5)])
def test_is_torchs(device, bias, lies, padding):
    layer, x = make(device, padding=padding, bias=bias)
    if device == "cuda":
        layer, x = layer.half(), x.half()
    x = last(x) if lies == "last" else x
    report = check(layer, x, tolerance=2e-3 if device == "cuda" else 1e-12)
    [site] = report.replaced
    assert site.training
    assert site.shape == "2 x 8 x 9 x 11 x 7 x 7"


@pytest.mark.parametrize("wanted", list(product([True, False], repeat=3))[:-1], ids=str)
def test_every_combination_of_gradients(device, wanted):
    layer, x = make(device)
    if device == "cuda":
        layer, x = layer.half(), x.half()
    leaves = [x, layer.weight, layer.bias]
    for leaf, needed in zip(leaves, wanted, strict=True):
        leaf.requires_grad_(needed)
    check(layer, x, [t for t in leaves if t.requires_grad], 2e-3 if device == "cuda" else 1e-12)


def test_inference_and_autocast(device):
    layer, x = make(device, torch.float32)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        ours = fusedops.inductor(force=True)
        torch.testing.assert_close(compiled(layer, ours)(x), layer(x), rtol=2e-2, atol=2e-2)
    assert ours.report.kinds() == ["depthwise"]


def test_a_dynamic_batch(device):
    layer, x = make(device)
    if device == "cuda":
        layer, x = layer.half(), x.half()
    ours = fusedops.inductor(force=True)
    run = compiled(layer, ours)
    for batch in (2, 5, 3):
        x = torch.randn(batch, *x.shape[1:], device=device, dtype=x.dtype).requires_grad_()
        torch._dynamo.mark_dynamic(x, 0)
        leaves = [x, *layer.parameters()]
        tolerance = 2e-3 if device == "cuda" else 1e-12
        assert_close(results(run, x, leaves), results(layer, x, leaves), tolerance)
    assert ours.report.graphs == 1
    assert ours.report.kinds() == ["depthwise"]


@pytest.mark.parametrize(
    "options",
    [{"stride": 2}, {"dilation": 2}, {"groups": 2}, {"kernel_size": 5}, {"kernel_size": (7, 5)}],
    ids=str,
)
def test_others_stay(device, options):
    settings = {"kernel_size": 7, "padding": 6, "groups": CHANNELS, **options}
    layer = nn.Conv2d(CHANNELS, CHANNELS, **settings).to(device)
    check(layer, torch.randn(2, CHANNELS, 9, 11, device=device), tolerance=1e-3, kinds=())


def test_what_does_not_pay_stays_with_the_reason(device):
    layer, x = make(device, torch.bfloat16)
    ours = fusedops.inductor()
    results(compiled(layer, ours), x, [*layer.parameters()])
    assert ours.report.kinds() == []
    assert any("a depthwise convolution" in str(left) for left in ours.report.left)


@pytest.mark.parametrize(
    ("shape", "where", "take"),
    [((64, 128, 56, 56), "cuda", True), ((1, 128, 14, 14), "cuda", False),
     ((64, 128, 56, 56), "cpu", False)],
)  # fmt: skip
def test_when_it_pays(shape, where, take):
    from types import SimpleNamespace

    x = SimpleNamespace(shape=shape, device=torch.device(where))
    assert decide_depthwise(x, False).take is take


def test_a_failure_leaves_the_convolution(device, monkeypatch):
    def fail(*args):
        raise ValueError("no")

    monkeypatch.setattr(depthwise._Written, "laid", fail)
    layer, x = make(device)
    if device == "cuda":
        layer, x = layer.half(), x.half()
    ours = fusedops.inductor(force=True)
    leaves = [*layer.parameters()]
    run = compiled(layer, ours)
    assert_close(results(run, x, leaves), results(layer, x, leaves), 2e-3)
    assert ours.report.kinds() == []


def test_a_block_of_convnext(device):
    """Permutations around the convolution cancel out."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 7, padding=3, groups=8)
            self.norm = nn.LayerNorm(8)
            self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x):
            y = self.norm(self.conv(x).permute(0, 2, 3, 1))
            return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)

    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float64
    block = Block().to(device, dtype)
    x = torch.randn(2, 8, 12, 10, device=device, dtype=dtype)
    ours = fusedops.inductor(force=True)
    leaves = [x.requires_grad_(), *block.parameters()]
    got, want = results(compiled(block, ours), x, leaves), results(block, x, leaves)
    assert_close(got, want, 5e-2 if device == "cuda" else 1e-12)
    assert "depthwise" in ours.report.kinds()
