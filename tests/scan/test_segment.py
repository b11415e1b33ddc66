"""segment_reduce: power-law and degenerate offsets, gradients, ties and NaN, repeats."""

from __future__ import annotations

import math

import pytest
import torch

import fusedops
from fusedops import reference
from util import DTYPES, assert_accurate, make, name

KINDS = ("sum", "mean", "max", "min")


def power_law(segments, rows, device):
    """Offsets of segments whose lengths fall as a power of their rank, in random order; some are
    empty, one holds a tenth of all rows or more."""
    generator = torch.Generator().manual_seed(segments)
    weight = torch.rand(segments, generator=generator, dtype=torch.float64).clamp(1e-9) ** -0.9
    length = (weight / weight.sum() * rows).floor().long()
    length[torch.rand(segments, generator=generator) < 0.1] = 0
    length[length.argmax()] += rows - length.sum()
    return torch.cat([torch.zeros(1, dtype=torch.long), length.cumsum(0)]).to(device)


def offsets_of(what, device):
    """Offsets and rows; 40_000 rows are more than the kernel for little data takes."""
    match what:
        case "power law":
            return power_law(300, 40_000, device), 40_000
        case "many short":  # one launch where there are columns
            return power_law(400, 3_000, device), 3_000
        case "few rows":
            return power_law(700, 300, device), 300
        case "one":
            return torch.tensor([0, 40_000], device=device), 40_000
        case "gaps":  # rows before the first, after the last; empty ones at both ends
            return torch.tensor([7, 7, 7, 9, 9, 5000, 39_000, 39_000], device=device), 40_000
        case "few and gaps":
            return torch.tensor([7, 7, 7, 9, 9, 50, 90, 90], device=device), 100
        case "many to one":  # the segment with nearly all rows is shared by a block's threads
            ends = torch.arange(168, device=device)
            return torch.cat([ends, ends[-1:] + 1 + torch.tensor([600, 601], device=device)]), 769
        case "every row":
            return torch.arange(601, device=device), 600
        case "all empty":
            return torch.full((9,), 4, device=device), 10
        case "no rows":
            return torch.zeros(5, dtype=torch.long, device=device), 0
        case _:
            return torch.zeros(1, dtype=torch.long, device=device), 10


def largest_partial_sums(x, offsets, kind):
    """Each segment's, which round a sum that cancels more than its own size does."""
    sums = torch.cat([x.new_zeros(1, *x.shape[1:]), x.cumsum(0)])
    found = []
    for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        partial = (sums[begin : end + 1] - sums[begin]).abs().amax(0)
        found.append(partial / max(1, end - begin) if kind == "mean" else partial)
    return torch.stack(found) if found else x[:0]


OFFSETS = (
    "power law",
    "many short",
    "few rows",
    "one",
    "gaps",
    "few and gaps",
    "many to one",
    "every row",
    "all empty",
    "no rows",
    "none",
)


