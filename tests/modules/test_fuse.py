"""fusedops.fuse: what it replaces, what it leaves alone, and that nobody notices."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import fusedops
from util import make

MODULES = {
    "relu": nn.ReLU,
    "relu_inplace": lambda: nn.ReLU(inplace=True),
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
    "leaky_relu_inplace": lambda: nn.LeakyReLU(0.01, inplace=True),
    "hardswish": nn.Hardswish,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "elu": nn.ELU,
    "relu6": nn.ReLU6,
}
OTHER_SETTINGS = {
    "slope": lambda: nn.LeakyReLU(0.2),
    "beta": lambda: nn.Softplus(beta=2),
    "threshold": lambda: nn.Softplus(threshold=1),
    "alpha": lambda: nn.ELU(1.5),
}


def run(model, x):
    """Output and gradients of a model."""
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return y.detach(), {k: p.grad.clone() for k, p in model.named_parameters()}


def assert_same(model, fused, x):
    """Both compute the same, forward and backward."""
    (y, grads), (fused_y, fused_grads) = run(model, x), run(fused, x)
    torch.testing.assert_close(fused_y, y)
    assert list(grads) == list(fused_grads)
    for key, grad in grads.items():
        torch.testing.assert_close(fused_grads[key], grad)


def mlp():
    """Two linear layers and an activation between."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def reason(report, layer):
    """Why a layer was skipped."""
    return {s.name: s.reason for s in report.skipped}[layer]


@pytest.mark.parametrize("kind", MODULES)
def test_absorbs_every_activation(device, kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), MODULES[kind](), nn.Linear(8, 3)).to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    assert (report.num_fused, report.num_absorbed, report.num_skipped) == (2, 1, 0)
    assert type(model[0]) is type(model[2]) is fusedops.nn.Linear
    assert [layer.activation for layer in report.fused] == [kind.removesuffix("_inplace"), None]
    assert type(model[1]) is type(original[1])
    assert model[0].activation is model[2].activation is None
    assert_same(original, model, make(5, 6, dtype=torch.float32, device=device))


@pytest.mark.parametrize("kind", OTHER_SETTINGS)
def test_leaves_activations_with_other_settings(device, kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), OTHER_SETTINGS[kind](), nn.Linear(8, 3)).to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    assert (report.num_fused, report.num_absorbed) == (2, 0)
    assert_same(original, model, make(5, 6, dtype=torch.float32, device=device))


def test_settings_may_change_after_fuse(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 3)).to(device)
    original = copy.deepcopy(model)
    fusedops.fuse(model)
    model[1].negative_slope = original[1].negative_slope = 0.3
    assert_same(original, model, make(5, 6, dtype=torch.float32, device=device))


def test_keeps_parameters_state_dict_and_flags(device):
    model = mlp().to(device).eval()
    model[0].weight.requires_grad_(False)
    parameters, keys = list(model.parameters()), list(model.state_dict())
    layers = list(model)
    fusedops.fuse(model)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys
    assert model[0] is layers[0]
    assert not any(module.training for module in model.modules())
    assert not model[0].weight.requires_grad
    model.load_state_dict(mlp().state_dict())


def test_an_optimizer_made_before_still_trains(device):
    model = mlp().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    fusedops.fuse(model)
    run(model, make(5, 6, dtype=torch.float32, device=device))
    optimizer.step()
    assert all(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


class Nested(nn.Module):
    """Linear layers in every kind of container, called by hand."""

    def __init__(self):
        super().__init__()
        self.items = nn.ModuleList([nn.Linear(6, 6), nn.ReLU()])
        self.named = nn.ModuleDict({"a": nn.Linear(6, 6)})
        self.deep = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.SiLU())
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        x = self.items[1](self.items[0](x))
        return self.norm(self.deep(self.named["a"](x)))


def test_containers(device):
    torch.manual_seed(0)
    model = Nested().to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    assert {f.name: (f.activation, f.absorbed) for f in report.fused} == {
        "items.0": (None, ()),  # a ModuleList says nothing about the order of calls
        "named.a": (None, ()),
        "deep.0.0": ("tanh", ("deep.0.1",)),
        "norm": (None, ()),
    }
    assert type(model.items[1]) is nn.ReLU
    assert type(model.deep[1]) is nn.SiLU
    assert_same(original, model, make(5, 6, dtype=torch.float32, device=device))


def test_is_idempotent():
    model = mlp()
    fusedops.fuse(model)
    shown = repr(model)
    report = fusedops.fuse(model)
    assert (report.num_fused, report.num_absorbed, report.unchanged) == (0, 0, 2)
    assert repr(model) == shown


def test_a_fused_layer_does_not_absorb_a_second_activation():
    model = nn.Sequential(fusedops.nn.Linear(4, 4, activation="relu"), nn.Tanh())
    fusedops.fuse(model)
    assert model[0].activation == "relu"
    assert type(model[1]) is nn.Tanh


def test_our_own_layer_absorbs_too():
    model = nn.Sequential(fusedops.nn.Linear(4, 4), nn.Tanh())
    report = fusedops.fuse(model)
    assert [(f.activation, f.absorbed) for f in report.fused] == [("tanh", ("1",))]


def test_a_model_that_is_one_linear(device):
    layer = nn.Linear(6, 3, device=device)
    assert fusedops.fuse(layer).num_fused == 1
    assert type(layer) is fusedops.nn.Linear
    assert layer(make(5, 6, dtype=torch.float32, device=device)).shape == (5, 3)


