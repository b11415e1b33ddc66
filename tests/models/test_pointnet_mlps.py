"""Layers of point clouds whose MLP has hooks, is another module, or is in halves; lengths."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fusedops.nn import (
    EdgeConv,
    FeaturePropagation,
    GlobalSetAbstraction,
    SetAbstraction,
    SharedMLP,
)
from models.twin_ops import shuffle_norms

DOUBLE = {"dtype": torch.float64}


def clouds(device, channels=4, count=30):
    generator = torch.Generator().manual_seed(0)
    xyz = torch.rand(2, count, 3, generator=generator, **DOUBLE)
    features = torch.randn(2, count, channels, generator=generator, **DOUBLE)
    return xyz.to(device), features.to(device)


WITH_MLP = {
    "abstraction": lambda **o: SetAbstraction(4, [8, 9], 0.4, 6, 10, **o),
    "global": lambda **o: GlobalSetAbstraction(4, [8, 9], **o),
    "propagation": lambda **o: FeaturePropagation(8, [8, 9], **o),
    "edge": lambda **o: EdgeConv(4, [8, 9], 5, **o),
}


def call_with(name, layer, device, dtype, lengths=None):
    """The features that a layer gives for clouds with coordinates in float32 beside halves."""
    xyz, features = (t.to(dtype) for t in clouds(device))
    at = xyz.float() if dtype.itemsize < 4 else xyz
    if name == "edge":
        return layer(features, lengths=lengths)
    if name == "propagation":
        return layer(at, at[:, :9], features, features[:, :9], lengths=lengths)
    y = layer(at, features, lengths=lengths)
    return y[1] if name == "abstraction" else y


def mlp_of(layer):
    return layer.scales[0] if isinstance(layer, SetAbstraction) else layer.mlp


@pytest.mark.parametrize("change", ["hook", "pre-hook", "forward", "subclass", "replaced"])
@pytest.mark.parametrize("name", WITH_MLP)
def test_the_mlp_itself_is_called(device, name, change):
    """Whatever runs in its place would pass over a hook, and over another module."""
    torch.manual_seed(1)
    layer = shuffle_norms(WITH_MLP[name](**DOUBLE)).to(device).eval()
    lengths = torch.tensor([30, 30], device=device)
    want = call_with(name, layer, device, torch.float64)
    mlp, called = mlp_of(layer), []
    if change == "hook":
        mlp.register_forward_hook(lambda *_: called.append(1))
    elif change == "pre-hook":
        mlp.register_forward_pre_hook(lambda *_: called.append(1))
    elif change == "forward":
        own = mlp.forward
        mlp.forward = lambda x: called.append(1) or own(x)
    elif change == "subclass":
        own = SharedMLP.forward
        mlp.__class__ = type(
            "Mine", (SharedMLP,), {"forward": lambda self, x: called.append(1) or own(self, x)}
        )
    else:
        parts = [
            module
            for pair in zip(mlp.linears, mlp.norms, strict=True)
            for module in (*pair, nn.LeakyReLU(0.2) if name == "edge" else nn.ReLU())
        ]
        other = nn.Sequential(*parts)
        other.register_forward_hook(lambda *_: called.append(1))
        if isinstance(layer, SetAbstraction):
            layer.scales[0] = other
        else:
            layer.mlp = other
    for given in (lengths, None):
        called.clear()
        got = call_with(name, layer, device, torch.float64, given)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
        assert called == [1]


@pytest.mark.parametrize("change", ["linear", "mlp", None])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", WITH_MLP)
def test_hooked_layers_in_halves(device, name, dtype, change):
    """Coordinates in float32 beside halves, as without a hook."""
    torch.manual_seed(1)
    layer = shuffle_norms(WITH_MLP[name]()).to(device, dtype).eval()
    want = call_with(name, layer, device, dtype)
    if change is not None:
        module = mlp_of(layer)
        (module if change == "mlp" else module.linears[1]).register_forward_hook(lambda *_: None)
    for lengths in (None, torch.tensor([30, 30], device=device)):
        got = call_with(name, layer, device, dtype, lengths)
        assert got.dtype is dtype
        torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)


def test_lengths_of_the_layer_over_all_points(device):
    torch.manual_seed(1)
    layer = shuffle_norms(GlobalSetAbstraction(4, [8, 9], pool="mean", **DOUBLE)).to(device).eval()
    xyz, features = clouds(device)
    for hooked in (False, True):
        if hooked:
            layer.mlp.register_forward_hook(lambda *_: None)
        got = layer(xyz, features, lengths=torch.tensor([99, 0], device=device))
        torch.testing.assert_close(got[0], layer(xyz[:1], features[:1])[0])
        assert not got[1].any()
        for error, wrong, message in (
            (TypeError, [30, 30], "lengths must be a Tensor or None; got list"),
            (
                RuntimeError,
                torch.tensor([30, 30]).int(),
                "lengths must have dtype int64; got int32",
            ),
            (RuntimeError, torch.tensor([30]), r"lengths must have shape \(2,\); got \(1,\)"),
        ):
            wrong = wrong.to(device) if isinstance(wrong, torch.Tensor) else wrong
            with pytest.raises(error, match=f"GlobalSetAbstraction: {message}"):
                layer(xyz, features, lengths=wrong)


def test_momentum_none_under_compile(device):
    """The count of batches is a tensor all along: one graph."""
    torch.manual_seed(1)
    layer = WITH_MLP["abstraction"](**DOUBLE).to(device)
    for norm in layer.scales[0].norms:
        norm.momentum = None
    other = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    xyz, features = clouds(device)
    for scale in (1.0, 2.0, 3.0):
        torch.testing.assert_close(
            compiled(xyz, scale * features)[1], other(xyz, scale * features)[1]
        )
    for key, value in other.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[key], value, msg=key)
    assert layer.scales[0].norms[0].num_batches_tracked == 3
