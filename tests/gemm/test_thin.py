"""Products that stream many rows past a few features: their choice, and results against float64."""

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
    LAYOUTS,
    assert_accurate,
    assert_replays_and_streams,
    linear_inputs,
    name,
    poisoned,
    torch_linear,
)

HOPPER = {"capability": 90, "sm_count": 132}
DTYPES = (*HALVES, torch.float32)
OP = torch.ops.fusedops.linear_backward
# M, N, K: one feature on a side or on both, K in one and in several chunks, N in one and in several
# groups and parts, odd and whole rows, ragged tiles.
SHAPES = (
    *((9001, 1, 1), (9001, 1, 2), (8200, 5, 3), (20011, 3, 64), (8193, 13, 433), (5001, 32, 257)),
    *((8191, 32, 32), (8192, 16, 8), (6001, 64, 6), (6001, 65, 3), (4099, 128, 16), (4101, 399, 3)),
    *((4097, 17, 129), (70001, 2, 4), (12345, 8, 20), (4100, 200, 31), (4096, 1, 1000)),
    *((8193, 42, 40), (5003, 77, 64)),  # of fp32 alone
)


def thin(m, n, k, a=None, b=None, **options):
    """What selection says of a (M, K) and b (K, N), dense or of these strides."""
    options = {"dtype": "bfloat16", "epilogue": "fused", "activation": 0} | options
    a, b = (a or (k, 1)), (b or (1, k))
    return _C.thin_gemm(m, n, k, a=(*a, 0), b=(*b, 0), allow_tf32=False, **(HOPPER | options))


# ---- selection ----


@pytest.mark.parametrize("dtype", [name(dtype) for dtype in DTYPES])
@pytest.mark.parametrize(("n", "k"), [(1, 2), (5, 3), (11, 64), (10, 433), (3, 64)])
def test_few_features_of_odd_rows_stream(dtype, n, k):
    m = 1_000_003
    assert thin(m, n, k, dtype=dtype)["takes"]
    assert thin(m, n, k, a=(1, m), dtype=dtype)["takes"] or k > 64  # columns of x
    wgrad = thin(n, k, m, a=(1, n), b=(k, 1), dtype=dtype)
    if dtype == "float32" and k > 64:
        return  # FMA sums are near the FMA kernels' time: either may be chosen
    assert wgrad["takes"]
    assert wgrad["expected_us"] < wgrad["other_us"]
    assert wgrad["name"].startswith("thin sums")


@pytest.mark.parametrize(
    ("m", "n", "k", "options", "reason"),
    [
        (100_000, 33, 65, {}, "neither N nor K is at most 32"),
        (1000, 3, 1000, {}, "neither M nor K is at least 4096, nor is M 1"),
        (100_000, 3, 3, {"dtype": "float64"}, "fp64"),
        (100_000, 3, 3, {"epilogue": "accumulator"}, "no kernel with this epilogue"),
        (100_000, 3, 8, {"a": (32, 2)}, "neither stride of A is 1"),
        (0, 3, 3, {}, "an extent is zero"),
    ],
)
def test_what_does_not_stream_says_why(m, n, k, options, reason):
    found = thin(m, n, k, **options)
    assert not found["takes"]
    assert reason in found["rejected"]


@pytest.mark.parametrize(
    ("m", "n", "k"), [(524288, 32, 64), (786432, 64, 32), (40960, 512, 16), (1048576, 8, 256)]
)
def test_whole_rows_stay_with_wgmma_where_it_is_faster(m, n, k):
    """Measured on an H200 within 1.25 of what memory allows (gemm_sweep.csv)."""
    found = thin(m, n, k)
    assert found["rejected"] is None
    assert not found["takes"]