def test_a_linear_shared_by_two_places(device):
    torch.manual_seed(0)
    shared = nn.Linear(6, 6)
    same = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU()).to(device)
    original = copy.deepcopy(same)
    report = fusedops.fuse(same)
    assert [(f.name, f.activation, f.absorbed) for f in report.fused] == [
        ("0, 2", "relu", ("1", "3"))
    ]
    assert_same(original, same, make(5, 6, dtype=torch.float32, device=device))

    shared = nn.Linear(6, 6)
    mixed = nn.Sequential(shared, nn.ReLU(), shared, nn.Tanh(), shared).to(device)
    original = copy.deepcopy(mixed)
    report = fusedops.fuse(mixed)
    assert [(f.name, f.activation, f.absorbed) for f in report.fused] == [
        ("0, 2, 4", "relu, tanh", ("1", "3"))
    ]
    assert_same(original, mixed, make(5, 6, dtype=torch.float32, device=device))


def test_a_shared_activation_and_a_shared_sequential(device):
    torch.manual_seed(0)
    act = nn.ReLU()
    block = nn.Sequential(nn.Linear(6, 6), act)
    model = nn.Sequential(block, act, nn.Linear(6, 6), act, block, nn.LayerNorm(6), act).to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    assert (report.num_fused, report.num_absorbed) == (3, 2)  # with the norm
    assert model[1] is act
    assert model[6] is act
    assert_same(original, model, make(5, 6, dtype=torch.float32, device=device))


def test_tied_weights_stay_tied(device):
    embedding = nn.Embedding(8, 6)
    head = nn.Linear(6, 8, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head).to(device)
    fusedops.fuse(model)
    assert model[1].weight is model[0].weight


class LoRA(nn.Linear):
    """A subclass with its own forward."""

    def forward(self, x):
        return super().forward(x) + 1


def with_hook(layer):
    layer.register_forward_hook(lambda module, args, output: output + 1)
    return layer


def with_own_forward(layer):
    layer.forward = lambda x: nn.functional.linear(x, layer.weight) - 1
    return layer


def with_buffer(layer):
    layer.register_buffer("scale", torch.ones(1))
    return layer


LEFT_ALONE = {
    "subclass": (lambda: LoRA(6, 6), "subclass"),
    "hook": (lambda: with_hook(nn.Linear(6, 6)), "hooks"),
    "weight_norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
        "parametrizations",
    ),
    "spectral_norm": (lambda: nn.utils.spectral_norm(nn.Linear(6, 6)), "hooks"),
    "pruning": (
        lambda: prune.random_unstructured(nn.Linear(6, 6), "weight", 0.5),
        "hooks",
    ),
    "own_forward": (lambda: with_own_forward(nn.Linear(6, 6)), "forward"),
    "buffer": (lambda: with_buffer(nn.Linear(6, 6)), "more than weight and bias: scale"),
}


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_leaves_alone(device, kind):
    torch.manual_seed(0)
    make_layer, why = LEFT_ALONE[kind]
    layer = make_layer()
    before = type(layer)
    model = nn.Sequential(layer, nn.ReLU()).to(device)
    report = fusedops.fuse(model)
    assert (report.num_fused, report.num_absorbed, report.num_skipped) == (0, 0, 1)
    assert why in reason(report, "0")
    assert type(model[0]) is before
    assert type(model[1]) is nn.ReLU


def test_leaves_other_dtypes_alone():
    model = nn.ModuleDict(
        {
            "complex": nn.Linear(4, 4, dtype=torch.complex64),
            "attention": nn.MultiheadAttention(8, 2),
        }
    )
    report = fusedops.fuse(model)
    assert reason(report, "complex") == "weight has dtype complex64"
    assert [layer.name for layer in report.fused] == ["attention"]


def test_an_activation_with_hooks_stays(device):
    model = mlp().to(device)
    seen = []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    report = fusedops.fuse(model)
    assert (report.num_fused, report.num_absorbed) == (2, 0)
    assert "hooks" in report.fused[0].note
    model(make(5, 6, dtype=torch.float32, device=device))
    assert seen == [1]


class Reversed(nn.Sequential):
    """A Sequential that runs backwards."""

    def forward(self, x):
        for module in reversed(self):
            x = module(x)
        return x


def test_a_sequential_with_its_own_order_keeps_its_activations(device):
    torch.manual_seed(0)
    model = Reversed(nn.Linear(6, 6), nn.Tanh()).to(device)
    original = copy.deepcopy(model)
    assert fusedops.fuse(model).num_absorbed == 0
    assert_same(original, model, make(5, 6, dtype=torch.float32, device=device))


def test_an_activation_subclass_is_not_absorbed():
    class Shifted(nn.ReLU):
        def forward(self, x):
            return super().forward(x) + 1

    model = nn.Sequential(nn.Linear(6, 6), Shifted())
    assert fusedops.fuse(model).num_absorbed == 0


def test_report_reads_as_a_table():
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), LoRA(8, 3))
    assert str(fusedops.fuse(model)).splitlines() == [
        "fused 1 layer(s), absorbed 1 activation(s), skipped 1, fused before 0",
        "",
        "fused layer  shape   activation  notes",
        "-----------  ------  ----------  ----------",
        "0            6 -> 8  gelu        absorbed 1",
        "",
        "skipped layer  type  reason",
        "-------------  ----  --------------------------------------------------",
        "2              LoRA  a subclass of nn.Linear may compute something else",
    ]


def test_a_fused_model_copies_and_pickles(device):
    model = mlp().to(device)
    fusedops.fuse(model)
    x = make(5, 6, dtype=torch.float32, device=device)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other[0]) is fusedops.nn.Linear
        assert torch.equal(other(x), model(x))


def test_what_is_no_module_is_an_error():
    with pytest.raises(TypeError, match=r"fuse: model must be a torch.nn.Module; got list"):
        fusedops.fuse([nn.Linear(2, 2)])
