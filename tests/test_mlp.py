"""fusedops.mlp and fusedops.gated_mlp: values, gradients, and everything around them."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import fusedops
from fusedops import reference
from fusedops.activation import SAVES_PREACT
from samples.mlp import gated_inputs, mlp_inputs
from util import (
    ACTIVATIONS,
    DTYPES,
    HALVES,
    LAYOUTS,
    TORCH_ACTIVATION,
    assert_accurate,
    name,
    poisoned,
)

SHAPES = [((96,), 64, 128, 72), ((3, 11), 33, 47, 29)]
GLUS = ("sigmoid", "relu", "gelu", "gelu_tanh", "silu", "relu2", "tanh", "none")
KINDS = ["mlp", "gated", "packed"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def inputs(kind, dtype, device, shape=SHAPES[0], bias=True, residual=True):
    """(arguments of the function up to its biases, residual, dy); None where left out."""
    if kind == "mlp":
        x, w1, b1, w2, b2, res, dy = mlp_inputs(*shape, dtype, device)
        arguments = [x, w1, b1 if bias else None, w2, b2 if bias else None]
    else:
        x, w_gate, w_up, b_gate, b_up, w_down, b_down, res, dy = gated_inputs(*shape, dtype, device)
        biases = [b_gate, b_up]
        if kind == "packed":
            w_gate, w_up, biases = torch.cat([w_gate, w_up]), None, [torch.cat(biases), None]
        arguments = [x, w_gate, w_up, w_down, *(biases if bias else (None, None))]
        arguments.append(b_down if bias else None)
    return arguments, res if residual else None, dy


def ours(kind, arguments, activation, residual=None, recompute=False):
    function = fusedops.mlp if kind == "mlp" else fusedops.gated_mlp
    return function(*arguments, activation, residual, recompute)


def exact(kind, arguments, activation, residual=None):
    function = reference.mlp if kind == "mlp" else reference.gated_mlp
    return function(*arguments, activation, residual)


def torchs(kind, arguments, activation, residual=None):
    """By torch's kernels, one by one."""
    act = TORCH_ACTIVATION[activation]
    if kind == "mlp":
        x, w1, b1, w2, b2 = arguments
        y = F.linear(act(F.linear(x, w1, b1)), w2, b2)
    else:
        x, w_gate, w_up, w_down, b_gate, b_up, b_down = arguments
        gate = F.linear(x, w_gate, b_gate)
        gate, up = gate.chunk(2, -1) if w_up is None else (gate, F.linear(x, w_up, b_up))
        y = F.linear(act(gate) * up, w_down, b_down)
    return y if residual is None else y + residual


def leaves_of(tensors, dtype=None):
    return [
        None if t is None else t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors
    ]


def present(tensors):
    return [t for t in tensors if t is not None]


def step(function, kind, arguments, activation, residual, dy, dtype=None, **options):
    """y and the gradients of everything that is there."""
    *args, res = leaves_of([*arguments, residual], dtype)
    y = function(kind, args, activation, res, **options)
    return [y.detach(), *torch.autograd.grad(y, present([*args, res]), dy.to(y.dtype))]


