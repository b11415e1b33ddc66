"""Set abstraction against its definition in float64: values, gradients, statistics, edge cases."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops.points import BatchNorm, LayerNorm, group, set_abstraction
from points.layer_cases import NORMS, Call, compare, indices, leaf_norm, make_layers, make_norm
from util import Calls, generator, make

reference = fusedops.reference.set_abstraction
WIDTHS = (6, 5, 7, 3)
B, N, M, K, FEATURES = 2, 20, 9, 6, 4


def clouds(device, dtype=torch.float64, size=(B, N, M, FEATURES)):
    """xyz, features, centers."""
    b, n, m, f = size
    return (
        make(b, n, 3, dtype=dtype, device=device),
        make(b, n, f, dtype=dtype, device=device, seed=1),
        make(b, m, 3, dtype=dtype, device=device, seed=2),
    )


def pair(device, kind="batch_train", depth=2, tensors=None, idx=None, widths=WIDTHS):
    """The same call for us and for the definition."""
    tensors = clouds(device) if tensors is None else tensors
    idx = indices(B, N, M, K, device) if idx is None else idx
    columns = sum(t.shape[-1] for t in tensors[:2] if t is not None)
    layers = make_layers(columns, widths[:depth], kind, torch.float64, device)
    return Call(tensors, idx, layers), Call(tensors, idx, layers)


@pytest.mark.parametrize("pool", ["max", "mean", "sum"])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_layers(device, depth, kind, pool):
    compare(set_abstraction, reference, *pair(device, kind, depth), pool=pool)


@pytest.mark.parametrize("last_activation", [True, False])
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("activation", [None, "leaky_relu", "gelu", "relu6", "elu"])
def test_activations(device, activation, kind, last_activation):
    options = {"activation": activation, "last_activation": last_activation}
    compare(set_abstraction, reference, *pair(device, kind, 3), **options)


@pytest.mark.parametrize("slope", [0.01, 0.2, 0.0, -0.5])
def test_slopes(device, slope):
    call = pair(device, "batch_train", 2)
    compare(set_abstraction, reference, *call, activation="leaky_relu", negative_slope=slope)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("parts", ["xyz", "features", "absolute", "absolute xyz"])
@pytest.mark.parametrize("depth", [1, 2])
def test_inputs(device, parts, kind, depth):
    xyz, features, centers = clouds(device)
    tensors = {
        "xyz": (xyz, None, centers),
        "features": (None, features, None),
        "absolute": (xyz, features, None),
        "absolute xyz": (xyz, None, None),
    }[parts]
    compare(set_abstraction, reference, *pair(device, kind, depth, tensors))


def test_normalized_radius(device):
    compare(set_abstraction, reference, *pair(device), normalize_radius=0.15)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("groups", [1, M])
@pytest.mark.parametrize("k", [0, 1, 40])
def test_sizes(device, k, groups, kind):
    xyz, features, centers = clouds(device)
    idx = indices(B, N, groups, k, device, empty=False)
    compare(
        set_abstraction,
        reference,
        *pair(device, kind, 2, (xyz, features, centers[:, :groups]), idx),
    )


@pytest.mark.parametrize("kind", NORMS)
def test_wide_layers(device, kind):
    xyz, features, centers = clouds(device, size=(1, N, 3, 300))
    idx = indices(1, N, 3, K, device)
    calls = pair(device, kind, 3, (xyz, features, centers), idx, (33, 1024, 1))
    compare(set_abstraction, reference, *calls)


@pytest.mark.parametrize("kind", NORMS)
def test_without_any_neighbour(device, kind):
    calls = pair(device, kind, idx=torch.full((B, M, K), -1, device=device))
    out, _ = compare(set_abstraction, reference, *calls)
    assert not out.any()
    before, after = pair(device, kind)[0].running(), calls[0].running()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("size", [(0, N, M), (B, N, 0), (B, 0, M)], ids=str)
def test_empty(device, size):
    b, n, m = size
    tensors = clouds(device, size=(b, n, m, FEATURES))
    call, _ = pair(
        device, tensors=tensors, idx=torch.zeros(b, m, K, dtype=torch.int64, device=device)
    )
    out = call(set_abstraction)
    assert out.shape == (b, m, WIDTHS[1])
    assert not out.any()
    grads = call.gradients(out, torch.ones_like(out))
    assert not any(grad.any() for grad in grads.values())


@pytest.mark.parametrize("pool", ["max", "mean", "sum"])
@pytest.mark.parametrize("kind", NORMS)
def test_all_points_equal(device, kind, pool):
    """The lowest k wins every tie: gradients say which."""
    xyz, features, centers = (t[:1, :1].expand_as(t) for t in clouds(device))
    calls = pair(device, kind, tensors=(xyz, features, centers))
    compare(set_abstraction, reference, *calls, rtol=1e-6, pool=pool)


@pytest.mark.parametrize("kind", ["none", "batch_eval", "layer"])
def test_nan_stays_in_its_groups(device, kind):
    xyz, features, centers = clouds(device)
    xyz[0, 3] = torch.nan
    idx = indices(B, N, M, K, device)
    call, exact = pair(device, kind, 2, (xyz, features, centers), idx)
    out = call(set_abstraction)
    torch.testing.assert_close(out, exact(reference), equal_nan=True)
    with torch.no_grad():
        torch.testing.assert_close(call(set_abstraction), out, equal_nan=True)
    touched = (idx[0] == 3).any(1)
    assert touched.any()
    assert not touched.all()
    assert torch.equal(out[0].isnan().any(1), touched)
    assert not out[1].isnan().any()


def test_nan_in_statistics_of_the_batch_is_everywhere(device):
    xyz, features, centers = clouds(device)
    idx = indices(B, N, M, K, device)
    xyz[0, idx[0, 2].max()] = torch.nan
    call, exact = pair(device, "batch_train", 1, (xyz, features, centers), idx)
    out = call(set_abstraction)
    filled = (idx >= 0).logical_and(idx < N).any(2)
    assert out[filled].isnan().all()
    assert not out[~filled].any()
    exact(reference)
    torch.testing.assert_close(call.running(), exact.running(), equal_nan=True)


@pytest.mark.parametrize("kind", NORMS)
def test_where_the_empty_slots_are_does_not_matter(device, kind):
    idx = indices(B, N, M, K, device)
    shuffled = torch.cat([idx.new_full((B, M, 2), -1), idx, idx.new_full((B, M, 1), N)], 2)
    options = {"pool": "max"}
    first, second = pair(device, kind, idx=idx)[0], pair(device, kind, idx=shuffled)[0]
    outs = [call(set_abstraction, **options) for call in (first, second)]
    torch.testing.assert_close(*outs)
    dout = make(*outs[0].shape, dtype=torch.float64, device=device)
    grads = [call.gradients(out, dout) for call, out in zip((first, second), outs, strict=True)]
    torch.testing.assert_close(*grads)
    torch.testing.assert_close(first.running(), second.running())


@pytest.mark.parametrize("kind", NORMS)
def test_packed(device, kind):
    """Two clouds one after the other are the batch of both."""
    call, packed = pair(device, kind)
    packed.tensors = [t.detach().flatten(0, 1).requires_grad_() for t in packed.tensors]
    first = torch.arange(B, device=device)[:, None, None] * N
    packed.idx = torch.where((call.idx < 0) | (call.idx >= N), -1, call.idx + first).flatten(0, 1)
    out, flat = call(set_abstraction), packed(set_abstraction)
    torch.testing.assert_close(flat, out.flatten(0, 1))
    dout = make(*flat.shape, dtype=flat.dtype, device=device)
    got, want = packed.gradients(flat, dout), call.gradients(out, dout.reshape(out.shape))
    for name, grad in want.items():
        torch.testing.assert_close(got[name], grad.reshape(got[name].shape))


def test_strides(device):
    tensors, idx = clouds(device), indices(B, N, M, K, device)
    call, strided = pair(device, tensors=tensors, idx=idx)
    expected = call(set_abstraction)
    strided.tensors = [t.mT.contiguous().mT for t in strided.tensors]
    strided.weights = [w.t().contiguous().t() for w in strided.weights]
    strided.idx = idx.repeat_interleave(2, 2)[:, :, ::2]
    assert not strided.idx.is_contiguous()
    torch.testing.assert_close(strided(set_abstraction), expected)


def test_is_torchs_batch_norm_over_the_grouped_tensor(device):
    """Without -1, statistics and all are those of nn.BatchNorm2d; over two steps."""
    xyz, features, centers = clouds(device)
    idx = torch.randint(0, N, (B, M, K), generator=generator("cpu")).to(device)
    (call, _), norm = pair(device, "none", 1, idx=idx), torch.nn.BatchNorm2d(WIDTHS[0])
    norm = norm.to(device, torch.float64)
    ours = BatchNorm(
        norm.weight, norm.bias, norm.running_mean.clone(), norm.running_var.clone(), True
    )
    call.norms = [ours]
    for scale in (1, 3):
        out = set_abstraction(
            xyz * scale, features, centers, idx, call.weights, call.biases, call.norms
        )
        x = group(features, idx, points=xyz * scale, centers=centers).permute(0, 3, 1, 2)
        y = norm(F.conv2d(x, call.weights[0][:, :, None, None], call.biases[0]))
        torch.testing.assert_close(out, torch.relu(y).amax(3).mT)
    torch.testing.assert_close(ours.running_mean, norm.running_mean)
    torch.testing.assert_close(ours.running_var, norm.running_var)
    norm.eval()
    out = set_abstraction(
        xyz, features, centers, idx, call.weights, call.biases, [ours._replace(training=False)]
    )
    x = group(features, idx, points=xyz, centers=centers).permute(0, 3, 1, 2)
    y = norm(F.conv2d(x, call.weights[0][:, :, None, None], call.biases[0]))
    torch.testing.assert_close(out, torch.relu(y).amax(3).mT)


@pytest.mark.parametrize("parameters", [(None, None), ("weight", None), (None, "bias")], ids=str)
@pytest.mark.parametrize("kind", ["batch_eval", "batch_train", "layer"])
def test_norms_with_parts(device, kind, parameters):
    calls = pair(device, kind)
    for call in calls:
        for part in {"weight", "bias"} - set(parameters):
            call.norms = [norm._replace(**{part: None}) for norm in call.norms]
    compare(set_abstraction, reference, *calls)


def test_batch_norm_without_running_statistics(device):
    calls = pair(device)
    for call in calls:
        call.norms = [n._replace(running_mean=None, running_var=None) for n in call.norms]
        call.running = list
    compare(set_abstraction, reference, *calls)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 1.0])
def test_momentum(device, momentum):
    calls = pair(device)
    for call in calls:
        call.norms = [n._replace(momentum=momentum, eps=0.1) for n in call.norms]
    compare(set_abstraction, reference, *calls)


def test_mixed_norms(device):
    calls = pair(device, "none", 4)
    kinds = ("batch_train", "layer", "none", "batch_eval")
    for call in calls:
        call.norms = [
            leaf_norm(make_norm(kind, width, torch.float64, device))
            for kind, width in zip(kinds, WIDTHS, strict=True)
        ]
    compare(set_abstraction, reference, *calls)


def test_variance_far_from_zero(device):
    """A mean of a thousand deviations: what a sum of squares would lose."""
    xyz, features, centers = clouds(device)
    idx = indices(B, N, M, K, device)
    layers = make_layers(3 + FEATURES, (5,), "batch_train", torch.float32, device)
    tensors = (xyz.float(), features.float() * 1e-3 + 1, centers.float())
    layers[0][0][:, :3] *= 1e-3
    call, exact = Call(tensors, idx, layers), Call(tensors, idx, layers, torch.float64)
    torch.testing.assert_close(
        call(set_abstraction).double(), exact(reference), rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(
        [t.double() for t in call.running()], exact.running(), rtol=1e-5, atol=1e-5
    )


def test_one_edge_has_no_statistics(device):
    xyz, features, centers = (t[:1, :1] for t in clouds(device))
    idx = torch.zeros(1, 1, 1, dtype=torch.int64, device=device)
    call, _ = pair(device, "batch_train", 1, (xyz, features, centers), idx)
    with pytest.raises(ValueError, match="norms must see more than 1 value a channel in training"):
        call(set_abstraction)
    compare(
        set_abstraction, reference, *pair(device, "batch_eval", 1, (xyz, features, centers), idx)
    )
    # What idx leaves out is not read by the host: a variance of 0.
    call, _ = pair(device, "batch_train", 1, (xyz, features, centers), F.pad(idx, (0, 1), value=-1))
    bias = call.norms[0].bias
    torch.testing.assert_close(call(set_abstraction)[0, 0], bias.clamp_min(0))
    assert torch.stack(call.running()).isfinite().all()


@pytest.mark.parametrize("kind", NORMS)
def test_two_runs_are_bitwise_equal(device, kind):
    results = []
    for _ in range(2):
        call, _ = pair(device, kind, 3)
        out = call(set_abstraction)
        results.append([out, *call.gradients(out, out.detach()).values(), *call.running()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_parameters_of_norms_in_float32_beside_halves(device):
    xyz, features, centers = clouds(device, torch.float32)
    for kind in NORMS[1:]:
        weights, biases, norms = make_layers(
            3 + FEATURES, WIDTHS[:2], kind, torch.bfloat16, device, norm_dtype=torch.float32
        )
        call = Call((xyz, features.bfloat16(), centers), indices(B, N, M, K, device), (
            weights, biases, norms
        ))  # fmt: skip
        out = call(set_abstraction)
        grads = call.gradients(out, torch.ones_like(out))
        assert out.dtype is torch.bfloat16
        assert grads["tensor 0"].dtype is torch.float32
        assert grads["norm 0 weight"].dtype is torch.float32
        assert grads["weight 1"].dtype is torch.bfloat16
    assert isinstance(call.norms[0], LayerNorm)


@pytest.mark.parametrize("kind", ["batch_train", "batch_eval"])
def test_one_extremum_is_taken_of_the_widest_layer(device, kind):
    """Where weights of a norm are negative, the product has their sign: no minimum is needed."""
    tensors = [t.bfloat16() if i == 1 else t.float() for i, t in enumerate(clouds(device))]
    idx = indices(B, N, M, K, device)
    layers = make_layers(3 + FEATURES, (6, 300), kind, torch.bfloat16, device, torch.float32)
    call = Call(tensors, idx, layers)
    assert (layers[2][1].weight < 0).any()
    with Calls() as calls:
        call(set_abstraction)
    taken = "aten.max.dim" if device == "cpu" else "fusedops.edge_rows_statistics_"
    assert taken in calls.names
    assert not [name for name in calls.names if name.startswith(("aten.min", "aten.amin"))]
