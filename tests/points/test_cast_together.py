"""Weights that are cast together: one launch each way, values and gradients of single casts."""

from __future__ import annotations

import pytest
import torch

from fusedops import points
from fusedops.points import _edge_checks


def weights_of(device, requires_grad=True):
    torch.manual_seed(0)
    shapes = ((8, 5), (12, 8), (9, 12))
    return [torch.randn(shape, device=device, requires_grad=requires_grad) for shape in shapes]


def test_values_and_gradients(device):
    weights = weights_of(device)
    weights.insert(1, torch.randn(200, 170, device=device, requires_grad=True))
    for dtype in (torch.float16, torch.bfloat16):
        made = _edge_checks.CastTogether.apply(dtype, *weights)
        for got, weight in zip(made, weights, strict=True):
            assert torch.equal(got, weight.to(dtype))
        grads = [torch.randn_like(t) for t in made]
        found = torch.autograd.grad(made, weights, grads)
        for got, grad in zip(found, grads, strict=True):
            assert got.dtype == torch.float32
            assert torch.equal(got, grad.float())
        some = _edge_checks.CastTogether.apply(dtype, *weights)
        found = torch.autograd.grad(some[1].sum(), weights, allow_unused=True)
        assert [grad is None for grad in found] == [True, False, True, True]


def test_gradients_of_gradients(device):
    weights = weights_of(device)
    made = _edge_checks.CastTogether.apply(torch.bfloat16, *weights)
    total = sum(t.float().pow(3).sum() for t in made)
    first = torch.autograd.grad(total, weights, create_graph=True)
    second = torch.autograd.grad(sum(t.sum() for t in first), weights)
    for got, weight in zip(second, weights, strict=True):
        rounded = weight.detach().bfloat16().float()
        torch.testing.assert_close(got, 6 * rounded, rtol=0.02, atol=0.02)


def test_batches_of_gradients(device):
    weights = weights_of(device)
    made = _edge_checks.CastTogether.apply(torch.bfloat16, *weights)
    grads = [torch.randn(3, *t.shape, device=device).bfloat16() for t in made]
    found = torch.autograd.grad(made, weights, grads, is_grads_batched=True)
    for got, grad in zip(found, grads, strict=True):
        assert torch.equal(got, grad.float())


@pytest.mark.gpu
@pytest.mark.parametrize("grad", [False, True])
def test_a_captured_layer_equals_the_same_without_a_graph(grad, monkeypatch):
    weights = weights_of("cuda", grad)
    xyz = torch.rand(2, 40, 3, device="cuda")
    features = torch.randn(2, 40, 2, device="cuda")
    idx = torch.randint(40, (2, 10, 6), device="cuda")
    calls, together = [], _edge_checks.cast_together
    monkeypatch.setattr(
        _edge_checks, "cast_together", lambda *args: calls.append(1) or together(*args)
    )

    def run():
        with torch.autocast("cuda", torch.bfloat16):
            y = points.set_abstraction(xyz, features, xyz[:, :10], idx, weights)
        return [y, *(torch.autograd.grad(y.float().sum(), weights) if grad else ())]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = run()
    torch.cuda.current_stream().wait_stream(side)
    assert not calls
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    graph.replay()
    assert len(calls) == 1 + grad
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
