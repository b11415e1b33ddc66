"""fp8.linear: every scale layout that torch and checkpoints have, against float64."""

from __future__ import annotations

import pytest
import torch

from fusedops import fp8, reference
from util import ACTIVATIONS, make

M, N, K = 150, 136, 272
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
pytestmark = pytest.mark.filterwarnings("ignore:fusedops.fp8")


def operands(device, of_x, of_w, dtype="e4m3"):
    x = make(M, K, dtype=torch.float32, device=device)
    w = make(N, K, dtype=torch.float32, device=device, seed=1, scale=K**-0.5)
    x8, scale_x, *_ = fp8.quantize(x, of_x, dtype)
    w8, scale_w, *_ = fp8.quantize(w, of_w)
    return x8, w8, scale_x, scale_w


def assert_close(got, exact):
    """Rounding of the result, and sums of 14 bits on Hopper."""
    error = (got.double() - exact).norm() / exact.norm()
    assert error <= 0.4 * torch.finfo(got.dtype).eps + 3e-4 * got.is_cuda + 1e-6


@pytest.mark.parametrize("of_w", ["tensor", "row", "block", "tile"])
@pytest.mark.parametrize("of_x", ["tensor", "row", "block", "tile"])
def test_every_pair_of_scalings(device, of_x, of_w):
    x8, w8, scale_x, scale_w = operands(device, of_x, of_w)
    exact = reference.fp8_matmul(x8.double(), w8.double(), scale_x.double(), scale_w.double())
    for dtype in DTYPES:
        got = fp8.linear(x8, w8, scale_x, scale_w, dtype=dtype)
        assert got.dtype is dtype
        assert_close(got, exact)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bias_and_activation(device, activation):
    x8, w8, scale_x, scale_w = operands(device, "block", "tile", "e5m2")
    bias = make(N, dtype=torch.bfloat16, device=device, seed=2)
    wide = [t.double() for t in (x8, w8, scale_x, scale_w, bias)]
    got = fp8.linear(x8, w8, scale_x, scale_w, bias, activation)
    exact = reference.fp8_matmul(*wide, activation)
    assert (got.double() - exact).norm() <= 0.004 * exact.norm()


@pytest.mark.parametrize("n", [128, 256])
def test_as_many_tiles_as_rows_are_tiles(device, n):
    """K = 16384: the scales of a weight by tiles are as many as its rows."""
    x8, scale_x, *_ = fp8.quantize(make(3, 128**2, dtype=torch.float32, device=device))
    rising = torch.linspace(0.1, 3, 128, device=device).repeat_interleave(128)
    w = make(n, 128**2, dtype=torch.float32, device=device, seed=1) * rising
    w8, scale_w, *_ = fp8.quantize(w, "tile")
    assert scale_w.numel() == n
    exact = reference.fp8_matmul(x8.double(), w8.double(), scale_x.double(), scale_w.double())
    assert_close(fp8.linear(x8, w8, scale_x, scale_w), exact)


def test_layouts_of_scaled_mm_and_of_checkpoints(device):
    """Scalars, vectors of rows lying either way, row-major 1x128, the blocks of DeepSeek-V3."""
    x8, w8, scale_x, scale_w = operands(device, "row", "row")
    expected = fp8.linear(x8, w8, scale_x, scale_w)
    assert torch.equal(fp8.linear(x8, w8, scale_x.view(M), scale_w.t()), expected)
    x8, w8, scale_x, scale_w = operands(device, "tensor", "tensor")
    expected = fp8.linear(x8, w8, scale_x, scale_w)
    assert torch.equal(fp8.linear(x8, w8, scale_x.view(()), scale_w.view(1)), expected)
    x8, w8, scale_x, weight_scale_inv = operands(device, "block", "tile")
    assert scale_x.stride() == (1, 152)
    expected = fp8.linear(x8, w8, scale_x, weight_scale_inv)
    assert torch.equal(fp8.linear(x8, w8, scale_x.contiguous(), weight_scale_inv), expected)
    column_major = weight_scale_inv.t().contiguous().t()
    assert torch.equal(fp8.linear(x8, w8, scale_x, column_major), expected)
    three = fp8.linear(x8.view(3, M // 3, K), w8, scale_x, weight_scale_inv)
    assert torch.equal(three, expected.view(3, M // 3, N))


@pytest.mark.parametrize("k", [1, 100, 130])
def test_odd_sizes_and_empty_ones(device, k):
    x, w = (make(r, k, dtype=torch.float32, device=device, seed=r) for r in (5, 7))
    x8, scale_x, *_ = fp8.quantize(x)
    w8, scale_w, *_ = fp8.quantize(w, "tile")
    wide = (fp8.dequantize(q, s, torch.float64) for q, s in ((x8, scale_x), (w8, scale_w)))
    a, b = wide
    exact = a @ b.t()
    assert_close(fp8.linear(x8, w8, scale_x, scale_w, dtype=torch.float32), exact)
    assert fp8.linear(x8[:0], w8, scale_x[:0], scale_w).shape == (0, 7)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("mode", ["tensor", "row"])
def test_scaled_mm_agrees(mode):
    x8, w8, scale_x, scale_w = operands("cuda", mode, mode)
    w8, scale_w = w8[:128], scale_w[:128]  # whose features are a multiple of 16
    expected = torch._scaled_mm(
        x8, w8.t(), scale_x, scale_w if mode == "tensor" else scale_w.t(), out_dtype=torch.bfloat16
    )
    got = fp8.linear(x8, w8, scale_x, scale_w)
    assert (got.double() - expected.double()).norm() <= 0.004 * expected.double().norm()


def test_errors():
    x8, w8, scale_x, scale_w = operands("cpu", "block", "tile")
    with pytest.raises(ValueError, match=r"fp8\.linear: activation must be None or one of"):
        fp8.linear(x8, w8, scale_x, scale_w, activation="swish")
    with pytest.raises(ValueError, match=r"fp8\.linear: dtype must be torch.float16, torch.bf"):
        fp8.linear(x8, w8, scale_x, scale_w, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"fp8\.linear: scale_x must be a float32 Tensor; got"):
        fp8.linear(x8, w8, scale_x.double(), scale_w)
    with pytest.raises(TypeError, match=r"fp8\.linear: w8 must be a Tensor; got list"):
        fp8.linear(x8, [1], scale_x, scale_w)
    with pytest.raises(
        RuntimeError, match=r"^fp8\.linear: x8 must be float8_e4m3fn or float8_e5m2"
    ):
        fp8.linear(x8.float(), w8, scale_x, scale_w)
    with pytest.raises(RuntimeError, match=r"^fp8\.linear: scale_w must have shape \(1, 1\)"):
        fp8.linear(x8, w8, scale_x, scale_w[:, :2])
    with pytest.raises(RuntimeError, match=r"^fp8\.linear: bias must have dtype bfloat16 like"):
        fp8.linear(x8, w8, scale_x, scale_w, torch.ones(N))
