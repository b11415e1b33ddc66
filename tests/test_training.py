"""Training with fusedops: mixed precision, compilation, graphs, checkpointing, data parallelism."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fusedops
from util import (
    ACTIVATIONS,
    HALVES,
    assert_accurate,
    linear_inputs,
    make,
    name,
    poisoned,
    torch_linear,
)


def mlp(device, activation="gelu"):
    """Three of our layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        fusedops.nn.Linear(16, 32, device=device, activation=activation),
        fusedops.nn.Linear(32, 32, device=device, activation="relu"),
        fusedops.nn.Linear(32, 4, device=device),
    )


class TorchMLP(nn.Module):
    """What `mlp` computes, by torch."""

    def __init__(self, model):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(f.in_features, f.out_features) for f in model)
        self.activations = [f.activation or "none" for f in model]
        self.load_state_dict({f"layers.{k}": v for k, v in model.state_dict().items()})

    def forward(self, x):
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = torch_linear(x, layer.weight, layer.bias, activation)
        return x


def batch(device, n=24):
    """Inputs and labels."""
    x = make(n, 16, dtype=torch.float32, device=device)
    return x, torch.arange(n, device=device) % 4


def gradients(model, x, labels):
    """Loss and gradients of one step."""
    model.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x).float(), labels)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


# ---- mixed precision ----


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast_gives_the_dtypes_of_torch_and_better_gradients(device, dtype, activation):
    x, weight, bias, dy = linear_inputs(64, 48, 32, torch.float32, device)
    ours = [t.clone().requires_grad_() for t in (x, weight, bias)]
    theirs = [t.clone().requires_grad_() for t in (x, weight, bias)]
    with torch.autocast(device, dtype=dtype):
        y = fusedops.linear(*ours, activation)
        torch_y = torch_linear(*theirs, activation)
    assert y.dtype is dtype
    y.backward(dy.to(dtype))
    torch_y.backward(dy.to(torch_y.dtype))
    # The reference takes what the GEMM sees
    leaves = [t.detach().to(dtype).double().requires_grad_() for t in (x, weight, bias)]
    exact_y = torch_linear(*leaves, activation)
    exact = torch.autograd.grad(exact_y, leaves, dy.to(dtype).double())
    assert_accurate(y.detach(), torch_y.detach(), exact_y.detach())
    for mine, other, truth in zip(ours, theirs, exact, strict=True):
        assert mine.grad.dtype is other.grad.dtype is torch.float32
        # In the compute dtype's ulp: that is what the saved pre-activation is rounded to
        assert_accurate(mine.grad.to(dtype), other.grad.to(dtype), truth)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_master_weight_gradient_is_not_rounded_to_half(device, dtype):
    x, weight, bias, dy = linear_inputs(512, 24, 16, torch.float32, device)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    with torch.autocast(device, dtype=dtype):
        fusedops.linear(*leaves).backward(dy.to(dtype))
    exact = dy.to(dtype).double().t() @ x.detach().to(dtype).double()
    assert (weight.grad.double() - exact).norm() < 1e-5 * exact.norm()
    assert (bias.grad.double() - dy.to(dtype).double().sum(0)).norm() < 1e-5 * bias.grad.norm()


@pytest.mark.parametrize("shape", [(0, 8, 16), (4, 0, 16), (4, 8, 0)])
def test_autocast_with_empty_sizes(device, shape):
    leaves = [t.requires_grad_() for t in linear_inputs(*shape, torch.float32, device)[:3]]
    with torch.autocast(device, dtype=torch.bfloat16):
        y = fusedops.linear(*leaves, "gelu")
    with poisoned():
        y.float().sum().backward()
    for leaf in leaves:
        assert leaf.grad.dtype is torch.float32
        assert torch.isfinite(leaf.grad).all()
    if shape[0] == 0:
        assert not any(leaf.grad.any() for leaf in leaves)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_autocast_without_grad(device, dtype):
    x, weight, bias, _ = linear_inputs(8, 12, 16, torch.float32, device)
    with torch.no_grad(), torch.autocast(device, dtype=dtype):
        y = fusedops.linear(x, weight, bias, "silu")
    half = [t.to(dtype) for t in (x, weight, bias)]
    assert torch.equal(y, fusedops.linear(*half, "silu"))


