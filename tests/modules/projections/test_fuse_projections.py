"""fuse on methods that call several linear layers on one input."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusedops
from util import HALVES, Calls, make, name

D = 24


class Attention(nn.Module):
    def __init__(self, bias=True, kv=D):
        super().__init__()
        self.q = nn.Linear(D, D, bias=bias)
        self.k = nn.Linear(D, kv, bias=bias)
        self.v = nn.Linear(D, kv, bias=bias)
        self.out = nn.Linear(D, D)

    def heads(self, x):
        return x.unflatten(-1, (-1, 12)).transpose(1, 2)

    def forward(self, x):
        shape = x.shape
        q = self.heads(self.q(x) * 0.5)
        k = self.heads(self.k(x))
        v = self.heads(self.v(x))
        groups = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(shape))


class Cross(Attention):
    def forward(self, x, other=None):
        q = self.q(x)
        if other is None:
            k, v = self.k(x), self.v(x)
        else:
            k, v = self.k(other), self.v(other)
        return self.out(q * k + v)


class Shifted(Attention):
    """x is another one, or has other values, for each layer."""

    def forward(self, x):
        q = self.q(x)
        x = x + 1
        k = self.k(x)
        x.mul_(2)
        return self.out(q + k) + self.v(x)


class ByAnother(Attention):
    def forward(self, x):
        q = self.q(x)
        clear(x)
        return q + self.k(x)


class InPlace(Attention):
    def forward(self, x):
        x = x * 1
        q = self.q(x)
        x[:, 0] = 0
        k = self.k(x)
        x += 1
        return q + k + self.v(x)


class OtherData(Attention):
    def forward(self, x):
        x = x * 1
        q = self.q(x)
        x.data = 2 * x.data
        return q + self.k(x)


class OtherLayer(Attention):
    def forward(self, x):
        q = self.q(x)
        self.k = self.v
        return q + self.k(x)


class Named(Attention):
    def forward(self, x):
        _, q, k = (x := x + 1), self.q(x), self.k(x)
        return q + k


class Maybe(Attention):
    def forward(self, x):
        q = self.q(x)
        return q if x.shape[0] == 2 else q + self.k(x)


class OneUnused(Attention):
    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return q + v, k.detach()


def clear(x):
    with torch.no_grad():
        x.zero_()


def pair(device, dtype=torch.float32, kind=Attention, **options):
    """A module, the fused copy of it, and the groups of layers."""
    torch.manual_seed(0)
    original = kind(**options).to(device, dtype)
    module = copy.deepcopy(original)
    report = fusedops.fuse(module)
    return original, module, [groups for _, _, groups in report.projections]


def step(module, x, around=None):
    """Values and gradients, and how often a gradient was added to another one."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    run = module if around is None else around
    y = run(x)
    y = y[0] if isinstance(y, tuple) else y
    with Calls() as calls:
        y.float().square().sum().backward()
    adds = sum(calls.names.count(op) for op in ("aten.add.Tensor", "aten.add_.Tensor"))
    return [y.detach(), x.grad, *(p.grad for p in module.parameters())], adds


def check(original, module, x, tolerance=1e-5, adds=None, of=None):
    """Compares with the largest of all gradients: that of the key's bias is zero but for roundings,
    since a constant that is added to all scores of a row changes no softmax.
    """
    want, plain_adds = step(original, x, of and of(original))
    got, our_adds = step(module, x, of and of(module))
    largest = max(
        (float(a.abs().max()) for a in want[1:] if a is not None and a.numel()), default=0
    )
    for a, b in zip(want, got, strict=True):
        assert (a is None) is (b is None)
        if a is not None:
            assert a.dtype is b.dtype
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance * largest)
    if adds is not None:
        assert (plain_adds, our_adds) == adds


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kv", [D, 12])
def test_float32(device, bias, kv):
    original, module, groups = pair(device, bias=bias, kv=kv)
    assert groups == [("q+k+v",)]
    assert module.state_dict().keys() == original.state_dict().keys()
    check(original, module, make(2, 5, D, dtype=torch.float32, device=device))
    report = fusedops.fuse(module)
    assert report.projections == []


