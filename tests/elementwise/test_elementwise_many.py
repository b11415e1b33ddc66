"""Elementwise ops of more elements and rows than small calls have."""

from __future__ import annotations

import pytest
import torch

import fusedops
from util import DTYPES, make, name

OPS = torch.ops.fusedops
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)


@every_dtype
@pytest.mark.parametrize("shape", [(700, 401), (90_001, 4), (4001, 9, 9), (20_000, 15)], ids=str)
def test_many_elements_with_strides(device, shape, dtype):
    """More elements than go one by one whatever their rows are; rows of a chunk and of many."""
    x, y = (make(*shape, dtype=dtype, device=device, seed=s) for s in (1, 2))
    bias = make(shape[-1], dtype=dtype, device=device, seed=3)
    for view in (lambda t: t[..., 1:], lambda t: t[..., ::2], lambda t: t[..., :-1]):
        a, b, c = view(x), view(y), view(bias)
        assert torch.equal(fusedops.add(a, b), a + b)
        assert torch.equal(fusedops.bias_act(a, c, "relu"), torch.relu(a + c))
    a, b = x.transpose(0, -1), y.transpose(0, -1).contiguous()
    assert torch.equal(fusedops.add(a, b), a + b)
    assert torch.equal(fusedops.add(b, a), b + a)


@pytest.mark.gpu
@every_dtype
@pytest.mark.parametrize("shape", [(7187, 323), (40_001, 67), (66_061, 371), (9000, 129)], ids=str)
def test_scale_bias_act_backward_of_many_odd_rows(shape, dtype):
    """Folds of any number of vectors, in one block or shared by some; many partial sums."""
    x, dy = (make(*shape, dtype=dtype, device="cuda", seed=s) for s in (1, 4))
    scale, bias = (make(shape[1], dtype=dtype, device="cuda", seed=s) for s in (2, 3))
    inputs = (x, scale, bias)
    got = OPS.scale_bias_act_backward(dy, *inputs, 0, True, True, True)
    wide = [t.double() for t in inputs]
    x, scale, bias = (t.requires_grad_() for t in wide)
    want = torch.autograd.grad(x * scale + bias, wide, dy.double())
    # A sum of 66,061 products, each near one, rounded to the dtype
    close = {2: 2e-2, 4: 1e-4, 8: 1e-10}[dtype.itemsize]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=close, atol=close * 20)
    again = OPS.scale_bias_act_backward(dy, *inputs, 0, True, True, True)
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