@pytest.mark.parametrize(
    ("dtype", "m", "n", "k"),
    [
        ("bfloat16", 319_282, 399, 3),
        ("bfloat16", 1_110_505, 249, 31),
        ("float16", 298_288, 433, 10),
        ("float16", 240_717, 241, 1),
        ("float32", 882_649, 106, 4),
        ("float32", 115_308, 89, 1),
        ("float32", 811_448, 210, 30),
    ],
)
def test_many_columns_of_odd_rows_stream(dtype, m, n, k):
    """The sm_80 kernels took 2.3 to 7 times what their model says of these (an H100)."""
    found = thin(m, n, k, dtype=dtype)
    in_place = _C.unaligned_gemm(
        m, n, k, a=(k, 1, 0), b=(1, k, 0), dtype=dtype, epilogue="fused", activation=0,
        allow_tf32=False, **HOPPER,
    )  # fmt: skip
    assert found["takes"] or in_place["takes"], (found, in_place)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sm80_kernels_pay_for_rows_of_d_that_are_cut(dtype):
    """N of whole and of cut rows in the same tiles: the latter are written element by element."""
    m, k = 300_000, 64
    math, rate = ("native", 2.2) if dtype == "float16" else ("fp32", 1.5)
    least = m * 256 / (rate * HOPPER["sm_count"] * 1600)  # us
    times = []
    for n in (256, 255):
        candidates = _C.select_config(m, n, k, dtype, math=math, **HOPPER)[1]
        times.append([c["expected_us"] for c in candidates if c["family"] == "sm80"])
    whole, cut = times
    assert len(whole) == len(cut) > 0
    assert all(b - a > 0.9 * least for a, b in zip(whole, cut, strict=True))


# M, N, K: runs of 64, 32 and 16 rows; rows that begin and end anywhere, with words and with
# units, in one part and in several; K of whole units and of one step or more.
WIDE = (
    *((20_011, 393, 6), (20_001, 801, 9), (20_003, 1365, 16), (9001, 3001, 24), (30_001, 777, 40)),
    *((20_001, 1572, 64), (90_001, 65, 64), (200_001, 64, 3), (100_003, 48, 5), (40_001, 200, 31)),
)


@pytest.mark.parametrize("shape", WIDE, ids=str)
def test_few_features_that_become_many_leave_in_whole_units(shape):
    found = thin(*shape)
    assert found["takes"]
    assert found["name"].startswith("thin wide")


@pytest.mark.parametrize("shape", [(589_609, 193, 13), (115_308, 489, 3)], ids=str)
def test_and_so_do_those_of_float32(shape):
    found = thin(*shape, dtype="float32")
    assert found["takes"]
    assert found["name"].startswith("thin wide")


def test_tiles_of_long_rows_are_few_rows():
    tiles = {n: thin(20_001, n, 6)["tile"] for n in (393, 801, 999, 3001)}
    assert tiles == {393: (64, 393), 801: (32, 801), 999: (16, 999), 3001: (64, 256)}


def test_explain_names_the_kernels():
    report = fusedops.explain((1_000_003, 3), (1, 3), (1,), "tanh", dtype=torch.float32)
    assert report.products[0].kernel == "thin rows 512x1"
    assert "512 x 1" in str(report)
    report = fusedops.explain((1_000_003, 3), (13, 3), (13,), "relu", backward=True)
    kernels = [product.kernel.rsplit(" ", 1)[0] for product in report.products]
    assert kernels == ["thin rows", "thin rows", "thin sums"]


# ---- results ----


