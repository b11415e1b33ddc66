"""fusedops.mlp and fusedops.gated_mlp: values, gradients, and everything around them."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import _C
from fusedops._core.activation import SAVES_PREACT
from gemm.mlp_util import (
    SHAPES,
    every_kind,
    exact,
    inputs,
    leaves_of,
    ours,
    present,
    step,
    torchs,
)
from samples.mlp import mlp_inputs
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


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@every_kind
def test_a_residual_stream_of_another_dtype(device, kind, dtype):
    arguments, residual, _ = inputs(kind, dtype, device)
    stream = residual.float().requires_grad_()
    y = ours(kind, arguments, "silu", stream)
    assert y.dtype is torch.float32
    assert torch.equal(y, ours(kind, arguments, "silu") + stream)
    (dstream,) = torch.autograd.grad(y.sum(), stream)
    assert torch.equal(dstream, torch.ones_like(stream))


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


@pytest.mark.parametrize("tokens", [96, 300])
def test_bias_gradients_have_no_rows_beyond_the_last(device, tokens):
    # dh = dy @ w2 is inf in one column; what fills up a kernel's tile is 0 * inf = NaN there
    arguments, _, dy = inputs("mlp", torch.bfloat16, device, ((tokens,), 64, 128, 72))
    arguments[3][5, 7] = torch.inf
    got = step(ours, "mlp", arguments, "sigmoid", None, dy.abs())
    want = step(torchs, "mlp", arguments, "sigmoid", None, dy.abs())
    db1, torchs_db1 = got[3], want[3]
    assert db1[7] == torchs_db1[7] == torch.inf
    torch.testing.assert_close(db1, torchs_db1, rtol=2e-2, atol=2e-2)


def test_saved_kind_is_that_of_the_table(device):
    # relu keeps its output: nothing is recomputed for dw2
    arguments, _, _ = inputs("mlp", torch.float32, device)
    x, w1, b1, w2, b2 = arguments
    for code, activation in enumerate(ACTIVATIONS):
        _, saved = torch.ops.fusedops.mlp_forward(x, w1, b1, w2, b2, None, code, True, False)
        z = F.linear(x, w1, b1)
        want = z if SAVES_PREACT[code] else TORCH_ACTIVATION[activation](z)
        torch.testing.assert_close(saved, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_value_and_slope_wherever_z_lies(device, activation, dtype):
    # Identities for weights: dw2 is act(z), dx is act'(z)
    n = 320
    z = torch.linspace(-12, 12, n * n, dtype=torch.float64).to(dtype)
    largest = 6e4 if dtype == torch.float16 else 1e18 if device == "cpu" else 1e30  # torch's is NaN
    far = (20.0, 100.0, 1e4, largest)
    z[: 2 * len(far)] = torch.tensor([*far, *(-f for f in far)])
    x = z.view(n, n).to(device).requires_grad_()
    w1, w2 = (torch.eye(n, dtype=dtype, device=device).requires_grad_() for _ in range(2))
    zeros = torch.zeros(n, dtype=dtype, device=device)
    y = fusedops.mlp(x, w1, zeros, w2, zeros, activation)
    (value,) = torch.autograd.grad(y, w2, torch.eye(n, dtype=dtype, device=device), True)
    (slope,) = torch.autograd.grad(y, x, torch.ones_like(y))
    exact_z = x.detach().double().requires_grad_()
    exact_h = TORCH_ACTIVATION[activation](exact_z)
    (exact_slope,) = torch.autograd.grad(exact_h.sum(), exact_z)
    within = {"rtol": 1.1 * torch.finfo(dtype).eps / 2, "atol": 2e-5}
    torch.testing.assert_close(value.double(), exact_h.detach(), **within)
    torch.testing.assert_close(slope.double(), exact_slope, **within)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.usefixtures("forget_plans")
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "relu2"])
def test_gradient_of_the_preactivation_in_every_kernel(activation, dtype):
    arguments, _, dy = inputs("mlp", dtype, "cuda", ((1016,), 264, 520, 264), residual=False)
    torchs_results = step(torchs, "mlp", arguments, activation, None, dy)
    truth = step(exact, "mlp", arguments, activation, None, dy, torch.float64)
    _C.start_recording()
    step(ours, "mlp", arguments, activation, None, dy)
    [(problem, *device)] = [r for r in _C.stop_recording() if r[0]["epilogue"] == "grad"]
    kernels = [c for c in _C.plan_gemm(problem, *device)["candidates"] if c["family"] == "sm90"]
    assert {"sm90 128x128 pingpong 1x1", "sm90 128x256 cooperative 2x1"} <= {
        c["name"] for c in kernels if c["rejected"] is None
    }
    for kernel in kernels:
        if kernel["rejected"] is not None:
            continue
        assert _C.add_tuned_plan(problem, kernel | {"us": 1.0}, *device)
        got = step(ours, "mlp", arguments, activation, None, dy)
        for a, b, c in zip(got, torchs_results, truth, strict=True):
            assert_accurate(a, b, c, kernel["name"])
        again = step(ours, "mlp", arguments, activation, None, dy)
        assert all(torch.equal(a, b) for a, b in zip(again, got, strict=True))
        _C.clear_tuned_plans()
