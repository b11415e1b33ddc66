"""The graph pass finds gathers by permutations, as mixtures of experts have them."""

from __future__ import annotations

import operator

import pytest
import torch

import fusedops
from integration.test_inductor import without_codegen

TOKENS, COPIES, C = 7, 2, 5


def experts(x, ids, weights):
    """transformers': tokens by expert, and back."""
    ids, weights = ids.reshape(-1), weights.reshape(-1)
    _, order = torch.sort(ids)
    rows, scale = x[order // COPIES], weights[order]
    rows = rows.sin() * scale[:, None]
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=x.device)
    return rows[inverse].view(TOKENS, COPIES, C).sum(1)


def by_argsort(x, ids, weights):
    order = ids.reshape(-1).argsort()
    wide = x.repeat_interleave(COPIES, 0)
    return (wide * 2).index_select(0, order)


def other_numbers(x, ids, weights):
    order = torch.sort(ids.reshape(-1))[1]
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=x.device).flip(0) // 2
    return x.repeat_interleave(COPIES, 0)[inverse]


def changed_later(x, ids, weights):
    order = torch.sort(ids.reshape(-1))[1]
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=x.device)
    inverse.clamp_(max=3)
    return x.repeat_interleave(COPIES, 0)[inverse]


def changed_order(x, ids, weights):
    order = torch.sort(ids.reshape(-1))[1]
    order.view(-1).clamp_(max=3)
    return x.repeat_interleave(COPIES, 0)[order]


def changed_places(x, ids, weights):
    order = torch.sort(ids.reshape(-1))[1]
    order %= 3
    inverse = torch.zeros_like(order)
    inverse[order] = torch.arange(order.numel(), device=x.device)
    return x.repeat_interleave(COPIES, 0)[inverse]


def of_fewer(x, ids, weights):
    return x[torch.sort(ids.reshape(-1))[1] // (2 * COPIES)]


def of_values(x, ids, weights):
    return x[torch.sort(ids.reshape(-1))[0]]


OTHERS = (other_numbers, changed_later, changed_order, changed_places, of_fewer, of_values)
FORMS = {experts: 3, by_argsort: 1, **dict.fromkeys(OTHERS, 0)}


@pytest.mark.parametrize("form", FORMS, ids=operator.attrgetter("__name__"))
def test_forms(device, form):
    torch.manual_seed(0)
    x = torch.randn(TOKENS, C, dtype=torch.float64).to(device).requires_grad_()
    ids = torch.randint(4, (TOKENS, COPIES)).to(device)
    weights = torch.rand(TOKENS, COPIES, dtype=torch.float64).to(device).requires_grad_()
    torch._dynamo.reset()
    ours = fusedops.inductor()
    backend = without_codegen(ours["options"])
    run = torch.compile(form, backend=backend, fullgraph=True, dynamic=False)
    got, want = run(x, ids, weights), form(x, ids, weights)
    torch.testing.assert_close(got, want)
    grads = [
        torch.autograd.grad(y.square().sum(), (x, weights), allow_unused=True) for y in (got, want)
    ]
    for a, b in zip(*grads, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b)
    assert ours.report.kinds().count("permuted_rows") == FORMS[form]


def test_no_atomics(device):
    torch._dynamo.reset()
    seen = []
    x = torch.randn(TOKENS, C, device=device, requires_grad=True)
    ids, weights = torch.randint(4, (TOKENS, COPIES), device=device), torch.rand(TOKENS, COPIES)

    def adding(graph):
        puts = graph.find_nodes(op="call_function", target=torch.ops.aten.index_put.default)
        seen.append([len(n.args) > 3 and n.args[3] for n in puts])

    ours = fusedops.inductor(post_grad_custom_pre_pass=adding)
    torch.compile(experts, dynamic=False, **ours)(x, ids, weights.to(device)).sum().backward()
    assert not any(any(one) for one in seen)


def test_without_a_gradient(device):
    x = torch.randn(TOKENS, C, device=device)
    ids, weights = torch.randint(4, (TOKENS, COPIES), device=device), torch.rand(TOKENS, COPIES)
    torch._dynamo.reset()
    ours = fusedops.inductor()
    backend = without_codegen(ours["options"])
    given = x, ids, weights.to(device)
    run = torch.compile(experts, backend=backend, dynamic=False)
    torch.testing.assert_close(run(*given), experts(*given))
    assert not ours.report.kinds()


def gradient(x, order):
    return torch.func.grad(lambda x: x[torch.sort(order)[1]].square().sum())(x)


def tangent(x, order):
    ad = torch.autograd.forward_ad
    with ad.dual_level():
        y = ad.make_dual(x.detach().requires_grad_(), x.detach())[torch.sort(order)[1]]
        return ad.unpack_dual(y * 2).tangent


@pytest.mark.parametrize("form", [gradient, tangent], ids=operator.attrgetter("__name__"))
def test_transforms_of_functions(device, form):
    """They see torch's own functions."""
    torch._dynamo.reset()
    x = torch.randn(TOKENS, C, device=device, requires_grad=True)
    order = torch.randint(4, (TOKENS,), device=device)
    ours = fusedops.inductor()
    backend = without_codegen(ours["options"])
    got = torch.compile(form, backend=backend, dynamic=False)(x, order)
    torch.testing.assert_close(got, form(x, order))
    assert not ours.report.kinds()
