"""fusedops.inductor: what the graph pass finds, what it leaves alone, and that values stay.

Most tests run the pass inside AOTAutograd and Inductor's joint passes and execute the resulting
graphs as they are, without code generation, which would take seconds each.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusedops

K, H = 16, 32


def without_codegen(options):
    """A backend: Inductor up to its code generation, without what a cache holds of it."""
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    def run(graph, inputs, **kwargs):
        def call(args):
            taken = list(args)
            args.clear()
            return graph(*taken)

        call._boxed_call = True
        return call

    return config.patch(enable_autograd_cache=False)(
        lambda graph, xs: compile_fx(graph, xs, inner_compile=run, config_patches=options)
    )


class Mlp(nn.Module):
    """GPT-2's and BERT's: one activation, biases, a residual outside."""

    def __init__(self, act, bias=True):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(K, H, bias=bias), nn.Linear(H, K, bias=bias)
        self.act = act

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(x)))


class Llama(nn.Module):
    def __init__(self, act=F.silu, bias=False):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(K, H, bias=bias), nn.Linear(K, H, bias=bias)
        self.down_proj = nn.Linear(H, K, bias=bias)
        self.act = act

    def forward(self, x):
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Packed(nn.Module):
    """Phi-3's; with the halves in the other order diffusers'."""

    def __init__(self, gate_first=True, bias=False):
        super().__init__()
        self.gate_up, self.down = nn.Linear(K, 2 * H, bias=bias), nn.Linear(H, K, bias=bias)
        self.gate_first = gate_first

    def forward(self, x):
        one, two = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.gelu(one) * two if self.gate_first else one * F.gelu(two))


class Conv1D(nn.Module):
    """GPT-2 of Hugging Face: weights (K, N), gelu written out."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2 = (nn.Parameter(torch.randn(s) / 4) for s in ((K, H), (H, K)))
        self.b1, self.b2 = nn.Parameter(torch.randn(H)), nn.Parameter(torch.randn(K))

    def forward(self, x):
        h = torch.addmm(self.b1, x.view(-1, K), self.w1).view(*x.shape[:-1], H)
        h = 0.5 * h * (1.0 + torch.tanh(0.7978845608028654 * (h + 0.044715 * torch.pow(h, 3.0))))
        return torch.addmm(self.b2, h.view(-1, H), self.w2).view(x.shape)


