"""The op of 1x1 convolutions, with what stands behind the sums: float64, edges, two runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedops
from fusedops import _C
from fusedops.ops import conv, conv_problem
from util import HALVES, assert_accurate, make, name

ops, tuning = torch.ops.fusedops, torch.ops.fusedops_tuning
# Rows, channels, outputs: one tile and less; ragged rows, channels and columns; tiles of 64, 128
# and 192 columns; a weight that is kept and one that comes with each step; several tiles for each
# block; channels and outputs without a kernel of their own.
CASES = [
    (1, 8, 8),
    (300, 64, 64),
    (1000, 16, 96),
    (129, 72, 24),
    (77, 200, 152),
    (30_000, 64, 256),
    (20_003, 512, 128),
    (35_000, 136, 64),
    (9000, 24, 144),
    (3136, 512, 2048),
    (500, 320, 1280),
    (100, 520, 64),
    (65, 30, 64),
    (65, 64, 30),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def inputs(case, dtype, device, wide=True):
    """x, weight, conv_bias, mean, var, bn_weight, bias and residual."""
    rows, channels, outputs = case
    x = make(rows, channels, dtype=dtype, device=device, seed=1)
    weight = make(outputs, channels, dtype=dtype, device=device, seed=2, scale=channels**-0.5)
    vectors = [
        make(outputs, dtype=torch.float32 if wide else dtype, device=device, seed=s)
        for s in range(3, 8)
    ]
    vectors[2] = vectors[2].abs() + 0.5
    residual = make(rows, outputs, dtype=dtype, device=device, seed=9)
    return [x, weight, *vectors, residual]


def composed(x, weight, conv_bias, mean, var, bn_weight, bias, residual, activation):
    """By torch, in the dtype of the operands."""
    vectors = [t.to(x.dtype) for t in (conv_bias, mean, var, bn_weight, bias)]
    z = F.batch_norm(F.linear(x, weight, vectors[0]), *vectors[1:], eps=1e-5)
    z = z if residual is None else z + residual
    return {"none": lambda z: z, "relu": F.relu, "silu": F.silu, "mish": F.mish}[activation](z)


@every_case
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize("wide", [True, False])
def test_against_float64(case, dtype, wide, device):
    if device == "cpu" and case[0] * case[1] * case[2] > 10**7:
        pytest.skip("a large product")
    given = inputs(case, dtype, device, wide)
    kernels = [ops.pointwise_conv]
    if device == "cuda":
        kernels += [tuning.pointwise_conv_by_own_kernel, tuning.pointwise_conv_by_product]
    exact_of = [t.double() for t in given]
    for activation, added in (("relu", True), ("silu", False), ("none", True), ("mish", False)):
        code = fusedops._core.activation.CODES[activation]
        rest = given[-1] if added else None
        exact = composed(*exact_of[:-1], exact_of[-1] if added else None, activation)
        want = composed(*given[:-1], rest, activation)
        for op in kernels:
            runs = [op(*given[:-1], rest, 1e-5, code) for _ in range(2)]
            assert torch.equal(*runs)
            assert_accurate(runs[0], want, exact, f"{activation} {added}")


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.usefixtures("forget_plans")
@pytest.mark.parametrize("dtype", HALVES, ids=name)
@pytest.mark.parametrize(
    "case", [(1096, 264, 328), (9001, 64, 64), (129, 72, 520), (390, 1032, 264)], ids=str
)
def test_every_product_with_the_norm_in_its_epilogue(case, dtype):
    given = inputs(case, dtype, "cuda")
    by_product = tuning.pointwise_conv_by_product
    for activation, added in (("relu", True), ("silu", False), ("none", False), ("mish", True)):
        code = fusedops._core.activation.CODES[activation]
        operands = (*given[:-1], given[-1] if added else None)
        _C.start_recording()
        by_product(*operands, 1e-5, code)
        [(problem, *device)] = _C.stop_recording()
        assert problem["epilogue"] == "norm"
        kernels = [c for c in _C.plan_gemm(problem, *device)["candidates"] if not c["rejected"]]
        assert {"sm90 128x128 pingpong 1x1", "sm90 128x256 cooperative 2x1"} <= {
            c["name"] for c in kernels
        }
        want = composed(*operands, activation)
        exact = composed(*(None if t is None else t.double() for t in operands), activation)
        for kernel in kernels:
            assert _C.add_tuned_plan(problem, kernel | {"us": 1.0}, *device)
            runs = [by_product(*operands, 1e-5, code) for _ in range(2)]
            assert_accurate(runs[0], want, exact, f"{kernel['name']} {activation}")
            assert torch.equal(*runs)
            _C.clear_tuned_plans()


def test_what_is_left_out(device):
    x, weight, conv_bias, mean, var, *_ = inputs((70, 64, 72), torch.float16, device)
    wide = x.double(), weight.double()
    got = ops.pointwise_conv(x, weight, *[None] * 6, 0.0, 0)
    torch.testing.assert_close(got.double(), F.linear(*wide), rtol=2e-3, atol=2e-3)
    got = ops.pointwise_conv(x, weight, conv_bias, mean, var, None, None, None, 1e-3, 0)
    want = (F.linear(*wide, conv_bias.double()) - mean) * (var.double() + 1e-3).rsqrt()
    torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_addresses_and_strides(dtype, device):
    given = inputs((140, 64, 72), dtype, device)
    want = ops.pointwise_conv(*given, 1e-5, 1)
    shifted = [torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape) for t in given]
    torch.testing.assert_close(ops.pointwise_conv(*shifted, 1e-5, 1), want, rtol=2e-2, atol=2e-2)
    strided = [t.mT.contiguous().mT if t.dim() == 2 else t for t in given]
    torch.testing.assert_close(ops.pointwise_conv(*strided, 1e-5, 1), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_stay_where_they_are(value, device):
    x, weight, *_, residual = inputs((300, 64, 200), torch.bfloat16, device)
    x[7, 3] = value
    weight[150, 2] = float("nan")
    residual[200, 100] = value
    y = ops.pointwise_conv(x, weight, *[None] * 5, residual, 0.0, 0)
    bad = ~torch.isfinite(y)
    want = torch.zeros_like(bad)
    want[7] = True
    want[:, 150] = True
    want[200, 100] = True
    assert torch.equal(bad, want)


def test_empty(device):
    for rows, outputs in ((0, 64), (5, 0)):
        given = inputs((rows, 64, outputs), torch.bfloat16, device)
        assert ops.pointwise_conv(*given, 1e-5, 1).shape == (rows, outputs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_a_convolution_in_evaluation(monkeypatch, dtype):
    """As accurate as what runs without the kernel, and the same on another stream's memory."""
    x = make(5, 64, 14, 14, dtype=dtype, device="cuda").to(memory_format=torch.channels_last)
    weight = make(96, 64, 1, 1, dtype=dtype, device="cuda", seed=2, scale=0.1)
    norm = [make(96, dtype=torch.float32, device="cuda", seed=s) for s in range(3, 7)]
    norm[1] = norm[1].abs() + 0.5
    residual = make(5, 96, 14, 14, dtype=dtype, device="cuda", seed=8)
    results = []
    for has_kernel in (True, False):
        monkeypatch.setattr(conv_problem, "uses_pointwise", lambda *_, has=has_kernel: has)
        conv._known_path.cache_clear()
        with torch.no_grad():
            results.append(
                fusedops.conv_bn_act(x, weight, None, *norm, activation="silu", residual=residual)
            )
    conv._known_path.cache_clear()
    wide = [t.double() for t in (x, weight)]
    exact = fusedops.reference.conv_bn_act(
        *wide, None, *(t.double() for t in norm), activation="silu",
        residual=residual.double(),
    )  # fmt: skip
    assert results[0].is_contiguous(memory_format=torch.channels_last)
    assert_accurate(results[0], results[1], exact)
