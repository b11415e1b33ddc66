"""Elementwise ops of permuted operands: results lie in memory as the operand does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from util import make

OPS = torch.ops.fusedops
ARITY = {"add": 2, "fma": 3, "square": 1, "relu": 1}
PERMUTED = {
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "reversed": lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "gaps": lambda t: t.permute(0, 2, 3, 1).contiguous()[:, :, ::2].permute(0, 3, 1, 2),
    "one dimension of one": lambda t: t[:, :1].transpose(0, 2).contiguous().transpose(0, 2),
}


@pytest.mark.parametrize("layout", PERMUTED)
def test_results_keep_the_order_of_memory(device, layout):
    x = PERMUTED[layout](make(3, 5, 8, 6, dtype=torch.float32, device=device))
    y = make(*x.shape, dtype=torch.float32, device=device, seed=1)
    scale, bias = y[0, 0, 0].clone(), y[1, 0, 0].clone()
    strides = torch.empty_like(x).stride()
    for call, want in [
        (fusedops.relu, torch.relu(x)),
        (fusedops.square, x * x),
        (lambda t: fusedops.add(t, y), x + y),
        (lambda t: fusedops.add(bias, t), bias + x),
        (lambda t: fusedops.fma(t, y, bias), x * y + bias),
        (lambda t: fusedops.scale_bias_act(t, scale, bias, "silu"), F.silu(x * scale + bias)),
        (lambda t: fusedops.bias_act(t, bias), x + bias),
    ]:
        got = call(x)
        assert got.stride() == strides
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    assert fusedops.add(y, x).is_contiguous()


@pytest.mark.parametrize("layout", PERMUTED)
def test_gradients_of_permuted_inputs(device, layout):
    x = PERMUTED[layout](make(3, 5, 8, 6, dtype=torch.float64, device=device))
    dy = make(*x.shape, dtype=torch.float64, device=device, seed=1)
    bias = make(x.shape[-1], dtype=torch.float64, device=device, seed=2)
    for call, torchs in [
        (fusedops.relu, torch.relu),
        (fusedops.square, torch.square),
        (lambda t: fusedops.bias_act(t, bias, "gelu"), lambda t: F.gelu(t + bias)),
    ]:
        for gradient in (dy, torch.empty_like(x).copy_(dy)):
            leaf, other = (x.detach().clone().requires_grad_() for _ in range(2))
            (got,) = torch.autograd.grad(call(leaf), leaf, gradient)
            (want,) = torch.autograd.grad(torchs(other), other, gradient)
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("function", ARITY)
def test_fakes_of_permuted_inputs(device, function):
    ours, count = getattr(fusedops, function), ARITY[function]
    inputs = [make(3, 5, 8, 6, dtype=torch.float32, device=device, seed=s) for s in range(count)]
    for layout in PERMUTED.values():
        torch.library.opcheck(
            getattr(OPS, function).default, tuple(layout(t) for t in inputs),
            test_utils=("test_schema", "test_faketensor"),
        )  # fmt: skip
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    permuted = [t.permute(2, 0, 3, 1) for t in inputs]
    assert compiled(*permuted).stride() == ours(*permuted).stride()


def test_fakes_of_dimensions_of_one(device):
    """Strides of dimensions of one element do not count: such results are plainly contiguous."""
    x = torch.ones(2, 3, 1, 1, device=device)
    last = x.contiguous(memory_format=torch.channels_last)
    for y in (last, x.transpose(1, 2)):
        for call in (fusedops.relu, fusedops.square, lambda t: fusedops.add(t, t)):
            assert call(y).stride() == call(y.to("meta")).stride()
