"""Batch norms of point cloud layers: channels that hardly vary, momentum None, wrong settings."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops.points import BatchNorm, LayerNorm, edge_conv, feature_propagation, set_abstraction
from util import generator, make

reference = fusedops.reference.set_abstraction
B, N, M, K, C = 2, 200, 40, 12, 6


def run(function, features, idx, dtype, wide):
    """The output, running statistics and gradients of a layer that is a batch norm alone."""
    features = features.to(dtype).requires_grad_()
    gamma = torch.linspace(0.5, 1.5, C, dtype=wide, device=features.device).requires_grad_()
    mean, var = (torch.zeros(C, dtype=wide, device=features.device) for _ in range(2))
    norm = BatchNorm(gamma, torch.zeros_like(mean), mean, var, True, 1.0)
    weight = torch.eye(C, dtype=dtype, device=features.device)
    y = function(None, features, None, idx, [weight], None, [norm], None)
    dout = torch.linspace(0, 300, y.numel(), device=y.device, dtype=torch.float64).sin()
    grads = torch.autograd.grad(y, [features, gamma], dout.view(y.shape).to(y.dtype))
    return {"out": y, "mean": mean, "var": var, "dfeatures": grads[0], "dgamma": grads[1]}


@pytest.mark.parametrize("missing", [False, True], ids=["whole", "with -1"])
@pytest.mark.parametrize("ratio", [1e2, 1e3, 1e4, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_channels_that_hardly_vary(device, dtype, ratio, missing):
    """Means of many standard deviations: errors within those of torch's batch norm."""
    g = generator(device)
    features = torch.randn(B, N, C, generator=g, device=device) + ratio
    if dtype is torch.float16:
        features = features * (1e3 / ratio)
    idx = torch.randint(0, N, (B, M, K), generator=g, device=device)
    if missing:
        idx[torch.rand(idx.shape, generator=g, device=device) < 0.7] = -1
    features = features.to(dtype)
    exact = run(reference, features.double(), idx, torch.float64, torch.float64)
    torchs = run(reference, features, idx, dtype, torch.float32)
    ours = run(set_abstraction, features, idx, dtype, torch.float32)
    eps = torch.finfo(dtype).eps
    # A constant channel: on a GPU the mean is scaled by 1 / sqrt(eps) before it is taken away, and
    # half a unit in its last place of fp32 is left of it.
    left = features.double().abs().max().item() * 1e-5**-0.5 * 1.5 * 2**-24
    for name, want in exact.items():
        error, theirs = ((f[name].double() - want).norm().item() for f in (ours, torchs))
        # NOTE: both are the rounding of sums, whose order threads decide, and of a mean of `ratio`
        # standard deviations to fp32.
        bound = 2 * theirs + (2 * eps + ratio * 2**-24) * want.norm().item()
        if name == "out" and device == "cuda":
            bound += left * want.numel() ** 0.5
        assert error <= bound, (name, error, theirs)


@pytest.mark.parametrize("value", [1000.3, 12345.6])
def test_a_constant_channel_is_its_bias(value):
    """On a CPU the mean is taken away before anything is scaled (`eps` makes that 316 times)."""
    features = torch.full((B, N, C), value)
    idx = torch.randint(0, N, (B, M, K), generator=generator("cpu"))
    found = run(set_abstraction, features, idx, torch.float32, torch.float32)
    assert found["out"].abs().max() <= 316.3 * value * torch.finfo(torch.float32).eps
    assert found["var"].max() <= (value * torch.finfo(torch.float32).eps) ** 2


