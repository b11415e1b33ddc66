"""Gradients of norms over rows that no team of threads can hold: sums first, then all the rest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from util import DTYPES, assert_accurate, make, name, poisoned

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name)
# Whole vectors in every dtype, and rows that begin anywhere; some parts of rows and of columns.
SIZES = [(19, 68_096), (17, 70_001), (130, 68_096)]


def gradients(call, dy, *inputs):
    given = [x.clone().requires_grad_() for x in inputs]
    with poisoned():
        return torch.autograd.grad(call(*given), given, dy)


@pytest.mark.gpu
@every_dtype
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rms", [True, False], ids=["rms_norm", "layer_norm"])
def test_gradients_of_long_rows(rms, size, dtype):
    rows, n = size
    x = make(rows, n, dtype=dtype, device="cuda", seed=1) + 2
    weight, bias = (make(n, dtype=dtype, device="cuda", seed=s) for s in (2, 3))
    dy = make(rows, n, dtype=dtype, device="cuda", seed=4)
    if rms:
        inputs = [x, weight]

        def ours(x, weight):
            return fusedops.rms_norm(x, n, weight, 1e-5)

        def theirs(x, weight):
            return F.rms_norm(x, (n,), weight, 1e-5)
    else:
        inputs = [x, weight, bias]

        def ours(x, weight, bias):
            return fusedops.layer_norm(x, n, weight, bias, 1e-5)

        def theirs(x, weight, bias):
            return F.layer_norm(x, (n,), weight, bias, 1e-5)

    got, torchs = gradients(ours, dy, *inputs), gradients(theirs, dy, *inputs)
    exact = gradients(theirs, dy.double(), *(x.double() for x in inputs))
    for what, a, b, c in zip(("dx", "dweight", "dbias"), got, torchs, exact, strict=False):
        assert_accurate(a, b, c, what)
    for a, b in zip(gradients(ours, dy, *inputs), got, strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16], ids=name)
def test_residual_slices_and_float_weights(wide):
    """A gradient for the sum, float32 weights and gradients beside a half x, rows apart."""
    rows, n = 18, 68_096
    apart = make(rows, n + 16, dtype=torch.bfloat16, device="cuda", seed=1)
    x, dy = apart[:, :n], make(rows, n, dtype=wide, device="cuda", seed=2)
    residual = make(rows, n, dtype=torch.bfloat16, device="cuda", seed=3)
    weight = make(n, dtype=wide, device="cuda", seed=4)
    rstd = (x.float().square().mean(1) + 1e-5).rsqrt()
    with poisoned():
        dx, dweight = torch.ops.fusedops.rms_norm_backward(
            dy, residual, x, weight, rstd, 1, True, True
        )
    exact_x = x.double().requires_grad_()
    exact_weight = weight.double().requires_grad_()
    y = F.rms_norm(exact_x, (n,), exact_weight, 1e-5)
    want_x, want_weight = torch.autograd.grad(y, (exact_x, exact_weight), dy.double())
    torch.testing.assert_close(dx.double(), want_x + residual.double(), rtol=1e-2, atol=1e-2)
    # Sums of 18 products of that size, rounded to the weight's dtype
    close = 1e-5 if wide is torch.float32 else 2e-2
    torch.testing.assert_close(dweight.double(), want_weight, rtol=close, atol=20 * close)
    assert torch.ops.fusedops.rms_norm_backward(dy, None, x, weight, rstd, 1, True, False)[
        1
    ].shape == (0,)
