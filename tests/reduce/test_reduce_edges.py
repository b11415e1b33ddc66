"""Reductions at the edge of their dtypes: integers with a dtype, variances over nothing."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from util import DTYPES, make, name

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS], ids=name)
@pytest.mark.parametrize("kind", ["sum", "mean", "prod"])
def test_integers_are_converted_to_dtype_first(device, kind, dtype):
    if kind == "mean" and not dtype.is_floating_point:
        pytest.skip("torch has no mean of integers")
    for of, rows in {
        torch.int64: [[2**62] * 4, [1, -1, 0, 0], [2**63 - 1, 2**63 - 1, 5, 7], [3, 3, 256, 2]],
        torch.int32: [[2**31 - 1] * 4, [1, -1, 0, 0], [70000, -70000, 1, 1], [3, 3, 256, 2]],
        torch.uint8: [[255] * 4, [1, 0, 0, 0], [0] * 4, [16, 16, 1, 1]],
        torch.bool: [[True] * 4, [True, False, False, False], [False] * 4, [True] * 4],
    }.items():
        x = torch.tensor(rows, dtype=of, device=device)
        y = getattr(fusedops, kind)(x, 1, dtype=dtype)
        expected = getattr(torch, kind)(x.cpu(), 1, dtype=dtype)
        torch.testing.assert_close(y.cpu(), expected, equal_nan=True)
        torch.testing.assert_close(
            getattr(fusedops, kind)(x[0], dtype=dtype).cpu(), expected[0], equal_nan=True
        )


def test_sums_of_narrow_integers_are_exact(device):
    x = torch.full((2**20 + 3,), 2**24 + 1, dtype=torch.int32, device=device)
    exact = torch.tensor(int(x[0]) * x.numel()).to(torch.float32)
    assert torch.equal(fusedops.sum(x, dtype=torch.float32).cpu(), exact)
    assert fusedops.mean(x, dtype=torch.float64).item() == 2**24 + 1


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("kind", ["var", "std"])
def test_variance_of_no_more_than_correction(device, kind, dtype):
    """As torch: squared deviations over 0, which are infinite, or NaN where there are none."""
    rows = [[1, 2, 4, 8], [-1, -1, -1, 1], [0.1] * 4, [0] * 4]
    rows += [[1e-4, 2e-4, 0, 0], [1, math.nan, 2, 3], [1, math.inf, 2, 3], [math.inf] * 4]
    x = torch.tensor(rows, dtype=dtype, device=device)
    ours, torchs = getattr(fusedops, kind), getattr(torch, kind)
    for correction in (3.5, 4, 4.5, 7, 100):
        expected = torchs(x, 1, correction=correction)
        torch.testing.assert_close(ours(x, 1, correction=correction), expected, equal_nan=True)
        mapped = torch.func.vmap(lambda row, c=correction: ours(row, 0, correction=c))(x)
        torch.testing.assert_close(mapped, expected, equal_nan=True)
        for single in (x[0, :1], x[0, 0], x[5, 1]):
            assert ours(single, correction=correction).isnan()
    assert ours(x[:2], correction=8).isposinf()
    empty = ours(x[:, :0], 1, correction=0)
    assert empty.isnan().all()
    assert empty.shape == (len(rows),)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=name)
def test_variance_on_the_cpu_has_the_range_of_float64(dtype):  # as torch's on the CPU
    for scale in (1e-30, 1e30):
        x = make(3, 50000, dtype=dtype, device="cpu").mul_(scale)
        for call in (fusedops.std, torch.std):
            assert call(x, 1).log10().sub(math.log10(scale)).abs().max() < 0.1
        assert fusedops.var(x[:, :5], 1, correction=5).isposinf().all()
        assert fusedops.std(x[0], correction=50000).isposinf()
