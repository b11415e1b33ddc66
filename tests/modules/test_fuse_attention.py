"""fusedops.fuse on torch's attention: its projections are our linear, all else is torch's."""

from __future__ import annotations

import copy
import pickle
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from util import Calls, make

OPTIONS = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "no_bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True, "batch_first": True},
    "kdim": {"kdim": 12},
    "vdim": {"kdim": 12, "vdim": 20, "batch_first": True, "bias": False},
    "odd_heads": {"num_heads": 1, "batch_first": True},
    "narrow_heads": {"num_heads": 8, "batch_first": True},
    "all": {"kdim": 12, "vdim": 20, "add_bias_kv": True, "add_zero_attn": True},
}


def pair(device, dtype=torch.float32, **options):
    """Attention of width 32 and the same one fused, with biases that are not zero."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(32, options.pop("num_heads", 4), dtype=dtype, **options)
    theirs = theirs.to(device)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn(p.shape).to(p))
    ours = copy.deepcopy(theirs)
    report = fusedops.fuse(ours)
    assert (report.num_fused, report.num_skipped) == (1, 0)
    return theirs, ours


def inputs(module, kind, device, dtype=torch.float32):
    """Query, key and value: one tensor, or a memory, or three tensors."""
    shape = (lambda n, d: (3, n, d)) if module.batch_first else (lambda n, d: (n, 3, d))
    query = make(*shape(5, 32), dtype=dtype, device=device)
    if kind == "self" and module.kdim == module.vdim == 32:
        return query, query, query
    key = make(*shape(7, module.kdim), dtype=dtype, device=device)
    if kind == "memory" and module.vdim == module.kdim:
        return query, key, key
    return query, key, make(*shape(7, module.vdim), dtype=dtype, device=device)


def masks(kind, source, device):
    """Keywords of a call."""
    causal = torch.ones(5, source, dtype=torch.bool, device=device).triu(1)
    padded = torch.zeros(3, source, dtype=torch.bool, device=device)
    padded[1, -2:] = True
    floats = torch.zeros(5, source, device=device).masked_fill(causal, float("-inf"))
    return {
        "none": {},
        "bool": {"attn_mask": causal},
        "float": {"attn_mask": floats},
        "padding": {"key_padding_mask": padded},
        "both": {"attn_mask": causal, "key_padding_mask": padded},
        "each_head": {"attn_mask": causal.expand(12, -1, -1)},
        "causal": {"attn_mask": causal, "is_causal": True},
    }[kind]


def our_linears(call):
    """How many of our linear's forwards a call runs."""
    with Calls() as calls:
        call()
    return calls.ours.count("linear")


def torchs(calls, name):
    """How often one of torch's ops is among calls."""
    return sum(call.split(".")[:2] == ["aten", name] for call in calls.names)


