"""Wide layers over edges and points by the kernels over rows, on a GPU."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops.points import BatchNorm, _edge_rows, feature_propagation, set_abstraction
from util import HALVES, generator, make

reference = fusedops.reference.set_abstraction
B, N, M, K = 2, 300, 60, 24
pytestmark = pytest.mark.gpu
WIDTHS = [(256, 272), (20, 196, 300), (264,), (136, 40)]


def layers_of(widths, columns, dtype, device, training):
    sizes = (columns, *widths)
    weights, norms = [], []
    for i, (a, b) in enumerate(zip(sizes, widths, strict=False)):
        weights.append(make(b, a, dtype=dtype, device=device, seed=i, scale=a**-0.5))
        gamma, beta, mean = (
            make(b, dtype=torch.float32, device=device, seed=10 * i + j) for j in range(1, 4)
        )
        norms.append((gamma, beta, mean, mean.abs() + 0.5))
    return weights, norms, training


def run(function, parts, layers, idx, dtype, activation):
    """The output, running statistics, and gradients, in float64."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weights, norms, training = layers
    xyz = parts[0].to(wide).requires_grad_()
    features = parts[1].to(dtype).requires_grad_()
    weights = [w.to(dtype).requires_grad_() for w in weights]
    given = [[t.to(wide).clone() for t in norm] for norm in norms]
    gammas = [norm[0].requires_grad_() for norm in given]
    batch = [BatchNorm(*norm, training) for norm in given]
    y = function(xyz, features, xyz[:, :M] + 0.01, idx, weights, None, batch, activation)
    dout = torch.linspace(0, 300, y.numel(), device=y.device, dtype=torch.float64).sin()
    inputs = [xyz, features, *weights, *gammas]
    grads = torch.autograd.grad(y, inputs, dout.view(y.shape).to(y.dtype))
    return [t.detach().double() for t in (y, *given[-1][2:], *grads)]


def drawn(dtype, device="cuda"):
    g = generator(device)
    xyz = torch.rand(B, N, 3, generator=g, device=device)
    features = make(B, N, 6, dtype=dtype, device=device)
    idx = torch.randint(0, N, (B, M, K), generator=g, device=device)
    idx[torch.rand(idx.shape, generator=g, device=device) < 0.3] = -1
    idx[0, 3], idx[1, 5, 4:] = -1, idx[1, 5, :1]
    return (xyz, features), idx


@pytest.mark.parametrize("activation", ["relu", None])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("dtype", HALVES)
def test_errors_are_those_of_the_composed_layers(monkeypatch, dtype, widths, training, activation):
    """And two runs are equal bit by bit."""
    parts, idx = drawn(dtype)
    layers = layers_of(widths, 9, dtype, "cuda", training)
    monkeypatch.setattr("fusedops.points._edge_fused.supports", lambda *_: False)
    ours = run(set_abstraction, parts, layers, idx, dtype, activation)
    again = run(set_abstraction, parts, layers, idx, dtype, activation)
    assert all(map(torch.equal, ours, again))
    monkeypatch.setattr(_edge_rows, "supports", lambda *_: False)
    composed = run(set_abstraction, parts, layers, idx, dtype, activation)
    exact = run(reference, parts, layers, idx, torch.float64, activation)
    # NOTE: a z that is nearly 0 may have another sign in one of both.
    slack = 1e-5 if activation is None else 0.03
    for i, (a, b, want) in enumerate(zip(ours, composed, exact, strict=True)):
        error, theirs = ((t - want).norm().item() for t in (a, b))
        assert error <= 1.1 * theirs + slack * want.norm().item(), (i, error, theirs)


