"""fusedops.fuse on MLP blocks: which modules it recognises, and that nobody notices."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from modules import layers
from util import calls_of, make


class HuggingFaceMLP(nn.Module):
    """gate_proj, up_proj, down_proj, act_fn, as in Llama, Mistral, Qwen and Gemma."""

    def __init__(self, act=nn.SiLU):
        super().__init__()
        self.hidden_size = 12
        self.gate_proj = nn.Linear(12, 20, bias=False)
        self.up_proj = nn.Linear(12, 20, bias=False)
        self.down_proj = nn.Linear(20, 12, bias=False)
        self.act_fn = act()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class PackedMLP(nn.Module):
    """gate_up_proj, as in Phi-3."""

    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Linear(12, 40, bias=False)
        self.down_proj = nn.Linear(20, 12, bias=False)
        self.activation_fn = nn.SiLU()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        up_states = self.gate_up_proj(hidden_states)
        gate, up_states = up_states.chunk(2, dim=-1)
        up_states = up_states * self.activation_fn(gate)
        return self.down_proj(up_states)


class UpFirst(PackedMLP):
    """up_gate, as in diffusers' GEGLU."""

    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Linear(12, 40)

    def forward(self, x):
        up, gate = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(up * self.activation_fn(gate))


class Split(PackedMLP):
    """By sizes of the halves."""

    def forward(self, x):
        gate, up = self.gate_up_proj(x).split(20, dim=-1)
        return self.down_proj(self.activation_fn(gate) * up)


