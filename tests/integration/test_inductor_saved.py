"""What is saved for backward beside our ops: their results, and nothing computed from them.

Gradients of MLPs are written over it, where nothing else reads it.
"""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusedops
from fusedops._inductor import graph_pass, in_place
from fusedops._inductor.decide import Verdict
from fusedops._inductor.graph import bare
from integration.test_inductor import H, K, Mlp, assert_close, inputs, make, step

B, C, SIDE = 2, 16, 8


class Block(nn.Module):
    """ConvNeXt's: channels last between two permutations."""

    def __init__(self, act):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 3, padding=1, groups=C)
        self.norm, self.act = nn.LayerNorm(C), act
        self.fc1, self.fc2 = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.fc2(self.act(self.fc1(y))).permute(0, 3, 1, 2)


def saved_by(model, x, options):
    """(loss and gradients, what the forward graph returns besides)."""
    from torch._inductor.compile_fx import compile_fx

    graphs = []

    def run(graph, inputs, **kwargs):
        graphs.append(graph)

        def call(args):
            taken = list(args)
            args.clear()
            return graph(*taken)

        call._boxed_call = True
        return call

    def backend(graph, xs):
        return compile_fx(graph, xs, inner_compile=run, config_patches=options)

    torch.compiler.reset()
    loss = torch.compile(model, backend=backend, fullgraph=True)(x).float().square().mean()
    results = [loss, *torch.autograd.grad(loss, list(model.parameters()))]
    (output,) = graphs[0].graph.find_nodes(op="output")
    return results, output.args[0][1:]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("act", [F.gelu, lambda z: z * torch.sigmoid(1.702 * z)])
def test_a_preactivation_is_saved_as_it_is(device, dtype, act, monkeypatch):
    def layers_alone(site, force):
        return Verdict(site.kind == "linear", "the layer alone")

    monkeypatch.setattr(graph_pass, "decide", layers_alone)
    torch.manual_seed(0)
    model = nn.Sequential(Block(act), Block(act)).to(device, dtype)
    x = torch.randn(B, C, SIDE, SIDE, device=device, dtype=dtype)
    ours = fusedops.inductor()
    got, saved = saved_by(model, x, ours["options"])
    assert ours.report.kinds() == ["linear"] * 2
    wide = [n for n in saved if n.meta["val"].numel() == B * SIDE * SIDE * 4 * C]
    assert len(wide) == 4  # z and act(z) of each
    assert all(bare(n).target is operator.getitem for n in wide)
    assert all(n.meta["val"].shape[-2:] == (B * SIDE * SIDE, 4 * C) for n in wide)
    loss = model(x).float().square().mean()
    want = [loss, *torch.autograd.grad(loss, list(model.parameters()))]
    assert_close(got, want, 6e-2 if dtype is torch.bfloat16 else 2e-5)


# ---- in its place ----

IN_PLACE = {
    "gelu": "mlp_backward_",
    "llama": "gated_mlp_backward_",
    "packed": "gated_mlp_backward_",
}


def run(model, function):
    """(results, source that Inductor wrote for forward and backward)."""
    from torch._inductor.utils import fresh_cache, run_and_get_code

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, **fusedops.inductor(force=True))
    with fresh_cache():  # a graph out of the cache is not written again
        results, codes = run_and_get_code(lambda: function(compiled))
    return results, "\n".join(codes)


def calls(code, op):
    return code.count(f"torch.ops.fusedops.{op}.default(")


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_forward_saved_becomes_the_gradient(device, name):
    model, x = make(name, device), inputs(device)
    got, code = run(model, lambda f: step(f, model, x))
    assert_close(got, step(model, model, x), 1e-5)
    assert (calls(code, IN_PLACE[name]), calls(code, IN_PLACE[name][:-1])) == (1, 0)
    # Nothing as large as what is saved is made in backward: Inductor did not have to copy it.
    _, _, backward = code.partition(IN_PLACE[name])
    wide = 2 * 32 * H if name != "gelu" else 32 * H
    assert f"(({wide}, )" not in code
    assert "copy_" not in backward


