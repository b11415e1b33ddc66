"""Derivatives of the layers: any order, any subset of arguments, compiled, by torch.func."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch._dynamo

from fusedops.points import edge_conv, feature_propagation, set_abstraction
from points.layer_cases import NORMS, Call, indices, make_layers
from util import make

B, N, M, K = 2, 9, 4, 5
DIM, FEATURES, WIDTHS = 3, 2, (4, 3)


def call_of(layer, device, kind="batch_train", dtype=torch.float64, widths=WIDTHS):
    """A layer's function and arguments."""
    xyz = make(B, N, DIM, dtype=dtype, device=device)
    features = make(B, N, FEATURES, dtype=dtype, device=device, seed=1)
    if layer == "set_abstraction":
        tensors = (xyz, features, make(B, M, DIM, dtype=dtype, device=device, seed=2))
        function, idx, columns = set_abstraction, indices(B, N, M, K, device), DIM + FEATURES
    elif layer == "edge_conv":
        tensors, function = (features,), edge_conv
        idx, columns = indices(B, N, N, K, device), 2 * FEATURES
    else:
        known = make(B, M, FEATURES + 1, dtype=dtype, device=device, seed=2)
        tensors = (xyz, make(B, M, DIM, dtype=dtype, device=device, seed=3), features, known)
        function, idx, columns = feature_propagation, None, 2 * FEATURES + 1
    layers = make_layers(columns, widths, kind, dtype, device)
    for norm in layers[2]:
        if norm is not None:  # at a weight of 0 the winner jumps
            norm.weight[norm.weight == 0] = 0.3
    return function, Call(tensors, idx, layers)


LAYERS = ("set_abstraction", "edge_conv", "feature_propagation")
every_layer = pytest.mark.parametrize("layer", LAYERS)


def as_function(function, call, **options):
    """(leaves, a function of them)."""
    leaves = list(call.named_leaves().values())

    def run(*values):
        by_id = {id(leaf): value for leaf, value in zip(leaves, values, strict=True)}

        def new(t):
            return by_id.get(id(t), t)

        norms = [
            n if n is None else n._replace(weight=new(n.weight), bias=new(n.bias))
            for n in call.norms
        ]
        arguments = [new(t) for t in call.tensors] + ([] if call.idx is None else [call.idx])
        weights, biases = ([new(t) for t in ts] for ts in (call.weights, call.biases))
        return function(*arguments, weights, biases, norms, **options)

    return leaves, run


@every_layer
@pytest.mark.parametrize("kind", NORMS)
def test_gradcheck(device, layer, kind):
    function, call = call_of(layer, device, kind)
    leaves, run = as_function(function, call, activation="tanh")
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@every_layer
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("depth", [1, 2])
def test_gradgradcheck(device, layer, kind, depth):
    function, call = call_of(layer, device, kind, widths=WIDTHS[:depth])
    leaves, run = as_function(function, call, activation="tanh")
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True, atol=1e-4)


@every_layer
@pytest.mark.parametrize("pool", ["max", "mean"])
def test_gradgradcheck_of_statistics_used_twice(device, layer, pool):
    """A norm in training before another layer, and under each pool."""
    if layer == "feature_propagation":
        pytest.skip("pools nothing")
    function, call = call_of(layer, device)
    leaves, run = as_function(function, call, activation="gelu", pool=pool)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True, atol=1e-4)


