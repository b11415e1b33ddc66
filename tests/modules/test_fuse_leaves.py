"""fusedops.fuse on norms and products of other classes than torch's."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from modules import leaves
from util import calls_of, make

NORMS = {
    "llama": (leaves.LlamaNorm, "LlamaNorm is rms_norm"),
    "gemma": (leaves.GemmaNorm, "GemmaNorm is rms_norm of 1 + weight"),
    "t5": (leaves.T5Norm, "T5Norm is rms_norm"),
    "sized": (leaves.SizedNorm, "SizedNorm is rms_norm"),
    "cohere": (leaves.CohereNorm, "CohereNorm is layer_norm"),
    "olmo": (leaves.OlmoNorm, "OlmoNorm is layer_norm"),
    "flagged": (leaves.FlaggedNorm, "FlaggedNorm is layer_norm"),
    "channels": (leaves.ChannelsNorm, "ChannelsNorm is layer_norm"),
}
PRODUCTS = {
    "conv1d": (leaves.Conv1D, "Conv1D is matmul"),
    "linear": (leaves.GraphLinear, "GraphLinear is linear"),
    "linear_without_bias": (lambda: leaves.GraphLinear(bias=False), "GraphLinear is linear"),
    "square": (lambda: leaves.Conv1D(24, 24), "Conv1D is matmul"),
}
ALL = {**NORMS, **PRODUCTS}
LEFT_ALONE = [
    leaves.Clipped,
    leaves.Capped,
    leaves.ByLength,
    leaves.OnDevice,
    leaves.Detached,
    leaves.Counting,
    leaves.NoGradNorm,
    leaves.InPlaceNorm,
    leaves.InTraining,
    leaves.Rounded,
    leaves.ScaledConv1D,
]


def an_input(kind, device, dtype=torch.float32):
    shape = (2, 24, 3, 5) if kind == "channels" else (3, 5, 24)
    return make(*shape, dtype=dtype, device=device)


def our_ops(model, x):
    return calls_of(model, x).ours


def fused(kind, device):
    torch.manual_seed(0)
    model = nn.Sequential(ALL[kind][0]()).to(device)
    original = copy.deepcopy(model)
    report = fusedops.fuse(model)
    assert [layer.note for layer in report.fused] == [ALL[kind][1]]
    return original, model


def gradients(model, x, dy):
    x = x.detach().clone().requires_grad_()
    y = model(x)
    return y, torch.autograd.grad(y, [x, *model.parameters()], dy.to(y.dtype))


@pytest.mark.parametrize("kind", ALL)
def test_runs_our_op(device, kind):
    original, model = fused(kind, device)
    x = an_input(kind, device)
    assert len(our_ops(model, x)) == 1
    assert isinstance(model[0], type(original[0]))
    assert list(model.state_dict()) == list(original.state_dict())
    y = original(x)
    ours, theirs = (
        gradients(model, x, torch.ones_like(y)),
        gradients(original, x, torch.ones_like(y)),
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert ours[0].stride() == theirs[0].stride()
    again = fusedops.fuse(model)
    assert (again.num_fused, again.unchanged) == (0, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ALL)
def test_is_as_exact_in_half_precision(device, kind, dtype):
    original, model = fused(kind, device)
    original, model = original.to(dtype), model.to(dtype)
    x = an_input(kind, device, dtype)
    assert len(our_ops(model, x)) == 1
    wide = copy.deepcopy(original).double()
    exact = wide(x.double())
    ours, theirs = model(x), original(x)
    assert ours.dtype is theirs.dtype
    error, limit = (ours - exact).abs().max(), (theirs - exact).abs().max()
    assert error <= 1.05 * limit + 1e-6
    dy = make(*exact.shape, dtype=dtype, device=device, seed=5)
    (_, mine), (_, other) = gradients(model, x, dy), gradients(original, x, dy)
    _, want = gradients(wide, x.double(), dy.double())
    for a, b, true in zip(mine, other, want, strict=True):
        assert a.dtype is b.dtype
        error, limit = (a - true).abs().max(), (b - true).abs().max()
        assert error <= 1.5 * limit + 4 * torch.finfo(dtype).eps * true.abs().max()


def test_a_result_of_another_dtype_is_its_own(device):
    """Llama's norm gives fp32 for a half input beside an fp32 weight, ours would not."""
    original, model = fused("llama", device)
    x = an_input("llama", device, torch.bfloat16)
    assert our_ops(model, x) == []
    assert model(x).dtype is original(x).dtype is torch.float32


