"""mlp and gated_mlp in training: mixed precision, main_grad, compile, export, graphs, memory."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import fusedops
from gemm.mlp_util import (
    KINDS,
    every_kind,
    exact,
    inputs,
    leaves_of,
    ours,
    present,
    step,
    torchs,
)
from util import (
    HALVES,
    assert_accurate,
    captured,
    name,
)

# ---- mixed precision ----


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@every_kind
def test_autocast(device, kind, dtype):
    arguments, residual, dy = inputs(kind, torch.float32, device)
    results = []
    for function in (ours, torchs):
        *args, res = leaves_of([*arguments, residual])
        with torch.autocast(device, dtype=dtype):
            y = function(kind, args, "silu", res)
        assert y.dtype is torch.float32  # the residual's: torch promotes the sum
        results.append([y.detach(), *torch.autograd.grad(y, present([*args, res]), dy)])
    half = [None if t is None else t.to(dtype).double() for t in arguments]
    truth = step(exact, kind, half, "silu", residual.double(), dy.double())
    for mine, other, want in zip(*results, truth, strict=True):
        assert mine.dtype is other.dtype is torch.float32
        assert_accurate(mine.to(dtype), other.to(dtype), want)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@every_kind
def test_autocast_without_grad_and_with_recompute(device, kind, dtype):
    arguments, residual, _ = inputs(kind, torch.float32, device)
    half = [None if t is None else t.to(dtype) for t in [*arguments, residual]]
    expected = ours(kind, half[:-1], "gelu", half[-1])
    leaves = leaves_of(arguments)
    with torch.autocast(device, dtype=dtype):
        with torch.no_grad():
            assert torch.equal(ours(kind, arguments, "gelu", half[-1]), expected)
        y = ours(kind, leaves, "gelu", half[-1], recompute=True)
    assert torch.equal(y.detach(), expected)
    y.float().sum().backward()
    assert all(t.grad.dtype is torch.float32 for t in present(leaves))


@every_kind
def test_grad_scaler_training_follows_torch(device, kind):
    arguments, _, _ = inputs(kind, torch.float32, device)
    losses = []
    for function in (ours, torchs):
        x, *parameters = leaves_of(t if t is None else t.clone() for t in arguments)
        optimizer = torch.optim.SGD(present(parameters), lr=0.5)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                loss = function(kind, [x, *parameters], "gelu").float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    assert losses[0] < 0.9
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


# ---- main_grad ----


def with_main_grad(tensors, **attributes):
    for t in tensors:
        t.main_grad = torch.ones(t.shape, device=t.device)
        for key, value in attributes.items():
            setattr(t, key, value)


def matrices(arguments):
    return [t for t in arguments[1:] if t is not None and t.dim() == 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "linear"])
def test_main_grad_accumulates_and_overwrites(device, kind, dtype, retain):
    if kind == "linear":
        (x, w, b, *_), _, _ = inputs("mlp", dtype, device)
        arguments, call = [x, w, b], lambda args: fusedops.linear(*args, "relu")
    else:
        arguments, _, _ = inputs(kind, dtype, device, residual=False)
        call = lambda args: ours(kind, args, "relu")  # noqa: E731
    plain = leaves_of(arguments)
    call(plain).float().square().sum().backward()
    leaves = leaves_of(arguments)
    with_main_grad(matrices(leaves))
    for _ in range(2):
        call(leaves).float().square().sum().backward(retain_graph=retain)
    for mine, other in zip(matrices(leaves), matrices(plain), strict=True):
        assert mine.grad is None
        assert not hasattr(mine, "grad_added_to_main_grad")
        torch.testing.assert_close(mine.main_grad, 1 + 2 * other.grad.float(), rtol=1e-2, atol=1e-1)
    torch.testing.assert_close(leaves[0].grad, 2 * plain[0].grad)

    with_main_grad(matrices(leaves), overwrite_main_grad=True, grad_added_to_main_grad=False)
    call(leaves).float().square().sum().backward(retain_graph=retain)
    for mine, other in zip(matrices(leaves), matrices(plain), strict=True):
        assert mine.grad_added_to_main_grad is True
        assert mine.grad.dtype is dtype
        assert not mine.grad.any()
        torch.testing.assert_close(mine.main_grad, other.grad.float(), rtol=1e-2, atol=1e-1)


def test_main_grad_of_a_weight_used_twice_is_written_once(device):
    x, w = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device, requires_grad=True)
    calls = [
        lambda: fusedops.mlp(x, w, None, w, None, "relu"),
        lambda: fusedops.gated_mlp(x, w, w, w),
    ]
    for call in calls:
        (plain,) = torch.autograd.grad(call().sum(), w)
        w.main_grad, w.overwrite_main_grad = torch.ones_like(w), True
        call().sum().backward()
        torch.testing.assert_close(w.main_grad, plain, rtol=1e-5, atol=1e-5)
        del w.main_grad


def test_main_grad_keeps_what_bf16_would_lose(device):
    # 256 + 1 is 256 in bf16
    x = torch.ones(1, 8, device=device, dtype=torch.bfloat16)
    w = torch.zeros(8, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    w.main_grad = torch.full((8, 8), 256.0, device=device)
    fusedops.linear(x, w).sum().backward()
    assert torch.equal(w.main_grad, torch.full_like(w.main_grad, 257.0))


def test_main_grad_is_checked(device):
    arguments, _, _ = inputs("mlp", torch.float32, device)
    leaves = leaves_of(arguments)
    leaves[1].main_grad = torch.zeros_like(leaves[1], dtype=torch.bfloat16)
    y = ours("mlp", leaves, "relu")
    with pytest.raises(RuntimeError, match=r"main_grad must be a float32 tensor .* bfloat16"):
        y.sum().backward()


# ---- compile, export, checkpoint, graphs ----


@pytest.mark.parametrize("recompute", [False, True])
@every_kind
def test_compile_fullgraph(device, kind, recompute):
    arguments, residual, dy = inputs(kind, torch.float32, device)
    torch._dynamo.reset()
    backend = "inductor" if device == "cuda" else "aot_eager"

    def call(kind, args, activation, res):
        return ours(kind, args, activation, res, recompute)

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    got = step(compiled, kind, arguments, "gelu", residual, dy)
    want = step(ours, kind, arguments, "gelu", residual, dy)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=5e-5)


@every_kind
def test_compile_with_dynamic_rows(device, kind):
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (8, 12, 24):
        arguments, residual, dy = inputs(kind, torch.float32, device, ((rows,), 16, 24, 8))
        got = step(compiled, kind, arguments, "gelu", residual, dy)
        want = step(ours, kind, arguments, "gelu", residual, dy)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


@every_kind
def test_export(device, kind):
    arguments, residual, _ = inputs(kind, torch.float32, device)

    class Model(torch.nn.Module):
        def forward(self, *tensors):
            given = iter(tensors)
            args = [None if t is None else next(given) for t in arguments]
            return ours(kind, args, "gelu", next(given))

    tensors = (*present(arguments), residual)
    program = torch.export.export(Model(), tensors)
    ops = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert f"fusedops.{'mlp' if kind == 'mlp' else 'gated_mlp'}_forward.default" in ops
    torch.testing.assert_close(program.module()(*tensors), Model()(*tensors))


# ---- what backward may overwrite ----


@every_kind
def test_batched_gradients(device, kind):
    arguments, _, dy = inputs(kind, torch.float32, device, residual=False)
    leaves = leaves_of(arguments)
    batch = torch.stack([dy, 2 * dy])
    got = torch.autograd.grad(ours(kind, leaves, "silu"), leaves[0], batch, is_grads_batched=True)
    want = torch.autograd.grad(ours(kind, leaves, "silu"), leaves[0], dy)
    torch.testing.assert_close(got[0], torch.stack([want[0], 2 * want[0]]))


@every_kind
def test_a_saved_tensor_of_the_callers_own_is_left_alone(device, kind):
    arguments, _, dy = inputs(kind, torch.float32, device, residual=False)
    leaves = leaves_of(arguments)
    y = ours(kind, leaves, "silu")
    kept = []

    def keep(tensor):
        kept.append((tensor.detach().clone(), tensor.detach().clone()))
        return len(kept) - 1

    present = [t is not None for t in y.grad_fn.saved_tensors]
    for saved in itertools.compress(y.grad_fn._raw_saved_tensors, present):
        saved.register_hooks(keep, lambda i: kept[i][0])
    y.backward(dy)
    assert kept
    assert all(torch.equal(*pair) for pair in kept)


@pytest.mark.parametrize("reentrant", [True, False])
@every_kind
def test_checkpointing(device, kind, reentrant):
    arguments, residual, dy = inputs(kind, torch.float32, device)

    def call(kind, args, activation, res):
        return checkpoint(lambda *a: ours(kind, a, activation, res), *args, use_reentrant=reentrant)

    # NOTE: a reentrant checkpoint has no gradients for torch.autograd.grad
    for function in (call, ours):
        *args, res = leaves = leaves_of([*arguments, residual])
        function(kind, args, "gelu", res).backward(dy)
        grads = [t.grad for t in present(leaves)]
        if function is call:
            first = grads
    assert all(torch.equal(a, b) for a, b in zip(first, grads, strict=True))


@pytest.mark.gpu
@every_kind
def test_a_step_in_a_cuda_graph(kind):
    arguments, residual, dy = inputs(kind, torch.bfloat16, "cuda")
    *args, res = leaves = leaves_of([*arguments, residual])

    def run():
        y = ours(kind, args, "gelu", res)
        return [y.detach(), *torch.autograd.grad(y, present(leaves), dy)]

    want = run()
    graph, got = captured(run)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.gpu
@every_kind
def test_large_steps_repeat_bitwise_and_stay_under_the_memory_bar(kind):
    shape = ((8192,), 512, 2048 if kind == "mlp" else 1408, 512)
    arguments, _, dy = inputs(kind, torch.bfloat16, "cuda", shape, bias=kind == "mlp")
    leaves = leaves_of(arguments)

    def peak(function):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = function(kind, leaves, "silu")
        grads = torch.autograd.grad(y, present(leaves), dy)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, [y.detach(), *grads]

    eager, _ = peak(torchs)
    mine, first = peak(ours)
    assert mine <= 0.75 * eager
    _, again = peak(ours)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("activation", ["relu", "relu2"])
def test_an_infinite_gradient_stops_at_a_closed_gate(device, activation):
    one = torch.ones(1, 1, device=device)
    gate = (-one).requires_grad_()
    fusedops.gated_mlp(one, gate, one, one, activation=activation).backward(math.inf * one)
    assert gate.grad.item() == 0