def assert_same(theirs, ours, args, **keywords):
    """Outputs, weights and gradients of parameters and inputs are torch's."""
    results = []
    for module in (theirs, ours):
        module.zero_grad()
        made = {id(x): x.detach().clone().requires_grad_() for x in args}
        torch.manual_seed(1)
        y, weights = module(*(made[id(x)] for x in args), **keywords)
        dy = make(*y.shape, dtype=y.dtype, device=y.device, seed=7)
        y.backward(dy)
        grads = [*(x.grad for x in made.values()), *(p.grad for p in module.parameters())]
        results.append([y, weights, *grads])
    assert (results[0][1] is None) == (results[1][1] is None)
    for i, (a, b) in enumerate(zip(*results, strict=True)):
        if a is not None:
            torch.testing.assert_close(b, a, rtol=2e-4, atol=2e-5)
            assert b.stride() == a.stride() or (i == 0 and b.is_contiguous())


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["self", "memory", "three"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_is_torchs(device, options, kind, need_weights):
    theirs, ours = pair(device, **OPTIONS[options])
    args = inputs(theirs, kind, device)
    assert_same(theirs, ours, args, need_weights=need_weights)
    assert_same(theirs.eval(), ours.eval(), args, need_weights=need_weights)
    with torch.no_grad():
        a, b = theirs(*args, need_weights=need_weights), ours(*args, need_weights=need_weights)
    torch.testing.assert_close(b, a, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "kind", ["none", "bool", "float", "padding", "both", "each_head", "causal"]
)
@pytest.mark.parametrize("options", ["plain", "batch_first", "bias_kv", "zero_attn"])
def test_masks(device, kind, options):
    theirs, ours = pair(device, **OPTIONS[options])
    args = inputs(theirs, "self", device)
    for keywords in ({"need_weights": False}, {"average_attn_weights": False}):
        assert_same(theirs, ours, args, **masks(kind, 5, device), **keywords)


@pytest.mark.parametrize("kind", ["none", "float", "padding", "both"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_masks_of_a_memory(device, kind, batch_first):
    theirs, ours = pair(device, batch_first=batch_first)
    args = inputs(theirs, "memory", device)
    mask = masks(kind, 7, device)
    if kind == "float":
        mask = {"attn_mask": make(5, 7, dtype=torch.float32, device=device)}
    assert_same(theirs, ours, args, need_weights=False, **mask)


@pytest.mark.parametrize(("kind", "products"), [("self", 2), ("memory", 3), ("three", 4)], ids=str)
def test_products_are_one_where_inputs_are(device, kind, products):
    theirs, ours = pair(device)
    args = inputs(theirs, kind, device)
    assert our_linears(lambda: ours(*args)) == products
    assert our_linears(lambda: theirs(*args)) == 0


@pytest.mark.parametrize(("kind", "gradients"), [("self", 1), ("memory", 3)], ids=str)
@pytest.mark.parametrize("batch_first", [False, True])
def test_training_copies_nothing_but_the_gradients(device, kind, gradients, batch_first):
    """Those of query, key and value; of a memory its weights' and biases' as well."""
    _, ours = pair(device, batch_first=batch_first)
    args = [x.detach().requires_grad_() for x in inputs(ours, kind, device)]
    args = [args[0]] * 3 if kind == "self" else [args[0], args[1], args[1]]
    with Calls() as calls:
        y, weights = ours(*args, need_weights=False)
        y.sum().backward()
    assert weights is None
    assert torchs(calls, "clone") == torchs(calls, "select_backward") == 0
    assert torchs(calls, "cat") == gradients
    _, ours = pair(device, num_heads=8, batch_first=batch_first)
    with Calls() as calls:
        ours(*args, need_weights=False)[0].sum().backward()
    assert torchs(calls, "clone") > 0  # heads of 4: torch's lines
    assert torchs(calls, "select_backward") == 0


def test_dropout_draws_as_torch_does(device):
    theirs, ours = pair(device, dropout=0.5, batch_first=True)
    assert_same(theirs, ours, inputs(theirs, "self", device), need_weights=False)


def test_dropout_and_unbatched(device):
    theirs, ours = pair(device, dropout=0.5)
    args = inputs(theirs, "self", device)
    assert_same(theirs, ours, args)
    x = make(5, 32, dtype=torch.float32, device=device)
    assert_same(theirs, ours, (x, x, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes_and_autocast(device, dtype):
    theirs, ours = pair(device, dtype)
    args = inputs(theirs, "self", device, dtype)
    for a, b in zip(theirs(*args), ours(*args), strict=True):
        torch.testing.assert_close(b, a)
    theirs, ours = pair(device)
    args = inputs(theirs, "memory", device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        a, b = theirs(*args)[0], ours(*args)[0]
    assert a.dtype is b.dtype
    torch.testing.assert_close(b, a, rtol=2e-2, atol=2e-2)
    a.float().sum().backward()
    b.float().sum().backward()
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=5e-2, atol=5e-2)


def test_the_fast_path_stays(device):
    theirs, ours = pair(device, batch_first=True)
    args = inputs(theirs, "self", device)
    theirs.eval(), ours.eval()
    with (
        torch.no_grad(),
        mock.patch.object(
            torch, "_native_multi_head_attention", wraps=torch._native_multi_head_attention
        ) as native,
    ):
        a, b = theirs(*args), ours(*args)
        assert native.call_count == 2
    torch.testing.assert_close(b, a)
    lengths = [make(n, 32, dtype=torch.float32, device=device) for n in (3, 5)]
    nested = torch.nested.nested_tensor(lengths)
    with torch.no_grad():
        a, b = theirs(nested, nested, nested)[0], ours(nested, nested, nested)[0]
    torch.testing.assert_close(b.to_padded_tensor(0.0), a.to_padded_tensor(0.0))


def test_errors_are_torchs(device):
    theirs, ours = pair(device)
    x = make(5, 3, 32, dtype=torch.float32, device=device)
    calls = ({"is_causal": True}, {"attn_mask": torch.zeros(2, 2, device=device)})
    for keywords in calls:
        with pytest.raises(RuntimeError) as one:
            theirs(x, x, x, **keywords)
        with pytest.raises(RuntimeError) as two:
            ours(x, x, x, **keywords)
        assert str(one.value) == str(two.value)


def test_copies_pickles_and_state_dict(device):
    theirs, ours = pair(device)
    args = inputs(theirs, "self", device)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(again) is type(ours)
        assert_same(theirs, again, args)
        assert our_linears(lambda m=again: m(*args)) == 2
    second = fusedops.fuse(ours)
    assert (second.num_fused, second.unchanged, second.num_skipped) == (0, 1, 0)


@pytest.mark.parametrize("name", ["linear", "scaled_dot_product_attention", "dropout"])
def test_torchs_functions_that_were_replaced_are_called(device, name):
    theirs, ours = pair(device, dropout=0.25)
    args = inputs(theirs, "self", device)
    with mock.patch.object(F, name, wraps=getattr(F, name)) as function:
        ours(*args, need_weights=name != "scaled_dot_product_attention")
        assert function.call_count > 0
    assert our_linears(lambda: ours(*args)) == 2


def test_main_grad_is_left_to_torch(device):
    _, ours = pair(device)
    args = inputs(ours, "memory", device)
    ours.in_proj_weight.main_grad = torch.zeros_like(ours.in_proj_weight)
    ours(*args)[0].sum().backward()
    assert ours.in_proj_weight.grad is not None
    assert ours.in_proj_weight.main_grad.abs().sum() == 0


def test_compiled_code_is_torchs(device):
    theirs, ours = pair(device)
    args = inputs(theirs, "memory", device)
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*args), theirs(*args), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["self", "memory"])
@pytest.mark.parametrize("mask", ["none", "both", "causal"])
def test_compiled_training_copies_nothing(device, kind, mask):
    theirs, ours = pair(device, batch_first=True)
    args = inputs(theirs, kind, device)
    keywords = masks(mask, args[1].shape[1], device) if kind == "self" or mask == "none" else {}
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()  # all of them compile one forward, which Dynamo does eight times
    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    assert_same(theirs, compiled, args, need_weights=False, **keywords)
    (graph,) = graphs
    assert not {"contiguous", "unflatten"} & {n.target for n in graph.graph.nodes}


class OwnForward(nn.MultiheadAttention):
    """Returns the output alone."""

    def forward(self, x):
        return super().forward(x, x, x)[0]


class SameForward(nn.MultiheadAttention):
    """A name of its own, and no more."""


def test_subclasses(device):
    model = nn.ModuleList([OwnForward(32, 4), SameForward(32, 4)]).to(device)
    x = make(5, 3, 32, dtype=torch.float32, device=device)
    expected = model[0](x), model[1](x, x, x)[0]
    report = fusedops.fuse(model)
    assert {s.name: s.reason for s in report.skipped}["0"] == "has a forward of its own"
    assert [layer.name for layer in report.fused] == ["1"]
    assert isinstance(model[1], SameForward)
    assert our_linears(lambda: model[0](x)) == 0
    assert our_linears(lambda: model[1](x, x, x)) == 2
    torch.testing.assert_close((model[0](x), model[1](x, x, x)[0]), expected)


def test_parametrized_attention_stays_and_may_be_parametrized_later(device):
    theirs, ours = pair(device)
    args = inputs(theirs, "self", device)
    for module in (theirs, ours):
        torch.manual_seed(3)
        nn.utils.parametrizations.weight_norm(module, "in_proj_weight")
    assert_same(theirs, ours, args)
    assert "parametrizations" in fusedops.fuse(theirs).skipped[0].reason
    nn.utils.parametrize.remove_parametrizations(ours, "in_proj_weight")
    assert our_linears(lambda: ours(*args)) == 2


def test_symbolic_trace_keeps_it_a_leaf(device):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(32, 4)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    model = Model().to(device)
    fusedops.fuse(model)
    x = make(5, 3, 32, dtype=torch.float32, device=device)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), model(x))
