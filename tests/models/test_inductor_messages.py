"""The graph pass finds sums of messages, as torch_geometric writes them and as others do."""

from __future__ import annotations

import operator

import pytest
import torch

import fusedops
from integration.test_inductor import without_codegen

NODES, EDGES, C = 12, 40, 5


def geometric(x, ends, weights):
    """torch_geometric's: every layer takes the ends anew."""
    target, source = ends[1], ends[0]
    rows = x.index_select(-2, source)
    index = target.view(-1, 1).expand_as(rows)
    return rows.new_zeros((NODES, C)).scatter_add_(0, index, rows)


def mean(x, ends, weights):
    """torch_geometric's: messages are asked for their shape once more."""
    rows = x.index_select(-2, ends[0])
    ones = rows.new_ones(rows.size(0))
    count = rows.new_zeros(NODES).scatter_add_(0, ends[1], ones).clamp(min=1)
    index = ends[1].view(-1, 1).expand_as(rows)
    out = rows.new_zeros((NODES, C)).scatter_add_(0, index, rows)
    return out / count.view(-1, 1)


def weighted(x, ends, weights):
    rows = weights.view(-1, 1) * x.index_select(-2, ends[0])
    index = ends[1].view(-1, 1).expand_as(rows)
    return rows.new_zeros((NODES, C)).scatter_add_(0, index, rows)


def by_index_add(x, ends, weights):
    """Negative sources count from the end."""
    rows = x[ends[0] - NODES // 2]
    return torch.zeros(NODES, C, dtype=x.dtype, device=x.device).index_add(0, ends[1], rows)


def unsqueezed(x, ends, weights):
    rows = x[ends[0]]
    index = ends[1].unsqueeze(-1).expand(-1, C)
    return torch.zeros(NODES, C, dtype=x.dtype, device=x.device).scatter_add(0, index, rows)


def relu_between(x, ends, weights):
    rows = x[ends[0]].relu()
    return torch.zeros(NODES, C, dtype=x.dtype, device=x.device).index_add(0, ends[1], rows)


def onto_others(x, ends, weights):
    return x.index_add(0, ends[1], x[ends[0]])


def read_too(x, ends, weights):
    rows = x[ends[0]]
    zeros = torch.zeros(NODES, C, dtype=x.dtype, device=x.device)
    return zeros.index_add(0, ends[1], rows) + rows.sum()


def learned(x, ends, weights):
    rows = weights.view(-1, 1) * x.sum() * x[ends[0]]
    return torch.zeros(NODES, C, dtype=x.dtype, device=x.device).index_add(0, ends[1], rows)


FOUND = (geometric, mean, weighted, by_index_add, unsqueezed)
OTHERS = (relu_between, onto_others, read_too, learned)


def made(device, dtype=torch.float64):
    torch.manual_seed(0)
    x = torch.randn(NODES, C, dtype=dtype).to(device).requires_grad_()
    ends = torch.randint(NODES, (2, EDGES)).to(device)
    ends[1, ends[1] == 3] = 4  # a node without an edge
    return x, ends, torch.rand(EDGES, dtype=dtype).to(device)


def compiled(function, *given):
    torch._dynamo.reset()
    ours = fusedops.inductor(force=True)
    backend = without_codegen(ours["options"])
    run = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)
    return run(*given), ours.report


@pytest.mark.parametrize("form", [*FOUND, *OTHERS], ids=operator.attrgetter("__name__"))
def test_forms(device, form):
    x, ends, weights = made(device)

    def run(x):
        return form(form(x, ends, weights).sin(), ends, weights)

    got, report = compiled(run, x)
    want = run(x)
    torch.testing.assert_close(got, want)
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)]
    torch.testing.assert_close(*grads)
    assert report.kinds().count("edge_sum") == (2 if form in FOUND else 0)


def test_edges_are_sorted_once(device):
    """Both ways, whatever the number of layers."""
    x, ends, weights = made(device)
    seen = []

    def count(graph):
        seen.append(len(graph.find_nodes(op="call_function", target=torch.ops.aten.sort.stable)))

    def run(x):
        for _ in range(3):
            x = geometric(x, ends, weights).sin()
        return x

    torch._dynamo.reset()
    ours = fusedops.inductor(force=True, post_grad_custom_pre_pass=count)
    torch.compile(run, dynamic=False, **ours)(x).sum().backward()
    assert ours.report.kinds() == ["edge_sum"] * 3
    assert sum(seen) == 2


def test_edges_of_no_node_are_left_out(device):
    from fusedops._autograd.edge_sum import edge_sum

    x = torch.randn(NODES, C, device=device, requires_grad=True)
    source = torch.tensor([0, 1, 2, 3, -1, NODES], device=device)
    target = torch.tensor([0, -1, NODES, NODES - 1, 4, 4], device=device)
    y = edge_sum(x, source, target, None, NODES, wraps=False)
    want = torch.zeros_like(y)
    want[0], want[-1] = x[0].detach(), x[3].detach()
    assert torch.equal(y, want)
    y.sum().backward()
    assert x.grad.sum(1).tolist() == [C, 0, 0, C] + [0] * (NODES - 4)


@pytest.mark.parametrize("edges", [0, 1, 255, 256, 257, 3000])
def test_lists_of_any_length(device, edges):
    """Most edges belong to one node: its list is summed in parts."""
    from fusedops._autograd.edge_sum import edge_sum

    torch.manual_seed(0)
    x = torch.randn(NODES, C, dtype=torch.float64).to(device).requires_grad_()
    source, target = torch.randint(NODES, (2, edges)).to(device)
    target[edges // 5 :] = 7
    source[: edges // 2] = 2
    weights = torch.rand(edges, dtype=torch.float64).to(device)
    for given in (None, weights):
        got = edge_sum(x, source, target, given, NODES, wraps=False)
        terms = x[source] if given is None else x[source] * given.unsqueeze(1)
        want = torch.zeros_like(x).index_add(0, target, terms)
        torch.testing.assert_close(got, want)
        dy = torch.randn(3, NODES, C, dtype=torch.float64).to(device)
        pair = [
            torch.autograd.grad(y, x, dy, is_grads_batched=True, retain_graph=True)
            for y in (got, want)
        ]
        torch.testing.assert_close(*pair)
        pair = [torch.autograd.grad(y, x, dy[0], retain_graph=True) for y in (got, want)]
        torch.testing.assert_close(*pair)


def test_second_derivatives(device):
    from fusedops._autograd.edge_sum import edge_sum

    x, ends, weights = made(device)
    assert torch.autograd.gradgradcheck(
        lambda x: edge_sum(x, *ends, weights, NODES, False).square(), x
    )


@pytest.mark.gpu
def test_many_messages():
    """Without force, in half precision: sums are as exact as float32's."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(20_000, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ends = torch.randint(20_000, (2, 200_000), device="cuda")

    def run(x):
        rows = x.index_select(-2, ends[0])
        index = ends[1].view(-1, 1).expand_as(rows)
        return rows.new_zeros(x.shape).scatter_add_(0, index, rows)

    ours = fusedops.inductor()
    got = torch.compile(run, dynamic=False, **ours)(x)
    assert ours.report.kinds() == ["edge_sum"]
    exact = run(x.double())
    errors = [(y.double() - exact).norm() / exact.norm() for y in (got, run(x))]
    assert errors[0] < errors[1]
    pair = [torch.autograd.grad(y.sum(), x)[0].double() for y in (got, exact)]
    assert (pair[0] - pair[1]).norm() < 1e-2 * pair[1].norm()
