"""Gradients of the reductions: against torch, ties, zeros, higher orders, transforms, compile."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops.reference import reduce as reference
from reduce.test_reduce import values
from util import DTYPES, assert_accurate, make, name

DIFFERENTIABLE = (
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "norm_1",
    "norm_2",
    "norm_inf",
    "norm_minus_inf",
    "logsumexp",
)


def call(kind, x, dim=None, **options):
    """The public function of a reduction."""
    if kind.startswith("norm_"):
        p = {"1": 1, "2": 2, "inf": math.inf, "minus_inf": -math.inf}[kind.removeprefix("norm_")]
        return fusedops.norm(x, p, dim, **options)
    return getattr(fusedops, kind)(x, dim, **options)


@pytest.mark.parametrize("dim", [None, 0, 1, (0, 2)], ids=str)
@pytest.mark.parametrize("kind", [*DIFFERENTIABLE, "var", "std"])
def test_gradcheck(device, kind, dim):
    x = make(3, 4, 2, dtype=torch.float64, device=device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: call(kind, x, dim), x)
    assert torch.autograd.gradcheck(lambda x: call(kind, x, dim, keepdim=True), x)
    assert torch.autograd.gradgradcheck(lambda x: call(kind, x, dim), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("kind", [*DIFFERENTIABLE, "var", "std"])
def test_gradients_match_float64(device, kind, dtype):
    for shape, dims in [((33, 64), (1,)), ((33, 64), (0,)), ((6, 5, 7), (0, 2)), ((9, 1001), (1,))]:
        x = values(kind, shape, dims, dtype, device).requires_grad_()
        y = call(kind, x, dims)
        dy = make(*y.shape, dtype=dtype, device=device, seed=3)
        (dx,) = torch.autograd.grad(y, x, dy)

        def torchs(dtype, x=x, dims=dims, dy=dy):
            leaf = x.detach().to(dtype).requires_grad_()
            if kind in ("var", "std"):
                y = getattr(torch, kind)(leaf, dims)
            else:
                y = reference.reduce(leaf, kind, dims)
            return torch.autograd.grad(y, leaf, dy.to(dtype))[0]

        assert dx.dtype is dtype
        assert_accurate(dx, torchs(dtype), torchs(torch.float64), f"{kind} {shape} {dims}")


def test_ties_share_the_gradient(device):
    rows = [[1.0, 3, 3, 0], [2, 2, 2, 2], [-3, 3, 1, 2], [math.nan, 1, 2, 3], [-1, -2, -2, 4]]
    for kind, torchs in [
        ("amax", lambda x: x.amax(1)),
        ("amin", lambda x: x.amin(1)),
        ("norm_inf", lambda x: torch.linalg.vector_norm(x, math.inf, 1)),
    ]:
        ours_, theirs = (torch.tensor(rows, device=device, requires_grad=True) for _ in range(2))
        dy = torch.arange(1.0, 6, device=device)
        call(kind, ours_, 1).backward(dy)
        torchs(theirs).backward(dy)
        torch.testing.assert_close(ours_.grad[:3], theirs.grad[:3])
        assert torch.isnan(ours_.grad[3]).any()
        torch.testing.assert_close(ours_.grad[4], theirs.grad[4])


def test_gradient_of_prod_with_zeros(device):
    rows = [[2.0, 0, 3], [0, 0, 3], [1, 2, 3], [0, 0, 0]]
    leaves = [torch.tensor(rows, device=device, requires_grad=True) for _ in range(2)]
    dy = torch.tensor([1.0, 2, 3, 4], device=device)
    fusedops.prod(leaves[0], 1).backward(dy)
    leaves[1].prod(1).backward(dy)
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


def test_gradients_at_zero(device):
    x = torch.zeros(2, 5, device=device, requires_grad=True)
    for kind in ("norm_1", "norm_2", "norm_inf", "std"):
        (dx,) = torch.autograd.grad(call(kind, x, 1).sum(), x)
        assert torch.equal(dx, torch.zeros_like(dx)), kind


def test_no_grad_costs_no_graph(device):
    x = torch.ones(2, 3, device=device, requires_grad=True)
    with torch.no_grad():
        assert not fusedops.logsumexp(x).requires_grad
    for kind in ("argmax", "any", "count_nonzero"):
        assert not getattr(fusedops, kind)(x, 1).requires_grad
    assert fusedops.sum(x, dtype=torch.float64).requires_grad


def test_transforms_and_compile(device):
    x = make(3, 4, dtype=torch.float32, device=device)
    for kind in ("sum", "amax", "logsumexp", "var"):
        torchs = torch.func.vmap(lambda r, kind=kind: getattr(torch, kind)(r, 0))(x)
        torch.testing.assert_close(torch.func.vmap(lambda r, k=kind: call(k, r, 0))(x), torchs)

    def loss(x):
        return (fusedops.logsumexp(x, 1) * fusedops.std(x, 1) + fusedops.amax(x, 1)).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    a, b = (x.clone().requires_grad_() for _ in range(2))
    loss(a).backward()
    compiled(b).backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_std_of_a_constant_has_gradient_0(device):
    x = torch.ones(2, 3, device=device, requires_grad=True)
    (composed,) = torch.autograd.grad(fusedops.std(x, 1).sum(), x, create_graph=True)
    transformed = torch.func.grad(lambda x: fusedops.std(x, 1).sum())(x.detach())
    assert not composed.any()
    assert not transformed.any()


@pytest.mark.parametrize(("shape", "dim"), [((0, 3), 1), ((3, 0), 1), ((2, 0, 3), (0, 2))])
def test_composed_reductions_of_nothing(device, shape, dim):
    x = torch.zeros(shape, device=device, requires_grad=True)
    (composed,) = torch.autograd.grad(fusedops.prod(x, dim).sum(), x, create_graph=True)
    assert composed.shape == x.shape
    for op in (fusedops.prod, fusedops.any, fusedops.all):
        expected = op(x.detach(), dim)
        assert torch.equal(torch.func.vmap(lambda x, op=op: op(x, dim))(x[None])[0], expected)
    grad = torch.func.grad(lambda x: fusedops.bias_grad(x).sum())(x.detach())
    assert grad.shape == x.shape


def test_vmap_of_argmax_of_bool(device):
    x = make(4, 5, dtype=torch.float32, device=device) > 0
    for op in (fusedops.argmax, fusedops.argmin):
        assert torch.equal(torch.func.vmap(op)(x), torch.stack([op(row) for row in x]))
