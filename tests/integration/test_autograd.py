"""What autograd sees of fusedops.linear: combinations, what is saved, higher derivatives."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch

import fusedops
from util import ACTIVATIONS, SMOOTH, linear_inputs, poisoned, torch_linear


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_requires_grad_combinations(device, activation, needs):
    tensors = linear_inputs(17, 24, 40, torch.float32, device)
    dy = tensors[3]
    leaves = [t.clone().requires_grad_(need) for t, need in zip(tensors[:3], needs, strict=True)]
    full = [t.clone().requires_grad_() for t in tensors[:3]]
    with poisoned():
        y = fusedops.linear(*leaves, activation)
        assert y.requires_grad == any(needs)
        if any(needs):
            y.backward(dy)
    fusedops.linear(*full, activation).backward(dy)
    for leaf, whole, need in zip(leaves, full, needs, strict=True):
        assert (leaf.grad is not None) == need
        if need:
            torch.testing.assert_close(leaf.grad, whole.grad)


def saved_shapes(y):
    """The shapes that the graph node of y keeps alive."""
    node = y.grad_fn
    return sorted(tuple(t.shape) for t in node.saved_tensors if t is not None)


@pytest.mark.parametrize(
    ("activation", "needs", "saved"),
    [
        ("none", (True, False, False), [(3, 4)]),
        ("none", (False, True, False), [(2, 4)]),
        ("none", (False, False, True), []),
        ("relu", (False, False, True), [(2, 3)]),
        ("relu", (True, False, False), [(2, 3), (3, 4)]),
        ("gelu", (False, True, True), [(2, 3), (2, 4)]),
        ("gelu", (True, True, True), [(2, 3), (2, 4), (3, 4)]),
    ],
)
def test_saves_only_what_backward_reads(device, activation, needs, saved):
    tensors = linear_inputs(2, 3, 4, torch.float32, device)[:3]
    leaves = [t.requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
    assert saved_shapes(fusedops.linear(*leaves, activation)) == saved


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("activation", [*SMOOTH, "relu2"])
def test_gradcheck(device, activation, bias):
    x, weight, b, _ = linear_inputs(6, 5, 4, torch.float64, device)
    leaves = [x.view(2, 3, 4).requires_grad_(), weight.requires_grad_()]
    if bias:
        leaves.append(b.requires_grad_())

    def run(x, weight, bias=None):
        return fusedops.linear(x, weight, bias, activation)

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)


def test_third_derivative(device):
    x, weight, bias, _ = linear_inputs(3, 2, 4, torch.float64, device)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]

    def second(function):
        first = torch.autograd.grad(function(*leaves, "silu").sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves, create_graph=True)

    ours = torch.autograd.grad(sum(g.sum() for g in second(fusedops.linear)), leaves)
    theirs = torch.autograd.grad(sum(g.sum() for g in second(torch_linear)), leaves)
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3))[1:])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_second_derivatives_are_those_of_torch(device, activation, needs):
    tensors = linear_inputs(5, 3, 4, torch.float64, device)
    leaves = [t.requires_grad_(need) for t, need in zip(tensors[:3], needs, strict=True)]
    wanted = [t for t in leaves if t.requires_grad]
    dy = tensors[3].requires_grad_()

    def both(function):
        y = function(*leaves, activation)
        first = torch.autograd.grad(y, wanted, dy, create_graph=True)
        # y itself and its gradients: the pre-activation is reached on both ways
        penalty = y.square().sum() + sum(g.square().sum() for g in first)
        return *first, *torch.autograd.grad(penalty, [*wanted, dy])

    for got, want in zip(both(fusedops.linear), both(torch_linear), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_torch_func_transforms(device, activation):
    x, weight, bias, _ = linear_inputs(4, 3, 5, torch.float64, device)
    func = torch.func

    def answers(function):
        def loss(weight, x):
            return function(x, weight, bias, activation).square().sum()

        return (
            func.grad(loss)(weight, x),
            func.vmap(func.grad(loss), (None, 0))(weight, x),
            func.jacrev(lambda x: function(x, weight, None, activation))(x),
            func.hessian(loss)(weight, x),
            *func.jvp(lambda x: function(x, weight, bias, activation), (x,), (x + 1,)),
        )

    for got, want in zip(answers(fusedops.linear), answers(torch_linear), strict=True):
        torch.testing.assert_close(got, want)


def test_forward_mode_derivatives_are_not_lost(device):
    x, weight, bias, _ = linear_inputs(4, 3, 5, torch.float64, device)
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x + 1)
        for y in (fusedops.linear(dual, weight, bias), fusedops.matmul(dual, weight.t(), bias)):
            tangent = forward_ad.unpack_dual(y).tangent
            torch.testing.assert_close(tangent, (x + 1) @ weight.t())


def test_meta_tensors(device):
    x, weight, bias, _ = (t.to("meta") for t in linear_inputs(4, 3, 5, torch.float32, device))
    weight.requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):  # does not reach the meta device
        y = fusedops.linear(x, weight, bias, "gelu")
    assert (y.shape, y.dtype, y.device.type) == ((4, 3), torch.float32, "meta")
    for create_graph in (False, True):
        y = fusedops.linear(x, weight, bias, "gelu")
        (dw,) = torch.autograd.grad(y.sum(), weight, create_graph=create_graph)
        assert dw.shape == (3, 5)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_a_dropped_graph_is_freed_at_once(device, activation):
    x, weight, bias, _ = linear_inputs(4, 3, 5, torch.float32, device)
    hidden = x.requires_grad_() * 2
    seen = weakref.ref(hidden)
    gc.disable()
    try:
        y = fusedops.linear(hidden, weight.requires_grad_(), bias, activation)
        del hidden
        assert seen() is not None or y.grad_fn is not None
        del y
        assert seen() is None
    finally:
        gc.enable()


def test_weight_changed_before_backward_is_an_error(device):
    x, weight, bias, _ = linear_inputs(2, 3, 4, torch.float32, device)
    x.requires_grad_()
    y = fusedops.linear(x, weight, bias, "relu")
    weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
