"""fp32 products over three bf16 parts of each value: who takes them, results against float64."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops import reference
from fusedops._core.activation import activation_code
from gemm.linear_util import check_linear
from gemm.unaligned_util import columns, layouts, unaligned
from util import ACTIVATIONS, assert_accurate, captured, linear_inputs, make, poisoned, torch_linear

OPS = torch.ops.fusedops
TILE_OP = torch.ops.fusedops_tuning
RELU = activation_code("relu")
TILES = 4  # kPartTiles of csrc/cutlass/configs/unaligned_configs.h


# ---- selection ----


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *((44_338, 64, 2415), (100_000, 81, 81), (401_367, 64, 264), (17_015, 32, 1944)),
        *((4096, 4096, 4096), (163, 14_488, 1438), (738, 72, 167_952), (8192, 16_384, 4096)),
    ],
)
def test_fp32_products_go_by_parts(m, n, k):
    found = unaligned(m, n, k, dtype="float32")
    assert found["takes"]
    assert found["name"].startswith("parts 128x")
    assert found["expected_us"] < found["other_us"]


def test_small_fp32_products_keep_to_fma():
    for m, n, k in ((8, 64, 100), (456, 223, 316), (64, 64, 64)):
        assert not unaligned(m, n, k, dtype="float32")["takes"]
    found = unaligned(4096, 64, 4100, dtype="float32", capability=80)
    assert "for Hopper alone" in found["rejected"]


def test_operands_with_gaps_both_ways_are_copied_first():
    found = unaligned(4096, 512, 512, a=(2048, 2), dtype="float32")
    assert found["takes"]
    assert found["pack_a"]
    assert found["pack_b"] is None


def test_an_address_counts_whatever_was_asked_before():
    aligned = unaligned(4096, 64, 512, dtype="float32")
    behind = unaligned(4096, 64, 512, a=(512, 1, 4), dtype="float32")
    assert behind["expected_us"] > aligned["expected_us"]
    assert unaligned(4096, 64, 512, dtype="float32") == aligned


def test_explain_names_the_kernel():
    report = fusedops.explain((44_338, 2415), (64, 2415), dtype=torch.float32)
    assert report.products[0].kernel.startswith("parts")
    assert "three bf16 parts" in str(report)
    report = fusedops.explain((4097, 4093), (4099, 4093), dtype=torch.float32)
    assert "x is packed first: the copy costs less than words" in str(report)


# ---- results ----


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("tile", range(TILES))
def test_every_tile(tile):
    """Values of three bf16 parts: as accurate as FP32 FMA."""
    for m, n, k in ((131, 133, 515), (257, 67, 1031), (3, 5, 7), (40, 200, 64), (9001, 164, 36)):
        x, weight, bias, _ = linear_inputs(m, n, k, torch.float32, "cuda")
        exact = reference.linear(x.double(), weight.double(), bias.double(), "relu")
        theirs = torch_linear(x, weight, bias, "relu")
        for a, b in layouts(x, weight, 3):
            for splits in (1, 2) if k >= 512 else (1,):
                with poisoned():
                    y = TILE_OP.gemm_unaligned(a, b.t(), bias, RELU, tile, splits, 0)
                assert_accurate(y, theirs, exact, f"{m}x{n}x{k} {splits}")
                again = TILE_OP.gemm_unaligned(a, b.t(), bias, RELU, tile, splits, 0)
                assert torch.equal(y, again)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("tile", range(TILES))
def test_values_without_parts(tile):
    """What bf16 rounds to infinity, infinity and NaN; and values of any size beside each other."""
    x, weight, _, _ = linear_inputs(150, 140, 100, torch.float32, "cuda")
    big = torch.finfo(torch.float32).max
    x[3, 7], x[80, 99], x[81, 0], weight[139, 99] = big, math.inf, math.nan, 0.0
    weight[:, 7] *= 1e-3
    y = TILE_OP.gemm_unaligned(x, weight.t(), None, 0, tile, 1, 0)
    exact = x.double() @ weight.double().t()
    assert torch.equal(y.isnan(), exact.isnan())
    assert torch.equal(y.isinf(), exact.isinf())
    fine = exact.isfinite()
    bound = (x.double().abs() @ weight.double().abs().t()).nan_to_num() * 1e-6
    assert ((y.double() - exact).abs()[fine] <= bound[fine]).all()
    sizes = 2.0 ** torch.linspace(-60, 60, 100, device="cuda")
    y = TILE_OP.gemm_unaligned(x[:3] * sizes, (weight / sizes).t(), None, 0, tile, 1, 0)
    exact = (x[:3] * sizes).double() @ (weight / sizes).double().t()
    bound = x[:3].double().abs() @ weight.double().abs().t() * 1e-6
    assert ((y.double() - exact).abs() <= bound)[:3, 1:].all()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(5003, 64, 415), (9001, 33, 1003), (2003, 131, 517)], ids=str)
def test_with_gradients(shape):
    x, weight, bias, dy = linear_inputs(*shape, torch.float32, "cuda")
    for rows in (x, columns(x)):
        check_linear(rows, weight, bias, dy, "gelu", f"{shape}")


@pytest.mark.gpu
@pytest.mark.sm90
def test_operands_with_gaps_and_repeated_rows():
    wide = make(6000, 512, dtype=torch.float32, device="cuda", seed=1)
    weight = make(200, 512, dtype=torch.float32, device="cuda", seed=2)[:, 1::2]
    for x in (wide[:, ::2], wide[::3, ::2], wide[:1, ::2].expand(6000, -1)):
        y = fusedops.linear(x, weight, None, "relu")
        exact = reference.linear(x.double(), weight.double(), None, "relu")
        assert_accurate(y, torch_linear(x, weight, None, "relu"), exact)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [844, 843])
@pytest.mark.parametrize("layout", ["TN", "NN", "NT", "TT"])
def test_nonfinite_values_of_a_large_fp32_product(layout, n):
    m, k = 840, 836
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
@pytest.mark.parametrize(("m", "n"), [(1500, 320), (1500, 321), (400, 1501)])
def test_a_long_sum(m, n):
    k = 65536
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
@pytest.mark.parametrize(("m", "h"), [(5001, 3945), (5003, 3946), (5002, 3945)])
def test_the_second_half_of_two_large_products_begins_anywhere(m, h):
    """Gate and up lie behind each other: up begins 4, 8 or 12 bytes behind a multiple of 16."""
    x, gate, _, _ = linear_inputs(m, h, 30, torch.float32, "cuda")
    up = make(h, 30, dtype=torch.float32, device="cuda", seed=9)
    with poisoned():
        both = OPS.gated_linear(x, gate, up, None, None, False)
    for got, weight in zip(both, (gate, up), strict=True):
        exact = x.double() @ weight.double().t()
        assert_accurate(got, torch_linear(x, weight, None, "none"), exact, f"{m}x{h}")


@pytest.mark.gpu
@pytest.mark.parametrize("behind", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_large_weight_gradient_goes_to_any_address(behind, accumulate):
    dz, x = (make(1200, 832, dtype=torch.float32, device="cuda", seed=i) for i in (4, 5))
    flat = torch.ones(832 * 832 + 8, device="cuda")
    main_grad = flat[behind : behind + 832 * 832].view(832, 832)
    OPS.linear_wgrad_(dz, x, main_grad, accumulate, False)
    exact = dz.double().t() @ x.double() + accumulate
    assert_accurate(main_grad, dz.t() @ x + accumulate, exact, "main_grad")
    assert torch.equal(flat[:behind], torch.ones(behind, device="cuda"))
    assert (flat[behind + 832 * 832 :] == 1).all()


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n", "k"), [(832, 832, 840), (861, 833, 835)])
def test_a_large_fp32_step_in_a_cuda_graph(m, n, k):
    x, weight, bias, dy = linear_inputs(m, n, k, torch.float32, "cuda")
    static = [torch.zeros_like(t) for t in (x, weight, bias, dy)]
    leaves = [t.requires_grad_() for t in static[:3]]

    def step():
        y = fusedops.linear(*leaves, "gelu")
        return (y.detach(), *torch.autograd.grad(y, leaves, static[3]))

    graph, results = captured(step)
    with torch.no_grad():
        for into, source in zip(static, (x, weight, bias, dy), strict=True):
            into.copy_(source)
    expected = step()
    for _ in range(3):
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
