"""fusedops.linear: values and gradients for every dtype, activation, shape and layout."""

from __future__ import annotations

import math
import threading

import pytest
import torch

import fusedops
from fusedops import reference
from util import (
    ACTIVATIONS,
    DTYPES,
    HALVES,
    LAYOUTS,
    assert_accurate,
    linear_inputs,
    make,
    name,
    poisoned,
    torch_linear,
)

# (M, N, K): scalars, odd sizes, a row, a column, a size where every tile is full.
SHAPES = [(1, 1, 1), (5, 3, 17), (33, 129, 65), (64, 64, 64), (17, 1001, 3), (2, 129, 1001)]
# One per kernel family and regime: TMA and partial tiles, skinny M, skinny N, split-K wgrad, odd
# sizes that TMA refuses.
GPU_SHAPES = [
    (512, 256, 256),
    (300, 520, 1024),
    (2048, 2048, 1024),
    (16, 4096, 1024),
    (1, 1024, 4096),
    (8192, 8, 512),
    (65536, 64, 64),
    (16384, 48, 72),
    (1000, 1001, 1003),
]


def check(x, weight, bias, dy, activation, what=""):
    """Value and all gradients against the accuracy rule."""
    ours = [t.detach().requires_grad_() for t in (x, weight, bias)]
    with poisoned():
        y = fusedops.linear(*ours, activation)
        y.backward(dy)
    with torch.no_grad(), poisoned():
        inference = fusedops.linear(x, weight, bias, activation)
    torchs = [t.detach().requires_grad_() for t in (x, weight, bias)]
    torch_y = torch_linear(*torchs, activation)
    torch_y.backward(dy)
    x64, w64, b64, dy64 = (t.double() for t in (x, weight, bias, dy))
    exact_y = reference.linear(x64, w64, b64, activation)
    exact = reference.linear_backward(dy64, x64, w64, b64, activation)
    assert y.dtype is x.dtype
    assert y.is_contiguous()
    assert_accurate(y.detach(), torch_y.detach(), exact_y, f"{what}y")
    assert_accurate(inference, torch_y.detach(), exact_y, f"{what}y without grad")
    for label, mine, theirs, truth in zip(("dx", "dw", "db"), ours, torchs, exact, strict=True):
        assert mine.grad.dtype is mine.dtype
        assert_accurate(mine.grad, theirs.grad, truth, what + label)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_accuracy(device, dtype, activation):
    for m, n, k in SHAPES:
        check(*linear_inputs(m, n, k, dtype, device), activation, f"{m}x{n}x{k} ")


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_accuracy_of_every_kernel_family(dtype, activation):
    for m, n, k in GPU_SHAPES:
        check(*linear_inputs(m, n, k, dtype, "cuda"), activation, f"{m}x{n}x{k} ")