def test_the_report_names_the_layers():
    report = fusedops.fuse(nn.Sequential(Attention()))
    assert report.projections == [("0", "forward", ("q+k+v",))]
    assert "q+k+v" in str(report)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_halves_sum_in_the_products(device, dtype):
    original, module, _ = pair(device, dtype)
    x = make(2, 5, D, dtype=dtype, device=device)
    check(original, module, x, tolerance=2e-2, adds=(2, 0))
    exact, _ = step(copy.deepcopy(original).double(), x.double())
    errors = [
        [(a - b).norm() for a, b in zip(step(one, x)[0], exact, strict=True)]
        for one in (original, module)
    ]
    for theirs, ours, e in zip(*errors, exact, strict=True):
        assert ours <= 1.1 * theirs + 2 * torch.finfo(dtype).eps * e.norm()


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast_casts_the_input_once(device, dtype):
    original, module, _ = pair(device)
    x = make(2, 5, D, dtype=torch.float32, device=device)

    def of(one):
        def run(x):
            with torch.autocast(device, dtype):
                return one(x)

        return run

    check(original, module, x, tolerance=2e-2, of=of)
    casts = []
    for one in (original, module):
        inner = x.clone().requires_grad_() * 1  # NOTE: autocast keeps what it casts of a leaf
        with Calls() as calls:
            of(one)(inner)
        casts.append(calls.names.count("aten._to_copy"))
    assert casts[1] == casts[0] - 2


def test_float64_stays_float64_under_autocast(device):
    original, module, _ = pair(device, torch.float64)
    x = make(2, 5, D, dtype=torch.float64, device=device)
    with torch.autocast(device, torch.bfloat16):
        check(original, module, x)


@pytest.mark.parametrize(
    "kind",
    [Shifted, ByAnother, InPlace, OtherData, OtherLayer, Named, Maybe],
    ids=lambda k: k.__name__,
)
def test_inputs_that_change_are_no_group(device, kind):
    original, module, groups = pair(device, kind=kind)
    assert groups == []
    x = make(3, 5, D, dtype=torch.float32, device=device)
    with torch.no_grad():
        torch.testing.assert_close(module(x.clone()), original(x.clone()))


@pytest.mark.parametrize("crossed", [False, True])
def test_layers_in_a_branch(device, crossed):
    original, module, groups = pair(device, kind=Cross)
    assert groups == [("k+v", "k+v")]
    x, other = (make(2, 5, D, dtype=torch.float32, device=device, seed=s) for s in (0, 1))
    check(original, module, x, of=lambda one: lambda x: one(x, other if crossed else None))


def test_an_output_without_a_gradient(device):
    original, module, groups = pair(device, kind=OneUnused)
    assert groups == [("q+k+v",)]
    check(original, module, make(2, 5, D, dtype=torch.float32, device=device))
    assert module.k.weight.grad is None


@pytest.mark.parametrize("frozen", ["q", "k", "v", "qkv"])
def test_frozen_layers(device, frozen):
    original, module, _ = pair(device)
    for one in (original, module):
        for layer in frozen:
            getattr(one, layer).requires_grad_(False)
    check(original, module, make(2, 5, D, dtype=torch.float32, device=device))


