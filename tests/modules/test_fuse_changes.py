"""Fused blocks that are called, changed and copied as the module's own class allows."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from modules.test_fuse_blocks import GELUActivation, ops_of
from util import make


class Flexible(nn.Module):
    """Children and attributes that a forward may read."""

    scale = None

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 20)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(20, 12)
        self.extra = None

    def forward(self, hidden_states, unused=None):
        h = self.act(self.fc1(hidden_states))
        if self.scale is not None:
            h = h * self.scale
        y = self.fc2(h if self.drop is None else self.drop(h))
        return y if self.extra is None else self.extra(y)


class Wrapped(Flexible):
    def __init__(self):
        super().__init__()
        self.act = GELUActivation()


class Trains(Flexible):
    def forward(self, hidden_states):
        h = F.relu(self.fc1(hidden_states))
        if self.training:
            h = 3 * h
        return self.fc2(h)


def setting(name, value):
    return lambda model: setattr(model, name, value)


CHANGES = {
    "dropout to Identity": (Flexible, setting("drop", nn.Identity())),
    "dropout to None": (Flexible, setting("drop", None)),
    "dropout to Tanh": (Flexible, setting("drop", nn.Tanh())),
    "activation": (Flexible, setting("act", nn.Tanh())),
    "activation option": (Flexible, lambda m: setattr(m.act, "approximate", "tanh")),
    "activation forward": (Flexible, lambda m: setattr(m.act, "forward", torch.tanh)),
    "activation hook": (
        Flexible,
        lambda m: m.act.register_forward_hook(lambda module, args, output: 2 * output),
    ),
    "activation function": (Wrapped, lambda m: setattr(m.act, "act", torch.tanh)),
    "flag": (Flexible, setting("scale", 3.0)),
    "new child": (Flexible, setting("extra", nn.Linear(12, 12))),
    "layer activation": (Flexible, lambda m: setattr(m, "fc1", nn.Sequential(m.fc1, nn.ReLU()))),
    "training": (Trains, lambda m: m.train()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_respected(device, change):
    torch.manual_seed(0)
    kind, apply = CHANGES[change]
    model = kind().to(device).eval()
    original = copy.deepcopy(model)
    assert len(fusedops.fuse(model).blocks) == 1
    x = make(5, 12, dtype=torch.float32, device=device)
    assert ops_of(model, x) == ["mlp_forward"]
    apply(model)
    apply(original)
    for m in (model, original):
        m.to(device)
    torch.testing.assert_close(model(x), original(x), rtol=1e-5, atol=1e-5)
    assert "mlp_forward" not in ops_of(model, x)


def test_a_hook_that_is_removed_brings_the_op_back(device):
    model = Flexible().to(device).eval()
    fusedops.fuse(model)
    x = make(5, 12, dtype=torch.float32, device=device)
    handle = model.act.register_forward_hook(lambda *_: None)
    assert "mlp_forward" not in ops_of(model, x)
    handle.remove()
    assert ops_of(model, x) == ["mlp_forward"]


def test_a_plain_layer_in_the_place_of_another_keeps_the_op(device):
    model = Flexible().to(device).eval()
    fusedops.fuse(model)
    original, x = Flexible().to(device).eval(), make(5, 12, dtype=torch.float32, device=device)
    model.fc1, model.fc2 = original.fc1, original.fc2
    assert ops_of(model, x) == ["mlp_forward"]
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)


def test_is_called_as_its_own_forward_is(device):
    torch.manual_seed(0)
    model = Flexible().to(device).eval()
    original = copy.deepcopy(model)
    fusedops.fuse(model)
    x = make(5, 12, dtype=torch.float32, device=device)
    named = {"hidden_states": x}
    calls = [
        ((x,), {}),
        ((), named),
        ((x, 1), {}),
        ((x,), {"unused": 1}),
        ((), {"unused": 1, **named}),
    ]
    for args, kwargs in calls:
        expected = original(*args, **kwargs)
        torch.testing.assert_close(model(*args, **kwargs), expected, rtol=1e-4, atol=1e-5)
    assert ops_of(lambda x: model(hidden_states=x), x) == ["mlp_forward"]
    for wrong in ({"x": x}, {}):
        with pytest.raises(TypeError, match=r"forward\(\)"):
            model(**wrong)


@pytest.mark.parametrize("kind", [Flexible, Wrapped])
def test_copies_answer_to_their_own_changes(device, kind):
    model = kind().to(device).eval()
    fusedops.fuse(model)
    x = make(5, 12, dtype=torch.float32, device=device)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        assert ops_of(other, x) == ["mlp_forward"]
        other._modules = {**other._modules, "act": nn.Tanh()}
        assert "mlp_forward" not in ops_of(other, x)
        assert ops_of(model, x) == ["mlp_forward"]


@pytest.mark.parametrize("kind", [Flexible, Wrapped])
def test_compiled_code_sees_a_change(device, kind):
    model = kind().to(device).eval()
    fusedops.fuse(model)
    x = make(5, 12, dtype=torch.float32, device=device)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), model(x))
    for name, value in (("scale", 3.0), ("act", nn.Tanh())):
        before = compiled(x)
        setattr(model, name, value)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(compiled(x), before)


class WithLock(Flexible):
    """State that only its own methods can copy."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def __getstate__(self):
        return {k: v for k, v in vars(self).items() if k != "lock"}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.lock = "made anew"


class OwnCopy(Flexible):
    """A copy that is made by the constructor."""

    def __deepcopy__(self, memo):
        other = type(self)()
        other.load_state_dict(self.state_dict())
        return other.train(self.training)


@pytest.mark.parametrize("kind", [WithLock, OwnCopy])
def test_copies_by_the_means_of_its_class(kind):
    model = kind().eval()
    fusedops.fuse(model)
    other = copy.deepcopy(model)
    x = make(5, 12, dtype=torch.float32, device="cpu")
    torch.testing.assert_close(other(x), model(x), rtol=1e-4, atol=1e-5)
    if kind is WithLock:
        assert other.lock == "made anew"
        assert type(pickle.loads(pickle.dumps(model))) is type(model)


def test_no_registry_of_subclasses_sees_the_fused_class():
    registry = []

    class Registered(Flexible):
        def __init_subclass__(cls, name, **kwargs):
            registry.append(name)

    class Block(Registered, name="block"):
        pass

    assert len(fusedops.fuse(Block()).blocks) == 1
    assert registry == ["block"]
