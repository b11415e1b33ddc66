"""16-bit products whose rows end within 16 bytes: who copies what, and results against float64."""

from __future__ import annotations

import pytest
import torch

import fusedops
from fusedops import _C, reference
from util import HALVES, assert_accurate, linear_inputs, name, poisoned, torch_linear

# M, N, K of products whose result leaves through padded rows: one column too many and too few, a
# pitch of 4 bytes, ragged tiles, hardly any columns.
SHAPES = ((2048, 1025, 512), (4096, 511, 520), (2050, 30522 // 6, 1024), (350003, 3, 512))
HOPPER = {"capability": 90, "sm_count": 132}
OPTIONS = {"dtype": "bfloat16", "epilogue": "fused", "activation": 0, "allow_tf32": False}


def prepared(m, n, k, a, b, **options):
    """What is done for a (M, K) and b (K, N) of these strides, at aligned addresses."""
    return _C.prepare_gemm(m, n, k, a=(*a, 0), b=(*b, 0), **(OPTIONS | HOPPER | options))


def chosen(plan):
    return _C.plan_gemm(plan["problem"], *HOPPER.values())["chosen"]


def test_a_long_odd_result_takes_wgmma_and_padded_rows():
    plan = prepared(8192, 30522, 1024, a=(1024, 1), b=(1, 1024))
    assert plan["problem"]["ldd"] == 30528
    assert plan["pack_a"] is plan["pack_b"] is None
    found = chosen(plan)
    assert found["family"] == "sm90"
    assert found["splits"] in (0, 1)  # a pass over slices knows no padded rows


@pytest.mark.parametrize(
    ("m", "n", "k", "options"),
    [
        (8192, 30528, 1024, {}),  # whole rows
        (8192, 30522, 256, {}),  # the copy would cost more than WGMMA saves
        (256, 1001, 1024, {}),  # small
        (64, 50257, 1024, {}),  # few rows
        (8192, 30522, 1024, {"epilogue": "preact"}),
        (8192, 30522, 1024, {"dtype": "float32"}),
        (8192, 30522, 1024, {"capability": 80}),
    ],
)
def test_other_results_are_written_in_place(m, n, k, options):
    plan = prepared(m, n, k, a=(k, 1), b=(1, k), **options)
    assert plan["problem"]["ldd"] == n


def test_padded_rows_are_read_in_place_both_ways():
    dgrad = prepared(8192, 1024, 30522, a=(30528, 1), b=(1024, 1))
    wgrad = prepared(30522, 1024, 8192, a=(1, 30528), b=(1024, 1))
    for plan in (dgrad, wgrad):
        assert plan["pack_a"] is plan["pack_b"] is None
        assert chosen(plan)["family"] == "sm90"
    dense = prepared(8192, 1024, 30522, a=(30522, 1), b=(1024, 1))
    assert dense["pack_a"] is not None
    assert dense["pack_b"] is None  # both ends of K are filled with zeros


def test_a_layout_without_wgmma_kernel_is_packed_as_before():
    # There is no WGMMA kernel of (mn, k) with the accumulator epilogue.
    plan = prepared(512, 256, 1003, a=(1, 512), b=(1, 1008), epilogue="accumulator")
    assert plan["pack_b"] is not None
    assert chosen(plan) is not None


def test_explain_says_so():
    text = str(fusedops.explain((8192, 1024), (30522, 1024), None, dtype=torch.bfloat16))
    assert "padded" in text


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(shape, dtype):
    m, n, k = shape
    x, weight, b, _ = linear_inputs(m, n, k, dtype, "cuda")
    for bias, activation in ((b, "gelu"), (None, "none"), (b[: n - 1].new_ones(n), "relu")):
        with poisoned():
            y = fusedops.linear(x, weight, bias, activation)
        b64 = None if bias is None else bias.double()
        exact = reference.linear(x.double(), weight.double(), b64, activation)
        assert_accurate(y, torch_linear(x, weight, bias, activation), exact, f"{shape} ")
        assert y.is_contiguous()
        assert torch.equal(y, fusedops.linear(x, weight, bias, activation))


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("pitch", ["dense", "padded", "offset"])
@pytest.mark.parametrize("shape", [(2048, 1025, 512), (1031, 2050, 264), (200, 7, 64)], ids=str)
def test_backward(shape, pitch, dtype):
    m, n, k = shape
    x, weight, _, dy = linear_inputs(m, n, k, dtype, "cuda")
    if pitch != "dense":  # rows of a wider tensor, which begin on 16 bytes or not
        wider = torch.full((m, n + 16 - n % 8 if pitch == "padded" else n + 3), torch.nan,
                           dtype=dtype, device="cuda")  # fmt: skip
        first = 0 if pitch == "padded" else 2
        wider[:, first : first + n] = dy
        dy = wider[:, first : first + n]
    leaves = [t.clone().requires_grad_() for t in (x, weight)]
    bias = torch.zeros(n, dtype=dtype, device="cuda", requires_grad=True)
    y = fusedops.linear(*leaves, bias)
    with poisoned():
        found = torch.autograd.grad(y, (*leaves, bias), dy)
    plain = [t.clone().requires_grad_() for t in (x, weight)]
    torchs = torch.autograd.grad(torch.nn.functional.linear(*plain), plain, dy)
    exact = (dy.double() @ weight.double(), dy.double().t() @ x.double())
    for got, theirs, want in zip(found, torchs, exact, strict=False):
        assert_accurate(got, theirs, want, f"{shape} {pitch} ")
    sums = dy.double().sum(0)
    assert_accurate(found[2], dy.sum(0), sums, f"{shape} {pitch} bias ")


@pytest.mark.gpu
@pytest.mark.sm90
def test_main_grad_adds():
    m, n, k = 1031, 2051, 264
    x, weight, _, dy = linear_inputs(m, n, k, torch.bfloat16, "cuda")
    weight.requires_grad_()
    weight.main_grad = torch.ones(n, k, device="cuda")
    weight.grad_added_to_main_grad = False
    fusedops.linear(x, weight, None).backward(dy)
    exact = 1 + dy.double().t() @ x.double()
    torch.testing.assert_close(weight.main_grad.double(), exact, rtol=1e-5, atol=1e-4)
