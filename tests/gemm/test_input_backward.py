"""linear_input_backward: the gradient of x with another one added."""

from __future__ import annotations

import pytest
import torch

from fusedops import _C
from util import (
    DTYPES,
    HALVES,
    LAYOUTS,
    assert_accurate,
    assert_replays_and_streams,
    make,
    name,
)

OPS = torch.ops.fusedops
SHAPES = [(6, 8, 16), (5, 3, 7), (300, 200, 264), (1, 64, 128), (4096, 64, 256), (40, 1000, 8)]


def operands(m, n, k, dtype, device):
    """dz (M, N), weight (N, K), added (M, K)."""
    return (
        make(m, n, dtype=dtype, device=device, scale=n**-0.5, seed=1),
        make(n, k, dtype=dtype, device=device, seed=2),
        make(m, k, dtype=dtype, device=device, seed=3),
    )


def check(dz, weight, added, got=None):
    got = OPS.linear_input_backward(dz, weight, added, False) if got is None else got
    assert got.is_contiguous()
    exact = dz.double() @ weight.double() + added.double()
    assert_accurate(got, dz @ weight + added, exact)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_accuracy(device, dtype, shape):
    check(*operands(*shape, dtype, device))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operand", range(3))
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_layouts(device, dtype, operand, layout):
    tensors = list(operands(72, 40, 88, dtype, device))
    tensors[operand] = LAYOUTS[layout](tensors[operand])
    check(*tensors)


@pytest.mark.parametrize("shape", [(0, 4, 8), (6, 0, 8), (6, 4, 0)])
def test_empty(device, shape):
    m, n, k = shape
    tensors = [torch.ones(s, device=device) for s in [(m, n), (n, k), (m, k)]]
    assert torch.equal(OPS.linear_input_backward(*tensors, False), tensors[2] + n)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=name)
def test_nan_and_infinity(device, dtype):
    dz, weight, added = operands(72, 40, 88, dtype, device)
    added[3, 5], added[4, 6], dz[70, 2] = float("nan"), float("inf"), float("nan")
    got = OPS.linear_input_backward(dz, weight, added, False)
    want = torch.zeros(72, 88, dtype=torch.bool)
    want[3, 5] = want[70] = True
    assert torch.equal(got.isnan().cpu(), want)
    assert got[4, 6] == float("inf")


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.usefixtures("forget_plans")
@pytest.mark.parametrize("dtype", HALVES, ids=name)
def test_every_kernel(dtype):
    """In tiles that do not divide the rows and columns."""
    tensors = operands(1096, 264, 328, dtype, "cuda")
    _C.start_recording()
    OPS.linear_input_backward(*tensors, False)
    [(problem, *device)] = _C.stop_recording()
    assert (problem["epilogue"], problem["b_major"]) == ("residual", "mn")
    kernels = [c for c in _C.plan_gemm(problem, *device)["candidates"] if c["rejected"] is None]
    assert {"sm90 128x128 pingpong 1x1", "sm90 128x256 cooperative 2x1"} <= {
        c["name"] for c in kernels
    }
    for kernel in kernels:
        assert _C.add_tuned_plan(problem, kernel | {"us": 1.0}, *device)
        got = OPS.linear_input_backward(*tensors, False)
        check(*tensors, got)
        assert torch.equal(OPS.linear_input_backward(*tensors, False), got)
        _C.clear_tuned_plans()


@pytest.mark.gpu
def test_graphs_and_streams():
    tensors = operands(1096, 264, 328, torch.bfloat16, "cuda")
    call = lambda: OPS.linear_input_backward(*tensors, False)  # noqa: E731
    assert_replays_and_streams(call, call())
