"""layer_norm and rms_norm of tensors whose dtypes differ: as torch computes or raises."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from rows.test_norm import call, every_norm, inputs
from util import DTYPES, HALVES, make, name

MIXES = [(a, b) for a in DTYPES for b in DTYPES if a is not b]


def outcome(module, norm, *inputs, **options):
    """The result, or the type of the error."""
    try:
        return call(module, norm, *inputs, **options)
    except RuntimeError as error:
        return type(error)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize(("dtype", "parameter_dtype"), MIXES, ids=str)
@every_norm
def test_parameters_of_another_dtype(device, norm, dtype, parameter_dtype):
    """What torch computes we compute, gradients too; what it raises we raise.

    Float32 parameters beside a half x, which torch takes on the CPU, we take everywhere.
    """
    x, weight, bias, dy = inputs(6, 64, dtype, device, parameter_dtype)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    want, y = (outcome(module, norm, *leaves, bias) for module in (F, fusedops))
    if want is RuntimeError:
        assert y is RuntimeError or (dtype in HALVES and parameter_dtype is torch.float32)
        return
    assert y.dtype is want.dtype
    grads = [torch.autograd.grad(out, leaves, dy) for out in (y, want)]
    assert [g.dtype for g in grads[0]] == [dtype, parameter_dtype]
    tolerance = 2e-2 if {dtype, parameter_dtype} & set(HALVES) else 1e-5
    for a, b in zip((y, *grads[0]), (want, *grads[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast_takes_the_parameters_that_torch_takes(device, dtype):
    x, weight, bias, dy = inputs(6, 64, torch.float32, device, dtype)
    other = HALVES[HALVES[0] is dtype]
    for a, w, b in [(x, weight, bias), (x.to(other), weight, bias), (x, weight, bias.float())]:
        leaves = [a.detach().requires_grad_(), w.detach().requires_grad_()]
        with torch.autocast(device, dtype=dtype):
            want, y = (outcome(module, "layer_norm", *leaves, b) for module in (F, fusedops))
        if want is RuntimeError:
            assert device == "cpu"
            assert y is RuntimeError
            continue
        assert y.dtype is want.dtype
        torch.testing.assert_close(y, want, rtol=1e-2, atol=1e-2)
        grads = [torch.autograd.grad(out, leaves, dy.to(out.dtype)) for out in (y, want)]
        for g, h in zip(*grads, strict=True):
            torch.testing.assert_close(g, h, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("autocast", [True, False])
@every_norm
def test_a_residual_stream_of_another_dtype(device, norm, autocast, dtype):
    x, weight, bias, dy = inputs(6, 64, dtype, device, torch.float32)
    stream = make(6, 64, dtype=torch.float32, device=device, seed=5)
    leaves = [t.requires_grad_() for t in (x, stream, weight)]
    with torch.autocast(device, dtype=dtype, enabled=autocast):
        y, total = call(fusedops, norm, x, weight, bias, residual=stream)
        want = call(F, norm, x + stream, weight, bias)
    assert y.dtype is total.dtype is want.dtype is torch.float32
    assert torch.equal(total, x + stream)
    torch.testing.assert_close(y, want)
    dy = dy.float()
    ours = torch.autograd.grad([y, total], leaves, [dy, dy])
    theirs = torch.autograd.grad([want, x + stream], leaves, [dy, dy])
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    with pytest.raises(RuntimeError, match=f"{norm}: residual"):
        call(fusedops, norm, x, weight, bias, residual=stream[:1])


def test_modules_take_what_torch_modules_take(device):
    x = make(5, 64, dtype=torch.float32, device=device)
    lin, norm = torch.nn.Linear(64, 64).to(device), fusedops.nn.LayerNorm(64).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y, total = norm(lin(x), x)
        torch.testing.assert_close(y, F.layer_norm(lin(x) + x, (64,)))
    assert y.dtype is total.dtype is torch.float32
    model = torch.nn.RMSNorm(64, dtype=torch.bfloat16, device=device)
    want = model(x)
    fusedops.fuse(model)
    torch.testing.assert_close(model(x), want)
