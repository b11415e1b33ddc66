"""Fused models whose classes, globals, activations or layers are changed afterwards."""

from __future__ import annotations

import copy
import itertools
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from modules.test_fuse_blocks import ops_of
from util import make

SQUARED = False
FACTOR = 1.0


def gate(g, u):
    return F.silu(g) * u


class Act(nn.Module):
    def forward(self, x):
        return self.act(x)

    def act(self, x):
        return torch.nn.functional.gelu(x)


class Mlp(nn.Module):
    """Reads globals, functions, methods of its own and of its activation's class."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 20)
        self.act = Act()
        self.fc2 = nn.Linear(20, 12)

    def forward(self, x):
        if SQUARED:
            x = x * x
        return self.fc2(self.act(self.widen(x)))

    def widen(self, x):
        return self.fc1(x)


class Inherits(Mlp):
    pass


class CallsSuper(Mlp):
    def forward(self, x):
        return super().forward(x)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Linear(12, 20), nn.Linear(12, 20)
        self.w2 = nn.Linear(20, 12)

    def forward(self, x):
        return self.w2(gate(self.w1(x), self.w3(x)))


def closed_over():
    """A class whose forward reads a variable of the function that made it."""
    factor = 1.0

    def change():
        nonlocal factor
        factor = 3.0

    class Closed(Mlp):
        def forward(self, x):
            if factor == 3.0:
                x = 3.0 * x
            return self.fc2(F.relu(self.fc1(x)))

    Closed.change = staticmethod(change)
    return Closed


HERE = sys.modules[__name__]
CHANGES = {
    "forward of the class": (Mlp, Mlp, "forward", lambda self, x: self.fc1(x)[..., :12]),
    "forward of a base": (Inherits, Mlp, "forward", lambda self, x: self.fc2(self.fc1(x))),
    "forward that super calls": (CallsSuper, Mlp, "forward", lambda self, x: -self.fc1(x)),
    "new forward in between": (Inherits, Inherits, "forward", lambda self, x: self.fc1(x)),
    "method": (Mlp, Mlp, "widen", lambda self, x: self.fc1(-x)),
    "method of the activation": (Mlp, Act, "act", lambda self, x: torch.tanh(x)),
    "forward of the activation": (Mlp, Act, "forward", lambda self, x: torch.tanh(x)),
    "flag": (Mlp, HERE, "SQUARED", True),
    "function": (Gated, HERE, "gate", lambda g, u: torch.tanh(g) * u),
    "module": (Gated, HERE, "F", type(F)("F")),
    "function of torch": (Gated, F, "silu", lambda x: x),
    "function by a path": (Mlp, torch.nn.functional, "gelu", torch.tanh),
}
CHANGES["module"][3].silu = torch.tanh


def compiled(model):
    """A compiled model: one graph, of torch's own functions."""
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, backend="eager")


@pytest.mark.parametrize("change", CHANGES)
def test_a_patch_is_respected_and_its_end_too(device, monkeypatch, change):
    torch.manual_seed(0)
    kind, owner, name, value = CHANGES[change]
    model = kind().to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    op = f"{report.blocks[0].kind}_forward"
    x = make(5, 12, dtype=torch.float32, device=device)
    run = compiled(model)
    with torch.no_grad():
        before = model(x)
        assert ops_of(model, x) == [op]
        torch.testing.assert_close(run(x), before)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value, raising=False)
            want = original(x)
            torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
            assert op not in ops_of(model, x)
            torch.testing.assert_close(run(x), want, rtol=1e-4, atol=1e-5)
        assert ops_of(model, x) == [op]
        torch.testing.assert_close(run(x), before)


def test_a_variable_of_an_outer_function(device):
    torch.manual_seed(0)
    kind = closed_over()
    model = kind().to(device)
    original = copy.deepcopy(model)
    fusedops.fuse(model)
    x = make(5, 12, dtype=torch.float32, device=device)
    run = compiled(model)
    with torch.no_grad():
        assert ops_of(model, x) == ["mlp_forward"]
        torch.testing.assert_close(run(x), model(x))
        kind.change()
        want = original(x)
        torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(run(x), want, rtol=1e-4, atol=1e-5)


