"""fusedops.fuse on MLPs that a method runs layer by layer: found in its source."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fusedops
from modules import layers
from util import calls_of, make

MODELS = {
    "bert": (layers.Bert, "mlp", ("intermediate.dense", "output.dense"), "gelu"),
    "bert_new": (lambda: layers.Bert(layers.NewGELU), "mlp",
                 ("intermediate.dense", "output.dense"), "gelu_tanh"),
    "decoder": (layers.Decoder, "mlp", ("fc1", "fc2"), "relu"),
    "t5": (layers.T5, "mlp", ("wi", "wo"), "relu"),
    "t5_gated": (layers.GatedT5, "gated_mlp", ("wi_0", "wi_1", "wo"), "gelu_tanh"),
    "gpt2": (layers.GPT2, "mlp", ("c_fc", "c_proj"), "gelu_tanh"),
    "clip": (lambda **options: layers.T5(layers.QuickGELU, **options), "mlp", ("wi", "wo"),
             "quick_gelu"),
    "functional": (layers.Functional, "mlp", ("fc1", "fc2"), "gelu_tanh"),
    "function": (layers.OwnFunction, "mlp", ("fc1", "fc2"), "gelu"),
}  # fmt: skip
LEFT_ALONE = [
    layers.KeepsHidden,
    layers.KeepsInLoop,
    layers.OtherInput,
    layers.SumOfBoth,
    layers.Normed,
    layers.LambdaReads,
    layers.OtherFunction,
    layers.PrintedFunction,
    lambda: layers.T5(nn.Softsign),
]


def mlps(model, x):
    """Our MLP ops that a forward calls."""
    return [name for name in calls_of(model, x).ours if "mlp_forward" in name]


def fused(kind, device, **options):
    torch.manual_seed(0)
    model = (MODELS[kind][0](**options) if options else MODELS[kind][0]()).to(device)
    model = nn.Sequential(model)
    original = copy.deepcopy(model)
    _, op, names, activation = MODELS[kind]
    (block,) = fusedops.fuse(model).blocks
    assert (block.name, block.kind, block.layers, block.activation) == ("0", op, names, activation)
    return original, model


def an_input(device, dtype=torch.float32):
    return make(3, 5, 12, dtype=dtype, device=device)


def assert_same(original, model, x):
    results = []
    for one in (original, model):
        one.zero_grad()
        leaf = x.clone().requires_grad_()
        y = one(leaf)
        y.square().sum().backward()
        grads = {k: None if p.grad is None else p.grad for k, p in one.named_parameters()}
        results.append((y.detach(), leaf.grad, grads))
    (y, dx, grads), (our_y, our_dx, our_grads) = results
    torch.testing.assert_close(our_y, y, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(our_dx, dx, rtol=1e-4, atol=1e-4)
    assert list(our_grads) == list(grads)
    for key, grad in grads.items():
        torch.testing.assert_close(our_grads[key], grad, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_runs_as_one_op(device, kind):
    original, model = fused(kind, device)
    x = an_input(device)
    assert mlps(model, x) == [f"{MODELS[kind][1]}_forward"]
    assert isinstance(model[0], type(original[0]))
    assert list(model.state_dict()) == list(original.state_dict())
    assert_same(original, model, x)
    assert fusedops.fuse(model).blocks == []
    assert mlps(model, x) == [f"{MODELS[kind][1]}_forward"]


@pytest.mark.parametrize("index", range(len(LEFT_ALONE)))
def test_leaves_alone(device, index):
    torch.manual_seed(0)
    model = LEFT_ALONE[index]().to(device)
    original = copy.deepcopy(model)
    assert fusedops.fuse(model).blocks == []
    assert_same(original, model, an_input(device))


@pytest.mark.parametrize("kind", MODELS)
def test_copies_pickles_and_compiles(device, kind):
    original, model = fused(kind, device)
    x = an_input(device)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert mlps(other, x) == [f"{MODELS[kind][1]}_forward"]
        assert_same(original, other, x)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), original(x), rtol=1e-4, atol=1e-4)


def test_a_function_that_became_another_runs(device, monkeypatch):
    original, model = fused("function", device)
    monkeypatch.setattr(layers, "erf_gelu", torch.sin)
    x = an_input(device)
    assert mlps(model, x) == []
    assert_same(original, model, x)


@pytest.mark.parametrize("kind", ["decoder", "t5", "t5_gated"])
def test_dropout_between_the_layers(device, kind):
    """The activation runs in the first product, and the same elements drop."""
    original, model = fused(kind, device, drop=0.5)
    x = an_input(device)
    assert mlps(model, x) == []
    assert not {"aten.relu", "aten.gelu", "aten.pow.Tensor_Scalar"} & set(calls_of(model, x).names)
    assert calls_of(model, x).ours.count("linear") == (3 if kind == "t5_gated" else 2)
    original, model = Seeded(original), Seeded(model)
    assert_same(original, model, x)
    model.eval()
    assert len(mlps(model, x)) == 1


class Seeded(nn.Module):
    """Draws the same numbers in each call."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        torch.manual_seed(1)
        return self.inner(x)