def test_autocast_rules_of_torch(device):
    x, weight, bias, _ = linear_inputs(8, 12, 16, torch.float64, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert fusedops.linear(x, weight, bias).dtype is torch.float64
        # What is half already changes to the autocast dtype
        half = [t.half() for t in (x, weight, bias)]
        assert fusedops.linear(*half).dtype is F.linear(*half).dtype is torch.bfloat16
        with torch.autocast(device, enabled=False):
            assert fusedops.linear(*half).dtype is torch.float16
    other = "cpu" if device == "cuda" else "cuda"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no CUDA here
        with torch.autocast(other, dtype=torch.bfloat16):
            assert fusedops.linear(x.float(), weight.float()).dtype is torch.float32


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("op", ["linear", "matmul"])
def test_backward_inside_autocast_stays_in_the_forward_dtype(device, op, create_graph):
    x, weight, bias, dy = linear_inputs(8, 12, 16, torch.float32, device)
    leaves = [t.requires_grad_() for t in (x, weight if op == "linear" else weight.t(), bias)]
    y = getattr(fusedops, op)(*leaves, "gelu")
    expected = torch.autograd.grad(y, leaves, dy, retain_graph=True, create_graph=create_graph)
    with torch.autocast(device, dtype=torch.bfloat16):
        inside = torch.autograd.grad(y, leaves, dy, create_graph=create_graph)
    for got, want in zip(inside, expected, strict=True):
        assert torch.equal(got, want)


def test_second_derivative_under_autocast(device):
    x, weight, bias, _ = linear_inputs(8, 12, 16, torch.float32, device)

    def penalty(function):
        leaves = [t.detach().clone().requires_grad_() for t in (x, weight, bias)]
        with torch.autocast(device, dtype=torch.bfloat16):
            y = function(*leaves, "silu")
        (dx,) = torch.autograd.grad(y.float().sum(), leaves[0], create_graph=True)
        return torch.autograd.grad(dx.square().sum(), leaves)

    for got, want in zip(penalty(fusedops.linear), penalty(torch_linear), strict=True):
        torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", [None, *HALVES])
def test_training_follows_torch(device, dtype):
    ours = mlp(device)
    theirs = TorchMLP(ours).to(device)
    x, labels = batch(device)
    losses = []
    for model in (ours, theirs):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
        for _ in range(20):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    assert losses[0] < 0.7 * F.cross_entropy(mlp(device)(x), labels).item()
    assert losses[0] == pytest.approx(losses[1], rel=1e-3 if dtype is None else 0.05)


def test_grad_scaler_skips_a_step_that_overflows(device):
    model = mlp(device)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**40)
    x, labels = batch(device)
    with torch.autocast(device, dtype=torch.float16):
        loss = F.cross_entropy(model(x), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**39
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


# ---- compile and export ----


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
            assert torch.equal(y, eager)
            if wanted:
                ours = torch.autograd.grad(y, wanted, dy)
                for got, want in zip(ours, torch.autograd.grad(eager, wanted, dy), strict=True):
                    assert torch.equal(got, want)


def test_compiled_backward_is_the_fused_op(device):
    torch.compiler.reset()
    graphs = []

    def backend(graph, inputs):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def keep(graph, _):
            graphs.append({str(node.target) for node in graph.graph.nodes})
            return make_boxed_func(graph.forward)

        return aot_autograd(fw_compiler=keep, bw_compiler=keep)(graph, inputs)

    model = mlp(device)
    x, labels = batch(device)
    gradients(torch.compile(model, fullgraph=True, backend=backend), x, labels)
    forward, backward = graphs
    assert "fusedops.linear_preact.default" in forward
    assert "fusedops.linear_backward.default" in backward
    assert not any("gelu" in target or "mm" in target for target in forward | backward)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_compiled_model_trains_as_eager(device, dtype):
    torch.compiler.reset()
    model = mlp(device)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, labels = batch(device)
    with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
        loss, grads = gradients(model, x, labels)
        compiled_loss, compiled_grads = gradients(compiled, x, labels)
    torch.testing.assert_close(compiled_loss, loss)
    for got, want in zip(compiled_grads, grads, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor(mode):
    torch.compiler.reset()
    model = mlp("cuda")
    x, labels = batch("cuda")
    _, grads = gradients(model, x, labels)
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        _, compiled_grads = gradients(compiled, x, labels)
        for got, want in zip(compiled_grads, grads, strict=True):
            torch.testing.assert_close(got, want)


def test_compile_follows_the_precision_setting():
    from fusedops.linear import _tf32_allowed

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
    from fusedops.linear import _tf32_allowed

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


# ---- checkpointing, graphs, streams, determinism, data parallel ----


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non_reentrant"])
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "fp32"])
def test_checkpointing(device, reentrant, autocast):
    model = mlp(device)
    x, labels = batch(device)
    x.requires_grad_()

    def step(forward):
        model.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(forward(x), labels)
        return (
            [loss, *torch.autograd.grad(loss, list(model.parameters()))]
            if not reentrant
            else (loss.backward() or [loss, *(p.grad for p in model.parameters())])
        )

    expected = step(model)
    for got, want in zip(
        step(lambda x: checkpoint(model, x, use_reentrant=reentrant)), expected, strict=True
    ):
        assert torch.equal(got, want)


