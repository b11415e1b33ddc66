"""bincount and histogram: values, weights, gradients, edges, huge tensors."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import fusedops
from fusedops import reference
from util import DTYPES, assert_accurate, make, name

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def integers(shape, low, high, dtype, device):
    generator = torch.Generator(device).manual_seed(1)
    return torch.randint(low, high, shape, generator=generator, device=device).to(dtype)


# 1 bin, copies in shared memory (32, fewer, one), and straight into global memory.
@pytest.mark.parametrize("bins", [1, 5, 256, 1000, 20_000, 100_000])
@pytest.mark.parametrize("count", [0, 1, 15, 4099, 100_001])
@pytest.mark.parametrize("dtype", INTEGERS, ids=name)
def test_bincount(device, dtype, count, bins):
    info = torch.iinfo(dtype)
    x = integers((count,), max(info.min, -3), min(info.max, bins + 4), dtype, device)
    inside = x[(x >= 0) & (x.long() < bins)].long()
    assert torch.equal(fusedops.bincount(x, bins), torch.bincount(inside, minlength=bins))


def test_bincount_of_constant_and_strided(device):
    x = torch.full((3, 5000), 7, dtype=torch.uint8, device=device)
    assert fusedops.bincount(x, 256)[7].item() == 15_000
    x = integers((40, 60), 0, 9, torch.int32, device)
    view = x.t()[3::2]
    expected = torch.bincount(view.flatten(), minlength=9)
    assert torch.equal(fusedops.bincount(view, 9), expected)
    tail = x.view(-1)[3:]  # not aligned to 16 bytes
    assert torch.equal(fusedops.bincount(tail, 9), torch.bincount(tail, minlength=9))


def test_bincount_of_extreme_values(device):
    x = torch.tensor([-(2**63), -1, 0, 2**31, 2**32, 2**63 - 1, 2], device=device)
    assert fusedops.bincount(x, 3).tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_histogram(device, dtype):
    # Multiples of 1/8 and bins of width 1/4: every bin is exact in every dtype
    x = make(50, 41, dtype=torch.float64, device=device).mul(8).round().div(8).to(dtype)
    got = fusedops.histogram(x, 12, -1.0, 2.0)
    assert torch.equal(got, reference.histogram(x, 12, -1.0, 2.0))
    assert torch.equal(got.cpu().double(), torch.histc(x.cpu().double(), 12, -1, 2))


def test_histogram_edges(device):
    x = [0.0, 1.0, 0.25, 0.2499, 1.0001, -0.0001, math.nan, math.inf, -math.inf, 0.75]
    got = fusedops.histogram(torch.tensor(x, device=device), 4, 0.0, 1.0)
    assert got.tolist() == [2, 1, 0, 2]


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_weights(device, dtype):
    x = integers((30, 101), -2, 12, torch.int64, device)
    w = make(30, 101, dtype=dtype, device=device)
    got = fusedops.bincount(x, 10, w)
    exact = reference.bincount(x, 10, w.double())
    assert got.dtype is dtype
    assert_accurate(got, reference.bincount(x, 10, w.float()).to(dtype), exact)


def test_gradient_of_weights(device):
    x = integers((30,), -2, 12, torch.int32, device)
    w = make(30, dtype=torch.float64, device=device).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: fusedops.bincount(x, 10, t), w)
    assert torch.autograd.gradgradcheck(lambda t: fusedops.bincount(x, 10, t), w)


def test_errors(device):
    x = torch.ones(4, dtype=torch.int64, device=device)
    f = torch.ones(4, device=device)
    for to in (device, "meta"):
        for bins in (0, -1, 2**31, 2**40):
            text = f"bins must be from 1 to 2147483647; got {bins}$"
            with pytest.raises(RuntimeError, match=f"^bincount: {text}"):
                fusedops.bincount(x.to(to), bins)
            with pytest.raises(RuntimeError, match=f"^histogram: {text}"):
                fusedops.histogram(f.to(to), bins, 0, 1)
        for low, high in [(1, 1), (2, 1), (0, math.inf), (math.nan, 1)]:
            text = f"low must be less than high, both finite; got {low:g} and {high:g}$"
            with pytest.raises(RuntimeError, match=f"^histogram: {text}"):
                fusedops.histogram(f.to(to), 3, low, high)
    with pytest.raises(RuntimeError, match=r"^bincount: weights must have shape \(4,\)"):
        fusedops.bincount(x, 3, f[:2])
    with pytest.raises(TypeError, match=r"^bincount: weights must be a Tensor; got float$"):
        fusedops.bincount(x, 3, 1.0)
    with pytest.raises(TypeError, match=r"^histogram: x must be a Tensor; got int$"):
        fusedops.histogram(1, 3, 0, 1)


@pytest.mark.gpu
def test_repeats_bitwise():
    x = integers((1 << 22,), 0, 1000, torch.int32, "cuda")
    w = make(1 << 22, dtype=torch.float32, device="cuda")
    counts, sums = fusedops.bincount(x, 1000), fusedops.bincount(x, 1000, w)
    for _ in range(20):
        assert torch.equal(fusedops.bincount(x, 1000), counts)
        assert torch.equal(fusedops.bincount(x, 1000, w), sums)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_2_32_bytes():
    n = 2**32 + 17
    x = torch.full((n,), 200, dtype=torch.uint8, device="cuda")
    x[-3:] = 5
    counts = fusedops.bincount(x, 256)
    assert counts[200].item() == n - 3
    assert counts[5].item() == 3


@pytest.mark.parametrize(
    ("dtype", "value", "low", "high", "bins", "expected"),
    [
        (torch.float32, 5.1e37, 0.0, 1e38, 100, 51),
        (torch.float32, 5.15e36, 0.0, 1e37, 100, 51),
        (torch.float32, 3e38, 0.0, 1e300, 10, 0),
        (torch.bfloat16, 1.0, -3e38, 3e38, 10, 5),
        (torch.float32, 1.0, -3e38, 3e38, 10, 5),
        (torch.float32, -3e38, -3e38, 3e38, 10, 0),
        (torch.float32, 3e38, -3e38, 3e38, 10, 9),
        (torch.float32, 3e38, 0.0, 1e39, 10, 3),
        (torch.float32, 1.0, 1.0, 1.0 + 1e-9, 4, 0),
        (torch.float64, 1e308, -1.5e308, 1.5e308, 6, 5),
    ],
)
def test_ranges_that_overflow(device, dtype, value, low, high, bins, expected):
    x = torch.tensor([value], dtype=dtype, device=device)
    counts = fusedops.histogram(x, bins, low, high)
    assert counts.nonzero().flatten().tolist() == [expected]


@pytest.mark.gpu
def test_threads_with_other_numbers_of_bins():
    """No launch lowers the limit of shared memory that another thread's relies on."""

    def count(bins):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.arange(bins, device="cuda", dtype=torch.int32)
            return all(fusedops.bincount(x, bins).min().item() == 1 for _ in range(500))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(count, (20_000, 9000)))