def test_a_gradient_that_is_asked_for_twice(device):
    model, x = make("llama", device), inputs(device)

    def twice(function):
        y = function(x).square().sum()
        first = torch.autograd.grad(y, list(model.parameters()), retain_graph=True)
        return [*first, *torch.autograd.grad(y, list(model.parameters()))]

    got, code = run(model, twice)
    assert_close(got, twice(model), 1e-5)
    assert calls(code, "gated_mlp_backward_") == 0
    assert calls(code, "gated_mlp_backward") == 1


def test_a_last_weight_without_a_gradient(device):
    model, x = make("gelu", device), inputs(device)
    model.fc2.weight.requires_grad_(False)
    got, code = run(model, lambda f: step(f, model, x))
    assert_close(got, step(model, model, x), 1e-5)
    assert (calls(code, "mlp_backward_"), calls(code, "mlp_backward")) == (0, 1)


def test_two_layers_and_dynamic_sizes(device):
    torch.manual_seed(0)
    model = nn.Sequential(Mlp(F.gelu), Mlp(F.silu)).to(device)
    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=True, **fusedops.inductor(force=True))
    for batch in (4, 6, 3):
        x = inputs(device, batch=batch)
        assert_close(step(compiled, model, x), step(model, model, x), 1e-5)


def test_a_pass_of_the_user_runs_first():
    seen = []
    ours = fusedops.inductor(post_grad_custom_post_pass=lambda graph: seen.append(graph))
    last = ours["options"]["post_grad_custom_post_pass"]
    graph = torch.fx.Graph()
    last(graph)
    assert seen == [graph]
    assert last.uuid() is None  # as for that pass alone
    assert fusedops.inductor()["options"]["post_grad_custom_post_pass"].uuid() is not None


def backward_graph(shared=False, twice=False):
    """A graph of backward with one gradient of an MLP; its inputs are dy, saved and the weight."""
    from torch._subclasses import FakeTensorMode

    graph, shapes = torch.fx.Graph(), {"dy": (6, K), "saved": (6, H), "weight": (K, H)}
    nodes = {name: graph.placeholder(name) for name in shapes}
    with FakeTensorMode():
        for name, node in nodes.items():
            node.meta["val"] = torch.empty(shapes[name])
        if shared:
            nodes["view"] = graph.placeholder("view")
            nodes["view"].meta["val"] = nodes["saved"].meta["val"].view(-1)
        args = (*list(nodes.values())[:3], 2, True, False, True, False, False, False)
        op = torch.ops.fusedops.mlp_backward.default
        call = graph.call_function(op, args)
        call.meta["val"] = op(*(a.meta["val"] for a in args[:3]), *args[3:])
    results = [graph.call_function(in_place.operator.getitem, (call, i)) for i in (0, 2)]
    graph.output((*results, nodes["saved"]) if twice else tuple(results))
    return graph


@pytest.mark.parametrize(
    ("given", "kept"),
    [((0, 1), {}), ((0, 2), {}), (None, {}), ((1,), {"shared": True}), ((1,), {"twice": True})],
)
def test_only_what_nobody_else_reads(monkeypatch, given, kept):
    monkeypatch.setattr(in_place, "donated", lambda: given and list(given))
    graph = backward_graph(**kept)
    in_place.InPlacePass()(graph)
    graph.lint()
    changed = not graph.find_nodes(
        op="call_function", target=torch.ops.fusedops.mlp_backward.default
    )
    assert changed is (given == (0, 1))
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert len(copies) == changed


@pytest.mark.gpu
def test_replays_of_cuda_graphs():
    """What backward overwrites is in the graphs' memory, and each replay fills it again."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    model = nn.Sequential(Mlp(F.silu), Mlp(nn.GELU())).cuda().bfloat16()
    ours = fusedops.inductor("reduce-overhead", force=True)
    run = torch.compile(model, fullgraph=True, **ours)
    skipped = counters["inductor"]["cudagraph_skips"]
    for seed in range(5):
        torch.manual_seed(seed)
        x = inputs("cuda").bfloat16()
        assert_close(step(run, model, x), step(model, model, x), 3e-2)
    assert ours.report.kinds() == ["mlp", "mlp"]
    assert counters["inductor"]["cudagraph_skips"] == skipped
