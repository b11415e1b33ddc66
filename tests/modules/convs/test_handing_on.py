"""Gradients of a value that a pointwise convolution and something behind it read."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.autograd.grad_mode import set_multithreading_enabled
from torch.utils._python_dispatch import TorchDispatchMode

import fusedops
from fusedops._autograd.conv import product_with_grad
from fusedops._rewrite.convs import unit as units
from fusedops.ops import conv
from modules.convs import conv_layers as layers

pytestmark = pytest.mark.usefixtures("exact_convolutions")
SUM = torch.ops.fusedops.linear_input_backward.default


class Sums(TorchDispatchMode):
    """How many products have added what they were given, in backward passes in this thread."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is SUM
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Units, and our product in them, on a CPU, in any dtype and for small images, too."""
    for name in ("may_pay", "pays"):
        monkeypatch.setattr(units, name, lambda *_: True)

    def uses(device, dtype, weight, problem):
        return conv.is_pointwise(weight, problem)

    monkeypatch.setattr(conv, "uses_product", uses)


class Block(nn.Module):
    """Modules for blocks whose input a pointwise unit and others read."""

    def __init__(self, kernel=1):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, kernel, padding=kernel // 2)
        self.bn = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.relu, self.relu_ = nn.ReLU(), nn.ReLU(inplace=True)


class Summed(Block):
    def forward(self, x):
        return self.relu(self.bn(self.conv(x))) + x


class Residual(Block):
    def forward(self, x):
        y = self.relu(self.bn(self.conv(x)))
        return self.relu(self.bn2(self.second(y)) + x)


class ThreeReaders(Block):
    def forward(self, x):
        y = self.relu(self.bn(self.conv(x)))
        z = self.relu(self.bn2(self.second(x)))
        return self.relu(self.bn2(self.second(y + z)) + x)


class ReadByTheRest(Block):
    def forward(self, x):
        y = self.relu(self.bn(self.conv(x)))
        z = self.bn2(self.second(x))
        return (y * z).sum() + x


class ReadBefore(Block):
    def forward(self, x):
        z = self.second(x)
        y = self.relu(self.bn(self.conv(x)))
        return y + z


class Returned(Block):
    def forward(self, x):
        y = self.relu(self.bn(self.conv(x)))
        z = self.relu(self.bn2(self.second(x)))
        return torch.cat([y, x, z])


class Scaled(nn.Module):
    """In front of a block that may write into its input."""

    def forward(self, x):
        return x * 1.5


def both(make, device, dtype=torch.float64):
    """A model before and after fuse, and an input of it."""
    torch.manual_seed(0)
    model = nn.Sequential(Scaled(), make()).to(device, dtype)
    original = copy.deepcopy(model)
    fusedops.fuse(model)
    channels = next(model.parameters()).shape[1]
    x = torch.randn(2, channels, 6, 5, device=device, dtype=dtype)
    return original, model, x.contiguous(memory_format=torch.channels_last)


def step(model, x):
    """Output and gradients of a step, and how many sums products have formed."""
    x = x.clone().requires_grad_()
    y = model(x)
    with set_multithreading_enabled(False), Sums() as sums:
        y.backward(torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype).view(y.shape))
    found = {"y": y.detach(), "x": x.grad, **{n: p.grad for n, p in model.named_parameters()}}
    model.zero_grad()
    return found, sums.count


def assert_same(original, model, x, count):
    for _ in range(2):
        want, _ = step(original, x)
        got, sums = step(model, x)
        assert sums == count
        for name, value in want.items():
            if value is not None:
                torch.testing.assert_close(got[name], value, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (layers.Bottleneck, 1), (lambda: layers.Bottleneck(8, 8, 2), 1),
        (Summed, 1), (Residual, 1), (ThreeReaders, 1),
        (ReadBefore, 0), (ReadByTheRest, 0), (Returned, 0), (lambda: Residual(3), 0),
    ],
    ids=["bottleneck", "downsample", "summed", "residual", "three", "before", "rest",
         "returned", "window"],
)  # fmt: skip
def test_gradients(make, count, device):
    assert_same(*both(make, device), count)


def test_in_evaluation_and_with_frozen_weights(device):
    original, model, x = both(Residual, device)
    for one in (original, model):
        one.eval()
        one[1].conv.requires_grad_(False)
    assert_same(original, model, x, 1)


def test_an_input_without_a_gradient(device):
    original, model, x = both(Residual, device)
    model, original = model[1], original[1]
    for one in (original, model):
        y = one(x)
        with set_multithreading_enabled(False), Sums() as sums:
            y.sum().backward()
        assert sums.count == 0
    for (name, p), q in zip(original.named_parameters(), model.parameters(), strict=True):
        if p.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, msg=lambda m, n=name: f"{n}: {m}")


def test_second_derivatives(device):
    original, model, x = both(Residual, device)

    def penalty(one):
        y = one.eval()(given)
        (dx,) = torch.autograd.grad(y.square().sum(), given, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), [given, one[1].conv.weight])

    given = x.requires_grad_()
    for want, got in zip(penalty(original), penalty(model), strict=True):
        torch.testing.assert_close(got, want)


def test_an_input_that_autocast_casts_is_not_handed_on(device):
    original, model, x = both(Residual, device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        got, sums = step(model, x)
        want, _ = step(original, x)
    assert sums == 0
    assert (got["x"] - want["x"]).norm() < 0.2 * want["x"].norm()


@pytest.mark.parametrize("wanted", range(8))
@pytest.mark.parametrize("used", ["both", "product", "input"])
def test_each_gradient(wanted, used, device):
    """The function alone, for each that may be wanted and each result that may be used."""
    torch.manual_seed(3)
    tensors = [torch.randn(s, device=device, dtype=torch.float64) for s in [(3, 4), (5, 4), (5,)]]
    for i, t in enumerate(tensors):
        t.requires_grad_(bool(wanted >> i & 1))

    def function(x, weight, bias):
        z, same, _ = product_with_grad(x, weight, bias, True, False)
        assert same.data_ptr() == x.data_ptr()
        return [r for r, name in ((z.sin(), "product"), (same.cos(), "input"))
                if used in ("both", name)]  # fmt: skip

    if used == "input" and not tensors[0].requires_grad:
        pytest.skip("nothing that wants a gradient is used")
    if wanted:
        assert torch.autograd.gradcheck(function, tensors)
        assert torch.autograd.gradgradcheck(function, tensors)