@pytest.mark.parametrize("shape", SHAPES, ids=["aligned", "odd"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@every_kind
def test_values_and_gradients(device, kind, activation, dtype, shape):
    arguments, residual, dy = inputs(kind, dtype, device, shape)
    with poisoned():
        got = step(ours, kind, arguments, activation, residual, dy)
    other = step(torchs, kind, arguments, activation, residual, dy)
    truth = step(exact, kind, arguments, activation, residual, dy, torch.float64)
    for i, (a, b, c) in enumerate(zip(got, other, truth, strict=True)):
        assert a.is_contiguous()
        assert a.dtype is dtype
        assert_accurate(a, b, c, f"result {i}")


@every_kind
def test_recompute_gives_the_same_bits_and_saves_nothing_hidden(device, kind):
    for activation in ("relu", "gelu"):
        arguments, residual, dy = inputs(kind, torch.float32, device)
        plain = step(ours, kind, arguments, activation, residual, dy)
        again = step(ours, kind, arguments, activation, residual, dy, recompute=True)
        assert all(torch.equal(a, b) for a, b in zip(again, plain, strict=True))


def saved_sizes(kind, activation, device, **options):
    """How many elements the graph keeps beyond the inputs."""
    arguments, residual, _ = inputs(kind, torch.float32, device)
    leaves = leaves_of([*arguments, residual])
    mine = {t.data_ptr() for t in present(leaves)}
    sizes = []

    def pack(tensor):
        if tensor.data_ptr() not in mine:
            sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = ours(kind, leaves[:-1], activation, leaves[-1], **options)
    y.sum().backward()
    return sizes


@every_kind
def test_keeps_one_tensor_for_backward(device, kind):
    hidden = 96 * 128 * (1 if kind == "mlp" else 2)
    for activation in ACTIVATIONS:
        assert saved_sizes(kind, activation, device) == [hidden]
        assert saved_sizes(kind, activation, device, recompute=True) == []


@every_kind
def test_every_combination_of_requires_grad(device, kind):
    arguments, residual, dy = inputs(kind, torch.float64, device, ((4,), 3, 5, 2))
    tensors = [*arguments, residual]
    everything = step(ours, kind, arguments, "silu", residual, dy)[1:]
    filled = [i for i, t in enumerate(tensors) if t is not None]
    for wanted in itertools.chain.from_iterable(
        itertools.combinations(range(len(filled)), n) for n in range(1, len(filled))
    ):
        leaves = [None if t is None else t.detach() for t in tensors]
        for i in wanted:
            leaves[filled[i]].requires_grad_()
        *args, res = leaves
        ours(kind, args, "silu", res).backward(dy)
        for i, index in enumerate(filled):
            if i in wanted:
                torch.testing.assert_close(leaves[index].grad, everything[i])
            else:
                assert leaves[index].grad is None


@every_kind
def test_without_grad_and_without_biases(device, kind):
    arguments, _, _ = inputs(kind, torch.float32, device, bias=False, residual=False)
    y = ours(kind, arguments, "gelu")
    assert not y.requires_grad
    torch.testing.assert_close(y, torchs(kind, arguments, "gelu"))
    leaves = leaves_of(arguments)
    assert torch.equal(ours(kind, leaves, "gelu").detach(), y)


@pytest.mark.parametrize("layout", LAYOUTS)
@every_kind
def test_layouts(device, kind, layout):
    arguments, residual, dy = inputs(kind, torch.float32, device, ((24,), 16, 40, 8))
    moved = [t if t is None or t.dim() != 2 else LAYOUTS[layout](t) for t in arguments]
    res, grad = LAYOUTS[layout](residual), LAYOUTS[layout](dy)
    dense = [None if t is None else t.contiguous() for t in moved]
    want = step(torchs, kind, dense, "silu", res.contiguous(), grad.contiguous())
    leaves = [None if t is None else t.detach().requires_grad_() for t in [*moved, res]]
    y = ours(kind, leaves[:-1], "silu", leaves[-1])
    got = [y, *torch.autograd.grad(y, present(leaves), grad)]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "shape", [((0,), 8, 16, 4), ((3,), 0, 16, 4), ((3,), 8, 0, 4), ((3,), 8, 16, 0)]
)
@every_kind
def test_empty_sizes(device, kind, shape):
    for dtype in (torch.float32, torch.bfloat16):
        arguments, residual, dy = mlp_empty(kind, dtype, device, shape)
        with poisoned():
            got = step(ours, kind, arguments, "gelu", residual, dy)
        want = step(torchs, kind, arguments, "gelu", residual, dy)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def mlp_empty(kind, dtype, device, shape):
    lead, k, hidden, n = shape
    arguments, residual, dy = inputs(kind, dtype, device, (lead, max(k, 1), max(hidden, 1), n))
    rows = 2 * hidden if kind == "packed" else hidden
    cut = [t if t is None else t.clone() for t in arguments]
    cut[0] = cut[0][..., :k]
    cut[1] = cut[1][:rows, :k]
    if kind == "mlp":
        cut[2], cut[3] = cut[2][:rows], cut[3][:, :hidden]
    else:
        cut[2] = None if cut[2] is None else cut[2][:rows, :k]
        cut[3] = cut[3][:, :hidden]
        cut[4] = cut[4][:rows]
        cut[5] = None if cut[5] is None else cut[5][:rows]
    return cut, residual, dy


# ---- derivatives of higher order, torch.func ----


@pytest.mark.parametrize("activation", ["silu", "relu2", "sigmoid"])
@every_kind
def test_gradgradcheck(kind, activation):
    arguments, residual, _ = inputs(kind, torch.float64, "cpu", ((3,), 2, 3, 2))
    leaves = present(leaves_of([*arguments, residual]))
    slots = [t is not None for t in [*arguments, residual]]

    def call(*tensors):
        given = iter(tensors)
        *args, res = [next(given) if slot else None for slot in slots]
        return ours(kind, args, activation, res)

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


def test_a_second_derivative_counts_each_path_once(device):
    # x itself depends on w1: its gradient must not be added twice
    _, w1, b1, w2, b2, _, _ = mlp_inputs((4,), 6, 6, 6, torch.float64, device)

    def penalty(function):
        leaves = leaves_of([w1, b1, w2, b2])
        x = torch.tanh(leaves[0])
        y = function("mlp", [x, *leaves], "silu")
        (dw,) = torch.autograd.grad(y.square().sum(), leaves[0], create_graph=True)
        return torch.autograd.grad(dw.square().sum(), leaves)

    for got, want in zip(penalty(ours), penalty(torchs), strict=True):
        torch.testing.assert_close(got, want)


@every_kind
def test_torch_func(device, kind):
    arguments, residual, _ = inputs(kind, torch.float64, device, ((5,), 3, 4, 2))

    def loss(x):
        return ours(kind, [x, *arguments[1:]], "gelu", residual).square().sum()

    def plain(x):
        return torchs(kind, [x, *arguments[1:]], "gelu", residual).square().sum()

    x = arguments[0]
    torch.testing.assert_close(torch.func.grad(loss)(x), torch.func.grad(plain)(x))
    torch.testing.assert_close(torch.func.hessian(loss)(x), torch.func.hessian(plain)(x))


@every_kind
def test_retain_graph(device, kind):
    arguments, residual, dy = inputs(kind, torch.float32, device)
    *args, res = leaves_of([*arguments, residual])
    y = ours(kind, args, "gelu", res)
    first = torch.autograd.grad(y, present([*args, res]), dy, retain_graph=True)
    second = torch.autograd.grad(y, present([*args, res]), dy)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, args[0], dy)