def test_another_size_raises_as_before(device):
    _, model = fused("sized", device)
    with pytest.raises(AssertionError, match="7 is not 24"):
        model(torch.ones(2, 7, device=device))


def test_a_default_device_is_no_matter(device):
    model = nn.Sequential(leaves.LlamaNorm(), leaves.Conv1D()).to(device)
    with torch.device("meta"):
        assert fusedops.fuse(model).num_fused == 2


def test_torch_geometric(device):
    geometric = pytest.importorskip("torch_geometric.nn")
    model = geometric.MLP([12, 20, 6], norm=None).to(device)
    original = copy.deepcopy(model)
    assert fusedops.fuse(model).num_fused == 2
    x = make(5, 12, dtype=torch.float32, device=device)
    assert our_ops(model.eval(), x) == ["linear", "linear"]
    torch.testing.assert_close(model(x), original.eval()(x), rtol=1e-4, atol=1e-5)


def test_autocast_is_its_own(device):
    original, model = fused("cohere", device)
    x = an_input("cohere", device, torch.bfloat16)
    with torch.autocast(device, torch.bfloat16):
        assert our_ops(model, x) == []
        assert model(x).dtype is original(x).dtype
    conv, fused_conv = fused("conv1d", device)
    x = an_input("conv1d", device)
    with torch.autocast(device, torch.bfloat16):
        assert our_ops(fused_conv, x) == ["matmul"]
        torch.testing.assert_close(fused_conv(x), conv(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("index", range(len(LEFT_ALONE)))
def test_leaves_alone(device, index):
    torch.manual_seed(0)
    model = nn.Sequential(LEFT_ALONE[index]()).to(device)
    original = copy.deepcopy(model)
    before = leaves.Counting.calls
    report = fusedops.fuse(model)
    assert report.num_fused == 0
    assert leaves.Counting.calls == before
    assert type(model[0]) is LEFT_ALONE[index]
    x = an_input("llama", device)
    assert torch.equal(model(x.clone()), original(x.clone()))


def test_says_why():
    class OfNorm(leaves.Clipped):
        pass

    (left,) = fusedops.fuse(nn.Sequential(leaves.CohereNorm(), OfNorm())).skipped
    assert left.kind == "OfNorm"
    assert left.reason == "calls more than a norm or a product does"


@pytest.mark.parametrize("kind", ALL)
def test_copies_pickles_and_compiles(device, kind):
    original, model = fused(kind, device)
    x = an_input(kind, device)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert len(our_ops(other, x)) == 1
        torch.testing.assert_close(other(x), original(x), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), original(x), rtol=1e-4, atol=1e-4)


def test_a_change_is_respected(device, monkeypatch):
    _, model = fused("gemma", device)
    x = an_input("gemma", device)
    model[0].eps = 10.0
    assert our_ops(model, x) == []
    model[0].eps = 1e-5
    assert our_ops(model, x) == ["rms_norm"]
    with monkeypatch.context() as patch:
        patch.setattr(leaves.GemmaNorm, "_norm", lambda self, x: x)
        torch.testing.assert_close(model(x), x * (1 + model[0].weight))
    seen = []
    handle = model[0].register_forward_hook(lambda *_: seen.append(1))
    model(x)
    handle.remove()
    assert seen == [1]
    assert our_ops(model, x) == ["rms_norm"]
    model[0].forward = lambda x: x
    assert torch.equal(model(x), x)


def test_a_patched_function_is_respected(device, monkeypatch):
    _, model = fused("flagged", device)
    x = an_input("flagged", device)
    monkeypatch.setattr(F, "layer_norm", lambda x, *_: x + 1)
    assert torch.equal(model(x), x + 1)


@pytest.mark.parametrize("kind", ["llama", "gemma", "t5", "sized", "cohere", "olmo"])
def test_strides_are_those_of_the_own_forward(device, kind):
    """Rows come first, or a part of wider ones."""
    original, model = fused(kind, device)
    x = make(3, 5, 72, dtype=torch.float32, device=device)
    for part in (x.transpose(0, 1)[..., :24], x.split(24, -1)[1], x[::2, :, 24:48]):
        mine, theirs = model(part), original(part)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        assert mine.stride() == theirs.stride()


class OtherName(nn.Module):
    """A product whose weight is not called weight."""

    def __init__(self, size, out):
        super().__init__()
        self.out, self.kernel = out, nn.Parameter(torch.randn(size, out) / size**0.5)
        self.shift = nn.Parameter(torch.randn(out))

    def forward(self, x):
        y = torch.addmm(self.shift, x.view(-1, x.size(-1)), self.kernel)
        return y.view((*x.size()[:-1], self.out))


class Layers(nn.Module):
    def __init__(self, kind=leaves.Conv1D):
        super().__init__()
        self.first, self.act, self.second = kind(24, 36), nn.GELU(), kind(36, 24)

    def forward(self, x):
        y = self.first(x)
        y = self.act(y)
        y = self.second(y)
        return y + x


def test_a_chain_of_weights_of_other_names(device):
    model = Layers(OtherName).to(device)
    original = copy.deepcopy(model)
    assert len(fusedops.fuse(model).blocks) == 1
    x = make(3, 5, 24, dtype=torch.float32, device=device)
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-4)


