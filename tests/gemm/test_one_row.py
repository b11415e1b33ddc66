"""One row by a weight whose rows begin anywhere: the choice, and results against float64."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops import _C, reference
from gemm.linear_util import check_linear
from util import (
    ACTIVATIONS,
    HALVES,
    assert_accurate,
    assert_replays_and_streams,
    linear_inputs,
    name,
    poisoned,
    torch_linear,
)

HOPPER = {"capability": 90, "sm_count": 132}
DTYPES = (*HALVES, torch.float32)
# N, K: less than a unit of 16 bytes, one of them and more, whole rows and odd ones, few columns and
# a long K (blocks share it), many columns.
WEIGHTS = (
    *((1, 1), (3, 5), (8, 8), (37, 17), (83, 21376), (64, 12485), (330, 3207)),
    *((4096, 64), (2001, 515), (6120, 229), (1000, 2976)),
)


def dots(m, n, k, a=None, b=None, **options):
    """What selection says of a (M, K) and b (K, N), dense or of these strides."""
    options = {"dtype": "bfloat16", "epilogue": "fused", "activation": 0} | HOPPER | options
    a, b = (a or (k, 1)), (b or (1, k))
    return _C.thin_gemm(m, n, k, a=(*a, 0), b=(*b, 0), allow_tf32=False, **options)


# ---- selection ----


@pytest.mark.parametrize("dtype", [name(dtype) for dtype in DTYPES])
@pytest.mark.parametrize(("n", "k"), [(83, 21376), (891, 14418), (14502, 9065), (200, 32064)])
def test_one_row_takes_this_kernel(dtype, n, k):
    found = dots(1, n, k, dtype=dtype)
    assert found["takes"], found
    assert found["name"].startswith("thin dots")
    assert found["tile"][0] == 1


@pytest.mark.parametrize("dtype", [name(dtype) for dtype in HALVES])
def test_eight_blocks_that_share_k_are_faster_for_more_columns(dtype):
    """An H200 took 8.0 us for 7 x 384 x 32576, an H100 9.6; this kernel is expected at 9.9."""
    found = dots(1, 330, 32064, dtype=dtype)
    assert not found["takes"]
    assert found["other_us"] < found["expected_us"]


@pytest.mark.parametrize(
    ("m", "n", "k", "options"),
    [
        (2, 83, 2001, {}),
        (1, 83, 2001, {"b": (83, 1)}),  # columns of the weight
        (1, 83, 2001, {"a": (1, 4)}),
        (1, 83, 2001, {"epilogue": "accumulator"}),
    ],
)
def test_what_is_not_of_this_kernel(m, n, k, options):
    found = dots(m, n, k, **options)
    assert not found["takes"]
    assert "nor is M 1" in found["rejected"]


def test_a_row_that_no_block_holds_is_refused():
    found = dots(1, 64, 1 << 24, capability=80, sm_count=108)
    assert found["rejected"] == "A does not fit the shared memory"


def test_explain_names_the_kernel():
    report = fusedops.explain((1, 21376), (83, 21376), (83,), "tanh", dtype=torch.float16)
    assert report.products[0].kernel.startswith("thin dots")


# ---- results ----


def check(x, weight, bias, activation, what=""):
    with poisoned():
        y = fusedops.linear(x, weight, bias, activation)
    wide = [None if t is None else t.double() for t in (x, weight, bias)]
    exact = reference.linear(*wide, activation)
    assert_accurate(y, torch_linear(x, weight, bias, activation), exact, what)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_every_shape(dtype, weight):
    n, k = weight
    x, w, bias, _ = linear_inputs(1, n, k, dtype, "cuda")
    check(x, w, bias, "relu", f"{n}x{k}")
    check(x, w, None, "gelu", f"{n}x{k}")
    check(x[0], w, bias, "tanh", f"{n}x{k} of one dimension")


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_rows_that_begin_anywhere(dtype):
    for n, k in ((301, 1031), (40, 4099), (77, 13)):
        for gap, first in ((1, 0), (1, 1), (3, 2), (8, 5)):
            x, w, bias, _ = linear_inputs(1, n, k + gap, dtype, "cuda")
            x, w = x[:, first : first + k], w[:, first : first + k]
            check(x, w, bias, "silu", f"{n}x{k} {gap} {first}")


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_every_activation_and_gradient(dtype, activation):
    check_linear(*linear_inputs(1, 203, 1001, dtype, "cuda"), activation)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_repeatable_and_the_same_in_graphs_and_streams(dtype):
    for n, k in ((83, 21375), (2001, 515)):
        x, weight, bias, _ = linear_inputs(1, n, k, dtype, "cuda")
        y = fusedops.linear(x, weight, bias, "gelu_tanh")
        assert_replays_and_streams(
            lambda x=x, w=weight, b=bias: fusedops.linear(x, w, b, "gelu_tanh"), y
        )


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_nan_and_infinity_stay_in_their_columns(dtype):
    x, weight, bias, _ = linear_inputs(1, 301, 1001, dtype, "cuda")
    weight[300, 17], weight[7, 1000] = math.nan, math.inf
    y = fusedops.linear(x, weight, bias)
    theirs = torch.nn.functional.linear(x, weight, bias)
    assert torch.equal(y.isnan(), theirs.isnan())
    assert torch.equal(y.isinf(), theirs.isinf())
    assert y[0, 300].isnan()
    x[0, 1000] = math.nan
    assert fusedops.linear(x, weight, bias).isnan().all()
