"""Kept inner dimensions that no vector divides: shifted, packed, staged and dense columns.

Every shape is one regime of the planner (test_reduce_plan.py pins them); values are small integers,
so that sums are exact in any order.
"""

from __future__ import annotations

import pytest
import torch

import fusedops

# (shape, dim): few shifted rows, shifted, packed, staged and dense columns
SHAPES = {
    "few long rows": ((3, 200_007), 0),
    "few rows of entries": ((5, 7, 17_001), 1),
    "rows that fill the GPU": ((64, 20, 5001), 1),
    "whole rows that fill the GPU": ((64, 30, 8192), 1),
    "many odd rows": ((300, 1031), 0),
    "many odd rows of entries": ((30, 77, 301), 1),
    "little work": ((3, 77, 301), 1),
    "rows that end inside a vector": ((5, 700, 95), 1),
    "one such row beyond a step": ((70, 66, 135), 1),
    "five columns": ((30_001, 5), 0),
    "seven columns": ((9_001, 7), 0),
    "31 columns of entries": ((3, 4097, 31), 1),
    "63 columns": ((7_001, 63), 0),
    "small entries": ((500, 9, 3), 1),
    "entries of 17": ((200, 128, 17), 1),
    "entries of a few vectors": ((501, 31, 129), 1),
    "entries of long columns": ((70, 501, 3), 1),
    "dense rows": ((7, 1902, 95), 1),
    "dense rows of four": ((5, 333, 268), 1),
    "dense rows by the block": ((13, 90, 509), 1),
    "one column": ((64, 7, 1), 1),
    "reduced entries": ((3, 601, 5, 7), (0, 2)),
}
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.int64)


def integers(shape, dtype, device, offset=0):
    """Small integers in a view that starts `offset` elements into its memory."""
    torch.manual_seed(0)
    count = torch.Size(shape).numel() + offset
    low = -3 if dtype.is_floating_point or dtype is torch.int64 else 0
    return torch.randint(low, 4, (count,), device=device).to(dtype)[offset:].view(shape)


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SHAPES)
def test_sums_are_exact(device, case, dtype, offset):
    shape, dim = SHAPES[case]
    x = integers(shape, dtype, device, offset)
    want = x.double().sum(dim)
    got = fusedops.sum(x, dim)
    assert torch.equal(got.double(), want.to(got.dtype).double())
    got = fusedops.count_nonzero(x, dim)
    assert torch.equal(got, (x != 0).sum(dim))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [name for name in SHAPES if name != "reduced entries"])
def test_first_of_the_largest(device, case, dtype, offset):
    shape, dim = SHAPES[case]
    x = integers(shape, dtype, device, offset)
    # NOTE: the first of many ties, which torch does not promise for every dtype on a GPU.
    ties = x == x.double().amax(dim, keepdim=True).to(dtype)
    want = ties.to(torch.uint8).cpu().numpy().argmax(dim)
    assert torch.equal(fusedops.argmax(x, dim).cpu(), torch.from_numpy(want))
    assert torch.equal(fusedops.amax(x, dim), x.amax(dim))
    assert torch.equal(fusedops.amin(x, dim), x.amin(dim))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("case", SHAPES)
def test_statistics(device, case, dtype):
    shape, dim = SHAPES[case]
    x = torch.randn(shape, device=device).to(dtype)
    wide = x.double()
    bound = 1e-2 if dtype is torch.bfloat16 else 1e-5
    for got, want in (
        (fusedops.var(x, dim), wide.var(dim)),
        (fusedops.norm(x, 2, dim), torch.linalg.vector_norm(wide, 2, dim)),
        (fusedops.logsumexp(x, dim), wide.logsumexp(dim)),
    ):
        torch.testing.assert_close(got.double(), want, rtol=bound, atol=bound)


@pytest.mark.parametrize("case", SHAPES)
def test_not_a_number_stays_in_its_column(device, case):
    shape, dim = SHAPES[case]
    x = integers(shape, torch.bfloat16, device, 1)
    x[(shape[0] // 2,) + (0,) * (len(shape) - 1)] = float("nan")
    x[(-1,) * len(shape)] = float("inf")
    want = x.double().sum(dim).to(torch.bfloat16)
    got = fusedops.sum(x, dim)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert want.isnan().any()
    assert torch.equal(fusedops.amax(x, dim).isnan(), want.isnan())


@pytest.mark.parametrize("case", SHAPES)
def test_two_runs_agree_bit_by_bit(device, case):
    shape, dim = SHAPES[case]
    x = torch.randn(shape, device=device)
    first = fusedops.sum(x, dim)
    assert all(torch.equal(first, fusedops.sum(x, dim)) for _ in range(3))


def test_sliced_rows(device):
    whole = integers((40, 9, 1031), torch.bfloat16, device)
    x = whole[3:-2, :, 5:-7]
    assert torch.equal(fusedops.sum(x, 1), x.double().sum(1).to(torch.bfloat16))
    assert torch.equal(fusedops.sum(x, (0, 1)), x.double().sum((0, 1)).to(torch.bfloat16))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case", ["few long rows", "many odd rows", "five columns", "small entries"]
)
def test_in_a_graph_on_a_side_stream(case):
    shape, dim = SHAPES[case]
    x = integers(shape, torch.bfloat16, "cuda", 1)
    want = fusedops.sum(x, dim)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        got = fusedops.sum(x, dim)
    got.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(got, want)
