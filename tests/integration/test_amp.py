"""Mixed precision: autocast, GradScaler, float32 master weights."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import fusedops
from util import (
    ACTIVATIONS,
    HALVES,
    TorchMLP,
    assert_accurate,
    batch,
    linear_inputs,
    mlp,
    name,
    poisoned,
    torch_linear,
)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast_gives_the_dtypes_of_torch_and_better_gradients(device, dtype, activation):
    x, weight, bias, dy = linear_inputs(64, 48, 32, torch.float32, device)
    ours = [t.clone().requires_grad_() for t in (x, weight, bias)]
    theirs = [t.clone().requires_grad_() for t in (x, weight, bias)]
    with torch.autocast(device, dtype=dtype):
        y = fusedops.linear(*ours, activation)
        torch_y = torch_linear(*theirs, activation)
    assert y.dtype is dtype
    y.backward(dy.to(dtype))
    torch_y.backward(dy.to(torch_y.dtype))
    # The reference takes what the GEMM sees
    leaves = [t.detach().to(dtype).double().requires_grad_() for t in (x, weight, bias)]
    exact_y = torch_linear(*leaves, activation)
    exact = torch.autograd.grad(exact_y, leaves, dy.to(dtype).double())
    assert_accurate(y.detach(), torch_y.detach(), exact_y.detach())
    for mine, other, truth in zip(ours, theirs, exact, strict=True):
        assert mine.grad.dtype is other.grad.dtype is torch.float32
        # In the compute dtype's ulp: that is what the saved pre-activation is rounded to
        assert_accurate(mine.grad.to(dtype), other.grad.to(dtype), truth)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_master_weight_gradient_is_not_rounded_to_half(device, dtype):
    x, weight, bias, dy = linear_inputs(512, 24, 16, torch.float32, device)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    with torch.autocast(device, dtype=dtype):
        fusedops.linear(*leaves).backward(dy.to(dtype))
    exact = dy.to(dtype).double().t() @ x.detach().to(dtype).double()
    assert (weight.grad.double() - exact).norm() < 1e-5 * exact.norm()
    assert (bias.grad.double() - dy.to(dtype).double().sum(0)).norm() < 1e-5 * bias.grad.norm()


@pytest.mark.parametrize("shape", [(0, 8, 16), (4, 0, 16), (4, 8, 0)])
def test_autocast_with_empty_sizes(device, shape):
    leaves = [t.requires_grad_() for t in linear_inputs(*shape, torch.float32, device)[:3]]
    with torch.autocast(device, dtype=torch.bfloat16):
        y = fusedops.linear(*leaves, "gelu")
    with poisoned():
        y.float().sum().backward()
    for leaf in leaves:
        assert leaf.grad.dtype is torch.float32
        assert torch.isfinite(leaf.grad).all()
    if shape[0] == 0:
        assert not any(leaf.grad.any() for leaf in leaves)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast_without_grad(device, dtype):
    x, weight, bias, _ = linear_inputs(8, 12, 16, torch.float32, device)
    with torch.no_grad(), torch.autocast(device, dtype=dtype):
        y = fusedops.linear(x, weight, bias, "silu")
    half = [t.to(dtype) for t in (x, weight, bias)]
    assert torch.equal(y, fusedops.linear(*half, "silu"))


def test_autocast_rules_of_torch(device):
    x, weight, bias, _ = linear_inputs(8, 12, 16, torch.float64, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert fusedops.linear(x, weight, bias).dtype is torch.float64
        # What is half already changes to the autocast dtype
        half = [t.half() for t in (x, weight, bias)]
        assert fusedops.linear(*half).dtype is F.linear(*half).dtype is torch.bfloat16
        with torch.autocast(device, enabled=False):
            assert fusedops.linear(*half).dtype is torch.float16
    other = "cpu" if device == "cuda" else "cuda"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no CUDA here
        with torch.autocast(other, dtype=torch.bfloat16):
            assert fusedops.linear(x.float(), weight.float()).dtype is torch.float32


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("op", ["linear", "matmul"])
def test_backward_inside_autocast_stays_in_the_forward_dtype(device, op, create_graph):
    x, weight, bias, dy = linear_inputs(8, 12, 16, torch.float32, device)
    leaves = [t.requires_grad_() for t in (x, weight if op == "linear" else weight.t(), bias)]
    y = getattr(fusedops, op)(*leaves, "gelu")
    expected = torch.autograd.grad(y, leaves, dy, retain_graph=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        inside = torch.autograd.grad(y, leaves, dy, create_graph=create_graph)
    for got, want in zip(inside, expected, strict=True):
        assert got.dtype is torch.float32
        torch.testing.assert_close(got, want)


def test_second_derivative_under_autocast(device):
    x, weight, bias, _ = linear_inputs(8, 12, 16, torch.float32, device)

    def penalty(function):
        leaves = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
        with torch.autocast(device, dtype=torch.bfloat16):
            y = function(*leaves, "silu")
        (dx,) = torch.autograd.grad(y.float().sum(), leaves[0], create_graph=True)
        return torch.autograd.grad(dx.square().sum(), leaves)

    for got, want in zip(penalty(fusedops.linear), penalty(torch_linear), strict=True):
        torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", [None, *HALVES])
def test_training_follows_torch(device, dtype):
    ours = mlp(device)
    theirs = TorchMLP(ours).to(device)
    x, labels = batch(device)
    losses = []
    for model in (ours, theirs):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
        for _ in range(20):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    assert losses[0] < 0.7 * F.cross_entropy(mlp(device)(x), labels).item()
    assert losses[0] == pytest.approx(losses[1], rel=1e-3 if dtype is None else 0.05)


def test_grad_scaler_skips_a_step_that_overflows(device):
    model = mlp(device)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**40)
    x, labels = batch(device)
    with torch.autocast(device, dtype=torch.float16):
        loss = F.cross_entropy(model(x), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**39
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