# ---- mixed precision ----


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@every_kind
def test_autocast(device, kind, dtype):
    arguments, residual, dy = inputs(kind, torch.float32, device)
    results = []
    for function in (ours, torchs):
        *args, res = leaves_of([*arguments, residual])
        with torch.autocast(device, dtype=dtype):
            y = function(kind, args, "silu", res)
        assert y.dtype is torch.float32  # the residual's: torch promotes the sum
        results.append([y.detach(), *torch.autograd.grad(y, present([*args, res]), dy)])
    half = [None if t is None else t.to(dtype).double() for t in arguments]
    truth = step(exact, kind, half, "silu", residual.double(), dy.double())
    for mine, other, want in zip(*results, truth, strict=True):
        assert mine.dtype is other.dtype is torch.float32
        assert_accurate(mine.to(dtype), other.to(dtype), want)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@every_kind
def test_autocast_without_grad_and_with_recompute(device, kind, dtype):
    arguments, residual, _ = inputs(kind, torch.float32, device)
    half = [None if t is None else t.to(dtype) for t in [*arguments, residual]]
    expected = ours(kind, half[:-1], "gelu", half[-1])
    leaves = leaves_of(arguments)
    with torch.autocast(device, dtype=dtype):
        with torch.no_grad():
            assert torch.equal(ours(kind, arguments, "gelu", half[-1]), expected)
        y = ours(kind, leaves, "gelu", half[-1], recompute=True)
    assert torch.equal(y.detach(), expected)
    y.float().sum().backward()
    assert all(t.grad.dtype is torch.float32 for t in present(leaves))


@every_kind
def test_grad_scaler_training_follows_torch(device, kind):
    arguments, _, _ = inputs(kind, torch.float32, device)
    losses = []
    for function in (ours, torchs):
        x, *parameters = leaves_of(t if t is None else t.clone() for t in arguments)
        optimizer = torch.optim.SGD(present(parameters), lr=0.5)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                loss = function(kind, [x, *parameters], "gelu").float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    assert losses[0] < 0.9
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


# ---- main_grad ----


def with_main_grad(tensors, **attributes):
    for t in tensors:
        t.main_grad = torch.ones(t.shape, device=t.device)
        for key, value in attributes.items():
            setattr(t, key, value)