class DropsEverywhere(nn.Module):
    """Dropouts before the activation, or of the gate alone: all runs as it was written."""

    def __init__(self, gated):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(12, 20), nn.Linear(12, 20), nn.Linear(20, 12)
        self.drop, self.gated, self.norm = nn.Dropout(0.5), gated, nn.LayerNorm(12)

    def forward(self, x):
        if self.gated:
            h = self.drop(nn.functional.silu(self.gate(x))) * self.up(x)
            return self.norm(x) + self.down(h)
        h = self.down(nn.functional.gelu(self.drop(self.up(x))))
        return self.norm(x) + h


@pytest.mark.parametrize("gated", [False, True])
def test_dropouts_in_other_places(device, gated):
    torch.manual_seed(0)
    original = Seeded(DropsEverywhere(gated)).to(device)
    model = copy.deepcopy(original)
    assert len(fusedops.fuse(model).blocks) in (0, 1)
    x = an_input(device)
    assert mlps(model, x) == []
    assert_same(original, model, x)


class DropsLast(nn.Module):
    """A dropout behind the last layer, in the statement of the chain."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(12, 20), nn.Linear(20, 12), nn.LayerNorm(12)
        self.between, self.last = nn.Dropout(0.0), nn.Dropout(0.5)

    def forward(self, x):
        h = self.last(self.down(self.between(nn.functional.gelu(self.up(x)))))
        return self.norm(x) + h


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_dropout_in_the_last_statement(device, p):
    torch.manual_seed(0)
    original = Seeded(DropsLast()).to(device)
    original.inner.between.p = p
    model = copy.deepcopy(original)
    assert len(fusedops.fuse(model).blocks) == 1
    x = an_input(device)
    assert len(mlps(model, x)) == (0 if p else 1)
    assert calls_of(model, x).ours.count("linear") == (2 if p else 0)
    assert_same(original, model, x)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_dropout_behind_the_layers(device, kind):
    original, model = fused(kind, device, drop=0.5)
    x = an_input(device)
    assert len(mlps(model, x)) == 1
    torch.manual_seed(1)
    y = model(x)
    torch.manual_seed(1)
    torch.testing.assert_close(y, original(x), rtol=1e-4, atol=1e-5)


def doubled(*args):
    return args[-1] * 2


@pytest.mark.parametrize("path", ["intermediate", "intermediate.dense", "output", "output.dense",
                                  "intermediate.intermediate_act_fn"])  # fmt: skip
def test_hooks_run(device, path):
    original, model = fused("bert", device)
    x = an_input(device)
    handles = [m[0].get_submodule(path).register_forward_hook(doubled) for m in (original, model)]
    assert mlps(model, x) == []
    assert_same(original, model, x)
    for handle in handles:
        handle.remove()
    assert len(mlps(model, x)) == 1


class Adapter(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x) + 1


@pytest.mark.parametrize("name", ["fc1", "fc2", "activation_fn"])
def test_a_replaced_module_runs(device, name):
    original, model = fused("decoder", device)
    x = an_input(device)
    for one in (original[0], model[0]):
        setattr(one, name, Adapter(getattr(one, name)))
    assert mlps(model, x) == []
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)


def test_another_plain_layer_keeps_the_op(device):
    original, model = fused("decoder", device)
    x = an_input(device)
    original[0].fc1 = nn.Linear(12, 20).to(device)
    model[0].fc1 = copy.deepcopy(original[0].fc1)
    assert len(mlps(model, x)) == 1
    assert_same(original, model, x)


def test_arguments_and_decorators_stay(device):
    original, model = fused("decoder", device)
    x = an_input(device)
    plain, ours = original[0], model[0]
    torch.testing.assert_close(ours(x, past=x), plain(x, past=x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours(hidden_states=x), plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "decoder", "t5"])
def test_a_patched_method_is_respected(device, monkeypatch, kind):
    original, model = fused(kind, device)
    x = an_input(device)
    name = "feed_forward_chunk" if kind == "bert" else "forward"
    monkeypatch.setattr(type(original[0]), name, lambda self, x: x + 1)
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)
    assert mlps(model, x) == []


@pytest.mark.parametrize("kind", [layers.Intermediate, layers.Output, layers.NewGELU])
def test_a_patched_class_inside_is_respected(device, monkeypatch, kind):
    original, model = fused("bert_new", device)
    x = an_input(device)
    before = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *args: before(self, *args) + 1)
    assert mlps(model, x) == []
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)


def test_a_patched_function_is_respected(device, monkeypatch):
    original, model = fused("functional", device)
    x = an_input(device)
    monkeypatch.setattr(torch.nn.functional, "gelu", lambda x, approximate: x + 1)
    assert mlps(model, x) == []
    assert_same(original, model, x)


def test_mixed_dtypes_run_by_layers(device):
    """T5 keeps wo in fp32."""
    _, model = fused("t5", device)
    model.bfloat16()
    x = an_input(device, torch.bfloat16)
    assert len(mlps(model, x)) == 1
    model[0].wo.float()
    assert mlps(model, x) == []
    assert model(x).dtype is torch.float32


@pytest.mark.parametrize("kind", MODELS)
def test_autocast(device, kind):
    original, model = fused(kind, device)
    x = an_input(device)
    with torch.autocast(device, torch.bfloat16):
        assert len(mlps(model, x)) == 1
        y, want = model(x), original(x)
    assert y.dtype is want.dtype
    torch.testing.assert_close(y, want, rtol=3e-2, atol=3e-2)


def test_checkpointing_and_frozen_weights(device):
    original, model = fused("decoder", device)
    for one in (original, model):
        one[0].fc1.weight.requires_grad_(False)
    x = an_input(device).requires_grad_()
    grads = []
    for one in (original, model):
        y = torch.utils.checkpoint.checkpoint(one, x, use_reentrant=False)
        y.sum().backward()
        assert one[0].fc1.weight.grad is None
        grads.append(one[0].fc2.weight.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["Bert", "OPT", "GPT2", "T5Encoder"])
def test_hugging_face(device, name):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "Bert": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4},
        "OPT": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
                "ffn_dim": 48, "word_embed_proj_dim": 32},
        "GPT2": {"n_embd": 32, "n_layer": 1, "n_head": 4},
        "T5Encoder": {"d_model": 32, "d_ff": 48, "num_layers": 1, "num_heads": 4},
    }[name]  # fmt: skip
    config = getattr(transformers, f"{name.removesuffix('Encoder')}Config")(vocab_size=64, **sizes)
    model = getattr(transformers, f"{name}Model")(config).to(device).eval()
    original = copy.deepcopy(model)
    assert len(fusedops.fuse(model).blocks) == 1
    ids = torch.arange(2, 26, device=device).view(2, 12)
    assert len(mlps(model, ids)) == 1
    want = original(ids).last_hidden_state
    torch.testing.assert_close(model(ids).last_hidden_state, want, rtol=1e-4, atol=1e-4)