def test_a_chain_is_traced_layer_by_layer(device):
    """torch.fx's proxies are no tensors that an op takes."""
    model = Layers().to(device)
    original = copy.deepcopy(model)
    assert len(fusedops.fuse(model).blocks) == 1
    x = make(3, 5, 24, dtype=torch.float32, device=device)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), original(x))


@pytest.mark.parametrize("kind", [leaves.Conv1D, Layers])
def test_a_parametrized_weight_is_computed_once(device, kind):
    """Spectral norm changes its buffers with each read of the weight."""
    torch.manual_seed(0)
    model = kind().to(device)
    original = copy.deepcopy(model)
    fusedops.fuse(model)
    x = make(3, 5, 24, dtype=torch.float32, device=device)
    results = []
    for one in (original, model):
        for part in list(one.modules()):
            if isinstance(part, leaves.Conv1D):
                torch.manual_seed(1)
                torch.nn.utils.parametrizations.spectral_norm(part)
        results.append([one(x), one(x), *one.buffers()])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_frozen_parameters_get_no_gradient(device):
    _, model = fused("conv1d", device)
    model[0].weight.requires_grad_(False)
    model(an_input("conv1d", device)).sum().backward()
    assert model[0].weight.grad is None
    assert model[0].bias.grad is not None


def test_hugging_face(device):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 32}
    config = transformers.LlamaConfig(**sizes, intermediate_size=48)
    model = transformers.LlamaForCausalLM(config).to(device)
    original = copy.deepcopy(model)
    assert fusedops.fuse(model).skipped == []
    ids = torch.arange(24, device=device).view(2, 12)
    torch.testing.assert_close(model(ids).logits, original(ids).logits, rtol=1e-4, atol=1e-5)


def test_timm(device):
    timm = pytest.importorskip("timm")
    model = timm.create_model("convnext_atto").to(device).eval()
    original = copy.deepcopy(model)
    assert fusedops.fuse(model).skipped == []
    x = make(1, 3, 64, 64, dtype=torch.float32, device=device)
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-4)