def taken(x, weight, bias, activation, *, backward=False):
    """Asserts that what runs is what this file is about."""
    report = fusedops.explain(x, weight, bias, activation, backward=backward)
    for product in report.products:
        assert product.kernel.startswith("thin"), str(product)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(dtype, shape):
    x, weight, bias, dy = linear_inputs(*shape, dtype, "cuda")
    for activation, b in (("relu", bias), ("gelu", None)):
        check_linear(x, weight, b, dy, activation, f"{shape} {activation}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("shape", WIDE, ids=str)
def test_wide_results(dtype, shape):
    x, weight, bias, dy = linear_inputs(*shape, dtype, "cuda")
    check_linear(x, weight, bias, dy, "gelu", f"{shape}")
    for rows, columns in ((x.t().contiguous().t(), weight), (x, weight.t().contiguous().t())):
        y, other = fusedops.linear(x, weight, bias), fusedops.linear(rows, columns, bias)
        if dtype is torch.float32:  # of which one may go by parts
            torch.testing.assert_close(y, other, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(y, other)


@pytest.mark.gpu
@pytest.mark.sm90
def test_shapes_here_take_these_kernels():
    for dtype in DTYPES:
        for shape in ((300_001, 1, 2), (80_200, 5, 3), (200_003, 11, 26)):
            x, weight, bias, _ = linear_inputs(*shape, dtype, "cuda")
            taken(x, weight, bias, "none")


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_every_activation(dtype, activation):
    for shape in ((8201, 3, 5), (6001, 33, 7), (5003, 9, 70)):
        check_linear(*linear_inputs(*shape, dtype, "cuda"), activation, f"{shape}")


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_every_layout(dtype, layout):
    for m, n, k in ((5001, 3, 5), (4098, 9, 64), (4100, 40, 12)):
        x, weight, bias, dy = linear_inputs(m, n, k, dtype, "cuda")
        for rows, columns in ((LAYOUTS[layout](x), weight), (x, LAYOUTS[layout](weight))):
            check_linear(rows, columns, bias, dy, "silu", f"{m}x{n}x{k} {layout}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_weight_gradients_in_fp32(dtype):
    for m, n, k in ((50001, 3, 5), (20001, 11, 64), (9001, 1, 300)):
        x, weight, _, dy = linear_inputs(m, n, k, dtype, "cuda")
        with poisoned():
            _, dw, _ = OP(dy, x, weight, None, 0, False, True, True, True, False)
        assert dw.dtype is torch.float32
        exact = dy.double().t() @ x.double()
        assert_accurate(dw, dy.float().t() @ x.float(), exact, f"{m}x{n}x{k}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_repeatable_and_the_same_in_graphs_and_streams(dtype):
    for m, n, k in ((100_003, 3, 5), (30_001, 11, 65)):
        x, weight, bias, dy = linear_inputs(m, n, k, dtype, "cuda")
        y = fusedops.linear(x, weight, bias, "gelu_tanh")
        assert_replays_and_streams(
            lambda x=x, w=weight, b=bias: fusedops.linear(x, w, b, "gelu_tanh"), y
        )
        first = OP(dy, x, weight, None, 0, True, True, True, False, False)
        for _ in range(10):
            again = OP(dy, x, weight, None, 0, True, True, True, False, False)
            assert all(map(torch.equal, again, first))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_nan_and_infinity_stay_in_their_rows_and_columns(dtype):
    for m, n, k in ((5001, 3, 5), (4097, 9, 70), (4099, 33, 3)):
        x, weight, bias, _ = linear_inputs(m, n, k, dtype, "cuda")
        x[7, k - 1], x[4000, 0], weight[n - 1, 0] = math.nan, math.inf, math.nan
        y = fusedops.linear(x, weight, bias)
        theirs = torch.nn.functional.linear(x, weight, bias)
        assert torch.equal(y.isnan(), theirs.isnan())
        assert torch.equal(y.isinf(), theirs.isinf())
        assert not y[8:3999, : n - 1].isnan().any()


@pytest.mark.gpu
def test_more_than_16_columns_of_tf32_and_empty_operands():
    x, weight, bias, dy = linear_inputs(9001, 24, 30, torch.float32, "cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        y = fusedops.linear(x, weight, bias, "relu")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    exact = reference.linear(x.double(), weight.double(), bias.double(), "relu")
    assert (y.double() - exact).abs().max() < 5e-3
    assert fusedops.linear(x[:0], weight, bias).shape == (0, 24)
    assert fusedops.linear(x, weight[:0], bias[:0]).shape == (9001, 0)
    y = fusedops.linear(x[:, :0], weight[:, :0], bias)
    assert torch.equal(y, bias.expand(9001, 24))
    none = OP(dy[:0], x[:0], weight, None, 0, True, True, True, False, False)
    assert none[0].shape == (0, 30)
    assert not none[1].any()


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_two_to_the_31_elements():
    m, n, k = (1 << 31) // 3 + 77, 1, 3
    x = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
    for rows in x.split(1 << 26):
        rows.normal_()
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    y = fusedops.linear(x, weight)
    last = slice(m - 100_000, m)
    exact = reference.linear(x[last].double(), weight.double(), None, "none")
    assert_accurate(y[last], torch_linear(x[last], weight, None, "none"), exact)
    dy = torch.zeros(m, n, device="cuda", dtype=torch.bfloat16)
    dy[last] = 1
    dx, dw, _ = OP(dy, x, weight, None, 0, True, True, False, True, False)
    assert torch.equal(dx[last], weight.expand(100_000, k))
    assert not dx[: m - 100_000].any()
    torch.testing.assert_close(dw.double(), x[last].double().sum(0, keepdim=True))
