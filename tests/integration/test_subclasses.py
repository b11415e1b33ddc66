"""Tensor subclasses: nested tensors, quantised weights, and subclasses that only carry a name."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from util import Calls

D, H = 16, 24


def parameters(*shapes, device):
    torch.manual_seed(1)
    return [torch.randn(s, device=device).mul_(0.3).requires_grad_() for s in shapes]


def jagged(device):
    torch.manual_seed(2)
    rows = [torch.randn(n, D, device=device) for n in (3, 1, 5)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True), rows


FUNCTIONS = {
    "linear": lambda x, w, b, v, c: fusedops.linear(x, w, b),
    "linear gelu": lambda x, w, b, v, c: fusedops.linear(x, w, b, "gelu"),
    "mlp": lambda x, w, b, v, c: fusedops.mlp(x, w, b, v, c, "silu"),
    "mlp residual": lambda x, w, b, v, c: fusedops.mlp(x, w, b, v, c, "relu", residual=x),
    "gated": lambda x, w, b, v, c: fusedops.gated_mlp(x, w, w, v, activation="silu"),
    "rms_norm": lambda x, w, b, v, c: fusedops.rms_norm(x, D, c),
    "layer_norm": lambda x, w, b, v, c: fusedops.layer_norm(x, D, c),
    "add": lambda x, w, b, v, c: fusedops.add(x, x),
    "relu": lambda x, w, b, v, c: fusedops.relu(x),
    "square": lambda x, w, b, v, c: fusedops.square(x),
    "bias_act": lambda x, w, b, v, c: fusedops.bias_act(x, c, "gelu"),
    "softmax": lambda x, w, b, v, c: fusedops.softmax(x, -1),
    "dropout": lambda x, w, b, v, c: fusedops.bias_dropout_residual(x, c, x, 0.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nested_tensors(device, name):
    function = FUNCTIONS[name]
    weights = parameters((H, D), (H,), (D, H), (D,), device=device)
    x, rows = jagged(device)
    y = function(x, *weights)
    assert y.is_nested
    dy = torch.randn_like(y.values())
    got = torch.autograd.grad(y.values(), [x, *weights], dy, allow_unused=True)
    flat = torch.cat(rows).requires_grad_()
    want_y = function(flat, *weights)
    want = torch.autograd.grad(want_y, [flat, *weights], dy, allow_unused=True)
    torch.testing.assert_close(y.values(), want_y, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[0].values(), want[0], rtol=1e-5, atol=1e-5)
    for one, other in zip(got[1:], want[1:], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(D, H), nn.Linear(D, H)
        self.down = nn.Linear(H, D)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def model(device):
    torch.manual_seed(3)
    return nn.Sequential(
        nn.LayerNorm(D), nn.Linear(D, H), nn.GELU(), nn.Linear(H, D), Gated(), nn.RMSNorm(D)
    ).to(device)


def test_a_fused_model_of_nested_tensors(device):
    plain = model(device)
    fused = copy.deepcopy(plain)
    assert len(fusedops.fuse(fused).blocks) == 2
    x, rows = jagged(device)
    y = fused(x)
    y.values().square().sum().backward()
    want = plain(torch.cat(rows))
    want.square().sum().backward()
    torch.testing.assert_close(y.values(), want, rtol=1e-5, atol=1e-5)
    for got, other in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, other.grad, rtol=1e-4, atol=1e-4)


class Int8(torch.Tensor):
    """A weight of int8 and one scale, as quantisation libraries make them: it knows F.linear."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=scale.dtype, device=data.device
        )

    def __init__(self, data, scale):
        self.data_, self.scale = data, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax() / 127
        return cls(torch.round(weight / scale).to(torch.int8), scale)

    def dequantize(self):
        return self.data_ * self.scale

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.linear:
            x, weight, *bias = args
            return F.linear(x, weight.dequantize(), *bias, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function, types, args, kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].data_, args[0].scale)
        raise NotImplementedError(f"{function} of Int8")


def quantise(module):
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            weight = Int8.of(layer.weight.detach())
            layer.weight = nn.Parameter(weight, requires_grad=False)


def dequantised(module):
    module = copy.deepcopy(module)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            weight = Int8.of(layer.weight.detach()).dequantize()
            layer.weight = nn.Parameter(weight, requires_grad=False)
    return module


@pytest.mark.parametrize("order", ["before", "after"])
def test_weights_quantised_before_and_after_fuse(device, order):
    fused = model(device)
    want = dequantised(fused)
    if order == "before":
        fusedops.fuse(fused)
    quantise(fused)
    if order == "after":
        report = fusedops.fuse(fused)
        assert all("Int8" in s.reason for s in report.skipped)
        assert len(report.skipped) == 5
    x = torch.randn(7, D, device=device)
    torch.testing.assert_close(fused(x), want(x), rtol=1e-5, atol=1e-5)


def test_a_subclass_that_knows_nothing_says_so(device):
    w, x = Int8.of(torch.randn(D, D, device=device)), torch.randn(3, D, device=device)
    with pytest.raises(NotImplementedError, match="of Int8"):
        fusedops.add(x, w)


class Named(torch.Tensor):
    """Computes as torch.Tensor does."""


def test_a_subclass_without_ops_of_its_own_runs_ours(device):
    x = torch.randn(3, D, device=device).as_subclass(Named)
    w, _, v, _ = parameters((H, D), (H,), (D, H), (D,), device=device)
    with Calls() as calls, torch.no_grad():
        y = fusedops.mlp(x, w, None, v, None, "gelu")
        fusedops.linear(x, w)
    assert len(calls.ours) == 2
    want = fusedops.mlp(x.as_subclass(torch.Tensor), w, None, v, None, "gelu")
    assert torch.equal(y.as_subclass(torch.Tensor), want)


def test_a_torch_function_mode_is_no_subclass(device):
    w, _, v, _ = parameters((H, D), (H,), (D, H), (D,), device=device)
    with torch.device(device), Calls() as calls:
        fusedops.mlp(torch.randn(3, D), w, None, v, None, "gelu")
    assert len(calls.ours) == 1