def test_globals_that_are_no_modules(device):
    names = {"nn": nn, "F": F}
    code = (
        "class Mlp(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc1, self.fc2 = nn.Linear(12, 20), nn.Linear(20, 12)\n"
        "    def forward(self, x):\n"
        "        return self.fc2(F.relu(self.fc1(-x if NEGATIVE else x)))\n"
        "NEGATIVE = False\n"
    )
    exec(code, names)
    model = names["Mlp"]().to(device)
    fusedops.fuse(model)
    x = make(5, 12, dtype=torch.float32, device=device)
    run = compiled(model)
    with torch.no_grad():
        assert ops_of(model, x) == ["mlp_forward"]
        torch.testing.assert_close(run(x), model(x))
        negative = model(-x)
        names["NEGATIVE"] = True
        torch.testing.assert_close(model(x), negative, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(run(x), negative, rtol=1e-4, atol=1e-5)


def test_a_method_that_an_attribute_shadows(device):
    model = Mlp().to(device)
    fusedops.fuse(model)
    x = make(5, 12, dtype=torch.float32, device=device)
    negative = model(-x)
    model.widen = lambda x: model.fc1(-x)
    torch.testing.assert_close(model(x), negative, rtol=1e-4, atol=1e-5)
    del model.widen
    model.act.act = torch.tanh
    assert "mlp_forward" not in ops_of(model, x)


def test_a_pickle_is_traced_where_it_is_loaded(device, monkeypatch):
    model = Mlp().to(device)
    original = copy.deepcopy(model)
    fusedops.fuse(model)
    x = make(5, 12, dtype=torch.float32, device=device)
    stored = pickle.dumps(model)
    monkeypatch.setattr(HERE, "SQUARED", True)
    loaded = pickle.loads(stored)
    for other in (loaded, copy.deepcopy(model), copy.copy(model)):
        torch.testing.assert_close(other(x), original(x), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(HERE, "SQUARED", False)
    for other in (loaded, pickle.loads(stored), copy.deepcopy(model)):
        torch.testing.assert_close(other(x), original(x), rtol=1e-4, atol=1e-5)
        assert isinstance(other, Mlp)
    assert ops_of(pickle.loads(stored), x) == ["mlp_forward"]


# ---- nn.Sequential ----


class LoRA(nn.Module):
    """An adapter as peft makes it."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer
        self.a = nn.Linear(layer.in_features, 2, bias=False)
        self.b = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.b(self.a(x))


def tower():
    """The bottom network of DLRM."""
    torch.manual_seed(0)
    sizes = (13, 16, 12, 8)
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*(m for k, n in pairs for m in (nn.Linear(k, n), nn.ReLU())))


def adapt(model, index=2):
    torch.manual_seed(1)
    model[index] = LoRA(model[index])


TOWER_CHANGES = {
    "lora": adapt,
    "lora everywhere": lambda m: [adapt(m, i) for i in (0, 2, 4)],
    "hook on the activation": lambda m: m[1].register_forward_hook(lambda *a: 2 * a[2]),
    "hook on the layer": lambda m: m[0].register_forward_hook(lambda *a: 2 * a[2]),
    "pre-hook": lambda m: m[3].register_forward_pre_hook(lambda _, a: (-a[0],)),
    "another activation": lambda m: m.__setitem__(1, nn.Softsign()),
    "activation's forward": lambda m: setattr(m[1], "forward", torch.tanh),
    "no activation": lambda m: m.__setitem__(1, nn.Identity()),
    "module in between": lambda m: m.insert(1, nn.LayerNorm(16)),
    "forward of the instance": lambda m: setattr(m, "forward", m[0].forward),
}


@pytest.mark.parametrize("change", TOWER_CHANGES)
def test_a_sequential_that_changes(device, change):
    model, original = tower().to(device), tower().to(device)
    report = fusedops.fuse(model)
    assert report.num_absorbed == 3
    assert list(model._modules) == list(original._modules)
    x = make(5, 13, dtype=torch.float32, device=device)
    run = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(x), original(x), rtol=1e-4, atol=1e-5)
        assert ops_of(model, x) == ["linear"] * 3
        for m in (model, original):
            TOWER_CHANGES[change](m)
            m.to(device)
        want = original(x)
        torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
        if "hook" in change:
            run = compiled(model)  # torch's compiled code does not look for new hooks
        torch.testing.assert_close(run(x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["forward", "__iter__"])
def test_a_sequential_of_another_class(device, monkeypatch, name):
    class Tower(nn.Sequential):
        pass

    model = Tower(*tower()).to(device)
    fusedops.fuse(model)
    x = make(5, 13, dtype=torch.float32, device=device)
    assert isinstance(model, Tower)
    assert ops_of(model, x) == ["linear"] * 3
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    value = {"forward": lambda self, x: self[0](x), "__iter__": lambda self: iter([self[0]])}[name]
    want = model[0](x)
    monkeypatch.setattr(Tower, name, value, raising=False)
    torch.testing.assert_close(model(x), want)


def test_the_class_of_an_activation(device, monkeypatch):
    model, original = tower().to(device), tower().to(device)
    fusedops.fuse(model)
    x = make(5, 13, dtype=torch.float32, device=device)
    model(x)
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: torch.tanh(x))
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)


def test_layers_called_by_hand(device):
    model, original = tower().to(device), tower().to(device)
    fusedops.fuse(model)
    x = make(5, 13, dtype=torch.float32, device=device)
    torch.testing.assert_close(model[0](x), original[0](x))
    y = x
    for layer in model:
        y = layer(y)
    torch.testing.assert_close(y, original(x), rtol=1e-4, atol=1e-5)
    seen = []
    handle = model[1].register_forward_hook(lambda *_: seen.append(1))
    model(x)
    assert seen == [1]
    handle.remove()
    assert ops_of(model, x) == ["linear"] * 3
