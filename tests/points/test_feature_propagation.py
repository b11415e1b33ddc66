"""Feature propagation against its definition: values, gradients, clouds, errors in halves."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops.points import feature_propagation, knn_interpolate
from points.layer_cases import NORMS, Call, assert_as_accurate_as_torch, compare, make_layers
from util import HALVES, make, name

reference = fusedops.reference.feature_propagation
B, N, M, KNOWN, SKIP = 2, 15, 7, 5, 4
WIDTHS = (6, 5, 7)


def clouds(device, dtype=torch.float64, size=(B, N, M, KNOWN, SKIP), seed=0):
    """xyz, known_xyz, features, known_features."""
    b, n, m, known, skip = size
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return (
        make(b, n, 3, dtype=wide, device=device, seed=seed),
        make(b, m, 3, dtype=wide, device=device, seed=seed + 1),
        make(b, n, skip, dtype=dtype, device=device, seed=seed + 2) if skip else None,
        make(b, m, known, dtype=dtype, device=device, seed=seed + 3),
    )


def pair(device, kind="batch_train", depth=2, tensors=None):
    """The same call for us and for the definition."""
    tensors = clouds(device) if tensors is None else tensors
    columns = sum(t.shape[-1] for t in tensors[2:] if t is not None)
    layers = make_layers(columns, WIDTHS[:depth], kind, torch.float64, device)
    return Call(tensors, None, layers), Call(tensors, None, layers)


@pytest.mark.parametrize("last_activation", [True, False])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_layers(device, depth, kind, last_activation):
    calls = pair(device, kind, depth)
    compare(feature_propagation, reference, *calls, 1e-6, last_activation=last_activation)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("order", ["known_first", "skip_first"])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_weights_and_columns(device, k, order, power):
    options = {"k": k, "order": order, "power": power}
    compare(feature_propagation, reference, *pair(device), 1e-6, **options)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("order", ["known_first", "skip_first"])
def test_without_own_features(device, order, kind):
    tensors = clouds(device, size=(B, N, M, KNOWN, 0))
    calls = pair(device, kind, tensors=tensors)
    compare(feature_propagation, reference, *calls, 1e-6, order=order)


@pytest.mark.parametrize("known", [1, 2])
def test_fewer_known_points_than_neighbours(device, known):
    tensors = clouds(device, size=(B, N, known, KNOWN, SKIP))
    compare(feature_propagation, reference, *pair(device, tensors=tensors), 1e-6)


@pytest.mark.parametrize("activation", [None, "leaky_relu", "gelu"])
def test_activations(device, activation):
    options = {"activation": activation, "negative_slope": 0.2}
    compare(feature_propagation, reference, *pair(device, "batch_train", 3), 1e-6, **options)


@pytest.mark.parametrize("kind", NORMS)
def test_lengths(device, kind):
    """Rows beyond count in no statistics, and are zeros without a gradient."""
    lengths = torch.tensor([N - 4, N], device=device)
    known_lengths = torch.tensor([M, 2], device=device)
    options = {"lengths": lengths, "known_lengths": known_lengths}
    out, _ = compare(feature_propagation, reference, *pair(device, kind), 1e-6, **options)
    assert not out[0, N - 4 :].any()
    assert out[1].any(1).sum() > N // 2


@pytest.mark.parametrize("kind", NORMS)
def test_packed(device, kind):
    call, packed = pair(device, kind)
    packed.tensors = [t.detach().flatten(0, 1).requires_grad_() for t in packed.tensors]
    offsets = torch.arange(B + 1, device=device)
    out = call(feature_propagation)
    flat = packed(feature_propagation, offsets=offsets * N, known_offsets=offsets * M)
    torch.testing.assert_close(flat, out.flatten(0, 1))
    dout = make(*flat.shape, dtype=flat.dtype, device=device)
    got, want = packed.gradients(flat, dout), call.gradients(out, dout.reshape(out.shape))
    for key, grad in want.items():
        torch.testing.assert_close(got[key], grad.reshape(got[key].shape))


def test_rows_of_no_packed_cloud(device):
    call, _ = pair(device, "batch_train")
    call.tensors = [t.detach().flatten(0, 1) for t in call.tensors]
    offsets = {"offsets": [3, 10, 20], "known_offsets": [0, 7, 12]}
    out = call(
        feature_propagation,
        **{key: torch.tensor(value, device=device) for key, value in offsets.items()},
    )
    assert not out[:3].any()
    assert not out[20:].any()
    assert out[3:20].any(1).all()


def test_strides(device):
    call, strided = pair(device)
    expected = call(feature_propagation)
    strided.tensors = [t.mT.contiguous().mT for t in strided.tensors]
    strided.weights = [w.t().contiguous().t() for w in strided.weights]
    torch.testing.assert_close(strided(feature_propagation), expected)


def test_is_interpolation_and_a_linear_layer(device):
    xyz, known_xyz, features, known = clouds(device)
    weight = make(6, KNOWN + SKIP, dtype=torch.float64, device=device)
    out = feature_propagation(
        xyz, known_xyz, features, known, [weight], activation=None, power=1, order="skip_first"
    )
    joined = torch.cat([features, knn_interpolate(known, known_xyz, xyz)], 2)
    torch.testing.assert_close(out, joined @ weight.t())


SIZES = {  # clouds, points, known points, known and own features, widths
    "fp1": (2, 128, 32, 128, 0, (128, 128)),
    "fp2": (1, 128, 16, 64, 48, (96, 32)),
    "wide": (1, 64, 16, 512, 256, (256, 256)),
}


def draws_of(size, kind, dtype, device, count=6):
    draws = []
    for seed in range(0, 100 * count, 100):
        layers = make_layers(size[3] + size[4], size[5], kind, dtype, device, seed=seed + 10)
        draws.append((clouds(device, dtype, size[:5], seed), None, layers))
    return draws


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_halves(device, dtype, size, kind):
    draws = draws_of(size, kind, dtype, device)
    assert_as_accurate_as_torch(feature_propagation, reference, draws)


@pytest.mark.parametrize("kind", NORMS)
def test_float32(device, kind):
    draws = draws_of(SIZES["fp2"], kind, torch.float32, device)
    assert_as_accurate_as_torch(feature_propagation, reference, draws)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast(device, dtype):
    tensors, _, layers = draws_of(SIZES["fp2"], "batch_train", torch.float32, device)[0]
    call = Call(tensors, None, layers)
    with torch.autocast(device, dtype):
        out = call(feature_propagation)
    weights, biases, norms = layers
    xyz, known_xyz, features, known = tensors
    halves = Call(
        (xyz, known_xyz, features.to(dtype), known.to(dtype)),
        None,
        ([w.to(dtype) for w in weights], biases, norms),
    )
    assert out.dtype is dtype
    assert torch.equal(out, halves(feature_propagation))
    grads = call.gradients(out, out.detach())
    assert all(grad.dtype is torch.float32 for grad in grads.values())


def test_nan_stays_near(device):
    xyz, known_xyz, features, known = clouds(device)
    known[0, 2] = torch.nan
    features[1, 3] = torch.nan
    call, exact = pair(device, "layer", 2, (xyz, known_xyz, features, known))
    torch.testing.assert_close(
        call(feature_propagation), exact(reference), rtol=1e-6, atol=1e-6, equal_nan=True
    )


def test_two_runs_are_bitwise_equal(device):
    results = []
    for _ in range(2):
        call, _ = pair(device)
        out = call(feature_propagation)
        results.append([out, *call.gradients(out, out.detach()).values(), *call.running()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("size", [(0, N, M), (B, 0, M), (B, N, 0)], ids=str)
def test_empty(device, size):
    calls = pair(device, tensors=clouds(device, size=(*size, KNOWN, SKIP)))
    out = calls[0](feature_propagation)
    assert out.shape == (*size[:2], WIDTHS[1])
    grads = calls[0].gradients(out, torch.ones_like(out))
    assert all(grad.isfinite().all() for grad in grads.values())


def test_errors(device):
    xyz, known_xyz, features, known = (t.float() for t in clouds(device))
    weight = torch.zeros(6, KNOWN + SKIP, device=device)
    tensors, lengths = (xyz, known_xyz, features, known), torch.full((B,), M, device=device)
    wrong = [
        (ValueError, r"order must be \"known_first\" or \"skip_first\"; got 'first'", tensors,
         {"order": "first"}),
        (ValueError, r"power must be 1 or 2; got 3", tensors, {"power": 3}),
        (RuntimeError, r"known_xyz must be \(2, M, 3\); got \(2, 7, 2\)",
         (xyz, known_xyz[..., :2], features, known), {}),
        (RuntimeError, r"known_features must be \(2, 7, C\); got \(2, 6, 5\)",
         (xyz, known_xyz, features, known[:, :6]), {}),
        (RuntimeError, r"features must be \(2, 15, C\); got \(2, 7, 4\)",
         (xyz, known_xyz, features[:, :7], known), {}),
        (RuntimeError, r"weights\[0\] must be \(C, 5\); got \(6, 9\)",
         (xyz, known_xyz, None, known), {}),
        (TypeError, r"xyz must be a Tensor; got NoneType", (None, known_xyz, None, known), {}),
        (RuntimeError, r"k must be from 1 to 1024; got 0", tensors, {"k": 0}),
        (RuntimeError, r"known_lengths must ", tensors, {"known_lengths": lengths[:1]}),
        (RuntimeError, r"lengths must ", tensors, {"lengths": lengths[:1]}),
    ]  # fmt: skip
    for kind, message, arguments, options in wrong:
        with pytest.raises(kind, match=f"^feature_propagation: {message}"):
            feature_propagation(*arguments, [weight], **options)


def test_errors_name_its_own_arguments(device):
    """Not those of the search inside."""
    xyz, known = torch.zeros(2, 5, 3, device=device), torch.zeros(2, 4, 3, device=device)
    rows, weight = torch.zeros(2, 4, 6, device=device), torch.zeros(7, 6, device=device)
    sizes = torch.tensor([5, 5], device=device)
    for lengths, offsets in (("lengths", "offsets"), ("known_lengths", "known_offsets")):
        message = f"feature_propagation: {lengths} must be None where {offsets} is given"
        with pytest.raises(RuntimeError, match=message):
            feature_propagation(
                xyz, known, None, rows, [weight], **{lengths: sizes, offsets: sizes}
            )
