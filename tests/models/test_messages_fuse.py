"""fuse lets graph convolutions of torch_geometric add up messages in the order of edges."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fusedops
from fusedops._rewrite.clouds import messages
from models.twin_messages import twin_nn
from util import Calls

SOURCES, TARGETS, EDGES, C = 14, 9, 60, 6


@pytest.fixture(params=["twin", "torch_geometric"])
def geometric(request, monkeypatch):
    """torch_geometric, or a twin of it; few messages pay."""
    monkeypatch.setattr(messages, "pays", lambda x, edges: True)
    if request.param == "twin":
        return SimpleNamespace(nn=twin_nn)
    return pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")


CONVS = {
    "gin": lambda pyg: pyg.nn.GINConv(nn.Linear(C, 4)),
    "sage": lambda pyg: pyg.nn.SAGEConv(C, 4),
    "sage_sum": lambda pyg: pyg.nn.SAGEConv(C, 4, aggr="sum"),
    "graph": lambda pyg: pyg.nn.GraphConv(C, 4),
    "weighted": lambda pyg: pyg.nn.GraphConv(C, 4),
    "weighted_mean": lambda pyg: pyg.nn.GraphConv(C, 4, aggr="mean"),
}


def made(device, pairs=False):
    """x or (sources, targets), edges from one to the other, weights."""
    torch.manual_seed(0)
    targets = TARGETS if pairs else SOURCES
    ends = torch.stack([torch.randint(n, (EDGES,)) for n in (SOURCES, targets)]).to(device)
    ends[1, ends[1] == 3] = 4  # a node without an edge
    x = torch.randn(SOURCES, C, dtype=torch.float64).to(device).requires_grad_()
    if pairs:
        x = x, torch.randn(targets, C, dtype=torch.float64).to(device).requires_grad_()
    return x, ends, torch.rand(EDGES, dtype=torch.float64).to(device)


def results(conv, x, *given):
    y = conv(x, *given)
    leaves = [t for t in (x if isinstance(x, tuple) else (x,)) if t is not None]
    leaves += conv.parameters()
    return [y, *torch.autograd.grad(y.square().sum(), leaves)]


def assert_ours(ours, theirs, x, *given):
    with Calls() as calls:
        got = results(ours, x, *given)
    assert "aten.index_select" not in calls.names
    for a, b in zip(got, results(theirs, x, *given), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("form", CONVS)
def test_convolutions(geometric, device, form, pairs):
    theirs = CONVS[form](geometric).to(device, torch.float64)
    ours = copy.deepcopy(theirs)
    report = fusedops.fuse(ours)
    assert [block.kind for block in report.blocks] == ["edge_sum"]
    x, ends, weights = made(device, pairs)
    given = (ends, weights) if form.startswith("weighted") else (ends,)
    is_twin = geometric.nn is twin_nn  # its classes are not where they say
    loaded = ours if is_twin else pickle.loads(pickle.dumps(ours))
    for conv in (ours, copy.deepcopy(ours), loaded):
        assert type(conv).__name__ == type(theirs).__name__
        if pairs and form == "gin":  # its sum is that of rows of the same size
            assert_ours(conv, theirs, (x[0], None), *given, (SOURCES, TARGETS))
        else:
            assert_ours(conv, theirs, x, *given)


def test_layers_of_a_step_share_orders(geometric, device, monkeypatch):
    """As long as edges are the same tensor with the same values, and a graph of autograd lives."""
    formed = []
    real = messages.orders_of
    monkeypatch.setattr(messages, "orders_of", lambda *a: formed.append(a) or real(*a))
    theirs = CONVS["gin"](geometric).to(device, torch.float64)
    theirs.nn = nn.Identity()
    ours = copy.deepcopy(theirs)
    fusedops.fuse(ours)
    x, ends, _ = made(device)

    def three(conv, change=lambda: None):
        y = x
        for _ in range(3):
            y = conv(y, ends)
            change()
        return y, *torch.autograd.grad(y.square().sum(), x)

    torch.testing.assert_close(three(ours), three(theirs))
    assert len(formed) == 1
    torch.testing.assert_close(three(ours), three(theirs))
    assert len(formed) == 2
    first = ends.clone()
    got = three(ours, lambda: ends[0].add_(1).remainder_(SOURCES))
    assert len(formed) == 5
    ends.copy_(first)
    # torch's own does not allow it: autograd needs the edges of each layer.
    y, now = x, ends
    for _ in range(3):
        y = theirs(y, now)
        now = torch.stack([(now[0] + 1) % SOURCES, now[1]])
    torch.testing.assert_close(got, (y, *torch.autograd.grad(y.square().sum(), x)))
    with torch.no_grad():
        torch.testing.assert_close(ours(x, ends), theirs(x, ends))
    with torch.inference_mode():
        inferred = ends.clone()
        torch.testing.assert_close(ours(x, inferred), theirs(x, inferred))
    assert len(formed) == 5


def test_batches_of_gradients(geometric, device):
    conv = CONVS["weighted"](geometric).to(device, torch.float64)
    fusedops.fuse(conv)
    x, ends, weights = made(device)
    for given in ((ends,), (ends, weights)):
        y = conv(x, *given)[:2]
        every = torch.eye(y.numel(), dtype=y.dtype, device=device).view(-1, *y.shape)
        got = torch.autograd.grad(y, x, every, is_grads_batched=True, retain_graph=True)[0]
        for one, dy in zip(got, every, strict=True):
            torch.testing.assert_close(one, torch.autograd.grad(y, x, dy, retain_graph=True)[0])


def test_what_is_the_class_s_own_affair(geometric, device):
    """Learned weights, hooks, other flows, torch.func and torch.compile."""
    conv = CONVS["weighted"](geometric).to(device, torch.float64)
    fusedops.fuse(conv)
    x, ends, weights = made(device)

    def is_ours(*given):
        with Calls() as calls:
            conv(*given)
        return "aten.index_select" not in calls.names

    assert is_ours(x, ends, weights)
    assert is_ours(x, ends)
    assert not is_ours(x, ends, weights.clone().requires_grad_())
    assert not is_ours(x, ends.int(), weights)
    assert is_ours(x, ends, weights.view(-1, 1))
    seen = []
    conv.register_message_forward_hook(lambda *given: seen.append(given))
    assert not is_ours(x, ends, weights)
    assert seen


def test_torch_func_and_compile(geometric, device):
    theirs = CONVS["gin"](geometric).to(device, torch.float64)
    ours = copy.deepcopy(theirs)
    fusedops.fuse(ours)
    x, ends, _ = made(device)
    grads = [torch.func.grad(lambda x, c=c: c(x, ends).square().sum())(x) for c in (ours, theirs)]
    torch.testing.assert_close(*grads)
    torch._dynamo.reset()
    run = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(x, ends), theirs(x, ends))


def test_other_messages_are_left_alone(device):
    from models import twin_messages

    for kind in (twin_messages._Scaled, twin_messages._Updated):
        assert not fusedops.fuse(kind(nn.Linear(C, 4))).blocks
    assert fusedops.fuse(twin_messages._Inherited(nn.Linear(C, 4))).blocks
    assert not fusedops.fuse(twin_messages.SAGEConv(C, 4, aggr="max")).blocks


def test_sizes(device):
    """Where they contradict each other, torch_geometric says so."""
    (rows, results), _, _ = made(device, pairs=True)
    assert messages._count(rows, results, None) == TARGETS
    assert messages._count(rows, None, None) == SOURCES
    assert messages._count(rows, None, (None, TARGETS)) == TARGETS
    assert messages._count(rows, results, (SOURCES, TARGETS)) == TARGETS
    assert messages._count(rows, results, (SOURCES, TARGETS + 1)) is None
    assert messages._count(rows, results, (SOURCES + 1, None)) is None


def test_edges_of_no_node(geometric, device):
    """They are left out, in both directions."""
    conv = CONVS["gin"](geometric).to(device, torch.float64)
    fusedops.fuse(conv)
    x, ends, _ = made(device)
    wrong = torch.tensor([[-1, 2, SOURCES, 3, 5], [1, -1, 2, SOURCES, SOURCES + 7]], device=device)
    got = results(conv, x, torch.cat([wrong, ends], 1))
    for a, b in zip(got, results(conv, x, ends), strict=True):
        torch.testing.assert_close(a, b)


def test_a_sum_may_be_written_into(geometric, device):
    """As GCN2Conv does."""
    conv = CONVS["gin"](geometric).to(device, torch.float64)
    fusedops.fuse(conv)
    x, ends, _ = made(device)
    got = torch.autograd.grad(conv.propagate(ends, x=x).mul_(2).square().sum(), x)
    want = torch.autograd.grad(4 * conv.propagate(ends, x=x).square().sum(), x)
    torch.testing.assert_close(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_many_messages(aggr):
    """As exact as float32 sums, the same bits in each run, and in a CUDA graph."""
    torch.manual_seed(0)
    nodes, edges, width = 20_000, 200_000, 256
    theirs = twin_nn.SAGEConv(width, 8, aggr=aggr).cuda().bfloat16()
    ours = copy.deepcopy(theirs)
    fusedops.fuse(ours)
    x = torch.randn(nodes, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ends = torch.randint(nodes, (2, edges), device="cuda")
    ends[1, : edges // 4] = 7  # many to one
    wide = x.detach().double().requires_grad_()
    exact = results(copy.deepcopy(theirs).double(), wide, ends)
    got, again, want = results(ours, x, ends), results(ours, x, ends), results(theirs, x, ends)
    for a, b, c, d in zip(got, again, want, exact, strict=True):
        assert torch.equal(a, b)
        errors = [((t.double() - d).norm() / d.norm()).item() for t in (a, c)]
        assert errors[0] <= 1.1 * errors[1] + 2e-3
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        ours(x, ends)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        replayed = ours(x, ends)
    ends.copy_(ends.flip(1)[[1, 0]])  # a graph reads the edges that stand there
    graph.replay()
    with torch.no_grad():
        assert torch.equal(replayed, ours(x, ends))
