"""Corners that a review found or feared: remainders, odd strides, offsets, order of launches."""

from __future__ import annotations

import ctypes
import math
import threading

import pytest
import torch

import fusedops
from util import (
    ACTIVATIONS,
    DTYPES,
    assert_accurate,
    linear_inputs,
    make,
    name,
    poisoned,
    torch_linear,
)

OPS = torch.ops.fusedops


def check_matmul(a, b, what):
    with poisoned():
        ours = fusedops.matmul(a, b)
    assert_accurate(ours, a @ b, a.double() @ b.double(), what)


@pytest.mark.parametrize("k", [1601, 1921, 3521])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_split_k_may_leave_one_row(device, dtype, k):
    # 6 or 12 slices leave a slice with one row of K; M and N are contiguous and ragged, as in a
    # weight gradient.
    for m, n in [(64, 13), (11, 640), (3, 10)]:
        a, b = make(k, m, dtype=dtype, device=device), make(k, n, dtype=dtype, device=device)
        check_matmul(a.t(), b, f"{m}x{n}x{k} ")
        wide = [torch.full((k, (t.shape[1] + 15) // 16 * 16), math.nan).to(a) for t in (a, b)]
        for source, into in zip((a, b), wide, strict=True):
            into[:, : source.shape[1]] = source
        check_matmul(wide[0][:, :m].t(), wide[1][:, :n], f"{m}x{n}x{k} in wide rows ")


@pytest.mark.parametrize("activation", [0, 1])
def test_float32_gradients_of_float64_inputs(device, activation):
    x, weight, bias, dy = linear_inputs(33, 40, 24, torch.float64, device)
    y = OPS.linear(x, weight, bias, activation, False)
    wide = OPS.linear_backward(dy, x, weight, y, activation, True, True, True, False, False)
    with poisoned():
        narrow = OPS.linear_backward(dy, x, weight, y, activation, True, True, True, True, False)
    assert [t.dtype for t in narrow] == [torch.float64, torch.float32, torch.float32]
    for got, want in zip(narrow, wide, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_strides_of_extents_of_one(device, dtype):
    data = make(4096, dtype=dtype, device=device)
    row_strides = [(0, 1), (3, 1), (1, 5), (7, 3), (1, 1), (5, 0), (1, 0), (0, 0)]
    for m, n, k in [(1, 24, 40), (24, 1, 40), (24, 40, 1), (1, 1, 40), (1, 24, 1), (24, 1, 1)]:
        for first, second in row_strides:
            for offset in (0, 1):
                a = data.as_strided((m, k), (first, second), offset)
                b = data.as_strided((k, n), (second, first), 512 + offset)
                check_matmul(a, b, f"{m}x{n}x{k} strides {first}, {second} offset {offset} ")


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_a_bias_that_starts_anywhere(device, dtype):
    x, weight, bias, _ = linear_inputs(40, 48, 64, dtype, device)
    expected = fusedops.linear(x, weight, bias, "relu")
    for offset in (1, 2, 3, 4, 5):
        wide = torch.full((48 + offset,), math.nan).to(bias)
        wide[offset:] = bias
        assert torch.equal(fusedops.linear(x, weight, wide[offset:], "relu"), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (7, 0), (37, 41), (37, 48)])
def test_only_the_bias_gradient(device, shape, activation):
    m, n = shape
    x, weight, bias, dy = linear_inputs(m, n, 8, torch.float32, device)
    for grad in (dy, dy.t().contiguous().t(), dy[:, :1].expand(m, n) if n else dy):
        ours, theirs = (bias.clone().requires_grad_() for _ in range(2))
        with poisoned():
            (got,) = torch.autograd.grad(fusedops.linear(x, weight, ours, activation), ours, grad)
        (want,) = torch.autograd.grad(torch_linear(x, weight, theirs, activation), theirs, grad)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


# ---- fp32 over bf16 parts: from 2^29 multiply-adds on, N in fours ----


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["TN", "NN", "NT", "TT"])
def test_nonfinite_values_of_a_large_fp32_product(layout):
    m, n, k = 840, 844, 836
    a = make(m, k, dtype=torch.float32, device="cuda", seed=1)
    b = make(k, n, dtype=torch.float32, device="cuda", seed=2)
    a[3, 5], a[100, 835], a[101, 0], a[7] = math.inf, -math.inf, math.nan, 0.0
    b[9, 7], b[5, ::3], b[10, 11] = -math.inf, 0.0, 1.0  # Inf * 0 and Inf * exact powers of two
    a = a if layout[0] == "T" else a.t().contiguous().t()
    b = b.t().contiguous().t() if layout[1] == "N" else b
    bias = make(n, dtype=torch.float32, device="cuda", seed=3)
    for activation in ("none", "relu", "sigmoid"):
        ours = fusedops.matmul(a, b, bias, activation)
        theirs = torch_linear(a, b.t(), bias, activation)
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.isposinf(), theirs.isposinf())
        assert torch.equal(ours.isneginf(), theirs.isneginf())
        finite = torch.isfinite(theirs)
        torch.testing.assert_close(ours[finite], theirs[finite], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_a_large_fp32_product_in_several_chunks_of_rows():
    # 0.75 MB of parts a row: more than the workspace holds at a time
    m, n, k = 1500, 320, 65536
    x, weight, bias, _ = linear_inputs(m, n, k, torch.float32, "cuda")
    for inputs in ((x, weight), (x.t().contiguous().t(), weight[:, :])):
        with poisoned():
            y, z = OPS.linear_preact(*inputs, bias, ACTIVATIONS.index("gelu"), False)
        exact = x.double() @ weight.double().t() + bias.double()
        theirs = torch_linear(x, weight, bias, "none")
        assert_accurate(z, theirs, exact, "z")
        gelu = torch.nn.functional.gelu
        assert_accurate(y, gelu(theirs), gelu(exact), "y")


@pytest.mark.gpu
def test_a_large_fp32_step_in_a_cuda_graph():
    x, weight, bias, dy = linear_inputs(832, 832, 840, torch.float32, "cuda")
    static = [torch.zeros_like(t) for t in (x, weight, bias, dy)]
    leaves = [t.requires_grad_() for t in static[:3]]

    def step():
        y = fusedops.linear(*leaves, "gelu")
        return (y.detach(), *torch.autograd.grad(y, leaves, static[3]))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    with torch.no_grad():
        for into, source in zip(static, (x, weight, bias, dy), strict=True):
            into.copy_(source)
    expected = step()
    for _ in range(3):
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


# ---- history and order ----


def in_new_thread(function):
    """The function's result in a thread of its own: plans are remembered per thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
def test_results_do_not_depend_on_earlier_calls(dtype):
    shapes = [(m, n, k) for m in (64, 256, 1024, 4096) for n in (256, 1024) for k in (64, 1024)]
    shapes += [(16, 1024, 4096), (4096, 2048, 128), (8192, 1024, 128)]  # bf16 gelu: other plans
    inputs = [linear_inputs(*shape, dtype, "cuda")[:3] for shape in shapes]

    def run(*activations):
        for activation in activations:
            results = [fusedops.linear(*i, activation) for i in inputs]
        return results

    fresh = in_new_thread(lambda: run("gelu"))
    for first in ("none", "relu", "tanh"):
        later = in_new_thread(lambda first=first: run(first, "gelu"))
        for shape, got, want in zip(shapes, later, fresh, strict=True):
            assert torch.equal(got, want), f"{shape} gelu after {first}"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("shape", [(16, 512, 2048), (65, 67, 71), (832, 832, 840)])
def test_inputs_written_just_before(shape, dtype):
    # With programmatic dependent launch a kernel starts before its inputs are complete.
    x, weight, bias, dy = linear_inputs(*shape, dtype, "cuda")

    def step(scale, wait):
        inputs = [t * scale for t in (x, weight, bias)]
        wait()
        leaves = [t.requires_grad_() for t in inputs]
        y = fusedops.linear(*leaves, "relu")
        wait()
        grad = dy * scale
        wait()
        return (y.detach(), *torch.autograd.grad(y, leaves, grad))

    scales = [1 + i % 7 / 8 for i in range(40)]
    expected = [step(scale, torch.cuda.synchronize) for scale in scales[:7]]
    results = [step(scale, lambda: None) for scale in scales]
    for i, result in enumerate(results):
        for got, want in zip(result, expected[i % 7], strict=True):
            assert torch.equal(got, want), f"step {i}"


@pytest.mark.parametrize("activation", ["relu", "relu2"])
def test_an_infinite_gradient_stops_at_zero(device, activation):
    x = torch.tensor([-1.0, 0.0, 2.0], device=device, requires_grad=True)
    y = fusedops.bias_act(x, None, activation)
    y.backward(torch.full_like(y, math.inf))
    assert x.grad.tolist() == [0, 0, math.inf]
    one = torch.ones(1, 1, device=device)
    gate = (-one).requires_grad_()
    fusedops.gated_mlp(one, gate, one, one, activation=activation).backward(math.inf * one)
    assert gate.grad.item() == 0


def current_context():
    context = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


@pytest.mark.gpu
def test_a_green_context_stays_current():
    try:
        green = torch.cuda.GreenContext.create(16, torch.cuda.current_device())
    except (AttributeError, RuntimeError) as error:
        pytest.skip(f"no green contexts: {error}")
    x = make(64, 1000, dtype=torch.float32, device="cuda")
    values = torch.arange(20_000, device="cuda", dtype=torch.int32)  # bins of more than 48 KB
    outside = fusedops.softmax(x, 1), fusedops.bincount(values, 20_000)
    torch.cuda.synchronize()
    before = current_context()
    green.set_context()
    try:
        inside = current_context()
        results = fusedops.softmax(x, 1), fusedops.bincount(values, 20_000)
        after = current_context()
        torch.cuda.current_stream().synchronize()
    finally:
        green.pop_context()
    assert before != inside
    assert after == inside
    assert all(torch.equal(a, b) for a, b in zip(results, outside, strict=True))
