"""Gradients of embeddings in the graph pass: what is found, what stays, and that values stay."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from integration.test_inductor import assert_close, without_codegen

V, D = 23, 16
KIND = "embedding_grad"


class Model(nn.Module):
    """Tokens to logits; the last layer's weight may be the embedding's."""

    def __init__(self, tied=False, **options):
        super().__init__()
        self.embedding = nn.Embedding(V, D, **options)
        self.head = nn.Linear(D, V, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens).tanh())


def make(device, dtype=torch.bfloat16, **options):
    torch.manual_seed(0)
    return Model(**options).to(device, dtype)


def draw(device, *shape, dtype=torch.int64):
    torch.manual_seed(1)
    return torch.randint(0, V - 4, shape or (3, 10), device=device).to(dtype)


def gradients(function, model, tokens):
    y = function(tokens)
    dy = torch.linspace(-1, 2, y.numel(), device=y.device).reshape(y.shape).to(y.dtype)
    return torch.autograd.grad(y, [p for p in model.parameters() if p.requires_grad], dy)


def compiled(function, ours, dynamic=False):
    torch.compiler.reset()
    backend = without_codegen(ours["options"])
    return torch.compile(function, fullgraph=True, dynamic=dynamic, backend=backend)


def check(model, tokens, function=None, dynamic=False, force=True):
    """Gradients agree with eager's; the kinds that were replaced, and the report."""
    function = function or model
    ours = fusedops.inductor(force=force)
    got = gradients(compiled(function, ours, dynamic), model, tokens)
    dtype = next(model.parameters()).dtype
    assert_close(got, gradients(function, model, tokens), 4e-2 if dtype.itemsize == 2 else 2e-5)
    return got, ours.report


def assert_replaced(report, count=1):
    assert report.kinds().count(KIND) == count
    assert not any("cannot read" in left.reason for left in report.left)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("padding_idx", [None, 0, 7, -1])
def test_the_gradient_is_replaced_and_stays(device, dtype, padding_idx):
    model, tokens = make(device, dtype, padding_idx=padding_idx), draw(device)
    tokens[0, :4] = 7
    got, report = check(model, tokens)
    assert_replaced(report)
    (site,) = (s for s in report.replaced if s.kind == KIND)
    assert site.shape == f"{tokens.numel()} x {V} x {D}"
    assert KIND in str(report)
    assert got[0][V - 3 :].abs().max() == 0  # no such token
    if padding_idx is not None:
        assert got[0][padding_idx].abs().max() == 0


def test_tied_weights_add_both_gradients(device):
    _, report = check(make(device, tied=True), draw(device))
    assert_replaced(report)


def test_int32_indices(device):
    _, report = check(make(device), draw(device, dtype=torch.int32))
    assert_replaced(report)


@pytest.mark.parametrize("shape", [(30,), (2, 3, 5), ()])
def test_shapes_of_indices(device, shape):
    torch.manual_seed(2)
    tokens = torch.randint(0, V, shape, device=device)
    _, report = check(make(device), tokens)
    assert_replaced(report)


def test_two_embeddings(device):
    class Two(Model):
        def __init__(self):
            super().__init__()
            self.positions = nn.Embedding(40, D)

        def forward(self, tokens):
            at = torch.arange(tokens.shape[1], device=tokens.device)
            return self.head(self.embedding(tokens).tanh() + self.positions(at))

    torch.manual_seed(0)
    _, report = check(Two().to(device), draw(device))
    assert_replaced(report, 2)


def test_one_embedding_read_twice(device):
    model, tokens = make(device), draw(device)

    def twice(tokens):
        return model(tokens) + model(tokens.flip(1))

    _, report = check(model, tokens, twice)
    assert_replaced(report, 2)


def test_dynamic_shapes(device):
    """Every graph has the op, and there are no more graphs than without the pass."""
    model = make(device)
    ours = fusedops.inductor(force=True)
    graphs = {}
    for name, options in (("ours", ours), ("plain", {"options": {}})):
        function = compiled(model, options, dynamic=True)
        torch._dynamo.utils.counters.clear()
        for shape in ((3, 10), (2, 7), (5, 4)):
            tokens = draw(device, *shape)
            got = gradients(function, model, tokens)
            assert_close(got, gradients(model, model, tokens), 4e-2)
        graphs[name] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs["ours"] == graphs["plain"] >= 1
    assert_replaced(ours.report, graphs["ours"])