@pytest.mark.parametrize("change", ["hook", "forward", "class", "main_grad", "recipe"])
def test_a_layer_that_became_another_runs_by_itself(device, change):
    original, module, _ = pair(device)
    x = make(2, 5, D, dtype=torch.float32, device=device)
    runs = []
    for one in (original, module):
        if change == "hook":
            one.k.register_forward_hook(lambda *_: runs.append(1))
        elif change == "forward":
            one.k.forward = lambda x, one=one: F.linear(x, one.k.weight) * 2
        elif change == "class":
            one.k = nn.Sequential(one.k, nn.ReLU())
        elif one is module and change == "main_grad":
            one.k.weight.main_grad = torch.zeros_like(one.k.weight)
        elif one is module and change == "recipe":
            one.k.recipe = fusedops.fp8.Recipe()
    if change in ("hook", "forward", "class"):
        check(original, module, x)
    else:
        step(module, x)
        got = module.k.weight
        assert got.main_grad.abs().max() > 0 if change == "main_grad" else got.grad is not None
    assert len(runs) == (2 if change == "hook" else 0)


def test_later_modes(device):
    original, module, _ = pair(device)
    x = make(2, 5, D, dtype=torch.float32, device=device)
    check(original, module, x, of=lambda one: lambda x: checkpoint(one, x, use_reentrant=False))
    check(copy.deepcopy(original), copy.deepcopy(module), x)
    check(original, pickle.loads(pickle.dumps(module)), x)
    with torch.no_grad():
        torch.testing.assert_close(module(x), original(x))
    for shape in ((0, 5, D), (1, 1, D)):
        check(original, module, x.new_ones(shape))


def test_second_derivatives(device):
    _, module, _ = pair(device, torch.float64, OneUnused)
    x = make(2, 3, D, dtype=torch.float64, device=device).requires_grad_()

    def run(x):
        return (module(x)[0] ** 2).sum()

    assert torch.autograd.gradcheck(run, x)
    assert torch.autograd.gradgradcheck(run, x)


def test_batches_of_gradients_and_transforms(device):
    original, module, _ = pair(device)
    x = make(2, 5, D, dtype=torch.float32, device=device)
    results = []
    for one in (original, module):
        leaf = x.clone().requires_grad_()
        dys = torch.eye(4, device=device).view(4, 2, 2)
        y = one(leaf)[:, :2, 0]
        inputs = [leaf, one.q.weight, one.k.bias]
        results.append(torch.autograd.grad(y, inputs, dys, is_grads_batched=True))
        results[-1] += (torch.func.vjp(one, x)[1](torch.ones_like(x))[0],)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


def test_the_graph_may_be_kept(device):
    _, module, _ = pair(device)
    x = make(2, 5, D, dtype=torch.float32, device=device).requires_grad_()
    loss = module(x).square().sum()
    first = torch.autograd.grad(loss, x, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, x)[0])


def test_compiled_code_has_the_layers_alone(device):
    original, module, _ = pair(device)
    x = make(2, 5, D, dtype=torch.float32, device=device)
    targets = []

    def backend(graph, _):
        targets.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    y = torch.compile(module, fullgraph=True, backend=backend)(x.requires_grad_())
    torch.testing.assert_close(y, original(x))
    assert not any("fusedops" in target for target in targets)


@pytest.mark.parametrize("model", ["Llama", "Qwen3", "Bert", "OPT"])
def test_hugging_face(device, model):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 64}
    grouped = {"num_key_value_heads": 2, "head_dim": 16} if model in ("Llama", "Qwen3") else {}
    more = {"word_embed_proj_dim": 64, "ffn_dim": 48} if model == "OPT" else {}
    more = more or {"intermediate_size": 48}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{model}Config")(**sizes, **grouped, **more, **tokens)
    original = getattr(transformers, f"{model}Model")(config).to(device).eval()
    fused = copy.deepcopy(original)
    assert len(fusedops.fuse(fused).projections) == 1
    ids = torch.arange(24, device=device).view(2, 12)
    results = []
    for one in (original, fused):
        y = one(ids).last_hidden_state
        (y * make(*y.shape, dtype=y.dtype, device=device)).sum().backward()
        results.append([y.detach(), *(p.grad for p in one.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4 * float(a.abs().max()) + 1e-6)