def test_a_step_is_bitwise_repeatable(device):
    model = mlp(device)
    x, labels = batch(device, 200)
    loss, grads = gradients(model, x, labels)
    for _ in range(5):
        again, others = gradients(model, x, labels)
        assert torch.equal(again, loss)
        assert all(torch.equal(a, b) for a, b in zip(others, grads, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(65536, 64, 64), (2048, 1024, 1024), (1000, 333, 127)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
def test_large_steps_are_bitwise_repeatable(dtype, shape):
    x, weight, bias, dy = linear_inputs(*shape, dtype, "cuda")
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    first = torch.autograd.grad(fusedops.linear(*leaves, "gelu"), leaves, dy)
    for _ in range(3):
        again = torch.autograd.grad(fusedops.linear(*leaves, "gelu"), leaves, dy)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_whole_step_in_a_cuda_graph(dtype):
    model = mlp("cuda")
    twin = copy.deepcopy(model)
    x, labels = batch("cuda")

    def make_step(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step():
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast(
                "cuda", dtype=dtype, enabled=dtype is not None, cache_enabled=False
            ):
                loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            return loss

        return step

    eager, captured = make_step(twin), make_step(model)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            captured()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = captured()
    for _ in range(3):  # the warm-up; the capture itself ran nothing
        eager()
    for _ in range(4):
        graph.replay()
        assert torch.equal(loss, eager())
    for got, want in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(got, want)


@pytest.mark.gpu
def test_a_step_on_a_side_stream():
    model = mlp("cuda")
    x, labels = batch("cuda")
    _, expected = gradients(model, x, labels)
    late = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(5_000_000)
        late.copy_(x)
        _, grads = gradients(model, late, labels)
    stream.synchronize()
    for got, want in zip(grads, expected, strict=True):
        assert torch.equal(got, want)


def test_distributed_data_parallel_with_one_process(device):
    dist = torch.distributed
    if not dist.is_available():
        pytest.skip("torch without distributed")
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = mlp(device)
        parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
        x, labels = batch(device)
        loss, grads = gradients(model, x, labels)
        for _ in range(2):
            parallel_loss, parallel_grads = gradients(parallel, x, labels)
            assert torch.equal(parallel_loss, loss)
            for got, want in zip(parallel_grads, grads, strict=True):
                assert torch.equal(got, want)
    finally:
        dist.destroy_process_group()


def test_gradient_accumulation_and_hooks(device):
    model = mlp(device)
    x, labels = batch(device)
    _, once = gradients(model, x, labels)
    seen = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.shape))
    F.cross_entropy(model(x), labels).backward()
    assert len(seen) == len(once)
    for parameter, grad in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * grad)


def test_saved_tensor_hooks_see_what_is_saved(device):
    packed = []
    x, weight, bias, _ = linear_inputs(8, 12, 16, torch.float32, device)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    expected = torch.autograd.grad(fusedops.linear(*leaves, "gelu").sum(), leaves)

    def pack(tensor):
        packed.append(tuple(tensor.shape))
        return tensor.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(device)):
        y = fusedops.linear(*leaves, "gelu")
    assert sorted(packed) == [(8, 12), (8, 16), (12, 16)]
    for got, want in zip(torch.autograd.grad(y.sum(), leaves), expected, strict=True):
        assert torch.equal(got, want)


def test_inference_mode(device):
    model = mlp(device)
    x, _ = batch(device)
    with torch.inference_mode():
        y = model(x)
    assert y.is_inference()
    torch.testing.assert_close(y.clone(), model(x).detach())