def test_rows_of_a_dynamic_number_stay_and_are_no_reason_to_compile_again(device):
    def function(weight, tokens):
        return F.embedding(tokens, weight).tanh()

    ours = fusedops.inductor(force=True)
    run = compiled(function, ours, dynamic=True)
    for rows in (9, 12):
        weight = torch.randn(rows, D, device=device, requires_grad=True)
        tokens = torch.randint(0, rows, (4, 5), device=device)
        got, want = (torch.autograd.grad(f(weight, tokens).sum(), weight) for f in (run, function))
        torch.testing.assert_close(got, want)
    assert ours.report.kinds() == []
    assert ours.report.graphs == 1


def test_autocast(device):
    model, tokens = make(device, torch.float32), draw(device)

    def function(tokens):
        with torch.autocast(device, dtype=torch.bfloat16):
            return model(tokens).float()

    ours = fusedops.inductor(force=True)
    got = gradients(compiled(function, ours), model, tokens)
    assert_close(got, gradients(function, model, tokens), 4e-2)
    assert_replaced(ours.report)


def test_only_where_a_gpu_is(device):
    if device != "cpu":
        pytest.skip("a GPU's gradient is replaced where it is large")
    _, report = check(make(device), draw(device), force=False)
    assert report.kinds() == []


def verdict(entries, rows, d, dtype):
    """What the decision says of a GPU that is not here."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from fusedops._inductor.decide import _by_memory
    from fusedops._inductor.embedding import EmbeddingSite

    with FakeTensorMode():
        fake = torch.empty(rows, d, dtype=dtype, device="cuda")
    site = EmbeddingSite(KIND, "none", (entries, rows, d), [])
    site.replace([SimpleNamespace(meta={"val": fake})], None)
    return _by_memory(site, [entries, rows, d])


def test_what_pays():
    for shape in ((4096, 128256, 2048), (4096, 151936, 1024), (8192, 50257, 1024)):
        found = verdict(*shape, torch.bfloat16)
        assert found.take
        assert found.theirs_us > 2.5 * found.ours_us
    assert verdict(4096, 128256, 2048, torch.float32).take
    assert not verdict(512, 100, 64, torch.bfloat16).take
    assert "by Inductor" in verdict(512, 100, 64, torch.float32).reason


# ---- what stays ----


def indexed(weight, tokens):
    return weight[tokens].tanh()  # which takes negative indices


def counted(weight, tokens):
    return F.embedding(tokens, weight, scale_grad_by_freq=True).tanh()


def added_to_ones(weight, tokens):
    """An accumulating index_put into what is not zero."""
    y = F.embedding(tokens, weight.detach())
    return torch.ones_like(weight).index_put((tokens,), y * weight[0], accumulate=True)


@pytest.mark.parametrize("function", [indexed, counted, added_to_ones])
def test_others_stay(device, function):
    torch.manual_seed(0)
    weight = torch.randn(V, D, device=device, requires_grad=True)
    tokens = draw(device) - (3 if function is indexed else 0)
    if function is indexed:
        tokens = tokens.clamp(-2)
    ours = fusedops.inductor(force=True)
    run = compiled(function, ours)
    got, want = (torch.autograd.grad(f(weight, tokens).sum(), weight) for f in (run, function))
    torch.testing.assert_close(got, want)
    assert KIND not in ours.report.kinds()


def test_with_code_generation(device):
    from torch._inductor.utils import fresh_cache

    torch.compiler.reset()
    model, tokens = make(device, torch.float32, padding_idx=3), draw(device)
    ours = fusedops.inductor(force=True)
    with fresh_cache():  # a graph out of the cache is not read again
        got = gradients(torch.compile(model, **ours), model, tokens)
    assert_close(got, gradients(model, model, tokens), 2e-5)
    assert_replaced(ours.report)


@pytest.mark.parametrize("tied", [False, True])
def test_a_half_gradient_that_is_added_to_another_one_stays_inductors(device, tied):
    model = make(device, torch.float32, tied=tied)

    def function(tokens):
        with torch.autocast(device, torch.bfloat16):
            return model(tokens)

    ours = fusedops.inductor(force=True)
    tokens = draw(device)
    got = gradients(compiled(function, ours), model, tokens)
    assert_close(got, gradients(function, model, tokens), 4e-2)
    assert ours.report.kinds().count("weight_grad") == (0 if tied else 1)
