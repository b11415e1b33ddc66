"""fusedops.fuse on depthwise convolutions of 7 x 7: they run on our kernels where that pays."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from fusedops._rewrite.convs import depthwise
from util import HALVES, Calls, make, name


def pair(device, dtype, channels=16, padding=3, **options):
    """A convolution, and the same one fused."""
    torch.manual_seed(0)
    theirs = nn.Conv2d(channels, channels, 7, padding=padding, groups=channels, **options)
    theirs = theirs.to(device, dtype)
    ours = copy.deepcopy(theirs)
    report = fusedops.fuse(ours)
    assert (report.num_fused, report.num_skipped) == (1, 0)
    return theirs, ours


def results(module, x, function=None):
    """y and all gradients in float64."""
    leaf = x.detach().clone().requires_grad_()
    y = module(leaf) if function is None else function(leaf)
    dy = make(*y.shape, dtype=y.dtype, device=y.device, seed=7)
    found = torch.autograd.grad(y, [leaf, *module.parameters()], dy)
    return [t.double() for t in (y.detach(), *found)], y


def ours_of(module, x):
    with Calls() as calls:
        module(x)
    return calls.ours.count("depthwise_conv") == 1


@pytest.fixture
def small(monkeypatch):
    """The op for every x."""
    monkeypatch.setattr(depthwise, "_LEAST", 0)


@pytest.mark.gpu
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("lies", ["first", "last"])
@pytest.mark.parametrize("padding", [3, 0, "same"])
@pytest.mark.parametrize("bias", [True, False])
def test_is_torchs(dtype, lies, padding, bias):
    theirs, ours = pair("cuda", dtype, padding=padding, bias=bias)
    x = make(2, 16, 20, 11, dtype=dtype, device="cuda")
    if lies == "last":
        x = x.contiguous(memory_format=torch.channels_last)
    assert ours_of(ours, x)
    want, y = results(theirs, x)
    got, z = results(ours, x)
    exact, _ = results(copy.deepcopy(theirs).double(), x.double())
    for a, b, c in zip(got, want, exact, strict=True):
        assert (a - c).norm() <= 1.1 * (b - c).norm() + 1e-6 * c.norm()
    assert z.dtype is y.dtype
    assert z.is_contiguous() == (lies == "first")
    again, _ = results(ours, x)
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


@pytest.mark.gpu
@pytest.mark.usefixtures("small")
def test_autocast():
    theirs, ours = pair("cuda", torch.float32)
    x = make(2, 16, 14, 14, dtype=torch.float32, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert ours_of(ours, x)
        torch.testing.assert_close(ours(x), theirs(x), rtol=2e-2, atol=2e-2)
    assert not ours_of(ours, x)


@pytest.mark.gpu
def test_small_images_are_torchs():
    _, ours = pair("cuda", torch.bfloat16)
    assert not ours_of(ours, make(1, 16, 14, 14, dtype=torch.bfloat16, device="cuda"))
    assert ours_of(ours, make(64, 16, 32, 32, dtype=torch.bfloat16, device="cuda"))


def test_on_a_cpu_it_is_torchs_own(device):
    theirs, ours = pair(device, torch.float64)
    x = make(2, 16, 9, 8, dtype=torch.float64, device=device)
    assert torch.equal(ours(x), theirs(x))
    assert fusedops.fuse(ours).unchanged == 1
    copied = pickle.loads(pickle.dumps(copy.deepcopy(ours)))
    assert torch.equal(copied(x), theirs(x))
    assert [*copied.state_dict()] == [*theirs.state_dict()]


def test_what_stays(monkeypatch):
    def reasons(conv):
        report = fusedops.fuse(nn.ModuleList([conv]))
        assert report.num_fused == 0
        return [one.reason for one in report.skipped]

    assert reasons(nn.Conv2d(8, 8, 7, padding=3, groups=4)) == []
    assert reasons(nn.Conv2d(8, 8, 5, padding=2, groups=8)) == []
    assert reasons(nn.Conv2d(8, 8, 7, stride=2, groups=8)) == []
    assert reasons(nn.Conv2d(7, 7, 7, groups=7)) == []
    [why] = reasons(nn.Conv2d(8, 8, 7, dilation=2, groups=8))
    assert "dilated" in why
    [why] = reasons(nn.Conv2d(8, 8, 7, padding=3, groups=8, padding_mode="reflect"))
    assert "reflect" in why

    class Other(nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    [why] = reasons(Other(8, 8, 7, groups=8))
    assert "subclass" in why
    monkeypatch.setattr(F, "conv2d", lambda *args: args[0])
    [why] = reasons(nn.Conv2d(8, 8, 7, groups=8))
    assert "was replaced" in why


def test_a_norm_behind_it_is_fused_with_it(device):
    layers = nn.Sequential(nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.BatchNorm2d(8), nn.ReLU())
    report = fusedops.fuse(layers.to(device))
    assert [conv.name for conv in report.convs] == ["0"]
    assert type(layers[0]) is nn.Conv2d
