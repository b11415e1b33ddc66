"""topk: values and indices against a stable sort, ties, NaN, gradients, splits, repeats."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops import reference
from util import DTYPES, make, name

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
# Lanes of a warp that sort a row, a block, several tiles, rows that are split over blocks, k beyond
# a warp.
CASES = [
    ((1,), 1),
    ((37, 2), 2),
    ((1001, 8), 5),
    ((77, 33), 33),
    ((9, 128), 128),
    ((9, 129), 3),
    ((5, 7), 3),
    ((0, 7), 3),
    ((5, 7), 0),
    ((50, 300), 32),
    ((100, 1000), 10),
    ((2, 3, 64), 64),
    ((3, 5000), 128),
    ((2, 100_003), 64),
    ((1, 500_000), 128),
]


def assert_topk(x, k, largest, dim=-1):
    values, indices = fusedops.topk(x, k, dim, largest=largest)
    expected, positions = reference.topk(x, k, dim, largest)
    assert torch.equal(indices, positions)
    torch.testing.assert_close(values, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "k"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS], ids=name)
def test_values_and_ties(device, dtype, shape, k, largest):
    x = make(*shape, dtype=torch.float64, device=device, scale=40).round()
    assert_topk(x.clamp(0, 100).to(dtype), k, largest)  # many ties
    if dtype.is_floating_point:
        assert_topk(make(*shape, dtype=dtype, device=device), k, largest)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_special_values(device, dtype, largest):
    x = make(4, 3000, dtype=dtype, device=device)
    x[0, 5::7] = math.nan
    x[1, 3::5], x[1, 4::5] = math.inf, -math.inf
    x[2] = torch.tensor([0.0, -0.0], dtype=dtype, device=device).repeat(1500)
    x[3] = 1
    for k in (1, 20, 128):
        assert_topk(x, k, largest)


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_sorted_rows(device, order):
    x = torch.arange(20_000, device=device, dtype=torch.float32)
    assert_topk(x if order == "rising" else x.flip(0), 100, True)


def test_dim_and_strides(device):
    x = make(6, 50, 9, dtype=torch.float32, device=device)
    for dim in (0, 1, 2, -2):
        assert_topk(x, 5, True, dim)
    assert_topk(x[:, :, 2], 7, False)
    assert_topk(x.view(300, 9)[:, 1:6], 4, True)
    assert_topk(x.view(300, 9).t(), 4, True)


def test_gradients(device):
    x = make(4, 9, dtype=torch.float64, device=device).requires_grad_()
    for dim in (0, 1):
        assert torch.autograd.gradcheck(lambda t, d=dim: fusedops.topk(t, 3, d)[0], x)
        assert torch.autograd.gradgradcheck(lambda t, d=dim: fusedops.topk(t, 3, d)[0], x)


def test_errors(device):
    x = torch.ones(3, 200, device=device)
    op = torch.ops.fusedops.topk
    for to in (device, "meta"):
        for k, n, most in [(129, 200, 128), (-1, 200, 128), (6, 5, 5), (2**40, 200, 128)]:
            text = f"k must be from 0 to {most}, the smaller of 128 and the row length; got {k}"
            with pytest.raises(RuntimeError, match=f"^topk: {text}$"):
                op(x[:, :n].to(to), k, True)
        with pytest.raises(RuntimeError, match=r"^topk: x must not be bool; got bool$"):
            op(x.bool().to(to), 1, True)
        with pytest.raises(RuntimeError, match=r"^topk: x must have at least 1 dimension\(s\)"):
            op(x[0, 0].to(to), 1, True)
    with pytest.raises(TypeError, match=r"^topk: x must be a Tensor; got list$"):
        fusedops.topk([1.0], 1)


@pytest.mark.gpu
def test_repeats_bitwise():
    x = make(64, 100_000, dtype=torch.bfloat16, device="cuda")  # full of ties
    values, indices = fusedops.topk(x, 128)
    for _ in range(20):
        again = fusedops.topk(x, 128)
        assert torch.equal(again[0], values)
        assert torch.equal(again[1], indices)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_32_bytes():
    n = 2**32 + 17
    x = torch.zeros(n, dtype=torch.uint8, device="cuda")
    x[[3, 2**31 + 1, n - 2]] = torch.tensor([7, 9, 7], dtype=torch.uint8, device="cuda")
    values, indices = fusedops.topk(x, 4)
    assert values.tolist() == [9, 7, 7, 0]
    assert indices.tolist() == [2**31 + 1, 3, n - 2, 0]
