"""torch.compile and torch.export take the ops as they are: one graph, compiled or exported."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import fusedops
from util import (
    TorchMLP,
    batch,
    gradients,
    linear_inputs,
    mlp,
)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])  # one of each kind of saved tensor
def test_compiles_in_one_graph(device, activation, dynamic):
    torch.compiler.reset()
    compiled = torch.compile(fusedops.linear, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (6, 9):
        x, weight, bias, dy = linear_inputs(rows, 12, 16, torch.float32, device)
        for needs in [(False, False, False), (True, True, True)]:
            leaves = [
                t.clone().requires_grad_(n) for t, n in zip((x, weight, bias), needs, strict=True)
            ]
            wanted = [t for t in leaves if t.requires_grad]
            y, eager = compiled(*leaves, activation), fusedops.linear(*leaves, activation)
            torch.testing.assert_close(y, eager, rtol=1e-5, atol=1e-5)
            if wanted:
                ours = torch.autograd.grad(y, wanted, dy)
                for got, want in zip(ours, torch.autograd.grad(eager, wanted, dy), strict=True):
                    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_compiled_graphs_are_plain_aten(device):
    """Nothing of ours is a wall to Inductor."""
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def keep(graph, _):
            graphs.append({str(node.target) for node in graph.graph.nodes})
            return make_boxed_func(graph.forward)

        return aot_autograd(fw_compiler=keep, bw_compiler=keep)(graph, inputs)

    model = nn.Sequential(
        mlp(device),
        fusedops.nn.LayerNorm(4, device=device),
        fusedops.nn.MLP(4, 8, device=device),
        fusedops.nn.GatedMLP(4, 8, device=device),
        fusedops.nn.GatedMLP(4, 8, packed=True, device=device),
        fusedops.nn.RMSNorm(4, device=device),
    )
    x, labels = batch(device)
    gradients(torch.compile(model, fullgraph=True, backend=backend), x, labels)
    assert len(graphs) == 2
    assert not any("fusedops" in target for graph in graphs for target in graph)
    assert any("mm" in target for target in graphs[1])


@pytest.mark.parametrize("grad", [True, False])
def test_arguments_that_torch_treats_otherwise_keep_the_op(device, grad):
    torch.compiler.reset()
    compiled = torch.compile(fusedops.layer_norm, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 6, device=device, dtype=torch.bfloat16, requires_grad=grad)
    weight = torch.randn(6, device=device)  # float32 beside a half x
    assert torch.equal(compiled(x, 6, weight), fusedops.layer_norm(x, 6, weight))


def test_compiled_model_trains_as_eager(device):
    torch.compiler.reset()
    model = mlp(device)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss, grads = gradients(model, *batch(device))
    compiled_loss, compiled_grads = gradients(compiled, *batch(device))
    torch.testing.assert_close(compiled_loss, loss, rtol=1e-5, atol=1e-6)
    for got, want in zip(compiled_grads, grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_compiled_model_trains_under_autocast_as_torch(device):
    """Both stop in half precision on the way: the exact gradients tell how far both may be off."""
    torch.compiler.reset()
    model, (x, labels) = mlp(device), batch(device)
    exact_loss, exact = gradients(copy.deepcopy(model).double(), x.double(), labels)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, dtype=torch.bfloat16):
        _, plain = gradients(TorchMLP(model).to(device), x, labels)
        loss, grads = gradients(compiled, x, labels)
    ulp = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(loss.double(), exact_loss.double(), rtol=4 * ulp, atol=0)
    for got, theirs, want in zip(grads, plain, exact, strict=True):
        off, allowed = (torch.linalg.vector_norm(g.double() - want) for g in (got, theirs))
        assert off <= 2 * allowed + ulp * torch.linalg.vector_norm(want)


@pytest.mark.gpu
@pytest.mark.slow
def test_inductor_with_cuda_graphs():
    torch.compiler.reset()
    model = mlp("cuda")
    x, labels = batch("cuda")
    _, grads = gradients(model, x, labels)
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        _, compiled_grads = gradients(compiled, x, labels)
        for got, want in zip(compiled_grads, grads, strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_main_grad_stays_eager(device, kind):
    torch.compiler.reset()
    model = {"linear": fusedops.nn.Linear(8, 8), "mlp": fusedops.nn.MLP(8, 8)}[kind].to(device)
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter)
    x = torch.randn(4, 8, device=device)
    weight = next(model.parameters())
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), model(x))
    with pytest.raises(Exception, match=r"main_grad must not be used under torch\.compile"):
        compiled(x)
    torch.compile(model, backend="aot_eager")(x).sum().backward()
    assert weight.grad is None
    assert weight.main_grad.abs().sum() > 0


def test_compile_follows_the_precision_setting():
    from fusedops.ops.linear import _tf32_allowed

    torch.compiler.reset()
    before = torch.get_float32_matmul_precision()

    @torch.compile(fullgraph=True, backend="eager")
    def scaled(x):
        return x * 2 if _tf32_allowed() else x * 3

    one = torch.ones(1)
    try:
        for precision, factor in [("highest", 3), ("high", 2), ("highest", 3)]:
            torch.set_float32_matmul_precision(precision)
            assert scaled(one).item() == factor
    finally:
        torch.set_float32_matmul_precision(before)


def test_every_precision_api_is_read():
    from fusedops.ops.linear import _tf32_allowed

    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            for value in ("high", "medium", "highest"):
                torch.set_float32_matmul_precision(value)
                assert _tf32_allowed() == (value != "highest")
            for allowed in (True, False):
                matmul.allow_tf32 = allowed
                assert _tf32_allowed() == allowed
            for value in ("tf32", "ieee"):
                matmul.fp32_precision = value
                assert _tf32_allowed() == (value == "tf32")
        finally:
            torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non_strict"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_export(device, strict, grad):
    model = mlp(device).eval()
    x, _ = batch(device)
    rows = torch.export.Dim("rows", min=2, max=512)
    with torch.set_grad_enabled(grad):
        program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},), strict=strict)
    torch.testing.assert_close(program.module()(x), model(x))
    torch.testing.assert_close(program.module()(x[:5]), model(x[:5]))
    program = program.run_decompositions()
    torch.testing.assert_close(program.module()(x), model(x))
    assert any("fusedops" in str(node.target) for node in program.graph.nodes)


# ---- what Dynamo traces ----

X = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
CALLS = {
    "linear": lambda t: fusedops.linear(t, X, None, "gelu"),
    "matmul": lambda t: fusedops.matmul(X, t),
    "mlp": lambda t: fusedops.mlp(X, t, None, X, None, "silu"),
    "gated_mlp": lambda t: fusedops.gated_mlp(X, X, t, X),
    "layer_norm": lambda t: fusedops.layer_norm(t, 6),
    "rms_norm": lambda t: fusedops.rms_norm(t, 6),
    "softmax": lambda t: fusedops.softmax(t, 1),
    "bias_act": lambda t: fusedops.bias_act(t, X[0], "gelu"),
    "mean": lambda t: fusedops.mean(t.square(), 1),
    "box_filter2d": lambda t: fusedops.box_filter2d(t, 3, "replicate"),
}


@pytest.mark.parametrize("op", CALLS)
def test_transforms_inside_a_compiled_function(op):
    def gradient(t):
        return torch.func.grad(lambda t: CALLS[op](t).square().sum())(t)

    torch.compiler.reset()
    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    want = X.clone().requires_grad_()
    CALLS[op](want).square().sum().backward()
    torch.testing.assert_close(compiled(X), want.grad)


REPEATED = {
    "linear": lambda t: fusedops.linear(t, t, None, "gelu"),
    "matmul": lambda t: fusedops.matmul(t, t),
    "mlp": lambda t: fusedops.mlp(t, t, None, t, None, "silu", residual=t),
    "gated_mlp": lambda t: fusedops.gated_mlp(t, t, t, t, residual=t),
    "layer_norm": lambda t: fusedops.layer_norm(t, 6, residual=t)[0],
    "rms_norm": lambda t: fusedops.rms_norm(t, 6, residual=t)[0],
    "add": lambda t: fusedops.add(t, t),
    "fma": lambda t: fusedops.fma(t, t, t),
    "bias_dropout_residual": lambda t: fusedops.bias_dropout_residual(t, None, t, 0.0),
}


@pytest.mark.parametrize("op", REPEATED)
def test_a_tensor_given_twice_gets_both_gradients(op):
    torch.compiler.reset()
    compiled = torch.compile(REPEATED[op], fullgraph=True, backend="aot_eager")
    leaf = X.clone().requires_grad_()
    (want,) = torch.autograd.grad(REPEATED[op](leaf), leaf, X)
    (got,) = torch.autograd.grad(compiled(leaf), leaf, X)
    torch.testing.assert_close(got, want)
