"""fusedops.nn.MLP and GatedMLP: parameters, checkpoints of every layout, training."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

import fusedops
from util import make

every_kind = pytest.mark.parametrize("kind", ["mlp", "gated", "packed"])


def block(kind, device, **options):
    torch.manual_seed(0)
    if kind == "mlp":
        return fusedops.nn.MLP(12, 20, 8, device=device, **options)
    packed = kind == "packed"
    return fusedops.nn.GatedMLP(12, 20, 8, packed=packed, device=device, **options)


def plain(module, x):
    """The same by torch's functions."""
    state = dict(module.named_parameters())

    def layer(name, x):
        return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    if isinstance(module, fusedops.nn.MLP):
        return layer("fc2", F.gelu(layer("fc1", x)))
    if module.packed:
        gate, up = layer("gate_up_proj", x).chunk(2, -1)
    else:
        gate, up = layer("gate_proj", x), layer("up_proj", x)
    return layer("down_proj", F.silu(gate) * up)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
@every_kind
def test_forward_and_gradients(device, kind, bias, recompute):
    module = block(kind, device, bias=bias, recompute=recompute)
    x = make(5, 12, dtype=torch.float32, device=device).requires_grad_()
    residual = make(5, 8, dtype=torch.float32, device=device, seed=3)
    inputs = [x, *module.parameters()]
    got, want = module(x, residual), plain(module, x) + residual
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    grads = [torch.autograd.grad(y.square().sum(), inputs) for y in (got, want)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def llama_state(names, bias):
    """A checkpoint with two weights under the given names of gate, up and down."""
    shapes = dict(zip(names, [(20, 12), (20, 12), (8, 20)], strict=True))
    state = {f"{k}.weight": torch.randn(s) for k, s in shapes.items()}
    if bias:
        state |= {f"{k}.bias": torch.randn(s[0]) for k, s in shapes.items()}
    return state


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")])
def test_checkpoints_of_both_layouts_load_into_both(device, names, bias):
    state = llama_state(names, bias)
    before = {k: v.clone() for k, v in state.items()}
    two, one = (block(kind, device, bias=bias) for kind in ("gated", "packed"))
    # Inside a model, as checkpoints come
    nn.ModuleDict({"a": two}).load_state_dict({f"a.{k}": v for k, v in state.items()})
    one.load_state_dict(state)
    assert list(state) == list(before)
    x = make(5, 12, dtype=torch.float32, device=device)
    torch.testing.assert_close(one(x), two(x))
    other = block("gated", device, bias=bias)
    other.load_state_dict(one.state_dict())
    again = block("packed", device, bias=bias)
    again.load_state_dict(two.state_dict())
    assert torch.equal(other(x), two(x))
    assert torch.equal(again(x), one(x))
    assert torch.equal(two.gate_proj.weight.cpu(), state[f"{names[0]}.weight"])


def test_a_checkpoint_that_does_not_fit_is_reported():
    state = llama_state(("gate_proj", "up_proj", "down_proj"), False)
    del state["up_proj.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*up_proj.weight"):
        block("gated", "cpu").load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Missing key.*gate_up_proj.weight"):
        block("packed", "cpu").load_state_dict(state)


class Adapter(nn.Module):
    """A low-rank adapter that shows the weight of its layer, as PEFT's do."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.a = nn.Linear(layer.in_features, 2, bias=False, device=layer.weight.device)
        self.b = nn.Linear(2, layer.out_features, bias=False, device=layer.weight.device)

    @property
    def weight(self):
        return self.layer.weight

    @property
    def bias(self):
        return self.layer.bias

    def forward(self, x):
        return self.layer(x) + self.b(self.a(x))


@every_kind
def test_adapters_on_layers_take_part(device, kind):
    module = block(kind, device, bias=True)
    x = make(5, 12, dtype=torch.float32, device=device)
    residual = make(5, 8, dtype=torch.float32, device=device, seed=3)
    before = module(x, residual)
    for name, layer in list(module.named_children()):
        setattr(module, name, Adapter(layer))
    after = module(x, residual)
    assert not torch.allclose(after, before)
    after.sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    for adapter in module.children():
        nn.init.zeros_(adapter.b.weight)
    torch.testing.assert_close(module(x, residual), before, rtol=1e-4, atol=1e-5)


@every_kind
def test_hooks_and_pruning_of_layers_take_part(device, kind):
    module = block(kind, device)
    x = make(5, 12, dtype=torch.float32, device=device)
    for _, layer in list(module.named_children()):
        seen = []
        handle = layer.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        module(x)
        handle.remove()
        module(x)
        assert seen == [1]
    first = next(module.children())
    prune.random_unstructured(first, "weight", 0.5)
    for _ in range(2):
        module(x).sum().backward()
    assert (first.weight_orig.grad[first.weight_mask == 0] == 0).all()


@every_kind
def test_copies_pickles_and_prints(device, kind):
    module = block(kind, device, recompute=True)
    x = make(5, 12, dtype=torch.float32, device=device)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), module(x))
    assert "recompute=True" in repr(module)


def test_initialises_as_torch_linear_layers():
    module = block("mlp", "cpu")
    torch.manual_seed(0)
    first, second = nn.Linear(12, 20), nn.Linear(20, 8)
    assert torch.equal(module.fc1.weight, first.weight)
    assert torch.equal(module.fc2.bias, second.bias)
    assert block("mlp", "meta").fc1.weight.is_meta


@pytest.mark.parametrize("name", ["MLP", "GatedMLP"])
def test_an_unknown_activation_is_an_error(name):
    with pytest.raises(ValueError, match=rf"^fusedops.nn.{name}: activation must be None or one"):
        getattr(fusedops.nn, name)(4, 8, activation="swish")
