"""Large fp32 products, which run over bf16 parts: from 2^29 multiply-adds on."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from util import ACTIVATIONS, assert_accurate, linear_inputs, make, poisoned, torch_linear

OPS = torch.ops.fusedops
pytestmark = pytest.mark.gpu


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


@pytest.mark.parametrize(("m", "n"), [(1500, 320), (1500, 321), (400, 1501)])
def test_a_large_fp32_product_in_several_chunks(m, n):
    # 0.75 MB of parts a row: more than the workspace holds at a time
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


@pytest.mark.parametrize(("m", "n", "k"), [(832, 832, 840), (861, 833, 835)])
def test_a_large_fp32_step_in_a_cuda_graph(m, n, k):
    x, weight, bias, dy = linear_inputs(m, n, k, torch.float32, "cuda")
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