class LlamaFeedForward(nn.Module):
    """w1, w3, w2 and a functional activation, as in Meta's own code."""

    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(12, 20, bias=False)
        self.w2 = nn.Linear(20, 12, bias=False)
        self.w3 = nn.Linear(12, 20, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TorchtuneFeedForward(nn.Module):
    """The same with an activation module and an optional up projection."""

    def __init__(self, up=True):
        super().__init__()
        self.w1 = nn.Linear(12, 20)
        self.w2 = nn.Linear(20, 12)
        self.w3 = nn.Linear(12, 20) if up else None
        self.activation = nn.SiLU()

    def forward(self, x):
        h = self.activation(self.w1(x))
        if self.w3 is not None:
            h = h * self.w3(x)
        return self.w2(h)


class GELUActivation(nn.Module):
    """A wrapper as in transformers."""

    def __init__(self):
        super().__init__()
        self.act = F.gelu

    def forward(self, input):
        return self.act(input)


class ReLUSquared(nn.Module):
    def forward(self, input):
        return torch.square(F.relu(input))


class Mish(nn.Module):
    def forward(self, x):
        return F.mish(x)


class TimmMlp(nn.Module):
    """fc1, act, drop, norm, fc2, drop."""

    def __init__(self, act=nn.GELU, drop=0.0):
        super().__init__()
        self.fc1 = nn.Linear(12, 20)
        self.act = act()
        self.drop1 = nn.Dropout(drop)
        self.norm = nn.Identity()
        self.fc2 = nn.Linear(20, 12)
        self.drop2 = nn.Dropout(drop)

    def forward(self, x):
        x = self.drop1(self.act(self.fc1(x)))
        return self.drop2(self.fc2(self.norm(x)))


class GELUTanh(nn.Module):
    """A partial function, as in transformers."""

    def __init__(self):
        super().__init__()
        self.act = functools.partial(nn.functional.gelu, approximate="tanh")

    def forward(self, input):
        return self.act(input)


def swish_gate(gate, up):
    return up * F.silu(gate)


class Helpers(LlamaFeedForward):
    """Own functions and methods, and a module named as one of torch's functions."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.0)

    def gated(self, x):
        return swish_gate(
            self.w1(x), torch.relu(self.w3(x)) if self.dropout is None else self.w3(x)
        )

    def forward(self, x):
        return self.dropout(self.w2(self.gated(x)))


BLOCKS = {
    "huggingface": (HuggingFaceMLP, "gated_mlp", "silu"),
    "gemma": (lambda: HuggingFaceMLP(lambda: nn.GELU("tanh")), "gated_mlp", "gelu_tanh"),
    "gemma_now": (lambda: HuggingFaceMLP(GELUTanh), "gated_mlp", "gelu_tanh"),
    "helpers": (Helpers, "gated_mlp", "silu"),
    "phi3": (PackedMLP, "gated_mlp", "silu"),
    "up_first": (UpFirst, "gated_mlp", "silu"),
    "split": (Split, "gated_mlp", "silu"),
    "llama": (LlamaFeedForward, "gated_mlp", "silu"),
    "torchtune": (TorchtuneFeedForward, "gated_mlp", "silu"),
    "torchtune_two": (lambda: TorchtuneFeedForward(up=False), "mlp", "silu"),
    "timm": (TimmMlp, "mlp", "gelu"),
    "wrapped": (lambda: TimmMlp(GELUActivation), "mlp", "gelu"),
    "relu2": (lambda: TimmMlp(ReLUSquared), "mlp", "relu2"),
    "clip": (lambda: TimmMlp(layers.QuickGELU), "mlp", "quick_gelu"),
    "hardswish": (lambda: TimmMlp(nn.Hardswish), "mlp", "hardswish"),
    "mish": (lambda: TimmMlp(Mish), "mlp", "mish"),
    "elu": (lambda: HuggingFaceMLP(nn.ELU), "gated_mlp", "elu"),
}


def run(model, x):
    """Output and gradients of a model."""
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return y.detach(), {k: p.grad.clone() for k, p in model.named_parameters()}


def assert_same(model, fused, x):
    (y, grads), (fused_y, fused_grads) = run(model, x), run(fused, x)
    torch.testing.assert_close(fused_y, y, rtol=1e-4, atol=1e-5)
    assert list(grads) == list(fused_grads)
    for key, grad in grads.items():
        torch.testing.assert_close(fused_grads[key], grad, rtol=1e-4, atol=1e-4)


def ops_of(model, x):
    """Our ops that a forward calls, without those of norms."""
    return [name for name in calls_of(model, x).ours if not name.endswith("_norm")]


@pytest.mark.parametrize("kind", BLOCKS)
def test_recognises(device, kind):
    torch.manual_seed(0)
    make_block, op, activation = BLOCKS[kind]
    model = nn.Sequential(make_block(), nn.LayerNorm(12)).to(device)
    original = copy.deepcopy(model)
    keys, block = list(model.state_dict()), model[0]
    report = fusedops.fuse(model)
    assert [(b.name, b.kind, b.activation) for b in report.blocks] == [("0", op, activation)]
    assert model[0] is block
    assert isinstance(block, type(original[0]))
    assert list(model.state_dict()) == keys
    x = make(5, 12, dtype=torch.float32, device=device)
    assert ops_of(model, x) == [f"{op}_forward"]
    assert_same(original, model, x)
    assert fusedops.fuse(model).blocks == []


class Scaled(TimmMlp):
    def forward(self, x):
        return 0.5 * super().forward(x)


class Residual(TimmMlp):
    def forward(self, x):
        return x + super().forward(x)


class WithScale(TimmMlp):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x):
        return super().forward(x * self.scale)


class UpTwice(HuggingFaceMLP):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.gate_proj(x))


class UnevenSplit(PackedMLP):
    def __init__(self):
        super().__init__()
        self.down_proj = nn.Linear(16, 12)

    def forward(self, x):
        parts = self.gate_up_proj(x).split(16, dim=-1)
        return self.down_proj(self.activation_fn(parts[0]) * parts[1])


class NotTheInput(HuggingFaceMLP):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x + 1))


class Branches(TimmMlp):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class OwnActivation(nn.GELU):
    def forward(self, input):
        return super().forward(input) + 1


LEFT_ALONE = [
    Scaled,
    Residual,
    WithScale,
    UpTwice,
    UnevenSplit,
    NotTheInput,
    Branches,
    lambda: TimmMlp(OwnActivation),
    lambda: TimmMlp(nn.Softsign),
]


@pytest.mark.parametrize("index", range(len(LEFT_ALONE)))
def test_leaves_alone_what_computes_something_else(device, index):
    torch.manual_seed(0)
    model = LEFT_ALONE[index]().to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    assert report.blocks == []
    x = make(5, 12, dtype=torch.float32, device=device)
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)


class Dropping(nn.Module):
    """A gated MLP with dropouts, one of them perhaps of the gate alone."""

    def __init__(self, gate):
        super().__init__()
        self.w1, self.w3 = nn.Linear(12, 20), nn.Linear(12, 20)
        self.w2, self.drop, self.gate = nn.Linear(20, 12), nn.Dropout(0.5), gate

    def forward(self, x):
        return self.drop(self.w2(self.drop(self.gate(F.silu(self.w1(x))) * self.w3(x))))


def assert_same_draws(original, model, x):
    """Values and gradients of a step, with the same random numbers."""
    results = []
    for one in (original, model):
        one.zero_grad()
        leaf = x.clone().requires_grad_()
        torch.manual_seed(1)
        y = one(leaf)
        y.square().sum().backward()
        results.append([y, leaf.grad, *(p.grad for p in one.parameters())])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gate", [nn.Identity, nn.Dropout])
def test_dropouts_of_a_gated_block(device, gate):
    torch.manual_seed(0)
    model = Dropping(gate()).to(device)
    original = copy.deepcopy(model)
    by_layers = gate is nn.Identity
    note = fusedops.fuse(model).blocks[0].note
    assert note.startswith("by layers" if by_layers else "unfused")
    x = make(5, 12, dtype=torch.float32, device=device)
    assert ops_of(model, x) == ["linear"] * 3
    assert ("aten.silu" in calls_of(model, x).names) is not by_layers
    assert_same_draws(original, model, x)


def test_dropout_runs_while_training(device):
    torch.manual_seed(0)
    model = TimmMlp(drop=0.5).to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    assert report.blocks[0].note == "by layers while drop2, drop1 drops"
    x = make(64, 12, dtype=torch.float32, device=device)
    y = model(x)
    assert (y == 0).any()
    assert ops_of(model, x) == ["linear", "linear"]
    assert "aten.gelu" not in calls_of(model, x).names
    for rates in ((0.5, 0.5), (0.5, 0.0), (0.0, 0.5)):
        for one in (original, model):
            one.drop1.p, one.drop2.p = rates
        assert_same_draws(original, model, x)
    assert ops_of(model, x) == ["mlp_forward"]  # behind the layers alone
    model.eval()
    assert not (model(x) == 0).any()
    assert ops_of(model, x) == ["mlp_forward"]


def test_a_layer_that_changes_later_is_respected(device):
    torch.manual_seed(0)
    x = make(5, 12, dtype=torch.float32, device=device)
    hooked = HuggingFaceMLP().to(device)
    fusedops.fuse(hooked)
    seen = []
    hooked.up_proj.register_forward_hook(lambda *_: seen.append(1))
    hooked(x)
    assert seen == [1]

    class Adapter(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x) + 1

    adapted = HuggingFaceMLP().to(device)
    fusedops.fuse(adapted)
    before = adapted(x)
    adapted.down_proj = Adapter(adapted.down_proj)
    torch.testing.assert_close(adapted(x), before + 1)


@pytest.mark.parametrize("kind", ["huggingface", "timm", "wrapped", "torchtune_two", "gemma_now"])
def test_copies_pickles_and_compiles(device, kind):
    model = BLOCKS[kind][0]().to(device)
    fusedops.fuse(model)
    x = make(5, 12, dtype=torch.float32, device=device)
    expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is type(model)
        assert torch.equal(other(x), expected)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)


def test_pairs_in_a_sequential(device):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 20),
        nn.ReLU(),
        nn.Linear(20, 20),
        nn.Tanh(),
        nn.Linear(20, 12),
        nn.LayerNorm(12),
    ).to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    assert [(b.kind, b.layers, b.activation) for b in report.blocks] == [
        ("mlp", ("2", "4"), "tanh")
    ]
    x = make(5, 12, dtype=torch.float32, device=device)
    assert ops_of(model, x) == ["linear", "mlp_forward"]
    assert_same(original, model, x)
    assert list(model.state_dict()) == list(original.state_dict())
    assert len(model[2:]) == 4
    torch.testing.assert_close(model[2:](model[:2](x)), original(x), rtol=1e-4, atol=1e-5)
    seen = []
    model[4].register_forward_hook(lambda *_: seen.append(1))
    model(x)
    assert seen == [1]
    assert fusedops.fuse(model).blocks == []


def test_dropout_inside_a_sequential(device):
    """As in torchvision's MLP."""
    torch.manual_seed(0)
    layers = nn.Linear(12, 20), nn.GELU(), nn.Dropout(0.0), nn.Linear(20, 12), nn.Dropout(0.5)
    model = nn.Sequential(*layers).to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    assert [(b.kind, b.layers, b.activation) for b in report.blocks] == [
        ("mlp", ("0", "3"), "gelu")
    ]
    x = make(5, 12, dtype=torch.float32, device=device)
    assert ops_of(model, x) == ["mlp_forward"]
    model[2].p = original[2].p = 0.5
    assert ops_of(model, x) == ["linear", "linear"]
    torch.manual_seed(1)
    y = model(x)
    torch.manual_seed(1)
    torch.testing.assert_close(y, original(x), rtol=1e-4, atol=1e-5)
    assert ops_of(model.eval(), x) == ["mlp_forward"]
    assert_same(original.eval(), model, x)


def test_the_report_shows_blocks():
    model = nn.ModuleDict({"a": HuggingFaceMLP()})
    text = str(fusedops.fuse(model)).splitlines()
    assert text[-3:] == [
        "fused block  op         layers                         activation  notes",
        "-----------  ---------  -----------------------------  ----------  -----",
        "a            gated_mlp  gate_proj, up_proj, down_proj  silu",
    ]
