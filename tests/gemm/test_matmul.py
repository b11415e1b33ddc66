"""fusedops.matmul: the general face of the same kernels, with row- and column-major operands."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import fusedops
from fusedops import reference
from util import (
    ACTIVATIONS,
    DTYPES,
    LAYOUTS,
    SMOOTH,
    TORCH_ACTIVATION,
    assert_accurate,
    linear_inputs,
    make,
    name,
    poisoned,
)


def torch_matmul(a, b, bias, activation):
    z = a @ b if bias is None else torch.addmm(bias, a, b)
    return TORCH_ACTIVATION[activation](z)


def matmul_inputs(m, n, k, dtype, device):
    x, weight, bias, dy = linear_inputs(m, n, k, dtype, device)
    return x, weight.t(), bias, dy


def check(a, b, bias, dy, activation, what=""):
    """Value and all gradients against the accuracy rule."""
    ours = [t.detach().requires_grad_() for t in (a, b, bias)]
    with poisoned():
        y = fusedops.matmul(*ours, activation)
        y.backward(dy)
    torchs = [t.detach().requires_grad_() for t in (a, b, bias)]
    torch_y = torch_matmul(*torchs, activation)
    torch_y.backward(dy)
    a64, b64, bias64, dy64 = (t.double() for t in (a, b, bias, dy))
    assert y.dtype is a.dtype
    assert y.is_contiguous()
    exact_y = reference.matmul(a64, b64, bias64, activation)
    exact = reference.matmul_backward(dy64, a64, b64, bias64, activation)
    assert_accurate(y.detach(), torch_y.detach(), exact_y, f"{what}y")
    labels = ("da", "db", "dbias")
    for label, mine, theirs, truth in zip(labels, ours, torchs, exact, strict=True):
        assert mine.grad.dtype is mine.dtype
        assert_accurate(mine.grad, theirs.grad, truth, what + label)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_accuracy(device, dtype, activation):
    for m, n, k in [(1, 1, 1), (5, 3, 17), (64, 64, 64), (33, 129, 65)]:
        check(*matmul_inputs(m, n, k, dtype, device), activation, f"{m}x{n}x{k} ")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_accuracy_of_every_kernel_family(dtype):
    for m, n, k in [(512, 256, 384), (16, 2048, 1024), (16384, 64, 64), (500, 501, 503)]:
        check(*matmul_inputs(m, n, k, dtype, "cuda"), "gelu_tanh", f"{m}x{n}x{k} ")


@pytest.mark.parametrize(
    ("layout_a", "layout_b"), list(itertools.product(LAYOUTS, LAYOUTS)), ids="-".join
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=name)
def test_layouts(device, dtype, layout_a, layout_b):
    for m, n, k in [(24, 40, 33), (64, 128, 64)][: 2 if device == "cuda" else 1]:
        a, b, bias, dy = matmul_inputs(m, n, k, dtype, device)
        check(LAYOUTS[layout_a](a), LAYOUTS[layout_b](b), bias, dy, "silu", f"{m}x{n}x{k} ")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_dy(device, layout):
    a, b, bias, dy = matmul_inputs(33, 40, 24, torch.float32, device)
    for activation in ("none", "relu", "gelu"):
        check(a, b, bias, LAYOUTS[layout](dy), activation)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "sigmoid"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_empty(device, dtype, activation):
    for m, n, k in [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)]:
        check(*matmul_inputs(m, n, k, dtype, device), activation, f"{m}x{n}x{k} ")


def test_is_linear_with_a_transposed_weight(device):
    x, weight, bias, _ = linear_inputs(40, 24, 56, torch.float32, device)
    y = fusedops.matmul(x, weight.t(), bias, "relu")
    torch.testing.assert_close(y, fusedops.linear(x, weight, bias, "relu"))


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_requires_grad_combinations(device, activation, needs):
    tensors = matmul_inputs(17, 24, 40, torch.float32, device)
    leaves = [t.clone().requires_grad_(need) for t, need in zip(tensors[:3], needs, strict=True)]
    full = [t.clone().requires_grad_() for t in tensors[:3]]
    with poisoned():
        y = fusedops.matmul(*leaves, activation)
        assert y.requires_grad == any(needs)
        if any(needs):
            y.backward(tensors[3])
    fusedops.matmul(*full, activation).backward(tensors[3])
    for leaf, whole, need in zip(leaves, full, needs, strict=True):
        assert (leaf.grad is not None) == need
        if need:
            assert torch.equal(leaf.grad, whole.grad)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("activation", [*SMOOTH, "relu2"])
def test_gradcheck(device, activation, bias):
    a, b, c, _ = matmul_inputs(4, 3, 5, torch.float64, device)
    leaves = [a.requires_grad_(), b.requires_grad_()] + ([c.requires_grad_()] if bias else [])

    def run(a, b, bias=None):
        return fusedops.matmul(a, b, bias, activation)

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_torch_func_transforms(device, activation, bias):
    a, b, c, _ = matmul_inputs(4, 3, 5, torch.float64, device)

    def answer(function):
        def loss(b):
            return function(a, b, c if bias else None, activation).square().sum()

        return torch.func.grad(loss)(b)

    torch.testing.assert_close(answer(fusedops.matmul), answer(torch_matmul))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name)
def test_autocast(device, dtype):
    a, b, bias, _ = matmul_inputs(8, 16, 24, torch.float32, device)
    leaves = [t.detach().requires_grad_() for t in (a, b, bias)]
    with torch.autocast(device, dtype=dtype):
        y = fusedops.matmul(*leaves, "gelu")
        theirs = torch_matmul(*leaves, "gelu")
    assert y.dtype is dtype
    # Theirs rounds z before the activation
    ulp = torch.finfo(dtype).eps
    torch.testing.assert_close(y, theirs, rtol=4 * ulp, atol=ulp)
    y.float().sum().backward()
    assert all(leaf.grad.dtype is torch.float32 for leaf in leaves)


def test_compiles_in_one_graph(device):
    a, b, bias, dy = matmul_inputs(16, 24, 32, torch.float32, device)
    leaves = [t.detach().requires_grad_() for t in (a, b, bias)]
    torch.compiler.reset()
    compiled = torch.compile(fusedops.matmul, fullgraph=True, backend="aot_eager")
    for activation in ("relu", "gelu"):
        y, eager = compiled(*leaves, activation), fusedops.matmul(*leaves, activation)
        torch.testing.assert_close(y, eager, rtol=1e-5, atol=1e-5)
        ours, want = (torch.autograd.grad(t, leaves, dy) for t in (y, eager))
        for got, expected in zip(ours, want, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_vector_operands_are_refused(device):
    a = make(4, dtype=torch.float32, device=device)
    with pytest.raises(RuntimeError, match=r"matmul: a must be 2-dimensional, \(M, K\); got"):
        fusedops.matmul(a, make(4, 3, dtype=torch.float32, device=device))


def check_product(a, b, what):
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
        check_product(a.t(), b, f"{m}x{n}x{k} ")
        wide = [torch.full((k, (t.shape[1] + 15) // 16 * 16), math.nan).to(a) for t in (a, b)]
        for source, into in zip((a, b), wide, strict=True):
            into[:, : source.shape[1]] = source
        check_product(wide[0][:, :m].t(), wide[1][:, :n], f"{m}x{n}x{k} in wide rows ")


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_strides_of_extents_of_one(device, dtype):
    data = make(4096, dtype=dtype, device=device)
    row_strides = [(0, 1), (3, 1), (1, 5), (7, 3), (1, 1), (5, 0), (1, 0), (0, 0)]
    for m, n, k in [(1, 24, 40), (24, 1, 40), (24, 40, 1), (1, 1, 40), (1, 24, 1), (24, 1, 1)]:
        for first, second in row_strides:
            for offset in (0, 1):
                a = data.as_strided((m, k), (first, second), offset)
                b = data.as_strided((k, n), (second, first), 512 + offset)
                check_product(a, b, f"{m}x{n}x{k} strides {first}, {second} offset {offset} ")