class BertLayer(nn.Module):
    """Attention and an MLP spread over modules, with layer norms behind both."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.qkv, self.out = nn.Linear(K, 3 * K), nn.Linear(K, K)
        self.intermediate, self.output = nn.Linear(K, H), nn.Linear(H, K)
        self.norm1, self.norm2 = nn.LayerNorm(K), nn.LayerNorm(K)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, K // 2)).mT for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v).mT.flatten(-2)
        x = self.norm1(x + self.dropout(self.out(y)))
        return self.norm2(x + self.dropout(self.output(F.gelu(self.intermediate(x)))))


BLOCKS = {
    "relu": (lambda: Mlp(F.relu), "mlp"),
    "gelu": (lambda: Mlp(nn.GELU()), "mlp"),
    "gelu_tanh": (lambda: Mlp(nn.GELU("tanh")), "mlp"),
    "silu": (lambda: Mlp(F.silu, bias=False), "mlp"),
    "sigmoid": (lambda: Mlp(torch.sigmoid), "mlp"),
    "tanh": (lambda: Mlp(torch.tanh), "mlp"),
    "relu2": (lambda: Mlp(lambda z: F.relu(z) ** 2), "mlp"),
    "quick_gelu": (lambda: Mlp(lambda z: z * torch.sigmoid(1.702 * z)), "mlp"),
    "leaky_relu": (lambda: Mlp(F.leaky_relu), "mlp"),
    "hardswish": (lambda: Mlp(F.hardswish), "mlp"),
    "mish": (lambda: Mlp(F.mish), "mlp"),
    "softplus": (lambda: Mlp(F.softplus), "mlp"),
    "elu": (lambda: Mlp(F.elu), "mlp"),
    "relu6": (lambda: Mlp(nn.ReLU6()), "mlp"),
    "gated mish": (lambda: Llama(F.mish), "gated_mlp"),
    "gated relu6": (lambda: Llama(F.relu6), "gated_mlp"),
    "conv1d": (Conv1D, "mlp"),
    "bert": (BertLayer, "mlp"),
    "llama": (Llama, "gated_mlp"),
    "geglu": (lambda: Llama(F.gelu, bias=True), "gated_mlp"),
    "packed": (Packed, "gated_mlp"),
    "up first": (lambda: Packed(gate_first=False, bias=True), "gated_mlp"),
    "ours": (lambda: fusedops.nn.MLP(K, H), "mlp"),
    "ours gated": (lambda: fusedops.nn.GatedMLP(K, H), "gated_mlp"),
    "ours packed": (lambda: fusedops.nn.GatedMLP(K, H, packed=True, bias=True), "gated_mlp"),
}
every_block = pytest.mark.parametrize("name", BLOCKS)


def make(name, device, dtype=torch.float32):
    torch.manual_seed(0)
    return BLOCKS[name][0]().to(device, dtype)


def inputs(device, dtype=torch.float32, batch=4):
    torch.manual_seed(1)
    return torch.randn(batch, 8, K, device=device, dtype=dtype)


def compiled(model, ours, **options):
    torch._dynamo.reset()
    options.setdefault("backend", without_codegen(ours["options"]))
    return torch.compile(model, fullgraph=True, **options)


def step(function, model, x, wanted=None):
    """y, dx and the gradients of the parameters that have one."""
    x = x.clone().requires_grad_()
    y = function(x)
    dy = torch.linspace(-1, 2, y.numel(), device=y.device).reshape(y.shape).to(y.dtype)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [y.detach(), *torch.autograd.grad(y, [x, *parameters], dy)]


def assert_close(got, want, tolerance):
    """Errors relative to the largest value."""
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert a.dtype is b.dtype
        error = (a.double() - b.double()).abs().max() / b.double().abs().max()
        assert error < tolerance, error


# ---- what is found ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@every_block
def test_blocks_are_found_and_values_stay(device, name, dtype):
    model, x = make(name, device, dtype), inputs(device, dtype)
    ours = fusedops.inductor(force=True)
    got = step(compiled(model, ours), model, x)
    assert BLOCKS[name][1] in ours.report.kinds()
    assert ours.report.replaced[0].training
    assert not any("cannot read" in left.reason for left in ours.report.left)
    assert_close(got, step(model, model, x), 2e-5 if dtype is torch.float32 else 4e-2)


@every_block
def test_autocast(device, name):
    model, x = make(name, device), inputs(device)

    def function(x):
        with torch.autocast(device, dtype=torch.bfloat16):
            return model(x)

    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), model, x)
    assert BLOCKS[name][1] in ours.report.kinds()
    assert "weight_grad" in ours.report.kinds()
    assert_close(got, step(function, model, x), 4e-2)


def test_weight_gradients_under_autocast_are_not_rounded(device):
    model, x = make("gelu", device), inputs(device)

    def function(x):
        with torch.autocast(device, dtype=torch.bfloat16):
            return model(x)

    got = step(compiled(function, fusedops.inductor(force=True)), model, x)
    for grad in got[2:]:
        assert grad.dtype is torch.float32
    for grad in (g for g in got[2:] if g.dim() == 2):
        assert not torch.equal(grad, grad.bfloat16().float())


@every_block
def test_inference(device, name):
    model, x = make(name, device), inputs(device)
    ours = fusedops.inductor(force=True)
    with torch.no_grad():
        y = compiled(model, ours)(x)
        assert BLOCKS[name][1] in ours.report.kinds()
        assert not ours.report.replaced[0].training
        assert_close([y], [model(x)], 1e-5)


@pytest.mark.parametrize("frozen", ["fc1", "fc1.weight", "fc2", "fc1.bias", "x"])
def test_frozen_parameters(device, frozen):
    model, x = make("gelu", device), inputs(device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    ours = fusedops.inductor(force=True)
    results = []
    for function in (compiled(model, ours), model):
        leaf = x.clone().requires_grad_(frozen != "x")
        leaves = [p for p in (leaf, *model.parameters()) if p.requires_grad]
        results.append(torch.autograd.grad(function(leaf).square().sum(), leaves))
    assert ours.report.kinds() == ["mlp"]
    assert_close(*results, 1e-5)


def test_only_the_last_weight_has_a_gradient(device):
    model, x = make("gelu", device), inputs(device)
    model.fc1.requires_grad_(False)
    ours = fusedops.inductor(force=True)
    leaves = list(model.fc2.parameters())
    got = torch.autograd.grad(compiled(model, ours)(x).square().sum(), leaves)
    want = torch.autograd.grad(model(x).square().sum(), leaves)
    assert ours.report.kinds() == ["mlp"]
    assert_close(got, want, 1e-5)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("grad", [True, False], ids=["step", "forward"])
def test_a_layer_with_an_activation(device, name, grad):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(K, H), {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}[name]()
    )
    model.to(device)
    ours = fusedops.inductor(force=True)
    with torch.set_grad_enabled(grad):
        x = inputs(device)
        if grad:
            assert_close(step(compiled(model, ours), model, x), step(model, model, x), 1e-5)
        else:
            assert_close([compiled(model, ours)(x)], [model(x)], 1e-5)
    assert ours.report.kinds() == ["linear"]


def test_two_layers_of_shared_weights(device):
    model, x = make("gelu", device), inputs(device)
    function = lambda x: model(model(x))  # noqa: E731
    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), model, x)
    assert ours.report.kinds() == ["mlp", "mlp"]
    assert_close(got, step(function, model, x), 1e-5)


def test_three_layers_are_a_layer_and_a_block(device):
    torch.manual_seed(0)
    layers = [nn.Linear(K, H), nn.ReLU(), nn.Linear(H, H), nn.ReLU(), nn.Linear(H, K)]
    model, x = nn.Sequential(*layers).to(device), inputs(device)
    ours = fusedops.inductor(force=True)
    got = step(compiled(model, ours), model, x)
    assert ours.report.kinds() == ["mlp", "linear"]
    assert_close(got, step(model, model, x), 1e-5)


class ByHalves(Packed):
    """The halves by slices, whose gradients are put into zeros."""

    def forward(self, x):
        z = self.gate_up(x.flatten(0, 1))
        return self.down(F.gelu(z[..., :H]) * z[..., H:])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_halves_by_slices(device, dynamic):
    torch.manual_seed(0)
    model, x = ByHalves(bias=True).to(device), inputs(device)
    ours = fusedops.inductor(force=True)
    got = step(compiled(model, ours, dynamic=dynamic), model, x)
    assert ours.report.kinds() == ["gated_mlp"]
    assert_close(got, step(model, model, x), 1e-5)


def test_an_x_that_other_products_read(device):
    torch.manual_seed(0)
    model, q, x = Llama().to(device), nn.Linear(K, K, device=device), inputs(device)

    def function(x):
        return q(x) + model(x) + q(x).relu()

    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), model, x)
    assert "gated_mlp" in ours.report.kinds()
    assert_close(got, step(function, model, x), 1e-5)


def test_a_model_after_fuse(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(K), Llama(), nn.Linear(K, H), nn.ReLU(), nn.Linear(H, K))
    model.to(device)
    original, x = copy.deepcopy(model), inputs(device)
    assert len(fusedops.fuse(model).blocks) == 2
    ours = fusedops.inductor(force=True)
    got = step(compiled(model, ours), model, x)
    assert sorted(ours.report.kinds()) == ["gated_mlp", "mlp"]
    assert_close(got, step(original, original, x), 1e-5)


# ---- what is left alone ----

NONE = "none of our activations"
LEFT = {
    "softsign": (lambda: Mlp(F.softsign), NONE),
    "almost quick_gelu": (lambda: Mlp(lambda z: z * torch.sigmoid(1.7 * z)), NONE),
    "slope": (lambda: Mlp(lambda z: F.leaky_relu(z, 0.2)), NONE),
    "alpha": (lambda: Mlp(lambda z: F.elu(z, 0.5)), NONE),
    "capped at 5": (lambda: Mlp(lambda z: F.relu(z).clamp(max=5)), NONE),
    "capped": (lambda: Mlp(lambda z: F.silu(z).clamp(max=20)), NONE),
    "capped far": (lambda: Mlp(lambda z: F.relu(z).clamp(max=5e3)), NONE),
    "branch": (lambda: Mlp(lambda z: torch.where((z > 13) & (z < 14), 0.0, F.silu(z))), NONE),
    "no nan": (lambda: Mlp(lambda z: F.gelu(z).nan_to_num()), NONE),
    "nan is zero": (lambda: Mlp(lambda z: torch.where(z > 0, z, 0.0)), NONE),
    "float8": (lambda: Mlp(lambda z: F.gelu(z).to(torch.float8_e4m3fn).to(z.dtype)), NONE),
    "scaled": (lambda: Mlp(lambda z: F.silu(z) * (1 + 5e-7)), NONE),
    "linear": (lambda: nn.Linear(K, H), "nothing behind it"),
    "two gates": (lambda: Llama(lambda g: F.silu(g) + 1), "no activation times"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(device, name):
    torch.manual_seed(0)
    model, x = LEFT[name][0]().to(device), inputs(device)
    ours = fusedops.inductor(force=True)
    got = step(compiled(model, ours), model, x)
    assert ours.report.replaced == []
    assert any(LEFT[name][1] in left.reason for left in ours.report.left)
    assert_close(got, step(model, model, x), 1e-5)


def test_a_site_that_cannot_be_written_leaves_the_graph(device, monkeypatch):
    def fail(*_):
        raise RuntimeError("no such shape")

    monkeypatch.setattr("fusedops._inductor.emit.Writer.fitted", fail)
    model, x = make("gelu", device), inputs(device)
    ours = fusedops.inductor(force=True)
    got = step(compiled(model, ours), model, x)
    assert ours.report.replaced == []
    assert all("no such shape" in left.reason for left in ours.report.left)
    assert_close(got, step(model, model, x), 1e-5)


class ReadTwice(Mlp):
    """The activation goes to two products."""

    def forward(self, x):
        h = self.act(self.fc1(x))
        return self.fc2(h) + F.linear(h, self.fc2.weight)


def test_an_activation_that_two_products_read_is_a_layer(device):
    torch.manual_seed(0)
    model, x = ReadTwice(nn.GELU()).to(device), inputs(device)
    ours = fusedops.inductor(force=True)
    got = step(compiled(model, ours), model, x)
    assert ours.report.kinds() == ["linear"]
    assert_close(got, step(model, model, x), 1e-5)


def test_a_derivative_of_its_own(device):
    """clamp(min=0) is relu, but its derivative is 1 at 0 in torch 2.11, and 0 at NaN in 2.14."""

    z = torch.tensor([0.0, torch.nan], device=device, requires_grad=True)
    slopes = [torch.autograd.grad(f(z).sum(), z)[0] for f in (torch.relu, lambda z: z.clamp(min=0))]
    torch.manual_seed(0)
    model = Mlp(lambda z: z.clamp(min=0)).to(device)
    nn.init.zeros_(model.fc1.bias)
    x = inputs(device)
    x[0] = 0.0
    ours = fusedops.inductor(force=True)
    got = step(compiled(model, ours), model, x)
    assert ("mlp" in ours.report.kinds()) is torch.equal(*slopes)
    assert_close(got, step(model, model, x), 1e-5)


def test_dropout_between_the_products(device):
    model = nn.Sequential(nn.Linear(K, H), nn.GELU(), nn.Dropout(0.5), nn.Linear(H, K)).to(device)
    ours = fusedops.inductor(force=True)
    step(compiled(model, ours), model, inputs(device))
    assert "mlp" not in ours.report.kinds()


def test_a_bert_layer_with_dropout(device):
    model = BertLayer(dropout=0.5).to(device)
    ours = fusedops.inductor(force=True)
    step(compiled(model, ours), model, inputs(device))
    assert "mlp" in ours.report.kinds()


def test_bare_products_where_the_model_says_so(device, monkeypatch):
    from fusedops._inductor import graph_pass
    from fusedops._inductor.decide import Verdict

    monkeypatch.setattr(graph_pass, "decide", lambda site, force: Verdict(True, "for the test"))
    model, x = nn.Linear(K, H).to(device), inputs(device)
    ours = fusedops.inductor()
    got = step(compiled(model, ours), model, x)
    assert ours.report.kinds() == ["product"] * 3
    assert_close(got, step(model, model, x), 1e-5)


# ---- around the graph ----


@pytest.mark.parametrize("name", ["gelu", "llama", "packed", "conv1d"])
def test_dynamic_shapes_compile_once(device, name):
    model = make(name, device)
    ours = fusedops.inductor(force=True)
    function = compiled(model, ours, dynamic=True)
    for batch in (4, 6, 9):
        x = inputs(device, batch=batch)
        assert_close(step(function, model, x), step(model, model, x), 2e-5)
    assert ours.report.graphs == 1
    assert BLOCKS[name][1] in ours.report.kinds()


def saved_sizes(function, model, x):
    """The sizes of what is kept for backward, without the parameters."""
    sizes = []
    parameters = {p.data_ptr() for p in model.parameters()}

    def pack(tensor):
        if tensor.data_ptr() not in parameters:
            sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(x.clone().requires_grad_())
    return sizes


@pytest.mark.parametrize("name", ["gelu", "relu", "llama", "packed"])
def test_checkpoint_saves_nothing_of_the_hidden_size(device, name):
    model, x = make(name, device), inputs(device)

    def function(x):
        return checkpoint(model, x, use_reentrant=False)

    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), model, x)
    assert BLOCKS[name][1] in ours.report.kinds()
    assert_close(got, step(model, model, x), 2e-5)
    rows = x.numel() // K
    assert not any(size >= rows * H for size in saved_sizes(compiled(function, ours), model, x))


@pytest.mark.parametrize("kind", ["mlp", "gated_mlp"])
def test_recompute_is_traced_as_checkpointing(device, kind):
    torch.manual_seed(0)
    block = {"mlp": fusedops.nn.MLP, "gated_mlp": fusedops.nn.GatedMLP}[kind]
    model, x = block(K, H, recompute=True).to(device), inputs(device)
    ours = fusedops.inductor(force=True)
    got = step(compiled(model, ours), model, x)
    assert ours.report.kinds() == [kind]
    assert_close(got, step(model, model, x), 2e-5)
    rows = x.numel() // K
    assert not any(size >= rows * H for size in saved_sizes(compiled(model, ours), model, x))


@pytest.mark.parametrize(("name", "hidden"), [("gelu", 1), ("relu", 1), ("llama", 2)])
def test_what_is_saved_of_the_hidden_size(device, name, hidden):
    model, x = make(name, device), inputs(device)
    rows = x.numel() // K
    sizes = saved_sizes(compiled(model, fusedops.inductor(force=True)), model, x)
    assert sum(size for size in sizes if size >= rows * H) == hidden * rows * H
