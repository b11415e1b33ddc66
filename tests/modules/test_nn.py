"""fusedops.nn.Linear: torch.nn.Linear in everything but the kernel."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import fusedops
from util import ACTIVATIONS, DTYPES, TORCH_ACTIVATION, make, name


def pair(device, activation=None, bias=True, dtype=None):
    """Our layer and torch's, with the same parameters."""
    torch.manual_seed(3)
    ours = fusedops.nn.Linear(12, 20, bias, device, dtype, activation)
    torch.manual_seed(3)
    return ours, nn.Linear(12, 20, bias, device, dtype)


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_initialisation_is_that_of_torch(device, bias, dtype):
    ours, theirs = pair(device, bias=bias, dtype=dtype)
    assert isinstance(ours, nn.Linear)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for got, want in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(got, want)
        assert got.dtype is want.dtype
        assert got.device == want.device


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("bias", [True, False])
def test_forward(device, bias, activation):
    ours, theirs = pair(device, activation, bias)
    x = make(2, 3, 12, dtype=torch.float32, device=device)
    expected = TORCH_ACTIVATION[activation or "none"](theirs(x))
    torch.testing.assert_close(ours(x), expected)
    torch.testing.assert_close(ours(input=x), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_converts_like_torch(device, dtype):
    layer = pair(device, "relu")[0].to(dtype)
    assert layer(make(5, 12, dtype=dtype, device=device)).dtype is dtype


def test_state_dicts_are_exchangeable(device):
    ours, theirs = pair(device, "gelu")
    with torch.no_grad():
        theirs.weight.mul_(2)
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    assert torch.equal(ours.weight, theirs.weight)
    theirs.load_state_dict(ours.state_dict())
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        ours.load_state_dict(nn.Linear(3, 4).state_dict())


def test_repr():
    assert repr(fusedops.nn.Linear(3, 4)) == "Linear(in_features=3, out_features=4, bias=True)"
    shown = repr(fusedops.nn.Linear(3, 4, bias=False, activation="silu"))
    assert shown == "Linear(in_features=3, out_features=4, bias=False, activation='silu')"


def test_unknown_activation():
    with pytest.raises(ValueError, match=r"fusedops.nn.Linear: activation must .*'relu6'; got 'x'"):
        fusedops.nn.Linear(3, 4, activation="x")


def test_wrong_input_names_op_and_shapes(device):
    layer = fusedops.nn.Linear(3, 4, device=device)
    with pytest.raises(RuntimeError, match=r"linear: weight must have shape \(N, 5\) .*got \(4, 3"):
        layer(torch.ones(2, 5, device=device))


def save_and_load(layer):
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)), save_and_load]
)
def test_copies(device, clone):
    layer = fusedops.nn.Linear(12, 20, device=device, activation="tanh")
    other = clone(layer)
    x = make(4, 12, dtype=torch.float32, device=device)
    assert other.activation == "tanh"
    assert other.weight is not layer.weight
    assert torch.equal(other(x), layer(x))


def test_tied_weights_add_their_gradients(device):
    first = fusedops.nn.Linear(12, 12, device=device, activation="tanh")
    second = fusedops.nn.Linear(12, 12, device=device)
    second.weight = first.weight
    x = make(4, 12, dtype=torch.float32, device=device)
    second(first(x)).sum().backward()
    w = first.weight.detach().clone().requires_grad_()
    hidden = torch.tanh(nn.functional.linear(x, w, first.bias))
    nn.functional.linear(hidden, w, second.bias).sum().backward()
    torch.testing.assert_close(first.weight.grad, w.grad)


def test_functional_call(device):
    layer = fusedops.nn.Linear(12, 20, device=device, activation="relu")
    parameters = {k: (2 * v).detach().requires_grad_() for k, v in layer.named_parameters()}
    x = make(4, 12, dtype=torch.float32, device=device)
    y = torch.func.functional_call(layer, parameters, (x,))
    assert torch.equal(y, fusedops.linear(x, parameters["weight"], parameters["bias"], "relu"))
    y.sum().backward()
    assert parameters["weight"].grad is not None
    assert layer.weight.grad is None


def test_meta_device_and_to_empty(device):
    layer = fusedops.nn.Linear(12, 20, device="meta", activation="relu")
    assert layer(torch.empty(3, 12, device="meta")).shape == (3, 20)
    layer.to_empty(device=device).reset_parameters()
    assert torch.isfinite(layer(torch.ones(3, 12, device=device))).all()


def test_hooks_and_frozen_parameters(device):
    layer = fusedops.nn.Linear(12, 20, device=device, activation="gelu")
    layer.weight.requires_grad_(False)
    seen = []
    layer.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    layer.register_full_backward_hook(lambda module, dx, dy: seen.append(dy[0].shape))
    x = make(4, 12, dtype=torch.float32, device=device).requires_grad_()
    layer(x).sum().backward()
    assert seen == [(4, 20), (4, 20)]
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    assert x.grad is not None


def test_parametrization(device):
    layer = fusedops.nn.Linear(12, 20, device=device, activation="relu")
    nn.utils.parametrizations.weight_norm(layer)
    x = make(4, 12, dtype=torch.float32, device=device)
    expected = torch.relu(nn.functional.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(layer(x), expected)
    layer(x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_transformer_fast_path_reads_the_weights(device):
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, device=device)
    x = make(2, 5, 16, dtype=torch.float32, device=device)
    with torch.no_grad():
        expected, trained = block.eval()(x), block.train()(x)
        fusedops.fuse(block)
        torch.testing.assert_close(block.eval()(x), expected)
        torch.testing.assert_close(block.train()(x), trained)
