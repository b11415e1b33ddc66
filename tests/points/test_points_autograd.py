"""Derivatives of every differentiable point op: compiled, by torch.func, in forward mode, of empty
clouds."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from fusedops import points as P
from util import make

IDX = torch.tensor([[[0, 1, 3], [5, -1, 2], [2, 2, 4], [1, 0, 0], [3, 4, 5], [4, -1, -1]]])


def ball(x):
    dist2 = P.ball_query(x, None, 1.5, 3, return_dist=True).dist2
    return dist2.masked_fill(dist2.isinf(), 0)


# Each uses its argument, (1, 6, 3), in every differentiable place.
CALLS = {
    "knn": lambda x: P.knn(x, None, 3).dist2,
    "knn_norm_1": lambda x: P.knn(x, x, 3, norm=1).dist2,
    "knn_packed": lambda x: P.knn(x[0], None, 3, offsets=torch.tensor([0, 6]).to(x.device)).dist2,
    "ball_query": ball,
    "group": lambda x: P.group(x, IDX.to(x.device), points=x, centers=x),
    "gather": lambda x: P.gather(x, IDX[..., 0].to(x.device)),
    "interpolate": lambda x: P.interpolate(x, IDX.to(x.device), x),
    "knn_interpolate": lambda x: P.knn_interpolate(x, x, x.flip(1) * 0.9),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def cloud(device):
    return make(1, 6, 3, dtype=torch.float64, device=device)


def loss(call):
    return lambda x: call(x).square().sum()


def gradient(function, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


@every_call
def test_compiled_gradient_of_a_repeated_tensor(device, call):
    compiled = torch.compile(loss(call), fullgraph=True, backend="aot_eager")
    x = cloud(device)
    torch.testing.assert_close(gradient(compiled, x), gradient(loss(call), x))


@every_call
def test_forward_mode(device, call):
    x, v = cloud(device), make(1, 6, 3, dtype=torch.float64, device=device, seed=1)
    step = 1e-6
    expected = (call(x + step * v) - call(x - step * v)) / (2 * step)
    torch.testing.assert_close(torch.func.jvp(call, (x,), (v,))[1], expected, atol=1e-6, rtol=1e-6)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(call(forward_ad.make_dual(x, v))).tangent
    torch.testing.assert_close(tangent, expected, atol=1e-6, rtol=1e-6)
    jvp = torch.compile(lambda x, v: torch.func.jvp(call, (x,), (v,))[1], backend="aot_eager")
    torch.testing.assert_close(jvp(x, v), expected, atol=1e-6, rtol=1e-6)


@every_call
def test_transforms(device, call):
    x = cloud(device)
    torch.testing.assert_close(torch.func.grad(loss(call))(x), gradient(loss(call), x))
    torch.testing.assert_close(torch.func.jacrev(call)(x), torch.func.jacfwd(call)(x))
    second = torch.autograd.functional.hessian(loss(call), x)  # by create_graph
    torch.testing.assert_close(torch.func.hessian(loss(call))(x), second)
    batched = torch.autograd.functional.hessian(loss(call), x, vectorize=True)
    torch.testing.assert_close(batched, second)
    pair = torch.stack([x, x.flip(1)])
    torch.testing.assert_close(torch.func.vmap(call)(pair)[1], call(pair[1]))


def test_transforms_of_halves_beside_float32(device):
    """Composed results have the dtypes of the ops'."""
    half = make(1, 6, 4, dtype=torch.float16, device=device)
    x, idx = cloud(device).float(), IDX.to(device)
    weights = x.softmax(-1)
    for call in (lambda f: P.group(f, idx, points=x), lambda f: P.interpolate(f, idx, weights)):
        y, expected = torch.func.vmap(call)(half[None])[0], call(half)
        assert y.dtype is expected.dtype
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_second_derivatives_of_empty_clouds(device, packed):
    queries = make(*((3, 3) if packed else (1, 3, 3)), dtype=torch.float32, device=device)
    empty = queries.new_zeros((0, 3) if packed else (1, 0, 3)).requires_grad_()
    queries.requires_grad_()
    sizes = {}
    if packed:
        sizes = {"offsets": torch.tensor([0, 0]), "query_offsets": torch.tensor([0, 3])}
        sizes = {name: size.to(device) for name, size in sizes.items()}
    results = (
        P.knn(empty, queries, 2, **sizes).dist2.nan_to_num(posinf=0.0),
        P.knn_interpolate(empty, empty, queries, **sizes),
    )
    for result in results:
        grads = torch.autograd.grad(result.sum(), (empty, queries), create_graph=True)
        assert grads[0].shape == empty.shape
        assert not grads[1].any()


def test_nan_reaches_no_composed_gradient(device):
    """A query without neighbours has no gradient, whatever row 0 holds."""
    x = torch.tensor([[[float("nan"), 0.0], [1.0, 2.0], [3.0, 1.0]]], device=device)

    def finite(x):
        dist2 = P.knn(x, None, 2).dist2
        return dist2.masked_fill(dist2.isinf(), 0).sum()

    expected = gradient(finite, x)
    assert expected.isfinite().all()
    assert torch.equal(torch.func.grad(finite)(x), expected)
    x.requires_grad_()
    assert torch.equal(torch.autograd.grad(finite(x), x, create_graph=True)[0], expected)