@pytest.mark.parametrize("ratio", [1e3, 1e5])
@pytest.mark.parametrize("dtype", HALVES)
def test_statistics_of_channels_that_hardly_vary(dtype, ratio):
    scale = 1e3 / ratio if dtype is torch.float16 else 1.0
    drawn = torch.randn(5000, 24, generator=generator("cuda"), device="cuda")
    y = ((drawn + ratio) * scale).to(dtype)
    stats, _, _ = torch.ops.fusedops.edge_rows_statistics_(
        y, None, None, None, None, None, None, None, 0.0, 1e-12, True, 0
    )
    exact = y.double()
    mean, var = exact.mean(0), exact.var(0, correction=0)
    torch.testing.assert_close(stats[0].double(), mean, rtol=2e-7, atol=0)
    torch.testing.assert_close(
        stats[1].double().square().reciprocal(), var + 1e-12, rtol=1e-3, atol=0
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_propagation_and_heads_are_near_float64(dtype):
    points, known = (torch.rand(B, n, 3, device="cuda") for n in (N, 40))
    skip, deep = (make(B, n, c, dtype=dtype, device="cuda", seed=c) for n, c in ((N, 19), (40, 64)))
    lengths = torch.tensor([N, N - 37], device="cuda")
    weights, norms, _ = layers_of((128, 96), 83, dtype, "cuda", True)
    found = []
    for kind, wide in ((dtype, torch.float32), (torch.float64, torch.float64)):
        given = [BatchNorm(*(t.to(wide) for t in norm), True) for norm in norms]
        own = [t.to(wide) for t in (points, known)]
        rows = [t.to(kind) for t in (skip, deep)]
        matrices = [w.to(kind) for w in weights]
        y = feature_propagation(*own, *rows, matrices, norms=given, lengths=lengths)
        found.append(y.double())
    assert (found[0][1, N - 37 :] == 0).all()
    error = (found[0] - found[1]).norm() / found[1].norm()
    assert error <= 4 * torch.finfo(dtype).eps
    mlp = fusedops.nn.SharedMLP([64, 128, 20], device="cuda", dtype=dtype)
    for training in (True, False):
        mlp.train(training)
        x = make(400, 64, dtype=dtype, device="cuda")
        twin = fusedops.nn.SharedMLP([64, 128, 20], device="cuda", dtype=torch.float64)
        twin.load_state_dict(mlp.state_dict())
        twin.train(training)
        want = twin(x.double())
        assert (mlp(x).double() - want).norm() <= 8 * torch.finfo(dtype).eps * want.norm()


def test_a_second_derivative_is_the_composed_one():
    x = make(1, N, 8, dtype=torch.bfloat16, device="cuda").requires_grad_()
    weight = make(264, 8, dtype=torch.bfloat16, device="cuda", seed=1).requires_grad_()
    idx = torch.randint(0, N, (1, M, 5), generator=generator("cuda"), device="cuda")
    found = []
    for on in (x, x.double().detach().requires_grad_()):
        w = weight.to(on.dtype)
        norm = BatchNorm(
            torch.ones(264, device="cuda", dtype=on.dtype).to(
                torch.float64 if on.dtype == torch.float64 else torch.float32
            ),
            None,
            training=True,
        )
        y = set_abstraction(None, on, None, idx, [w], norms=[norm], activation=None)
        (gx,) = torch.autograd.grad(y.square().sum(), on, create_graph=True)
        found.append(torch.autograd.grad(gx.square().sum(), w)[0].double())
    assert (found[0] - found[1]).norm() <= 0.1 * found[1].norm()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("features", "channels"), [(8, 8), (264, 40), (16, 520)])
def test_rows_without_a_gradient_are_zeros(features, channels, dtype):
    x = make(77, features, dtype=dtype, device="cuda")
    dout = torch.zeros(77, channels, dtype=dtype, device="cuda")
    dout[1::4, channels - 1] = 1e-7  # subnormal in half precision, and no zero
    dout[2::4, 3] = float("nan")
    dout[3::4] = -0.0
    x[::4] = float("nan")
    found = torch.ops.fusedops.edge_rows_used(x, dout)
    expected = torch.where(dout.any(-1, keepdim=True), x, 0)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert not found[::4].any()
    assert not found[3::4].any()