@pytest.mark.parametrize("columns", [None, 1, 3, 8, 64, 200, 320])
@pytest.mark.parametrize("what", OFFSETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_values(device, dtype, what, columns):
    offsets, rows = offsets_of(what, device)
    shape = (rows,) if columns is None else (rows, columns)
    x = make(*shape, dtype=dtype, device=device)
    for kind in KINDS:
        y = fusedops.segment_reduce(x, offsets, kind)
        exact = reference.segment_reduce(x.double(), offsets, kind)
        if kind in ("sum", "mean"):
            partial = largest_partial_sums(x.double(), offsets, kind)
            assert_accurate(y, reference.segment_reduce(x, offsets, kind), exact, kind, partial)
        else:
            assert torch.equal(y.double(), exact), kind


@pytest.mark.parametrize("columns", [None, 1, 8, 24])
@pytest.mark.parametrize("what", ["power law", "gaps", "every row", "all empty"])
def test_gradients(device, what, columns):
    offsets, rows = offsets_of(what, device)
    shape = (rows,) if columns is None else (rows, columns)
    x = make(*shape, dtype=torch.float64, device=device).requires_grad_()
    for kind in KINDS:
        y = fusedops.segment_reduce(x, offsets, kind)
        dy = make(*y.shape, dtype=torch.float64, device=device, seed=2)
        (dx,) = torch.autograd.grad(y, x, dy)
        expected = torch.zeros_like(x)
        if rows and what != "all empty":
            (expected,) = torch.autograd.grad(reference.segment_reduce(x, offsets, kind), x, dy)
        torch.testing.assert_close(dx, expected)


def test_gradgradcheck(device):
    offsets = torch.tensor([1, 3, 3, 6], device=device)
    x = make(8, 2, dtype=torch.float64, device=device).requires_grad_()
    for kind in KINDS:
        assert torch.autograd.gradcheck(lambda t, k=kind: fusedops.segment_reduce(t, offsets, k), x)
        assert torch.autograd.gradgradcheck(
            lambda t, k=kind: fusedops.segment_reduce(t, offsets, k), x
        )


@pytest.mark.parametrize("columns", [None, 8])
def test_first_of_equal_rows_gets_the_gradient(device, columns):
    shape = (6,) if columns is None else (6, columns)
    x = torch.ones(shape, device=device).requires_grad_()
    offsets = torch.tensor([0, 4, 6], device=device)
    for kind in ("max", "min"):
        (dx,) = torch.autograd.grad(fusedops.segment_reduce(x, offsets, kind).sum(), x)
        assert dx.reshape(6, -1)[:, 0].tolist() == [1, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("columns", [None, 8])
def test_nan_and_infinity(device, columns):
    values = torch.tensor([1.0, math.nan, 3.0, -math.inf, math.inf, math.nan], device=device)
    x = values if columns is None else values.unsqueeze(1).expand(6, columns)
    offsets = torch.tensor([0, 3, 5], device=device)
    for kind, last in [("max", math.inf), ("min", -math.inf)]:
        y = fusedops.segment_reduce(x, offsets, kind).reshape(2, -1)
        assert y[0].isnan().all()
        assert (y[1] == last).all()
    index = torch.ops.fusedops.segment_reduce(x, offsets, 2)[1]
    assert index.reshape(2, -1)[:, 0].tolist() == [1, 4]
    sums = fusedops.segment_reduce(x, torch.tensor([0, 1, 6], device=device)).reshape(2, -1)
    assert sums[0, 0].item() == 1.0
    assert sums[1].isnan().all()


def test_strides(device):
    wide = make(8000, 40, dtype=torch.float32, device=device)
    offsets = power_law(300, 8000, device)
    views = [
        wide[:, 4:20],
        wide[:, 3],
        wide[:, 1:4],
        wide.t().contiguous().t(),
        wide.view(8000, 5, 8),
    ]
    for x in views:
        got = fusedops.segment_reduce(x, offsets)
        exact = reference.segment_reduce(x.double(), offsets)
        assert_accurate(got, reference.segment_reduce(x, offsets), exact)
        assert torch.equal(
            fusedops.segment_reduce(x, offsets, "max"), reference.segment_reduce(x, offsets, "max")
        )


def test_errors(device):
    x, offsets = torch.ones(5, 3, device=device), torch.tensor([0, 2, 5], device=device)
    with pytest.raises(ValueError, match=r"^segment_reduce: reduce must be one of sum, mean, max"):
        fusedops.segment_reduce(x, offsets, "prod")
    with pytest.raises(TypeError, match=r"^segment_reduce: offsets must be a Tensor; got list$"):
        fusedops.segment_reduce(x, [0, 2])
    op, backward = torch.ops.fusedops.segment_reduce, torch.ops.fusedops.segment_reduce_backward
    for to in (device, "meta"):
        a, o = x.to(to), offsets.to(to)
        for arguments, text in [
            ((a, o.int(), 0), "offsets must have dtype int64; got int32"),
            ((a, o[None], 0), r"offsets must have shape \(S \+ 1,\); got shape \(1, 3\)"),
            ((a, o, 4), "kind must be from 0 to 3; got 4"),
            ((a, o, 2**40), f"kind must be from 0 to 3; got {2**40}"),
            ((a[0, 0], o, 0), r"x must have at least 1 dimension\(s\); got shape \(\)"),
        ]:
            with pytest.raises(RuntimeError, match=f"^segment_reduce: {text}$"):
                op(*arguments)
        for arguments, text in [
            ((a, o, None, 5, False), r"dy must have 2 row\(s\) like offsets; got shape \(5, 3\)"),
            ((a[:2], o, o, 5, False), r"index must have shape \(2, 3\) like dy; got \(3,\)"),
            ((a[:2], o, None, -1, False), "rows must not be negative; got -1"),
        ]:
            with pytest.raises(RuntimeError, match=f"^segment_reduce_backward: {text}$"):
                backward(*arguments)


@pytest.mark.parametrize("columns", [None, 1, 8])
@pytest.mark.parametrize("rows", [50, 40_000])
@pytest.mark.parametrize("kind", KINDS)
def test_broken_offsets_harm_nobody(device, kind, rows, columns):
    """What they give is undefined; nothing crashes, hangs or spoils the next call."""
    shape = (rows,) if columns is None else (rows, columns)
    x = make(*shape, dtype=torch.float32, device=device).requires_grad_()
    generator = torch.Generator().manual_seed(rows)
    anything = torch.randint(-rows, 2 * rows, (3000,), generator=generator)
    falling = torch.arange(rows, -1, -1)
    for offsets in (anything, falling, torch.tensor([0, 2**62, -(2**62), rows])):
        fusedops.segment_reduce(x, offsets.to(device), kind).sum().backward()
    whole = torch.tensor([0, rows], device=device)
    y = fusedops.segment_reduce(x, whole, kind)
    want = reference.segment_reduce(x.detach().double(), whole, kind)
    torch.testing.assert_close(y.detach().double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("segments", [40, 500_000, 7_000_000])
def test_runs_of_many_tiles(segments, dtype):
    """Small integers, whose sums no order changes."""
    rows = 7_000_003
    x = torch.randint(-3, 4, (rows,), device="cuda")
    offsets = torch.randint(0, rows, (segments + 1,), device="cuda").sort().values
    ids = torch.bucketize(torch.arange(rows, device="cuda"), offsets, right=True)  # 0: before them
    sums = torch.zeros(segments + 2, dtype=torch.long, device="cuda").index_add_(0, ids, x)
    y = fusedops.segment_reduce(x.to(dtype), offsets)
    assert torch.equal(y, sums[1 : segments + 1].to(dtype))

    largest = x.new_full((segments + 2,), -9).scatter_reduce_(0, ids, x, "amax")
    holds = torch.where(x == largest[ids], torch.arange(rows, device="cuda"), rows)
    first = x.new_full((segments + 2,), rows).scatter_reduce_(0, ids, holds, "amin")
    empty = offsets.diff() == 0
    y, index = torch.ops.fusedops.segment_reduce(x.to(dtype), offsets, 2)
    assert torch.equal(y.long(), largest[1 : segments + 1].masked_fill(empty, 0))
    assert torch.equal(index, first[1 : segments + 1].masked_fill(empty, -1))


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [None, 16])
def test_repeats_bitwise(columns):
    rows = 1 << 20
    offsets = power_law(50_000, rows, "cuda")
    shape = (rows,) if columns is None else (rows, columns)
    x = make(*shape, dtype=torch.float32, device="cuda")
    first = fusedops.segment_reduce(x, offsets)
    for _ in range(20):
        assert torch.equal(fusedops.segment_reduce(x, offsets), first)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("columns", [None, 4])
def test_more_than_2_32_bytes(columns):
    n = 2**31 + 9
    x = torch.ones(n, dtype=torch.float16, device="cuda")
    rows = n
    if columns is not None:
        rows = n // columns
        x = x[: rows * columns].view(rows, columns)
    offsets = torch.tensor([0, 5, rows - 7, rows], device="cuda")
    assert fusedops.segment_reduce(x, offsets, "mean").unique().tolist() == [1.0]
    assert fusedops.segment_reduce(x, offsets)[2].flatten()[0].item() == 7
    x[rows - 3] = 2
    y, index = torch.ops.fusedops.segment_reduce(x, offsets, 2)
    assert y.reshape(3, -1)[:, 0].tolist() == [1, 1, 2]
    assert index.reshape(3, -1)[:, 0].tolist() == [0, 5, rows - 3]