@pytest.mark.parametrize("scale", [1e-3, 30.0, 1000.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_accuracy_of_tiny_and_large_inputs(device, dtype, activation, scale):
    if dtype is torch.float16 and activation == "relu2" and scale > 30:
        pytest.skip("the square of 1000 is no float16")
    if dtype is not torch.float64 and activation in ("sigmoid", "tanh") and scale >= 30:
        pytest.skip("1 - y of a saturated y is rounding noise, ours and torch's")
    check(*linear_inputs(24, 40, 72, dtype, device, scale=scale), activation)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_fp32_precision_setting(device, precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        check(*linear_inputs(256, 128, 512, torch.float32, device), "relu")
        check(*linear_inputs(63, 65, 67, torch.float32, device), "gelu")
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operand", ["x", "weight", "dy"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_layouts(device, dtype, operand, layout):
    # On a GPU also a shape whose packed form TMA takes
    for m, n, k in [(33, 40, 24), (64, 128, 64)][: 2 if device == "cuda" else 1]:
        x, weight, bias, dy = linear_inputs(m, n, k, dtype, device)
        inputs = {"x": x, "weight": weight, "bias": bias, "dy": dy}
        inputs[operand] = LAYOUTS[layout](inputs[operand])
        for activation in ("gelu", "relu"):
            check(*inputs.values(), activation, f"{m}x{n}x{k} ")


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_strided_bias(device, dtype):
    x, weight, bias, dy = linear_inputs(9, 16, 8, dtype, device)
    check(x, weight, torch.stack([bias, bias * math.nan], 1)[:, 0], dy, "silu")
    check(x, weight, bias[:1].expand(16), dy, "silu")


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_gradient_of_a_sum_is_an_expanded_dy(device, activation):
    x, weight, bias, _ = linear_inputs(33, 48, 16, torch.float32, device)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    grads = torch.autograd.grad(fusedops.linear(*leaves, activation).sum(), leaves)
    ones = torch.ones(33, 48, device=device)
    expected = torch.autograd.grad(fusedops.linear(*leaves, activation), leaves, ones)
    for got, want in zip(grads, expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("leading", [(), (1,), (0,), (5,), (2, 3), (4, 0), (2, 1, 3), (2, 3, 1, 2)])
def test_leading_dimensions(device, leading, activation):
    x = make(*leading, 12, dtype=torch.float32, device=device)
    _, weight, bias, _ = linear_inputs(1, 20, 12, torch.float32, device)
    dy = make(*leading, 20, dtype=torch.float32, device=device, seed=9)
    check(x, weight, bias, dy, activation)


def test_leading_dimensions_of_a_strided_x(device):
    _, weight, bias, _ = linear_inputs(1, 20, 12, torch.float32, device)
    x = make(3, 5, 12, dtype=torch.float32, device=device)
    dy = make(5, 3, 20, dtype=torch.float32, device=device, seed=9)
    check(x.transpose(0, 1), weight, bias, dy, "tanh")
    x = make(12, 5, 3, dtype=torch.float32, device=device)
    check(x.permute(1, 2, 0), weight, bias, dy, "silu")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_empty(device, dtype, activation):
    for m, n, k in [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0), (0, 16, 0)]:
        check(*linear_inputs(m, n, k, dtype, device), activation, f"{m}x{n}x{k} ")


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_without_k_is_the_activated_bias(device, dtype):
    x, weight, bias, _ = linear_inputs(4, 6, 0, dtype, device)
    with poisoned():
        y = fusedops.linear(x, weight, bias, "sigmoid")
        zero = fusedops.linear(x, weight, None, "none")
    assert_accurate(y, torch.sigmoid(bias).expand(4, 6), bias.double().sigmoid().expand(4, 6))
    assert torch.equal(zero, torch.zeros(4, 6, dtype=dtype, device=device))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=name)
def test_nan_stays_in_its_row_and_column(device, dtype, activation):
    x, weight, bias, dy = linear_inputs(12, 16, 32, dtype, device)
    x[3, 5] = math.nan
    y = fusedops.linear(x, weight, bias, activation)
    expected = torch.zeros(12, 16, dtype=torch.bool, device=device)
    expected[3] = True
    assert torch.equal(y.isnan(), expected)

    # Backward: as torch's
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    ours = torch.autograd.grad(fusedops.linear(*leaves, activation), leaves, dy)
    theirs = torch.autograd.grad(torch_linear(*leaves, activation), leaves, dy)
    for got, want in zip(ours, theirs, strict=True):
        assert torch.equal(got.isnan(), want.isnan())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=name)
def test_infinity(device, dtype, activation):
    x, weight, bias, _ = linear_inputs(12, 16, 32, dtype, device)
    x[3, 5] = math.inf
    y = fusedops.linear(x, weight, bias, activation)
    # NOTE: in float64, since torch's gelu(inf) is NaN in float32 on some CPUs.
    theirs = torch_linear(x.double(), weight.double(), bias.double(), activation)
    assert torch.equal(y.isposinf(), theirs.isposinf())
    assert torch.equal(y.isneginf(), theirs.isneginf())
    rows = [i for i in range(12) if i != 3]
    assert torch.isfinite(y[rows]).all()
    # act(-inf) of gelu and silu is 0 in the limit and NaN by the formula; either is right.
    either = (weight[:, 5] < 0) & (activation in ("gelu", "gelu_tanh", "silu"))
    assert torch.equal(y[3].isnan() & ~either, theirs[3].isnan() & ~either)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_more_than_2_to_the_31_elements(activation):
    # x and y both have 2^31 + 2^17 elements; rows at both ends and across 2^31 are compared.
    m, n, k = 2**16 + 4, 2**15, 2**15
    x = torch.empty(m, k, dtype=torch.bfloat16, device="cuda").normal_()
    weight = make(n, k, dtype=torch.bfloat16, device="cuda", scale=1 / math.sqrt(k))
    bias = make(n, dtype=torch.bfloat16, device="cuda", seed=3)
    with torch.no_grad():
        y = fusedops.linear(x, weight, bias, activation)
        for rows in (slice(0, 2), slice(2**16 - 2, 2**16 + 2), slice(m - 2, m)):
            part = x[rows].contiguous()
            exact = reference.linear(part.double(), weight.double(), bias.double(), activation)
            assert_accurate(y[rows], torch_linear(part, weight, bias, activation), exact)
    x.requires_grad_()
    (dx,) = torch.autograd.grad(fusedops.linear(x, weight, bias, activation), x, y)

    def gradient(function, dtype):
        last = x[-2:].detach().to(dtype).requires_grad_()
        last_y = function(last, weight.to(dtype), bias.to(dtype), activation)
        return torch.autograd.grad(last_y, last, y[-2:].to(dtype))[0]

    exact = gradient(reference.linear, torch.float64)
    assert_accurate(dx[-2:], gradient(torch_linear, torch.bfloat16), exact)
    assert torch.isfinite(dx.abs().max())


@pytest.mark.parametrize("activation", [0, 1])
def test_float32_gradients_of_float64_inputs(device, activation):
    x, weight, bias, dy = linear_inputs(33, 40, 24, torch.float64, device)
    y = torch.ops.fusedops.linear(x, weight, bias, activation, False)
    wide = torch.ops.fusedops.linear_backward(
        dy, x, weight, y, activation, True, True, True, False, False
    )
    with poisoned():
        narrow = torch.ops.fusedops.linear_backward(
            dy, x, weight, y, activation, True, True, True, True, False
        )
    assert [t.dtype for t in narrow] == [torch.float64, torch.float32, torch.float32]
    for got, want in zip(narrow, wide, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6)


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