def matrices(arguments):
    return [t for t in arguments[1:] if t is not None and t.dim() == 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
@pytest.mark.parametrize("kind", [*KINDS, "linear"])
def test_main_grad_accumulates_and_overwrites(device, kind, dtype):
    if kind == "linear":
        (x, w, b, *_), _, _ = inputs("mlp", dtype, device)
        arguments, call = [x, w, b], lambda args: fusedops.linear(*args, "relu")
    else:
        arguments, _, _ = inputs(kind, dtype, device, residual=False)
        call = lambda args: ours(kind, args, "relu")  # noqa: E731
    plain = leaves_of(arguments)
    call(plain).float().square().sum().backward()
    leaves = leaves_of(arguments)
    with_main_grad(matrices(leaves))
    for _ in range(2):
        call(leaves).float().square().sum().backward()
    for mine, other in zip(matrices(leaves), matrices(plain), strict=True):
        assert mine.grad is None
        assert not hasattr(mine, "grad_added_to_main_grad")
        torch.testing.assert_close(mine.main_grad, 1 + 2 * other.grad.float(), rtol=1e-2, atol=1e-1)
    torch.testing.assert_close(leaves[0].grad, 2 * plain[0].grad)

    with_main_grad(matrices(leaves), overwrite_main_grad=True, grad_added_to_main_grad=False)
    call(leaves).float().square().sum().backward()
    for mine, other in zip(matrices(leaves), matrices(plain), strict=True):
        assert mine.grad_added_to_main_grad is True
        assert mine.grad.dtype is dtype
        assert not mine.grad.any()
        torch.testing.assert_close(mine.main_grad, other.grad.float(), rtol=1e-2, atol=1e-1)


def test_main_grad_keeps_what_bf16_would_lose(device):
    # 256 + 1 is 256 in bf16
    x = torch.ones(1, 8, device=device, dtype=torch.bfloat16)
    w = torch.zeros(8, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    w.main_grad = torch.full((8, 8), 256.0, device=device)
    fusedops.linear(x, w).sum().backward()
    assert torch.equal(w.main_grad, torch.full_like(w.main_grad, 257.0))


def test_main_grad_is_checked(device):
    arguments, _, _ = inputs("mlp", torch.float32, device)
    leaves = leaves_of(arguments)
    leaves[1].main_grad = torch.zeros_like(leaves[1], dtype=torch.bfloat16)
    y = ours("mlp", leaves, "relu")
    with pytest.raises(RuntimeError, match=r"mlp: main_grad must be a float32 tensor .* bfloat16"):
        y.sum().backward()


# ---- compile, export, checkpoint, graphs ----


@pytest.mark.parametrize("recompute", [False, True])
@every_kind
def test_compile_fullgraph(device, kind, recompute):
    arguments, residual, dy = inputs(kind, torch.float32, device)
    torch._dynamo.reset()
    backend = "inductor" if device == "cuda" else "aot_eager"

    def call(kind, args, activation, res):
        return ours(kind, args, activation, res, recompute)

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    got = step(compiled, kind, arguments, "gelu", residual, dy)
    want = step(ours, kind, arguments, "gelu", residual, dy)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@every_kind
def test_compile_with_dynamic_rows(device, kind):
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (8, 12, 24):
        arguments, residual, dy = inputs(kind, torch.float32, device, ((rows,), 16, 24, 8))
        got = step(compiled, kind, arguments, "gelu", residual, dy)
        want = step(ours, kind, arguments, "gelu", residual, dy)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


@every_kind
def test_export(device, kind):
    arguments, residual, _ = inputs(kind, torch.float32, device)

    class Model(torch.nn.Module):
        def forward(self, *tensors):
            given = iter(tensors)
            args = [None if t is None else next(given) for t in arguments]
            return ours(kind, args, "gelu", next(given))

    tensors = (*present(arguments), residual)
    program = torch.export.export(Model(), tensors)
    ops = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert f"fusedops.{'mlp' if kind == 'mlp' else 'gated_mlp'}_forward.default" in ops
    torch.testing.assert_close(program.module()(*tensors), Model()(*tensors))


@pytest.mark.parametrize("reentrant", [True, False])
@every_kind
def test_checkpointing(device, kind, reentrant):
    arguments, residual, dy = inputs(kind, torch.float32, device)

    def call(kind, args, activation, res):
        return checkpoint(lambda *a: ours(kind, a, activation, res), *args, use_reentrant=reentrant)

    # NOTE: a reentrant checkpoint has no gradients for torch.autograd.grad
    for function in (call, ours):
        *args, res = leaves = leaves_of([*arguments, residual])
        function(kind, args, "gelu", res).backward(dy)
        grads = [t.grad for t in present(leaves)]
        if function is call:
            first = grads
    assert all(torch.equal(a, b) for a, b in zip(first, grads, strict=True))


@pytest.mark.gpu
@every_kind
def test_a_step_in_a_cuda_graph(kind):
    arguments, residual, dy = inputs(kind, torch.bfloat16, "cuda")
    *args, res = leaves = leaves_of([*arguments, residual])

    def run():
        y = ours(kind, args, "gelu", res)
        return [y.detach(), *torch.autograd.grad(y, present(leaves), dy)]

    want = run()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.gpu
@every_kind
def test_large_steps_repeat_bitwise_and_stay_under_the_memory_bar(kind):
    shape = ((8192,), 512, 2048 if kind == "mlp" else 1408, 512)
    arguments, _, dy = inputs(kind, torch.bfloat16, "cuda", shape, bias=kind == "mlp")
    leaves = leaves_of(arguments)

    def peak(function):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = function(kind, leaves, "silu")
        grads = torch.autograd.grad(y, present(leaves), dy)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, [y.detach(), *grads]

    eager, _ = peak(torchs)
    mine, first = peak(ours)
    assert mine <= 0.75 * eager
    _, again = peak(ours)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


# ---- errors ----


@every_kind
def test_errors(device, kind):
    arguments, residual, _ = inputs(kind, torch.float32, device)
    op = "mlp" if kind == "mlp" else "gated_mlp"
    first, last = ("w1", "w2") if kind == "mlp" else ("w_gate", "w_down")
    rows = arguments[1].shape[0]
    with pytest.raises(ValueError, match=rf"^{op}: activation must be None or one of .* 'swish'$"):
        ours(kind, arguments, "swish")
    with pytest.raises(TypeError, match=rf"^{op}: {first} must be a Tensor; got int$"):
        ours(kind, [arguments[0], 3, *arguments[2:]], "relu")
    with pytest.raises(TypeError, match=rf"^{op}: residual must be a Tensor or None; got str$"):
        ours(kind, arguments, "relu", "x")
    cases = [
        (1, arguments[1][:, 1:], rf"{first} must have shape \(\*, 64\); got \({rows}, 63\)"),
        (3, arguments[3][:, 1:], rf"{last} must have shape \(\*, 128\); got \(72, 127\)"),
        (3, arguments[3].double(), f"{last} must have dtype float32 like x; got float64"),
        (
            2 if kind == "mlp" else 4,
            arguments[2 if kind == "mlp" else 4][1:],
            rf"{'b1' if kind == 'mlp' else 'b_gate'} must have shape \({rows},\) to match {first}",
        ),
    ]
    if kind == "packed":
        cases.append((1, arguments[1][1:], "w_gate must have an even number of rows when w_up is"))
        cases.append((5, arguments[4], r"b_up must be None when w_up is None; got \(256,\)"))
    if kind == "gated":
        cases.append((2, arguments[2][1:], r"w_up must have shape \(128, 64\) like w_gate; got"))
    for index, bad, text in cases:
        changed = [*arguments]
        changed[index] = bad
        if text.startswith("w_gate must have an even"):
            changed[4] = changed[4][1:]
        if text.startswith("w_up"):
            changed[5] = changed[5][1:]
        for to in (device, "meta"):
            moved = [None if t is None else t.to(to) for t in changed]
            with pytest.raises(RuntimeError, match=f"^{op}: {text}"):
                ours(kind, moved, "relu")
    text = rf"^{op}: residual must have the shape of x \(96, 64\) with a last dimension of 72; got"
    with pytest.raises(RuntimeError, match=text):
        ours(kind, arguments, "relu", residual[1:])


def test_saved_kind_is_that_of_the_table(device):
    # relu keeps its output: nothing is recomputed for dw2
    arguments, _, _ = inputs("mlp", torch.float32, device)
    x, w1, b1, w2, b2 = arguments
    for code, activation in enumerate(ACTIVATIONS):
        _, saved = torch.ops.fusedops.mlp_forward(x, w1, b1, w2, b2, None, code, True, False)
        z = F.linear(x, w1, b1)
        want = z if SAVES_PREACT[code] else TORCH_ACTIVATION[activation](z)
        torch.testing.assert_close(saved, want, rtol=1e-4, atol=1e-4)
