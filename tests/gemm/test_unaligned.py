"""Products of operands that begin anywhere: who reads them in place, results against float64."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops import reference
from fusedops._core.activation import activation_code
from gemm import mlp_util
from gemm.linear_util import check_linear
from gemm.unaligned_util import columns, layouts, shifted, unaligned
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

OP = torch.ops.fusedops.linear_backward
TILE_OP = torch.ops.fusedops_tuning
RELU = activation_code("relu")
TILES = 8  # of csrc/cutlass/configs/unaligned_configs.h
# M, N, K: every tile, K in one and in several slices, rows of any length on either side.
SHAPES = (
    *((1, 4111, 3001), (8, 2953, 1065), (40, 135, 4099), (64, 9365, 1517), (96, 87, 8001)),
    *((20011, 6, 803), (9001, 47, 57), (5003, 99, 645), (3000, 243, 117), (700, 700, 333)),
)


# ---- selection ----


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("m", "n", "k", "b"),
    [
        (1, 11101, 7928, (11101, 1)),  # columns of an odd number of weights
        (16, 8325, 9762, None),
        (64, 7219, 14420, None),
        (148_153, 6, 803, None),
        (20_011, 6, 803, None),
    ],
)
def test_large_operands_of_odd_rows_are_read_in_place(dtype, m, n, k, b):
    found = unaligned(m, n, k, b=b, dtype=dtype)
    assert found["takes"]
    assert found["expected_us"] < 0.8 * found["other_us"]
    assert found["splits"] >= 1
    assert found["name"].endswith("{}x{}".format(*found["tile"]))


@pytest.mark.parametrize(
    ("m", "n", "k", "options", "reason"),
    [
        (4096, 4096, 4096, {}, "nothing has to be copied"),
        (4096, 4097, 4100, {"dtype": "float64"}, "fp64"),
        (4096, 4097, 4099, {"epilogue": "grad"}, "no kernel with this epilogue"),
        (512, 333, 333, {"a": (999, 3)}, "neither stride of an operand is 1"),
        (0, 3, 3, {}, "an extent is zero"),
        (7601, 549, 119_471, {"epilogue": "accumulator"}, "sums over K would be too long"),
    ],
)
def test_what_is_not_read_in_place_says_why(m, n, k, options, reason):
    found = unaligned(m, n, k, **options)
    assert not found["takes"]
    assert reason in found["rejected"]


@pytest.mark.parametrize(("m", "n", "k"), [(18304, 4540, 6871), (8192, 30522, 1025)])
def test_large_products_are_copied_first(m, n, k):
    """WGMMA is faster by more than the copies take, or the results are what takes long."""
    found = unaligned(m, n, k)
    assert found["rejected"] is None
    assert not found["takes"]


def test_an_odd_address_is_enough():
    assert unaligned(16, 8192, 8192)["rejected"] == "nothing has to be copied"
    assert unaligned(16, 8192, 8192, b=(1, 8192, 2))["takes"]


def test_explain_names_the_kernel():
    report = fusedops.explain((16, 9762), (8325, 9762), (8325,), "relu")
    assert report.products[0].kernel.startswith("unaligned")
    assert "begin anywhere" in str(report)


# ---- results ----


def assert_sums(ours, a, b, what):
    """fp32 results: Tensor Cores cut off what they add, relative to all that was added before."""
    sizes = a.double().abs() @ b.double().abs()
    assert_accurate(ours, a.float() @ b.float(), a.double() @ b.double(), what, sizes)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(dtype, shape):
    x, weight, bias, dy = linear_inputs(*shape, dtype, "cuda")
    for activation, b in (("relu", bias), ("gelu", None)):
        check_linear(x, weight, b, dy, activation, f"{shape} {activation}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("shape", [(33, 1500, 2001), (6001, 47, 505)], ids=str)
def test_every_layout_and_address(dtype, shape):
    x, weight, bias, dy = linear_inputs(*shape, dtype, "cuda")
    for rows in (x, columns(x), shifted(x, 1)):
        for others in (weight, columns(weight), shifted(weight, 5)):
            check_linear(rows, others, bias, dy, "silu", f"{shape}")
    wide = torch.full((shape[0], shape[2] + 7), math.nan, dtype=dtype, device="cuda")
    rows = wide[:, 3 : 3 + shape[2]].copy_(x)
    check_linear(rows, weight, bias, dy, "silu", f"{shape} slice")


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_shapes_here_take_these_kernels(dtype):
    for shape in ((9, 4111, 3001), (64, 9365, 1517), (20011, 6, 803), (5003, 99, 645)):
        report = fusedops.explain(*linear_inputs(*shape, dtype, "cuda")[:3])
        assert report.products[0].kernel.startswith("unaligned"), str(report)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("tile", range(TILES))
def test_every_tile(tile, dtype):
    """Chosen or not: one tile and a bit of the next ones, and less than 16 bytes of everything."""
    for m, n, k in ((131, 133, 515), (257, 67, 1031), (3, 5, 7), (40, 300, 64)):
        x, weight, bias, _ = linear_inputs(m, n, k, dtype, "cuda")
        exact = reference.linear(x.double(), weight.double(), bias.double(), "relu")
        theirs = torch_linear(x, weight, bias, "relu")
        for a, b in layouts(x, weight, 7):
            for splits in (1, 2) if k >= 512 else (1,):
                with poisoned():
                    y = TILE_OP.gemm_unaligned(a, b.t(), bias, RELU, tile, splits, 0)
                assert_accurate(y, theirs, exact, f"{m}x{n}x{k} {splits}")
                sums = TILE_OP.gemm_unaligned(a, b.t(), None, 0, tile, splits, 2)
                assert_sums(sums, x, weight.t(), f"{m}x{n}x{k} sums")


@pytest.mark.gpu
def test_tiles_that_do_not_exist_are_refused():
    x = torch.randn(9, 9, device="cuda", dtype=torch.bfloat16)
    for tile, splits in ((TILES, 1), (-1, 1), (0, 0), (0, 500)):
        with pytest.raises(RuntimeError, match="out of range"):
            TILE_OP.gemm_unaligned(x, x, None, 0, tile, splits, 0)
    with pytest.raises(RuntimeError, match="K = 9 has no 2 slices"):
        TILE_OP.gemm_unaligned(x, x, None, 0, 0, 2, 0)
    with pytest.raises(RuntimeError, match="fp64"):
        TILE_OP.gemm_unaligned(x.double(), x.double(), None, 0, 0, 1, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_every_activation(dtype, activation):
    for shape in ((9, 1203, 2001), (5001, 35, 259)):
        check_linear(*linear_inputs(*shape, dtype, "cuda"), activation, f"{shape}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@mlp_util.every_kind
def test_mlps_of_odd_sizes(kind, dtype):
    """With a residual; products whose epilogue is fused elsewhere may be a product and a pass."""
    for shape in (((3001,), 92, 339, 92), ((2000,), 45, 511, 31), ((700,), 333, 27, 219)):
        for activation in ("gelu", "relu"):
            arguments, residual, dy = mlp_util.inputs(kind, dtype, "cuda", shape)
            with poisoned():
                got = mlp_util.step(mlp_util.ours, kind, arguments, activation, residual, dy)
            other = mlp_util.step(mlp_util.torchs, kind, arguments, activation, residual, dy)
            truth = mlp_util.step(
                mlp_util.exact, kind, arguments, activation, residual, dy, torch.float64
            )
            for i, (a, b, c) in enumerate(zip(got, other, truth, strict=True)):
                assert_accurate(a, b, c, f"{shape} {activation} result {i}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_weight_gradients_in_fp32(dtype):
    for m, n, k in ((20_001, 47, 57), (4001, 333, 259)):
        x, weight, _, dy = linear_inputs(m, n, k, dtype, "cuda")
        with poisoned():
            _, dw, _ = OP(dy, x, weight, None, 0, False, True, True, True, False)
        assert dw.dtype is torch.float32
        assert_sums(dw, dy.t(), x, f"{m}x{n}x{k}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_repeatable_and_the_same_in_graphs_and_streams(dtype):
    for m, n, k in ((8, 2953, 3065), (30_001, 47, 65)):
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
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_nan_and_infinity_stay_in_their_rows_and_columns(dtype):
    for m, n, k in ((20, 1501, 2003), (5001, 47, 203)):
        x, weight, bias, _ = linear_inputs(m, n, k, dtype, "cuda")
        x[7, k - 1], x[m - 1, 0], weight[n - 1, 0] = math.nan, math.inf, math.nan
        y = fusedops.linear(x, weight, bias)
        theirs = torch.nn.functional.linear(x, weight, bias)
        assert torch.equal(y.isnan(), theirs.isnan())
        assert torch.equal(y.isinf(), theirs.isinf())
        assert not y[8 : m - 1, : n - 1].isnan().any()
