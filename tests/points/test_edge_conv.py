"""EdgeConv against its definition: values, gradients, statistics, edge cases, errors in halves."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops.points import edge_conv, knn
from points.layer_cases import (
    NORMS,
    Call,
    assert_as_accurate_as_torch,
    compare,
    indices,
    make_layers,
)
from util import HALVES, assert_accurate, make, name

reference = fusedops.reference.edge_conv
B, N, K, FEATURES = 2, 15, 6, 4
WIDTHS = (6, 5, 7)


def pair(device, kind="batch_train", depth=1, features=None, idx=None, widths=WIDTHS):
    """The same call for us and for the definition."""
    if features is None:
        features = make(B, N, FEATURES, dtype=torch.float64, device=device)
    idx = indices(B, N, N, K, device) if idx is None else idx
    layers = make_layers(2 * features.shape[-1], widths[:depth], kind, torch.float64, device)
    return Call((features,), idx, layers), Call((features,), idx, layers)


@pytest.mark.parametrize("pool", ["max", "mean", "sum"])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_layers(device, depth, kind, pool):
    compare(edge_conv, reference, *pair(device, kind, depth), pool=pool)


@pytest.mark.parametrize("last_activation", [True, False])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_activations(device, activation, kind, last_activation):
    options = {"activation": activation, "last_activation": last_activation}
    compare(edge_conv, reference, *pair(device, kind, 2), **options)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("k", [0, 1, 40])
def test_neighbours(device, k, kind):
    compare(edge_conv, reference, *pair(device, kind, idx=indices(B, N, N, k, device)))


@pytest.mark.parametrize("kind", NORMS)
def test_one_point_and_one_feature(device, kind):
    features = make(2, 1, 1, dtype=torch.float64, device=device)
    idx = torch.zeros(2, 1, 3, dtype=torch.int64, device=device)
    compare(edge_conv, reference, *pair(device, kind, 2, features, idx), rtol=1e-6)


@pytest.mark.parametrize("kind", NORMS)
def test_all_points_equal(device, kind):
    """One leaf stands for all points: which equal neighbour wins is open."""

    def of_one(function):
        return lambda point, *rest, **o: function(point.expand(B, N, FEATURES), *rest, **o)

    point = make(B, 1, FEATURES, dtype=torch.float64, device=device)
    compare(of_one(edge_conv), of_one(reference), *pair(device, kind, 2, point), rtol=1e-6)


@pytest.mark.parametrize("kind", ["none", "batch_eval", "layer"])
def test_nan_stays_in_its_groups(device, kind):
    features = make(B, N, FEATURES, dtype=torch.float64, device=device)
    features[1, 2] = torch.nan
    call, exact = pair(device, kind, 2, features)
    torch.testing.assert_close(call(edge_conv), exact(reference), equal_nan=True)


@pytest.mark.parametrize("kind", NORMS)
def test_packed(device, kind):
    call, packed = pair(device, kind)
    packed.tensors = [t.detach().flatten(0, 1).requires_grad_() for t in packed.tensors]
    first = torch.arange(B, device=device)[:, None, None] * N
    packed.idx = torch.where((call.idx < 0) | (call.idx >= N), -1, call.idx + first).flatten(0, 1)
    out, flat = call(edge_conv), packed(edge_conv)
    torch.testing.assert_close(flat, out.flatten(0, 1))
    dout = make(*flat.shape, dtype=flat.dtype, device=device)
    got, want = packed.gradients(flat, dout), call.gradients(out, dout.reshape(out.shape))
    for key, grad in want.items():
        torch.testing.assert_close(got[key], grad.reshape(got[key].shape))


def test_strides(device):
    call, strided = pair(device, depth=2)
    expected = call(edge_conv)
    strided.tensors = [t.mT.contiguous().mT for t in strided.tensors]
    strided.weights = [w.t().contiguous().t() for w in strided.weights]
    torch.testing.assert_close(strided(edge_conv), expected)


def test_columns_are_those_of_dgcnn(device):
    """[f_j - f_i, f_i]: an identity in the first half gives differences, in the second centres."""
    features = make(1, N, 3, dtype=torch.float64, device=device)
    idx = torch.randint(N, (1, N, 1)).to(device)
    eye, zero = torch.eye(3, dtype=torch.float64, device=device), features.new_zeros(3, 3)
    differences = edge_conv(features, idx, [torch.cat([eye, zero], 1)], activation=None)
    torch.testing.assert_close(differences, features[0, idx[0, :, 0]][None] - features)
    centres = edge_conv(features, idx, [torch.cat([zero, eye], 1)], activation=None)
    torch.testing.assert_close(centres, features)


SIZES = {  # clouds, points, neighbours, features, widths
    "first": (2, 100, 20, 3, (64,)),
    "second": (1, 100, 20, 64, (64,)),
    "two layers": (1, 64, 12, 16, (64, 64)),
    "wide": (1, 64, 10, 128, (256,)),
}


def draws_of(size, kind, dtype, device, count=6):
    clouds, points, k, columns, widths = size
    draws = []
    for seed in range(0, 100 * count, 100):
        features = make(clouds, points, columns, dtype=dtype, device=device, seed=seed)
        idx = knn(features.float(), None, k).idx
        layers = make_layers(2 * columns, widths, kind, dtype, device, seed=seed + 10)
        draws.append(((features,), idx, layers))
    return draws


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_halves(device, dtype, size, kind):
    assert_as_accurate_as_torch(edge_conv, reference, draws_of(size, kind, dtype, device))


@pytest.mark.parametrize("kind", ["none", "batch_eval", "layer"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_inference_in_halves(device, dtype, size, kind):
    for tensors, idx, layers in draws_of(size, kind, dtype, device, 2):
        exact = Call(tensors, idx, layers, torch.float64)
        with torch.no_grad():
            ours, eager = edge_conv(*tensors, idx, *layers), reference(*tensors, idx, *layers)
            assert_accurate(ours, eager, exact(reference))


@pytest.mark.parametrize("kind", NORMS)
def test_float32(device, kind):
    draws = draws_of(SIZES["two layers"], kind, torch.float32, device)
    assert_as_accurate_as_torch(edge_conv, reference, draws)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast(device, dtype):
    ((features,), idx, layers) = draws_of(SIZES["second"], "batch_train", torch.float32, device)[0]
    call = Call((features,), idx, layers)
    with torch.autocast(device, dtype):
        out = call(edge_conv)
    weights, biases, norms = layers
    halves = Call((features.to(dtype),), idx, ([w.to(dtype) for w in weights], biases, norms))
    expected = halves(edge_conv)
    assert out.dtype is dtype
    assert torch.equal(out, expected)
    want = halves.gradients(expected, expected.detach())
    for key, grad in call.gradients(out, out.detach()).items():
        assert grad.dtype is torch.float32
        torch.testing.assert_close(grad, want[key].float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", NORMS)
def test_two_runs_are_bitwise_equal(device, kind):
    results = []
    for _ in range(2):
        call, _ = pair(device, kind, 2)
        out = call(edge_conv)
        results.append([out, *call.gradients(out, out.detach()).values(), *call.running()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_errors(device):
    features = torch.zeros(B, N, FEATURES, device=device)
    idx = torch.zeros(B, N, K, dtype=torch.int64, device=device)
    weight = torch.zeros(5, 2 * FEATURES, device=device)
    wrong = [
        (TypeError, r"edge_conv: features must be a Tensor; got list", ([1.0], idx, [weight])),
        (RuntimeError, r"edge_conv: idx must be \(2, 15, K\); got \(2, 3, 6\)",
         (features, idx[:, :3], [weight])),
        (RuntimeError, r"edge_conv: idx must be \(Q, K\); got \(2, 15, 6\)",
         (features[0], idx, [weight])),
        (RuntimeError, r"edge_conv: weights\[0\] must be \(C, 8\); got \(5, 3\)",
         (features, idx, [weight[:, :3]])),
        (RuntimeError, r"edge_conv: features must be float32 like the weights; got "
         r"float64", (features.double(), idx, [weight])),
        (ValueError, r"edge_conv: pool must be one of 'max', 'mean', 'sum'; got 'median'",
         (features, idx, [weight], None, None, "relu", "median")),
    ]  # fmt: skip
    for kind, message, arguments in wrong:
        with pytest.raises(kind, match=f"^{message}"):
            edge_conv(*arguments)
    assert math.isfinite(edge_conv(features, idx, [weight]).sum().item())
