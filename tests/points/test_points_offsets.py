"""Packed clouds whose offsets fall, leave the tensor or leave rows out: still inside the tensor."""

from __future__ import annotations

import pytest
import torch

from fusedops import points as P
from util import poisoned

ROWS = 9000  # enough for the kernels that serve several queries at once

OFFSETS = {
    "falling": [0, 700, 300, 650, 9000],
    "falling_to_zero": [0, 6000, 0, 3000, 9000],
    "falling_from_the_end": [0, 9000, 4000, 20],
    "outside": [-5, 2**62, -(2**62), 9001],
    "first_late": [40, 1000, 9000],
    "last_early": [0, 500, 8000],
    "last_early_of_one": [0, 20],
    "all_before": [-3, -2, -1],
    "all_behind": [9001, 9001, 9002],
}


def monotone(offsets):
    """What such offsets count as."""
    return torch.tensor(offsets).clamp(0, ROWS).cummax(0).values


def answers(points, offsets, algorithm):
    """Every search among the points themselves, flat."""
    clouds = {"offsets": offsets, "algorithm": algorithm}
    for k in (5, 40):
        yield from P.knn(points, None, k, **clouds)
        for select in ("first", "nearest"):
            yield from P.ball_query(
                points, None, 0.05, k, select=select, return_dist=True, **clouds
            )
    yield from P.radius_search(points, None, 0.02, return_dist=True, **clouds)


@pytest.mark.parametrize("algorithm", ["brute", "grid"])
@pytest.mark.parametrize("case", OFFSETS)
def test_searches_stay_inside(device, case, algorithm):
    points = torch.rand(ROWS, 3, device=device)
    with poisoned():
        hostile = list(answers(points, torch.tensor(OFFSETS[case], device=device), algorithm))
        clean = list(answers(points, monotone(OFFSETS[case]).to(device), algorithm))
    for got, want in zip(hostile, clean, strict=True):
        assert torch.equal(got, want)
        assert got.is_floating_point() or (got >= -1).all()
    indices = [hostile[i] for i in (0, 2)]
    assert all(index.max() < ROWS for index in indices)
    outside = torch.ones(ROWS, dtype=torch.bool)
    outside[monotone(OFFSETS[case])[0] : monotone(OFFSETS[case])[-1]] = False
    assert (hostile[0].cpu()[outside] == -1).all()
    assert hostile[1].cpu()[outside].isinf().all()


@pytest.mark.parametrize("case", OFFSETS)
def test_the_index_takes_such_offsets(device, case):
    points = torch.rand(ROWS, 3, device=device)
    offsets = torch.tensor(OFFSETS[case], device=device)
    index = P.GridIndex(points, offsets=offsets)
    for queries, query_offsets in ((None, None), (points.clone(), offsets.flip(0))):
        got = index.knn(queries, 3, query_offsets=query_offsets)
        want = P.knn(
            points,
            queries,
            3,
            offsets=monotone(OFFSETS[case]).to(device),
            query_offsets=None
            if query_offsets is None
            else monotone(OFFSETS[case][::-1]).to(device),
            algorithm="brute",
        )
        assert torch.equal(got.idx, want.idx)


@pytest.mark.parametrize("case", OFFSETS)
def test_samples_stay_inside(device, case):
    points = torch.rand(ROWS, 3, device=device)
    offsets = torch.tensor(OFFSETS[case], device=device)
    with poisoned():
        index, _ = P.farthest_point_sample(points, 4, offsets=offsets)
    assert ((index >= -1) & (index < ROWS)).all()


@pytest.mark.parametrize("algorithm", ["brute", "grid"])
def test_lengths_stay_inside(device, algorithm):
    points = torch.rand(3, 3000, 3, device=device)
    lengths = torch.tensor([-7, 2**62, 3001], device=device)
    clamped = lengths.clamp(0, 3000)
    for k in (5, 40):
        got = P.knn(points, None, k, lengths=lengths, algorithm=algorithm)
        want = P.knn(points, None, k, lengths=clamped, algorithm=algorithm)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
