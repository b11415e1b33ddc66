"""fusedops.inductor: the same blocks as models write them otherwise."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from fusedops._inductor.biases import join_biases
from fusedops._inductor.graph import aten
from integration.test_inductor import H, K, Llama, Mlp, assert_close, compiled, inputs, step

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "bf16"])


class Behind(nn.Module):
    """ResMLP's: an affine map in the place of a norm, of an x whose rows lie across memory."""

    def __init__(self, block):
        super().__init__()
        self.block = block
        self.alpha, self.beta = nn.Parameter(torch.randn(1, 1, K)), nn.Parameter(torch.randn(K))

    def forward(self, x):
        x = x.mT.contiguous().mT
        return x + self.block(torch.addcmul(self.beta, self.alpha, x))


class Written(nn.Module):
    """Without nn.Linear."""

    def __init__(self, bias_first):
        super().__init__()
        sizes = ((K, H), (H,), (H, K), (K,))
        self.w1, self.b1, self.w2, self.b2 = (nn.Parameter(torch.randn(s) / 4) for s in sizes)
        self.bias_first = bias_first

    def forward(self, x):
        x = x.flatten(0, 1)
        if self.bias_first:
            return self.b2 + F.silu(self.b1 + x @ self.w1) @ self.w2
        return F.silu(x @ self.w1 + self.b1) @ self.w2 + self.b2


class Eight(torch.autograd.Function):
    """Bloom's gelu: numbers of eight digits, and a backward of its own."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * 0.5 * (1.0 + torch.tanh(0.79788456 * z * (1 + 0.044715 * z * z)))

    @staticmethod
    def backward(ctx, dy):
        (z,) = ctx.saved_tensors
        t = torch.tanh(0.79788456 * z * (1 + 0.044715 * z * z))
        slope = 0.5 * z * ((1 - t * t) * (0.79788456 + 0.1070322243 * z * z)) + 0.5 * (1 + t)
        return slope * dy


FORMS = {
    "gelu": (lambda: Behind(Mlp(nn.GELU())), "mlp"),
    "gated": (lambda: Behind(Llama(bias=True)), "gated_mlp"),
    "written": (lambda: Written(False), "mlp"),
    "bias first": (lambda: Written(True), "mlp"),
    "eight digits": (lambda: Mlp(lambda z: Eight.apply(z)), "mlp"),
}


def both(model, x, ours, **options):
    """Results of the compiled model and of the model."""
    return step(compiled(model, ours, **options), model, x), step(model, model, x)


@every_dtype
@pytest.mark.parametrize("name", FORMS)
def test_blocks_are_found_and_values_stay(device, name, dtype):
    torch.manual_seed(0)
    make, kind = FORMS[name]
    model, x = make().to(device, dtype), inputs(device, dtype)
    ours = fusedops.inductor(force=True)
    got, want = both(model, x, ours)
    assert ours.report.kinds() == [kind]
    assert ours.report.left == []
    assert_close(got, want, TOLERANCE[dtype])


def test_dynamic_sizes(device):
    torch.manual_seed(0)
    model = FORMS["gelu"][0]().to(device)
    ours = fusedops.inductor(force=True)
    run = compiled(model, ours, dynamic=True)
    for batch in (4, 6, 3):
        x = inputs(device, batch=batch)
        assert_close(step(run, model, x), step(model, model, x), 1e-5)
    assert (ours.report.graphs, ours.report.kinds()) == (1, ["mlp"])


def test_autocast(device):
    torch.manual_seed(0)
    model, x = FORMS["gelu"][0]().to(device), inputs(device)

    def function(x):
        with torch.autocast(device, torch.bfloat16):
            return model(x)

    ours = fusedops.inductor(force=True)
    got = step(compiled(function, ours), model, x)
    assert "mlp" in ours.report.kinds()
    assert_close(got, step(function, model, x), 5e-2)


def traced(function, *args):
    return torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(*args)


X, W, B = torch.randn(6, K), torch.randn(K, H), torch.randn(H)
APART = {
    "read twice": (lambda x, w, b: torch.cat(((y := x @ w) + b, y)), (X, W, B)),
    "of the rows": (lambda x, w, b: (x @ w).view(2, 3 * H) + b, (X, W, torch.randn(3 * H))),
    "scaled": (lambda x, w, b: torch.add(x @ w, b, alpha=2), (X, W, B)),
    "another dtype": (lambda x, w, b: x @ w + b, (X, W, B.double())),
    "a matrix": (lambda x, w, b: x @ w + b, (X, W, torch.randn(6, H))),
    "one number": (lambda x, w, b: x @ w + b, (X, W, torch.randn(1))),
    "no tensor": (lambda x, w, b: x @ w + 1.0, (X, W, B)),
}


@pytest.mark.parametrize("name", APART)
def test_what_is_no_bias_stays(name):
    graph = traced(*((made := APART[name])[0], *made[1])).graph
    before = str(graph)
    join_biases(graph)
    assert str(graph) == before


def test_a_bias_that_is_made_later_is_joined():
    module = traced(lambda x, w, b: (x @ w).view(2, 3, H) + b.exp(), X, W, B)
    join_biases(module.graph)
    module.graph.lint()
    assert not module.graph.find_nodes(op="call_function", target=aten.mm.default)
    (product,) = module.graph.find_nodes(op="call_function", target=aten.addmm.default)
    assert product.meta["val"].shape == (6, H)
    module.recompile()
    torch.testing.assert_close(module(X, W, B), (X @ W).view(2, 3, H) + B.exp())
