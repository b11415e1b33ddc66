"""The backward of linear layers with few features: every width, activation and combination."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import fusedops
from fusedops import reference
from util import ACTIVATIONS, HALVES, assert_accurate, linear_inputs, name, poisoned, torch_linear

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

# (N, K): every kernel at its full size and with ragged boxes, K of one and of two blocks.
WIDTHS = (
    *((64, 64), (16, 24), (128, 64), (72, 40), (256, 64), (200, 16)),
    *((64, 128), (40, 72), (128, 128), (104, 120), (256, 128), (136, 72)),
    *((64, 256), (24, 136), (128, 200), (256, 256), (248, 136), (136, 200)),
)
ROWS = (32768, 20011)  # whole tiles; a ragged one
OP = torch.ops.fusedops.linear_backward


def saved_of(x, weight, bias, activation):
    """What forward keeps for backward, as the Function does."""
    y = fusedops.linear(x, weight, bias, activation)
    if activation in ("relu", "sigmoid", "tanh"):
        return y
    return None if activation == "none" else fusedops.linear(x, weight, bias)


def backward(x, weight, bias, dy, activation, needs=(True, True, True), fp32=False):
    """dx, dweight and dbias of the op; what is not needed is empty."""
    saved = saved_of(x, weight, bias, activation)
    code = ACTIVATIONS.index(activation)
    with poisoned():
        return OP(dy, x, weight, saved, code, *needs, fp32, False)


def check(x, weight, bias, dy, activation, what=""):
    """Every gradient against the accuracy rule."""
    torchs = [t.detach().requires_grad_() for t in (x, weight, bias)]
    torch_linear(*torchs, activation).backward(dy)
    wide = [t.double() for t in (dy, x, weight, bias)]
    exact = reference.linear_backward(*wide, activation)
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    with poisoned():
        fusedops.linear(*leaves, activation).backward(dy)
    for label, leaf, theirs, truth in zip(("dx", "dw", "db"), leaves, torchs, exact, strict=True):
        assert_accurate(leaf.grad, theirs.grad, truth, f"{what}{activation} {label}")


@pytest.mark.parametrize("widths", WIDTHS, ids=lambda w: f"{w[0]}x{w[1]}")
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_every_width(dtype, widths):
    for m, activation in zip(ROWS, ("relu", "gelu_tanh"), strict=True):
        check(*linear_inputs(m, *widths, dtype, "cuda"), activation, f"{m} rows ")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_every_activation(dtype, activation):
    for widths in ((64, 64), (72, 136), (256, 128), (256, 256)):
        for scale in (1.0, 30.0):
            if scale > 1 and activation in ("sigmoid", "tanh", "relu2"):
                continue  # 1 - y of a saturated y is rounding noise; the square is no float16
            check(*linear_inputs(17001, *widths, dtype, "cuda", scale), activation, f"{widths} ")


@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
@pytest.mark.parametrize("widths", [(64, 64), (40, 128), (128, 136), (256, 256)])
def test_what_is_not_needed_changes_nothing(widths, activation):
    tensors = linear_inputs(33001, *widths, torch.bfloat16, "cuda")
    for fp32 in (False, True):
        whole = backward(*tensors, activation, fp32=fp32)
        assert whole[1].dtype is (torch.float32 if fp32 else torch.bfloat16)
        for needs in list(itertools.product([False, True], repeat=3))[1:]:
            part = backward(*tensors, activation, needs, fp32)
            for need, got, want in zip(needs, part, whole, strict=True):
                if not need:
                    assert got.numel() == 0
                # Alone, a product or a sum of dy is no business of the kernel's; and many sums
                # over rows are added up in another order than the few of dbias.
                elif activation != "none" and (needs[0] or needs[1]) and got.dim() > 1:
                    assert torch.equal(got, want)
                else:
                    rtol = 1e-5 if got.dtype is torch.float32 and activation != "none" else 0.01
                    torch.testing.assert_close(got, want, rtol=rtol, atol=rtol * 33001**0.5)


@pytest.mark.parametrize("widths", [(64, 64), (128, 128), (256, 256)])
def test_repeatable_and_the_same_in_a_graph(widths):
    tensors = linear_inputs(70001, *widths, torch.bfloat16, "cuda")
    saved = saved_of(*tensors[:3], "gelu_tanh")
    x, weight, _, dy = tensors
    args = (dy, x, weight, saved, ACTIVATIONS.index("gelu_tanh"), True, True, True, False, False)
    first = OP(*args)
    for _ in range(10):
        assert all(map(torch.equal, OP(*args), first))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = OP(*args)
    for t in captured:
        t.fill_(math.nan)
    graph.replay()
    assert all(map(torch.equal, captured, first))


def test_rows_of_wider_tensors():
    m, n, k = 8200, 96, 72
    x, weight, bias, dy = linear_inputs(m, n, k, torch.bfloat16, "cuda")

    def inside(t, extra):
        wide = t.new_full((t.shape[0], t.shape[1] + extra), math.nan)
        wide[:, 8 : 8 + t.shape[1]] = t
        return wide[:, 8 : 8 + t.shape[1]]

    check(inside(x, 24), inside(weight, 16), bias, inside(dy, 8), "silu")
    # Rows that the copy engine refuses take another way.
    check(inside(x, 9), inside(weight, 11), bias, inside(dy, 13), "silu")


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_nan_stays_in_its_row_and_column(activation):
    x, weight, bias, dy = linear_inputs(8192, 64, 128, torch.bfloat16, "cuda")
    dy[77, 5] = math.nan
    dx, dweight, dbias = backward(x, weight, bias.abs() + 100, dy, activation)
    assert dx.isnan().any(1).nonzero().flatten().tolist() == [77]
    assert dweight.isnan().any(1).nonzero().flatten().tolist() == [5]
    assert dbias.isnan().nonzero().flatten().tolist() == [5]


def test_dz_never_reaches_memory():
    x, weight, bias, dy = linear_inputs(262144, 64, 64, torch.bfloat16, "cuda")
    saved = saved_of(x, weight, bias, "relu")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    dx, *_ = OP(dy, x, weight, saved, 1, True, True, True, False, False)
    extra = torch.cuda.max_memory_allocated() - before - dx.nbytes
    assert extra < dy.nbytes / 4


def test_the_predecessor_may_write_any_operand():
    x = torch.ones(8192, 64, device="cuda", dtype=torch.bfloat16)
    dy, saved, weight = torch.empty_like(x), torch.empty_like(x), x[:64].clone()
    for step in range(1, 30):
        for t in (weight, x, dy, saved):
            t.fill_(step)
        dx, dweight, dbias = OP(dy, x, weight, saved, 1, True, True, True, True, False)
        assert (dx == 64 * step * step).all() or step > 15
        assert (dweight == 8192 * step * step).all()
        assert (dbias == 8192 * step).all()