@every_layer
@pytest.mark.parametrize("kind", NORMS)
def test_every_subset_of_gradients(device, layer, kind):
    function, call = call_of(layer, device, kind)
    out = call(function)
    dout = make(*out.shape, dtype=out.dtype, device=device)
    full = call.gradients(out, dout)
    names = list(full)
    pairs = list(itertools.combinations(names, 2))[:: 1 + len(names) // 4]
    for subset in [(name,) for name in names] + pairs:
        _, again = call_of(layer, device, kind)
        for name, leaf in again.named_leaves().items():
            leaf.requires_grad_(name in subset)
        got = again(function)
        torch.testing.assert_close(got, out)
        if not got.requires_grad:
            assert not any(full[name].any() for name in subset)
            continue
        leaves = [again.named_leaves()[name] for name in subset]
        for name, grad in zip(subset, torch.autograd.grad(got, leaves, dout), strict=True):
            torch.testing.assert_close(grad, full[name])
    _, again = call_of(layer, device, kind)
    for leaf in again.named_leaves().values():
        leaf.requires_grad_(False)
    torch.testing.assert_close(again(function), out.detach())


@every_layer
@pytest.mark.parametrize("kind", NORMS)
def test_compiled(device, layer, kind):
    """One graph, with gradients and running statistics."""
    torch._dynamo.reset()
    function, call = call_of(layer, device, kind)
    _, traced = call_of(layer, device, kind)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        expected, out = call(function), traced(compiled)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(traced.running(), call.running())
    dout = make(*out.shape, dtype=out.dtype, device=device)
    torch.testing.assert_close(traced.gradients(out, dout), call.gradients(expected, dout))


@every_layer
def test_compiled_under_autocast(device, layer):
    torch._dynamo.reset()
    function, call = call_of(layer, device, dtype=torch.float32)
    _, traced = call_of(layer, device, dtype=torch.float32)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16):
        expected, out = call(function), traced(compiled)
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)


@every_layer
@pytest.mark.parametrize("kind", ["none", "batch_eval", "layer"])
def test_transforms(device, layer, kind):
    function, call = call_of(layer, device, kind)
    leaves, run = as_function(function, call, activation="tanh")
    leaves = tuple(leaf.detach() for leaf in leaves)
    out = run(*leaves)
    dout = make(*out.shape, dtype=out.dtype, device=device)
    tangents = tuple(make(*t.shape, dtype=t.dtype, device=device, seed=7) for t in leaves)
    pulled = torch.func.vjp(run, *leaves)[1](dout)
    attached = [leaf.clone().requires_grad_() for leaf in leaves]
    expected = torch.autograd.grad(run(*attached), attached, dout)
    torch.testing.assert_close(pulled, expected)
    _, pushed = torch.func.jvp(run, leaves, tangents)
    products = [(a * b).sum() for a, b in zip(expected, tangents, strict=True)]
    torch.testing.assert_close((pushed * dout).sum(), torch.stack(products).sum())


@every_layer
def test_running_statistics_move_once_a_forward(device, layer):
    """Not in backward, and not in a second one."""
    function, call = call_of(layer, device)
    out = call(function)
    after = [t.clone() for t in call.running()]
    leaves = list(call.named_leaves().values())
    grads = torch.autograd.grad(out.square().sum(), leaves, create_graph=True, allow_unused=True)
    sum(g.square().sum() for g in grads if g is not None).backward()
    assert all(torch.equal(a, b) for a, b in zip(after, call.running(), strict=True))


@every_layer
def test_inference_mode(device, layer):
    function, call = call_of(layer, device, "batch_eval")
    expected = call(function)
    with torch.inference_mode():
        torch.testing.assert_close(call(function), expected.detach())


@every_layer
@pytest.mark.parametrize("kind", NORMS)
def test_batches_of_gradients(device, layer, kind):
    """What jacobian(vectorize=True) and is_grads_batched ask for, which torch batches itself."""
    function, call = call_of(layer, device, kind)
    leaves, run = as_function(function, call)
    y = run(*leaves)
    dys = make(3, *y.shape, dtype=y.dtype, device=device, seed=5)
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    batched = torch.autograd.grad(y, leaves, dys, is_grads_batched=True, **options)
    for i, dy in enumerate(dys):
        for got, want in zip(batched, torch.autograd.grad(y, leaves, dy, **options), strict=True):
            torch.testing.assert_close(got[i], want)