def layers_of(function, device, dtype, norm, seed=1):
    xyz = make(B, N, 3, dtype=torch.float32, device=device)
    features = make(B, N, C, dtype=dtype, device=device, scale=seed, seed=seed)
    idx = torch.randint(0, N, (B, N, K), generator=generator(device), device=device)
    if function is set_abstraction:
        weight = make(5, 3 + C, dtype=dtype, device=device, seed=2)
        return set_abstraction(xyz, features, xyz, idx, [weight], norms=[norm])
    if function is edge_conv:
        weight = make(5, 2 * C, dtype=dtype, device=device, seed=2)
        return edge_conv(features, idx, [weight], norms=[norm])
    weight = make(5, C, dtype=dtype, device=device, seed=2)
    known = features[:, ::2].contiguous()
    return feature_propagation(xyz, xyz[:, ::2].contiguous(), None, known, [weight], norms=[norm])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [set_abstraction, edge_conv, feature_propagation])
def test_momentum_none_is_the_mean_of_all_batches(device, function, dtype):
    """As torch's: the share of batch n is 1 / n."""

    def statistics():
        return torch.full((5,), 7.0, device=device), torch.full((5,), 7.0, device=device)

    count = torch.zeros((), dtype=torch.int64, device=device)
    mean, var = statistics()
    batches = []
    for seed in (1, 2, 3):
        alone = statistics()
        layers_of(function, device, dtype, BatchNorm(None, None, *alone, True, 1.0), seed)
        batches.append(alone)
        norm = BatchNorm(None, None, mean, var, True, None, num_batches_tracked=count)
        layers_of(function, device, dtype, norm, seed)
        assert count == seed
    want = [torch.stack(kind).mean(0) for kind in zip(*batches, strict=True)]
    torch.testing.assert_close(mean, want[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(var, want[1], rtol=1e-5, atol=1e-6)
    norm = BatchNorm(None, None, mean, var, False, None)
    layers_of(function, device, dtype, norm)
    assert count == 3


def test_a_call_that_fails_counts_no_batch(device):
    count = torch.zeros((), dtype=torch.int64, device=device)
    norm = BatchNorm(training=True, num_batches_tracked=count)
    idx = torch.zeros(1, 1, 1, dtype=torch.int64, device=device)
    weight = torch.ones(2, 3, device=device)
    with pytest.raises(ValueError, match="more than 1 value a channel"):
        set_abstraction(
            torch.zeros(1, 1, 3, device=device), None, None, idx, [weight], None, [norm]
        )
    assert count == 0


TRACKED = {"running_mean": torch.zeros(5), "running_var": torch.ones(5), "training": True}


WRONG = [
    (TypeError, "eps must be a number; got NoneType", BatchNorm(training=True, eps=None)),
    (TypeError, "eps must be a number; got NoneType", LayerNorm(eps=None)),
    (ValueError, "eps must be positive; got 0", BatchNorm(training=True, eps=0)),
    (TypeError, "momentum must be a number, a Tensor or None; got str",
     BatchNorm(**TRACKED, momentum="0.1")),
    (RuntimeError, r"momentum must be \(\); got \(5,\)",
     BatchNorm(**TRACKED, momentum=torch.ones(5))),
    (TypeError, "num_batches_tracked must be a Tensor or None; got int",
     BatchNorm(**TRACKED, num_batches_tracked=1)),
    (RuntimeError, r"num_batches_tracked must be \(\) int64 on cpu; got \(\) float32",
     BatchNorm(**TRACKED, num_batches_tracked=torch.zeros(()))),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "norm"), WRONG)
@pytest.mark.parametrize("function", [set_abstraction, edge_conv, feature_propagation])
def test_wrong_settings(function, error, message, norm):
    with pytest.raises(error, match=rf"{function.__name__}: norms\[0\]\.{message}"):
        layers_of(function, "cpu", torch.float32, norm)


def test_momentum_none_takes_a_count():
    norm = BatchNorm(**TRACKED, momentum=None)
    message = (
        r"norms\[0\] must have num_batches_tracked where momentum is None in training; got None"
    )
    with pytest.raises(ValueError, match=message):
        layers_of(set_abstraction, "cpu", torch.float32, norm)
